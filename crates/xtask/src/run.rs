//! Running children: bounded in time, their output in a log file, their progress on the terminal, and none left behind
//! when the command is interrupted.
//!
//! Every child is the leader of a process group of its own; on a signal, on its deadline and on failure the whole group
//! is ended, first politely. A child that must ask the person something (sudo) keeps the terminal instead.

use crate::terminal::{self, Progress};
use crate::workspace;
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(20);
const POLITE: Duration = Duration::from_secs(5);

fn interrupted() -> &'static Arc<AtomicBool> {
    static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    INTERRUPTED.get_or_init(Arc::default)
}

/// From here on Ctrl-C, SIGTERM and a closed terminal are noticed by every wait of this program instead of ending it.
pub(crate) fn watch_signals() -> Result<()> {
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(interrupted())).context("cannot watch for signals")?;
    }
    Ok(())
}

pub(crate) fn was_interrupted() -> bool {
    interrupted().load(Ordering::SeqCst)
}

/// Sleeps, and fails at once when the command is interrupted.
pub(crate) fn pause(duration: Duration) -> Result<()> {
    let end = Instant::now() + duration;
    loop {
        if was_interrupted() {
            bail!("interrupted");
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(left.min(POLL));
    }
}

/// A command in the root of the checkout, without what `cargo run` added to our own environment: it would make Cargo
/// rebuild what depends on it, and another compiler load the wrong libraries.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(workspace::root());
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        let from_cargo = text.starts_with("CARGO_PKG_")
            || matches!(&*text, "CARGO_MANIFEST_DIR" | "CARGO_MANIFEST_PATH" | "CARGO_CRATE_NAME" | "CARGO_BIN_NAME");
        if from_cargo || text == "LD_LIBRARY_PATH" {
            command.env_remove(&name);
        }
    }
    command
}

/// What a short question to a program answers on stdout, if it succeeds.
pub(crate) fn ask(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// A long child with a label for the person, a log file and a deadline.
pub(crate) struct Task {
    label: String,
    command: Command,
    limit: Duration,
    quiet_below: Duration,
    logs: PathBuf,
}

impl Task {
    pub(crate) fn new(label: &str, command: Command, limit: Duration) -> Self {
        let (label, logs) = (label.to_owned(), workspace::logs());
        Self { label, command, limit, quiet_below: Duration::from_secs(2), logs }
    }

    /// The folder for its log file, where that is not the usual one.
    pub(crate) fn logged_in(mut self, folder: &Path) -> Self {
        folder.clone_into(&mut self.logs);
        self
    }

    fn log(&self) -> PathBuf {
        let name: String =
            self.label.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect();
        self.logs.join(format!("{name}.log"))
    }

    /// Runs the child with its output in a log file; on failure the error carries the end of it.
    pub(crate) fn run(mut self) -> Result<()> {
        let path = self.log();
        fs::create_dir_all(&self.logs).context("cannot create the folder for logs")?;
        let log =
            Arc::new(Mutex::new(File::create(&path).with_context(|| format!("cannot write {}", path.display()))?));
        let last_line = Arc::new(Mutex::new(String::new()));
        let program = self.command.get_program().to_string_lossy().into_owned();
        let mut child = self
            .command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {program} ({})", self.label))?;
        let readers = [
            child.stdout.take().map(|pipe| copy_lines(pipe, &log, &last_line)),
            child.stderr.take().map(|pipe| copy_lines(pipe, &log, &last_line)),
        ];
        let mut progress = Progress::start(&self.label);
        let status = wait(&mut child, self.limit, || {
            progress.update(&last_line.lock().unwrap_or_else(PoisonError::into_inner));
        });
        // What the child left in its group would keep the pipes open and the readers waiting.
        end_group(&mut child);
        for reader in readers.into_iter().flatten() {
            let _ = reader.join();
        }
        let seconds = progress.elapsed();
        drop(progress);
        match status {
            Ok(status) if status.success() => {
                if seconds > self.quiet_below {
                    terminal::note(&format!("{}: done in {} s", self.label, seconds.as_secs()));
                }
                Ok(())
            }
            Ok(status) => {
                bail!("{} failed ({status})\n{}\n  whole log: {}", self.label, tail(&path, 25), path.display())
            }
            Err(error) if was_interrupted() => Err(error),
            Err(error) => bail!("{}: {error}\n{}\n  whole log: {}", self.label, tail(&path, 12), path.display()),
        }
    }

    /// Runs the child with `input` on its standard input and keeps what it says, in no file: for short children whose answer is
    /// read, and for those that are told a secret.
    pub(crate) fn capture(mut self, input: &[u8]) -> Result<Captured> {
        let program = self.command.get_program().to_string_lossy().into_owned();
        let mut child = self
            .command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {program} ({})", self.label))?;
        let (stdin, input) = (child.stdin.take(), input.to_vec());
        // A child that does not read its input is no fault of ours; the pipe closes with the thread.
        let writer = thread::spawn(move || stdin.map(|mut pipe| pipe.write_all(&input)));
        let readers = [child.stdout.take().map(read_all), child.stderr.take().map(read_all)];
        let status = wait(&mut child, self.limit, || {});
        end_group(&mut child);
        let _ = writer.join();
        let [stdout, stderr] = readers.map(|reader| reader.and_then(|thread| thread.join().ok()).unwrap_or_default());
        Ok(Captured { status: status.with_context(|| self.label.clone())?, stdout, stderr })
    }

    /// Runs the child with its output on the terminal, because it is what the person wants to see; each line is also given
    /// to `on_line`.
    pub(crate) fn show(mut self, mut on_line: impl FnMut(&str)) -> Result<ExitStatus> {
        let program = self.command.get_program().to_string_lossy().into_owned();
        let mut child = self
            .command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {program} ({})", self.label))?;
        let (sender, receiver) = mpsc::channel();
        if let Some(pipe) = child.stdout.take() {
            send_lines(pipe, sender.clone());
        }
        if let Some(pipe) = child.stderr.take() {
            send_lines(pipe, sender.clone());
        }
        drop(sender);
        let mut show = |line: String| {
            terminal::raw(&line);
            on_line(&line);
        };
        let status = wait(&mut child, self.limit, || receiver.try_iter().for_each(&mut show));
        end_group(&mut child);
        // Both pipes end with the group, so this ends too.
        receiver.iter().for_each(&mut show);
        status.with_context(|| self.label.clone())
    }
}

/// How a child ended and all that it said.
pub(crate) struct Captured {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

fn read_all(mut pipe: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn send_lines(pipe: impl Read + Send + 'static, sender: mpsc::Sender<String>) {
    thread::spawn(move || each_line(pipe, |line| drop(sender.send(String::from_utf8_lossy(line).into_owned()))));
}

fn each_line(pipe: impl Read, mut on_line: impl FnMut(&[u8])) {
    let mut reader = BufReader::new(pipe);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
        on_line(&line);
        line.clear();
    }
}

fn copy_lines(
    pipe: impl Read + Send + 'static,
    log: &Arc<Mutex<File>>,
    last_line: &Arc<Mutex<String>>,
) -> thread::JoinHandle<()> {
    let (log, last_line) = (Arc::clone(log), Arc::clone(last_line));
    thread::spawn(move || {
        each_line(pipe, |line| {
            let _ = log.lock().unwrap_or_else(PoisonError::into_inner).write_all(line);
            let text = String::from_utf8_lossy(line);
            if !text.trim().is_empty() {
                text.trim().clone_into(&mut last_line.lock().unwrap_or_else(PoisonError::into_inner));
            }
        });
    })
}

fn wait(child: &mut Child, limit: Duration, mut tick: impl FnMut()) -> Result<ExitStatus> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for the child")? {
            return Ok(status);
        }
        if Instant::now() > deadline {
            bail!("took longer than {} s and was stopped", limit.as_secs());
        }
        pause(POLL)?;
        tick();
    }
}

