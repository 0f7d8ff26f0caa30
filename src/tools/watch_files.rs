//! watchFiles: what happens to the files of a directory, as it happens or in one answer.
//!
//! ```text
//!  GET /v1/watches/… ──▶ ready, change… ──▶ end: overflow, gone, …      streamed: every change is an event
//!                              │                                        buffered: the first changes, together
//!                              └─ breaks or falls silent: an error, never an end
//! ```

use std::rc::Rc;
use std::time::Duration;

use futures_util::StreamExt;
use sandbox_api::{FileChange, HEARTBEAT_SECONDS, PathEncoding, WatchEnd, WatchEnded, event, watch_event};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::path;
use crate::error::{Error, ErrorCode, Result};
use crate::events::{Event, EventSink, ReaderGone};
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::identifier::SandboxId;
use crate::platform::within;
use crate::registry::{CallFacts, Context, Route, Tool};
use crate::sandbox::files;
use crate::sse::Decoder;
use crate::tenant::admission::SandboxClaim;

const DEFAULT_TIMEOUT_SECONDS: f64 = 30.0;

/// Networks cut an answer that keeps silent for about 100 seconds; a stream carries heartbeats and may last longer.
const LONGEST_BUFFERED_SECONDS: f64 = 90.0;

/// After the first change, a buffered watch waits for what comes along with it.
const QUIET: Duration = Duration::from_millis(300);

/// Where that never ends, the answer comes so long after the first change.
const LONGEST_GATHERING: Duration = Duration::from_secs(1);

/// A watch that is silent for this long is broken: it carries heartbeats.
const SILENCE_LIMIT: Duration = Duration::from_secs(4 * HEARTBEAT_SECONDS);

/// Beyond its timeout, until the sandbox has said that it is over.
const END_ALLOWANCE: Duration = Duration::from_secs(5);

/// Most changes in one answer; a stream has no limit.
const MOST_CHANGES: usize = 1000;

/// What to watch, and for how long.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Sandbox to watch in.
    pub sandbox_id: SandboxId,
    /// Directory or file: relative to /workspace, or absolute inside it. Default: /workspace.
    #[serde(default)]
    #[schema(max_length = 12_288)]
    pub path: Option<String>,
    /// `percent` when `path` is percent-encoded, as other tools answer a name that is not UTF-8; default utf-8.
    #[serde(default)]
    pub path_encoding: Option<PathEncoding>,
    /// Whether directories below are watched too, at most 8192 of them; default false.
    #[serde(default)]
    pub recursive: Option<bool>,
    /// Seconds after which the watch ends; default 30. At most 90, or 3600 where the answer is streamed.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 3600, default = 30)]
    pub timeout: Option<f64>,
}

/// What was seen.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// The changes in their order; empty where they were streamed as events.
    pub changes: Vec<FileChange>,
    /// Changes seen, streamed ones included.
    pub count: u64,
    /// Why the watch is over.
    pub ended: Ended,
}

/// Why a watch is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum Ended {
    /// Changes were seen, and nobody reads them as they come.
    Changes,
    Timeout,
    /// More happened than could be told: list the directory, and watch again.
    Overflow,
    /// More directories than one watch takes.
    TooManyDirectories,
    /// What was watched is gone or was moved.
    Gone,
}

pub struct WatchFiles;

impl Tool for WatchFiles {
    const NAME: &'static str = "watchFiles";
    const DESCRIPTION: &'static str = "Tells what happens in a directory of a sandbox: created, modified, deleted, renamed. As an event stream: \
        `ready`, then each `change` as it happens until the timeout. Otherwise the answer comes shortly after the first change, or at the timeout. A \
        file that a tool writes is told as created, also where it replaces another.";
    const ROUTES: &'static [Route] = &[];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Watch files",
        read_only_hint: true,
        destructive_hint: false,
        idempotent_hint: true,
        open_world_hint: false,
    };
    const GUARDRAILS: Guardrails = Guardrails {
        role: Role::Viewer,
        scopes: &[Scope::SandboxRead],
        approval: Approval::NotNeeded,
        default_timeout: 30,
        maximum_timeout: 3600,
        output_cap_bytes: 4 * 1024 * 1024,
        rate_class: RateClass::SandboxOperation,
        unrecorded_arguments: &[],
        told_once: &[],
    };
    const EXECUTION: Execution = Execution::Inline;

    type Input = Input;
    type Output = Output;

    fn claim(input: &Input, facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        let path = input.path.as_deref().unwrap_or_default();
        path::check_directory("/path", path, input.path_encoding.unwrap_or_default())?;
        if !facts.streams && Self::timeout_seconds(input) > LONGEST_BUFFERED_SECONDS {
            let message = format!("is at most {LONGEST_BUFFERED_SECONDS} unless the answer is an event stream");
            return Err(Error::invalid("/timeout", message));
        }
        Ok(SandboxClaim::Existing { sandbox_id: input.sandbox_id.clone() })
    }

    fn timeout_seconds(input: &Input) -> f64 {
        input.timeout.unwrap_or(DEFAULT_TIMEOUT_SECONDS)
    }

    async fn call(context: Context, input: Input, events: Rc<dyn EventSink>) -> Result<Output> {
        let timeout = Duration::try_from_secs_f64(Self::timeout_seconds(&input)).map_err(Error::internal)?;
        let path = input.path.as_deref().unwrap_or_default();
        let target = path::control(path::WATCHES, path, input.path_encoding.unwrap_or_default())?;
        let query = path::query([
            ("recursive", input.recursive.map(|value| value.to_string())),
            ("timeoutMs", Some(timeout.as_millis().to_string())),
        ]);
        let response =
            context.services.sandboxes.control(&input.sandbox_id, files::request("GET", target + &query)).await?;
        let mut chunks = response.body.chunks();
        let platform = &*context.services.platform;
        let ends_at = platform.now_millis() + i64::try_from((timeout + END_ALLOWANCE).as_millis()).unwrap_or(i64::MAX);
        let gathering = i64::try_from(LONGEST_GATHERING.as_millis()).unwrap_or(i64::MAX);
        let mut watch = Watch { events, changes: Vec::new(), count: 0, answer_by: None };
        let mut decoder = Decoder::default();
        loop {
            let now = platform.now_millis();
            let until = watch.answer_by.map_or(ends_at, |answer_by| answer_by.min(ends_at));
            let left = Duration::from_millis(u64::try_from(until - now).unwrap_or(0));
            let patience = left.min(if watch.answer_by.is_some() { QUIET } else { SILENCE_LIMIT });
            let bytes = match within(platform, patience, chunks.next()).await {
                Ok(Some(Ok(bytes))) => bytes,
                Ok(Some(Err(error))) => return Err(broken(&error)),
                Ok(None) => return Err(broken(&"the stream ended without its terminal event")),
                Err(_) if watch.answer_by.is_some() => return Ok(watch.over(Ended::Changes)),
                Err(_) => return Err(broken(&"the stream fell silent")),
            };
            for told in decoder.push(&bytes).map_err(|error| broken(&error))? {
                if let Some(ended) = watch.take(&told.name, &told.data).await? {
                    return Ok(watch.over(ended));
                }
            }
            if watch.answer_by.is_none() && !watch.changes.is_empty() {
                watch.answer_by = Some(platform.now_millis() + gathering);
            }
        }
    }
}

