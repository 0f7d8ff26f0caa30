//! verifyAuditLog: whether the books are what was written.

use std::rc::Rc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::{Error, ErrorCode, Result};
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::services::Services;
use crate::tenant::admission::SandboxClaim;
use crate::tenant::audit::{FaultKind, Head};
use crate::tenant::verification::{Verification, verify, verify_archive};

/// Where to begin.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// `nextCursor` of the part before; without it the first record that is kept.
    #[serde(default)]
    #[schema(minimum = 1)]
    pub cursor: Option<i64>,
    /// Verify what was exported to R2, from the first record of all on, instead of what the service still has.
    #[serde(default)]
    pub archive: Option<bool>,
}

/// What was found.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// Whether every record that was looked at is as it was written.
    pub valid: bool,
    /// How many were found so.
    pub records: u32,
    /// What stands before the first of them.
    pub anchor: Place,
    /// The last of them.
    pub head: Place,
    /// Exports to R2 that were read, or that the records were held against; absent where there is no bucket, or after a fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exports: Option<u32>,
    /// The first that is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<FaultInfo>,
    /// For the next part; absent when this was the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<i64>,
}

/// A place in the books.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Place {
    /// Number of the record, from 1; 0 before the first of all.
    pub seq: i64,
    /// Its digest, SHA-256 in hexadecimal.
    pub digest: String,
}

/// Where the books are not what was written.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FaultInfo {
    /// Number of the record.
    pub seq: i64,
    /// missing: a record before this one is gone, or this one stands in another's place; changed: it is not as it was written;
    /// differsFromExport: it is not what was exported to R2, or is gone although it was; exportMissing: the export that begins with it is gone.
    pub what: FaultKind,
}

impl From<Head> for Place {
    fn from(head: Head) -> Self {
        Self { seq: head.seq, digest: head.digest }
    }
}

/// 503: there is no archive.
fn no_bucket() -> Error {
    let message = "there is no R2 bucket: bind one as BUCKET in wrangler.toml";
    Error::new(ErrorCode::NotConfigured, message).detail("binding", "BUCKET")
}

pub struct VerifyAuditLog;

impl Tool for VerifyAuditLog {
    const NAME: &'static str = "verifyAuditLog";
    const DESCRIPTION: &'static str = "Recomputes the chain of digests over the audit log and tells the first record that was changed, removed or put in another place. Where there is a bucket, it is held against every export to R2 as well, which shows a chain that was computed anew or cut off at its end; archive: true verifies the exports themselves. Looks at some 10,000 records; nextCursor goes on from there. What was written since the last export can be held against a head noted elsewhere.";
    const ROUTES: &'static [Route] = &[Route { method: Method::Get, path: "/v1/admin/logs/verification" }];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Verify the audit log",
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

    fn claim(_input: &Input, _facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        Ok(SandboxClaim::None)
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<Output> {
        let Services { tenant, archive, .. } = &context.services;
        let found = match (input.archive.unwrap_or(false), archive.as_deref()) {
            (true, Some(bucket)) => verify_archive(&**tenant, bucket, input.cursor).await?,
            (true, None) => return Err(no_bucket()),
            (false, bucket) => verify(&**tenant, bucket, input.cursor).await?,
        };
        let Verification { verified, exports } = found;
        let next_cursor = verified.more.then_some(verified.to.seq);
        Ok(Output {
            valid: verified.fault.is_none(),
            records: verified.records,
            anchor: verified.from.into(),
            head: verified.to.into(),
            exports,
            fault: verified.fault.map(|fault| FaultInfo { seq: fault.seq, what: fault.what }),
            next_cursor,
        })
    }
}
