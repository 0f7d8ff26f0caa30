//! Schedules: calls at a time, or by a cron expression. Pure: when a schedule runs, what becomes of a due time, who may change what.
//!
//! ```text
//!            its last time has come, or `expiresAt`
//!  active ───────────────────────────────────────▶ ended
//!   │  ▲ ◀─────────────── another time ─────────────┘
//!   │  └─ resumed
//!   └──── paused, by somebody or since its key may not call any more ──▶ paused
//! ```
//!
//! The tenant's object stores schedules, and its one alarm goes off for them (`tenant/scheduler.rs`). A run is a call like any other, which
//! becomes a job at once. Its id follows from the schedule and the due time, so that a run is made once, however often it is asked for.

pub mod arguments;
pub mod change;
pub mod cron;
pub mod listing;
pub mod record;
pub mod turn;
pub mod zone;

#[cfg(test)]
mod tests;
