//! `cargo xtask image`: the sandbox image, with the sandboxd that was built here.
//!
//! The Dockerfile names its stages so that BuildKit skips the one that would compile sandboxd again.

use crate::docker::Engine;
use crate::setup::{self, NativeTarget};
use crate::{sandboxd, terminal, workspace};
use anyhow::{Context, Result, bail};
use clap::Args;
use std::fs;
use std::path::Path;

#[derive(Args)]
pub(crate) struct Options {
    /// Name of the image
    #[arg(long, default_value = "cloudflare-ops-sandbox:dev")]
    tag: String,
}

pub(crate) fn build(options: &Options) -> Result<()> {
    let engine = Engine::ensure()?;
    setup::ensure(&[&NativeTarget])?;
    terminal::step("Building sandboxd");
    build_with(&engine, &options.tag, &[])
}

/// The same with further build arguments.
pub(crate) fn build_with(engine: &Engine, tag: &str, arguments: &[(&str, &str)]) -> Result<()> {
    put_into_context(&sandboxd::build()?, "sandboxd")?;
    terminal::step(&format!("Building the image {tag} (the first time about 1.5 GB and 5 min)"));
    engine.build("Dockerfile.sandbox", None, tag, &[&[("SANDBOXD", "prebuilt")], arguments].concat())
}

/// Copies a file to where .dockerignore lets it into the context of a build.
pub(crate) fn put_into_context(file: &Path, name: &str) -> Result<()> {
    let context = workspace::target().join("image");
    if !context.starts_with(workspace::root()) {
        bail!(
            "CARGO_TARGET_DIR lies outside the checkout, where `docker build` does not look: unset it for this command"
        );
    }
    fs::create_dir_all(&context)?;
    fs::copy(file, context.join(name)).with_context(|| format!("cannot copy {name} beside the Dockerfile"))?;
    Ok(())
}
