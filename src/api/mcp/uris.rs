//! Addresses of resources: files and directories of sandboxes, and logs of jobs.
//!
//! ```text
//!  sandbox://{sandboxId}/{path}    a file; with a slash at its end, or without a path, a directory
//!  job://{jobId}/logs              what the command of a job wrote
//! ```
//!
//! A path is percent-encoded, as in any URI; whether its slashes are does not matter.

use sandbox_api::PathEncoding;

/// What an address names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resource {
    /// The path is percent-encoded.
    File {
        sandbox_id: String,
        path: String,
    },
    /// The same; the workspace has an empty one.
    Directory {
        sandbox_id: String,
        path: String,
    },
    Log {
        job_id: String,
    },
}

const SANDBOX: &str = "sandbox";
const JOB: &str = "job";

/// Templates of the addresses, for clients that fill them in.
pub const FILE_TEMPLATE: &str = "sandbox://{sandboxId}/{path}";
pub const LOG_TEMPLATE: &str = "job://{jobId}/logs";

/// Reads an address; nothing where no resource can have it.
pub fn parse(uri: &str) -> Option<Resource> {
    let (scheme, rest) = uri.split_once("://")?;
    if rest.contains(['?', '#']) {
        return None;
    }
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    if authority.is_empty() {
        return None;
    }
    let name = authority.to_owned();
    match scheme.to_ascii_lowercase().as_str() {
        SANDBOX if path.is_empty() || path.ends_with('/') => {
            Some(Resource::Directory { sandbox_id: name, path: path.trim_end_matches('/').to_owned() })
        }
        SANDBOX => Some(Resource::File { sandbox_id: name, path: path.to_owned() }),
        JOB if path == "logs" => Some(Resource::Log { job_id: name }),
        _ => None,
    }
}

/// Address of an entry of a workspace, whose path is as tools answer it.
pub fn of_entry(sandbox_id: &str, path: &str, encoding: PathEncoding, is_directory: bool) -> String {
    let mut uri = format!("{SANDBOX}://{sandbox_id}/");
    match encoding {
        PathEncoding::Percent => uri.push_str(path),
        PathEncoding::Utf8 => {
            for byte in path.bytes() {
                if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
                    uri.push(char::from(byte));
                } else {
                    uri.push_str(&format!("%{byte:02X}"));
                }
            }
        }
    }
    if is_directory && !path.is_empty() {
        uri.push('/');
    }
    uri
}

/// Address of the log of a job.
pub fn of_log(job_id: &str) -> String {
    format!("{JOB}://{job_id}/logs")
}

/// Kinds of files that clients show in a way of their own, by the ends of their names.
const KINDS: [(&str, &str); 18] = [
    ("css", "text/css"),
    ("csv", "text/csv"),
    ("gif", "image/gif"),
    ("htm", "text/html"),
    ("html", "text/html"),
    ("jpeg", "image/jpeg"),
    ("jpg", "image/jpeg"),
    ("js", "text/javascript"),
    ("json", "application/json"),
    ("md", "text/markdown"),
    ("mjs", "text/javascript"),
    ("pdf", "application/pdf"),
    ("png", "image/png"),
    ("py", "text/x-python"),
    ("svg", "image/svg+xml"),
    ("webp", "image/webp"),
    ("xml", "application/xml"),
    ("zip", "application/zip"),
];

/// Kind of a file, from its name and from whether its bytes are text.
pub fn kind(path: &str, is_text: bool) -> &'static str {
    let end = path.rsplit('/').next().and_then(|name| name.rsplit_once('.')).map(|(_, end)| end);
    let known = KINDS.iter().find(|(known, _)| end.is_some_and(|end| end.eq_ignore_ascii_case(known)));
    known.map_or(if is_text { "text/plain" } else { "application/octet-stream" }, |(_, kind)| *kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(sandbox_id: &str, path: &str) -> Option<Resource> {
        Some(Resource::File { sandbox_id: sandbox_id.into(), path: path.into() })
    }

    fn directory(sandbox_id: &str, path: &str) -> Option<Resource> {
        Some(Resource::Directory { sandbox_id: sandbox_id.into(), path: path.into() })
    }

    #[test]
    fn an_address_names_a_file_a_directory_or_a_log() {
        assert_eq!(parse("sandbox://box/src/a.rs"), file("box", "src/a.rs"));
        assert_eq!(parse("SANDBOX://box/src%2Fa.rs"), file("box", "src%2Fa.rs"));
        assert_eq!(parse("sandbox://box"), directory("box", ""));
        assert_eq!(parse("sandbox://box/"), directory("box", ""));
        assert_eq!(parse("sandbox://box/src/"), directory("box", "src"));
        assert_eq!(parse("job://j-1/logs"), Some(Resource::Log { job_id: "j-1".into() }));
    }

    #[test]
    fn nothing_else_is_an_address() {
        for uri in [
            "",
            "sandbox",
            "sandbox:box/a",
            "sandbox:///a",
            "sandbox://box/a?x=1",
            "sandbox://box/a#x",
            "job://j-1",
            "job://j-1/",
            "job://j-1/output",
            "job:///logs",
            "file:///etc/passwd",
            "https://example.com/a",
        ] {
            assert_eq!(parse(uri), None, "{uri}");
        }
    }

    #[test]
    fn the_address_of_an_entry_is_read_as_that_entry() {
        let uri = of_entry("box", "a b/100%/ä?#.txt", PathEncoding::Utf8, false);
        assert_eq!(uri, "sandbox://box/a%20b/100%25/%C3%A4%3F%23.txt");
        assert_eq!(parse(&uri), file("box", "a%20b/100%25/%C3%A4%3F%23.txt"));
        let uri = of_entry("box", "d%FF", PathEncoding::Percent, true);
        assert_eq!(parse(&uri), directory("box", "d%FF"));
        assert_eq!(parse(&of_entry("box", "", PathEncoding::Utf8, true)), directory("box", ""));
        assert_eq!(parse(&of_log("j-1")), Some(Resource::Log { job_id: "j-1".into() }));
    }

    #[test]
    fn the_kind_is_that_of_the_name_or_of_the_bytes() {
        assert_eq!(kind("a/b.PNG", false), "image/png");
        assert_eq!(kind("readme.md", true), "text/markdown");
        assert_eq!(kind("a.md/b", true), "text/plain");
        assert_eq!(kind("core", false), "application/octet-stream");
    }
}
