//! What a key may do: the role first, then scopes and allow-lists that narrow it. A token narrows its key's further.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::approval::ApprovalRules;
use crate::error::{Error, ErrorCode, Result, field_name};
use crate::guardrails::{Approval, Role, Scope};
use crate::named::Named;

/// What a caller may do. A list that is absent does not narrow; one that is empty allows nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Permissions {
    /// What it may do at most.
    pub role: Role,
    /// Only tools whose scopes are all among these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scopes: Option<BTreeSet<Scope>>,
    /// Only these tools, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<BTreeSet<String>>,
    /// Only Cloudflare zones of these ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zones: Option<BTreeSet<String>>,
    /// Only Cloudflare accounts of these ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accounts: Option<BTreeSet<String>>,
    /// Only these secrets, by name, to use, to list, to set and to delete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secrets: Option<BTreeSet<String>>,
    /// Only sandboxes that have all of these labels; those it creates get them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sandbox_labels: BTreeMap<String, String>,
    /// Which calls wait until somebody approves them; none by default.
    #[serde(default, skip_serializing_if = "ApprovalRules::is_empty")]
    #[schema(required = false)]
    pub approval: ApprovalRules,
}

/// What a tool asks of its caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Requirement {
    pub tool: String,
    pub role: Role,
    pub scopes: Vec<Scope>,
    #[serde(default)]
    pub approval: Approval,
    /// Whether it can end or overwrite something.
    #[serde(default)]
    pub destructive: bool,
    /// Zones, accounts and secrets that the call names.
    #[serde(default, skip_serializing_if = "Named::is_nothing")]
    pub named: Named,
    /// Names of the secrets whose values it uses, by where its arguments name them: JSON pointers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub uses: BTreeMap<String, String>,
    /// Of a pipeline: what the calls of its steps ask for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<StepRequirement>,
}

/// What a step of a pipeline asks of who wants the pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepRequirement {
    /// Where the step names its tool, as a JSON pointer.
    pub pointer: String,
    pub requirement: Requirement,
}

impl Requirement {
    /// Of a tool that asks for a role alone.
    pub fn of(tool: &str, role: Role) -> Self {
        let approval = Approval::NotNeeded;
        let named = Named::default();
        let (scopes, steps, uses) = (Vec::new(), Vec::new(), BTreeMap::new());
        Self { tool: tool.to_owned(), role, scopes, approval, destructive: false, named, uses, steps }
    }
}

impl Permissions {
    /// Everything that a role may.
    pub fn of(role: Role) -> Self {
        Self {
            role,
            scopes: None,
            tools: None,
            zones: None,
            accounts: None,
            secrets: None,
            sandbox_labels: BTreeMap::new(),
            approval: ApprovalRules::default(),
        }
    }

    /// Whether the tool may be called at all; 403 with what is missing when not.
    pub fn check(&self, requirement: &Requirement) -> Result<()> {
        let refuse = |message: String| Err(Error::new(ErrorCode::Forbidden, message));
        if self.role < requirement.role {
            let (needed, has) = (requirement.role.as_str(), self.role.as_str());
            return refuse(format!("{} needs the role {needed}; this key has {has}", requirement.tool));
        }
        if let Some(scopes) = &self.scopes
            && let Some(missing) = requirement.scopes.iter().find(|scope| !scopes.contains(scope))
        {
            return refuse(format!(
                "{} needs the scope {}, which this key does not hold",
                requirement.tool,
                missing.as_str()
            ));
        }
        if self.tools.as_ref().is_some_and(|tools| !tools.contains(&requirement.tool)) {
            return refuse(format!("{} is not among the tools of this key", requirement.tool));
        }
        each_step(requirement, |requirement| self.check(requirement))
    }

