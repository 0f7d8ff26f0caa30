//! The turn of one step of a pipeline, or of its roll-back: asked for, followed to its end, written down.

use std::rc::Rc;

use sandbox_api::{EncodedBytes, LogChannel};
use serde_json::{Map, Value};

use super::actor::Inner;
use super::record::{LogQuestion, StepOf, Told};
use super::state::State;
use super::stored::{APPROVAL_LOOK, Stored};
use crate::api::rest;
use crate::call::{Backend, Reply, StepCall};
use crate::error::{Error, ErrorCode, Result};
use crate::events::Channel;
use crate::plan::{self, Call, Ending, Progress, Refused, SHORTEST_PAUSE, Step, StepState};
use crate::platform::Platform;
use crate::services::Jobs;
use crate::trace::Trace;
use crate::workers::backend::WorkersBackend;
use crate::workers::platform::random;

/// Bytes of a step's log that are copied at once.
const COPIED_AT_ONCE: u64 = 262_144;

/// How long the job of a step waits for something new to tell, in milliseconds.
const STEP_WAIT: i64 = 4_000;

/// The call of one step, or of its roll-back.
pub(super) struct Turn<'a> {
    inner: &'a Rc<Inner>,
    stored: &'a Stored,
    backend: WorkersBackend,
    jobs: Rc<dyn Jobs>,
    step: &'a Step,
    index: usize,
    is_roll_back: bool,
    call_id: String,
}

impl<'a> Turn<'a> {
    pub(super) fn new(
        inner: &'a Rc<Inner>,
        stored: &'a Stored,
        step: &'a Step,
        index: usize,
        is_roll_back: bool,
    ) -> Result<Self> {
        let trace = Trace::of_request(None, None, random);
        let backend = WorkersBackend::of_object(inner.env.clone(), inner.state.clone(), trace);
        let jobs = backend.jobs(&stored.order.tenant);
        let call_id = plan::call_id(&stored.attempt_id(), index, is_roll_back);
        Ok(Self { inner, stored, backend, jobs, step, index, is_roll_back, call_id })
    }

    /// Asks for it, and follows it to its end. Where it has to wait, when to go on.
    pub(super) async fn carry_out(&self) -> Result<Option<i64>> {
        // 1. That it is asked for is stored before it is, so that it is told, and its output is that of this step.
        let call = self.begun()?;
        // 2. The same call again finds the job that it became; once that was seen there is no need to ask.
        if !call.is_a_job
            && let Err(error) = self.ask().await
        {
            return self.refused(call, error);
        }
        // 3. Its end.
        match self.follow().await {
            Ok(Some(told)) => self.over(call, &told).map(|()| None),
            Ok(None) => Ok(Some(self.now() + APPROVAL_LOOK)),
            Err(error) if error.code == ErrorCode::NotFound => {
                self.keep(Call { state: StepState::Interrupted, has_begun: true, error: Some(error), ..call })?;
                Ok(None)
            }
            Err(error) => {
                self.inner.complain("the job of a step was not heard of", &error);
                Ok(Some(self.now() + SHORTEST_PAUSE))
            }
        }
    }

    fn now(&self) -> i64 {
        self.inner.platform.now_millis()
    }

    fn progress(&self) -> Result<Progress> {
        let progress = self.inner.progress(self.index + 1)?;
        Ok(progress.into_iter().nth(self.index).unwrap_or_default())
    }

    fn known(&self) -> Result<Call> {
        let Progress { call, roll_back } = self.progress()?;
        Ok(if self.is_roll_back { roll_back.unwrap_or_default() } else { call })
    }

    fn begun(&self) -> Result<Call> {
        let known = self.known()?;
        if known.call_id.as_ref() == Some(&self.call_id) {
            return Ok(known);
        }
        let call = Call {
            state: StepState::Running,
            call_id: Some(self.call_id.clone()),
            started_at: Some(self.now()),
            ..Call::default()
        };
        self.inner.note_log_step(&plan::label(self.step, self.is_roll_back))?;
        self.keep(call.clone())?;
        Ok(call)
    }

    /// Its job was seen in that state.
    fn seen(&self, state: State) -> Result<()> {
        let known = self.known()?;
        let seen = known.seen(state);
        if seen == known { Ok(()) } else { self.keep(seen) }
    }

