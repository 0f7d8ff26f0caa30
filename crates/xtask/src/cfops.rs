//! `cargo xtask cfops`: the command line, as one static file that runs on any Linux of this architecture.

use crate::setup::{self, NativeTarget};
use crate::{sandboxd, terminal};
use anyhow::Result;
use std::path::PathBuf;

pub(crate) fn build() -> Result<PathBuf> {
    setup::ensure(&[&NativeTarget])?;
    terminal::step("Building cfops");
    let binary = sandboxd::build_static("cfops")?;
    let megabytes = binary.metadata()?.len() as f64 / 1e6;
    terminal::note(&format!("{} ({megabytes:.1} MB)", binary.display()));
    terminal::note("`sudo install \"$(cargo xtask cfops)\" /usr/local/bin/` puts it onto the PATH");
    Ok(binary)
}
