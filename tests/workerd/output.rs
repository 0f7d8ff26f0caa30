//! Output is exact: characters that straddle chunks, bytes that are no text, and sizes beyond every cap.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use test_support::{Fault, Operation, Stack};

/// Bytes of one channel of a buffered answer.
fn bytes(output: &Value, channel: &str) -> Vec<u8> {
    let text = output[channel].as_str().unwrap();
    match output.get(format!("{channel}Encoding")).and_then(Value::as_str) {
        Some("base64") => STANDARD.decode(text).unwrap(),
        _ => text.as_bytes().to_vec(),
    }
}

const STRADDLING: &str = "printf 'caf\\xc3'; printf x >&2; sleep 0.2; printf '\\xa9\\xe2\\x98'; printf '\\xe2' >&2; \
                          sleep 0.2; printf '\\x95'; printf '\\x82\\xac' >&2";

#[tokio::test]
async fn a_character_that_straddles_chunks_stays_whole() {
    let sandbox = Stack::shared().sandbox().await;
    let output = sandbox.exec(json!({"command": STRADDLING})).await;
    assert_eq!((&output["stdout"], &output["stderr"]), (&json!("café☕"), &json!("x€")));
    let transcript = sandbox.exec_streamed(json!({"command": STRADDLING})).await;
    assert_eq!(transcript.stdout, "café☕".as_bytes());
    assert_eq!(transcript.stderr, "x€".as_bytes());
}

#[tokio::test]
async fn a_transport_that_splits_every_byte_changes_nothing() {
    let stack = Stack::shared();
    let sandbox = stack.sandbox().await;
    stack.proxy.inject(&sandbox.id, Operation::Exec, Fault::SplitsBytes);
    let output = sandbox.exec(json!({"command": STRADDLING})).await;
    assert_eq!((&output["stdout"], &output["stderr"]), (&json!("café☕"), &json!("x€")));
    let transcript = sandbox.exec_streamed(json!({"command": STRADDLING})).await;
    assert_eq!(transcript.stdout, "café☕".as_bytes());
}

#[tokio::test]
async fn the_beginning_of_a_character_at_the_end_is_not_lost() {
    let sandbox = Stack::shared().sandbox().await;
    let command = "printf 'caf\\xc3'; exit 3";
    let output = sandbox.exec(json!({"command": command})).await;
    assert_eq!(bytes(&output, "stdout"), b"caf\xc3");
    assert_eq!(output["stdoutEncoding"], "base64");
    let transcript = sandbox.exec_streamed(json!({"command": command})).await;
    assert_eq!(transcript.stdout, b"caf\xc3");
    assert_eq!(transcript.result()["exitCode"], 3);
}

#[tokio::test]
async fn bytes_that_are_no_text_arrive_as_they_are() {
    let sandbox = Stack::shared().sandbox().await;
    let command = "printf '\\xff\\xfe\\x00\\x80'; printf 'text' >&2";
    let output = sandbox.exec(json!({"command": command})).await;
    assert_eq!(bytes(&output, "stdout"), b"\xff\xfe\x00\x80");
    assert_eq!(output["stderr"], "text");
    assert!(output.get("stderrEncoding").is_none_or(|encoding| encoding == "utf-8"), "{output}");
    let every = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 40)";
    let transcript = sandbox.exec_streamed(json!({"command": every, "language": "python"})).await;
    assert_eq!(transcript.stdout, (0..=255).collect::<Vec<u8>>().repeat(40));
    // A NUL is text in JSON.
    let output = sandbox.exec(json!({"command": "printf 'a\\0b'"})).await;
    assert_eq!(bytes(&output, "stdout"), b"a\0b");
}

#[tokio::test]
async fn output_beyond_the_cap_keeps_both_ends_and_the_exit_status() {
    let sandbox = Stack::shared().sandbox().await;
    let command = "echo first; head -c 12000000 /dev/zero | base64 -w0; echo; echo last; exit 7";
    let output = sandbox.exec(json!({"command": command})).await;
    let total = 6 + 16_000_000 + 1 + 5;
    assert_eq!((&output["exitCode"], &output["truncated"]), (&json!(7), &json!(true)));
    assert_eq!(output["stdoutBytes"], total);
    let stdout = output["stdout"].as_str().unwrap();
    assert!(stdout.starts_with("first\n") && stdout.ends_with("\nlast\n"), "both ends are kept");
    assert!(stdout.len() < 9_000_000, "bounded: {}", stdout.len());
}

#[tokio::test]
async fn five_mebibytes_are_valid_json_and_say_what_is_left_out() {
    let sandbox = Stack::shared().sandbox().await;
    let command = r#"python3 -c "print('\"\\\\\u00e9' * 1310720, end='')""#;
    let answer = sandbox.call("exec", json!({"command": command})).await;
    let output = answer.ok();
    assert_eq!((&output["exitCode"], &output["truncated"]), (&json!(0), &json!(true)), "{}", output["stderr"]);
    assert_eq!(output["stdoutBytes"], 1_310_720 * 4);
    assert!(!output["stdout"].as_str().unwrap().contains('\u{fffd}'), "the cut splits no character");
}

#[tokio::test]
async fn one_very_long_line_passes() {
    let sandbox = Stack::shared().sandbox().await;
    let command = "head -c 200000 /dev/zero | base64 -w0";
    let output = sandbox.exec(json!({"command": command})).await;
    assert_eq!(output["stdout"].as_str().unwrap().len(), 266_668);
    assert_eq!(output["truncated"], false);
    let transcript = sandbox.exec_streamed(json!({"command": command})).await;
    assert_eq!(transcript.stdout.len(), 266_668);
}

#[tokio::test]
async fn forty_mebibytes_stream_complete() {
    let sandbox = Stack::shared().sandbox().await;
    let command = "import random, sys, hashlib\nh = hashlib.sha256()\nfor _ in range(40):\n    block = \
                   random.randbytes(786432).hex().encode()[:1048576]\n    h.update(block)\n    \
                   sys.stdout.buffer.write(block)\nprint(h.hexdigest(), file=sys.stderr, end='')";
    let transcript = sandbox.exec_streamed(json!({"command": command, "language": "python", "timeout": 120})).await;
    assert_eq!(transcript.result()["exitCode"], 0);
    assert_eq!(transcript.stdout.len(), 40 << 20);
    let hash: String = Sha256::digest(&transcript.stdout).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hash.as_bytes(), transcript.stderr);
    assert_eq!(transcript.result()["truncated"], true, "what the result keeps is capped, the stream is not");
    assert_eq!(transcript.result()["stdoutBytes"], 40 << 20);
}
