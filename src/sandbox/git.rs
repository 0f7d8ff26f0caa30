//! Cloning a repository into a sandbox: which URLs and branches are taken, and the command that does it.
//!
//! The URL and the branch reach git as one word each that cannot be an option, and only `https` and `http` are spoken.
//! Credentials in the URL are taken out of it at once. git asks for them through a helper that reads two variables of its
//! own process and answers only for the host that they were given for; they are in no argument, in no file, and masked in
//! whatever git says.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sandbox_api::{ExecRequest, OnDisconnect};

use crate::api::routes::percent_decode;
use crate::error::{Error, Result};
use redaction::MASK;

const LONGEST_URL: usize = 2048;
const LONGEST_BRANCH: usize = 250;

/// Bytes kept of what git says.
const OUTPUT_LIMIT_BYTES: u64 = 64 * 1024;

/// `$1` URL, `$2` directory, `$3` scope of the credentials or nothing; what follows are options of `git clone`.
const SCRIPT: &str = r#"
url=$1 directory=$2 scope=$3
shift 3
command -v git >/dev/null || { echo 'git is not installed in this sandbox' >&2; exit 127; }
if [ -e "$directory" ]; then
  if [ "$(git -C "$directory" config --get remote.origin.url 2>/dev/null)" = "$url" ]; then
    git -C "$directory" rev-parse HEAD 2>/dev/null
    exit 0
  fi
  echo "$directory exists and is no clone of it" >&2
  exit 1
fi
unfinished=.cloning-$$
trap 'rm -rf "$unfinished"' EXIT
trap 'exit 143' TERM INT HUP
helper='!f() { test "$1" = get && printf "username=%s\npassword=%s\n" "$CLONE_USERNAME" "$CLONE_PASSWORD"; }; f'
if [ -n "$scope" ]; then
  set -- -c "credential.$scope.helper=" -c "credential.$scope.helper=$helper" clone "$@"
else
  set -- clone "$@"
fi
git -c protocol.allow=never -c protocol.https.allow=always -c protocol.http.allow=always \
  -c credential.helper= "$@" -- "$url" "$unfinished" || exit
mv "$unfinished" "$directory" || exit
git -C "$directory" rev-parse HEAD 2>/dev/null
exit 0
"#;

/// What to clone, checked. Its `Debug` form does not exist: it may hold credentials.
pub struct Clone {
    /// Without credentials.
    pub url: String,
    pub branch: Option<String>,
    pub depth: Option<u32>,
    /// Name of the directory in the workspace.
    pub directory: String,
    /// `scheme://host:port`, which the credentials are for.
    origin: String,
    credentials: Option<Credentials>,
}

struct Credentials {
    username: String,
    password: String,
    /// As they stand in the URL.
    encoded: String,
}

