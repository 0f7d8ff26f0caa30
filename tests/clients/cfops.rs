//! `cfops`, the static file that users get, against the real stack: as a shell sees it.

mod answers;
mod approvals;
mod copies;
mod doors;
mod exec;
mod jobs;
mod line;
mod logins;
mod prompt;
mod secrets;

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use test_support::{Stack, scratch_folder};

const LIMIT: Duration = Duration::from_secs(300);

/// A person with a home folder of their own.
pub(crate) struct Home {
    folder: PathBuf,
}

impl Home {
    /// Nobody has logged in.
    pub(crate) fn new() -> Self {
        Self { folder: scratch_folder("cfops") }
    }

    /// Logged in to the shared stack with its root key.
    pub(crate) fn logged_in() -> Self {
        let (home, stack) = (Self::new(), Stack::shared());
        home.log_in("default", stack.client().base(), &stack.key);
        home
    }

    pub(crate) fn log_in(&self, profile: &str, url: &str, key: &str) {
        self.run_with(&["login", url, "--profile", profile], key.as_bytes()).ok();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub(crate) fn profiles(&self) -> PathBuf {
        self.path("config/cfops/profiles.json")
    }

    /// The list of tools that is kept of a profile.
    pub(crate) fn tool_list(&self) -> PathBuf {
        let entries = self.path("cache/cfops").read_dir().unwrap();
        entries
            .flatten()
            .map(|entry| entry.path())
            .find(|path| path.extension().is_some_and(|it| it == "json"))
            .unwrap()
    }

    pub(crate) fn command(&self, words: &[impl AsRef<OsStr>]) -> Command {
        let mut command = Command::new(test_support::cfops());
        command
            .args(words)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("XDG_CONFIG_HOME", self.path("config"))
            .env("XDG_CACHE_HOME", self.path("cache"))
            .current_dir(&self.folder);
        command
    }

    pub(crate) fn run(&self, words: &[impl AsRef<OsStr>]) -> Ran {
        self.run_with(words, b"")
    }

    /// The same with something on standard input.
    pub(crate) fn run_with(&self, words: &[impl AsRef<OsStr>], input: &[u8]) -> Ran {
        run(&mut self.command(words), input)
    }

    /// The answer of a command as JSON.
    #[track_caller]
    pub(crate) fn json(&self, words: &[&str]) -> Value {
        let ran = self.run(&[&["--json"], words].concat());
        serde_json::from_str(&ran.ok()).unwrap()
    }
}

/// How it ended, and what it wrote.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

impl Ran {
    /// Its exit code; of a signal what a shell tells.
    pub(crate) fn code(&self) -> i32 {
        self.status.code().or_else(|| self.status.signal().map(|signal| 128 + signal)).unwrap()
    }

    pub(crate) fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// What a command that succeeded wrote.
    #[track_caller]
    pub(crate) fn ok(&self) -> String {
        assert_eq!(self.code(), 0, "{}{}", self.stdout(), self.stderr());
        self.stdout()
    }

    /// What a command that failed with this exit code told; it wrote no answer.
    #[track_caller]
    pub(crate) fn failed(&self, code: i32) -> String {
        assert_eq!(self.code(), code, "{}{}", self.stdout(), self.stderr());
        assert_eq!(self.stdout(), "");
        self.stderr()
    }
}

/// Runs to its end, within a time.
#[track_caller]
pub(crate) fn run(command: &mut Command, input: &[u8]) -> Ran {
    let mut child = start(command);
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    // It may not read all of it, or nothing.
    thread::spawn(move || stdin.write_all(&input));
    end(child)
}

pub(crate) fn start(command: &mut Command) -> Child {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("cfops starts")
}

/// Waits for the end of a child, and kills it where that does not come.
#[track_caller]
pub(crate) fn end(mut child: Child) -> Ran {
    let outputs: [Option<Box<dyn Read + Send>>; 2] =
        [child.stdout.take().map(|it| Box::new(it) as _), child.stderr.take().map(|it| Box::new(it) as _)];
    let [stdout, stderr] = outputs.map(|output| {
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = output.map(|mut output| output.read_to_end(&mut bytes));
            let _ = sender.send(bytes);
        });
        receiver
    });
    let stdout = stdout.recv_timeout(LIMIT);
    if stdout.is_err() {
        let _ = child.kill();
    }
    let (status, stderr) = (child.wait().unwrap(), stderr.recv_timeout(LIMIT).unwrap_or_default());
    let stdout = stdout.unwrap_or_else(|_| panic!("it did not end: {}", String::from_utf8_lossy(&stderr)));
    Ran { status, stdout, stderr }
}

/// SHA-256 of a file, by the system's own program.
pub(crate) fn sha256(path: &Path) -> String {
    let output = Command::new("sha256sum").arg(path).output().unwrap();
    assert!(output.status.success(), "{}", path.display());
    String::from_utf8_lossy(&output.stdout).split(' ').next().unwrap().to_owned()
}
