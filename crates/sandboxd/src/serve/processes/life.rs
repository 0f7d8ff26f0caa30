//! The task of one process, from its first run until nothing of it is left and nothing will be started again.

use std::sync::Arc;

use tokio::net::unix::pipe;
use tokio::time::sleep_until;

use super::input::feed;
use super::process::{Phase, Process};
use crate::serve::Settings;
use crate::serve::tree::{self, Input, Refused, Run, Started, Supervisors};

/// One run of a process's command.
pub(super) fn start(
    process: &Process,
    settings: &Settings,
    supervisors: &Arc<Supervisors>,
) -> Result<Started, Refused> {
    let input = if process.request.keep_stdin { Input::Pipe } else { Input::Nothing };
    tree::start(&process.command, input, settings, supervisors)
}

/// Runs it, again and again where that is its policy.
pub(super) async fn live(
    process: Arc<Process>,
    first: Started,
    settings: Arc<Settings>,
    supervisors: Arc<Supervisors>,
) {
    run(&process, first).await;
    while until_restart(&process).await {
        match start(&process, &settings, &supervisors) {
            Ok(started) => {
                process.runs_again(started.pid);
                run(&process, started).await;
            }
            Err(Refused::Program(_, text)) => process.not_restarted(text.trim_end().to_owned()),
            Err(Refused::Request(problem)) => process.not_restarted(problem.message().to_owned()),
        }
    }
}

/// Watches one run to its very end, and feeds it meanwhile.
async fn run(process: &Arc<Process>, mut started: Started) {
    let input = started.input.take();
    let watch = Run::new(process.clone(), started).run();
    tokio::select! {
        () = watch => {}
        () = feed_then_idle(process, input) => {}
    }
}

async fn feed_then_idle(process: &Process, input: Option<pipe::Sender>) {
    if let Some(input) = input {
        feed(process, input).await;
    }
    std::future::pending().await
}

/// Waits for the time of the next run; false when there is none.
async fn until_restart(process: &Process) -> bool {
    loop {
        let (phase, killed) = {
            let state = process.state();
            (state.phase, state.is_killed())
        };
        let Phase::Restarting(at) = phase else { return false };
        if killed {
            process.stays_ended();
            return false;
        }
        if at <= tokio::time::Instant::now() {
            return true;
        }
        tokio::select! {
            () = sleep_until(at) => {}
            () = process.attention.notified() => {}
        }
    }
}
