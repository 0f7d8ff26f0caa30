//! Who follows an attempt while it runs: its own object, which writes down where it runs and ends what is not wanted any more.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;

use super::actor::Inner;
use super::run;
use crate::call::Backend;
use crate::error::Result;
use crate::events::{Channel, Event, EventSink, Process, ReaderGone};
use crate::platform::Platform;
use crate::sandbox::exec;
use crate::trace::Trace;
use crate::workers::backend::WorkersBackend;
use crate::workers::platform::random;

/// How long an answer waits until a process is seen to be gone, in milliseconds.
pub(super) const LONGEST_WAIT: i64 = 6_000;

/// Between two looks.
pub(super) const LOOK: Duration = Duration::from_millis(100);

pub(super) struct Follower {
    inner: Rc<Inner>,
    /// Offset of the end of the next piece of stdout, and of stderr.
    ends: Cell<[u64; 2]>,
}

impl Follower {
    pub(super) fn new(inner: Rc<Inner>) -> Self {
        Self { inner, ends: Cell::new([0, 0]) }
    }
}

impl EventSink for Follower {
    fn streams(&self) -> bool {
        true
    }

    fn emit(&self, event: Event) -> LocalBoxFuture<'_, std::result::Result<(), ReaderGone>> {
        if let Event::Output { channel, bytes, .. } = event {
            let [stdout, stderr] = self.ends.get();
            let end = if channel == Channel::Stdout { stdout } else { stderr };
            if let Err(error) = self.inner.keep_log(channel, &bytes, channel.name(), end) {
                self.inner.complain("what a job wrote was not kept", &error);
            }
        }
        let is_wanted = !self.inner.is_unwanted.get();
        futures_util::future::ready(if is_wanted { Ok(()) } else { Err(ReaderGone) }).boxed_local()
    }

    fn takes(&self, channel: Channel, end: u64) {
        let [stdout, stderr] = self.ends.get();
        self.ends.set(if channel == Channel::Stdout { [end, stderr] } else { [stdout, end] });
    }

    fn runs_as(&self, process: &Process) {
        if let Err(error) = self.inner.note_process(process) {
            self.inner.complain("where a job runs was not written down", &error);
        }
    }
}

impl Inner {
    fn note_process(self: &Rc<Self>, process: &Process) -> Result<()> {
        let mut stored = self.existing()?;
        let was_silent = stored.silent_since.take().is_some();
        if stored.process.as_ref() == Some(process) {
            return if was_silent { self.save(&stored) } else { Ok(()) };
        }
        stored.process = Some(process.clone());
        let is_news = stored.runs_in(process.sandbox_id.clone());
        self.save(&stored)?;
        if is_news {
            let telling = self.clone();
            // What is not told now is told at the end.
            self.platform.background(async move { drop(run::report(&telling).await) }.boxed_local());
        }
        Ok(())
    }
}

/// Has the process of the attempt killed, and waits a while for its end. What begins only later ends by itself: nobody follows it.
pub(super) async fn end(inner: &Rc<Inner>) -> Result<()> {
    inner.is_unwanted.set(true);
    let until = inner.platform.now_millis() + LONGEST_WAIT;
    let mut is_asked = false;
    loop {
        let stored = inner.existing()?;
        if stored.job.state.is_over() || inner.platform.now_millis() >= until {
            return Ok(());
        }
        if let (false, Some(process)) = (is_asked, stored.process.clone()) {
            is_asked = true;
            let (killing, tenant, id) = (inner.clone(), stored.order.tenant.clone(), stored.attempt_id());
            inner.platform.background(async move { kill(&killing, &tenant, &id, process).await }.boxed_local());
        }
        inner.platform.sleep(LOOK).await;
    }
}

/// Has the process of an attempt killed.
pub(super) async fn kill(inner: &Rc<Inner>, tenant: &str, id: &str, process: Process) {
    let trace = Trace::of_request(None, None, random);
    let backend = WorkersBackend::of_object(inner.env.clone(), inner.state.clone(), trace);
    // The attempt itself tells how the process ended.
    if let Err(error) = exec::kill(&*backend.sandboxes(tenant), &process, id).await {
        inner.complain("the process of a job that is not wanted any more was not seen to be gone", &error);
    }
}
