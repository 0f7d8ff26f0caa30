//! listKeys: the keys of the tenant, in pages.

use std::rc::Rc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::key_info::KeyInfo;
use crate::error::Result;
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::tenant::admission::SandboxClaim;
use crate::tenant::keys::{KeyRequest, Keys};

/// Which page.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Most keys in this page; default 100.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 500, default = 100)]
    pub limit: Option<u32>,
    /// `nextCursor` of the page before.
    #[serde(default)]
    #[schema(max_length = 64)]
    pub cursor: Option<String>,
}

/// One page.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    pub keys: Vec<KeyInfo>,
    /// For the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

pub struct ListKeys;

impl Tool for ListKeys {
    const NAME: &'static str = "listKeys";
    const DESCRIPTION: &'static str = "Lists the keys of this tenant in the order of their ids, revoked and expired ones included, without their secrets. The root key is not among them.";
    const ROUTES: &'static [Route] = &[Route { method: Method::Get, path: "/v1/admin/keys" }];
    const ANNOTATIONS: Annotations = Annotations {
        title: "List keys",
        read_only_hint: true,
        destructive_hint: false,
        idempotent_hint: true,
        open_world_hint: false,
    };
    const GUARDRAILS: Guardrails = Guardrails {
        role: Role::Viewer,
        scopes: &[Scope::KeysRead],
        approval: Approval::NotNeeded,
        default_timeout: 15,
        maximum_timeout: 15,
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
        let request = KeyRequest::List { after: input.cursor, limit: input.limit.unwrap_or(100) };
        let Keys { keys, more } = context.services.tenant.keys(request).await?;
        let next_cursor = keys.last().filter(|_| more).map(|key| key.key_id.clone());
        Ok(Output { keys: keys.iter().map(|key| KeyInfo::of(key, context.admitted_at)).collect(), next_cursor })
    }
}
