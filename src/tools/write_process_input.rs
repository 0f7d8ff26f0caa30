//! writeProcessInput: bytes for the standard input of a background process.

use std::rc::Rc;

use sandbox_api::{EncodedBytes, Encoding, ProcessInput};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::{Error, Result};
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::identifier::SandboxId;
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::sandbox::processes::{Handle, Processes};
use crate::tenant::admission::SandboxClaim;

/// What to write, and to which process.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Sandbox that has the process.
    pub sandbox_id: SandboxId,
    /// Process, as startBackgroundProcess answered it.
    #[schema(min_length = 1, max_length = 140)]
    pub process_id: String,
    /// Bytes to write, in the form that `encoding` names; a line needs its line end. At most 1,000,000 characters.
    #[serde(default)]
    #[schema(max_length = 1_000_000)]
    pub data: Option<String>,
    /// How `data` holds the bytes; default utf-8.
    #[serde(default)]
    pub encoding: Option<Encoding>,
    /// Whether standard input is closed after them; default false.
    #[serde(default)]
    pub close: Option<bool>,
}

/// What was taken. It is written as the process reads.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// Process.
    pub process_id: String,
    /// Bytes of this call.
    pub bytes: u64,
    /// Bytes, of this and of earlier calls, that the process had yet to make room for.
    pub waiting_bytes: u64,
    /// Whether standard input is closed, or will be once those are written.
    pub closed: bool,
}

pub struct WriteProcessInput;

impl Tool for WriteProcessInput {
    const NAME: &'static str = "writeProcessInput";
    const DESCRIPTION: &'static str = "Writes to standard input of a background process that was started with keepStdin, after all that was written \
        before, and closes it on request. Refuses with `conflict` where the process has ended or its input is \
        closed.";
    const ROUTES: &'static [Route] =
        &[Route { method: Method::Post, path: "/v1/sandboxes/{sandboxId}/processes/{processId}/input" }];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Write to a process",
        read_only_hint: false,
        destructive_hint: true,
        idempotent_hint: false,
        open_world_hint: false,
    };
    const GUARDRAILS: Guardrails = Guardrails {
        role: Role::Operator,
        scopes: &[Scope::SandboxExec],
        approval: Approval::NotNeeded,
        default_timeout: 30,
        maximum_timeout: 30,
        output_cap_bytes: 64 * 1024,
        rate_class: RateClass::SandboxOperation,
        unrecorded_arguments: &["/data"],
        told_once: &[],
    };
    const EXECUTION: Execution = Execution::Inline;

    type Input = Input;
    type Output = Output;

    fn claim(input: &Input, _facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        Handle::parse(&input.process_id)?;
        if input.data.is_none() && input.close != Some(true) {
            return Err(Error::invalid("/data", "is needed, unless close is true"));
        }
        if encoded(input).is_some_and(|data| data.decode().is_none()) {
            return Err(Error::invalid("/data", "is not base64"));
        }
        Ok(SandboxClaim::Running { sandbox_id: input.sandbox_id.clone() })
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<Output> {
        let handle = Handle::parse(&input.process_id)?;
        // The call's own id: should the answer be lost, the same request writes nothing again.
        let request =
            ProcessInput { id: Some(context.call_id), data: encoded(&input), close: input.close.unwrap_or(false) };
        let taken = Processes::new(context.services, input.sandbox_id).write(&handle, &request).await?;
        Ok(Output {
            process_id: input.process_id,
            bytes: taken.bytes,
            waiting_bytes: taken.waiting_bytes,
            closed: taken.closed,
        })
    }
}

fn encoded(input: &Input) -> Option<EncodedBytes> {
    let data = input.data.clone()?;
    Some(EncodedBytes { data, encoding: input.encoding.unwrap_or_default() })
}
