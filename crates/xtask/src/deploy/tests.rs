//! The whole flow with a double in the place of wrangler: a script that records its arguments, its standard input and its
//! environment, and answers as the test wants. What follows a deployment is asked of a small HTTP server, through the real
//! client.

use super::live::Patience;
use super::{Environment, Options, Outside, carry_out};
use crate::setup::Node;
use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

const CONFIGURATION: &str = r#"
    name = "ops"
    [env.staging]
    name = "ops-staging"
    r2_buckets = [{ binding = "FILES", bucket_name = "ops-files" }]
    [[env.staging.containers]]
    image = "./Dockerfile.sandbox"
    [[env.staging.queues.producers]]
    binding = "JOBS"
    queue = "ops-jobs"
    [[env.staging.queues.consumers]]
    queue = "ops-jobs"
    dead_letter_queue = "ops-jobs-dead"
    [[env.staging.queues.consumers]]
    queue = "ops-jobs-dead"
    [env.production]
    name = "ops-production"
    workers_dev = false
    routes = [{ pattern = "ops.example.com", custom_domain = true }]
    [env.bare]
"#;

const KEY: &str = "given-key-of-a-test-0123";
const VERSION: &str = r#"{"versions":[{"version_id":"old-version","percentage":100}]}"#;
const WHOAMI: &str = r#"{"loggedIn":true,"accounts":[{"id":"acc1","name":"Test account"}]}"#;
const SECRETS_THERE: &str =
    r#"[{"name":"WORKER_API_KEY_SECRET","type":"secret_text"},{"name":"SIGNING_SECRET","type":"secret_text"}]"#;
const NO_WORKER: &str =
    "Worker \"ops-staging\" (env: staging) not found.\nIf this is a new Worker, run `wrangler deploy` first";

