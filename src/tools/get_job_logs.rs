//! getJobLogs: what the command of a job wrote, by offset, or followed as it comes.

use std::rc::Rc;
use std::time::Duration;

use sandbox_api::{EncodedBytes, LogChannel};
use serde::Deserialize;
use utoipa::ToSchema;

use super::job_info::own;
use crate::error::{Error, ErrorCode, Result};
use crate::events::{Channel, Event, EventSink, ReaderGone};
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::job::record::{JobLog, LogQuestion};
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::tenant::admission::SandboxClaim;

/// Bytes of one answer when the caller does not say.
const DEFAULT_LIMIT: u32 = 65_536;

/// Bytes asked for at once while logs are followed.
const FOLLOWED_AT_ONCE: u64 = 262_144;

/// Seconds that logs are followed for when the caller does not say.
const DEFAULT_FOLLOW_SECONDS: f64 = 300.0;

/// How long the job's object waits for something new, in milliseconds.
const WAIT: i64 = 4_000;

/// Which job, and which part of its logs.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Id of the job.
    #[schema(min_length = 1, max_length = 64)]
    pub job_id: String,
    /// First byte to read: `nextOffset` of the answer before; default 0.
    #[serde(default)]
    pub offset: Option<u64>,
    /// Most bytes of an answer that is not followed; default 65536.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 1_048_576, default = 65_536)]
    pub limit: Option<u32>,
    /// Whether a streamed answer goes on with what comes; default false.
    #[serde(default)]
    pub follow: Option<bool>,
    /// Seconds that logs are followed for; default 300.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 3600, default = 300)]
    pub timeout: Option<f64>,
}

pub struct GetJobLogs;

impl Tool for GetJobLogs {
    const NAME: &'static str = "getJobLogs";
    const DESCRIPTION: &'static str = "Reads what the command of a job wrote to stdout and stderr, while it runs and after, from an offset that counts the bytes of both. \
        The newest 4 MiB are kept. With `follow`, and where the answer is streamed, output and changes of its state come as events until the job is over or the timeout is; \
        otherwise the answer holds what there is. Needs the rights of the job's tool.";
    const ROUTES: &'static [Route] = &[Route { method: Method::Get, path: "/v1/jobs/{jobId}/logs" }];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Read a job's logs",
        read_only_hint: true,
        destructive_hint: false,
        idempotent_hint: true,
        open_world_hint: false,
    };
    const GUARDRAILS: Guardrails = Guardrails {
        role: Role::Viewer,
        scopes: &[Scope::JobsRead],
        approval: Approval::NotNeeded,
        default_timeout: 30,
        maximum_timeout: 3600,
        output_cap_bytes: 16 * 1024 * 1024,
        rate_class: RateClass::Read,
        unrecorded_arguments: &[],
        told_once: &[],
    };
    const EXECUTION: Execution = Execution::Inline;

    type Input = Input;
    type Output = JobLog;

    fn claim(_input: &Input, _facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        Ok(SandboxClaim::None)
    }

    fn timeout_seconds(input: &Input) -> f64 {
        match input.follow {
            Some(true) => input.timeout.unwrap_or(DEFAULT_FOLLOW_SECONDS),
            _ => f64::from(Self::GUARDRAILS.default_timeout),
        }
    }

    async fn call(context: Context, input: Input, events: Rc<dyn EventSink>) -> Result<JobLog> {
        let job_id = own(&context, &input.job_id).await?.job.job_id;
        let offset = input.offset.unwrap_or(0);
        if events.streams() && input.follow == Some(true) {
            let time = Duration::try_from_secs_f64(Self::timeout_seconds(&input)).map_err(Error::internal)?;
            follow(&context, &job_id, offset, time, &events).await
        } else {
            let limit = u64::from(input.limit.unwrap_or(DEFAULT_LIMIT));
            context.services.jobs.log(&job_id, &LogQuestion { offset, limit, wait: 0, known: None }).await
        }
    }
}

/// Passes on what comes until the job is over or the time is.
async fn follow(
    context: &Context,
    job_id: &str,
    offset: u64,
    time: Duration,
    events: &Rc<dyn EventSink>,
) -> Result<JobLog> {
    let platform = &context.services.platform;
    let until = platform.now_millis() + i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
    let mut next_offset = offset;
    let mut truncated_before = None;
    let mut known = None;
    let mut writer = None;
    loop {
        let wait = WAIT.min(until - platform.now_millis()).max(0);
        let question = LogQuestion { offset: next_offset, limit: FOLLOWED_AT_ONCE, wait, known };
        let log = context.services.jobs.log(job_id, &question).await?;
        let is_news = known != Some(log.state);
        known = Some(log.state);
        // That it is over is told behind what it wrote.
        if is_news && !log.state.is_over() {
            events.emit(Event::State(log.state)).await.map_err(left)?;
        }
        next_offset = log.next_offset;
        truncated_before = truncated_before.or(log.truncated_before);
        if log.chunks.is_empty() && !is_news {
            events.emit(Event::Heartbeat).await.map_err(left)?;
        }
        for chunk in log.chunks {
            let encoded = EncodedBytes { data: chunk.data, encoding: chunk.encoding };
            let bytes = encoded.decode().ok_or_else(|| Error::internal("a piece of a log is not readable"))?;
            let channel = match chunk.channel {
                LogChannel::Stdout => Channel::Stdout,
                LogChannel::Stderr => Channel::Stderr,
            };
            // Offsets count both channels: what is told up to one of them is told whole.
            if writer.replace((channel, chunk.step.clone())).is_some_and(|last| last != (channel, chunk.step.clone())) {
                events.emit(Event::Boundary).await.map_err(left)?;
            }
            events
                .emit(Event::Output { channel, bytes, offset: chunk.offset, step: chunk.step })
                .await
                .map_err(left)?;
        }
        if log.ended {
            events.emit(Event::Boundary).await.map_err(left)?;
            events.emit(Event::State(log.state)).await.map_err(left)?;
        }
        if log.ended || platform.now_millis() >= until {
            let (ended, state) = (log.ended, log.state);
            return Ok(JobLog { chunks: Vec::new(), truncated_before, next_offset, ended, state });
        }
    }
}

fn left(_: ReaderGone) -> Error {
    Error::new(ErrorCode::Interrupted, "the reader of the logs left; the job goes on")
}
