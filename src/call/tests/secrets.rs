//! Named secrets: set without a trace, used by name, and only by keys that may.

use super::*;
use crate::tenant::permissions::StepRequirement;
use crate::tenant::{sealing, token};

const SIGNING: &str = "signing-signing-signing";
const EARLIER: &str = "earlier-earlier-earlier";
const VALUE: &str = "npm_s3cr3t-value";
const RANDOM: [[u8; 16]; 2] = [[1; 16], [2; 16]];

fn double() -> Double {
    Double(Rc::default(), Signer::new(Some(&format!("{SIGNING},{EARLIER}"))))
}

/// The double with the secret `npm`, sealed with this value of `SIGNING_SECRET`.
fn with_npm(configured: &str) -> Double {
    let double = double();
    let sealed = sealing::seal(&Signer::new(Some(configured)), "default", "npm", VALUE, RANDOM).unwrap();
    double.0.secrets.borrow_mut().insert("npm".to_owned(), sealed);
    double
}

/// The code of a call with a token of the root key that has these permissions.
fn by_token(double: &Double, permissions: Permissions, tool: &str, arguments: Value) -> (ErrorCode, String) {
    let token = token::make(&double.1, "default", "root", "t".to_owned(), permissions, 1_000, 600).unwrap();
    let error = call(double, &token, tool, Ok(arguments)).unwrap_err();
    (error.code, error.message)
}

#[test]
fn a_value_that_is_set_is_sealed_and_left_nowhere_else() {
    let double = double();
    let arguments = json!({ "name": "npm", "value": VALUE, "description": "what publishes" });
    // The double has no record of it to answer.
    assert_eq!(code(&call(&double, KEY, "setSecret", Ok(arguments))), Some(ErrorCode::Internal));
    let requests = double.0.secret_requests.borrow();
    let [SecretRequest::Set { name, sealed, description, .. }] = requests.as_slice() else { panic!("{requests:?}") };
    assert_eq!((name.as_str(), description.as_deref()), ("npm", Some("what publishes")));
    let opened = sealing::open(&double.1, "default", "npm", sealed).unwrap();
    assert!(opened.value == VALUE && opened.is_current);
    let intent = double.0.intents.borrow()[0].clone();
    assert_eq!((intent.arguments["value"].as_str(), intent.manner), (Some("[not recorded]"), Manner::Immediate));
    assert!(intent.requirement.named.secrets.contains("npm") && intent.requirement.uses.is_empty());
    assert_eq!(intent.arguments_signature, None, "guesses of the value could be compared with it");
    let traces = format!("{:?} {:?} {requests:?}", double.0.logged.borrow(), double.0.settlements.borrow());
    assert!(!traces.contains(VALUE), "{traces}");
}

#[test]
fn an_impossible_value_is_refused_by_its_field_and_not_repeated() {
    let double = double();
    let long = "é".repeat(20_000);
    for value in [json!("short"), json!("       \n     x"), json!("with\0zero-and-more"), json!(long), json!([VALUE])] {
        let error = call(&double, KEY, "setSecret", Ok(json!({ "name": "npm", "value": value }))).unwrap_err();
        assert_eq!(
            (error.code, &error.details["violations"][0]["pointer"]),
            (ErrorCode::InvalidArguments, &"/value".into())
        );
        let told = format!("{} {:?}", error.message, error.details);
        assert!(!told.contains(VALUE) && !told.contains("with\0zero") && told.len() < 1000, "{told}");
    }
    assert!(double.0.intents.borrow().iter().all(|intent| intent.arguments_signature.is_none()));
    let nothing = Double::default();
    let error = call(&nothing, KEY, "setSecret", Ok(json!({ "name": "npm", "value": VALUE }))).unwrap_err();
    assert_eq!((error.code, &error.details["secret"]), (ErrorCode::NotConfigured, &"SIGNING_SECRET".into()));
    assert!(nothing.0.secret_requests.borrow().is_empty());
}

#[test]
fn a_command_gets_the_value_and_nothing_else_does() {
    let double = with_npm(SIGNING);
    let arguments = json!({ "command": "npm publish", "env": { "A": "b" }, "secrets": { "NPM": "npm" } });
    // The double has no machine that runs anything.
    assert!(call(&double, KEY, "exec", Ok(arguments)).is_err());
    let sent: Value = serde_json::from_str(&double.0.controls.borrow()[0]).unwrap();
    assert_eq!(sent["env"], json!({ "A": "b", "NPM": VALUE, "SANDBOX_SECRETS": "NPM" }));
    let intents = double.0.intents.borrow();
    assert_eq!(intents[0].arguments["secrets"], json!({ "NPM": "npm" }), "which secret it was is recorded");
    assert!(intents[0].arguments_signature.is_some());
    assert_eq!(intents[0].requirement.uses["/secrets/NPM"], "npm");
    assert!(double.0.secret_requests.borrow().is_empty(), "it is under the first value already");
    let stored = serde_json::to_string(&*intents).unwrap();
    let traces = format!("{stored} {:?} {:?}", double.0.logged.borrow(), double.0.settlements.borrow());
    assert!(!traces.contains(VALUE), "{traces}");
}