impl Clone {
    pub fn parse(url: &str, branch: Option<&str>, depth: Option<u32>) -> Result<Self> {
        if let Some(branch) = branch {
            check_branch(branch)?;
        }
        let refuse = |why: &str| Err(Error::invalid("/gitUrl", why));
        if url.len() > LONGEST_URL {
            return refuse("is longer than 2048 bytes");
        }
        if !url.bytes().all(|byte| byte.is_ascii_graphic()) || url.contains(['\\', '"', '\'', '`', '<', '>']) {
            return refuse("has characters that no URL has; percent-encode them");
        }
        let Some((scheme, rest)) =
            ["https://", "http://"].into_iter().find_map(|scheme| url.strip_prefix(scheme).map(|rest| (scheme, rest)))
        else {
            return refuse("must begin with https:// or http://");
        };
        if rest.contains(['?', '#']) {
            return refuse("may have neither a query nor a fragment");
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (userinfo, host) = match authority.rsplit_once('@') {
            Some((userinfo, host)) => (Some(userinfo), host),
            None => (None, authority),
        };
        if !is_host(host) {
            return refuse("has no host, or one that is no name, address or port");
        }
        if path.trim_matches('/').is_empty() {
            return refuse("names no repository");
        }
        let credentials = userinfo.filter(|userinfo| !userinfo.is_empty()).map(credentials).transpose()?;
        Ok(Self {
            url: format!("{scheme}{host}/{path}"),
            branch: branch.map(str::to_owned),
            depth,
            directory: directory(path),
            origin: format!("{scheme}{host}"),
            credentials,
        })
    }

    /// The command, under an id that a repeated creation finds again.
    pub fn request(&self, created_at: i64, timeout_ms: u64, streams: bool) -> ExecRequest {
        let scope = self.credentials.as_ref().map(|_| self.origin.clone()).unwrap_or_default();
        let mut argv = vec!["sh".to_owned(), "-c".to_owned(), SCRIPT.to_owned(), "clone".to_owned()];
        argv.extend([self.url.clone(), self.directory.clone(), scope]);
        argv.extend(self.branch.as_ref().map(|branch| format!("--branch={branch}")));
        argv.extend(self.depth.map(|depth| format!("--depth={depth}")));
        argv.extend(streams.then(|| "--progress".to_owned()));
        let mut env = BTreeMap::from([("GIT_TERMINAL_PROMPT".to_owned(), "0".to_owned())]);
        if let Some(credentials) = &self.credentials {
            env.insert("CLONE_USERNAME".to_owned(), credentials.username.clone());
            env.insert("CLONE_PASSWORD".to_owned(), credentials.password.clone());
        }
        ExecRequest {
            id: format!("clone-{created_at}"),
            argv: Some(argv),
            env,
            timeout_ms,
            output_limit_bytes: Some(OUTPUT_LIMIT_BYTES),
            stream_output: streams,
            on_disconnect: OnDisconnect::Kill,
            ..ExecRequest::default()
        }
    }

    /// Values that must not be told, longest first.
    pub fn secrets(&self) -> Vec<String> {
        let Some(Credentials { username, password, encoded }) = &self.credentials else {
            return Vec::new();
        };
        let basic = STANDARD.encode(format!("{username}:{password}"));
        let mut secrets = vec![encoded.clone(), password.clone(), basic];
        secrets.extend(encoded.split_once(':').map(|(_, password)| password.to_owned()));
        // A name alone is a token.
        secrets.extend(password.is_empty().then(|| username.clone()));
        secrets.retain(|secret| !secret.is_empty());
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        secrets.dedup();
        secrets
    }

    /// Text without what must not be told, however short that is.
    pub fn masked(&self, text: &str) -> String {
        self.secrets().iter().fold(text.to_owned(), |text, secret| text.replace(secret, MASK))
    }
}

fn credentials(userinfo: &str) -> Result<Credentials> {
    let (username, password) = userinfo.split_once(':').unwrap_or((userinfo, ""));
    let decode = |text| percent_decode(text).filter(|text| !text.contains(['\n', '\r', '\0']));
    match (decode(username), decode(password)) {
        (Some(username), Some(password)) => Ok(Credentials { username, password, encoded: userinfo.to_owned() }),
        _ => Err(Error::invalid("/gitUrl", "has credentials that are not percent-encoded UTF-8 on one line")),
    }
}

/// A name, an IPv4 address or an IPv6 address in brackets, with or without a port.
fn is_host(host: &str) -> bool {
    let (name, port) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, rest)) => {
            let is_address =
                !address.is_empty() && address.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b':');
            if !is_address {
                return false;
            }
            ("v6", rest.strip_prefix(':').or(rest.is_empty().then_some("1")))
        }
        None => match host.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (host, Some("1")),
        },
    };
    let is_name = name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
    is_name && port.is_some_and(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
}

/// What git itself takes for the name of a branch or tag, and no option.
fn check_branch(branch: &str) -> Result<()> {
    let fault = if branch.is_empty() {
        "is empty"
    } else if branch.len() > LONGEST_BRANCH {
        "is longer than 250 bytes"
    } else if branch.starts_with('-') {
        "begins with a dash"
    } else if branch == "@"
        || branch.contains("..")
        || branch.contains("@{")
        || branch.contains(|letter: char| letter.is_control() || " ~^:?*[\\".contains(letter))
        || branch.ends_with('.')
        || branch.split('/').any(|part| part.is_empty() || part.starts_with('.') || part.ends_with(".lock"))
    {
        "is no name of a branch or tag"
    } else {
        return Ok(());
    };
    Err(Error::invalid("/gitBranch", fault))
}

