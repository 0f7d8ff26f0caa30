//! The registry: every operation is a tool, described once.
//!
//! [`Tool`] is what one file under `tools/` implements. [`Entry`] is the same without its types, and the [`Registry`] keeps
//! the entries in a stable order. Doors, OpenAPI and the guardrails read only from here.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use jsonschema::Validator;
use jsonschema::error::ValidationErrorKind;
use ops_api::alias;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::error::{Error, Result};
use crate::events::{EventSink, Resumed};
use crate::guardrails::{Annotations, Execution, Guardrails, Scope};
use crate::named::{Named, Places};
use crate::plan::{self, Ending, Step};
use crate::platform::Platform;
use crate::preview::{self, DryRun};
use crate::raw::{RawContract, RawRequest, RawResponse, RawTool};
use crate::sandbox::record::{Create, GitSource, Record};
use crate::sandbox::settings::Settings;
use crate::schema;
use crate::services::Services;
use crate::tenant::admission::{Listed, SandboxClaim};
use crate::tenant::credential::{Credential, Principal};
use crate::tenant::limits::Limits;
use crate::tenant::permissions::{Permissions, Requirement};
use crate::tenant::secrets::SealedSecrets;
use crate::whole;
use redaction::{Redactor, without_credentials, without_userinfo};

/// Most problems that one refusal lists.
const MOST_VIOLATIONS: usize = 20;

/// A method of HTTP that a resource route can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Method {
    Get,
    Head,
    Post,
    Put,
    Patch,
    Delete,
}

impl Method {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
        }
    }
}

/// A resource route beside `/v1/tools/{name}`. A `{parameter}` of the path is the argument of that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Route {
    pub method: Method,
    pub path: &'static str,
}

/// What is known of a call while its arguments are checked.
pub struct CallFacts<'a> {
    /// Whether the call may last as long as a stream: its caller reads events as they come, or it can be a job, for which
    /// nobody holds a connection open.
    pub streams: bool,
    /// Every tool that there is.
    pub registry: &'a Registry,
    pub platform: &'a dyn Platform,
    /// Masks what must not be recorded.
    pub redactor: &'a Redactor,
}

/// What a running tool has at hand.
#[derive(Clone)]
pub struct Context {
    pub call_id: String,
    pub principal: Principal,
    /// What the caller may do.
    pub permissions: Permissions,
    /// Limits of the caller's key; the root key has none.
    pub limits: Option<Limits>,
    pub claim: SandboxClaim,
    /// The claimed sandbox as it was listed before the call.
    pub listed: Option<Listed>,
    /// When the call was admitted.
    pub admitted_at: i64,
    /// The process that it runs as already: it is gone on with, and none is begun.
    pub resumes: Option<Resumed>,
    /// The named secrets that it uses, sealed.
    pub secrets: SealedSecrets,
    pub services: Services,
}

impl Context {
    /// Whether a job carries the call out, which outlives whoever asked for it.
    pub fn is_of_a_job(&self) -> bool {
        matches!(self.principal.credential, Credential::Job { .. })
    }

    /// Makes and starts the sandbox that the call claimed to create.
    pub async fn create_sandbox(&self, settings: Settings, git: Option<GitSource>) -> Result<Record> {
        let listed = Listed::new(&self.claim, self.admitted_at, &self.principal.key_id);
        let listed = listed.ok_or_else(|| Error::internal("the call claimed no creation"))?;
        // The caller's own labels were added when the call was admitted; here they are added to what is stored of it.
        let listed = Listed { labels: self.permissions.labelled(listed.labels)?, ..listed };
        let settings = Settings { labels: self.permissions.labelled(settings.labels)?, ..settings };
        self.services.sandboxes.create(&Create { listed, settings, git }).await
    }
}

