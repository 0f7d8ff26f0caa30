//! Running a tool to its end, within a time, with its output told when it fails.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::mpsc,
    time::Duration,
};

use test_support::{GuardedChild, project_root};

/// The API description that every client is generated from.
pub(crate) fn description() -> PathBuf {
    project_root().join("openapi/openapi.json")
}

/// Runs `command` and gives its output, both channels together.
#[track_caller]
pub(crate) fn run(command: &mut Command, limit: Duration, log: &Path) -> String {
    let (succeeded, output) = try_run(command, limit, log);
    assert!(succeeded, "{:?} failed:\n{output}", command.get_program());
    output
}

/// Runs `command`; whether it succeeded, and its output.
#[track_caller]
pub(crate) fn try_run(command: &mut Command, limit: Duration, log: &Path) -> (bool, String) {
    let file = std::fs::File::create(log).expect("the log file opens");
    let mut child = GuardedChild::spawn(command.stderr(file));
    let mut stdout = child.take_stdout().expect("standard output is piped and read once");
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = std::io::Read::read_to_end(&mut stdout, &mut bytes);
        let _ = sender.send(bytes);
    });
    let stdout = receiver.recv_timeout(limit);
    let status = if stdout.is_ok() { Some(child.wait()) } else { None };
    let stderr = std::fs::read_to_string(log).unwrap_or_default();
    let output = format!("{}{stderr}", String::from_utf8_lossy(&stdout.unwrap_or_default()));
    match status {
        Some(status) => (status.success(), output),
        None => panic!("{:?} did not end within {limit:?}:\n{output}", command.get_program()),
    }
}
