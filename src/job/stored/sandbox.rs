//! The sandbox of a job that named none which was there when it was asked for: known once it runs, or has answered.

use super::Stored;
use crate::identifier::SandboxId;

impl Stored {
    /// The sandbox became known that it runs in or made, where it named none that was there. Whether that is news.
    pub fn runs_in(&mut self, sandbox_id: SandboxId) -> bool {
        let is_news = self.job.sandbox_created_at.is_none() && self.job.sandbox_id.as_ref() != Some(&sandbox_id);
        if is_news {
            self.job.sandbox_id = Some(sandbox_id);
            self.job.version += 1;
        }
        is_news
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{NOW, waiting};
    use super::*;
    use crate::job::record::Again;
    use crate::job::stored::tests::decision;

    fn id(text: &str) -> SandboxId {
        SandboxId::parse(text).unwrap()
    }

    fn running() -> Stored {
        let mut stored = waiting();
        stored.decide(decision(true, "k2", NOW)).unwrap();
        stored.begin(NOW).unwrap();
        stored
    }

    #[test]
    fn a_job_without_a_sandbox_tells_it_once_it_is_known() {
        let mut stored = running();
        let version = stored.job.version;
        assert!(stored.runs_in(id("made")));
        assert_eq!((stored.job.sandbox_id.clone(), stored.job.version), (Some(id("made")), version + 1));
        assert!(!stored.runs_in(id("made")), "it is no news twice");
        assert_eq!(stored.job.version, version + 1);
        // Another attempt makes another one.
        stored.job.approval = None;
        stored.ended(Some(crate::error::Error::internal("no")), None, NOW).unwrap();
        let again = Again { call_id: "c".into(), although_it_may_have_acted: false, from_failed: false, at: NOW };
        stored.retry(&again).unwrap();
        stored.begin(NOW).unwrap();
        assert_eq!(stored.job.sandbox_id, None);
    }

    #[test]
    fn a_job_of_a_sandbox_that_was_there_keeps_it() {
        let mut stored = waiting();
        (stored.job.sandbox_id, stored.job.sandbox_created_at) = (Some(id("box")), Some(5));
        let version = stored.job.version;
        assert!(!stored.runs_in(id("other")) && stored.job.version == version);
        stored.decide(decision(true, "k2", NOW)).unwrap();
        stored.begin(NOW).unwrap();
        assert_eq!(stored.job.sandbox_id, Some(id("box")));
    }
}
