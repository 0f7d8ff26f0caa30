//! getAuditLog: who called what, and how it ended.

use std::rc::Rc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::job_info::ApprovalInfo;
use super::moment::moment;
use crate::error::{Error, ErrorCode, Result};
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::platform::rfc3339;
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::services::Services;
use crate::tenant::admission::{Outcome, SandboxClaim};
use crate::tenant::archive::{self, Page};
use crate::tenant::inquiry::{AuditRequest, Entry, is_outcome};

/// Which calls; all given filters must match.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Most calls in this page; default 100.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 500, default = 100)]
    pub limit: Option<u32>,
    /// `nextCursor` of the page before.
    #[serde(default)]
    #[schema(minimum = 1)]
    pub cursor: Option<i64>,
    /// Only calls from this time on: RFC 3339.
    #[serde(default)]
    #[schema(format = DateTime)]
    pub since: Option<String>,
    /// Only calls before this time: RFC 3339.
    #[serde(default)]
    #[schema(format = DateTime)]
    pub until: Option<String>,
    /// Only the call of this id, which its answer told as `X-Request-Id`.
    #[serde(default)]
    #[schema(max_length = 64)]
    pub request_id: Option<String>,
    /// Only calls with this key.
    #[serde(default)]
    #[schema(max_length = 64)]
    pub key_id: Option<String>,
    /// Only calls of this tool.
    #[serde(default)]
    #[schema(max_length = 64)]
    pub tool: Option<String>,
    /// Only calls about this sandbox.
    #[serde(default)]
    #[schema(max_length = 64)]
    pub sandbox_id: Option<String>,
    /// Only calls that ended so: `succeeded`, `replayed`, or the code of an error.
    #[serde(default)]
    #[schema(max_length = 64)]
    pub outcome: Option<String>,
}

/// One call.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Call {
    /// Id of the call.
    pub request_id: String,
    /// Place of its first record in the books.
    pub seq: i64,
    /// When it was asked: RFC 3339, UTC.
    pub at: String,
    /// Door it came through.
    pub door: String,
    /// Key it was made with.
    pub key_id: String,
    /// Token it was made with, if it was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_id: Option<String>,
    /// Name of the tool.
    pub tool: String,
    /// Sandbox it was about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<String>,
    /// Schedule that made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule_id: Option<String>,
    /// Its arguments, secrets masked and long values cut; empty when they could not be read.
    #[schema(value_type = std::collections::BTreeMap<String, Value>)]
    pub arguments: Map<String, Value>,
    /// Keyed hash of its arguments as they were sent: equal for equal arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arguments_signature: Option<String>,
    /// open, succeeded, failed, refused or replayed.
    pub result: CallResult,
    /// Code of its error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<ErrorCode>,
    /// Exit code of its command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Present where it had to be approved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalInfo>,
    /// How long it took, in milliseconds; absent while it is open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<i64>,
}

/// How a call stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum CallResult {
    /// It is not over, or did not tell yet.
    Open,
    Succeeded,
    /// It was carried out, and failed.
    Failed,
    /// It was not carried out.
    Refused,
    /// It was not carried out again: its idempotency key gave the answer of an earlier call.
    Replayed,
}

/// One page.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    pub calls: Vec<Call>,
    /// For the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<i64>,
}

impl From<Entry> for Call {
    fn from(entry: Entry) -> Self {
        let Entry { seq, at, intent, settlement, approval } = entry;
        let (result, code) = match settlement.as_ref().map(|settlement| settlement.outcome) {
            None => (CallResult::Open, None),
            Some(Outcome::Succeeded) => (CallResult::Succeeded, None),
            Some(Outcome::Failed(code)) => (CallResult::Failed, Some(code)),
            Some(Outcome::Refused(code)) => (CallResult::Refused, Some(code)),
            Some(Outcome::Replayed) => (CallResult::Replayed, None),
        };
        let arguments = match intent.arguments {
            Value::Object(fields) => fields,
            _ => Map::new(),
        };
        Self {
            request_id: intent.call_id,
            seq,
            at: rfc3339(at),
            door: intent.door,
            key_id: intent.key_id,
            token_id: intent.token_id,
            tool: intent.tool,
            sandbox_id: intent.sandbox_id.map(Into::into),
            schedule_id: intent.schedule_id,
            arguments,
            arguments_signature: intent.arguments_signature,
            result,
            code,
            approval: approval.map(ApprovalInfo::from),
            exit_code: settlement.as_ref().and_then(|settlement| settlement.exit_code),
            duration_ms: settlement.map(|settlement| settlement.duration_ms),
        }
    }
}

pub struct GetAuditLog;

impl Tool for GetAuditLog {
    const NAME: &'static str = "getAuditLog";
    const DESCRIPTION: &'static str = "Lists calls of this tenant, the last first: who, through which door, which tool, with which arguments (secrets masked), on which sandbox, and how it ended. The last 30 days, and where there is a bucket what was exported to R2 before: a page from there may hold fewer calls than asked for, or none, and still a nextCursor. Denied calls of known keys are among them; of calls over the limit only the first in a minute.";
    const ROUTES: &'static [Route] = &[Route { method: Method::Get, path: "/v1/admin/logs" }];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Get the audit log",
        read_only_hint: true,
        destructive_hint: false,
        idempotent_hint: true,
        open_world_hint: false,
    };
    const GUARDRAILS: Guardrails = Guardrails {
        role: Role::Viewer,
        scopes: &[Scope::AuditRead],
        approval: Approval::NotNeeded,
        default_timeout: 60,
        maximum_timeout: 60,
        output_cap_bytes: 4 * 1024 * 1024,
        rate_class: RateClass::Read,
        unrecorded_arguments: &[],
        told_once: &[],
    };
    const EXECUTION: Execution = Execution::Inline;

    type Input = Input;
    type Output = Output;

    fn claim(input: &Input, _facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        asked(input)?;
        Ok(SandboxClaim::None)
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<Output> {
        let Services { tenant, archive, .. } = &context.services;
        let Page { entries, next } = archive::page(&**tenant, archive.as_deref(), asked(&input)?).await?;
        Ok(Output { calls: entries.into_iter().map(Call::from).collect(), next_cursor: next })
    }
}

fn asked(input: &Input) -> Result<AuditRequest> {
    if input.outcome.as_deref().is_some_and(|outcome| !is_outcome(outcome)) {
        return Err(Error::invalid("/outcome", "is neither succeeded nor replayed nor the code of an error"));
    }
    Ok(AuditRequest {
        limit: input.limit.unwrap_or(100),
        before_seq: input.cursor,
        since: moment(input.since.as_deref(), "/since")?,
        until: moment(input.until.as_deref(), "/until")?,
        call_id: input.request_id.clone(),
        key_id: input.key_id.clone(),
        tool: input.tool.clone(),
        sandbox_id: input.sandbox_id.clone(),
        outcome: input.outcome.clone(),
    })
}
