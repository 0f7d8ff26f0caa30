//! A key as tools tell of it, and the checks that tools about keys share.

use serde::Serialize;
use utoipa::ToSchema;

use super::create_sandbox::check_labels;
use crate::error::{Error, ErrorCode, Result};
use crate::log_line::LONGEST_TOOL;
use crate::platform::rfc3339;
use crate::registry::{Context, Registry};
use crate::tenant::approval::ApprovalRules;
use crate::tenant::credential::Credential;
use crate::tenant::keyring::KeyRecord;
use crate::tenant::keys::{KeyChange, KeyRequest, no_such_key};
use crate::tenant::limits::Limits;
use crate::tenant::permissions::Permissions;
use crate::tenant::secret_name::SecretName;
use crate::tenant::token::ROOT_KEY_ID;

/// One key. Its secret is told when it is made or rotated, and never again.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct KeyInfo {
    /// The key itself, for the header `Authorization: Bearer`: only in the answers of createKey and rotateKey.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Its id; a part of the key itself.
    pub key_id: String,
    /// What its owner calls it.
    pub name: String,
    /// valid, expired or revoked.
    pub status: KeyStatus,
    /// What it may do.
    pub permissions: Permissions,
    /// What it may use, defaults included.
    pub limits: Limits,
    /// When it was made: RFC 3339, UTC.
    pub created_at: String,
    /// Id of the key that made it.
    pub created_by: String,
    /// When it ends by itself: RFC 3339, UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// When its secret was last replaced: RFC 3339, UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rotated_at: Option<String>,
    /// Until when the secret before is valid: RFC 3339, UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous_secret_until: Option<String>,
    /// When it was revoked: RFC 3339, UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<String>,
}

/// Whether a key opens anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum KeyStatus {
    Valid,
    Expired,
    Revoked,
}

impl KeyInfo {
    pub fn of(key: &KeyRecord, now: i64) -> Self {
        let status = match (key.revoked_at, key.expires_at) {
            (Some(_), _) => KeyStatus::Revoked,
            (None, Some(at)) if at <= now => KeyStatus::Expired,
            _ => KeyStatus::Valid,
        };
        let previous = key.previous.as_ref().map(|previous| previous.valid_until).filter(|until| *until > now);
        Self {
            key: None,
            key_id: key.key_id.clone(),
            name: key.name.clone(),
            status,
            permissions: key.permissions.clone(),
            limits: key.limits.whole(),
            created_at: rfc3339(key.created_at),
            created_by: key.created_by.clone(),
            expires_at: key.expires_at.map(rfc3339),
            rotated_at: key.rotated_at.map(rfc3339),
            previous_secret_until: previous.map(rfc3339),
            revoked_at: key.revoked_at.map(rfc3339),
        }
    }
}

/// 403 for who calls with a token: what it makes would outlive it.
pub fn no_token(context: &Context) -> Result<()> {
    match context.principal.credential {
        Credential::Token { .. } | Credential::Job { permissions: Some(_), .. } => {
            let message = "a token cannot make or change keys and tokens; call with the key itself";
            Err(Error::new(ErrorCode::Forbidden, message))
        }
        Credential::Root | Credential::Key { .. } | Credential::Job { permissions: None, .. } => Ok(()),
    }
}

/// Most labels of a key: each is looked for in every list.
const MOST_LABELS: usize = 8;

/// Most ids in one list of a key.
const MOST_IDS: usize = 100;

