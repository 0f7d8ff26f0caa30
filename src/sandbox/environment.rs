//! The environment that a sandbox is given: its own variables, and the values that its named secrets have now. What is stored of it are
//! their names.

use std::collections::BTreeMap;

use super::settings::Settings;
use crate::error::{Error, ErrorCode, Result};
use crate::tenant::sealing;
use crate::tenant::secrets::SealedSecrets;
use crate::tenant::signing::Signer;
use redaction::declare_secret;

/// 409 where a secret is not there any more; 503 where it cannot be opened.
pub fn complete(
    settings: &Settings,
    secrets: &SealedSecrets,
    signer: &Signer,
    tenant: &str,
) -> Result<BTreeMap<String, String>> {
    let mut environment = settings.environment();
    for (variable, name) in &settings.secrets {
        let name = name.as_str();
        let sealed = secrets.get(name).ok_or_else(|| {
            let message = format!(
                "the variable {variable} of the sandbox has the value of the secret {name:?}, which is not there; set it with \
                 setSecret, or take the variable away with updateSandbox (unsetEnv)"
            );
            let error = Error::new(ErrorCode::Conflict, message).detail("reason", "no_such_secret");
            error.detail("variable", variable.as_str()).detail("secretName", name)
        })?;
        let opened = sealing::open(signer, tenant, name, sealed)?;
        environment.insert(variable.clone(), opened.value);
        declare_secret(&mut environment, variable);
    }
    Ok(environment)
}

/// Whether a control request begins a command, and so needs the environment of now. What runs already is killed and read without it.
pub fn begins_command(method: &str, path: &str) -> bool {
    method == "POST" && matches!(path.split('?').next(), Some("/v1/execs" | "/v1/processes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tenant::secret_name::SecretName;

    #[test]
    fn only_what_begins_a_command_needs_its_secrets() {
        for path in ["/v1/execs", "/v1/processes", "/v1/processes?x=1"] {
            assert!(begins_command("POST", path) && !begins_command("GET", path), "{path}");
        }
        for path in
            ["/v1/execs/a/kill", "/v1/execs/a/lease", "/v1/processes/a/kill", "/v1/processes/a/input", "/v1/searches"]
        {
            assert!(!begins_command("POST", path), "{path}");
        }
    }

    #[test]
    fn a_sandbox_gets_the_values_of_its_secrets_and_is_told_of_one_that_is_gone() {
        let signer = Signer::new(Some("0123456789abcdef"));
        let sealed = sealing::seal(&signer, "a", "db", "postgres://x", [[1; 16]; 2]).unwrap();
        let env =
            BTreeMap::from([("PLAIN".to_owned(), "y".to_owned()), ("SANDBOX_SECRETS".to_owned(), "PLAIN".to_owned())]);
        let secrets = BTreeMap::from([("DATABASE_URL".to_owned(), SecretName::parse("db").unwrap())]);
        let settings = Settings { env, secrets, ..Settings::default() };
        let known = SealedSecrets::from([("db".to_owned(), sealed)]);
        let environment = complete(&settings, &known, &signer, "a").unwrap();
        assert_eq!((environment["DATABASE_URL"].as_str(), environment["PLAIN"].as_str()), ("postgres://x", "y"));
        assert_eq!(environment["SANDBOX_SECRETS"], "PLAIN,DATABASE_URL");
        let error = complete(&settings, &SealedSecrets::new(), &signer, "a").unwrap_err();
        assert_eq!((error.code, &error.details["secretName"]), (ErrorCode::Conflict, &"db".into()));
        assert!(error.message.contains("unsetEnv"));
        assert_eq!(complete(&settings, &known, &Signer::new(None), "a").unwrap_err().code, ErrorCode::NotConfigured);
    }
}