/// The last part of the path, as `git clone` names its directory.
fn directory(path: &str) -> String {
    let last = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let name = last.strip_suffix(".git").unwrap_or(last);
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_plain =
        name.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '_') && name.bytes().all(plain);
    if is_plain && name.len() <= 128 { name.to_owned() } else { "repository".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn refused(url: &str, branch: Option<&str>) -> String {
        match Clone::parse(url, branch, None) {
            Ok(clone) => panic!("taken: {}", clone.url),
            Err(error) => error.message,
        }
    }

    #[test]
    fn no_url_is_an_option_a_command_or_a_file() {
        for url in [
            "ext::sh -c id",
            "-oProxyCommand=x",
            "--upload-pack=touch /tmp/pwn",
            "file:///etc",
            "/etc",
            "git@host:a/b.git",
            "ssh://host/a",
            "git://host/a",
            "https://",
            "https:///a",
            "https://host",
            "https://host/",
            "https://-host/a",
            "https://ho st/a",
            "https://host/a b",
            "https://host/a\nb",
            "https://host:0/a",
            "https://host:70000/a",
            "https://[x]/a",
            "https://host/a?private_token=x",
            "https://host/a#b",
            "https://u:p%0aq@host/a",
            "https://u:%ff@host/a",
            "HTTPS://host/a",
            &format!("https://host/{}", "a".repeat(2100)),
        ] {
            assert!(refused(url, None).starts_with("gitUrl:"), "{url}");
        }
    }

    #[test]
    fn no_refusal_repeats_credentials() {
        for url in ["https://u:SECRET123@ho st/a", "https://u:SECRET123@host/a?x", "ssh://u:SECRET123@host/a"] {
            assert!(!refused(url, None).contains("SECRET123"));
        }
    }

    #[test]
    fn no_branch_is_an_option_or_leaves_its_place() {
        let long = "a".repeat(300);
        for branch in [
            "--upload-pack=touch /tmp/pwn",
            "-b",
            "",
            "../x",
            "a..b",
            ".a",
            "a/.b",
            "a//b",
            "/a",
            "a/",
            "a.lock",
            "a b",
            "a~1",
            "a^",
            "a:b",
            "a?",
            "a*",
            "a[",
            "a\\b",
            "a\0",
            "@",
            "a@{1}",
            "a.",
            &long,
        ] {
            assert!(refused("https://host/a", Some(branch)).starts_with("gitBranch:"), "{branch:?}");
        }
        for branch in ["main", "feature/a-b", "v1.0", "ümlaut", "a@b"] {
            assert!(Clone::parse("https://host/a", Some(branch), None).is_ok(), "{branch}");
        }
    }

    #[test]
    fn credentials_leave_the_url_and_every_argument() {
        let clone = Clone::parse("https://us%40er:SEC%2FRET@host:8443/team/app.git", Some("main"), Some(1)).unwrap();
        assert_eq!((clone.url.as_str(), clone.directory.as_str()), ("https://host:8443/team/app.git", "app"));
        let request = clone.request(7, 1000, true);
        let argv = request.argv.clone().unwrap();
        assert_eq!(
            argv[4..],
            ["https://host:8443/team/app.git", "app", "https://host:8443", "--branch=main", "--depth=1", "--progress"]
        );
        assert!(argv.iter().all(|word| !word.contains("SEC")), "{argv:?}");
        assert_eq!(
            (request.env["CLONE_USERNAME"].as_str(), request.env["CLONE_PASSWORD"].as_str()),
            ("us@er", "SEC/RET")
        );
        assert_eq!(request.id, "clone-7");
        let said = "fatal: https://us%40er:SEC%2FRET@host SEC/RET Basic dXNAZXI6U0VDL1JFVA==";
        assert_eq!(clone.masked(said), "fatal: https://[redacted]@host [redacted] Basic [redacted]");
        let token = Clone::parse("https://tok@host/a", None, None).unwrap();
        assert_eq!(token.masked("tok"), "[redacted]");
    }

    #[test]
    fn directories_are_named_as_git_names_them() {
        for (path, name) in [
            ("a/b.git", "b"),
            ("a/b/", "b"),
            ("x", "x"),
            ("a/%2e%2e", "repository"),
            ("a/.git", "repository"),
            ("a/-b", "repository"),
        ] {
            assert_eq!(directory(path), name, "{path}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_taken_is_no_option_and_keeps_no_credentials(url in "(https://)?[ -~]{0,40}", branch in "[ -~]{0,12}") {
            if let Ok(clone) = Clone::parse(&url, Some(&branch), None) {
                prop_assert!(clone.url.starts_with("https://") || clone.url.starts_with("http://"));
                let authority = clone.url.split('/').nth(2).unwrap_or_default().to_owned();
                prop_assert!(!authority.contains('@') && !authority.is_empty());
                prop_assert!(!clone.branch.as_deref().unwrap_or_default().starts_with('-'));
                prop_assert!(!clone.directory.starts_with('-') && !clone.directory.starts_with('.') && !clone.directory.contains('/'));
            }
        }
    }
}
