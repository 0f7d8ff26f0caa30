//! What tools share whose commands get named secrets: `secrets`, from the name of a variable to that of the secret whose value it has.

use std::collections::BTreeMap;

use futures_util::FutureExt;

use super::create_sandbox::MOST_VARIABLES;
use crate::error::{Error, Result};
use crate::registry::Context;
use crate::tenant::sealing::{self, Opened, Sealed};
use crate::tenant::secret_name::SecretName;
use crate::tenant::secrets::SecretRequest;
use redaction::{LIST, declare_secret};

/// Longest name of a variable.
const LONGEST_NAME: usize = 256;

/// Variables and the secrets whose values they have.
pub type Variables = BTreeMap<String, SecretName>;

/// Refuses variables that cannot have the value of a secret, or have another value already.
pub fn check(secrets: &Variables, env: &BTreeMap<String, String>) -> Result<()> {
    if secrets.len() + env.len() > MOST_VARIABLES {
        return Err(Error::invalid("/secrets", format!("has, with env, more than {MOST_VARIABLES} variables")));
    }
    for name in secrets.keys() {
        let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        let is_name = name.len() <= LONGEST_NAME
            && name.bytes().all(is_inner)
            && name.bytes().next().is_some_and(|first| !first.is_ascii_digit());
        let fault = if !is_name {
            "the name of a variable has letters, digits and `_`, and begins with no digit"
        } else if name == LIST {
            "this variable lists secrets and is none"
        } else if env.contains_key(name) {
            "env sets this variable too"
        } else {
            continue;
        };
        let pointer = format!("/secrets/{}", name.replace('~', "~0").replace('/', "~1"));
        return Err(Error::invalid(&pointer, fault));
    }
    Ok(())
}

/// The environment that a command begins with: `env`, and the values that the secrets have now, declared as such so that they are
/// masked in what it writes. A command that runs already has its own.
pub fn environment(
    context: &Context,
    mut env: BTreeMap<String, String>,
    secrets: &Variables,
) -> Result<BTreeMap<String, String>> {
    if context.resumes.is_some() {
        return Ok(env);
    }
    for (variable, name) in secrets {
        let sealed = context.secrets.get(name.as_str());
        let sealed = sealed.ok_or_else(|| Error::internal(format!("the secret {name} was not given to the call")))?;
        let tenant = &context.principal.tenant;
        let Opened { value, is_current } = sealing::open(&context.services.signer, tenant, name.as_str(), sealed)?;
        if !is_current {
            reseal(context, name, sealed, &value);
        }
        env.insert(variable.clone(), value);
        declare_secret(&mut env, variable);
    }
    Ok(env)
}

/// Puts a value under the first `SIGNING_SECRET`, so that the one before can be taken away. What fails is done by the next use.
fn reseal(context: &Context, name: &SecretName, from: &Sealed, value: &str) {
    let services = &context.services;
    let random = [services.platform.random(), services.platform.random()];
    let sealed = sealing::seal(&services.signer, &context.principal.tenant, name.as_str(), value, random);
    let Ok(to) = sealed else { return };
    let tenant = services.tenant.clone();
    let request = SecretRequest::Reseal { name: name.to_string(), from: from.clone(), to };
    services.platform.background(async move { drop(tenant.secrets(request).await) }.boxed_local());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(names: &[&str]) -> Variables {
        names.iter().map(|name| ((*name).to_owned(), SecretName::parse("npm").unwrap())).collect()
    }

    #[test]
    fn impossible_variables_are_refused_by_name() {
        let env = BTreeMap::from([("GIVEN".to_owned(), "x".to_owned())]);
        assert_eq!(check(&variables(&["NPM_TOKEN", "_a1"]), &env), Ok(()));
        let long = "A".repeat(LONGEST_NAME + 1);
        for bad in ["", "1A", "A=B", "A,B", "A B", "é", "SANDBOX_SECRETS", "GIVEN", long.as_str()] {
            let error = check(&variables(&[bad]), &env).unwrap_err();
            let pointer = error.details["violations"][0]["pointer"].as_str().unwrap();
            assert!(pointer.starts_with("/secrets/"), "{bad:?} {pointer}");
        }
        let many: Vec<String> = (0..MOST_VARIABLES).map(|number| format!("V{number}")).collect();
        let many = variables(&many.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(check(&many, &BTreeMap::new()), Ok(()));
        assert!(check(&many, &env).is_err());
    }
}
