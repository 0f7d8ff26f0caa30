//! When a message that was not taken is sent again, and when it is given up.

use std::time::Duration;

/// Until a receiver answers.
pub const ANSWER_DEADLINE: Duration = Duration::from_secs(10);

/// Pauses between attempts: close together at first, since most failures are short; a day and a half in all.
const PAUSES: [Duration; 8] = [
    Duration::from_secs(5),
    Duration::from_secs(60),
    Duration::from_secs(5 * 60),
    Duration::from_secs(30 * 60),
    Duration::from_secs(2 * 60 * 60),
    Duration::from_secs(6 * 60 * 60),
    Duration::from_secs(12 * 60 * 60),
    Duration::from_secs(16 * 60 * 60),
];

/// Pauses of a receiver that did not take several messages in a row, one after the other and then the last one again and again: nothing
/// is sent to it meanwhile.
const RECEIVER_PAUSES: [Duration; 5] = [
    Duration::from_secs(5),
    Duration::from_secs(15),
    Duration::from_secs(60),
    Duration::from_secs(5 * 60),
    Duration::from_secs(30 * 60),
];

/// Failures in a row after which a receiver counts as having been away: once it is back, all that waits for it is sent.
pub const AWAY_AFTER: u32 = 2;

/// How one attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attempt {
    Taken,
    /// Why not: the receiver's status, or what became of the connection.
    Failed(String),
}

impl Attempt {
    /// Any status of success takes the message. A redirect is not followed: it could lead anywhere.
    pub fn of_status(status: u16) -> Self {
        match status {
            200..=299 => Self::Taken,
            300..=399 => Self::Failed(format!("answered {status}: redirects are not followed")),
            _ => Self::Failed(format!("answered {status}")),
        }
    }
}

/// How long to wait before the next attempt, after `attempts` that failed; `None` gives the message up.
pub fn pause_after(attempts: u32) -> Option<Duration> {
    let index = usize::try_from(attempts).ok()?.checked_sub(1)?;
    PAUSES.get(index).copied()
}

/// How long nothing is sent to a receiver after so many failures in a row.
pub fn receiver_pause(failures: u32) -> Duration {
    let index = usize::try_from(failures.saturating_sub(1)).unwrap_or(usize::MAX).min(RECEIVER_PAUSES.len() - 1);
    RECEIVER_PAUSES.get(index).copied().unwrap_or_default()
}

/// How long a message is tried at most: what waited for as long is given up with the next failure of its receiver.
pub fn patience() -> Duration {
    PAUSES.iter().sum::<Duration>() + ANSWER_DEADLINE * 9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_grow_apart_and_end() {
        let pauses: Vec<Duration> = (1..).map_while(pause_after).collect();
        assert!(pauses.is_sorted() && pauses.len() == PAUSES.len());
        assert_eq!((pause_after(0), pause_after(9)), (None, None));
        assert!(pauses.iter().sum::<Duration>() < Duration::from_secs(2 * 24 * 60 * 60));
    }

    #[test]
    fn a_receiver_that_stays_away_is_asked_twice_an_hour() {
        let pauses: Vec<u64> = (0..8).map(|failures| receiver_pause(failures).as_secs()).collect();
        assert_eq!(pauses, [5, 5, 15, 60, 300, 1800, 1800, 1800]);
        assert_eq!(receiver_pause(u32::MAX), receiver_pause(8));
        assert!(patience() > (1..).map_while(pause_after).sum());
    }

    #[test]
    fn only_success_takes_a_message() {
        assert_eq!([200, 204, 299].map(Attempt::of_status), [Attempt::Taken, Attempt::Taken, Attempt::Taken]);
        for status in [301, 302, 400, 404, 410, 429, 500, 503] {
            assert!(matches!(Attempt::of_status(status), Attempt::Failed(why) if why.contains(&status.to_string())));
        }
    }
}
