//! Children that cannot outlive this process.
//!
//! Every child leads a process group of its own. A small shell, the guardian, learns of each group, of this process's
//! temporary folder and of the names of its containers over its standard input; when that input ends, by whatever death this
//! process dies, the guardian kills the groups and removes the containers and the folder. A parent-death signal would not do: it fires when the thread that
//! started the child ends, and each test is a thread.

use std::{
    io::Write,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio},
    sync::{LazyLock, Mutex},
};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::stack::random_name;

const SCRIPT: &str = r#"
trap '' INT TERM HUP
groups= folder= containers=
while read -r verb value; do
  case $verb in
    group) groups="$groups $value" ;;
    ended) kept=; for group in $groups; do [ "$group" = "$value" ] || kept="$kept $group"; done; groups=$kept ;;
    folder) folder=$value ;;
    docker) docker=$value ;;
    containers) containers="$containers $value" ;;
  esac
done
for group in $groups; do kill -s KILL -- "-$group"; done
for name in $containers; do
  left=$("$docker" ps --all --quiet --filter "name=$name")
  [ -z "$left" ] || "$docker" rm --force --volumes $left
done
tries=0
until [ -z "$folder" ] || rm -rf -- "$folder" || [ $tries -ge 50 ]; do tries=$((tries + 1)); sleep 0.1; done
"#;

struct Guardian {
    words: Mutex<ChildStdin>,
    folder: PathBuf,
    /// Nobody waits for it: it ends after this process, by whose death it works.
    _shell: Child,
}

/// Starts a guardian: its standard input is what it listens to.
fn start_guardian() -> Child {
    Command::new("/bin/sh")
        .args(["-c", SCRIPT, "test-guardian"])
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("/bin/sh starts")
}

static GUARDIAN: LazyLock<Guardian> = LazyLock::new(|| {
    let folder = std::env::temp_dir().join(random_name("cloudflare-ops-tests"));
    std::fs::create_dir_all(&folder).expect("the temporary folder is writable");
    let mut shell = start_guardian();
    let mut words = shell.stdin.take().expect("standard input is piped");
    writeln!(words, "folder {}", folder.display()).expect("the guardian reads");
    Guardian { words: Mutex::new(words), folder, _shell: shell }
});

/// Folder of this process for everything its stacks write; removed when the process ends.
pub fn process_folder() -> &'static Path {
    &GUARDIAN.folder
}

fn tell(verb: &str, group: Pid) {
    say(&format!("{verb} {}", group.as_raw_nonzero()));
}

fn say(line: &str) {
    let mut words = GUARDIAN.words.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    // A guardian that is gone has nothing left to guard: this process is being torn down.
    let _ = writeln!(words, "{line}");
}

/// Has the containers removed in whose names `name` stands, once this process ends.
pub(crate) fn guard_containers(docker: &Path, name: &str) {
    say(&format!("docker {}\ncontainers {name}", docker.display()));
}

/// A child process and everything in its process group.
pub struct GuardedChild {
    child: Child,
    group: Pid,
    ended: bool,
}

impl GuardedChild {
    /// Starts `command` with standard output piped.
    ///
    /// # Panics
    /// When the program cannot be started.
    pub fn spawn(command: &mut Command) -> Self {
        let child = command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{:?} did not start: {error}", command.get_program()));
        let group = Pid::from_child(&child);
        tell("group", group);
        Self { child, group, ended: false }
    }

    /// Process id of the group's leader.
    pub fn pid(&self) -> i32 {
        self.group.as_raw_nonzero().get()
    }

    /// Standard output, once.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Exit status when the leader has ended by itself.
    pub fn try_wait(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits until the leader ends by itself.
    ///
    /// # Panics
    /// When the operating system does not know the child any more.
    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("a child is waited for once")
    }

    /// Kills the leader alone with SIGKILL and waits for it; what else is in the group must end by itself.
    pub fn kill_leader(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Kills the whole group with SIGKILL and waits for its leader.
    pub fn kill(&mut self) {
        if self.ended {
            return;
        }
        self.ended = true;
        let _ = kill_process_group(self.group, Signal::KILL);
        let _ = self.child.wait();
        tell("ended", self.group);
    }
}

impl Drop for GuardedChild {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn when_its_input_ends_a_guardian_kills_the_groups_that_are_left_and_removes_the_folder() {
        let folder = std::env::temp_dir().join(random_name("guarded"));
        std::fs::create_dir_all(folder.join("deep")).expect("the temporary folder is writable");
        let mut guardian = start_guardian();
        let mut words = guardian.stdin.take().expect("standard input is piped");
        let sleeper = || Command::new("sleep").arg("60").process_group(0).spawn().expect("sleep starts");
        let (mut left, mut ended) = (sleeper(), sleeper());
        writeln!(words, "folder {}", folder.display()).expect("the guardian reads");
        writeln!(words, "group {}\ngroup {}\nended {}", left.id(), ended.id(), ended.id()).expect("it reads");
        drop(words);
        assert!(guardian.wait().expect("it is a child").success());
        assert!(!left.wait().expect("it is a child").success(), "killed");
        assert!(ended.try_wait().expect("it is a child").is_none(), "what ended by itself is not touched");
        ended.kill().expect("it runs");
        ended.wait().expect("it is a child");
        assert!(!folder.exists());
    }
}
