//! Results: what a tool answered or why it failed, as text for the model and as structure for the client.

use serde_json::{Value, json};

use super::envelope::{Fault, INTERNAL_ERROR, INVALID_PARAMS};
use super::headers::Era;
use super::tools::{DRY_RUN, JOB};
use super::{INSTRUCTIONS, LEGACY, MODERN, NEWEST_LEGACY};
use crate::call::Reply;
use crate::error::{Error, ErrorCode, Problem, Result};

/// Milliseconds for which a client may keep a list; keys and their rights change seldom.
pub const LIST_TTL_MS: u64 = 60_000;

/// Keys of `_meta` in a result that is an error.
pub const PROBLEM_FIELD: &str = "cloudflare-ops/problem";
const CODE_FIELD: &str = "cloudflare-ops/code";

/// A result as its era has it: the modern one says that it is complete, where it does not say otherwise.
pub fn of_era(era: Era, mut result: Value) -> Value {
    if let (Era::Modern, Some(fields)) = (era, result.as_object_mut()) {
        fields.entry("resultType").or_insert_with(|| json!("complete"));
    }
    result
}

fn server_info() -> Value {
    json!({ "name": "cloudflare-ops", "title": "cloudflare-ops", "version": env!("CARGO_PKG_VERSION") })
}

/// `initialize`: the revision that was asked for where it is one of the earlier ones, else the newest of them.
pub fn initialized(requested: Option<&str>) -> Value {
    let version = LEGACY.iter().find(|version| Some(**version) == requested).copied().unwrap_or(NEWEST_LEGACY);
    json!({
        "protocolVersion": version,
        "capabilities": { "tools": {}, "resources": {} },
        "serverInfo": server_info(),
        "instructions": INSTRUCTIONS,
    })
}

/// `server/discover`.
pub fn discovered() -> Value {
    json!({
        "supportedVersions": [MODERN],
        "capabilities": { "tools": {}, "resources": {} },
        "instructions": INSTRUCTIONS,
        "ttlMs": LIST_TTL_MS,
        "cacheScope": "public",
        "_meta": { "io.modelcontextprotocol/serverInfo": server_info() },
    })
}

/// `tools/list`. Each key has its own list.
pub fn listed(era: Era, tools: Vec<Value>) -> Value {
    match era {
        Era::Legacy => json!({ "tools": tools }),
        Era::Modern => json!({ "tools": tools, "ttlMs": LIST_TTL_MS, "cacheScope": "private" }),
    }
}

/// `tools/call`: a result, or an error of the protocol where the call was none.
pub fn called(result: Result<Reply<Value>>, request_id: &str) -> Result<Value, Fault> {
    let structured = match result {
        Ok(Reply::Output(output)) if output.get("dryRun") == Some(&Value::Bool(true)) => json!({ DRY_RUN: output }),
        Ok(Reply::Output(output)) => output,
        Ok(Reply::Job(job)) => return Ok(handle(&serde_json::to_value(job).unwrap_or_default())),
        Err(error) => return failed(&error, request_id),
    };
    Ok(output(&structured))
}

fn output(structured: &Value) -> Value {
    json!({
        "content": [{ "type": "text", "text": structured.to_string() }],
        "structuredContent": structured,
        "isError": false,
    })
}

/// The job that a call became.
fn handle(job: &Value) -> Value {
    let field = |name: &str| job.get(name).and_then(Value::as_str).unwrap_or_default();
    let text = format!(
        "The call became the job {}, whose state is {}. Ask getJob with this jobId how it stands.",
        field("jobId"),
        field("state")
    );
    json!({ "content": [{ "type": "text", "text": text }], "structuredContent": { JOB: job }, "isError": false })
}

/// What a call is answered with that became this job, as getJob tells it.
pub fn of_job(job: &Value) -> Value {
    let problem = job.get("error").and_then(|error| serde_json::from_value::<Problem>(error.clone()).ok());
    match (problem, job.get("output")) {
        (Some(problem), _) => refusal(&problem),
        (None, Some(told)) => output(told),
        (None, None) => handle(job),
    }
}

fn failed(error: &Error, request_id: &str) -> Result<Value, Fault> {
    let problem = error.problem(request_id);
    match error.code {
        ErrorCode::UnknownTool => return Err(Fault::new(200, INVALID_PARAMS, problem.detail)),
        ErrorCode::Internal => {
            let data = Some(json!({ "requestId": request_id }));
            return Err(Fault { data, ..Fault::new(200, INTERNAL_ERROR, problem.detail) });
        }
        _ => {}
    }
    Ok(refusal(&problem))
}

