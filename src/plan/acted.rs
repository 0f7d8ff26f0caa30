//! Whether a call that began may have changed something, so that there may be something to undo. Pure.
//!
//! What surely did nothing is not undone: the sandbox that a refused creation names is somebody else's. The tool itself knows best
//! (`Tool::may_have_acted`); where it does not say, the code of its error does, and where that leaves it open the call may have acted.

use serde_json::Value;

use crate::error::{Error, ErrorCode};
use crate::job::record::Told;

/// How a call ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ending {
    /// What it answered; nothing where it failed, or where the answer was too long to be kept.
    pub output: Option<Value>,
    /// Why it failed, with its details.
    pub error: Option<Error>,
    /// Whether a sandbox of the name that it gives was there when it was asked for.
    pub found_sandbox: bool,
}

impl Ending {
    /// Of a job that is over.
    pub fn of(told: &Told) -> Self {
        Self {
            output: told.output.clone(),
            error: told.job.error.clone().map(|error| error.with_details(told.details.clone())),
            found_sandbox: told.job.sandbox_created_at.is_some(),
        }
    }

    /// What the answer, or else the details of the error, say under that name.
    pub fn says(&self, name: &str) -> Option<&Value> {
        let details = self.error.as_ref().and_then(|error| error.details.get(name));
        self.output.as_ref().and_then(|output| output.get(name)).or(details)
    }

    /// Whether it may have acted, as far as the code of its error tells. A success acted.
    pub fn may_have_acted(&self) -> bool {
        let Some(error) = &self.error else { return true };
        // An answer that was too long is one of a call that was carried out.
        let was_answered = error.details.contains_key("limitBytes");
        was_answered || !did_nothing(error.code)
    }
}

