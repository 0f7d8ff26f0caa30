//! The events of one call, as messages of its connection.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use worker::WebSocket;

use super::actor::Inner;
use super::message::{Answer, Told};
use crate::call::Backend;
use crate::events::{Channel, Data, Event, EventSink, Process, ReaderGone};
use crate::sandbox::exec;
use crate::trace::Trace;
use crate::workers::backend::WorkersBackend;
use crate::workers::platform::random;

/// A call or a subscription whose last message was not told yet.
pub(super) struct Open {
    /// Id of the call.
    pub(super) call_id: String,
    /// Tenant that it is made for.
    pub(super) tenant: String,
    is_unwanted: Cell<bool>,
    /// Where it runs, once that is known.
    process: RefCell<Option<Process>>,
    /// Number of its last event.
    pub(super) seq: Cell<u64>,
}

impl Open {
    pub(super) fn new(call_id: String, tenant: String, seq: u64) -> Rc<Self> {
        Rc::new(Self {
            call_id,
            tenant,
            is_unwanted: Cell::new(false),
            process: RefCell::new(None),
            seq: Cell::new(seq),
        })
    }

    pub(super) fn is_unwanted(&self) -> bool {
        self.is_unwanted.get()
    }

    /// Ends it: what runs is killed, and the call tells how it ended.
    pub(super) fn end(&self, inner: &Rc<Inner>) {
        if self.is_unwanted.replace(true) {
            return;
        }
        if let Some(process) = self.process.borrow().clone() {
            self.kill(inner, process);
        }
    }

    fn kill(&self, inner: &Rc<Inner>, process: Process) {
        let (killing, tenant, call_id) = (inner.clone(), self.tenant.clone(), self.call_id.clone());
        let work = async move {
            let trace = Trace::of_request(None, None, random);
            let backend = WorkersBackend::of_object(killing.env.clone(), killing.state.clone(), trace);
            if let Err(error) = exec::kill(&*backend.sandboxes(&tenant), &process, &call_id).await {
                killing.complain("the process of a cancelled call was not seen to be gone", &call_id, &error);
            }
        };
        inner.background(work.boxed_local());
    }
}

/// How events are numbered.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Numbering {
    /// From 1 on.
    Counted,
    /// By how far the log of a job is told.
    ByOffset,
}

pub(super) struct Sink {
    pub(super) inner: Rc<Inner>,
    pub(super) socket: WebSocket,
    /// What the client calls it.
    pub(super) id: String,
    pub(super) open: Rc<Open>,
    pub(super) numbering: Numbering,
    /// Offset of the end of the next piece of stdout, and of stderr: where secrets are masked, it is not as long as it was.
    pub(super) ends: Cell<[u64; 2]>,
}

impl Sink {
    fn number(&self, event: &Event) -> u64 {
        let last = self.open.seq.get();
        let number = match (self.numbering, event) {
            (Numbering::Counted, _) => last + 1,
            (Numbering::ByOffset, Event::Output { channel, .. }) => {
                let [stdout, stderr] = self.ends.get();
                if *channel == Channel::Stdout { stdout } else { stderr }
            }
            (Numbering::ByOffset, _) => last,
        };
        self.open.seq.set(number);
        number
    }

    async fn pass_on(&self, event: Event) -> Result<(), ReaderGone> {
        if matches!(event, Event::Admitted(_)) {
            return Ok(());
        }
        if event == Event::Heartbeat && self.inner.has_fallen_silent(&self.socket) {
            return Err(ReaderGone);
        }
        self.inner.flow.room(&self.socket, &self.inner.platform, || self.open.is_unwanted()).await?;
        let seq = self.number(&event);
        let (name, data) = event.told().unwrap_or(("heartbeat", Data::Nothing {}));
        let told = Told { id: self.id.clone(), seq, event: name, data };
        self.inner.flow.send(&self.socket, &Answer::Told(told))
    }
}

impl EventSink for Sink {
    fn streams(&self) -> bool {
        true
    }

    fn emit(&self, event: Event) -> LocalBoxFuture<'_, Result<(), ReaderGone>> {
        self.pass_on(event).boxed_local()
    }

    fn takes(&self, channel: Channel, end: u64) {
        let [stdout, stderr] = self.ends.get();
        self.ends.set(if channel == Channel::Stdout { [end, stderr] } else { [stdout, end] });
    }

    fn runs_as(&self, process: &Process) {
        let is_known = self.open.process.replace(Some(process.clone())).is_some();
        if !is_known && self.open.is_unwanted() {
            self.open.kill(&self.inner, process.clone());
        }
    }
}
