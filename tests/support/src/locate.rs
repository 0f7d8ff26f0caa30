//! Where the parts of the stack lie that were built before the tests run.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
    time::SystemTime,
};

/// The checkout.
pub fn project_root() -> &'static Path {
    static ROOT: LazyLock<PathBuf> = LazyLock::new(|| {
        Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("this crate lies two folders down").to_owned()
    });
    &ROOT
}

/// The `sandboxd` under test: `CLOUDFLARE_OPS_SANDBOXD`, or the newest one in the target folder.
pub fn sandboxd() -> PathBuf {
    program("sandboxd", "CLOUDFLARE_OPS_SANDBOXD")
}

/// The `cfops` under test: `CLOUDFLARE_OPS_CFOPS`, or the newest one in the target folder.
pub fn cfops() -> PathBuf {
    program("cfops", "CLOUDFLARE_OPS_CFOPS")
}

fn program(name: &str, variable: &str) -> PathBuf {
    if let Some(path) = std::env::var_os(variable) {
        return PathBuf::from(path);
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| project_root().join("target"), PathBuf::from);
    let architecture = std::env::consts::ARCH;
    let platforms =
        [format!("{architecture}-unknown-linux-musl"), format!("{architecture}-unknown-linux-gnu"), ".".into()];
    let profiles = ["native", "release", "debug"];
    let mut candidates = Vec::new();
    for platform in &platforms {
        for profile in profiles {
            let path = target.join(platform).join(profile).join(name);
            candidates.extend(modified(&path).map(|time| (time, path)));
        }
    }
    match candidates.into_iter().max() {
        Some((_, path)) => path,
        None => panic!("no {name} under {}: run `cargo build -p {name}` or `cargo xtask test`", target.display()),
    }
}

fn modified(path: &Path) -> Option<SystemTime> {
    path.metadata().ok()?.modified().ok()
}

/// Node that is new enough for workerd's tools: `CLOUDFLARE_OPS_NODE`, the one on PATH, or the one that xtask keeps.
pub fn node() -> &'static Path {
    static NODE: LazyLock<PathBuf> = LazyLock::new(|| {
        let named = std::env::var_os("CLOUDFLARE_OPS_NODE").map(PathBuf::from);
        let candidates = named.into_iter().chain([PathBuf::from("node")]).chain(cached_nodes());
        for candidate in candidates {
            if node_version(&candidate).is_some_and(|version| version >= (22, 12)) {
                return candidate;
            }
        }
        panic!("no Node 22.12 or newer: run `cargo xtask test`, or set CLOUDFLARE_OPS_NODE to one")
    });
    &NODE
}

fn cached_nodes() -> Vec<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    let Some(tools) = cache.map(|cache| cache.join("cloudflare-ops/tools")) else { return Vec::new() };
    let Ok(entries) = tools.read_dir() else { return Vec::new() };
    let folders = entries.flatten().map(|entry| entry.path());
    folders.flat_map(|folder| [folder.join("bin/node"), folder.join("node_modules/.bin/node")]).collect()
}

fn node_version(node: &Path) -> Option<(u32, u32)> {
    let output = Command::new(node).arg("--version").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let mut numbers = text.trim().strip_prefix('v')?.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}
