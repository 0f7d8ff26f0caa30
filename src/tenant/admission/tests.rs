//! The order of refusals, and what each leaves used.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use super::*;
use crate::guardrails::{Role, Scope};
use crate::identifier::SandboxId;
use crate::sandbox::state::State;
use crate::tenant::approval::{ApprovalRules, Reason, Rule};
use crate::tenant::key::SecretDigest;

const NOW: i64 = 1_800_000_000_000;

fn key() -> KeyRecord {
    KeyRecord {
        key_id: "k".into(),
        name: "ci".into(),
        permissions: Permissions::of(Role::Operator),
        limits: Limits { calls_per_minute: Some(3), ..Limits::default() },
        created_at: 0,
        created_by: "root".into(),
        expires_at: None,
        revoked_at: None,
        rotated_at: None,
        secret: SecretDigest::of("secret"),
        previous: None,
    }
}

fn request(credential: Credential, claim: SandboxClaim) -> AdmissionRequest {
    let key_id = if credential == Credential::Root { "root" } else { "k" };
    AdmissionRequest {
        principal: Principal { tenant: "default".into(), key_id: key_id.into(), credential },
        call_id: "c1".into(),
        door: "rest".into(),
        requirement: Requirement {
            scopes: vec![Scope::SandboxExec],
            destructive: true,
            ..Requirement::of("exec", Role::Operator)
        },
        rate_class: RateClass::SandboxOperation,
        arguments: json!({}),
        arguments_signature: None,
        claim,
        manner: Manner::Ordinary,
        is_resumed: false,
        step_of: None,
        schedule_id: None,
        inspected: None,
        verdict: None,
        idempotency: None,
        webhook_url: None,
        mark: None,
        at: NOW,
        deadline_at: NOW + 10,
    }
}

fn by_key(claim: SandboxClaim) -> AdmissionRequest {
    request(Credential::Key { secret: SecretDigest::of("secret") }, claim)
}

fn box_id() -> SandboxId {
    SandboxId::parse("box").unwrap()
}

fn existing() -> SandboxClaim {
    SandboxClaim::Existing { sandbox_id: box_id() }
}

fn create(labels: &[(&str, &str)]) -> SandboxClaim {
    let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    SandboxClaim::Create { sandbox_id: box_id(), labels, origin: Origin::Exec }
}

fn listed(labels: &[(&str, &str)]) -> Listed {
    Listed { state: State::Running, ..Listed::new(&create(labels), 5, "k").unwrap() }
}

fn error(decision: &Decision) -> Option<&Error> {
    match &decision.kind {
        DecisionKind::Refuse { error, .. } => Some(error),
        _ => None,
    }
}

fn code(decision: &Decision) -> Option<ErrorCode> {
    error(decision).map(|error| error.code)
}

fn recorded(decision: &Decision) -> bool {
    matches!(decision.kind, DecisionKind::Refuse { recorded: true, .. })
}

#[test]
fn the_first_rule_that_refuses_is_told() {
    let wrong = Credential::Key { secret: SecretDigest::of("other") };
    let viewer = KeyRecord { permissions: Permissions::of(Role::Viewer), ..key() };
    let busy = Used { open_calls: 50, ..Used::default() };
    let used_up =
        Used { windows: Windows { calls: Window { started_at: NOW, used: 3 }, ..Windows::default() }, ..busy };
    let verdict = Some(Error::invalid("/command", "is missing"));
    let known = |key, used| Known { key: Some(key), used, ..Known::default() };
    let asked = |credential| AdmissionRequest { verdict: verdict.clone(), ..request(credential, existing()) };
    let right = Credential::Key { secret: SecretDigest::of("secret") };
    let cases = [
        (asked(wrong.clone()), known(&viewer, used_up), ErrorCode::Unauthenticated, false),
        (asked(right.clone()), known(&viewer, used_up), ErrorCode::RateLimited, true),
        (asked(right.clone()), known(&viewer, busy), ErrorCode::Forbidden, true),
    ];
    for (request, known, expected, is_recorded) in cases {
        let decision = decide(&request, &known);
        assert_eq!((code(&decision), recorded(&decision)), (Some(expected), is_recorded));
    }
    let operator = key();
    assert_eq!(code(&decide(&asked(right.clone()), &known(&operator, busy))), Some(ErrorCode::RateLimited));
    let decision = decide(&asked(right), &known(&operator, Used::default()));
    assert_eq!(code(&decision), Some(ErrorCode::InvalidArguments));
    let decision = decide(&by_key(existing()), &known(&operator, Used::default()));
    assert_eq!(code(&decision), Some(ErrorCode::NotFound));
}