/// Whether an error of this code says that nothing was done.
fn did_nothing(code: ErrorCode) -> bool {
    match code {
        ErrorCode::MalformedRequest
        | ErrorCode::UnknownTool
        | ErrorCode::InvalidArguments
        | ErrorCode::Unauthenticated
        | ErrorCode::Forbidden
        | ErrorCode::ApprovalRejected
        | ErrorCode::NotFound
        | ErrorCode::MethodNotAllowed
        | ErrorCode::Conflict
        | ErrorCode::InProgress
        | ErrorCode::IdempotencyMismatch
        | ErrorCode::StaleGeneration
        | ErrorCode::LengthRequired
        | ErrorCode::UpgradeRequired
        | ErrorCode::PreconditionFailed
        | ErrorCode::PayloadTooLarge
        | ErrorCode::RangeNotSatisfiable
        | ErrorCode::RateLimited
        | ErrorCode::QuotaExceeded
        | ErrorCode::SandboxUnavailable
        | ErrorCode::NotConfigured => true,
        ErrorCode::Interrupted
        | ErrorCode::ObjectUnavailable
        | ErrorCode::VersionMismatch
        | ErrorCode::Timeout
        | ErrorCode::OutcomeUnknown
        | ErrorCode::NoSpace
        | ErrorCode::StepFailed
        | ErrorCode::Internal => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tools;

    fn answered(output: Value) -> Ending {
        Ending { output: Some(output), ..Ending::default() }
    }

    fn failed(code: ErrorCode, details: Value) -> Ending {
        let error = Error::new(code, "no").with_details(Some(details));
        Ending { error: Some(error), ..Ending::default() }
    }

    fn acted(tool: &str, ending: &Ending) -> bool {
        tools::registry().get(tool).unwrap().may_have_acted(ending)
    }

    #[test]
    fn what_was_refused_did_nothing_and_what_is_not_known_may_have_acted() {
        for code in [ErrorCode::Conflict, ErrorCode::NotFound, ErrorCode::InvalidArguments, ErrorCode::QuotaExceeded] {
            assert!(!acted("exec", &failed(code, json!({}))), "{code:?}");
        }
        // To undo what no sandbox was there for would delete what was there before.
        for tool in ["makeDirectory", "writeFile", "moveFile"] {
            assert!(!acted(tool, &failed(ErrorCode::SandboxUnavailable, json!({}))), "{tool}");
        }
        for code in [ErrorCode::OutcomeUnknown, ErrorCode::Timeout, ErrorCode::Interrupted, ErrorCode::Internal] {
            assert!(acted("exec", &failed(code, json!({}))), "{code:?}");
        }
        assert!(acted("exec", &answered(json!({ "exitCode": 1 }))) && acted("exec", &Ending::default()));
        assert!(!acted("writeFile", &failed(ErrorCode::PayloadTooLarge, json!({}))));
        let too_long = failed(ErrorCode::PayloadTooLarge, json!({ "limitBytes": 5 }));
        assert!(acted("exec", &too_long), "it was carried out");
    }

    #[test]
    fn a_creation_that_found_its_sandbox_there_made_nothing() {
        assert!(acted("createSandbox", &answered(json!({ "created": true }))));
        assert!(!acted("createSandbox", &answered(json!({ "created": false }))));
        assert!(!acted("createSandbox", &failed(ErrorCode::Conflict, json!({ "field": "gitUrl" }))));
        // It failed after the sandbox was made, or before.
        assert!(acted("createSandbox", &failed(ErrorCode::SandboxUnavailable, json!({}))));
        assert!(!acted("createSandbox", &failed(ErrorCode::SandboxUnavailable, json!({ "created": false }))));
        let unavailable = failed(ErrorCode::SandboxUnavailable, json!({}));
        assert!(!acted("createSandbox", &Ending { found_sandbox: true, ..unavailable }));
        assert!(!acted("createSandbox", &failed(ErrorCode::InvalidArguments, json!({ "sandboxKept": false }))));
        assert!(acted("createSandbox", &failed(ErrorCode::InvalidArguments, json!({ "sandboxKept": true }))));
        // Its end was not seen.
        let lost = failed(ErrorCode::OutcomeUnknown, json!({}));
        assert!(acted("createSandbox", &lost));
        assert!(!acted("createSandbox", &Ending { found_sandbox: true, ..lost }));
        // The one that was there had gone, and this call made another.
        let another = Ending { found_sandbox: true, ..answered(json!({ "created": true })) };
        assert!(acted("createSandbox", &another));
    }

    #[test]
    fn a_process_may_have_begun_where_the_answer_broke_off() {
        let unresponsive = json!({ "reason": "sandbox_unresponsive" });
        assert!(acted("startBackgroundProcess", &failed(ErrorCode::SandboxUnavailable, unresponsive.clone())));
        assert!(!acted("startBackgroundProcess", &failed(ErrorCode::SandboxUnavailable, json!({}))));
        assert!(!acted("makeDirectory", &failed(ErrorCode::SandboxUnavailable, unresponsive)));
    }

    #[test]
    fn what_was_as_it_should_be_already_is_not_undone() {
        assert!(!acted("makeDirectory", &answered(json!({ "created": false }))));
        assert!(acted("makeDirectory", &answered(json!({ "created": true }))));
        assert!(!acted("wakeSandbox", &answered(json!({ "woken": false }))));
        assert!(acted("wakeSandbox", &answered(json!({ "woken": true }))));
        // A file that was there was overwritten.
        assert!(acted("writeFile", &answered(json!({ "created": false }))));
    }

    #[test]
    fn a_part_of_the_work_is_work() {
        assert!(acted("deleteFile", &failed(ErrorCode::Forbidden, json!({ "removed": 3 }))));
        assert!(!acted("deleteFile", &failed(ErrorCode::NotFound, json!({}))));
        assert!(acted("uploadArchive", &failed(ErrorCode::InvalidArguments, json!({}))));
        assert!(!acted("uploadArchive", &failed(ErrorCode::NotFound, json!({}))));
    }
}
