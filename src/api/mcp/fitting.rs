//! Answers as events of a stream, which clients read up to a size.
//!
//! The official SDKs give up a stream that has an event of more than 1 MiB, and with it an answer whose call was carried out. What is
//! longer is told in less, by the first of these that fits:
//!
//! ```text
//! whole ─▶ the text shortened, the structure whole ─▶ what a command wrote cut to its beginning and end ─▶ an error that says so
//! ```
//!
//! An answer as JSON has no such limit.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sandbox_api::{EncodedBytes, Encoding};
use serde_json::{Value, json};

use super::envelope::{self, Fault};
use super::resources::REFUSED;
use super::result::{PROBLEM_FIELD, refusal, text_of};
use crate::error::{Error, ErrorCode, Problem};
use crate::sse;

/// Most bytes of one event with its frame.
pub const LONGEST_EVENT: usize = 1024 * 1024;

/// Room for what stands around a result.
const AROUND: usize = 4 * 1024;

/// KiB that a text may be shortened to, the first that fits.
const STEPS: [usize; 14] = [896, 768, 640, 512, 384, 256, 192, 128, 96, 64, 32, 16, 4, 1];

/// What a command wrote, and where its length and its encoding stand.
const CHANNELS: [(&str, &str, &str); 2] =
    [("stdout", "stdoutBytes", "stdoutEncoding"), ("stderr", "stderrBytes", "stderrEncoding")];

const TEXT_IS_SHORTENED: &str = "Long values are shortened in this text; structuredContent has them whole.";
const OUTPUT_IS_CUT: &str =
    "The answer is too long for one event, and what the command wrote is cut to its beginning and its end.";
const NO_TEXT: &str =
    "The answer is in structuredContent, and too long to be told here as well; ask for less at once to have it here.";

/// The message as an event, which is never too long.
pub fn event(message: &Value, request_id: &str) -> String {
    let encoded = sse::encode("message", &message.to_string());
    if encoded.len() <= LONGEST_EVENT {
        return encoded;
    }
    let id = message.get("id").cloned().unwrap_or_default();
    let fitted =
        message.get("result").filter(|result| result.get("content").is_some_and(Value::is_array)).map(|result| {
            let room = (LONGEST_EVENT - AROUND).saturating_sub(length(&id));
            envelope::success(&id, fit(result, room).unwrap_or_else(|| too_long(result, encoded.len(), request_id)))
        });
    let fitted = fitted.unwrap_or_else(|| refused(encoded.len(), request_id).answer(&id));
    sse::encode("message", &fitted.to_string())
}

/// A result of a tool in less than `room` bytes; nothing where it has too much that is no output of a command.
fn fit(result: &Value, room: usize) -> Option<Value> {
    let mut result = result.clone();
    set_text(&mut result, NO_TEXT.to_owned());
    let steps = || STEPS.into_iter().map(|kib| kib * 1024);
    std::iter::once(None).chain(steps().map(Some)).find_map(|most| {
        let mut fitted = result.clone();
        if most.is_some_and(|most| !cut(&mut fitted, most)) {
            return None;
        }
        let others = length(&fitted);
        if others > room {
            return None;
        }
        let note = if most.is_some() { OUTPUT_IS_CUT } else { TEXT_IS_SHORTENED };
        let fits = |text: &String| others + length(&Value::String(text.clone())) <= room;
        if let Some(text) = steps().map(|most| told(&fitted, note, most)).find(fits) {
            set_text(&mut fitted, text);
        }
        Some(fitted)
    })
}

fn set_text(result: &mut Value, text: String) {
    if let Some(fields) = result.as_object_mut() {
        fields.insert("content".to_owned(), json!([{ "type": "text", "text": text }]));
    }
}

