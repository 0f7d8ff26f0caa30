//! Masks the exact values of known secrets, across the borders of chunks.
//!
//! Works on bytes, so that a secret inside output that is not text is masked as well. A [`Redactor`] that knows no
//! secret passes everything through. Raw files are byte-exact and are not masked.

use serde_json::Value;

/// What stands in place of a secret.
pub const MASK: &str = "[redacted]";

/// A value shorter than this is not treated as a secret: masking it would garble ordinary text.
const SHORTEST_SECRET: usize = 8;

/// The secrets that must not leave with an answer.
#[derive(Clone, Debug, Default)]
pub struct Redactor {
    secrets: Vec<Vec<u8>>,
}

impl Redactor {
    pub fn new<S: AsRef<str>>(secrets: impl IntoIterator<Item = S>) -> Self {
        let mut secrets: Vec<Vec<u8>> = secrets
            .into_iter()
            .map(|secret| secret.as_ref().as_bytes().to_vec())
            .filter(|secret| secret.len() >= SHORTEST_SECRET)
            .collect();
        // Longest first, so that a secret which contains another is masked whole.
        secrets.sort_by(|a, b| b.len().cmp(&a.len()).then(a.cmp(b)));
        secrets.dedup();
        Self { secrets }
    }

    /// Masks every secret in `bytes`.
    pub fn bytes(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = RedactingStream::new(self.clone());
        let mut masked = stream.push(bytes);
        masked.extend(stream.finish());
        masked
    }

    /// Masks every secret in `text`.
    pub fn text(&self, text: &str) -> String {
        if !self.secrets.iter().any(|secret| contains(text.as_bytes(), secret)) {
            return text.to_owned();
        }
        String::from_utf8_lossy(&self.bytes(text.as_bytes())).into_owned()
    }

    /// Masks every secret in every string of a JSON value, names of fields included.
    pub fn json(&self, value: Value) -> Value {
        if self.secrets.is_empty() {
            return value;
        }
        match value {
            Value::String(text) => Value::String(self.text(&text)),
            Value::Array(items) => Value::Array(items.into_iter().map(|item| self.json(item)).collect()),
            Value::Object(fields) => {
                Value::Object(fields.into_iter().map(|(name, value)| (self.text(&name), self.json(value))).collect())
            }
            other => other,
        }
    }

    /// A secret that starts exactly at the beginning of `bytes`.
    fn secret_at(&self, bytes: &[u8]) -> Option<usize> {
        self.secrets.iter().find(|secret| bytes.starts_with(secret)).map(Vec::len)
    }

    /// Whether `bytes` is the beginning of some secret, so that more bytes must be seen.
    fn may_begin_secret(&self, bytes: &[u8]) -> bool {
        self.secrets.iter().any(|secret| secret.len() > bytes.len() && secret.starts_with(bytes))
    }
}

/// The text with everything masked that has the shape of a key or a token of this service, whosever it is.
pub fn without_credentials(text: &str) -> String {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    let mut masked = String::new();
    let mut rest = text;
    while let Some(at) = ["cfo_", "eyJ"].into_iter().filter_map(|beginning| rest.find(beginning)).min() {
        let (before, from) = rest.split_at(at);
        let length = from.bytes().take_while(is_part).count();
        let (word, after) = from.split_at(length);
        let is_key = word.starts_with("cfo_") && word.len() >= 64;
        let is_token = word.starts_with("eyJ") && word.matches('.').count() >= 2;
        masked.push_str(before);
        masked.push_str(if is_key || is_token { MASK } else { word });
        rest = after;
    }
    masked + rest
}