#[test]
fn a_key_that_is_not_there_is_a_stranger() {
    let decision = decide(&by_key(SandboxClaim::None), &Known::default());
    assert_eq!(
        (code(&decision), decision.windows, recorded(&decision)),
        (Some(ErrorCode::Unauthenticated), None, false)
    );
}

#[test]
fn the_root_key_has_no_limits_and_its_tokens_have_no_more_than_they_say() {
    let used = Used { open_calls: 1_000, live_sandboxes: 1_000, ..Used::default() };
    let known = Known { used, ..Known::default() };
    let decision = decide(&request(Credential::Root, create(&[])), &known);
    assert!(matches!(decision.kind, DecisionKind::Admit { list: Some(_), limits: None, .. }), "{decision:?}");
    assert_eq!((decision.windows, decision.standing), (None, None));
    let token = Credential::Token { token_id: "t".into(), permissions: Permissions::of(Role::Viewer) };
    let mut request = request(token, existing());
    request.principal.key_id = "root".into();
    assert_eq!(code(&decide(&request, &known)), Some(ErrorCode::Forbidden));
}

#[test]
fn calls_are_counted_exactly_and_one_refusal_a_minute_is_recorded() {
    let (key, listed) = (key(), listed(&[]));
    let mut known = Known { key: Some(&key), listed: Some(&listed), ..Known::default() };
    let mut seen = Vec::new();
    for _ in 0..6 {
        let decision = decide(&by_key(existing()), &known);
        known.used.windows = decision.windows.unwrap();
        seen.push((code(&decision), decision.standing.unwrap().remaining, recorded(&decision)));
    }
    let limited = Some(ErrorCode::RateLimited);
    let expected = [
        (None, 2, false),
        (None, 1, false),
        (None, 0, false),
        (limited, 0, true),
        (limited, 0, false),
        (limited, 0, false),
    ];
    assert_eq!(seen, expected);
    let later = AdmissionRequest { at: NOW + 60_000, ..by_key(existing()) };
    assert_eq!(code(&decide(&later, &known)), None);
}

#[test]
fn only_what_is_admitted_uses_an_operation() {
    let key = KeyRecord { limits: Limits { sandbox_operations_per_hour: Some(1), ..Limits::default() }, ..key() };
    let listed = listed(&[]);
    let mut known = Known { key: Some(&key), ..Known::default() };
    let refused = decide(&by_key(existing()), &known);
    assert_eq!((code(&refused), refused.windows.unwrap().operations.used), (Some(ErrorCode::NotFound), 0));
    known.listed = Some(&listed);
    let admitted = decide(&by_key(existing()), &known);
    known.used.windows = admitted.windows.unwrap();
    assert_eq!((code(&admitted), known.used.windows.operations.used), (None, 1));
    let second = decide(&by_key(existing()), &known);
    assert_eq!(error(&second).unwrap().details["limitName"], "sandbox operations an hour");
    let reads = AdmissionRequest { rate_class: RateClass::Read, ..by_key(existing()) };
    assert_eq!(code(&decide(&reads, &known)), None);
    assert!(gives_back(Outcome::Failed(ErrorCode::SandboxUnavailable)));
    assert!(!gives_back(Outcome::Failed(ErrorCode::OutcomeUnknown)) && !gives_back(Outcome::Succeeded));
}