    /// Whether the zones, accounts and secrets that a call names are those of the key; 403 with the first that is not. A key that has a
    /// list of zones or accounts calls no tool of Cloudflare without naming something of it.
    pub fn check_named(&self, requirement: &Requirement) -> Result<()> {
        each_step(requirement, |requirement| self.check_named(requirement))?;
        let Requirement { tool, named, scopes, .. } = requirement;
        if let Some(allowed) = &self.secrets
            && let Some(name) = named.secrets.iter().find(|name| !allowed.contains(*name))
        {
            return Err(not_among("secret", name));
        }
        let is_of_cloudflare = scopes.iter().any(|scope| scope.as_str().starts_with("cloudflare:"));
        let lists = [("zone", &self.zones, &named.zones), ("account", &self.accounts, &named.accounts)];
        lists
            .into_iter()
            .try_for_each(|(kind, allowed, named)| held(tool, is_of_cloudflare, kind, allowed.as_ref(), named.as_ref()))
    }

    /// Whether a sandbox with these labels is in sight.
    pub fn sees(&self, labels: &BTreeMap<String, String>) -> bool {
        self.sandbox_labels.iter().all(|(name, value)| labels.get(name) == Some(value))
    }

    /// The labels of a sandbox that this caller makes or changes: its own are added; 403 when one contradicts.
    pub fn labelled(&self, mut labels: BTreeMap<String, String>) -> Result<BTreeMap<String, String>> {
        for (name, value) in &self.sandbox_labels {
            if labels.get(name).is_some_and(|given| given != value) {
                let message = format!("labels.{name}: this key works with sandboxes of the value {value:?} only");
                return Err(Error::new(ErrorCode::Forbidden, message).detail("field", format!("labels.{name}")));
            }
            labels.insert(name.clone(), value.clone());
        }
        Ok(labels)
    }

    /// What both allow. Where their labels contradict there is no sandbox that both see, and nothing is allowed at all.
    pub fn narrowed(&self, other: &Self) -> Self {
        let labels = self.labelled(other.sandbox_labels.clone());
        let tools = if labels.is_ok() { both(&self.tools, &other.tools) } else { Some(BTreeSet::new()) };
        let sandbox_labels = labels.unwrap_or_else(|_| self.sandbox_labels.clone());
        Self {
            role: self.role.min(other.role),
            scopes: both(&self.scopes, &other.scopes),
            tools,
            zones: both(&self.zones, &other.zones),
            accounts: both(&self.accounts, &other.accounts),
            secrets: both(&self.secrets, &other.secrets),
            sandbox_labels,
            approval: self.approval.narrowed(&other.approval),
        }
    }

    /// Whether everything that `other` allows is allowed here too; names the first field that is not.
    pub fn covers(&self, other: &Self) -> Result<(), &'static str> {
        let labels = self.sandbox_labels.iter().all(|(name, value)| other.sandbox_labels.get(name) == Some(value));
        let checks = [
            (other.role <= self.role, "role"),
            (within(&self.scopes, &other.scopes), "scopes"),
            (within(&self.tools, &other.tools), "tools"),
            (within(&self.zones, &other.zones), "zones"),
            (within(&self.accounts, &other.accounts), "accounts"),
            (within(&self.secrets, &other.secrets), "secrets"),
            (labels, "sandboxLabels"),
            (self.approval.covers(&other.approval), "approval"),
        ];
        checks.into_iter().find(|(holds, _)| !holds).map_or(Ok(()), |(_, field)| Err(field))
    }
}

/// Holds what every step asks for; the refusal of one names it.
fn each_step(requirement: &Requirement, check: impl Fn(&Requirement) -> Result<()>) -> Result<()> {
    requirement.steps.iter().try_for_each(|StepRequirement { pointer, requirement }| {
        let named = |error: Error| Error { message: format!("{}: {}", field_name(pointer), error.message), ..error };
        check(requirement).map_err(|error| named(error).detail("pointer", pointer.as_str()))
    })
}

