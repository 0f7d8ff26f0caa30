//! An attempt that is in nobody's memory is looked for where it may run.

use std::rc::Rc;
use std::time::Duration;

use super::actor::Inner;
use super::stored::Stored;
use crate::api::rest;
use crate::call::Backend;
use crate::error::{Error, ErrorCode, Result};
use crate::events::Process;
use crate::guardrails::Execution;
use crate::platform::within;
use crate::sandbox::exec;
use crate::sandbox::state::State;
use crate::trace::Trace;
use crate::workers::backend::WorkersBackend;
use crate::workers::platform::random;

/// Until the daemon has said whether it has a command.
const FORBID_DEADLINE: Duration = Duration::from_secs(10);

/// What became of an attempt.
pub(super) enum Found {
    /// It runs there, or ended there.
    Began(Process),
    /// It has not begun, and cannot any more.
    NeverBegan,
    /// Its sandbox says nothing for now.
    Silent,
    /// Nobody knows.
    Lost,
}

/// Whether a tool runs as a process, which its sandbox knows by the id of the call.
pub(super) fn is_process(stored: &Stored) -> Result<bool> {
    let shared = rest::shared()?;
    let entry = shared.registry.get(&stored.job.tool);
    Ok(entry.is_some_and(|entry| entry.description().execution == Execution::Process))
}

/// As it was written down, or in the boot that runs now, which knows whether it has it.
pub(super) async fn find(inner: &Rc<Inner>, stored: &Stored) -> Result<Found> {
    if !is_process(stored)? {
        return Ok(Found::Lost);
    }
    if let Some(process) = &stored.process {
        return Ok(Found::Began(process.clone()));
    }
    let Some(sandbox_id) = &stored.job.sandbox_id else { return Ok(Found::Lost) };
    let trace = Trace::of_request(None, None, random);
    let backend = WorkersBackend::of_object(inner.env.clone(), inner.state.clone(), trace);
    let sandboxes = backend.sandboxes(&stored.order.tenant);
    let described = match sandboxes.describe(sandbox_id).await {
        Ok(described) => described,
        Err(error) if error.code == ErrorCode::NotFound => return Ok(Found::Lost),
        Err(error) => return Ok(silent(inner, &error)),
    };
    let record = described.record;
    let boot_id = match (record.state, record.boot_id) {
        (State::Running, Some(boot_id)) if described.metrics.is_some() => boot_id,
        (State::Running | State::Starting, _) => return Ok(Found::Silent),
        _ => return Ok(Found::Lost),
    };
    let since = (stored.job.sandbox_created_at, stored.job.sandbox_generation);
    let now = (Some(record.created_at), Some(record.generation));
    let process = Process { sandbox_id: sandbox_id.clone(), boot_id };
    let id = stored.attempt_id();
    let forbidding = exec::forbid(&*sandboxes, &process, &id);
    let Ok(forbidden) = within(&inner.platform, FORBID_DEADLINE, forbidding).await else { return Ok(Found::Silent) };
    match forbidden {
        Ok(true) => Ok(Found::Began(process)),
        // Where that is another boot than when the job was asked for, it may have begun in the one before.
        Ok(false) if since == now => Ok(Found::NeverBegan),
        Ok(false) => Ok(Found::Lost),
        // Said by a daemon that cannot forbid, which may have it.
        Err(error) if error.code == ErrorCode::NotFound && error.details.contains_key("reason") => {
            Ok(Found::Began(process))
        }
        Err(error) if error.code == ErrorCode::NotFound => Ok(Found::Lost),
        Err(error) => Ok(silent(inner, &error)),
    }
}

fn silent(inner: &Inner, error: &Error) -> Found {
    inner.complain("the sandbox of a job was not heard of", error);
    Found::Silent
}