/// One deployment in a folder of its own: a checkout, a wrangler and an account that the test arranges.
struct Scene {
    folder: PathBuf,
    options: Options,
    /// What wrangler answers: beginning of the arguments, exit code, output.
    answers: Vec<(&'static str, i32, String)>,
    variables: BTreeMap<&'static str, String>,
    agrees: bool,
    asked: Cell<bool>,
    docker: bool,
    continuous_integration: bool,
    site: Site,
}

impl Scene {
    /// A first deployment to staging that goes well.
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("xtask-deploy-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("checkout")).unwrap();
        fs::write(folder.join("checkout/.gitignore"), "/target\n/.cloudflare-ops\n").unwrap();
        let scene = Self {
            folder,
            options: Options::default(),
            answers: Vec::new(),
            variables: BTreeMap::new(),
            agrees: false,
            asked: Cell::new(false),
            docker: true,
            continuous_integration: false,
            site: Site::start(200, r#"{"exitCode":0,"stdout":"ready\n","sandboxId":"s1"}"#),
        };
        scene.git(&["init", "--quiet"]);
        scene.git(&["add", "."]);
        scene.git(&["commit", "--quiet", "--message", "first"]);
        scene
    }

    /// One that was deployed before, with a key that is known here.
    fn deployed_before(name: &str) -> Self {
        let mut scene = Self::new(name);
        scene.answers.push(("secret list", 0, SECRETS_THERE.to_owned()));
        scene.variables.insert("WORKER_API_KEY_SECRET", KEY.to_owned());
        scene
    }

    fn production(name: &str) -> Self {
        let mut scene = Self::deployed_before(name);
        scene.options.env = Environment::Production;
        scene.git(&["tag", "v1.2.3"]);
        scene
    }

    fn answering(mut self, arguments: &'static str, code: i32, output: &str) -> Self {
        self.answers.insert(0, (arguments, code, output.to_owned()));
        self
    }

    fn git(&self, arguments: &[&str]) {
        let mut git = Command::new("git");
        git.args(["-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false"]);
        let status = git.args(arguments).current_dir(self.folder.join("checkout")).status().unwrap();
        assert!(status.success(), "git {arguments:?}");
    }

    fn double(&self) -> PathBuf {
        let url = &self.site.url;
        let report = format!(r#"{{"type":"deploy","version_id":"new-version","targets":["{url}"]}}"#);
        let usual = [
            ("whoami", 0, WHOAMI.to_owned()),
            ("secret list", 1, NO_WORKER.to_owned()),
            ("secret put", 0, String::new()),
            ("deployments status", 0, VERSION.to_owned()),
            ("r2 bucket info", 0, "{}".to_owned()),
            ("r2 bucket create", 0, String::new()),
            ("queues info", 0, "Queue Name: ops-jobs".to_owned()),
            ("queues create", 0, String::new()),
            ("deploy", 0, "Uploaded".to_owned()),
        ];
        let mut script = String::from(
            "#!/bin/sh\ncd \"$(dirname \"$0\")\"\necho \"$*\" >>calls\ncat >>inputs\nenv >>environments\ncase \"$*\" in\n",
        );
        for (arguments, code, output) in self.answers.iter().chain(&usual) {
            let also = if *arguments == "deploy" && *code == 0 {
                format!(
                    "mkdir -p \"$(dirname \"$WRANGLER_OUTPUT_FILE_PATH\")\"; echo '{report}' >\"$WRANGLER_OUTPUT_FILE_PATH\"\n"
                )
            } else {
                String::new()
            };
            let _ = write!(script, "'{arguments} '*)\ncat <<'END'\n{output}\nEND\n{also}exit {code};;\n");
        }
        script.push_str("*) echo \"unexpected: $*\" >&2; exit 99;;\nesac\n");
        // Not written from here: a child that another test starts meanwhile would have it open for writing until it is
        // another program, and what is open for writing cannot be started.
        let mut writer = Command::new("sh")
            .args(["-c", "cat >wrangler && chmod 755 wrangler"])
            .current_dir(&self.folder)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        writer.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        assert!(writer.wait().unwrap().success());
        self.folder.join("wrangler")
    }

    fn run(&self) -> Result<()> {
        let variable = |name: &str| self.variables.get(name).cloned();
        let docker = || if self.docker { Ok(PathBuf::from("/bin/true")) } else { bail!("Docker is not installed") };
        let agree = |_: &str| {
            self.asked.set(true);
            self.agrees
        };
        let brief = Duration::from_millis(200);
        let outside = Outside {
            root: self.folder.join("checkout"),
            configuration: CONFIGURATION.to_owned(),
            wrangler: self.double(),
            path: Node.path_variable().unwrap(),
            logs: self.folder.join("logs"),
            variable: &variable,
            build: &|| Ok(()),
            docker: &docker,
            agree: &agree,
            continuous_integration: self.continuous_integration,
            patience: Patience { health: brief, exec: brief, pause: Duration::from_millis(20) },
        };
        carry_out(&self.options, &outside)
    }

    /// The message of a failure, whose last line is the next thing to do.
    fn fails(&self) -> String {
        let error = self.run().expect_err("this deployment fails");
        let text = format!("{error:#}");
        assert!(text.lines().last().is_some_and(|line| line.starts_with("  next: ")), "no next step: {text}");
        text
    }

    fn file(&self, name: &str) -> String {
        fs::read_to_string(self.folder.join(name)).unwrap_or_default()
    }

    /// Commands that wrangler was given, by their beginning.
    fn calls(&self, beginning: &str) -> Vec<String> {
        self.file("calls").lines().filter(|line| line.starts_with(beginning)).map(str::to_owned).collect()
    }

    fn changed_nothing(&self) -> bool {
        ["deploy ", "secret put", "r2 bucket create", "queues create"]
            .iter()
            .all(|beginning| self.calls(beginning).is_empty())
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// What a deployed Worker would answer.
struct Site {
    url: String,
    seen: Arc<Mutex<String>>,
}

impl Site {
    fn start(status: u16, exec: &str) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let url = format!("http://127.0.0.1:{}", listener.local_addr().unwrap().port());
        let seen = Arc::new(Mutex::new(String::new()));
        let (record, exec) = (Arc::clone(&seen), exec.to_owned());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { break };
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let (mut head, mut length) = (String::new(), 0);
                loop {
                    let mut line = String::new();
                    if reader.read_line(&mut line).unwrap_or(0) == 0 || line == "\r\n" {
                        break;
                    }
                    if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                        length = value.trim().parse().unwrap();
                    }
                    head.push_str(&line);
                }
                let mut body = vec![0; length];
                let _ = reader.read_exact(&mut body);
                let (status, body) = if head.contains("/exec") { (status, exec.as_str()) } else { (200, "{}") };
                record.lock().unwrap().push_str(&head);
                let _ = write!(
                    stream,
                    "HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                    body.len()
                );
            }
        });
        Self { url, seen }
    }
}

