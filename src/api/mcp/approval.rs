//! Calls that wait for an approval, told as a question where the client can ask its user: the stateless revision's `input_required`.
//!
//! ```text
//!  call ─▶ job, awaiting approval ─▶ question, with a state that only this call of this key can bring back
//!                                        │
//!  retry ◀── wait? ──────────────────────┘
//!    │ yes: until somebody has decided and it was carried out, and if that takes too long the question again
//!    └ no:  the job, which goes on waiting
//! ```
//!
//! The question asks whether to wait, and nothing else: who asks for a call never approves it, and an answer makes no second one.

use serde_json::{Map, Value, json};

use super::envelope::{Fault, INVALID_PARAMS};
use crate::tenant::credential::Principal;
use crate::tenant::signing::{Purpose, Signer};

/// Times that one call is asked about. Clients give up after ten.
const MOST_ROUNDS: u32 = 8;

/// The question's key, and the field of its form.
const QUESTION: &str = "approval";
const WAIT: &str = "wait";

const CAPABILITIES_FIELD: &str = "io.modelcontextprotocol/clientCapabilities";

/// Whether the client can show its user a form.
pub fn can_ask(params: &Map<String, Value>) -> bool {
    let capabilities = params.get("_meta").and_then(|meta| meta.get(CAPABILITIES_FIELD));
    let elicitation = capabilities.and_then(|capabilities| capabilities.get("elicitation")).and_then(Value::as_object);
    // One that names no mode means forms, as it did before there were others.
    elicitation.is_some_and(|modes| modes.is_empty() || modes.get("form").is_some_and(Value::is_object))
}

/// A call that was asked about, made again with what its user said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    pub state: String,
    /// Whether the user waits for the decision.
    pub waits: bool,
}

/// Reads what a retry brings; nothing where the call is a new one.
pub fn retry(params: &mut Map<String, Value>) -> Result<Option<Retry>, Fault> {
    let answers = params.remove("inputResponses").filter(|answers| !answers.is_null());
    let answer = answers.as_ref().and_then(|answers| answers.get(QUESTION));
    match params.remove("requestState") {
        Some(Value::String(state)) => {
            let accepted = answer.is_some_and(|answer| answer.get("action") == Some(&json!("accept")));
            let content = answer.and_then(|answer| answer.get("content")?.get(WAIT));
            Ok(Some(Retry { state, waits: accepted && content != Some(&Value::Bool(false)) }))
        }
        None | Some(Value::Null) if answers.is_none() => Ok(None),
        _ => Err(Fault::new(200, INVALID_PARAMS, "requestState: must be the one that the question came with")),
    }
}

/// One call that is asked about: only with the same key, tool and arguments its state is taken back.
#[derive(Clone, Copy)]
pub struct Waiting<'a> {
    pub signer: &'a Signer,
    pub principal: &'a Principal,
    pub tool: &'a str,
    /// As JSON.
    pub arguments: &'a str,
}

/// A job that was asked about so many times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    pub job_id: String,
    pub number: u32,
}

impl Round {
    pub fn first(job_id: &str) -> Self {
        Self { job_id: job_id.to_owned(), number: 1 }
    }

    /// The next one, where there is one more.
    pub fn next(self) -> Option<Self> {
        (self.number < MOST_ROUNDS).then(|| Self { number: self.number + 1, ..self })
    }
}

impl Waiting<'_> {
    /// The state that goes with a question; nothing where no secret is there to sign it.
    pub fn state(&self, round: &Round) -> Option<String> {
        let signature = self.signer.sign(Purpose::RequestState, &self.principal.tenant, &self.message(round)).ok()?;
        Some(format!("{}.{}.{}", round.number, round.job_id, hex::encode(signature)))
    }

    /// The round whose state this is, where it was signed for this call.
    pub fn round(&self, state: &str) -> Result<Round, Fault> {
        let mut parts = state.split('.');
        let round = match (parts.next(), parts.next(), parts.next().map(hex::decode), parts.next()) {
            (Some(number), Some(job_id), Some(Ok(signature)), None) => {
                let round = number.parse().ok().map(|number| Round { job_id: job_id.to_owned(), number });
                round.filter(|round| {
                    let (tenant, message) = (&self.principal.tenant, self.message(round));
                    signature.len() == 32 && self.signer.verify(Purpose::RequestState, tenant, &message, &signature)
                })
            }
            _ => None,
        };
        round.ok_or_else(|| Fault::new(200, INVALID_PARAMS, "requestState: is not that of this call"))
    }

    fn message(&self, round: &Round) -> Vec<u8> {
        let Round { job_id, number } = round;
        // Neither a holder, nor a tool that there is, nor JSON on one line holds a line end.
        let holder = self.principal.holder();
        format!("{holder}\n{}\n{}\n{job_id}\n{number}", self.tool, self.arguments).into_bytes()
    }
}

