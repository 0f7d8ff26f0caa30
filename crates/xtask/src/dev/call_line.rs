//! The line of JSON that the Worker logs of each call (docs/observability.md), made short for a person.

use serde_json::Value;

/// One short line for the line of a call; `None` for any other line.
pub(super) fn readable(line: &str) -> Option<String> {
    let call: Value = serde_json::from_str(line.get(line.find('{')?..)?.trim()).ok()?;
    let text = |field: &str| call[field].as_str();
    let message = text("message").filter(|message| ["call", "refused"].contains(message))?;
    let time = text("at")?.get(11..19)?;
    let mut words = vec![time.to_owned(), text("tool").unwrap_or(message).to_owned()];
    words.extend(text("sandboxId").map(str::to_owned));
    words.push(text("outcome")?.to_owned());
    words.extend(call["exitCode"].as_i64().map(|code| format!("exit {code}")));
    words.push(format!("{} ms", call["durationMs"].as_i64()?));
    words.extend(call["startMs"].as_i64().map(|start| format!("(start {start} ms)")));
    words.push(text("requestId")?.to_owned());
    // What a stranger named a tool is not to move the cursor.
    let printable = |word: String| word.chars().filter(|character| !character.is_control()).collect::<String>();
    let line = words.into_iter().map(printable).collect::<Vec<_>>().join(" ");
    // The cause of a fault is what a developer looks for.
    Some(match text("source") {
        Some(source) => format!("{line}\n  {}", printable(source.to_owned())),
        None => line,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_one_short_line() {
        let line = r#"{"level":"info","message":"call","at":"2026-08-01T12:00:05.250Z","requestId":"410462ec","tool":"exec","sandboxId":"demo","outcome":"succeeded","exitCode":3,"durationMs":875,"startMs":338}"#;
        let expected = "12:00:05 exec demo succeeded exit 3 875 ms (start 338 ms) 410462ec";
        assert_eq!(readable(line).as_deref(), Some(expected));
        assert_eq!(readable(&format!("[worker] {line}\n")).as_deref(), Some(expected));
    }

    #[test]
    fn a_refusal_and_a_fault_say_what_there_is() {
        let refused = r#"{"message":"refused","at":"2026-08-01T12:00:05.250Z","requestId":"r1","outcome":"unauthenticated","durationMs":0}"#;
        assert_eq!(readable(refused).as_deref(), Some("12:00:05 refused unauthenticated 0 ms r1"));
        let fault = r#"{"message":"call","at":"2026-08-01T12:00:05.250Z","requestId":"r1","tool":"\u001b[2Jexec","outcome":"internal","durationMs":1,"source":"no\nsuch table"}"#;
        assert_eq!(readable(fault).as_deref(), Some("12:00:05 [2Jexec internal 1 ms r1\n  nosuch table"));
    }

    #[test]
    fn other_lines_are_left_alone() {
        for line in
            ["[wrangler:info] GET /health 200 OK", "{}", r#"{"message":"call"}"#, r#"{"message":"something"}"#, "{"]
        {
            assert_eq!(readable(line), None, "{line}");
        }
    }
}