/// The text of a result whose long values are shortened.
fn told(result: &Value, note: &str, most: usize) -> String {
    match problem(result) {
        Some(problem) => {
            let details = Value::Object(problem.details.clone());
            let details = shortened(&details, most).as_object().cloned().unwrap_or_default();
            text_of(&Problem { details, ..problem })
        }
        None => {
            let structured = result.get("structuredContent").unwrap_or(&Value::Null);
            format!("{note}\n{}", shortened(structured, most))
        }
    }
}

fn problem(result: &Value) -> Option<Problem> {
    serde_json::from_value(result.get("_meta")?.get(PROBLEM_FIELD)?.clone()).ok()
}

/// The same with no text of more than about `most` bytes.
fn shortened(value: &Value, most: usize) -> Value {
    match value {
        Value::String(text) => Value::String(
            ends(text.as_bytes(), most, 0)
                .map_or_else(|| text.clone(), |bytes| String::from_utf8_lossy(&bytes).into_owned()),
        ),
        Value::Array(items) => items.iter().map(|item| shortened(item, most)).collect(),
        Value::Object(fields) => {
            Value::Object(fields.iter().map(|(name, value)| (name.clone(), shortened(value, most))).collect())
        }
        other => other.clone(),
    }
}

/// Cuts what commands wrote, wherever a result holds it; whether there was any that is longer.
fn cut(value: &mut Value, most: usize) -> bool {
    let Value::Object(fields) = value else {
        return value
            .as_array_mut()
            .is_some_and(|items| items.iter_mut().fold(false, |was, item| cut(item, most) | was));
    };
    let mut is_cut = false;
    for (name, count, encoding) in CHANNELS {
        let Some(data) = fields.get(name).and_then(Value::as_str).map(str::to_owned) else { continue };
        let encoding = fields.get(encoding).cloned().and_then(|encoding| serde_json::from_value(encoding).ok());
        let encoded = EncodedBytes { data, encoding: encoding.unwrap_or_default() };
        let written = fields.get(count).and_then(Value::as_u64).unwrap_or(0);
        let Some(bytes) = encoded.decode().and_then(|bytes| ends(&bytes, most, written)) else { continue };
        let data = match encoded.encoding {
            Encoding::Utf8 => String::from_utf8_lossy(&bytes).into_owned(),
            Encoding::Base64 => STANDARD.encode(&bytes),
        };
        fields.insert(name.to_owned(), data.into());
        fields.insert("truncated".to_owned(), true.into());
        is_cut = true;
    }
    fields.values_mut().fold(is_cut, |was, field| cut(field, most) | was)
}

/// The beginning and the end of what is longer than `most` bytes, as a sandbox tells it: text is never cut inside a character.
/// `written` is how much there was of it in all, where that is more.
fn ends(bytes: &[u8], most: usize, written: u64) -> Option<Vec<u8>> {
    if bytes.len() <= most {
        return None;
    }
    let is_text = std::str::from_utf8(bytes).is_ok();
    let is_border = |at: usize| !is_text || bytes.get(at).is_none_or(|byte| byte & 0xC0 != 0x80);
    let head = (0..=most / 2).rev().find(|at| is_border(*at)).unwrap_or(0);
    let tail = (bytes.len() - most / 2..=bytes.len()).find(|at| is_border(*at)).unwrap_or(bytes.len());
    let kept = head + (bytes.len() - tail);
    let all = usize::try_from(written).unwrap_or(usize::MAX).max(bytes.len());
    let mut told = bytes.get(..head)?.to_vec();
    told.extend_from_slice(format!("\n[{} bytes left out]\n", all - kept).as_bytes());
    told.extend_from_slice(bytes.get(tail..)?);
    Some(told)
}

/// What stands for a result that is too long whatever is left out of its text.
fn too_long(result: &Value, bytes: usize, request_id: &str) -> Value {
    if let Some(problem) = problem(result) {
        // What went wrong is told whatever else is not.
        return refusal(&Problem { details: Default::default(), ..problem });
    }
    let message = "the call was carried out, and its answer is longer than clients read of one event: ask for less at once, or without a \
        progressToken, since an answer as JSON has no such limit";
    refusal(&limit(message, bytes).problem(request_id))
}

