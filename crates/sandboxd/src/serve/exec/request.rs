//! From a request to a launch: every field is checked here, once, and each complaint names its field.

use std::time::Duration;

use sandbox_api::ExecRequest;

use crate::http::Problem;
use crate::serve::Settings;
use crate::serve::tree::{Command, check_id};

/// Longest timeout.
const TIMEOUT_LIMIT_MS: u64 = 24 * 60 * 60 * 1000;
/// Output kept of a channel when the request does not say.
const OUTPUT_DEFAULT_BYTES: u64 = 1 << 20;
/// Most output kept of a channel.
const OUTPUT_LIMIT_BYTES: u64 = 8 << 20;
/// Grace after the last stream is lost when the request does not say.
const GRACE_DEFAULT_MS: u64 = 5000;

/// A checked request.
pub(super) struct Plan {
    pub(super) command: Command,
    /// `None` is a standard input that is at its end from the start.
    pub(super) stdin: Option<Vec<u8>>,
    pub(super) timeout: Duration,
    pub(super) output_limit: usize,
    pub(super) grace: Duration,
    pub(super) lease: Option<Duration>,
}

/// Checks a request against what this sandbox is.
pub(super) fn plan(request: &ExecRequest, settings: &Settings) -> Result<Plan, Problem> {
    check_id(&request.id)?;
    let output_limit = request.output_limit_bytes.unwrap_or(OUTPUT_DEFAULT_BYTES);
    if output_limit > OUTPUT_LIMIT_BYTES {
        return Err(Problem::invalid(format!("outputLimitBytes: at most {OUTPUT_LIMIT_BYTES}")));
    }
    let stdin = match &request.stdin {
        None => None,
        Some(encoded) => Some(
            encoded
                .decode()
                .ok_or_else(|| Problem::invalid("stdin.data: it is not base64 although encoding says so"))?,
        ),
    };
    Ok(Plan {
        command: Command::check(
            request.command.as_deref(),
            request.argv.as_deref(),
            request.cwd.as_deref(),
            &request.env,
            settings,
        )?,
        stdin: stdin.filter(|bytes| !bytes.is_empty()),
        timeout: milliseconds("timeoutMs", request.timeout_ms, 1)?,
        output_limit: output_limit as usize,
        grace: milliseconds("disconnectGraceMs", request.disconnect_grace_ms.unwrap_or(GRACE_DEFAULT_MS), 0)?,
        lease: request.lease_ms.map(|value| milliseconds("leaseMs", value, 1)).transpose()?,
    })
}

fn milliseconds(field: &str, value: u64, least: u64) -> Result<Duration, Problem> {
    if (least..=TIMEOUT_LIMIT_MS).contains(&value) {
        Ok(Duration::from_millis(value))
    } else {
        Err(Problem::invalid(format!("{field}: {least} to {TIMEOUT_LIMIT_MS} (24 hours)")))
    }
}