    fn keep(&self, call: Call) -> Result<()> {
        let mut progress = self.progress()?;
        if self.is_roll_back {
            if call.state == StepState::Succeeded && progress.call.state == StepState::Succeeded {
                progress.call.state = StepState::RolledBack;
            }
            progress.roll_back = Some(call);
        } else {
            progress.call = call;
        }
        self.inner.keep_progress(self.index, &progress)
    }

    async fn ask(&self) -> Result<()> {
        let undo = self.step.roll_back.as_ref().filter(|_| self.is_roll_back);
        let (tool, arguments) =
            undo.map_or((&self.step.tool, &self.step.arguments), |undo| (&undo.tool, &undo.arguments));
        let step = StepCall {
            id: self.call_id.clone(),
            who: self.stored.principal(),
            tool: tool.clone(),
            arguments: Value::Object(arguments.clone()),
            of: StepOf { job_id: self.stored.job.job_id.clone(), step: plan::label(self.step, self.is_roll_back) },
            trace: Trace::of_request(None, None, random),
        };
        match rest::shared()?.registry.step(&self.backend, step).await.result {
            Ok(Reply::Job(_)) => Ok(()),
            Ok(Reply::Output(_)) => Err(Error::internal("a step did not become a job")),
            Err(error) => Err(error),
        }
    }

    /// It was refused: for now, or for good.
    fn refused(&self, call: Call, error: Error) -> Result<Option<i64>> {
        let is_unwanted = !self.is_roll_back && self.inner.wish()?.is_some();
        match plan::refused(call, error, is_unwanted, self.now()) {
            Refused::AskAgain(at) => Ok(Some(at)),
            Refused::Over(call) => self.keep(call).map(|()| None),
        }
    }

    /// Copies what its job writes until that is over; nothing where it waits for an approval.
    async fn follow(&self) -> Result<Option<Told>> {
        let mut is_cancelled = self.is_roll_back;
        loop {
            if let (false, Some(wish)) = (is_cancelled, self.inner.wish()?) {
                is_cancelled = match self.jobs.cancel(&self.call_id, &wish).await {
                    Ok(_) => true,
                    // What cannot be stopped is waited for.
                    Err(error) => error.code == ErrorCode::Conflict,
                };
            }
            let told = self.jobs.describe(&self.call_id).await?;
            self.seen(told.job.state)?;
            let wait = if told.job.state.is_over() { 0 } else { STEP_WAIT };
            if told.job.state == State::AwaitingApproval {
                return Ok(None);
            }
            if self.copy(wait).await? && told.job.state.is_over() {
                return Ok(Some(told));
            }
        }
    }

    /// Copies the next part of its log; true at the end of it.
    async fn copy(&self, wait: i64) -> Result<bool> {
        let offset = self.inner.copied(&self.call_id)?;
        let log =
            self.jobs.log(&self.call_id, &LogQuestion { offset, limit: COPIED_AT_ONCE, wait, known: None }).await?;
        for chunk in log.chunks {
            let encoded = EncodedBytes { data: chunk.data, encoding: chunk.encoding };
            let bytes = encoded.decode().ok_or_else(|| Error::internal("a piece of a log is not readable"))?;
            let channel = match chunk.channel {
                LogChannel::Stdout => Channel::Stdout,
                LogChannel::Stderr => Channel::Stderr,
            };
            let end = chunk.offset + u64::try_from(bytes.len()).unwrap_or(0);
            self.inner.keep_log(channel, &bytes, &self.call_id, end)?;
        }
        Ok(log.ended)
    }

    fn over(&self, call: Call, told: &Told) -> Result<()> {
        let nothing = Map::new();
        let expect = if self.is_roll_back { &nothing } else { &self.step.expect };
        let shared = rest::shared()?;
        let entry = shared.registry.get(&told.job.tool);
        let may_have_acted = entry.is_none_or(|entry| entry.may_have_acted(&Ending::of(told)));
        let call = plan::ended(call, &told.job, may_have_acted, told.output.as_ref(), expect);
        self.keep(Call { started_at: told.job.begun_at.or(call.started_at), ..call })
    }
}