/// One operation.
pub trait Tool: 'static {
    /// camelCase, `^[a-zA-Z][a-zA-Z0-9]{0,40}$`.
    const NAME: &'static str;
    /// For a person and for a model: what it does, what it returns, what it refuses.
    const DESCRIPTION: &'static str;
    const ROUTES: &'static [Route];
    const ANNOTATIONS: Annotations;
    const GUARDRAILS: Guardrails;
    const EXECUTION: Execution;

    type Input: DeserializeOwned + ToSchema + 'static;
    type Output: Serialize + ToSchema + 'static;

    /// Checks what the schema cannot say, and names the sandbox that the call is about.
    fn claim(input: &Self::Input, facts: &CallFacts<'_>) -> Result<SandboxClaim>;

    /// Seconds that the tool may take for this input, the start of a sandbox not counted.
    fn timeout_seconds(_input: &Self::Input) -> f64 {
        f64::from(Self::GUARDRAILS.default_timeout)
    }

    /// The steps of a tool that is a pipeline, for the attempt of that id: the same whenever it is asked.
    fn plan(_input: &Self::Input, _attempt_id: &str) -> Result<Vec<Step>> {
        Ok(Vec::new())
    }

    /// The arguments once they were checked, with what follows from them and from the tools that there are.
    fn resolved(input: Self::Input, _facts: &CallFacts<'_>) -> Result<Self::Input> {
        Ok(input)
    }

    /// JSON pointers of the arguments of this call that the audit records as present, without their values.
    fn unrecorded(_arguments: &Value, _registry: &Registry) -> Vec<String> {
        Self::GUARDRAILS.unrecorded_arguments.iter().map(|pointer| (*pointer).to_owned()).collect()
    }

    /// Whether a call that began and ended so may have changed something that can be undone: where it surely did not, the roll-back of its
    /// step does not run.
    fn may_have_acted(ending: &Ending) -> bool {
        ending.may_have_acted()
    }

    /// What the call would do, a sentence each, found out without changing anything. Only asked of tools that are destructive.
    fn preview(context: Context, _input: Self::Input) -> impl Future<Output = Result<Vec<String>>> {
        std::future::ready(preview::in_sandbox(&context, format!("{}.", Self::ANNOTATIONS.title)))
    }

    fn call(
        context: Context,
        input: Self::Input,
        events: Rc<dyn EventSink>,
    ) -> impl Future<Output = Result<Self::Output>>;
}

/// A call that is ready to be admitted. `A` is what it answers.
pub struct Prepared<A> {
    pub claim: SandboxClaim,
    /// Arguments as the audit records them.
    pub recorded: Value,
    /// Whether it only says what it would do.
    pub is_preview: bool,
    /// How long it may take, the start of its sandbox not counted.
    pub timeout: Duration,
    /// After this the call has no outcome.
    pub deadline: Duration,
    pub act: Act<A>,
}

/// The work of a call, once it is admitted.
pub type Act<A> = Box<dyn FnOnce(Context, Rc<dyn EventSink>) -> LocalBoxFuture<'static, Result<A>>>;

type PrepareRaw = fn(RawRequest, &CallFacts<'_>) -> Result<Prepared<RawResponse>>;

/// What a client is told of a tool.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Description {
    pub name: &'static str,
    pub description: &'static str,
    pub input_schema: Value,
    pub output_schema: Value,
    pub annotations: Annotations,
    pub guardrails: Guardrails,
    pub execution: Execution,
    pub routes: &'static [Route],
    pub raw_routes: &'static [Route],
    #[serde(skip)]
    pub raw_contract: Option<&'static RawContract>,
}

impl Description {
    /// What the tool asks of its caller.
    pub fn requirement(&self) -> Requirement {
        let Guardrails { role, scopes, approval, .. } = self.guardrails;
        let destructive = self.annotations.destructive_hint;
        let named = Named::default();
        let (scopes, steps, uses) = (scopes.to_vec(), Vec::new(), BTreeMap::new());
        Requirement { tool: self.name.to_owned(), role, scopes, approval, destructive, named, uses, steps }
    }
}

