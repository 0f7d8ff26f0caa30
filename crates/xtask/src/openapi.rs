//! `cargo xtask openapi`: rewrites the generated descriptions in `openapi/` from the code.
//!
//! The programs that know them print them; a file is written only when its content differs, so that nothing is compiled
//! again without a reason.

use crate::{cache, run, terminal, workspace};
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::process::{Command, Stdio};

const DOCUMENTS: [(&str, &str, &str); 3] = [
    ("openapi/openapi.json", "describe", "json"),
    ("openapi/openapi.yaml", "describe", "yaml"),
    ("openapi/sandboxd.yaml", "sandboxd", "openapi"),
];

pub(crate) fn write() -> Result<()> {
    fs::create_dir_all(workspace::root().join("openapi"))?;
    for (file, package, argument) in DOCUMENTS {
        let text = print(package, argument)?;
        ensure!(!text.is_empty(), "`{package} {argument}` printed nothing");
        let path = workspace::root().join(file);
        let changed = fs::read(&path).ok() != Some(text.clone());
        if changed {
            cache::write(&path, text)?;
        }
        terminal::note(&format!("{file}: {}", if changed { "written" } else { "as it was" }));
    }
    Ok(())
}

fn print(package: &str, argument: &str) -> Result<Vec<u8>> {
    let mut command: Command = run::command("cargo");
    command.args(["run", "--quiet", "--package", package, "--bin", package, "--", argument]);
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("cannot start cargo")?;
    if !output.status.success() {
        bail!("`{package} {argument}` failed ({})", output.status);
    }
    Ok(output.stdout)
}
