//! Zones and accounts that a call names, with a tool of the kind that tools on Cloudflare are of.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::*;
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass};
use crate::registry::{CallFacts, Context, Entry, Registry, Route, Tool};
use crate::tenant::admission::SandboxClaim;
use crate::tenant::token;

struct Purge;

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Input {
    /// Zone whose cache is purged.
    zone_id: String,
    /// Account that it is in.
    #[serde(default)]
    account_id: Option<String>,
}

#[derive(Serialize, ToSchema)]
struct Output {
    purged: String,
}

impl Tool for Purge {
    const NAME: &'static str = "purge";
    const DESCRIPTION: &'static str = "Purges a cache.";
    const ROUTES: &'static [Route] = &[];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Purge",
        read_only_hint: false,
        destructive_hint: false,
        idempotent_hint: true,
        open_world_hint: true,
    };
    const GUARDRAILS: Guardrails = Guardrails {
        role: Role::Viewer,
        scopes: &[],
        approval: Approval::NotNeeded,
        default_timeout: 15,
        maximum_timeout: 15,
        output_cap_bytes: 1024,
        rate_class: RateClass::Read,
        unrecorded_arguments: &[],
        told_once: &[],
    };
    const EXECUTION: Execution = Execution::Inline;

    type Input = Input;
    type Output = Output;

    fn claim(_: &Input, _: &CallFacts<'_>) -> Result<SandboxClaim> {
        Ok(SandboxClaim::None)
    }

    async fn call(_: Context, input: Input, _: Rc<dyn EventSink>) -> Result<Output> {
        Ok(Output { purged: input.zone_id + &input.account_id.unwrap_or_default() })
    }
}

/// The code of a call with a token of the root key that has these lists.
fn purge(zones: Option<&[&str]>, accounts: Option<&[&str]>, arguments: Value) -> Option<ErrorCode> {
    let set = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect();
    let (zones, accounts) = (zones.map(set), accounts.map(set));
    let permissions = Permissions { zones, accounts, ..Permissions::of(Role::Admin) };
    let signer = Signer::new(Some("signing-signing-signing"));
    let double = Double(Rc::default(), signer.clone());
    let token = token::make(&signer, "default", "root", "t".to_owned(), permissions, 1_000, 600).unwrap();
    let call = ToolCall { head: head(&token), tool: "purge".into(), arguments: Ok(arguments) };
    let registry = Registry::new(vec![Entry::of::<Purge>()]);
    let answered = registry.call(&double, call, Rc::new(NoEvents)).now_or_never().unwrap();
    code(&output(answered.result))
}

#[test]
fn what_a_call_names_is_held_against_the_lists_of_its_key() {
    let whole = json!({ "zoneId": "z1", "accountId": "a1" });
    assert_eq!(purge(None, None, whole.clone()), None);
    assert_eq!(purge(Some(&["z1", "z2"]), Some(&["a1"]), whole.clone()), None);
    let forbidden = Some(ErrorCode::Forbidden);
    assert_eq!(purge(Some(&["z2"]), None, whole.clone()), forbidden);
    assert_eq!(purge(None, Some(&["a2"]), whole), forbidden);
    assert_eq!(purge(None, Some(&["a1"]), json!({ "zoneId": "z1" })), forbidden, "the account was left out");
    let odd = json!({ "zoneId": "z1", "nonsense": 1 });
    assert_eq!(purge(Some(&["z2"]), None, odd.clone()), forbidden, "before it is judged");
    assert_eq!(purge(Some(&["z1"]), None, odd), Some(ErrorCode::InvalidArguments));
}