/// Whether a call may name these of one kind.
fn held(
    tool: &str,
    is_of_cloudflare: bool,
    kind: &str,
    allowed: Option<&BTreeSet<String>>,
    named: Option<&BTreeSet<String>>,
) -> Result<()> {
    let refuse = |message: String| Err(Error::new(ErrorCode::Forbidden, message).detail("allowed", kind));
    let Some(allowed) = allowed else { return Ok(()) };
    match named {
        None if !is_of_cloudflare => Ok(()),
        Some(ids) if !ids.is_empty() => match ids.iter().find(|id| !allowed.contains(*id)) {
            None => Ok(()),
            Some(id) => Err(not_among(kind, id)),
        },
        _ => refuse(format!("this call of {tool} names no {kind}, and this key works with certain ones only")),
    }
}

/// 403: the key has a list of this kind, which this one is not in.
fn not_among(kind: &str, id: &str) -> Error {
    let shown: String = id.chars().take(64).collect();
    let message = format!("the {kind} {shown:?} is not among those of this key");
    Error::new(ErrorCode::Forbidden, message).detail("allowed", kind)
}

fn both<T: Ord + Clone>(one: &Option<BTreeSet<T>>, other: &Option<BTreeSet<T>>) -> Option<BTreeSet<T>> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.intersection(other).cloned().collect()),
        (one, other) => one.clone().or_else(|| other.clone()),
    }
}

