//! From a request to a launch: every field is checked here, once, and each complaint names its field.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::path::PathBuf;
use std::time::Duration;

use sandbox_api::{ExecRequest, WORKSPACE};

use crate::http::Problem;
use crate::serve::Settings;

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
    /// Program and arguments; never empty.
    pub(super) argv: Vec<String>,
    pub(super) cwd: CString,
    pub(super) env: BTreeMap<String, String>,
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
        argv: argv(request, settings)?,
        cwd: cwd(request, settings)?,
        env: environment(&request.env, settings)?,
        stdin: stdin.filter(|bytes| !bytes.is_empty()),
        timeout: milliseconds("timeoutMs", request.timeout_ms, 1)?,
        output_limit: output_limit as usize,
        grace: milliseconds("disconnectGraceMs", request.disconnect_grace_ms.unwrap_or(GRACE_DEFAULT_MS), 0)?,
        lease: request.lease_ms.map(|value| milliseconds("leaseMs", value, 1)).transpose()?,
    })
}

/// An exec's id: 1 to 64 of `A-Z a-z 0-9 _ -`.
fn check_id(id: &str) -> Result<(), Problem> {
    let fits = (1..=64).contains(&id.len())
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
    if fits { Ok(()) } else { Err(Problem::invalid("id: 1 to 64 of A-Z a-z 0-9 _ -")) }
}

fn milliseconds(field: &str, value: u64, least: u64) -> Result<Duration, Problem> {
    if (least..=TIMEOUT_LIMIT_MS).contains(&value) {
        Ok(Duration::from_millis(value))
    } else {
        Err(Problem::invalid(format!("{field}: {least} to {TIMEOUT_LIMIT_MS} (24 hours)")))
    }
}

fn argv(request: &ExecRequest, settings: &Settings) -> Result<Vec<String>, Problem> {
    match (&request.command, &request.argv) {
        (Some(command), None) => {
            no_nul("command", command)?;
            // Without `--` a command that begins with a dash would be an option of the shell.
            Ok(vec![settings.shell.clone(), "-c".into(), "--".into(), command.clone()])
        }
        (None, Some(argv)) => {
            if argv.first().is_none_or(String::is_empty) {
                return Err(Problem::invalid("argv: the first element, the program, is missing or empty"));
            }
            for (index, argument) in argv.iter().enumerate() {
                no_nul(&format!("argv[{index}]"), argument)?;
            }
            Ok(argv.clone())
        }
        (Some(_), Some(_)) => Err(Problem::invalid("argv: give either command or argv, not both")),
        (None, None) => Err(Problem::invalid("command: command or argv is needed")),
    }
}

fn no_nul(field: &str, text: &str) -> Result<(), Problem> {
    if text.contains('\0') { Err(Problem::invalid(format!("{field}: has a NUL byte"))) } else { Ok(()) }
}

/// The workspace is where relative paths begin. `/workspace` means it too, also where no such path exists because the
/// sandbox has no file system of its own.
fn cwd(request: &ExecRequest, settings: &Settings) -> Result<CString, Problem> {
    let given = request.cwd.as_deref().unwrap_or("");
    let inside = match given.strip_prefix(WORKSPACE) {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => Some(rest.trim_start_matches('/')),
        Some(_) => None,
        None if given.starts_with('/') => None,
        None => Some(given),
    };
    let path = match inside {
        Some(relative) => settings.root.join(relative),
        None => PathBuf::from(given),
    };
    CString::new(path.into_os_string().into_encoded_bytes()).map_err(|_| Problem::invalid("cwd: has a NUL byte"))
}

/// Base, then the sandbox's own, then this call's.
fn environment(call: &BTreeMap<String, String>, settings: &Settings) -> Result<BTreeMap<String, String>, Problem> {
    check_environment(call).map_err(Problem::invalid)?;
    let mut merged = settings.environment();
    merged.extend(call.iter().map(|(name, value)| (name.clone(), value.clone())));
    Ok(merged)
}

/// What the operating system cannot hold is refused, not mangled.
pub(crate) fn check_environment(environment: &BTreeMap<String, String>) -> Result<(), String> {
    for (name, value) in environment {
        if name.is_empty() {
            return Err("env: a name is empty".into());
        }
        if name.contains('=') || name.contains('\0') {
            return Err(format!("env.{}: a name may have neither = nor NUL", name.replace('\0', "\\0")));
        }
        if value.contains('\0') {
            return Err(format!("env.{name}: the value has a NUL byte"));
        }
    }
    Ok(())
}
