//! Changes of a sandbox's state that its tenant's list has to take: kept until it did, so that none is missed where several came while
//! it could not be reached.

use serde::{Deserialize, Serialize};

use super::record::{Record, StartReason};
use super::state::State;

/// Most changes that are kept for a list that does not take them.
const MOST_CHANGES: usize = 64;

/// One change, as it was then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// Counts the changes of this sandbox.
    pub number: u32,
    pub state: State,
    pub generation: u32,
    pub at: i64,
    /// Why it was started, where it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<StartReason>,
}

/// Those that the list has not taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Changes {
    /// Number of the last one.
    last: u32,
    untold: Vec<Change>,
}

impl Changes {
    /// Notes that `record` has come into its state. That it is being started is no news: how that ends is.
    pub fn note(&mut self, record: &Record, generation_before: u32, at: i64) {
        let (state, generation) = (record.state, record.generation);
        let is_news = match state {
            // A boot that was there already is not started.
            State::Running => generation > generation_before,
            State::Sleeping | State::Error => true,
            State::Created | State::Starting | State::Destroyed => false,
        };
        if !is_news {
            return;
        }
        self.last = self.last.saturating_add(1);
        let reason = record.start_reason.filter(|_| state == State::Running);
        self.untold.push(Change { number: self.last, state, generation, at, reason });
        let surplus = self.untold.len().saturating_sub(MOST_CHANGES);
        self.untold.drain(..surplus);
    }

    pub fn untold(&self) -> &[Change] {
        &self.untold
    }

    /// The list has taken those up to this number; whether there were any.
    pub fn told(&mut self, number: u32) -> bool {
        let before = self.untold.len();
        self.untold.retain(|change| change.number > number);
        self.untold.len() < before
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identifier::SandboxId;
    use crate::sandbox::settings::Settings;

    fn record(state: State, generation: u32, reason: Option<StartReason>) -> Record {
        let record = Record::created(SandboxId::parse("a").unwrap(), Settings::default(), 0);
        Record { state, generation, start_reason: reason, ..record }
    }

    #[test]
    fn every_change_is_kept_until_the_list_has_taken_it() {
        let mut changes = Changes::default();
        changes.note(&record(State::Starting, 0, None), 0, 1);
        changes.note(&record(State::Running, 1, Some(StartReason::Created)), 0, 2);
        changes.note(&record(State::Sleeping, 1, Some(StartReason::Created)), 1, 3);
        changes.note(&record(State::Running, 2, Some(StartReason::Woken)), 1, 4);
        let told: Vec<_> = changes.untold().iter().map(|change| (change.number, change.state, change.reason)).collect();
        let wanted = [
            (1, State::Running, Some(StartReason::Created)),
            (2, State::Sleeping, None),
            (3, State::Running, Some(StartReason::Woken)),
        ];
        assert_eq!(told, wanted);
        assert!(changes.told(2) && !changes.told(2));
        assert_eq!(changes.untold().iter().map(|change| change.number).collect::<Vec<_>>(), [3]);
        let stored = serde_json::to_string(&changes).unwrap();
        let mut changes: Changes = serde_json::from_str(&stored).unwrap();
        changes.note(&record(State::Error, 2, None), 2, 5);
        assert_eq!(changes.untold().last().map(|change| change.number), Some(4), "numbers go on");
    }

    #[test]
    fn a_boot_that_was_there_already_is_no_news_and_what_nobody_takes_does_not_grow_for_ever() {
        let mut changes = Changes::default();
        changes.note(&record(State::Running, 3, Some(StartReason::Restarted)), 3, 1);
        assert!(changes.untold().is_empty());
        for at in 0..100 {
            changes.note(&record(State::Error, 3, None), 3, at);
        }
        assert_eq!(changes.untold().len(), MOST_CHANGES);
        assert_eq!(changes.untold().last().map(|change| change.number), Some(100));
    }
}