/// A sandbox may have to be started before a tool can act on it.
const START_ALLOWANCE: Duration = Duration::from_secs(35);

/// What a tool is given beyond its own timeout to tell how it ended.
const ANSWER_ALLOWANCE: Duration = Duration::from_secs(25);

/// A tool without its types.
pub struct Entry {
    description: Description,
    /// Where its arguments name zones, accounts and secrets.
    places: Places,
    validator: OnceCell<Result<Validator, Error>>,
    prepare: fn(Value, &CallFacts<'_>) -> Result<Prepared<Value>>,
    plan: fn(Value, &str) -> Result<Vec<Step>>,
    unrecorded: fn(&Value, &Registry) -> Vec<String>,
    may_have_acted: fn(&Ending) -> bool,
    prepare_raw: Option<PrepareRaw>,
}

impl Entry {
    pub fn of<T: Tool>() -> Self {
        let mut input_schema = schema::self_contained::<T::Input>();
        if T::ANNOTATIONS.destructive_hint {
            preview::add_to(&mut input_schema);
        }
        whole::bound(&mut input_schema);
        Self {
            places: Places::of(&input_schema),
            description: Description {
                name: T::NAME,
                description: T::DESCRIPTION,
                input_schema,
                output_schema: schema::self_contained::<T::Output>(),
                annotations: T::ANNOTATIONS,
                guardrails: T::GUARDRAILS,
                execution: T::EXECUTION,
                routes: T::ROUTES,
                raw_routes: &[],
                raw_contract: None,
            },
            validator: OnceCell::new(),
            prepare: prepare::<T>,
            plan: plan::<T>,
            unrecorded: T::unrecorded,
            may_have_acted: T::may_have_acted,
            prepare_raw: None,
        }
    }

    /// A tool that serves raw bytes as well.
    pub fn of_raw<T: RawTool>() -> Self {
        let mut entry = Self::of::<T>();
        entry.description.raw_routes = T::RAW_ROUTES;
        entry.description.raw_contract = Some(const { &T::RAW_CONTRACT });
        entry.prepare_raw = Some(crate::raw::prepare::<T>);
        entry
    }

    pub fn description(&self) -> &Description {
        &self.description
    }

    /// What a call with these arguments asks of its caller.
    pub fn requirement(&self, arguments: &Value, registry: &Registry) -> Requirement {
        let named = self.places.named(arguments);
        let steps = self.plan(arguments, "").map(|steps| plan::requirements(&steps, registry)).unwrap_or_default();
        let mut requirement = self.description.requirement();
        // Who manages secrets names them; every other tool uses what it names.
        if !self.description.guardrails.scopes.contains(&Scope::SecretsWrite) {
            requirement.uses = self.places.secrets(arguments);
        }
        if !requirement.uses.is_empty() {
            requirement.scopes.push(Scope::SecretsUse);
        }
        // What a pipeline destroys its steps destroy, and each of them is judged by itself.
        let destructive = requirement.destructive && steps.is_empty();
        Requirement { named, steps, destructive, ..requirement }
    }

    /// The steps of the attempt of that id, where the tool is a pipeline.
    pub fn plan(&self, arguments: &Value, attempt_id: &str) -> Result<Vec<Step>> {
        match self.description.execution {
            Execution::Job => (self.plan)(arguments.clone(), attempt_id),
            _ => Ok(Vec::new()),
        }
    }

    /// JSON pointers of arguments of this call whose values the audit leaves out.
    pub fn unrecorded(&self, arguments: &Value, registry: &Registry) -> Vec<String> {
        (self.unrecorded)(arguments, registry)
    }

    /// Whether a call that began and ended so may have changed something that can be undone.
    pub fn may_have_acted(&self, ending: &Ending) -> bool {
        (self.may_have_acted)(ending)
    }

    /// Validates `arguments` and makes the call ready; the first error is the verdict on the call.
    pub fn prepare(&self, arguments: Value, facts: &CallFacts<'_>) -> Result<Prepared<Value>> {
        self.validate(&arguments)?;
        (self.prepare)(arguments, facts)
    }