/// Ends the group that `child` leads: TERM, a moment to obey, KILL. The leader is reaped.
pub(crate) fn end_group(child: &mut Child) {
    let group = Pid::from_child(child);
    let _ = kill_process_group(group, Signal::TERM);
    let deadline = Instant::now() + POLITE;
    loop {
        let reaped = child.try_wait().is_ok_and(|status| status.is_some());
        if reaped && test_kill_process_group(group).is_err() {
            return;
        }
        if Instant::now() > deadline {
            let _ = kill_process_group(group, Signal::KILL);
            let _ = child.wait();
            return;
        }
        thread::sleep(POLL);
    }
}

/// The last lines of a log, indented, for an error message.
pub(crate) fn tail(path: &Path, count: usize) -> String {
    let text = fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    last_lines(&text, count)
}

/// The last lines of a text, indented, for an error message.
pub(crate) fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let first = lines.len().saturating_sub(count);
    lines.iter().skip(first).map(|line| format!("  | {line}")).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = command("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_failing_child_is_told_with_the_end_of_its_output() {
        let task =
            Task::new("failing child of a test", shell("echo first; echo last >&2; exit 3"), Duration::from_secs(20));
        let message = task.run().unwrap_err().to_string();
        assert!(message.contains("exit status: 3") && message.contains("| last"), "{message}");
    }

    #[test]
    fn a_child_past_its_deadline_is_ended_with_its_descendants() {
        let marker = format!("{}", 100_000 + std::process::id());
        let script = format!("sleep {marker} & sleep {marker}");
        let task = Task::new("slow child of a test", shell(&script), Duration::from_millis(300));
        let message = task.run().unwrap_err().to_string();
        assert!(message.contains("took longer"), "{message}");
        let processes = ask(command("ps").args(["-eo", "args"])).unwrap_or_default();
        assert!(!processes.lines().any(|line| line == format!("sleep {marker}")), "a descendant lives on");
    }

    #[test]
    fn a_grandchild_that_keeps_the_pipe_does_not_hold_the_answer() {
        let started = Instant::now();
        let task = Task::new("leaving child of a test", shell("sleep 60 & exit 0"), Duration::from_secs(30));
        task.run().unwrap();
        assert!(started.elapsed() < Duration::from_secs(20));
    }
}