/// 400 for permissions that nothing could be held against: a name that is misspelt would allow less, or more, than was meant.
pub fn check_permissions(permissions: &Permissions, registry: &Registry) -> Result<()> {
    check_labels(&permissions.sandbox_labels, "/permissions/sandboxLabels")?;
    permissions.approval.check()?;
    if permissions.sandbox_labels.len() > MOST_LABELS {
        let message = format!("has more than {MOST_LABELS} entries");
        return Err(Error::invalid("/permissions/sandboxLabels", message));
    }
    let is_tool = |name: &String| registry.list().any(|entry| entry.description().name == name);
    let ApprovalRules { tools, arguments, .. } = &permissions.approval;
    let of_rules = arguments.iter().filter_map(|rule| rule.tool.as_ref());
    let named = permissions.tools.iter().flatten().map(|name| ("/permissions/tools", name));
    let named = named.chain(tools.iter().map(|name| ("/permissions/approval/tools", name)));
    let mut named = named.chain(of_rules.map(|name| ("/permissions/approval/arguments", name)));
    if let Some((pointer, name)) = named.find(|(_, name)| !is_tool(name)) {
        let shown: String = name.chars().take(LONGEST_TOOL).collect();
        return Err(Error::invalid(pointer, format!("there is no tool {shown:?}; GET /v1/tools lists them")));
    }
    for (pointer, ids) in [("/permissions/zones", &permissions.zones), ("/permissions/accounts", &permissions.accounts)]
    {
        let is_id = |id: &String| id.len() == 32 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if ids.iter().flatten().any(|id| !is_id(id)) {
            return Err(Error::invalid(pointer, "holds an id that is not 32 digits of 0-9 and a-f"));
        }
        if ids.as_ref().is_some_and(|ids| ids.len() > MOST_IDS) {
            return Err(Error::invalid(pointer, format!("has more than {MOST_IDS} entries")));
        }
    }
    if let Some(names) = &permissions.secrets {
        let pointer = "/permissions/secrets";
        if let Some(fault) = names.iter().find_map(|name| SecretName::parse(name).err()) {
            return Err(Error::invalid(pointer, format!("holds what is no name of a secret: {fault}")));
        }
        if names.len() > MOST_IDS {
            return Err(Error::invalid(pointer, format!("has more than {MOST_IDS} entries")));
        }
    }
    Ok(())
}

/// 403 where `permissions` go beyond those of the caller; names the field.
pub fn within_own(context: &Context, permissions: &Permissions) -> Result<()> {
    context.permissions.covers(permissions).map_err(|field| {
        let message = format!("permissions.{field}: goes beyond what this key may do itself");
        Error::new(ErrorCode::Forbidden, message).detail("field", format!("permissions.{field}"))
    })
}

/// 403 where `limits` go beyond those of the caller; names the field.
pub fn within_own_limits(context: &Context, limits: Limits) -> Result<()> {
    match context.limits.and_then(|own| limits.beyond(own)) {
        None => Ok(()),
        Some(field) => {
            let message = format!("limits.{field}: goes beyond what this key may use itself");
            Err(Error::new(ErrorCode::Forbidden, message).detail("field", format!("limits.{field}")))
        }
    }
}

/// Changes one key that may do no more than the caller.
pub async fn change(context: &Context, key_id: &str, change: KeyChange) -> Result<KeyInfo> {
    changeable(context, key_id).await?;
    let at = context.admitted_at;
    let change = KeyRequest::Change { key_id: key_id.to_owned(), at, change };
    let changed = context.services.tenant.keys(change).await?.one()?;
    Ok(KeyInfo::of(&changed, at))
}

/// The key of that id, which the caller may change.
pub async fn changeable(context: &Context, key_id: &str) -> Result<KeyRecord> {
    no_token(context)?;
    if key_id == ROOT_KEY_ID {
        let message = "keyId: the root key is the secret WORKER_API_KEY_SECRET of the Worker and is changed there";
        return Err(Error::new(ErrorCode::Forbidden, message).detail("field", "keyId"));
    }
    let target = context.services.tenant.keys(KeyRequest::Get { key_id: key_id.to_owned() }).await?.one()?;
    within_own(context, &target.permissions).map_err(|_| {
        let message = "keyId: this key may do more than the caller, who cannot change it";
        Error::new(ErrorCode::Forbidden, message).detail("field", "keyId")
    })?;
    Ok(target)
}

/// 404 for an id that cannot be one.
pub fn check_id(key_id: &str) -> Result<()> {
    let fits = key_id.len() <= 64 && key_id.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if fits { Ok(()) } else { Err(no_such_key(&key_id.chars().take(64).collect::<String>())) }
}