    /// The same for a raw route.
    pub fn prepare_raw(&self, request: RawRequest, facts: &CallFacts<'_>) -> Result<Prepared<RawResponse>> {
        match self.prepare_raw {
            Some(prepare) => prepare(request, facts),
            None => Err(Error::internal(format!("{} has no raw routes", self.description.name))),
        }
    }

    fn validate(&self, arguments: &Value) -> Result<()> {
        let compiled = self
            .validator
            .get_or_init(|| jsonschema::validator_for(&self.description.input_schema).map_err(Error::internal));
        validate(compiled.as_ref().map_err(Clone::clone)?, arguments)
    }
}

/// Holds a value against its schema; what is wrong is named.
pub fn validate(validator: &jsonschema::Validator, value: &Value) -> Result<()> {
    let violations: Vec<(String, String)> =
        validator.iter_errors(value).take(MOST_VIOLATIONS).map(|error| violation(&error)).collect();
    if violations.is_empty() { Ok(()) } else { Err(Error::violations(&violations)) }
}

/// Pointer of the field at fault and what is wrong with it. The value itself is not repeated: it may be a secret or large.
fn violation(error: &jsonschema::ValidationError<'_>) -> (String, String) {
    let parent = error.instance_path().to_string();
    let child = |name: &str| format!("{parent}/{}", name.replace('~', "~0").replace('/', "~1"));
    match error.kind() {
        ValidationErrorKind::AdditionalProperties { unexpected } => {
            let name = unexpected.first().map(String::as_str).unwrap_or_default();
            (child(name), "there is no such field".to_owned())
        }
        ValidationErrorKind::Required { property } => {
            (child(property.as_str().unwrap_or_default()), "is required".to_owned())
        }
        _ => (parent, error.masked_with("the value").to_string()),
    }
}

fn plan<T: Tool>(mut arguments: Value, attempt_id: &str) -> Result<Vec<Step>> {
    preview::take(&mut arguments);
    let input: T::Input =
        serde_json::from_value(whole_numbers(arguments)).map_err(|error| Error::invalid("", error.to_string()))?;
    T::plan(&input, attempt_id)
}

fn prepare<T: Tool>(mut arguments: Value, facts: &CallFacts<'_>) -> Result<Prepared<Value>> {
    let recorded = record::<T>(&arguments, facts);
    let is_preview = T::ANNOTATIONS.destructive_hint && preview::take(&mut arguments);
    let input: T::Input =
        serde_json::from_value(whole_numbers(arguments)).map_err(|error| Error::invalid("", error.to_string()))?;
    let claim = T::claim(&input, facts)?;
    let input = T::resolved(input, facts)?;
    let timeout = Duration::try_from_secs_f64(T::timeout_seconds(&input)).map_err(Error::internal)?;
    Ok(Prepared {
        claim: if is_preview { preview::claim(claim) } else { claim },
        recorded,
        is_preview,
        timeout,
        deadline: START_ALLOWANCE + timeout + ANSWER_ALLOWANCE,
        act: Box::new(move |context, events| {
            async move {
                if is_preview {
                    let effects = T::preview(context.clone(), input).await?;
                    return serde_json::to_value(DryRun::new(T::NAME, &context, effects)).map_err(Error::internal);
                }
                let output = T::call(context, input, events).await?;
                serde_json::to_value(output).map_err(Error::internal)
            }
            .boxed_local()
        }),
    })
}

/// `5.0` is an integer to JSON Schema, and so to every client; here it becomes `5`.
pub fn whole_numbers(value: Value) -> Value {
    match value {
        Value::Number(number) if number.is_f64() => match number.as_f64() {
            // Beyond 2^53 a double does not hold every integer.
            #[allow(clippy::cast_possible_truncation)]
            Some(double) if double.fract() == 0.0 && double.abs() <= 9_007_199_254_740_992.0 => json!(double as i64),
            _ => Value::Number(number),
        },
        Value::Array(items) => Value::Array(items.into_iter().map(whole_numbers).collect()),
        Value::Object(fields) => {
            Value::Object(fields.into_iter().map(|(name, value)| (name, whole_numbers(value))).collect())
        }
        other => other,
    }
}

/// Longest string that the audit keeps of an argument, in bytes.
const LONGEST_RECORDED_STRING: usize = 4096;

/// The arguments as the audit records them: values that may be secret are replaced by their kind, credentials in
/// URLs are masked, long ones are cut.
fn record<T: Tool>(arguments: &Value, facts: &CallFacts<'_>) -> Value {
    let mut recorded = arguments.clone();
    for pointer in T::unrecorded(arguments, facts.registry) {
        if let Some(value) = recorded.pointer_mut(&pointer) {
            *value = unrecorded(value);
        }
    }
    // Masked before it is cut: half a secret is not known again.
    bounded(shorten(facts.redactor.json(recorded)))
}

/// A record that is too long for the books says so instead.
pub fn bounded(recorded: Value) -> Value {
    let bytes = recorded.to_string().len();
    if bytes <= LONGEST_RECORD { recorded } else { json!({ NOT_RECORDED: format!("{bytes} bytes") }) }
}

/// Whether arguments were too long to be recorded.
pub fn is_not_recorded(recorded: &Value) -> bool {
    recorded.get(NOT_RECORDED).is_some()
}

const NOT_RECORDED: &str = "notRecorded";

/// Longest record of a call's arguments, in bytes of JSON.
const LONGEST_RECORD: usize = 64 * 1024;

fn unrecorded(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            Value::Object(fields.keys().map(|name| (name.clone(), json!("[not recorded]"))).collect())
        }
        _ => json!("[not recorded]"),
    }
}

