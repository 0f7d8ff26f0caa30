//! A call that waits for an approval: asked about, and answered once its caller comes back.

use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};

use super::approval::{self, Retry, Round, Waiting};
use super::envelope::Fault;
use super::result;
use crate::api::rest::{Door, Shared};
use crate::call::{Backend, CallHead, Reply, ToolCall};
use crate::error::{Error, ErrorCode, Result};
use crate::events::NoEvents;
use crate::tenant::credential::Principal;
use crate::workers::platform::uuid;

/// Longest part of a wait that is asked for at once.
const LONGEST_PART: Duration = Duration::from_secs(5);

/// A call of a client that can ask its user, or that was asked about.
pub(super) struct Asking {
    /// Whether the client can ask.
    asks: bool,
    principal: Principal,
    tool: String,
    /// As JSON.
    arguments: String,
}

impl Asking {
    pub(super) fn new(asks: bool, principal: Principal, tool: &str, arguments: &Value) -> Self {
        Self { asks, principal, tool: tool.to_owned(), arguments: arguments.to_string() }
    }

    fn waiting<'a>(&'a self, door: &'a Door) -> Waiting<'a> {
        let Self { principal, tool, arguments, .. } = self;
        Waiting { signer: door.backend.signer(), principal, tool, arguments }
    }

    /// The question about a job, where it waits for an approval.
    pub(super) fn question(&self, door: &Door, job: &Value, round: &Round) -> Option<Value> {
        if !self.asks || job.get("state").and_then(Value::as_str) != Some("awaiting_approval") {
            return None;
        }
        let expires_at = job.get("approval").and_then(|approval| approval.get("expiresAt")).and_then(Value::as_str);
        let state = self.waiting(door).state(round)?;
        Some(approval::question(&self.tool, &round.job_id, expires_at, &state))
    }

    /// How the job stands that the call became. Who waits is answered once it is over, or asked again.
    pub(super) async fn answer(
        &self,
        door: &Door,
        shared: &Rc<Shared>,
        head: CallHead,
        retry: &Retry,
    ) -> Result<Result<Value, Fault>> {
        let round = match self.waiting(door).round(&retry.state) {
            Ok(round) => round,
            Err(fault) => return Ok(Err(fault)),
        };
        match self.stands(door, shared, head, &round.job_id, retry.waits).await {
            Ok(job) => {
                let next = round.next().filter(|_| retry.waits);
                let question = next.and_then(|round| self.question(door, &job, &round));
                Ok(Ok(question.unwrap_or_else(|| result::of_job(&job))))
            }
            Err(error) if error.code == ErrorCode::Unauthenticated => Err(error),
            Err(error) => Ok(result::called(Err(error), &door.request_id)),
        }
    }

    /// The job as getJob tells it; of one that is waited for once it is over, or after a while.
    async fn stands(
        &self,
        door: &Door,
        shared: &Rc<Shared>,
        head: CallHead,
        job_id: &str,
        waits: bool,
    ) -> Result<Value> {
        let again = CallHead { id: uuid(), ..head.clone() };
        let patience = head.patience.unwrap_or_default();
        let job = look(door, shared, head, job_id).await?;
        if !waits || job.get("endedAt").is_some() {
            return Ok(job);
        }
        self.wait(door, job_id, patience).await;
        look(door, shared, again, job_id).await
    }

    /// Until a job is over, or the time is.
    async fn wait(&self, door: &Door, job_id: &str, time: Duration) {
        let (platform, jobs) = (door.backend.platform(), door.backend.jobs(&self.principal.tenant));
        let until = platform.now_millis() + i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        loop {
            let left = Duration::from_millis(u64::try_from(until - platform.now_millis()).unwrap_or(0));
            if left.is_zero() {
                return;
            }
            match jobs.wait(job_id, left.min(LONGEST_PART)).await {
                Ok(told) if !told.job.state.is_over() => {}
                // It is looked at again, and an object that does not answer is told of then.
                _ => return,
            }
        }
    }
}

/// How a job stands, by a call like any other.
async fn look(door: &Door, shared: &Rc<Shared>, head: CallHead, job_id: &str) -> Result<Value> {
    let head = CallHead { idempotency_key: None, patience: None, ..head };
    let call = ToolCall { head, tool: "getJob".to_owned(), arguments: Ok(json!({ "jobId": job_id })) };
    let (backend, shared) = (door.backend.clone(), shared.clone());
    let work = async move { shared.registry.call(&*backend, call, Rc::new(NoEvents)).await };
    match door.note(door.to_its_end(work).await?)? {
        Reply::Output(job) => Ok(job),
        Reply::Job(_) => {
            Err(Error::new(ErrorCode::Forbidden, "what this key asks of its jobs has to be approved first"))
        }
    }
}