#[test]
fn sandboxes_are_counted() {
    let key = KeyRecord { limits: Limits { live_sandboxes: Some(2), ..Limits::default() }, ..key() };
    let running = listed(&[]);
    let refused = |live_sandboxes, listed| {
        let used = Used { live_sandboxes, ..Used::default() };
        let decision = decide(&by_key(create(&[])), &Known { key: Some(&key), used, listed, ..Known::default() });
        error(&decision).map(|error| error.details["limitName"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(refused(1, None), None);
    assert_eq!(refused(2, None).as_deref(), Some("liveSandboxes"));
    assert_eq!(refused(2, Some(&running)), None, "it is there already");
}

/// What a call is about, whether the sandbox runs, and whether a budget that is used up refuses it.
#[test]
fn seconds_of_sandboxes_are_asked_for_where_one_runs_the_longer_for_it() {
    let running = listed(&[]);
    let asleep = Listed { state: State::Sleeping, ..running.clone() };
    let (some, gone) =
        (SandboxClaim::Running { sandbox_id: box_id() }, SandboxClaim::MaybeGone { sandbox_id: box_id() });
    let untouched = SandboxClaim::Untouched { sandbox_id: box_id() };
    let cases = [
        (create(&[]), None, true),
        (existing(), Some(&asleep), true),
        (existing(), Some(&running), true),
        (some.clone(), Some(&running), true),
        (some, Some(&asleep), false),
        (untouched.clone(), Some(&running), false),
        (untouched, Some(&asleep), false),
        (gone, Some(&running), false),
        (SandboxClaim::None, None, false),
    ];
    let key = key();
    for (claim, listed, refuses) in cases {
        // Whoever calls: the seconds are those of the key that made the sandbox.
        for request in [by_key(claim.clone()), request(Credential::Root, claim)] {
            let known =
                |used| Known { key: Some(&key), budget: Some(Budget { limit: 100, used }), listed, ..Known::default() };
            assert_eq!(code(&decide(&request, &known(99))), None, "{:?}", request.claim);
            let decision = decide(&request, &known(100));
            let quota = refuses.then_some(ErrorCode::QuotaExceeded);
            assert_eq!(code(&decision), quota, "{:?} {listed:?}", request.claim);
            if let Some(error) = error(&decision) {
                assert_eq!(error.details["limitName"], "sandboxSecondsPerDay");
            }
        }
    }
}

#[test]
fn a_limit_of_no_calls_records_one_refusal_a_minute_too() {
    let key = KeyRecord { limits: Limits { calls_per_minute: Some(0), ..Limits::default() }, ..key() };
    let mut known = Known { key: Some(&key), ..Known::default() };
    let mut told = Vec::new();
    for at in [NOW, NOW + 1, NOW + 2, NOW + 60_000] {
        let decision = decide(&AdmissionRequest { at, ..by_key(existing()) }, &known);
        known.used.windows = decision.windows.unwrap();
        told.push(recorded(&decision));
    }
    assert_eq!(told, [true, false, false, true]);
}

#[test]
fn labels_of_a_key_hide_and_mark_sandboxes() {
    let labels = BTreeMap::from([("team".to_owned(), "a".to_owned())]);
    let key = KeyRecord {
        permissions: Permissions { sandbox_labels: labels.clone(), ..Permissions::of(Role::Operator) },
        ..key()
    };
    let (ours, theirs) = (listed(&[("team", "a")]), listed(&[("team", "b")]));
    let decided = |claim, listed| decide(&by_key(claim), &Known { key: Some(&key), listed, ..Known::default() });
    assert_eq!(code(&decided(existing(), Some(&ours))), None);
    assert_eq!(code(&decided(existing(), Some(&theirs))), Some(ErrorCode::NotFound));
    let destroy = SandboxClaim::MaybeGone { sandbox_id: box_id() };
    assert_eq!(code(&decided(destroy.clone(), Some(&theirs))), Some(ErrorCode::NotFound));
    assert_eq!(code(&decided(destroy, None)), None);
    assert_eq!(code(&decided(create(&[]), Some(&theirs))), Some(ErrorCode::Conflict));
    assert_eq!(code(&decided(create(&[("team", "b")]), None)), Some(ErrorCode::Forbidden));
    let DecisionKind::Admit { list: Some(made), .. } = decided(create(&[]), None).kind else { panic!("not listed") };
    assert_eq!((made.labels, made.owner.as_str(), made.created_at), (labels, "k", NOW));
}

#[test]
fn an_idempotency_key_replays_before_limits_and_never_for_a_wrong_call() {
    let key = key();
    let wanted = Wanted { key: "i".into(), fingerprints: vec!["f".into()] };
    let first = First {
        call_id: "c0".into(),
        fingerprint: "f".into(),
        asked_at: NOW - 1,
        deadline_at: NOW + 1,
        is_answered: true,
        is_job: false,
    };
    let used = Used { open_calls: 50, ..Used::default() };
    let known = Known { key: Some(&key), first: Some(&first), used, ..Known::default() };
    let asked = AdmissionRequest { idempotency: Some(wanted), ..by_key(existing()) };
    assert_eq!(decide(&asked, &known).kind, DecisionKind::Replay);
    let invalid = AdmissionRequest { verdict: Some(Error::invalid("/x", "is wrong")), ..asked.clone() };
    let idle = Known { used: Used::default(), ..known };
    assert_eq!(code(&decide(&invalid, &idle)), Some(ErrorCode::InvalidArguments));
    let open = First { is_answered: false, ..first.clone() };
    assert_eq!(code(&decide(&asked, &Known { first: Some(&open), ..known })), Some(ErrorCode::InProgress));
    let job = First { is_job: true, ..open };
    assert_eq!(decide(&asked, &Known { first: Some(&job), ..known }).kind, DecisionKind::Job);
    let viewer = KeyRecord { permissions: Permissions::of(Role::Viewer), ..key.clone() };
    assert_eq!(code(&decide(&asked, &Known { key: Some(&viewer), ..known })), Some(ErrorCode::Forbidden));
}

fn with_rules(approval: ApprovalRules) -> KeyRecord {
    KeyRecord { permissions: Permissions { approval, ..Permissions::of(Role::Operator) }, ..key() }
}

#[test]
fn approval_is_decided_last_and_a_waiting_call_uses_nothing_but_itself() {
    let (key, own) =
        (with_rules(ApprovalRules { destructive: true, expires_after: Some(60), ..ApprovalRules::default() }), key());
    let box_there = listed(&[]);
    let known = Known { key: Some(&key), listed: Some(&box_there), ..Known::default() };
    let asked = by_key(existing());
    let decision = decide(&asked, &known);
    let reason = Reason { rule: Rule::Destructive, argument: None };
    assert_eq!(decision.kind, DecisionKind::Defer(Some(Approval { reason, expires_at: NOW + 60_000, decision: None })));
    let windows = decision.windows.unwrap();
    assert_eq!((windows.calls.used, windows.operations.used), (1, 0));
    // Whatever else is wrong comes first.
    assert_eq!(code(&decide(&asked, &Known { listed: None, ..known })), Some(ErrorCode::NotFound));
    let invalid = AdmissionRequest { verdict: Some(Error::invalid("/x", "is wrong")), ..asked.clone() };
    assert_eq!(code(&decide(&invalid, &known)), Some(ErrorCode::InvalidArguments));
    let full = Used { open_jobs: 100, ..Used::default() };
    assert_eq!(code(&decide(&asked, &Known { used: full, ..known })), Some(ErrorCode::QuotaExceeded));
    // Raw bytes cannot wait, what only tells needs not, and an attempt was approved.
    let raw = AdmissionRequest { manner: Manner::Raw, ..asked.clone() };
    assert_eq!(error(&decide(&raw, &known)).unwrap().details["reason"], "needs_approval");
    let at_once = AdmissionRequest { manner: Manner::AtOnce, ..asked.clone() };
    assert_eq!(error(&decide(&at_once, &known)).unwrap().details["reason"], "needs_approval");
    // Nor can what is not stored, whether its rule is known at once or depends on its arguments.
    let immediate = AdmissionRequest { manner: Manner::Immediate, ..asked.clone() };
    assert_eq!(error(&decide(&immediate, &known)).unwrap().details["reason"], "needs_approval");
    let free = Known { key: Some(&own), ..known };
    assert!(matches!(decide(&immediate, &free).kind, DecisionKind::Admit { .. }));
    for manner in [Manner::Preview, Manner::Attempt] {
        let decision = decide(&AdmissionRequest { manner, ..asked.clone() }, &known);
        assert!(matches!(decision.kind, DecisionKind::Admit { .. }), "{manner:?}");
    }
}

#[test]
fn a_call_whose_caller_does_not_wait_becomes_a_job_if_there_may_be_one_more() {
    let (key, box_there) = (key(), listed(&[]));
    let known = Known { key: Some(&key), listed: Some(&box_there), ..Known::default() };
    let asked = AdmissionRequest { manner: Manner::Deferred, ..by_key(existing()) };
    let decision = decide(&asked, &known);
    assert_eq!((decision.kind, decision.windows.unwrap().operations.used), (DecisionKind::Defer(None), 0));
    let full = Used { open_jobs: 100, ..Used::default() };
    assert_eq!(code(&decide(&asked, &Known { used: full, ..known })), Some(ErrorCode::QuotaExceeded));
    let busy = Known { busy_jobs: MOST_BUSY_JOBS, ..known };
    assert_eq!(error(&decide(&asked, &busy)).unwrap().details["limitName"], "busyJobs");
    let more = Known { most_busy_jobs: busy_jobs_configured(Some("201")), ..busy };
    assert_eq!(decide(&asked, &more).kind, DecisionKind::Defer(None));
    assert_eq!(error(&decide(&asked, &Known { busy_jobs: 201, ..more })).unwrap().details["limit"], 201);
    assert_eq!(["0", "-1", "many", ""].map(|text| busy_jobs_configured(Some(text))), [None; 4]);
    assert_eq!(busy_jobs_configured(Some("99999999")), Some(10_000));
    assert_eq!(code(&decide(&asked, &Known { listed: None, ..known })), Some(ErrorCode::NotFound));
    let rules = with_rules(ApprovalRules { destructive: true, ..ApprovalRules::default() });
    let waits = decide(&asked, &Known { key: Some(&rules), ..known });
    assert!(matches!(waits.kind, DecisionKind::Defer(Some(_))), "it waits for an approval first");
}

#[test]
fn a_rule_on_arguments_asks_to_see_them_once_all_else_is_right() {
    let rule = ArgumentRule { tool: None, pointer: "/command".into(), pattern: "*prod*".into() };
    let key = with_rules(ApprovalRules { arguments: vec![rule.clone()], ..ApprovalRules::default() });
    let box_there = listed(&[]);
    let known = Known { key: Some(&key), listed: Some(&box_there), ..Known::default() };
    let asked = by_key(existing());
    assert_eq!(decide(&asked, &known).kind, DecisionKind::Inspect(vec![rule.clone()]));
    assert_eq!(code(&decide(&asked, &Known { listed: None, ..known })), Some(ErrorCode::NotFound));
    let seen = |matched| AdmissionRequest { inspected: Some(Inspected { matched }), ..asked.clone() };
    assert!(matches!(decide(&seen(None), &known).kind, DecisionKind::Admit { .. }));
    assert!(matches!(decide(&seen(Some(rule)), &known).kind, DecisionKind::Defer(Some(_))));
}

#[test]
fn an_attempt_has_the_rights_of_its_key_and_is_not_counted_again() {
    let attempt = |permissions| AdmissionRequest {
        manner: Manner::Attempt,
        ..request(Credential::Job { permissions, token_id: None, sandbox_created_at: None }, SandboxClaim::None)
    };
    let used_up = Used {
        windows: Windows { calls: Window { started_at: NOW, used: 3 }, ..Windows::default() },
        ..Used::default()
    };
    let operator = key();
    let known = Known { key: Some(&operator), used: used_up, ..Known::default() };
    let decision = decide(&attempt(None), &known);
    assert!(matches!(decision.kind, DecisionKind::Admit { .. }), "{decision:?}");
    assert_eq!(decision.windows.unwrap().calls.used, 3);
    let viewer = Permissions::of(Role::Viewer);
    let narrow = decide(&attempt(Some(viewer)), &known);
    assert_eq!((code(&narrow), recorded(&narrow)), (Some(ErrorCode::Forbidden), false));
    let revoked = KeyRecord { revoked_at: Some(1), ..key() };
    let decision = decide(&attempt(None), &Known { key: Some(&revoked), ..known });
    assert_eq!(code(&decision), Some(ErrorCode::Unauthenticated));
    assert_eq!(code(&decide(&attempt(None), &Known::default())), Some(ErrorCode::Unauthenticated));
    let busy = Used { open_calls: 50, ..Used::default() };
    assert_eq!(code(&decide(&attempt(None), &Known { used: busy, ..known })), Some(ErrorCode::RateLimited));
}

#[test]
fn an_attempt_that_goes_on_is_held_to_no_limit_and_still_needs_its_key() {
    let credential = Credential::Job { permissions: None, token_id: None, sandbox_created_at: None };
    let begins = AdmissionRequest {
        manner: Manner::Attempt,
        ..request(credential, SandboxClaim::Running { sandbox_id: box_id() })
    };
    let goes_on = AdmissionRequest { is_resumed: true, ..begins.clone() };
    let key = KeyRecord { limits: Limits { sandbox_operations_per_hour: Some(1), ..Limits::default() }, ..key() };
    let box_there = listed(&[]);
    let known = Known { key: Some(&key), listed: Some(&box_there), ..Known::default() };
    let operations = Window { started_at: NOW, used: 1 };
    let used_up = Used { windows: Windows { operations, ..Windows::default() }, ..Used::default() };
    let busy = Used { open_calls: 50, ..Used::default() };
    let spent = Some(Budget { limit: 100, used: 100 });
    for (known, refusal) in [
        (Known { used: used_up, ..known }, ErrorCode::RateLimited),
        (Known { used: busy, ..known }, ErrorCode::RateLimited),
        (Known { budget: spent, ..known }, ErrorCode::QuotaExceeded),
    ] {
        assert_eq!(code(&decide(&begins, &known)), Some(refusal));
        let decision = decide(&goes_on, &known);
        assert!(matches!(decision.kind, DecisionKind::Admit { .. }), "{decision:?}");
        assert_eq!(decision.windows.unwrap().operations, known.used.windows.operations, "it takes no operation");
    }
    let revoked = KeyRecord { revoked_at: Some(1), ..key.clone() };
    assert_eq!(code(&decide(&goes_on, &Known { key: Some(&revoked), ..known })), Some(ErrorCode::Unauthenticated));
}

#[test]
fn a_step_of_a_pipeline_becomes_a_job_and_counts_as_a_call_and_as_no_other_job() {
    let of = StepOf { job_id: "p".into(), step: "build".into() };
    let credential = Credential::Job { permissions: None, token_id: Some("t1".into()), sandbox_created_at: None };
    let step = AdmissionRequest { manner: Manner::Deferred, step_of: Some(of), ..request(credential, existing()) };
    let (key, box_there) = (key(), listed(&[]));
    let full = Used { open_jobs: 100, ..Used::default() };
    let known =
        Known { key: Some(&key), listed: Some(&box_there), used: full, busy_jobs: MOST_BUSY_JOBS, ..Known::default() };
    let decision = decide(&step, &known);
    assert_eq!((decision.kind, decision.windows.unwrap().calls.used), (DecisionKind::Defer(None), 1));
    assert_eq!(Intent::from(&step).token_id.as_deref(), Some("t1"), "the books name the token that asked");
    let rules = with_rules(ApprovalRules { destructive: true, ..ApprovalRules::default() });
    let waits = decide(&step, &Known { key: Some(&rules), ..known });
    assert!(matches!(waits.kind, DecisionKind::Defer(Some(_))), "its approval is its own");
    // It is asked for again, and the books have one refusal at most.
    let busy = Used { open_calls: 50, ..Used::default() };
    let refused = decide(&step, &Known { used: busy, ..known });
    assert_eq!((code(&refused), recorded(&refused)), (Some(ErrorCode::RateLimited), false));
    let gone = decide(&step, &Known { listed: None, ..known });
    assert_eq!((code(&gone), recorded(&gone)), (Some(ErrorCode::NotFound), true));
}

#[test]
fn a_run_of_a_schedule_is_a_job_like_any_other_and_the_books_have_its_last_refusal() {
    let credential = || Credential::Job { permissions: None, token_id: None, sandbox_created_at: None };
    let of = Some("s1".to_owned());
    let run = AdmissionRequest { manner: Manner::Deferred, schedule_id: of, ..request(credential(), existing()) };
    let (key, box_there) = (key(), listed(&[]));
    let known = Known { key: Some(&key), listed: Some(&box_there), ..Known::default() };
    let decision = decide(&run, &known);
    assert_eq!((decision.kind, decision.windows.unwrap().calls.used), (DecisionKind::Defer(None), 1));
    assert_eq!(Intent::from(&run).schedule_id.as_deref(), Some("s1"));
    let full = Used { open_jobs: 100, ..Used::default() };
    let refused = decide(&run, &Known { used: full, ..known });
    assert_eq!((code(&refused), recorded(&refused)), (Some(ErrorCode::QuotaExceeded), false), "it is asked for again");
    let spent = Used {
        windows: Windows { calls: Window { started_at: NOW, used: 3 }, ..Windows::default() },
        ..Used::default()
    };
    let refused = decide(&run, &Known { used: spent, ..known });
    assert_eq!((code(&refused), recorded(&refused)), (Some(ErrorCode::RateLimited), false));
    let gone = decide(&run, &Known { listed: None, ..known });
    assert_eq!((code(&gone), recorded(&gone)), (Some(ErrorCode::NotFound), true));
    // It is no stranger, though its key may not call any more.
    let revoked = KeyRecord { revoked_at: Some(1), ..key.clone() };
    let refused = decide(&run, &Known { key: Some(&revoked), ..known });
    assert_eq!((code(&refused), recorded(&refused)), (Some(ErrorCode::Unauthenticated), true));
}

#[test]
fn a_tool_that_there_is_not_is_told_to_every_role() {
    let viewer = KeyRecord {
        permissions: Permissions { tools: Some(BTreeSet::new()), ..Permissions::of(Role::Viewer) },
        ..key()
    };
    let verdict = Some(Error::new(ErrorCode::UnknownTool, "there is no tool"));
    let asked = AdmissionRequest { verdict, ..by_key(SandboxClaim::None) };
    let decision = decide(&asked, &Known { key: Some(&viewer), ..Known::default() });
    assert_eq!(code(&decision), Some(ErrorCode::UnknownTool));
}

#[test]
fn stored_forms_do_not_change() {
    let settlement = Settlement::never_settled("c1".into(), 3, 10);
    assert_eq!(
        serde_json::to_string(&settlement).unwrap(),
        r#"{"callId":"c1","outcome":{"result":"failed","code":"outcome_unknown"},"durationMs":7,"at":10}"#
    );
    let claim = serde_json::to_string(&create(&[])).unwrap();
    assert_eq!(claim, r#"{"kind":"create","sandboxId":"box","labels":{},"origin":"exec"}"#);
    let intent = serde_json::to_string(&Intent::from(&request(Credential::Root, create(&[])))).unwrap();
    assert_eq!(
        intent,
        r#"{"callId":"c1","tool":"exec","door":"rest","keyId":"root","arguments":{},"sandboxId":"box"}"#
    );
}