fn shorten(value: Value) -> Value {
    match value {
        Value::String(text) => {
            let bytes = text.len();
            // What is masked may be longer than what is kept: it is looked for in a little more, and not in megabytes.
            let looked_at = text.get(..text.floor_char_boundary(3 * LONGEST_RECORDED_STRING)).unwrap_or_default();
            let mut text = without_credentials(&without_userinfo(looked_at));
            if bytes > LONGEST_RECORDED_STRING {
                text.truncate(text.floor_char_boundary(LONGEST_RECORDED_STRING));
                text = format!("{text}… [{bytes} bytes]");
            }
            Value::String(text)
        }
        Value::Array(items) => Value::Array(items.into_iter().map(shorten).collect()),
        Value::Object(fields) => {
            Value::Object(fields.into_iter().map(|(name, value)| (name, shorten(value))).collect())
        }
        other => other,
    }
}

/// Every tool, in a stable order.
pub struct Registry {
    entries: Vec<Entry>,
}

impl Registry {
    pub fn new(entries: Vec<Entry>) -> Self {
        Self { entries }
    }

    pub fn list(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }

    /// The tool of that name, or of that alias: `zones.list` and `zones:list` are `listZones`.
    pub fn get(&self, name: &str) -> Option<&Entry> {
        let named = |wanted: &str| self.entries.iter().find(|entry| entry.description.name == wanted);
        named(name).or_else(|| alias::targets(name).iter().find_map(|wanted| named(wanted)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_double_is_an_integer() {
        assert_eq!(whole_numbers(json!({ "a": [189.0, 1.5, 1e300] })), json!({ "a": [189, 1.5, 1e300] }));
    }

    #[test]
    fn long_arguments_are_cut_in_the_record() {
        let recorded = shorten(json!({ "a": ["é".repeat(LONGEST_RECORDED_STRING)] }));
        let text = recorded["a"][0].as_str().unwrap();
        assert!(text.len() < LONGEST_RECORDED_STRING + 40 && text.ends_with("[8192 bytes]"), "{text}");
    }
}