/// A watch on its way.
struct Watch {
    events: Rc<dyn EventSink>,
    changes: Vec<FileChange>,
    count: u64,
    /// When a buffered answer comes at the latest, once there is a change.
    answer_by: Option<i64>,
}

impl Watch {
    /// Takes one event of the sandbox; why the watch is over, when it is.
    async fn take(&mut self, name: &str, data: &str) -> Result<Option<Ended>> {
        match name {
            watch_event::READY => self.emit(Event::Ready).await.map(|()| None),
            event::HEARTBEAT => self.emit(Event::Heartbeat).await.map(|()| None),
            watch_event::CHANGE => {
                let change: FileChange = serde_json::from_str(data).map_err(|error| broken(&error))?;
                self.count += 1;
                if self.events.streams() {
                    return self.emit(Event::Change(change)).await.map(|()| None);
                }
                self.changes.push(change);
                Ok((self.changes.len() >= MOST_CHANGES).then_some(Ended::Changes))
            }
            watch_event::END => {
                let WatchEnded { reason } = serde_json::from_str(data).map_err(|error| broken(&error))?;
                match reason {
                    WatchEnd::Timeout if !self.changes.is_empty() => Ok(Some(Ended::Changes)),
                    WatchEnd::Timeout => Ok(Some(Ended::Timeout)),
                    WatchEnd::Overflow => Ok(Some(Ended::Overflow)),
                    WatchEnd::TooManyDirectories => Ok(Some(Ended::TooManyDirectories)),
                    WatchEnd::Gone => Ok(Some(Ended::Gone)),
                    WatchEnd::Fault => Err(broken(&"the sandbox met a fault")),
                }
            }
            _ => Ok(None),
        }
    }

    async fn emit(&self, event: Event) -> Result<()> {
        self.events
            .emit(event)
            .await
            .map_err(|ReaderGone| Error::new(ErrorCode::Interrupted, "the reader of the stream left"))
    }

    fn over(self, ended: Ended) -> Output {
        Output { changes: self.changes, count: self.count, ended }
    }
}

/// What happened since is not known.
fn broken(cause: &dyn std::fmt::Display) -> Error {
    let message = "the watch broke off; what happened since is not known: list the directory, and watch again";
    Error::new(ErrorCode::SandboxUnavailable, message).detail("reason", "watch_broken").because(cause)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::NoEvents;
    use futures_util::FutureExt;

    fn take(watch: &mut Watch, name: &str, data: &str) -> Result<Option<Ended>> {
        watch.take(name, data).now_or_never().unwrap()
    }

    #[test]
    fn changes_are_gathered_and_the_end_says_why() {
        let mut watch = Watch { events: Rc::new(NoEvents), changes: Vec::new(), count: 0, answer_by: None };
        assert_eq!(take(&mut watch, "ready", "{}").unwrap(), None);
        assert_eq!(take(&mut watch, "end", r#"{"reason":"timeout"}"#).unwrap(), Some(Ended::Timeout));
        let change = r#"{"kind":"renamed","path":"b","from":"%FF","fromEncoding":"percent","directory":false}"#;
        assert_eq!(take(&mut watch, "change", change).unwrap(), None);
        assert_eq!(take(&mut watch, "end", r#"{"reason":"timeout"}"#).unwrap(), Some(Ended::Changes));
        assert_eq!(take(&mut watch, "end", r#"{"reason":"overflow"}"#).unwrap(), Some(Ended::Overflow));
        assert_eq!(take(&mut watch, "future", "{}").unwrap(), None);
        assert_eq!(watch.over(Ended::Overflow).count, 1);
    }

    #[test]
    fn what_is_not_understood_is_no_end() {
        let mut watch = Watch { events: Rc::new(NoEvents), changes: Vec::new(), count: 0, answer_by: None };
        for (name, data) in [("end", r#"{"reason":"fault"}"#), ("end", "{}"), ("change", "[]")] {
            let error = take(&mut watch, name, data).unwrap_err();
            assert_eq!(error.code, ErrorCode::SandboxUnavailable, "{name} {data}");
        }
    }
}