#[test]
fn a_first_deployment_creates_what_is_missing_and_ends_with_a_command() {
    let scene =
        Scene::new("first").answering("r2 bucket info", 1, "The specified bucket does not exist. [code: 10006]");
    scene.run().unwrap();
    let order: Vec<&str> = ["r2 bucket create", "secret put", "deploy "].to_vec();
    let calls = scene.file("calls");
    let places: Vec<usize> = order.iter().map(|beginning| calls.find(beginning).expect(beginning)).collect();
    assert!(places.is_sorted(), "{calls}");
    assert_eq!(
        scene.calls("secret put"),
        ["secret put WORKER_API_KEY_SECRET --env staging", "secret put SIGNING_SECRET --env staging"]
    );
    assert!(scene.calls("deploy ")[0].contains("--env staging"));
    assert!(scene.site.seen.lock().unwrap().contains("/v1/tools/destroySandbox"), "the sandbox is destroyed again");
}

#[test]
fn the_queue_and_its_dead_letter_queue_are_made_once_and_before_the_worker() {
    let absent = "Queue \"ops-jobs\" does not exist. To create it, run: wrangler queues create ops-jobs";
    let scene = Scene::new("queues").answering("queues info", 1, absent);
    scene.run().unwrap();
    let asked = ["queues info ops-jobs", "queues info ops-jobs-dead"];
    assert_eq!(scene.calls("queues info"), asked);
    assert_eq!(scene.calls("queues create"), ["queues create ops-jobs", "queues create ops-jobs-dead"]);
    let calls = scene.file("calls");
    assert!(calls.find("queues create ops-jobs-dead") < calls.find("deploy "), "{calls}");
    // They are there now.
    let again = Scene::deployed_before("queues-again");
    again.run().unwrap();
    assert_eq!((again.calls("queues info").len(), again.calls("queues create").len()), (2, 0));
    let refused = Scene::new("queues-refused").answering("queues info", 1, "Authentication error [code: 10000]");
    assert!(refused.fails().contains("whether there is a queue ops-jobs is not known") && refused.changed_nothing());
}

#[test]
fn a_secret_travels_by_standard_input_alone() {
    let mut scene = Scene::new("secret");
    scene.variables.insert("SANDBOX_HOST_URL", "https://host.example.com".to_owned());
    scene.variables.insert("SANDBOX_HOST_TOKEN", "host-token-of-a-test".to_owned());
    scene.run().unwrap();
    let kept = fs::read_to_string(scene.folder.join("checkout/.cloudflare-ops/deploy-staging.env")).unwrap();
    let key = kept.lines().find_map(|line| line.strip_prefix("WORKER_API_KEY_SECRET=")).unwrap();
    assert!(key.len() > 40, "a strong key");
    assert!(!kept.contains("SIGNING_SECRET"), "only the Worker needs it");
    let file = scene.folder.join("checkout/.cloudflare-ops/deploy-staging.env");
    assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    for secret in [key, "host-token-of-a-test"] {
        assert!(scene.file("inputs").contains(secret));
        for place in ["calls", "environments", "logs/wrangler-deploy--staging.log"] {
            assert!(!scene.file(place).contains(secret), "a secret in {place}");
        }
    }
    assert!(scene.site.seen.lock().unwrap().contains(key), "the command at the end is run with the key");
}

#[test]
fn a_second_deployment_makes_nothing_twice() {
    let scene = Scene::deployed_before("again");
    scene.run().unwrap();
    assert!(scene.calls("secret put").is_empty() && scene.calls("r2 bucket create").is_empty());
    assert_eq!(scene.calls("deploy ").len(), 1);
}