/// The text with the credentials of every URL in it masked: what stands between `://` and the last `@` before its path.
pub fn without_userinfo(text: &str) -> String {
    let mut masked = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("://") {
        masked.push_str(before);
        masked.push_str("://");
        let ends = |letter: char| letter.is_whitespace() || "/?#\"'`<>\\".contains(letter);
        let authority = after.split(ends).next().unwrap_or_default();
        rest = match authority.rfind('@').and_then(|at| after.get(at..)) {
            Some(host) => {
                masked.push_str(MASK);
                host
            }
            None => after,
        };
    }
    masked + rest
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

/// Masks a stream: holds back only what may be the beginning of a secret.
#[derive(Debug)]
pub struct RedactingStream {
    redactor: Redactor,
    held: Vec<u8>,
}

impl RedactingStream {
    pub fn new(redactor: Redactor) -> Self {
        Self { redactor, held: Vec::new() }
    }

    /// Number of bytes held back.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Takes the next bytes and gives back what is safe to pass on.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        if self.redactor.secrets.is_empty() {
            return bytes.to_vec();
        }
        self.held.extend_from_slice(bytes);
        let input = std::mem::take(&mut self.held);
        let mut output = Vec::with_capacity(input.len());
        let mut rest = input.as_slice();
        while let Some((&first, after)) = rest.split_first() {
            if self.redactor.may_begin_secret(rest) {
                self.held = rest.to_vec();
                break;
            }
            if let Some(length) = self.redactor.secret_at(rest) {
                output.extend_from_slice(MASK.as_bytes());
                rest = rest.get(length..).unwrap_or_default();
            } else {
                output.push(first);
                rest = after;
            }
        }
        output
    }

    /// The bytes still held back, masked, once no more will come.
    pub fn finish(&mut self) -> Vec<u8> {
        let mut output = Vec::new();
        let held = std::mem::take(&mut self.held);
        let mut rest = held.as_slice();
        while let Some((&first, after)) = rest.split_first() {
            if let Some(length) = self.redactor.secret_at(rest) {
                output.extend_from_slice(MASK.as_bytes());
                rest = rest.get(length..).unwrap_or_default();
            } else {
                output.push(first);
                rest = after;
            }
        }
        output
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_secret_is_masked_wherever_the_chunks_are_cut(before in "[a-z]{0,20}", after in "[a-z]{0,20}", cut in 0usize..60) {
            let secret = "s3cr3t-s3cr3t-value";
            let text = format!("{before}{secret}{after}");
            let cut = cut.min(text.len());
            let (first, second) = text.as_bytes().split_at(cut);
            let mut stream = RedactingStream::new(Redactor::new([secret]));
            let mut output = stream.push(first);
            output.extend(stream.push(second));
            output.extend(stream.finish());
            prop_assert_eq!(String::from_utf8(output).unwrap(), format!("{before}{MASK}{after}"));
        }

        #[test]
        fn what_holds_no_secret_is_exact(bytes: Vec<u8>) {
            prop_assert_eq!(Redactor::new(["s3cr3t-s3cr3t-value"]).bytes(&bytes), bytes);
        }
    }

    #[test]
    fn json_is_masked_in_values_and_names() {
        let redactor = Redactor::new(["hunter2hunter2"]);
        let masked = redactor.json(serde_json::json!({ "hunter2hunter2": ["x hunter2hunter2 y"] }));
        assert_eq!(masked, serde_json::json!({ "[redacted]": ["x [redacted] y"] }));
    }

    #[test]
    fn a_secret_inside_another_is_masked_with_it() {
        assert_eq!(
            Redactor::new(["abcdefgh", "abcdefgh-long"]).text("abcdefgh-long abcdefgh!"),
            "[redacted] [redacted]!"
        );
    }

    #[test]
    fn urls_keep_everything_but_their_credentials() {
        for (text, masked) in [
            ("git clone https://u:p@host/a && b", "git clone https://[redacted]@host/a && b"),
            ("https://tok@en@host:1/x http://a@b", "https://[redacted]@host:1/x http://[redacted]@b"),
            ("https://host/a@b ssh://git@host", "https://host/a@b ssh://[redacted]@host"),
            ("a@b :// é://", "a@b :// é://"),
        ] {
            assert_eq!(without_userinfo(text), masked);
        }
    }

    #[test]
    fn keys_and_tokens_of_this_service_are_masked_whosever_they_are() {
        let key = format!("cfo_default_{}_{}", "0".repeat(32), "a".repeat(64));
        let text = format!("curl -H 'Bearer {key}' é {key}x; eyJhbGciOi.eyJpc3Mi.c2lnbmF0dXJl, cfo_short eyJust");
        let expected = format!("curl -H 'Bearer {MASK}' é {MASK}; {MASK}, cfo_short eyJust");
        assert_eq!(without_credentials(&text), expected);
    }
}
