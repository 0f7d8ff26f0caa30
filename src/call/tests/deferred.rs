//! Calls that become jobs, those of pipelines among them.

use super::*;

#[test]
fn a_call_that_waits_is_stored_whole_and_carried_out_as_it_was_signed() {
    let double = Double::default();
    double.0.defers.set(true);
    let arguments = json!({ "id": "box", "env": { "TOKEN": "s3cret" } });
    let call = ToolCall { head: head(KEY), tool: "createSandbox".into(), arguments: Ok(arguments.clone()) };
    let waits = answered(&double, call);
    let Ok(Reply::Job(job)) = &waits.result else { panic!("it waits") };
    assert!(!waits.has_begun && double.0.created.borrow().is_empty() && double.0.settlements.borrow().is_empty());
    let told = serde_json::to_string(job).unwrap();
    assert!(!told.contains("s3cret") && told.contains("[not recorded]"), "{told}");
    assert_eq!(double.0.logged.borrow()[0]["outcome"], "deferred");
    let seed = double.0.seeds.borrow()[0].clone();
    assert_eq!(seed.arguments, arguments.to_string());
    let attempt = |arguments: Value| {
        let attempt = Attempt {
            id: "call-1".into(),
            who: Principal {
                tenant: "default".into(),
                key_id: "root".into(),
                credential: Credential::Job { permissions: None, token_id: None, sandbox_created_at: None },
            },
            tool: "createSandbox".into(),
            arguments,
            arguments_signature: seed.order.arguments_signature.clone(),
            resumes: None,
            trace: Trace::of_request(None, None, || [6; 16]),
        };
        tools::registry().attempt(&double, attempt, Rc::new(NoEvents)).now_or_never().unwrap()
    };
    let other = attempt(json!({ "id": "box", "env": {} }));
    assert!(!other.has_begun && code(&output(other.result)) == Some(ErrorCode::Conflict));
    let done = attempt(arguments);
    assert!(done.has_begun && double.0.created.borrow().len() == 1);
    output(done.result).unwrap();
}

#[test]
fn a_step_of_a_pipeline_is_a_call_of_its_own_with_what_the_token_that_asked_may_do() {
    let double = Double::default();
    double.0.defers.set(true);
    let permissions = Some(Permissions::of(Role::Operator));
    let step = StepCall {
        id: "call-1-s2".into(),
        who: Principal {
            tenant: "default".into(),
            key_id: "root".into(),
            credential: Credential::Job { permissions: permissions.clone(), token_id: None, sandbox_created_at: None },
        },
        tool: "exec".into(),
        arguments: json!({ "command": "true", "env": { "TOKEN": "s3cret-value" } }),
        of: StepOf { job_id: "call-1".into(), step: "build".into() },
        trace: Trace::of_request(None, None, || [6; 16]),
    };
    let of = step.of.clone();
    let answered = tools::registry().step(&double, step).now_or_never().unwrap();
    assert!(matches!(answered.result, Ok(Reply::Job(_))) && !answered.has_begun);
    let intent = double.0.intents.borrow()[0].clone();
    assert_eq!((intent.manner, intent.step_of, intent.door.as_str()), (Manner::Deferred, Some(of), "pipeline"));
    assert_eq!(double.0.seeds.borrow()[0].order.permissions, permissions);
}

#[test]
fn a_pipeline_is_a_job_however_long_its_caller_waits_and_records_no_secret_of_a_step() {
    let double = Double::default();
    double.0.defers.set(true);
    let environment = json!({ "command": "true", "env": { "TOKEN": "s3cret-value" } });
    let steps = json!([{ "name": "a", "tool": "exec", "arguments": environment,
        "rollBack": { "tool": "exec", "arguments": environment } }]);
    let call = ToolCall { head: head(KEY), tool: "runPipeline".into(), arguments: Ok(json!({ "steps": steps })) };
    let waits = answered(&double, call);
    assert!(matches!(waits.result, Ok(Reply::Job(_))), "{:?}", waits.result);
    let intent = double.0.intents.borrow()[0].clone();
    assert_eq!((intent.manner, intent.requirement.destructive), (Manner::Deferred, false), "its steps are judged");
    let recorded = intent.arguments.to_string();
    assert!(!recorded.contains("s3cret") && recorded.matches("[not recorded]").count() == 2, "{recorded}");
}