#[test]
fn who_is_not_logged_in_is_told_how() {
    let scene = Scene::new("stranger").answering("whoami", 1, r#"{"loggedIn":false}"#);
    assert!(scene.fails().contains("wrangler login"));
    assert!(scene.changed_nothing());
}

#[test]
fn of_several_accounts_one_must_be_named() {
    let two = r#"{"loggedIn":true,"accounts":[{"id":"acc1","name":"One"},{"id":"acc2","name":"Two"}]}"#;
    let mut scene = Scene::new("accounts").answering("whoami", 0, two);
    let text = scene.fails();
    assert!(text.contains("acc2  Two") && text.contains("CLOUDFLARE_ACCOUNT_ID"), "{text}");
    scene.variables.insert("CLOUDFLARE_ACCOUNT_ID", "acc3".to_owned());
    assert!(scene.fails().contains("does not reach the account acc3"));
    assert!(scene.changed_nothing());
    scene.variables.insert("CLOUDFLARE_ACCOUNT_ID", "acc2".to_owned());
    scene.run().unwrap();
}

#[test]
fn a_secret_that_cannot_be_put_stops_before_the_deployment_and_its_value_is_kept() {
    let scene = Scene::new("put").answering("secret put", 1, "A request to the Cloudflare API failed");
    let text = scene.fails();
    assert!(
        text.contains("WORKER_API_KEY_SECRET could not be put") && text.contains("Cloudflare API failed"),
        "{text}"
    );
    assert!(scene.calls("deploy ").is_empty());
    let first = scene.file("inputs");
    let _ = scene.fails();
    assert_eq!(scene.file("inputs"), format!("{first}{first}"), "the second attempt puts the key of the first");
}

#[test]
fn what_wrangler_says_is_told_without_secrets() {
    let mut scene = Scene::new("echo");
    scene.variables.insert("WORKER_API_KEY_SECRET", KEY.to_owned());
    let scene = scene.answering("secret put", 1, &format!("cannot store {KEY}"));
    let text = scene.fails();
    assert!(text.contains("cannot store [masked]") && !text.contains(KEY), "{text}");
}

#[test]
fn a_deployment_that_fails_in_the_middle_says_how_to_see_and_undo_it() {
    let scene =
        Scene::deployed_before("middle").answering("deploy", 1, "Uploaded ops-staging\nerror: image push failed");
    let text = scene.fails();
    assert!(text.contains("image push failed"), "{text}");
    assert!(
        text.contains("may serve already") && text.contains("wrangler rollback old-version --env staging"),
        "{text}"
    );
}

#[test]
fn a_command_that_fails_after_the_deployment_fails_the_command_and_names_the_way_back() {
    let mut scene = Scene::deployed_before("live");
    scene.site = Site::start(503, r#"{"code":"sandbox_unavailable","retryable":true}"#);
    let text = scene.fails();
    assert!(text.contains("sandbox_unavailable") && text.contains("wrangler rollback old-version"), "{text}");
    scene.site = Site::start(503, r#"{"code":"not_configured","retryable":false}"#);
    assert!(scene.fails().contains("SANDBOX_HOST_URL"));
    scene.site = Site::start(401, r#"{"code":"unauthenticated","retryable":false}"#);
    assert!(scene.fails().contains("another key"));
    scene.site = Site::start(200, r#"{"exitCode":1,"stdout":"","sandboxId":"s1"}"#);
    assert!(scene.fails().contains("`echo ready` answered"));
}

#[test]
fn an_unknown_key_is_told_before_anything_changes() {
    let mut scene = Scene::deployed_before("unknown-key");
    scene.variables.clear();
    assert!(scene.fails().contains("--no-exec"));
    assert!(scene.changed_nothing());
    scene.options.no_exec = true;
    scene.run().unwrap();
}

#[test]
fn uncommitted_changes_and_untagged_commits_need_a_word() {
    let mut scene = Scene::deployed_before("dirty");
    fs::write(scene.folder.join("checkout/new"), "").unwrap();
    assert!(scene.fails().contains("--allow-dirty"));
    assert!(scene.file("calls").is_empty(), "the account is not even asked");
    scene.options.allow_dirty = true;
    scene.run().unwrap();

    let mut scene = Scene::deployed_before("untagged");
    scene.options.env = Environment::Production;
    scene.options.yes = true;
    assert!(scene.fails().contains("--allow-untagged"));
    scene.options.allow_untagged = true;
    scene.run().unwrap();
}

#[test]
fn production_is_asked_about_and_staging_is_not() {
    let mut scene = Scene::production("ask");
    assert!(scene.fails().contains("--yes"));
    assert!(scene.asked.get() && scene.changed_nothing());
    scene.agrees = true;
    scene.run().unwrap();
    assert!(scene.calls("deploy ")[0].contains("--tag v1.2.3"));

    let mut scene = Scene::production("yes");
    scene.options.yes = true;
    scene.run().unwrap();
    assert!(!scene.asked.get());
}

#[test]
fn a_machine_that_forgets_makes_no_key() {
    let mut scene = Scene::new("forgetful");
    scene.continuous_integration = true;
    assert!(scene.fails().contains("openssl rand"));
    assert!(scene.changed_nothing());
}

#[test]
fn half_a_host_a_weak_key_and_a_host_without_tls_are_refused() {
    for (variables, said) in [
        (vec![("SANDBOX_HOST_URL", "https://host.example.com")], "needs both"),
        (vec![("SANDBOX_HOST_URL", "http://host.example.com"), ("SANDBOX_HOST_TOKEN", "t")], "https://"),
        (vec![("WORKER_API_KEY_SECRET", "short")], "fewer than 16"),
    ] {
        let mut scene = Scene::new("refused");
        scene.variables.extend(variables.into_iter().map(|(name, value)| (name, value.to_owned())));
        assert!(scene.fails().contains(said), "{said}");
        assert!(scene.changed_nothing());
    }
}

#[test]
fn without_docker_there_are_two_ways_on() {
    let mut scene = Scene::deployed_before("docker");
    scene.docker = false;
    let text = scene.fails();
    assert!(text.contains("--worker-only") && text.contains("deploy.yml"), "{text}");
    scene.options.worker_only = true;
    scene.run().unwrap();
    assert!(scene.calls("deploy ")[0].contains("--containers-rollout none"));
}

#[test]
fn a_dry_run_asks_nobody_and_tells_what_would_stop_it() {
    let mut scene = Scene::new("dry");
    scene.options.dry_run = true;
    scene.docker = false;
    fs::write(scene.folder.join("checkout/new"), "").unwrap();
    scene.run().unwrap();
    let calls = scene.file("calls");
    assert!(calls.lines().count() == 1 && calls.starts_with("deploy --env staging --dry-run"), "{calls}");
}

/// The first column of a table in docs/deploy.md, without backticks.
fn documented(header: &str) -> Vec<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/deploy.md");
    let text = fs::read_to_string(path).unwrap();
    let rows = text.lines().skip_while(|line| *line != header).skip(2).take_while(|line| line.starts_with('|'));
    rows.filter_map(|row| Some(row.split('`').nth(1)?.to_owned())).collect()
}

#[test]
fn the_document_has_the_flags_the_environments_and_the_secrets_of_the_command() {
    let command = Options::augment_args(clap::Command::new("deploy"));
    let flags: Vec<String> =
        command.get_arguments().filter_map(|argument| Some(format!("--{}", argument.get_long()?))).collect();
    assert_eq!(documented("| Flag | What |"), flags, "docs/deploy.md: the table of flags");
    let secrets: Vec<&str> = super::SECRETS.iter().map(|secret| secret.name).collect();
    assert_eq!(documented("| Secret | What |"), secrets, "docs/deploy.md: the table of secrets");

    let read = |name: &str| fs::read_to_string(format!("{}/../../{name}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let (document, configuration, workflow) =
        (read("docs/deploy.md"), read("wrangler.toml"), read(".github/workflows/deploy.yml"));
    for environment in Environment::value_variants() {
        let name = environment.name();
        assert!(document.contains(&format!("cargo xtask deploy --env {name}")), "docs/deploy.md lacks {name}");
        super::Target::read(&configuration, name).unwrap();
    }
    let types: Vec<&str> = configuration.lines().filter_map(|line| line.strip_prefix("instance_type = ")).collect();
    let priced = types.iter().all(|one| document.contains(&one.replace('"', "`")));
    assert!(priced && !types.is_empty(), "docs/deploy.md counts the cost of another instance type than {types:?}");
    assert!(workflow.contains("cargo xtask deploy --env"), "the workflow deploys by the same command");
    for secret in super::SECRETS {
        assert!(workflow.contains(secret.name), ".github/workflows/deploy.yml lacks {}", secret.name);
    }
}
