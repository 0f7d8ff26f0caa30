//! The target that sandboxd is built for: static, so that it runs in any image.
//!
//! musl is the ordinary way. Where rustup cannot bring it, glibc is linked statically.

use super::{Cost, Requirement, rustup};
use crate::terminal;
use anyhow::Result;
use std::env;

/// A target triple and the compiler flags that make its binaries static.
pub(crate) struct StaticTarget {
    pub(crate) triple: String,
    pub(crate) flags: Option<&'static str>,
}

impl StaticTarget {
    /// musl where the compiler has it, otherwise the host's own target.
    pub(crate) fn find() -> Result<Self> {
        let musl = musl();
        if rustup::has_target(&musl) {
            return Ok(Self { triple: musl, flags: None });
        }
        Ok(Self { triple: rustup::host_triple()?, flags: Some("-C target-feature=+crt-static") })
    }
}

fn musl() -> String {
    format!("{}-unknown-linux-musl", env::consts::ARCH)
}

pub(crate) struct NativeTarget;

impl Requirement for NativeTarget {
    fn name(&self) -> String {
        format!("Rust target {}", musl())
    }

    fn missing(&self) -> Result<Option<Cost>> {
        if rustup::has_target(&musl()) {
            return Ok(None);
        }
        Ok(Some(Cost::new("from rustup; where that cannot be had, glibc is linked statically instead", 40, 1)))
    }

    fn install(&self) -> Result<()> {
        if rustup::add_target(&musl()).is_err() {
            terminal::note("rustup could not add it; sandboxd is linked statically with glibc instead");
        }
        Ok(())
    }
}
