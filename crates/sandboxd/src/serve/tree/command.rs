//! What is to run, checked: every complaint names its field.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::path::PathBuf;

use nix::sys::signal::Signal;
use redaction::{Redactor, secrets};
use sandbox_api::WORKSPACE;

use crate::http::Problem;
use crate::serve::Settings;

/// A checked command. It can be started more than once.
#[derive(Clone)]
pub(crate) struct Command {
    /// Program and arguments; never empty.
    pub(super) argv: Vec<String>,
    pub(super) cwd: CString,
    /// The whole environment: base, then the sandbox's own, then this command's.
    pub(super) env: BTreeMap<String, String>,
    /// Masks in its output what is secret in its environment.
    pub(crate) redactor: Redactor,
}

impl Command {
    /// Exactly one of `command` (for the shell) and `argv` is given.
    pub(crate) fn check(
        command: Option<&str>,
        argv: Option<&[String]>,
        cwd: Option<&str>,
        env: &BTreeMap<String, String>,
        settings: &Settings,
    ) -> Result<Self, Problem> {
        check_environment(env).map_err(Problem::invalid)?;
        let of_the_sandbox = settings.environment();
        let mut merged = of_the_sandbox.clone();
        merged.extend(env.iter().map(|(name, value)| (name.clone(), value.clone())));
        Ok(Self {
            argv: check_argv(command, argv, settings)?,
            cwd: check_cwd(cwd, settings)?,
            // A command finds the sandbox's secrets also where its own variables hide them: in files, or in another process.
            redactor: Redactor::new(secrets(&of_the_sandbox).chain(secrets(&merged))),
            env: merged,
        })
    }

    /// The program, for messages.
    pub(super) fn program(&self) -> &str {
        self.argv.first().map(String::as_str).unwrap_or_default()
    }
}

/// An id that a caller chooses: 1 to 64 of `A-Z a-z 0-9 _ -`.
pub(crate) fn check_id(id: &str) -> Result<(), Problem> {
    let fits = (1..=64).contains(&id.len())
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
    if fits { Ok(()) } else { Err(Problem::invalid("id: 1 to 64 of A-Z a-z 0-9 _ -")) }
}

fn check_argv(command: Option<&str>, argv: Option<&[String]>, settings: &Settings) -> Result<Vec<String>, Problem> {
    match (command, argv) {
        (Some(command), None) => {
            no_nul("command", command)?;
            // Without `--` a command that begins with a dash would be an option of the shell.
            Ok(vec![settings.shell.clone(), "-c".into(), "--".into(), command.to_owned()])
        }
        (None, Some(argv)) => {
            if argv.first().is_none_or(String::is_empty) {
                return Err(Problem::invalid("argv: the first element, the program, is missing or empty"));
            }
            for (index, argument) in argv.iter().enumerate() {
                no_nul(&format!("argv[{index}]"), argument)?;
            }
            Ok(argv.to_vec())
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
fn check_cwd(cwd: Option<&str>, settings: &Settings) -> Result<CString, Problem> {
    let given = cwd.unwrap_or("");
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

/// The signal of that name; SIGTERM when none is named.
pub(crate) fn signal(name: Option<&str>) -> Result<i32, Problem> {
    let Some(name) = name else { return Ok(Signal::SIGTERM as i32) };
    let signal: Signal = name.parse().map_err(|_| Problem::invalid(format!("signal: no signal is named {name}")))?;
    Ok(signal as i32)
}
