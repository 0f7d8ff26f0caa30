//! setJobRetention: how long jobs are kept after their end.

use std::rc::Rc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::{Error, Result};
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::tenant::admission::SandboxClaim;
use crate::tenant::jobs::{JobSettings, LONGEST_EXPIRY, SHORTEST_EXPIRY};

/// How long.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Seconds after their end at which jobs are forgotten, with their answers and logs; without it a week.
    #[serde(default)]
    #[schema(minimum = 3600, maximum = 31_536_000)]
    pub expires_after: Option<u32>,
}

/// What is set now.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// Seconds after their end at which jobs are forgotten that are asked for from now on.
    pub expires_after: u32,
}

pub struct SetJobRetention;

impl Tool for SetJobRetention {
    const NAME: &'static str = "setJobRetention";
    const DESCRIPTION: &'static str = "Sets how long jobs of this tenant are kept after their end, with their answers and logs: those that are asked for from now on. \
        Jobs that are there keep their time, which getJob tells as `expiresAt`; steps of pipelines are kept for a week at least. The audit is kept apart.";
    const ROUTES: &'static [Route] = &[Route { method: Method::Put, path: "/v1/admin/jobs/retention" }];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Set how long jobs are kept",
        read_only_hint: false,
        destructive_hint: false,
        idempotent_hint: true,
        open_world_hint: false,
    };
    const GUARDRAILS: Guardrails = Guardrails {
        role: Role::Admin,
        scopes: &[Scope::JobsWrite],
        approval: Approval::NotNeeded,
        default_timeout: 15,
        maximum_timeout: 15,
        output_cap_bytes: 64 * 1024,
        rate_class: RateClass::Read,
        unrecorded_arguments: &[],
        told_once: &[],
    };
    const EXECUTION: Execution = Execution::Inline;

    type Input = Input;
    type Output = Output;

    fn claim(input: &Input, _facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        match input.expires_after {
            Some(seconds) if !(SHORTEST_EXPIRY..=LONGEST_EXPIRY).contains(&seconds) => {
                Err(Error::invalid("/expiresAfter", "must be from 3600 to 31,536,000: an hour to a year"))
            }
            _ => Ok(SandboxClaim::None),
        }
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<Output> {
        let settings = JobSettings { expires_after: input.expires_after };
        let settings = context.services.tenant.set_jobs(settings).await?;
        Ok(Output { expires_after: settings.expires_after() })
    }
}
