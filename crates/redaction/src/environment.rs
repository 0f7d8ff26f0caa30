//! Which variables of an environment are secrets.
//!
//! A variable says so by its name, or the variable [`LIST`] names it: the environment itself carries what is secret in it, from
//! whoever sets it to whatever prints it.

use std::collections::BTreeMap;

/// Names further variables whose values are secret, separated by commas.
pub const LIST: &str = "SANDBOX_SECRETS";

/// A name that ends so, without regard to case and underscores, is that of a secret.
const ENDINGS: [&str; 13] = [
    "SECRET",
    "SECRETS",
    "TOKEN",
    "PASSWORD",
    "PASSWD",
    "PASSPHRASE",
    "CREDENTIAL",
    "CREDENTIALS",
    "APIKEY",
    "ACCESSKEY",
    "PRIVATEKEY",
    "SECRETKEY",
    "SIGNINGKEY",
];

/// Values of the variables that are secret.
pub fn secrets(environment: &BTreeMap<String, String>) -> impl Iterator<Item = &str> {
    let listed = environment.get(LIST).map(String::as_str).unwrap_or_default();
    let is_secret = move |name: &str| is_listed(listed, name) || says_so(name);
    environment.iter().filter(move |(name, _)| *name != LIST && is_secret(name)).map(|(_, value)| value.trim())
}

/// Has a variable of an environment count as secret, whatever its name. The name holds no comma.
pub fn declare_secret(environment: &mut BTreeMap<String, String>, name: &str) {
    let list = environment.entry(LIST.to_owned()).or_default();
    if !is_listed(list, name) {
        let separator = if list.trim().is_empty() { "" } else { "," };
        list.push_str(separator);
        list.push_str(name);
    }
}

fn is_listed(list: &str, name: &str) -> bool {
    list.split(',').any(|listed| listed.trim() == name)
}

fn says_so(name: &str) -> bool {
    let plain: String = name.chars().filter(|letter| *letter != '_').collect();
    ENDINGS.iter().any(|ending| plain.to_ascii_uppercase().ends_with(ending))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn names_say_what_is_secret() {
        for name in [
            "SECRET",
            "GITHUB_TOKEN",
            "apiToken",
            "PGPASSWORD",
            "OPENAI_API_KEY",
            "AWS_SECRET_ACCESS_KEY",
            "ssh_private_key",
        ] {
            assert!(says_so(name), "{name}");
        }
        for name in
            ["FOO", "MAX_TOKENS", "TOKENIZERS_PARALLELISM", "AWS_ACCESS_KEY_ID", "KEY", "SORT_KEY", "SECRET_PATH", ""]
        {
            assert!(!says_so(name), "{name}");
        }
    }

    #[test]
    fn the_list_names_more_and_is_none_itself() {
        let given = environment(&[
            ("DATABASE_URL", "postgres://u:p@host/db\n"),
            ("DSN", "x"),
            ("PLAIN", "y"),
            ("A_TOKEN", "z"),
            (LIST, "DATABASE_URL, DSN,NONE"),
        ]);
        assert_eq!(secrets(&given).collect::<Vec<_>>(), ["z", "postgres://u:p@host/db", "x"]);
        assert_eq!(secrets(&environment(&[("PLAIN", "y")])).count(), 0);
    }

    #[test]
    fn what_is_declared_is_secret_beside_what_is_listed_already() {
        let mut given = environment(&[("A", "x"), ("B", "y"), ("C", "z")]);
        declare_secret(&mut given, "A");
        assert_eq!(given[LIST], "A");
        given.insert(LIST.to_owned(), "B".to_owned());
        declare_secret(&mut given, "C");
        declare_secret(&mut given, "B");
        assert_eq!(given[LIST], "B,C");
        assert_eq!(secrets(&given).collect::<Vec<_>>(), ["y", "z"]);
    }
}
