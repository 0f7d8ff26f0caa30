//! Calls that no door makes: those that jobs carry out, and those that pipelines make.

use std::rc::Rc;

use serde_json::Value;

use super::{Answered, Backend, CallHead, Reply, ToolCall, Way, signatures};
use crate::error::{Error, ErrorCode};
use crate::events::{EventSink, NoEvents, Resumed};
use crate::job::record::StepOf;
use crate::registry::Registry;
use crate::tenant::admission::Manner;
use crate::tenant::credential::{Presented, Principal};
use crate::trace::Trace;

/// A call that a step of a pipeline makes. It becomes a job of its own, with the rights that the pipeline's key has now.
pub struct StepCall {
    pub id: String,
    /// Who asked for the pipeline.
    pub who: Principal,
    pub tool: String,
    pub arguments: Value,
    pub of: StepOf,
    pub trace: Trace,
}

/// A call that a schedule makes. It becomes a job, with the rights that the schedule's key has now.
pub struct ScheduledCall {
    pub id: String,
    /// Whose schedule it is.
    pub who: Principal,
    pub tool: String,
    pub arguments: Value,
    pub schedule_id: String,
    pub trace: Trace,
}

/// A call that a job carries out.
pub struct Attempt {
    pub id: String,
    /// Who asked for the job.
    pub who: Principal,
    pub tool: String,
    pub arguments: Value,
    pub arguments_signature: Option<String>,
    /// The process that it runs as already.
    pub resumes: Option<Resumed>,
    pub trace: Trace,
}

/// Door of the calls that jobs carry out.
const JOB_DOOR: &str = "job";

/// Door of the calls that pipelines make.
const PIPELINE_DOOR: &str = "pipeline";

/// Door of the calls that schedules make.
const SCHEDULE_DOOR: &str = "schedule";

/// 409: the arguments of a job are not those that it was made with, or no secret is left that signed them.
fn changed() -> Error {
    Error::new(ErrorCode::Conflict, "the arguments of the job are not those that were signed when it was asked for")
}

impl Registry {
    /// Makes the call of a step, which is admitted as any other; the same one again finds the job that it became.
    pub async fn step(&self, backend: &dyn Backend, step: StepCall) -> Answered<Reply<Value>> {
        let StepCall { id, who, tool, arguments, of, trace } = step;
        let head = CallHead::plain(id, PIPELINE_DOOR, Presented::default(), trace);
        let call = ToolCall { head, tool, arguments: Ok(arguments) };
        let way = Way { manner: Manner::Deferred, step_of: Some(of), ..Way::default() };
        self.carry_out(backend, call, Ok(who), way, Rc::new(NoEvents)).await
    }

    /// Makes the call of a schedule, which is admitted as any other; the same one again finds the job that it became.
    pub async fn scheduled(&self, backend: &dyn Backend, call: ScheduledCall) -> Answered<Reply<Value>> {
        let ScheduledCall { id, who, tool, arguments, schedule_id, trace } = call;
        let head = CallHead::plain(id, SCHEDULE_DOOR, Presented::default(), trace);
        let call = ToolCall { head, tool, arguments: Ok(arguments) };
        let way = Way { manner: Manner::Deferred, schedule_id: Some(schedule_id), ..Way::default() };
        self.carry_out(backend, call, Ok(who), way, Rc::new(NoEvents)).await
    }

    /// Carries out what a job was asked for, by whom it was asked. The arguments must be those that were signed then.
    pub async fn attempt(
        &self,
        backend: &dyn Backend,
        attempt: Attempt,
        events: Rc<dyn EventSink>,
    ) -> Answered<Reply<Value>> {
        let Attempt { id, who, tool, arguments, arguments_signature, resumes, trace } = attempt;
        let signed = signatures(backend, &tool, &arguments.to_string());
        let is_signed = arguments_signature.is_some_and(|signature| signed.contains(&signature));
        let arguments = if is_signed { Ok(arguments) } else { Err(changed()) };
        let head = CallHead::plain(id, JOB_DOOR, Presented::default(), trace);
        let call = ToolCall { head, tool, arguments };
        let way = Way { manner: Manner::Attempt, resumes, ..Way::default() };
        self.carry_out(backend, call, Ok(who), way, events).await
    }
}
