//! The long-lived children of `cargo xtask dev`, and the promise that none of their descendants outlives it.
//!
//! Each child leads a process group. This process adopts orphans (it is a subreaper), so that whatever leaves its group, or
//! outlives its parent, still turns up as a descendant here and is ended too. Should this process itself be killed, the
//! kernel sends the direct children SIGTERM, at which both end theirs.

use crate::run;
use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

pub(crate) struct Member {
    pub(crate) name: &'static str,
    pub(crate) log: PathBuf,
    child: Child,
}

#[derive(Default)]
pub(crate) struct Family {
    members: Vec<Member>,
}

impl Family {
    pub(crate) fn new() -> Result<Self> {
        #[cfg(target_os = "linux")]
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).context("cannot adopt orphans")?;
        Ok(Self::default())
    }

    /// Starts a child whose output goes to a log file of its own.
    pub(crate) fn start(&mut self, name: &'static str, mut command: Command, log: &Path) -> Result<()> {
        use std::os::unix::process::CommandExt;
        let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).process_group(0);
        #[cfg(target_os = "linux")]
        {
            // SAFETY: between fork and exec only one prctl system call is made, which is async-signal-safe.
            unsafe {
                command.pre_exec(|| {
                    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
                    Ok(())
                });
            }
        }
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        self.members.push(Member { name, log: log.to_owned(), child });
        Ok(())
    }

    /// Fails when a child has ended, with the end of what it said.
    pub(crate) fn check(&mut self) -> Result<()> {
        for member in &mut self.members {
            if let Some(status) = member.child.try_wait().context("cannot wait for a child")? {
                bail!(
                    "{} ended ({status})\n{}\n  whole log: {}",
                    member.name,
                    run::tail(&member.log, 25),
                    member.log.display()
                );
            }
        }
        Ok(())
    }

    /// Whether a program of that name runs below this process.
    pub(crate) fn has(&self, program: &str) -> bool {
        let mut pending = children_of(std::process::id());
        while let Some(pid) = pending.pop() {
            let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
            if name.trim_ascii_end() == program.as_bytes() {
                return true;
            }
            pending.extend(children_of(pid));
        }
        false
    }

    /// Takes note of adopted orphans that have ended, so that they do not stay as zombies.
    pub(crate) fn reap_orphans(&self) {
        use rustix::process::{Pid, WaitOptions, waitpid};
        let members: Vec<Pid> = self.members.iter().map(|member| Pid::from_child(&member.child)).collect();
        for child in children().into_iter().filter(|child| !members.contains(child)) {
            let _ = waitpid(Some(child), WaitOptions::NOHANG);
        }
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        // The Worker first: what it still does, it does against a living host.
        for member in self.members.iter_mut().rev() {
            run::end_group(&mut member.child);
        }
        end_descendants();
    }
}

/// Kills what is left below this process, until nothing is.
fn end_descendants() {
    use rustix::process::{Signal, WaitOptions, kill_process, wait};
    for _ in 0..100 {
        let children = children();
        if children.is_empty() {
            return;
        }
        for child in children {
            let _ = kill_process(child, Signal::KILL);
        }
        // Reaps the killed, whose own children are adopted by then.
        while matches!(wait(WaitOptions::NOHANG), Ok(Some(_))) {}
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// The direct children of all threads of this process; Linux only, elsewhere the groups have to do.
fn children() -> Vec<rustix::process::Pid> {
    let own = children_of(std::process::id());
    own.into_iter().filter_map(|pid| rustix::process::Pid::from_raw(pid.cast_signed())).collect()
}

/// The same of any process.
fn children_of(pid: u32) -> Vec<u32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let lists = threads.flatten().filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>()).collect()
}
