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
    fn only_success_takes_a_message() {
        assert_eq!([200, 204, 299].map(Attempt::of_status), [Attempt::Taken, Attempt::Taken, Attempt::Taken]);
        for status in [301, 302, 400, 404, 410, 429, 500, 503] {
            assert!(matches!(Attempt::of_status(status), Attempt::Failed(why) if why.contains(&status.to_string())));
        }
    }
}