fn within<T: Ord>(outer: &Option<BTreeSet<T>>, inner: &Option<BTreeSet<T>>) -> bool {
    match (outer, inner) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(outer), Some(inner)) => inner.is_subset(outer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exec() -> Requirement {
        Requirement { scopes: vec![Scope::SandboxExec], ..Requirement::of("exec", Role::Operator) }
    }

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn refusal(permissions: &Permissions) -> Option<(ErrorCode, String)> {
        permissions.check(&exec()).err().map(|error| (error.code, error.message))
    }

    #[test]
    fn role_scopes_and_tools_must_all_allow() {
        let operator = Permissions::of(Role::Operator);
        assert_eq!(refusal(&operator), None);
        assert_eq!(refusal(&Permissions::of(Role::Admin)), None);
        let refused = [
            (Permissions::of(Role::Viewer), "role operator"),
            (Permissions { scopes: Some(BTreeSet::new()), ..operator.clone() }, "sandbox:exec"),
            (Permissions { scopes: Some([Scope::SandboxRead].into()), ..operator.clone() }, "sandbox:exec"),
            (Permissions { tools: Some(["readFile".to_owned()].into()), ..operator.clone() }, "among the tools"),
        ];
        for (permissions, text) in refused {
            let (code, message) = refusal(&permissions).unwrap();
            assert_eq!(code, ErrorCode::Forbidden);
            assert!(message.contains(text), "{message}");
        }
    }

    #[test]
    fn a_key_with_a_list_names_what_is_in_it() {
        let set = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<BTreeSet<String>>();
        let check = |is_of_cloudflare, allowed: Option<&[&str]>, named: Option<&[&str]>| {
            let (allowed, named) = (allowed.map(set), named.map(set));
            held("purgeCache", is_of_cloudflare, "zone", allowed.as_ref(), named.as_ref())
                .map_err(|error| error.message)
        };
        assert_eq!(check(true, None, Some(&["z1"])), Ok(()), "without a list nothing is narrowed");
        assert_eq!(check(true, Some(&["z1", "z2"]), Some(&["z2"])), Ok(()));
        assert_eq!(check(false, Some(&["z1"]), None), Ok(()), "a tool that has nothing to do with zones");
        for (named, text) in
            [(Some(&["z1", "z9"][..]), "\"z9\""), (Some(&[][..]), "names no zone"), (None, "names no zone")]
        {
            assert!(check(true, Some(&["z1"]), named).unwrap_err().contains(text), "{named:?}");
        }
        assert!(check(false, Some(&["z1"]), Some(&[])).is_err(), "an argument that was left out");
        assert!(check(true, Some(&[]), Some(&["z1"])).is_err(), "an empty list allows nothing");
    }

    #[test]
    fn a_key_with_a_list_of_secrets_names_no_others() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<String>>();
        let asked =
            |named: &[&str]| Requirement { named: Named { secrets: names(named), ..Named::default() }, ..exec() };
        let limited =
            |allowed: &[&str]| Permissions { secrets: Some(names(allowed)), ..Permissions::of(Role::Operator) };
        let text = |permissions: &Permissions, requirement: &Requirement| {
            permissions.check_named(requirement).err().map(|error| (error.code, error.message))
        };
        assert_eq!(text(&Permissions::of(Role::Operator), &asked(&["a"])), None, "without a list nothing is narrowed");
        assert_eq!(text(&limited(&["a", "b"]), &asked(&["a"])), None);
        assert_eq!(text(&limited(&[]), &asked(&[])), None, "a call that names none");
        let (code, message) = text(&limited(&["a"]), &asked(&["a", "z"])).unwrap();
        assert!(code == ErrorCode::Forbidden && message.contains("the secret \"z\""), "{message}");
        let step = StepRequirement { pointer: "/steps/0/tool".into(), requirement: asked(&["z"]) };
        let pipeline = Requirement { steps: vec![step], ..asked(&[]) };
        assert!(text(&limited(&["a"]), &pipeline).unwrap().1.starts_with("steps.0.tool: "));
        assert_eq!(limited(&["a"]).covers(&limited(&["a", "b"])), Err("secrets"));
        assert_eq!(limited(&["a", "b"]).narrowed(&limited(&["b", "c"])).secrets, Some(names(&["b"])));
    }

    #[test]
    fn labels_hide_what_lacks_them_and_mark_what_is_made() {
        let mut permissions = Permissions::of(Role::Operator);
        assert!(permissions.sees(&labels(&[])));
        permissions.sandbox_labels = labels(&[("team", "a")]);
        assert!(permissions.sees(&labels(&[("team", "a"), ("x", "y")])));
        assert!(!permissions.sees(&labels(&[("team", "b")])) && !permissions.sees(&labels(&[])));
        assert_eq!(permissions.labelled(labels(&[("x", "y")])).unwrap(), labels(&[("team", "a"), ("x", "y")]));
        assert_eq!(permissions.labelled(labels(&[("team", "b")])).unwrap_err().code, ErrorCode::Forbidden);
    }

    #[test]
    fn narrowing_never_widens() {
        let narrow = Permissions {
            scopes: Some([Scope::SandboxRead, Scope::SandboxExec].into()),
            sandbox_labels: labels(&[("team", "a")]),
            ..Permissions::of(Role::Operator)
        };
        let wide = Permissions { scopes: Some([Scope::SandboxRead].into()), ..Permissions::of(Role::Admin) };
        let both = narrow.narrowed(&wide);
        assert_eq!(both.role, Role::Operator);
        assert_eq!(both.scopes, Some([Scope::SandboxRead].into()));
        assert_eq!(narrow.covers(&both), Ok(()));
        assert_eq!(wide.covers(&both), Ok(()));
        assert_eq!(narrow.covers(&wide), Err("role"));
        assert_eq!(wide.covers(&narrow), Err("scopes"));
        let unlabelled = Permissions { sandbox_labels: BTreeMap::new(), ..narrow.clone() };
        assert_eq!(narrow.covers(&unlabelled), Err("sandboxLabels"));
        let elsewhere = Permissions { sandbox_labels: labels(&[("team", "b")]), ..Permissions::of(Role::Operator) };
        let neither = narrow.narrowed(&elsewhere);
        assert_eq!((&neither.sandbox_labels, &neither.tools), (&narrow.sandbox_labels, &Some(BTreeSet::new())));
        let everything = Permissions { scopes: None, ..narrow.clone() };
        assert_eq!(narrow.covers(&everything), Err("scopes"));
    }
}