/// The question whether to wait.
pub fn question(tool: &str, job_id: &str, expires_at: Option<&str>, state: &str) -> Value {
    let until = expires_at.map(|time| format!(", until {time}")).unwrap_or_default();
    let message = format!(
        "{tool} waits for an approval, as the job {job_id}. Somebody with another key approves or rejects it{until}; an answer here \
         does neither."
    );
    let wait = json!({
        "type": "boolean",
        "title": "Wait for the decision",
        "description": "Yes: the call is answered once somebody has decided. No: it is answered with its job, which goes on waiting.",
        "default": true,
    });
    let schema = json!({ "type": "object", "properties": { WAIT: wait }, "required": [WAIT] });
    let params = json!({ "mode": "form", "message": message, "requestedSchema": schema });
    json!({
        "resultType": "input_required",
        "inputRequests": { QUESTION: { "method": "elicitation/create", "params": params } },
        "requestState": state,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tenant::credential::Credential;

    fn object(value: Value) -> Map<String, Value> {
        let Value::Object(fields) = value else { panic!("{value}") };
        fields
    }

    #[test]
    fn forms_are_shown_by_clients_that_say_so() {
        let can = |capabilities: Value| can_ask(&object(json!({ "_meta": { CAPABILITIES_FIELD: capabilities } })));
        assert!(can(json!({ "elicitation": {} })));
        assert!(can(json!({ "elicitation": { "form": {}, "url": {} } })));
        for other in [json!({}), json!({ "elicitation": { "url": {} } }), json!({ "elicitation": true }), json!(null)] {
            assert!(!can(other.clone()), "{other}");
        }
        assert!(!can_ask(&Map::new()));
    }

    #[test]
    fn only_who_accepts_waits() {
        let said = |answer: Value| {
            let mut params =
                object(json!({ "name": "exec", "inputResponses": { "approval": answer }, "requestState": "s" }));
            let retry = retry(&mut params).unwrap().unwrap();
            assert_eq!(params, object(json!({ "name": "exec" })));
            retry.waits
        };
        assert!(said(json!({ "action": "accept", "content": { "wait": true } })));
        assert!(said(json!({ "action": "accept" })));
        assert!(!said(json!({ "action": "accept", "content": { "wait": false } })));
        for other in [json!({ "action": "decline" }), json!({ "action": "cancel" }), json!("accept"), json!(null)] {
            assert!(!said(other.clone()), "{other}");
        }
        assert_eq!(retry(&mut object(json!({ "name": "exec" }))), Ok(None));
        for params in
            [json!({ "inputResponses": { "approval": { "action": "accept" } } }), json!({ "requestState": 5 })]
        {
            assert_eq!(retry(&mut object(params)).unwrap_err().code, INVALID_PARAMS);
        }
    }

    #[test]
    fn a_state_is_taken_back_with_the_same_call_of_the_same_key_only() {
        let signer = Signer::new(Some("a-secret-of-the-tests"));
        let who =
            |key_id: &str| Principal { tenant: "default".into(), key_id: key_id.into(), credential: Credential::Root };
        let (mine, other) = (who("mine"), who("other"));
        let waiting = Waiting { signer: &signer, principal: &mine, tool: "exec", arguments: r#"{"command":"true"}"# };
        let round = Round::first("j-1");
        let state = waiting.state(&round).unwrap();
        assert_eq!(waiting.round(&state), Ok(round));
        let forged = Signer::new(Some("another-secret-of-the-tests"));
        for foreign in [
            Waiting { principal: &other, ..waiting },
            Waiting { tool: "createSandbox", ..waiting },
            Waiting { arguments: r#"{"command":"false"}"#, ..waiting },
            Waiting { signer: &forged, ..waiting },
        ] {
            assert_eq!(foreign.round(&state).unwrap_err().code, INVALID_PARAMS);
        }
        let signature = state.rsplit('.').next().unwrap();
        for changed in [
            format!("2.j-1.{signature}"),
            format!("1.j-2.{signature}"),
            format!("1.j-1.{}", &signature[..16]),
            "1.j-1.".to_owned(),
            "1.j-1".to_owned(),
            format!("{state}.x"),
            String::new(),
        ] {
            assert!(waiting.round(&changed).is_err(), "{changed}");
        }
    }

    #[test]
    fn one_call_is_not_asked_about_for_ever() {
        let mut round = Some(Round::first("j"));
        let mut rounds = 0;
        while let Some(now) = round {
            rounds += 1;
            round = now.next();
        }
        assert_eq!(rounds, MOST_ROUNDS);
    }
}
