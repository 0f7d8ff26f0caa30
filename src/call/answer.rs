//! What a call answers: how long it may be, what is masked in it, and what the books keep of it.

use serde_json::Value;

use crate::error::{Error, ErrorCode, Result};
use crate::raw::RawResponse;
use crate::tenant::idempotency::{self, Answer};
use crate::tenant::usage::Spent;
use redaction::Redactor;

/// What the books keep of an answer, and how it leaves.
pub(super) trait Measured: Sized {
    /// The answer as it leaves: not longer than the tool may answer, secrets masked.
    fn finished(self, cap_bytes: Option<u64>, redactor: &Redactor) -> Result<Self>;

    /// The answer without what is told once.
    fn kept(self, told_once: &[&str]) -> Self;

    /// What is stored for an idempotency key.
    fn stored(result: &Result<Self>, told_once: &[&str]) -> Option<Answer>;

    /// What was stored, again.
    fn replayed(answer: Answer) -> Result<Self>;

    fn exit_code(&self) -> Option<i32>;

    /// Milliseconds for which a command ran.
    fn exec_ms(&self) -> Option<i64>;

    /// Bytes of the body, where that is known before it is sent.
    fn bytes(&self) -> Option<u64>;
}

impl Measured for Value {
    fn finished(self, cap_bytes: Option<u64>, redactor: &Redactor) -> Result<Self> {
        cap(self, cap_bytes).map(|output| redactor.json(output))
    }

    fn kept(mut self, told_once: &[&str]) -> Self {
        for pointer in told_once {
            if let (Some(fields), Some(name)) = (self.as_object_mut(), pointer.strip_prefix('/')) {
                fields.remove(name);
            }
        }
        self
    }

    fn stored(result: &Result<Self>, told_once: &[&str]) -> Option<Answer> {
        match result {
            Ok(output) => Some(Answer::Output(output.clone().kept(told_once))),
            Err(error) => idempotency::is_kept(Some(error)).then(|| Answer::Error(error.clone())),
        }
    }

    fn replayed(answer: Answer) -> Result<Self> {
        match answer {
            Answer::Output(output) => Ok(output),
            Answer::Error(error) => Err(error),
        }
    }

    fn exit_code(&self) -> Option<i32> {
        self.get("exitCode").and_then(Value::as_i64).and_then(|code| i32::try_from(code).ok())
    }

    fn exec_ms(&self) -> Option<i64> {
        self.get("executionTime").and_then(Value::as_i64)
    }

    fn bytes(&self) -> Option<u64> {
        let mut counter = Counter(0);
        serde_json::to_writer(&mut counter, self).ok().map(|()| counter.0)
    }
}

impl Measured for RawResponse {
    fn finished(self, _: Option<u64>, _: &Redactor) -> Result<Self> {
        Ok(self)
    }

    fn kept(self, _: &[&str]) -> Self {
        self
    }

    fn stored(_: &Result<Self>, _: &[&str]) -> Option<Answer> {
        None
    }

    fn replayed(_: Answer) -> Result<Self> {
        Err(Error::internal("an answer of raw bytes was stored"))
    }

    fn exit_code(&self) -> Option<i32> {
        None
    }

    fn exec_ms(&self) -> Option<i64> {
        None
    }

    fn bytes(&self) -> Option<u64> {
        self.headers.iter().find(|(name, _)| name == "content-length").and_then(|(_, length)| length.parse().ok())
    }
}

/// What a call used. A command whose own time was not told ran for as long as its call took.
pub(super) fn spent<A: Measured>(result: &Result<A>, act_ms: i64, bytes_in: u64, bytes_out: u64) -> Spent {
    let exec_ms = match result {
        Ok(output) => output.exec_ms(),
        Err(error) => {
            let told = error.details.get("executionTime").and_then(Value::as_i64);
            told.or_else(|| error.details.contains_key("execId").then_some(act_ms))
        }
    };
    let whole = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    Spent { exec_ms: exec_ms.unwrap_or(0).max(0), bytes_in: whole(bytes_in), bytes_out: whole(bytes_out) }
}

/// Counts what is written and keeps nothing.
struct Counter(u64);

impl std::io::Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += u64::try_from(bytes.len()).unwrap_or(0);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// What a caller is told of an error, secrets masked.
pub(super) fn mask(error: Error, redactor: &Redactor) -> Error {
    let details = match redactor.json(Value::Object(error.details)) {
        Value::Object(details) => details,
        _ => serde_json::Map::new(),
    };
    Error { message: redactor.text(&error.message), details, ..error }
}

/// The output, unless it is longer than the tool may answer.
pub(super) fn cap(output: Value, limit: Option<u64>) -> Result<Value> {
    let Some(limit) = limit else {
        return Ok(output);
    };
    let bytes = output.bytes().ok_or_else(|| Error::internal("the answer cannot be written as JSON"))?;
    if bytes <= limit {
        return Ok(output);
    }
    Err(Error::new(
        ErrorCode::PayloadTooLarge,
        format!("the answer has {bytes} bytes, more than the {limit} of this tool"),
    )
    .detail("limitBytes", limit))
}
