//! A real `sandboxd host` on a port of its own.

use std::{
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::Command,
    sync::mpsc,
    time::Duration,
};

use crate::{guardian::GuardedChild, locate};

/// How long a child may take until it says that it listens.
pub(crate) const READY_LIMIT: Duration = Duration::from_secs(180);

/// `sandboxd host`, its folder and its token; restartable on both.
pub struct Host {
    child: GuardedChild,
    folder: PathBuf,
    token: String,
    port: u16,
}

impl Host {
    /// Starts a host that keeps its sandboxes under `folder`.
    pub fn start(folder: &Path, token: &str) -> Self {
        let (child, port) = launch(folder, token, 0);
        Self { child, folder: folder.to_owned(), token: token.to_owned(), port }
    }

    /// Where it listens.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// What it takes from its callers.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Port on the loopback interface.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Process id.
    pub fn pid(&self) -> i32 {
        self.child.pid()
    }

    /// Where it keeps the files of its sandboxes.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Everything it has logged so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.with_extension("log")).unwrap_or_default()
    }

    /// SIGKILL, to it and to nothing else: its sandboxes must end by themselves.
    pub fn kill(&mut self) {
        self.child.kill_leader();
    }

    /// Starts it again on the same port, folder and token.
    pub fn restart(&mut self) {
        self.kill();
        let (child, port) = launch(&self.folder, &self.token, self.port);
        self.child = child;
        self.port = port;
    }
}

fn launch(folder: &Path, token: &str, port: u16) -> (GuardedChild, u16) {
    std::fs::create_dir_all(folder).expect("the stack's folder is writable");
    let log = folder.with_extension("log");
    let mut command = Command::new(locate::sandboxd());
    command
        .arg("host")
        .args(["--listen", &format!("127.0.0.1:{port}")])
        .arg("--data-dir")
        .arg(folder)
        .env("SANDBOX_HOST_TOKEN", token)
        .env("SANDBOXD_LOG", "debug")
        .stderr(std::fs::OpenOptions::new().create(true).append(true).open(&log).expect("the log file opens"));
    let mut child = GuardedChild::spawn(&mut command);
    let url = announced(&mut child, "listening on http://", &log);
    let port = url.rsplit(':').next().and_then(|port| port.trim_end_matches('/').parse().ok());
    (child, port.unwrap_or_else(|| panic!("sandboxd host announced no port: {url}")))
}

/// What follows `prefix` on the child's standard output, whose other lines go to the log.
pub(crate) fn announced(child: &mut GuardedChild, prefix: &'static str, log: &Path) -> String {
    let stdout = child.take_stdout().expect("standard output is piped and read once");
    let (sender, receiver) = mpsc::channel();
    let mut rest_of_it = std::fs::OpenOptions::new().create(true).append(true).open(log).expect("the log file opens");
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if let Some(rest) = line.strip_prefix(prefix) {
                let _ = sender.send(rest.trim().to_owned());
            } else {
                let _ = writeln!(rest_of_it, "{line}");
            }
        }
    });
    receiver.recv_timeout(READY_LIMIT).unwrap_or_else(|_| {
        let status = child.try_wait();
        let text = std::fs::read_to_string(log).unwrap_or_default();
        let tail = text.len().saturating_sub(4000);
        panic!("no `{prefix}` line (exit status {status:?}):\n{}", text.get(tail..).unwrap_or(&text))
    })
}