#[test]
fn a_value_under_an_earlier_signing_secret_is_used_and_put_under_the_first() {
    let double = with_npm(EARLIER);
    let arguments = json!({ "command": "x", "secrets": { "NPM": "npm" } });
    assert!(call(&double, KEY, "exec", Ok(arguments.clone())).is_err());
    assert!(double.0.controls.borrow()[0].contains(VALUE));
    let requests = double.0.secret_requests.borrow();
    let [SecretRequest::Reseal { name, from, to }] = requests.as_slice() else { panic!("{requests:?}") };
    assert_eq!((name.as_str(), from), ("npm", &double.0.secrets.borrow()["npm"]));
    let first_alone = Signer::new(Some(SIGNING));
    assert_eq!(sealing::open(&first_alone, "default", "npm", to).unwrap().value, VALUE);
    // One that no configured value opens: nothing is begun.
    let lost = with_npm("other-other-other-other");
    let error = call(&lost, KEY, "exec", Ok(arguments)).unwrap_err();
    assert_eq!((error.code, &error.details["secretName"]), (ErrorCode::NotConfigured, &"npm".into()));
    assert!(lost.0.controls.borrow().is_empty() && lost.0.created.borrow().is_empty());
}

#[test]
fn a_sandbox_is_given_names_alone() {
    let double = with_npm(SIGNING);
    call(&double, KEY, "createSandbox", Ok(json!({ "id": "box", "secrets": { "NPM": "npm" } }))).unwrap();
    let created = serde_json::to_value(&double.0.created.borrow()[0]).unwrap();
    assert_eq!(created["settings"]["secrets"], json!({ "NPM": "npm" }));
    assert!(!created.to_string().contains(VALUE));
}

#[test]
fn who_may_not_use_secrets_runs_commands_without_them() {
    let double = with_npm(SIGNING);
    let exec = json!({ "command": "x", "secrets": { "NPM": "npm" } });
    let scoped = |scopes: &[Scope]| Permissions {
        scopes: Some(scopes.iter().copied().collect()),
        ..Permissions::of(Role::Admin)
    };
    let (code, message) = by_token(&double, scoped(&[Scope::SandboxExec]), "exec", exec.clone());
    assert!(code == ErrorCode::Forbidden && message.contains("secrets:use"), "{message}");
    let both = scoped(&[Scope::SandboxExec, Scope::SecretsUse]);
    assert_eq!(by_token(&double, both, "exec", exec.clone()).0, ErrorCode::Internal, "the double has no machine");
    let listed = |names: &[&str]| Permissions {
        secrets: Some(names.iter().map(|name| (*name).to_owned()).collect()),
        ..Permissions::of(Role::Admin)
    };
    let others = listed(&["other"]);
    let (code, message) = by_token(&double, others.clone(), "exec", exec.clone());
    assert!(code == ErrorCode::Forbidden && message.contains("\"npm\""), "{message}");
    assert_eq!(by_token(&double, listed(&["npm"]), "exec", exec).0, ErrorCode::Internal);
    for (tool, arguments) in
        [("setSecret", json!({ "name": "npm", "value": VALUE })), ("deleteSecret", json!({ "name": "npm" }))]
    {
        assert_eq!(by_token(&double, others.clone(), tool, arguments).0, ErrorCode::Forbidden, "{tool}");
    }
    drop(call(&double, KEY, "listSecrets", Ok(json!({}))).unwrap());
    let reads = token::make(&double.1, "default", "root", "t".to_owned(), others, 1_000, 600).unwrap();
    call(&double, &reads, "listSecrets", Ok(json!({ "limit": 5 }))).unwrap();
    let requests = double.0.secret_requests.borrow();
    let only = Some(["other".to_owned()].into());
    assert_eq!(requests.last(), Some(&SecretRequest::List { after: None, limit: 5, only }));
}

#[test]
fn a_job_is_begun_again_only_by_who_may_use_its_secrets() {
    let double = with_npm(SIGNING);
    double.0.defers.set(true);
    let exec = json!({ "command": "x", "secrets": { "NPM": "npm" } });
    let waits = answered(&double, ToolCall { head: head(KEY), tool: "exec".into(), arguments: Ok(exec) });
    let Ok(Reply::Job(job)) = waits.result else { panic!("it waits") };
    double.0.defers.set(false);
    let listed = |name: &str| Permissions { secrets: Some([name.to_owned()].into()), ..Permissions::of(Role::Admin) };
    for arguments in [json!({ "jobId": job.job_id }), json!({ "jobId": job.job_id, "dryRun": true })] {
        let (code, message) = by_token(&double, listed("other"), "retryJob", arguments.clone());
        assert!(code == ErrorCode::Forbidden && message.contains("\"npm\""), "{message}");
        let may = token::make(&double.1, "default", "root", "t".to_owned(), listed("npm"), 1_000, 600).unwrap();
        call(&double, &may, "retryJob", Ok(arguments)).unwrap();
    }
}

#[test]
fn a_value_is_no_argument_of_anything_that_is_stored() {
    let double = double();
    let set = json!({ "name": "a", "tool": "setSecret", "arguments": { "name": "npm", "value": VALUE } });
    let error = call(&double, KEY, "runPipeline", Ok(json!({ "steps": [set] }))).unwrap_err();
    assert_eq!(
        (error.code, &error.details["violations"][0]["pointer"]),
        (ErrorCode::InvalidArguments, &"/steps/0/tool".into())
    );
    assert!(double.0.seeds.borrow().is_empty());
    // A step that uses one names it.
    let used = json!({ "name": "a", "tool": "exec", "arguments": { "command": "x", "secrets": { "NPM": "npm" } } });
    let call = ToolCall { head: head(KEY), tool: "runPipeline".into(), arguments: Ok(json!({ "steps": [used] })) };
    assert!(matches!(answered(&double, call).result, Ok(Reply::Job(_))));
    let intents = double.0.intents.borrow();
    let [StepRequirement { requirement, .. }] = intents.last().unwrap().requirement.steps.as_slice() else { panic!() };
    assert_eq!(requirement.uses["/secrets/NPM"], "npm");
}
