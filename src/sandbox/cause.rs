//! On whose behalf the object of a sandbox works, and how long the starts take that its callers wait for.
//!
//! Requests overlap, and a start is shared by all who wait for it: it belongs to the trace of whoever asked last before it began.
//! How long it took is told to everyone whose request was under way when it ended.

use std::cell::{Cell, RefCell};

use worker::{Request, Response};

use crate::trace::{TRACEPARENT, TRACESTATE, Trace};
use crate::workers::platform::random;

/// Milliseconds of the start that a request waited for.
pub const START_MILLIS_HEADER: &str = "x-sandbox-start-ms";

/// What the object remembers of it.
#[derive(Default)]
pub struct Cause {
    trace: RefCell<Option<Trace>>,
    starts: Cell<u64>,
    last_start_ms: Cell<i64>,
}

impl Cause {
    /// Notes who asks. Answers the number of starts so far, for [`Self::tell`].
    pub fn asked(&self, request: &Request) -> u64 {
        if let Some(trace) = trace_of(request) {
            self.trace.borrow_mut().replace(trace);
        }
        self.starts.get()
    }

    /// Headers of a request that leaves for the machine.
    pub fn headers(&self) -> Vec<(&'static str, String)> {
        self.trace.borrow().as_ref().map(|trace| trace.child(random()).headers()).unwrap_or_default()
    }

    /// A start has ended, one way or the other.
    pub fn start_ended(&self, millis: i64) {
        self.starts.set(self.starts.get().wrapping_add(1));
        self.last_start_ms.set(millis);
    }

    /// Adds to an answer how long the start took that ended since `before`.
    pub fn tell(&self, response: Response, before: u64) -> worker::Result<Response> {
        if self.starts.get() != before {
            response.headers().set(START_MILLIS_HEADER, &self.last_start_ms.get().to_string())?;
        }
        Ok(response)
    }
}

/// The span of a request from the Worker. One without a trace begins none.
pub fn trace_of(request: &Request) -> Option<Trace> {
    let header = |name: &str| request.headers().get(name).ok().flatten();
    let traceparent = header(TRACEPARENT)?;
    Some(Trace::of_request(Some(&traceparent), header(TRACESTATE).as_deref(), random))
}
