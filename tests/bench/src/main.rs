//! What a call costs, on the real stack: the built Worker in workerd (without wrangler's proxy), a real `sandboxd host`, real
//! commands. `cargo xtask bench` builds and runs it; `docs/performance.md` says what the numbers mean.
//!
//! Compared things are measured in turn within one run, so that a busy machine is as unkind to one as to the other; what is
//! told are medians, quartiles, and the median of what each round's pair comes to. A target that is missed fails the run.
//! `--smoke` does everything a few times, to see that it works, and judges nothing.
//!
//! Left out: Cloudflare's network, Containers, and load by many callers for a long time.

mod calls;
mod daemon;
mod machine;
mod report;

use std::path::PathBuf;
use std::process::ExitCode;

use machine::Machine;
use report::Report;

/// How often each thing is done.
#[derive(Clone, Copy)]
pub(crate) struct Effort {
    /// Rounds before those that count: they fill caches, and let workerd compile what it runs often.
    pub(crate) warm_up: usize,
    /// Rounds of compared calls.
    pub(crate) rounds: usize,
    /// Starts of the daemon.
    pub(crate) starts: usize,
    /// Commands before the daemon's memory is read again.
    pub(crate) execs: usize,
    /// Size of the file that passes through the daemon.
    pub(crate) file_bytes: usize,
    /// Sandboxes made at once.
    pub(crate) sandboxes: usize,
    /// How often that many are made.
    pub(crate) crowds: usize,
}

const WHOLE: Effort =
    Effort { warm_up: 300, rounds: 400, starts: 40, execs: 400, file_bytes: 300_000_000, sandboxes: 50, crowds: 3 };
const SMOKE: Effort =
    Effort { warm_up: 1, rounds: 4, starts: 2, execs: 5, file_bytes: 3_000_000, sandboxes: 3, crowds: 1 };

fn main() -> ExitCode {
    let (mut smoke, mut only, mut output) = (false, None, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--smoke" => smoke = true,
            "--only" => only = arguments.next(),
            "--output" => output = arguments.next().map(PathBuf::from),
            other => panic!("{other} is no argument of this measurement"),
        }
    }
    let effort = if smoke { SMOKE } else { WHOLE };
    let (mut report, machine) = (Report::default(), Machine::now());
    let wanted = |part: &str| only.as_deref().is_none_or(|only| only == part);
    if wanted("sandboxd") {
        daemon::measure(effort, &mut report);
    }
    if wanted("calls") {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
        runtime.block_on(calls::measure(effort, &mut report));
    }
    let machine = machine.measured();
    print!("{}", report.table(&machine));
    if let Some(path) = output {
        std::fs::create_dir_all(path.parent().expect("a file lies in a folder")).expect("the folder can be made");
        std::fs::write(&path, report.json(&machine, smoke)).expect("the file can be written");
    }
    if smoke {
        println!("\nA smoke run: it shows that the measurement works, and its numbers mean nothing.");
        return ExitCode::SUCCESS;
    }
    match report.missed() {
        missed if missed.is_empty() => ExitCode::SUCCESS,
        missed => {
            println!("\nAbove the target: {}", missed.join("; "));
            ExitCode::FAILURE
        }
    }
}
