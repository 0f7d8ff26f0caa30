//! Globs over paths: `*` and `?` stay within a name, `**` crosses directories, `[…]` and `{a,b}` choose.
//!
//! A glob without a slash is about the last component, at any depth; one with a slash about the whole path, relative to the
//! directory that the request is about.

use std::ffi::OsStr;
use std::path::Path;

use globset::{GlobBuilder, GlobMatcher, GlobSet, GlobSetBuilder};

use crate::http::Problem;

/// Most globs of one request.
const MOST: usize = 64;
/// Longest glob.
const LONGEST: usize = 1024;

/// Several globs; any of them matches.
pub(super) struct Globs {
    names: GlobSet,
    paths: GlobSet,
}

impl Globs {
    pub(super) fn of(field: &str, patterns: &[String]) -> Result<Self, Problem> {
        if patterns.len() > MOST {
            return Err(Problem::invalid(format!("{field}: more than {MOST} globs")));
        }
        let (mut names, mut paths) = (GlobSetBuilder::new(), GlobSetBuilder::new());
        for pattern in patterns {
            let glob = glob(field, pattern)?;
            if is_name(pattern) {
                names.add(glob)
            } else {
                paths.add(glob)
            };
        }
        let built = |set: GlobSetBuilder| set.build().map_err(|error| bad(field, &error));
        Ok(Self { names: built(names)?, paths: built(paths)? })
    }

    pub(super) fn matches(&self, path: &Path, name: &OsStr) -> bool {
        self.names.is_match(name) || self.paths.is_match(path)
    }
}

/// One glob.
pub(super) struct NameGlob {
    glob: GlobMatcher,
    is_name: bool,
}

impl NameGlob {
    pub(super) fn of(field: &str, pattern: &str) -> Result<Self, Problem> {
        Ok(Self { glob: glob(field, pattern)?.compile_matcher(), is_name: is_name(pattern) })
    }

    pub(super) fn matches(&self, path: &Path, name: &OsStr) -> bool {
        if self.is_name { self.glob.is_match(name) } else { self.glob.is_match(path) }
    }
}

fn is_name(pattern: &str) -> bool {
    !pattern.trim_end_matches('/').contains('/')
}

fn glob(field: &str, pattern: &str) -> Result<globset::Glob, Problem> {
    if pattern.is_empty() || pattern.len() > LONGEST {
        return Err(Problem::invalid(format!("{field}: a glob has 1 to {LONGEST} bytes")));
    }
    let pattern = pattern.trim_end_matches('/').trim_start_matches("./");
    GlobBuilder::new(pattern).literal_separator(true).backslash_escape(true).build().map_err(|error| bad(field, &error))
}

fn bad(field: &str, error: &globset::Error) -> Problem {
    Problem::invalid(format!("{field}: {}", error.kind()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, path: &str) -> bool {
        let path = Path::new(path);
        let globs = Globs::of("exclude", &[pattern.to_owned()]).expect("a good glob");
        let one = NameGlob::of("name", pattern).expect("a good glob");
        let name = path.file_name().expect("a name");
        assert_eq!(globs.matches(path, name), one.matches(path, name));
        globs.matches(path, name)
    }

    #[test]
    fn a_glob_is_about_a_name_or_about_a_path() {
        for (pattern, path) in [
            ("*.rs", "src/deep/main.rs"),
            ("node_modules", "a/node_modules"),
            ("node_modules/", "node_modules"),
            ("src/**/*.rs", "src/a/b.rs"),
            ("src/**/*.rs", "src/b.rs"),
            ("**/target/**", "a/target/x/y"),
            ("src/*", "src/a"),
            ("{a,b}.txt", "x/b.txt"),
        ] {
            assert!(matches(pattern, path), "{pattern} {path}");
        }
        for (pattern, path) in [("src/*", "src/a/b"), ("*.rs", "a.rsx"), ("target/**", "target"), ("a?b", "a/b")] {
            assert!(!matches(pattern, path), "{pattern} {path}");
        }
    }

    #[test]
    fn a_bad_glob_is_refused_by_the_name_of_its_field() {
        for bad in ["", "[a", "{a"] {
            assert!(format!("{:?}", NameGlob::of("name", bad).err()).contains("name:"), "{bad}");
        }
    }
}
