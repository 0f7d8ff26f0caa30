//! Running a command and everything that it starts, as one tree. The only way in which the daemon runs anything.
//!
//! `command` checks what is to run, `start` makes its pipes, `launch` and `supervisor` bring it to life under a `filter`,
//! `run` watches until nothing of it is left, `members` finds and kills processes, `memory` asks for the kernel's
//! out-of-memory killer, `strikes` counts what the daemon killed for want of memory or disk, `kept` bounds what is
//! remembered of the ended. Who keeps the output and says when it is to end is an [`Owner`].

mod command;
mod filter;
mod kept;
mod launch;
mod members;
mod memory;
mod run;
mod start;
mod strikes;
mod supervisor;

pub(crate) use command::{Command, check_environment, check_id, signal};
pub(crate) use filter::install as forbid_limits;
pub(crate) use kept::{Bounds, Kept};
pub(crate) use members::{Process, Supervisors, descendants, kill_all, send, snapshot};
pub(crate) use memory::{count_kills_in, look_for_counter};
pub(crate) use run::{End, Ending, Owner, Pipe, Run, Wishes};
pub(crate) use start::{Input, Refused, Started, start};
pub(crate) use supervisor::Credentials;
