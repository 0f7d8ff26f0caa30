//! What of the checkout would be deployed, and whether anybody could find it again.

use super::{Options, stop};
use crate::run;
use anyhow::Result;
use std::path::Path;

/// The state of a working tree.
pub(crate) struct Checkout {
    pub(crate) commit: String,
    pub(crate) dirty: bool,
    pub(crate) tag: Option<String>,
}

impl Checkout {
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let git = |arguments: &[&str]| run::ask(run::command("git").args(arguments).current_dir(root));
        let (Some(commit), Some(changes)) = (git(&["rev-parse", "HEAD"]), git(&["status", "--porcelain"])) else {
            return Err(stop(
                "this is no git checkout with a commit, so that nobody could tell later what was deployed",
                "deploy from a clone of the repository",
            ));
        };
        let tags = git(&["tag", "--points-at", "HEAD", "--list", "v*"]).unwrap_or_default();
        Ok(Self { commit, dirty: !changes.is_empty(), tag: tags.lines().next().map(str::to_owned) })
    }

    /// A short name of it for people and for the version's message at Cloudflare.
    pub(crate) fn name(&self) -> String {
        let commit: String = self.commit.chars().take(12).collect();
        let tag = self.tag.as_ref().map(|tag| format!("{tag}, ")).unwrap_or_default();
        format!("{tag}{commit}{}", if self.dirty { ", with uncommitted changes" } else { "" })
    }

    pub(crate) fn check(&self, options: &Options) -> Result<()> {
        if self.dirty && !options.allow_dirty {
            return Err(stop(
                "the checkout has changes that are not committed",
                "commit or stash them (`git status` lists them), or add --allow-dirty",
            ));
        }
        if options.env.is_production() && self.tag.is_none() && !options.allow_untagged {
            return Err(stop(
                "this commit has no tag v*, and production is deployed from tags",
                "check out a tag (`git tag --list 'v*'`), tag this commit, or add --allow-untagged",
            ));
        }
        Ok(())
    }
}
