//! What later tiers need is built beside the first ones: release builds end on one processor, and lints and small tests leave
//! another one idle now and then.

use super::Tier;
use crate::run::{self, Task};
use crate::sandboxd;
use anyhow::{Context, Result};
use std::env;
use std::thread::{self, JoinHandle};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(1800);

/// Builds that are under way. What fails here is built again by the tier that needs it, which tells why it failed.
pub(super) struct Ahead {
    builds: Option<JoinHandle<Result<()>>>,
}

impl Ahead {
    /// Begins where the first of these tiers need no Worker and a later one does.
    pub(super) fn begin(tiers: &[Tier]) -> Self {
        let is_early = |tier: &Tier| !needs_builds(*tier);
        let is_worth_it = tiers.first().is_some_and(is_early) && !tiers.iter().all(is_early);
        let programs = [("sandboxd", Tier::Workerd), ("cfops", Tier::Clients), ("container-sidecar", Tier::Container)];
        let needed = programs.into_iter().filter(|(_, tier)| tiers.contains(tier)).map(|(program, _)| program);
        let needed: Vec<&str> = needed.collect();
        let builds = is_worth_it.then(|| thread::spawn(move || build(&needed)));
        Self { builds }
    }

    /// Waits for them, where this tier needs them.
    pub(super) fn finish_before(&mut self, tier: Tier) {
        if let Some(builds) = self.builds.take_if(|_| needs_builds(tier)) {
            drop(builds.join());
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        if let Some(builds) = self.builds.take() {
            drop(builds.join());
        }
    }
}

fn needs_builds(tier: Tier) -> bool {
    !matches!(tier, Tier::Lint | Tier::Native)
}

fn build(programs: &[&str]) -> Result<()> {
    // The tests build this program too, perhaps anew, at the same place.
    let mut worker = run::command(env::current_exe().context("this program cannot be found")?);
    worker.arg("build");
    Task::new("the Worker, ahead", worker, LIMIT).unseen().run()?;
    programs.iter().try_for_each(|program| sandboxd::task(program)?.0.unseen().run())
}
