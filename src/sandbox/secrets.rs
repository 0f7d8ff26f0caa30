//! Asks the tenant's object for the named secrets of a sandbox, each time the sandbox is given its environment.

use std::collections::BTreeMap;
use std::time::Duration;

use super::actor::{Inner, Stored};
use super::environment;
use crate::error::{Error, ErrorCode, Result};
use crate::fetch_error::Repeat;
use crate::platform::Platform;
use crate::tenant::secrets::{SealedSecrets, UseRequest};
use crate::tenant::signing::Signer;
use crate::workers::backend::{SIGNING_SECRET, configured};
use crate::workers::fetch::FetchError;
use crate::workers::internal::{Question, TENANT_BINDING, namespace};

/// Until the tenant's object tells the secrets of a sandbox, sealed.
const SECRETS_DEADLINE: Duration = Duration::from_secs(3);

/// The environment that the sandbox is to be given now.
pub async fn environment_now(inner: &Inner, stored: &Stored) -> Result<BTreeMap<String, String>> {
    let settings = &stored.record.settings;
    if settings.secrets.is_empty() {
        return Ok(settings.environment());
    }
    let names = settings.secrets.values().map(ToString::to_string).collect();
    let request = UseRequest { names, at: inner.platform.now_millis() };
    let lost = |error: FetchError| {
        let message = "the secrets of the sandbox could not be asked for; nothing was started or run";
        Error { retry_after: Some(1), ..Error::new(ErrorCode::SandboxUnavailable, message) }.because(error)
    };
    let objects = &namespace(&inner.env, TENANT_BINDING)?;
    let (name, path) = (stored.tenant.as_str(), "/secrets/use");
    let (deadline, repeat, trace) = (SECRETS_DEADLINE, Repeat::Harmless, Vec::new());
    let question = Question { objects, name, path, deadline, repeat, lost, trace };
    let secrets: SealedSecrets = question.ask(&request, |_| ()).await?;
    let signer = Signer::new(configured(&inner.env, SIGNING_SECRET).as_deref());
    environment::complete(settings, &secrets, &signer, &stored.tenant)
}
