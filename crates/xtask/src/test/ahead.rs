//! What later tiers need is made beside the first ones: release builds end on one processor, images come over the network, and
//! lints and small tests leave a processor idle now and then.

use super::Tier;
use super::container::Images;
use crate::build::{self, Size};
use crate::{sandboxd, terminal};
use anyhow::Result;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread::{self, JoinHandle};

/// What is under way. What fails here is made again by the tier that needs it, which tells why it failed.
pub(super) struct Ahead {
    /// Disconnected once the builds have ended; nothing is ever sent.
    builds: Option<Receiver<()>>,
    images: Option<JoinHandle<Option<Images>>>,
}

impl Ahead {
    /// Begins where the first of these tiers need no Worker and a later one does.
    pub(super) fn begin(tiers: &[Tier]) -> Self {
        let is_early = |tier: &Tier| !needs_builds(*tier);
        if !tiers.first().is_some_and(is_early) || tiers.iter().all(is_early) {
            return Self { builds: None, images: None };
        }
        let needs = |any: &[Tier]| tiers.iter().any(|tier| any.contains(tier));
        let has_sandboxes = needs(&[Tier::Workerd, Tier::Container, Tier::Clients, Tier::Bench]);
        let programs = [("sandboxd", has_sandboxes), ("cfops", needs(&[Tier::Clients]))];
        let has_images = needs(&[Tier::Container]);
        terminal::note("release builds go on beside the first tiers");
        if has_images {
            terminal::note("so do the images of the container tests (the first time about 1.6 GB and up to 10 min)");
        }
        let (worker_ended, builds) = mpsc::channel();
        let programs_ended = worker_ended.clone();
        thread::spawn(move || {
            terminal::silence_thread();
            drop(build::worker(Size::Optimized));
            drop(worker_ended);
        });
        let work = move || {
            terminal::silence_thread();
            let needed = programs.into_iter().filter_map(|(program, is_needed)| is_needed.then_some(program));
            let built = needed.map(sandboxd::build_static).collect::<Result<Vec<_>>>();
            drop(programs_ended);
            built.ok().filter(|_| has_images).and_then(|_| Images::make().ok())
        };
        Self { builds: Some(builds), images: Some(thread::spawn(work)) }
    }

    /// Waits for the builds, where this tier needs them.
    pub(super) fn finish_before(&mut self, tier: Tier) {
        if let Some(builds) = self.builds.take_if(|_| needs_builds(tier)) {
            if matches!(builds.try_recv(), Err(TryRecvError::Empty)) {
                terminal::note("waiting for the builds that began beside the first tiers");
            }
            let _ = builds.recv();
        }
    }

    /// The images, where they could be made.
    pub(super) fn images(&mut self) -> Option<Images> {
        let images = self.images.take()?;
        if !images.is_finished() {
            terminal::note("waiting for the images, which are made beside the first tiers (up to 10 min)");
        }
        images.join().ok()?
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        // None of their children is left behind.
        self.builds.take().map(|builds| builds.recv());
        drop(self.images());
    }
}

fn needs_builds(tier: Tier) -> bool {
    !matches!(tier, Tier::Lint | Tier::Native)
}