/// What a model is told of a problem.
pub fn text_of(problem: &Problem) -> String {
    let mut text = format!("{}: {}", problem.code.as_str(), problem.detail);
    if !problem.details.is_empty() {
        text.push_str(&format!("\n{}", Value::Object(problem.details.clone())));
    }
    if let (true, Some(seconds)) = (problem.retryable, problem.retry_after) {
        text.push_str(&format!("\nTry again in {seconds} s."));
    }
    text
}

/// The result of a call that failed.
pub fn refusal(problem: &Problem) -> Value {
    let text = text_of(problem);
    let mut meta = json!({ PROBLEM_FIELD: problem });
    if let (Some(code), Some(fields)) = (published_code(problem.code), meta.as_object_mut()) {
        fields.insert(CODE_FIELD.to_owned(), json!(code));
    }
    // Structured content would be held against the schema of the output and hide the error.
    json!({ "content": [{ "type": "text", "text": text }], "isError": true, "_meta": meta })
}

/// The published codes. They travel in `_meta`: some clients read -32001 as a time-out of their own.
fn published_code(code: ErrorCode) -> Option<i64> {
    match code {
        ErrorCode::SandboxUnavailable | ErrorCode::NotConfigured | ErrorCode::VersionMismatch => Some(-32000),
        ErrorCode::NotFound => Some(-32001),
        ErrorCode::Timeout => Some(-32002),
        ErrorCode::RateLimited | ErrorCode::QuotaExceeded => Some(-32003),
        ErrorCode::InvalidArguments => Some(-32004),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_call_is_a_result_without_structured_content() {
        let error = Error::invalid("/command", "must be a string");
        let result = called(Err(error), "r").unwrap();
        assert_eq!(result["isError"], true);
        assert!(result.get("structuredContent").is_none());
        assert!(result["content"][0]["text"].as_str().unwrap().starts_with("invalid_arguments: command:"), "{result}");
        assert_eq!(result["_meta"][CODE_FIELD], -32004);
        assert_eq!(result["_meta"][PROBLEM_FIELD]["requestId"], "r");
    }

    #[test]
    fn an_internal_error_and_an_unknown_tool_are_errors_of_the_protocol() {
        let internal = called(Err(Error::internal("the cause")), "r").unwrap_err();
        assert_eq!(internal.code, INTERNAL_ERROR);
        assert!(!internal.answer(&json!(1)).to_string().contains("the cause"));
        let unknown = called(Err(Error::new(ErrorCode::UnknownTool, "there is no tool x")), "r").unwrap_err();
        assert_eq!(unknown.code, INVALID_PARAMS);
    }

    #[test]
    fn a_call_that_was_a_job_is_answered_as_the_call_once_that_is_over() {
        let over = json!({ "jobId": "j", "state": "succeeded", "output": { "exitCode": 0 } });
        assert_eq!(of_job(&over)["structuredContent"], json!({ "exitCode": 0 }));
        let problem = Error::new(ErrorCode::ApprovalRejected, "no").problem("j");
        let rejected = of_job(&json!({ "jobId": "j", "state": "rejected", "error": problem }));
        assert_eq!((&rejected["isError"], rejected.get("structuredContent")), (&json!(true), None));
        assert_eq!(rejected["_meta"][PROBLEM_FIELD]["code"], "approval_rejected");
        for state in ["awaiting_approval", "queued", "running", "succeeded"] {
            let told = of_job(&json!({ "jobId": "j", "state": state }));
            assert_eq!((&told["isError"], &told["structuredContent"]["job"]["state"]), (&json!(false), &json!(state)));
        }
    }

    #[test]
    fn a_command_that_exits_non_zero_is_told_whole_in_text_too() {
        let output = json!({ "exitCode": 1, "stderr": "no such file" });
        let result = called(Ok(Reply::Output(output.clone())), "r").unwrap();
        assert_eq!((&result["isError"], &result["structuredContent"]), (&json!(false), &output));
        assert!(result["content"][0]["text"].as_str().unwrap().contains("no such file"));
    }

    #[test]
    fn the_revision_is_the_one_asked_for_or_the_newest_of_its_era() {
        assert_eq!(initialized(Some("2025-03-26"))["protocolVersion"], "2025-03-26");
        for other in [None, Some("2024-11-05"), Some(MODERN)] {
            assert_eq!(initialized(other)["protocolVersion"], "2025-11-25");
        }
    }
}
