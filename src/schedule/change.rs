//! What may be said of a schedule when it is made or changed, and what follows from it.
//!
//! A schedule runs with the rights of the key that said last what is run, or when: whoever changes or resumes it answers for its runs. So
//! nobody has another key do what its own may not. Pausing and renaming it leave it whose it is.

use serde::{Deserialize, Serialize};

use super::cron;
use super::record::{Call, Overlap, Pause, Schedule, State, When};
use super::zone::{UTC, Zones, is_name};
use crate::error::{Error, ErrorCode, Result};
use crate::platform::{parse_rfc3339, rfc3339};

/// What is changed of a schedule; what is absent stays.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// Who changes it.
    pub key_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<When>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<Call>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlap: Option<Overlap>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub catch_up: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expiry: Option<Expiry>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
}

/// From when on nothing is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Expiry {
    Never,
    At(i64),
}

impl Expiry {
    fn at(self) -> Option<i64> {
        match self {
            Self::Never => None,
            Self::At(at) => Some(at),
        }
    }
}

/// When a schedule runs, as a caller says it; nothing where it says nothing. 400 for what names no time.
pub fn when(
    at: Option<&str>,
    expression: Option<&str>,
    time_zone: Option<&str>,
    zones: &dyn Zones,
    now: i64,
) -> Result<Option<When>> {
    match (at, expression) {
        (Some(_), Some(_)) => Err(Error::invalid("/at", "goes without cron")),
        (_, None) if time_zone.is_some() => Err(Error::invalid("/timeZone", "goes with cron")),
        (None, None) => Ok(None),
        (Some(text), None) => {
            let message = "is not an RFC 3339 time such as 2026-01-31T12:00:00Z";
            let at = parse_rfc3339(text).ok_or_else(|| Error::invalid("/at", message))?;
            if at <= now { Err(Error::invalid("/at", "is not in the future")) } else { Ok(Some(When::At(at))) }
        }
        (None, Some(expression)) => {
            cron::parse(expression).map_err(|message| Error::invalid("/cron", message))?;
            let zone = time_zone.unwrap_or(UTC);
            let is_known = zone == UTC || (is_name(zone) && zones.offset_seconds(zone, now / 1000).is_some());
            if !is_known {
                let message = "is no time zone of the IANA database, such as Europe/Berlin";
                return Err(Error::invalid("/timeZone", message));
            }
            let expression = expression.split_whitespace().collect::<Vec<_>>().join(" ");
            Ok(Some(When::Cron { expression, time_zone: zone.to_owned() }))
        }
    }
}

/// The first time that is due after `now`. 400 where there is none.
pub fn first(when: &When, expires_at: Option<i64>, zones: &dyn Zones, now: i64) -> Result<i64> {
    if expires_at.is_some_and(|at| at <= now) {
        return Err(Error::invalid("/expiresAt", "is not in the future"));
    }
    let first = match (when.next_after(now, zones), when) {
        (Some(first), _) => first,
        (None, When::At(_)) => return Err(Error::invalid("/at", "is not in the future")),
        (None, When::Cron { .. }) => return Err(Error::invalid("/cron", "does not come within 50 years")),
    };
    match expires_at {
        Some(end) if first >= end => {
            Err(Error::invalid("/expiresAt", format!("is before the first time, which is {}", rfc3339(first))))
        }
        _ => Ok(first),
    }
}

impl When {
    /// The next time after `now`.
    pub fn next_after(&self, now: i64, zones: &dyn Zones) -> Option<i64> {
        match self {
            Self::At(at) => (*at > now).then_some(*at),
            Self::Cron { expression, time_zone } => cron::next(&cron::parse(expression).ok()?, zones, time_zone, now),
        }
    }
}

impl Change {
    /// A change of nothing.
    pub fn by(key_id: &str) -> Self {
        let key_id = key_id.to_owned();
        let (name, when, call, overlap, catch_up, expiry, paused) = (None, None, None, None, None, None, None);
        Self { key_id, name, when, call, overlap, catch_up, expiry, paused }
    }

    /// Whether who makes it answers for the runs from then on.
    pub fn takes_over(&self) -> bool {
        self.when.is_some()
            || self.call.is_some()
            || self.overlap.is_some()
            || self.catch_up.is_some()
            || self.expiry.is_some()
            || self.paused == Some(false)
    }
}

impl Schedule {
    /// The same, due for the first time.
    pub fn begun(self, zones: &dyn Zones, now: i64) -> Result<Self> {
        let next_at = first(&self.when, self.expires_at, zones, now)?;
        Ok(Self { next_at: Some(next_at), ..self })
    }

    /// The same with a change; 400 or 409 where it would never run.
    pub fn changed(self, change: Change, zones: &dyn Zones, now: i64) -> Result<Self> {
        let takes_over = change.takes_over();
        let Change { key_id, name, when, call, overlap, catch_up, expiry, paused } = change;
        let is_another_time = when.is_some();
        if self.state == State::Ended && takes_over && !is_another_time {
            let message = "the schedule has ended; give it another time with `at` or `cron`";
            return Err(Error::new(ErrorCode::Conflict, message).detail("scheduleId", self.schedule_id));
        }
        let state = match (paused, self.state) {
            (Some(true), State::Ended) if !is_another_time => State::Ended,
            (Some(true), _) => State::Paused,
            (Some(false), _) => State::Active,
            (None, State::Ended) if is_another_time => State::Active,
            (None, state) => state,
        };
        let pause = match (paused, state) {
            (Some(true), State::Paused) if self.state != State::Paused => {
                Some(Pause { at: now, key_id: Some(key_id.clone()), error: None })
            }
            (_, State::Paused) => self.pause,
            _ => None,
        };
        let changed = Self {
            name: name.unwrap_or(self.name),
            when: when.unwrap_or(self.when),
            call: call.unwrap_or(self.call),
            overlap: overlap.unwrap_or(self.overlap),
            catch_up: catch_up.unwrap_or(self.catch_up),
            expires_at: expiry.map_or(self.expires_at, Expiry::at),
            key_id: if takes_over { key_id } else { self.key_id },
            updated_at: now,
            state,
            pause,
            ended_at: self.ended_at.filter(|_| state == State::Ended),
            waiting: self.waiting.filter(|_| state == State::Active),
            ..self
        };
        match state {
            State::Ended => Ok(changed),
            State::Paused if !is_another_time && expiry.is_none() => Ok(Self { next_at: None, ..changed }),
            State::Active if !takes_over => Ok(changed),
            _ => {
                let first = match first(&changed.when, changed.expires_at, zones, now) {
                    Err(_) if !is_another_time && expiry.is_none() => {
                        let message = "the time of the schedule has passed; give it another with `at` or `cron`";
                        return Err(Error::new(ErrorCode::Conflict, message).detail("scheduleId", changed.schedule_id));
                    }
                    first => first?,
                };
                // What is due and not made yet stays so.
                let due = changed.next_at.filter(|at| *at <= now && !is_another_time);
                let next_at = (state == State::Active).then_some(due.unwrap_or(first));
                Ok(Self { next_at, ..changed })
            }
        }
    }
}
