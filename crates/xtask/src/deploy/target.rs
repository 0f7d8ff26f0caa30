//! What `wrangler.toml` says of one environment: everything that the command asks the account for is read here and nowhere
//! repeated.

use super::stop;
use anyhow::{Context, Result};
use toml::{Table, Value};

/// One environment of wrangler.toml.
pub(crate) struct Target {
    pub(crate) worker: String,
    /// Whether it answers under workers.dev.
    workers_dev: bool,
    /// Patterns of its routes, and whether each is a custom domain.
    routes: Vec<(String, bool)>,
    /// Whether an image of it is built from a Dockerfile, for which wrangler needs Docker.
    pub(crate) builds_image: bool,
    environment: Table,
}

impl Target {
    pub(crate) fn read(configuration: &str, name: &str) -> Result<Self> {
        let top: Table = configuration.parse().context("wrangler.toml is not TOML")?;
        let Some(environment) = top.get("env").and_then(|all| all.get(name)).and_then(Value::as_table) else {
            return Err(stop(
                &format!("wrangler.toml has no environment {name}"),
                &format!("add [env.{name}] to it, or name another one with --env"),
            ));
        };
        let text = |table: &Table, key: &str| table.get(key).and_then(Value::as_str).map(str::to_owned);
        let worker = text(environment, "name")
            .or_else(|| Some(format!("{}-{name}", text(&top, "name")?)))
            .context("wrangler.toml names no Worker")?;
        let inherited = |key: &str| environment.get(key).or_else(|| top.get(key));
        let one = inherited("route").into_iter();
        let many = inherited("routes").and_then(Value::as_array).into_iter().flatten();
        let routes: Vec<(String, bool)> = one.chain(many).filter_map(route).collect();
        // wrangler's default: on where there is no route.
        let workers_dev = inherited("workers_dev").and_then(Value::as_bool).unwrap_or(routes.is_empty());
        let builds_image = entries(environment, "containers")
            .filter_map(|container| container.get("image")?.as_str())
            // A registry's image has a host name or a digest before its first slash, a file begins with a dot or a slash.
            .any(|image| image.starts_with(['.', '/']) || image.contains("Dockerfile"));
        Ok(Self { worker, workers_dev, routes, builds_image, environment: environment.clone() })
    }

    /// Names of what the environment binds under `key` (dotted), from the field `field` of each entry.
    pub(crate) fn bound(&self, key: &str, field: &str) -> Vec<String> {
        let (table, list) = match key.split_once('.') {
            Some((outer, inner)) => (self.environment.get(outer).and_then(Value::as_table), inner),
            None => (Some(&self.environment), key),
        };
        let Some(table) = table else { return Vec::new() };
        entries(table, list).filter_map(|entry| Some(entry.get(field)?.as_str()?.to_owned())).collect()
    }

    /// Whether anything leads to the Worker once it is deployed.
    pub(crate) fn is_reachable(&self) -> bool {
        self.workers_dev || !self.routes.is_empty()
    }

    /// The URL to ask, where the configuration alone tells it: of a custom domain.
    pub(crate) fn custom_domain(&self) -> Option<String> {
        self.routes.iter().find(|(_, custom)| *custom).map(|(pattern, _)| format!("https://{pattern}"))
    }
}

fn entries<'a>(table: &'a Table, key: &str) -> impl Iterator<Item = &'a Value> {
    table.get(key).and_then(Value::as_array).into_iter().flatten()
}

fn route(value: &Value) -> Option<(String, bool)> {
    if let Some(pattern) = value.as_str() {
        return Some((pattern.to_owned(), false));
    }
    let custom = value.get("custom_domain").and_then(Value::as_bool).unwrap_or(false);
    Some((value.get("pattern")?.as_str()?.to_owned(), custom))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIGURATION: &str = r#"
        name = "ops"
        [env.staging]
        [[env.staging.containers]]
        image = "./Dockerfile.sandbox"
        [env.production]
        name = "ops-live"
        workers_dev = false
        routes = [{ pattern = "ops.example.com", custom_domain = true }]
        r2_buckets = [{ binding = "FILES", bucket_name = "ops-files" }]
        [[env.production.containers]]
        image = "registry.cloudflare.com/account/sandbox:1"
        [[env.production.queues.producers]]
        binding = "JOBS"
        queue = "ops-jobs"
    "#;

    #[test]
    fn an_environment_is_read_as_wrangler_reads_it() {
        let staging = Target::read(CONFIGURATION, "staging").unwrap();
        assert_eq!(
            (staging.worker.as_str(), staging.builds_image, staging.is_reachable()),
            ("ops-staging", true, true)
        );
        let production = Target::read(CONFIGURATION, "production").unwrap();
        assert_eq!((production.worker.as_str(), production.builds_image), ("ops-live", false));
        assert_eq!(production.custom_domain().as_deref(), Some("https://ops.example.com"));
        assert_eq!(production.bound("r2_buckets", "bucket_name"), ["ops-files"]);
        assert_eq!(production.bound("queues.producers", "queue"), ["ops-jobs"]);
        assert_eq!(staging.bound("queues.producers", "queue"), Vec::<String>::new());
    }

    #[test]
    fn an_unknown_environment_is_told_with_what_to_do() {
        let Err(error) = Target::read(CONFIGURATION, "moon") else { panic!("there is no such environment") };
        assert!(error.to_string().contains("next: add [env.moon]"), "{error}");
    }
}
