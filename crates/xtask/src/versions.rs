//! The versions of the tools that are installed outside Cargo's and npm's own lock files.

/// Makes the Worker out of the crate; its minor version must be that of the `worker` crate.
pub(crate) const WORKER_BUILD: &str = "0.8.7";

/// The Node that is installed where the system has none, or one older than [`NODE_MINIMUM`].
pub(crate) const NODE: &str = "22.23.3";

/// What the pinned wrangler asks for in its `engines` field.
pub(crate) const NODE_MINIMUM: (u32, u32) = (22, 12);

/// The version of a crate in the text of a Cargo.lock. wasm-bindgen's command must equal the library exactly, so the lock
/// file is where its version is kept.
pub(crate) fn locked(lock_file: &str, name: &str) -> Option<String> {
    let wanted = format!("name = \"{name}\"");
    let mut lines = lock_file.lines().skip_while(|line| *line != wanted);
    lines.next()?;
    lines.next()?.strip_prefix("version = \"")?.strip_suffix('"').map(str::to_owned)
}

/// `v22.12.0` or `1.95.0` as (major, minor).
pub(crate) fn major_minor(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.trim().trim_start_matches('v').split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_locked_version_is_found_by_the_whole_name() {
        let lock = "[[package]]\nname = \"wasm-bindgen-futures\"\nversion = \"0.4.79\"\n\n[[package]]\nname = \"wasm-bindgen\"\nversion = \"0.2.129\"\n";
        assert_eq!(locked(lock, "wasm-bindgen").as_deref(), Some("0.2.129"));
        assert_eq!(locked(lock, "wasm"), None);
    }

    #[test]
    fn versions_compare_by_number() {
        assert_eq!(major_minor("v22.12.0\n"), Some((22, 12)));
        assert!(major_minor("v22.9.0") < Some(NODE_MINIMUM));
        assert!(major_minor("v100.0.1") > Some(NODE_MINIMUM));
        assert_eq!(major_minor("not a version"), None);
    }
}
