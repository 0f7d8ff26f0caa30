//! Reading a JSON body: bounded, strict, and with the field's name in every complaint.

use axum::body::Body;
use bytes::Bytes;
use http_body_util::BodyExt;
use sandbox_api::ControlErrorCode;
use serde::de::DeserializeOwned;

use super::Problem;

/// Largest JSON body.
const JSON_LIMIT_BYTES: usize = 16 << 20;

/// Reads the whole body, or says 413.
async fn read(mut body: Body) -> Result<Bytes, Problem> {
    let mut collected = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Problem::invalid("body: it ended before its declared length"))?;
        let Ok(data) = frame.into_data() else { continue };
        if collected.len() + data.len() > JSON_LIMIT_BYTES {
            let message = format!("body: larger than the {JSON_LIMIT_BYTES} bytes that a JSON body may have");
            return Err(Problem::new(ControlErrorCode::PayloadTooLarge, message));
        }
        collected.extend_from_slice(&data);
    }
    Ok(collected.into())
}

/// Reads a JSON body of type `T`.
pub(crate) async fn read_json<T: DeserializeOwned>(body: Body) -> Result<T, Problem> {
    let bytes = read(body).await?;
    parse_json(&bytes)
}

/// Reads a JSON body of type `T`; an empty body is the default value.
pub(crate) async fn read_json_or_default<T: DeserializeOwned + Default>(body: Body) -> Result<T, Problem> {
    let bytes = read(body).await?;
    if bytes.is_empty() { Ok(T::default()) } else { parse_json(&bytes) }
}

fn parse_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        let path = if path == "." { "body".to_owned() } else { path };
        Problem::invalid(format!("{path}: {}", error.into_inner()))
    })?;
    deserializer.end().map_err(|error| Problem::invalid(format!("body: {error}")))?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandbox_api::ExecRequest;

    fn complaint(json: &str) -> String {
        format!("{:?}", parse_json::<ExecRequest>(json.as_bytes()).expect_err("must be refused"))
    }

    #[test]
    fn a_complaint_names_the_field() {
        for value in ["-1", "1.5", "1e15", "\"5\"", "null"] {
            let text = complaint(&format!(r#"{{"id":"a","argv":["true"],"timeoutMs":{value}}}"#));
            assert!(text.contains("timeoutMs:"), "{text}");
        }
        assert!(complaint(r#"{"id":"a","timeoutMs":1,"env":{"A":null}}"#).contains("env.A:"));
        assert!(complaint(r#"{"id":"a","timeoutMs":1,"nosuch":1}"#).contains("nosuch"));
        assert!(complaint(r#"{"timeoutMs":1}"#).contains("`id`"));
    }

    #[test]
    fn what_is_not_one_json_value_is_refused() {
        assert!(complaint("hello").contains("body:"));
        assert!(complaint(r#"{"id":"a","timeoutMs":1} x"#).contains("body:"));
    }
}