fn refused(bytes: usize, request_id: &str) -> Fault {
    let error = limit("the answer is longer than clients read of one event: accept application/json as well", bytes);
    let data = Some(json!({ PROBLEM_FIELD: error.problem(request_id) }));
    Fault { data, ..Fault::new(200, REFUSED, error.message) }
}

fn limit(message: &str, bytes: usize) -> Error {
    Error::new(ErrorCode::PayloadTooLarge, message).detail("limitBytes", LONGEST_EVENT).detail("bytes", bytes)
}

/// Bytes of a value as JSON.
fn length(value: &Value) -> usize {
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // Nothing of a value cannot be written, and a count takes everything.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}

#[cfg(test)]
mod tests {
    use super::super::result::called;
    use super::*;
    use crate::call::Reply;

    const MIB: usize = 1024 * 1024;

    fn answered(output: Value) -> Value {
        envelope::success(&json!(7), called(Ok(Reply::Output(output)), "r").unwrap())
    }

    /// The message of an event that is not too long.
    fn read(message: &Value) -> Value {
        let event = event(message, "r");
        assert!(event.len() <= LONGEST_EVENT, "{} bytes", event.len());
        let told = event.strip_prefix("event: message\ndata: ").and_then(|rest| rest.strip_suffix("\n\n")).unwrap();
        assert!(!told.contains('\n'));
        let told: Value = serde_json::from_str(told).unwrap();
        assert_eq!(told["id"], 7);
        told
    }

    fn exec(stdout: &str, stderr: &str) -> Value {
        json!({ "exitCode": 0, "stdout": stdout, "stdoutBytes": stdout.len(), "stderr": stderr, "stderrBytes": stderr.len(), "truncated": false })
    }

    fn text(message: &Value) -> &str {
        message["result"]["content"][0]["text"].as_str().unwrap()
    }

    #[test]
    fn what_fits_is_told_as_it_is() {
        let message = answered(exec(&"x".repeat(500_000), ""));
        assert_eq!(read(&message), message);
    }

    #[test]
    fn a_long_answer_has_its_structure_whole_and_its_text_shortened() {
        let output = exec(&format!("begin{}end", "x".repeat(700_000)), "");
        let told = read(&answered(output.clone()));
        assert_eq!(told["result"]["structuredContent"], output);
        let text = text(&told);
        assert!(
            text.starts_with(TEXT_IS_SHORTENED) && text.contains("bytes left out") && text.contains("\"exitCode\":0")
        );
        assert!(text.contains("begin") && text.contains("end\"") && text.len() > 200_000, "{}", text.len());
    }

    #[test]
    fn output_of_every_kind_is_cut_to_what_fits_and_says_so() {
        for (unit, both, least) in
            [("x", false, 800_000), ("\n", true, 300_000), ("\0", true, 300_000), ("é", false, 800_000)]
        {
            let long = unit.repeat(MIB / unit.len());
            let output = exec(&format!("begin{long}end"), if both { &long } else { "" });
            let told = read(&answered(output.clone()));
            let structured = &told["result"]["structuredContent"];
            let stdout = structured["stdout"].as_str().unwrap();
            assert_eq!((&structured["truncated"], &structured["exitCode"]), (&json!(true), &json!(0)), "{unit:?}");
            assert_eq!(structured["stdoutBytes"], output["stdoutBytes"], "what was written is told truly");
            assert!(stdout.starts_with("begin") && stdout.ends_with("end"), "{unit:?}");
            let left_out: usize = stdout.split(['[', ' ']).filter_map(|part| part.parse().ok()).next().unwrap();
            let kept = stdout.len() - format!("\n[{left_out} bytes left out]\n").len();
            assert_eq!(kept + left_out, MIB + 8, "{unit:?}");
            let kept = length(&structured["stdout"]);
            assert!(kept >= least, "{unit:?}: {kept} of {least}");
            assert!(text(&told).starts_with(OUTPUT_IS_CUT), "{unit:?}");
        }
    }

    #[test]
    fn what_was_cut_already_is_counted_once() {
        let stdout = format!("{}\n[9000000 bytes left out]\n{}", "x".repeat(MIB / 2), "\0".repeat(MIB / 2));
        let output =
            json!({ "exitCode": 1, "stdout": stdout, "stdoutBytes": 9_000_000 + MIB, "stderr": "", "truncated": true });
        let told = read(&answered(output));
        let stdout = told["result"]["structuredContent"]["stdout"].as_str().unwrap();
        assert_eq!(stdout.matches("bytes left out").count(), 1);
        let left_out: usize = stdout.split(['[', ' ']).filter_map(|part| part.parse().ok()).next().unwrap();
        assert!(left_out > 9_000_000, "{left_out}");
    }

    #[test]
    fn bytes_stay_bytes() {
        let bytes = vec![0xFF; MIB];
        let data = STANDARD.encode(&bytes);
        let output = json!({ "exitCode": 0, "stdout": data, "stdoutEncoding": "base64", "stdoutBytes": MIB, "stderr": "", "truncated": false });
        let told = read(&answered(output));
        let data = told["result"]["structuredContent"]["stdout"].as_str().unwrap().to_owned();
        let decoded = EncodedBytes { data, encoding: Encoding::Base64 }.decode().unwrap();
        assert!(decoded.starts_with(&[0xFF; 1000]) && decoded.ends_with(&[0xFF; 1000]) && decoded.len() < MIB);
    }

    #[test]
    fn the_output_of_a_job_is_cut_where_it_stands() {
        let job = json!({ "jobId": "j", "output": exec(&"\n".repeat(MIB), "") });
        let told = read(&answered(job));
        let structured = &told["result"]["structuredContent"];
        assert_eq!((&structured["jobId"], &structured["output"]["truncated"]), (&json!("j"), &json!(true)));
    }

    #[test]
    fn an_error_keeps_its_code_whatever_it_holds() {
        let error = Error::new(ErrorCode::Timeout, "the command was killed").detail("timeoutMs", 5);
        for error in [error.clone().detail("stdout", "\0".repeat(MIB)), error.detail("other", "x".repeat(2 * MIB))] {
            let message = envelope::success(&json!(7), called(Err(error), "r").unwrap());
            let told = read(&message);
            assert_eq!(told["result"]["_meta"][PROBLEM_FIELD]["code"], "timeout");
            assert_eq!(
                (&told["result"]["isError"], &told["result"]["_meta"]["cloudflare-ops/code"]),
                (&json!(true), &json!(-32002))
            );
            assert!(text(&told).starts_with("timeout: the command was killed"));
        }
    }

    #[test]
    fn what_cannot_be_cut_is_an_error_that_says_what_to_do() {
        let told = read(&answered(json!({ "content": "\0".repeat(MIB), "encoding": "utf-8" })));
        let problem = &told["result"]["_meta"][PROBLEM_FIELD];
        assert_eq!((&told["result"]["isError"], &problem["code"]), (&json!(true), &json!("payload_too_large")));
        assert_eq!(problem["details"]["limitBytes"], LONGEST_EVENT);
        assert!(text(&told).contains("was carried out"));
        let list: Vec<Value> = (0..60_000).map(|n| json!({ "name": n })).collect();
        let told = read(&answered(json!({ "entries": list })));
        assert_eq!(
            (text(&told), told["result"]["structuredContent"]["entries"].as_array().unwrap().len()),
            (NO_TEXT, 60_000)
        );
        let resource = envelope::success(&json!(7), json!({ "contents": [{ "text": "x".repeat(2 * MIB) }] }));
        let told = read(&resource);
        assert_eq!(
            (&told["error"]["code"], &told["error"]["data"][PROBLEM_FIELD]["code"]),
            (&json!(-32010), &json!("payload_too_large"))
        );
    }
}
