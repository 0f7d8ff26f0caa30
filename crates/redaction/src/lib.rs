//! Masks the values of known secrets, as they are and in the usual forms (`forms.rs`), across the borders of chunks.
//!
//! Works on bytes, so that a secret inside output that is not text is masked as well. A [`Redactor`] that knows no
//! secret passes everything through. Raw files are byte-exact and are not masked.

mod environment;
mod forms;
mod shapes;

use std::borrow::Cow;

use serde_json::Value;

pub use environment::{LIST, declare_secret, secrets};
pub use shapes::{without_credentials, without_userinfo};

/// What stands in place of a secret.
pub const MASK: &str = "[redacted]";

/// A value shorter than this is not treated as a secret: masking it would garble ordinary text.
pub const SHORTEST_SECRET: usize = 8;

/// The secrets that must not leave with an answer.
#[derive(Clone, Default)]
pub struct Redactor {
    /// Every form of every secret.
    secrets: Vec<Vec<u8>>,
    /// A bit for each two bytes that one of them begins with; empty where there are none.
    beginnings: Vec<u64>,
}

impl std::fmt::Debug for Redactor {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} forms of secrets", self.secrets.len())
    }
}

impl Redactor {
    pub fn new<S: AsRef<str>>(secrets: impl IntoIterator<Item = S>) -> Self {
        let mut secrets: Vec<Vec<u8>> = secrets
            .into_iter()
            .filter(|secret| secret.as_ref().len() >= SHORTEST_SECRET)
            .flat_map(|secret| forms::forms(secret.as_ref()).collect::<Vec<_>>())
            .collect();
        // Longest first, so that a secret which contains another is masked whole.
        secrets.sort_by(|a, b| b.len().cmp(&a.len()).then(a.cmp(b)));
        secrets.dedup();
        let mut beginnings = if secrets.is_empty() { Vec::new() } else { vec![0; 1 << 10] };
        for (word, bit) in secrets.iter().filter_map(|secret| Some(place(*secret.first()?, *secret.get(1)?))) {
            if let Some(bits) = beginnings.get_mut(word) {
                *bits |= bit;
            }
        }
        Self { secrets, beginnings }
    }

    /// Whether there is nothing to mask.
    pub fn is_empty(&self) -> bool {
        self.secrets.is_empty()
    }

    /// Masks every secret in `bytes`.
    pub fn bytes(&self, bytes: &[u8]) -> Vec<u8> {
        self.masked(bytes, true).0
    }

    /// Masks every secret in `text`.
    pub fn text(&self, text: &str) -> String {
        // A secret is whole characters, and so is what is left around it.
        let masked = self.bytes(text.as_bytes());
        String::from_utf8(masked).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
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

    /// `input` with its secrets masked, and how much of its end is left out, since it may be the beginning of a secret and is not
    /// the end of all.
    fn masked(&self, input: &[u8], is_last: bool) -> (Vec<u8>, usize) {
        let mut output = Vec::with_capacity(input.len());
        let mut rest = input;
        while let Some(skipped) = self.candidate(rest) {
            let (plain, candidate) = rest.split_at(skipped);
            output.extend_from_slice(plain);
            if !is_last && self.may_begin_secret(candidate) {
                return (output, candidate.len());
            }
            let (length, shown) = match self.secret_at(candidate) {
                Some(length) => (length, MASK.as_bytes()),
                None => (1, candidate.get(..1).unwrap_or_default()),
            };
            output.extend_from_slice(shown);
            rest = candidate.get(length..).unwrap_or_default();
        }
        output.extend_from_slice(rest);
        (output, 0)
    }

    /// Where a secret may begin: two bytes say that mostly, and of the last one it is not known.
    fn candidate(&self, bytes: &[u8]) -> Option<usize> {
        let begins = |pair: &[u8]| match pair {
            [first, second] => {
                let (word, bit) = place(*first, *second);
                self.beginnings.get(word).is_some_and(|bits| bits & bit != 0)
            }
            _ => false,
        };
        let found = bytes.windows(2).position(begins);
        found.or_else(|| bytes.len().checked_sub(1).filter(|_| !self.is_empty()))
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

/// Where the bit of two bytes is: its word, and itself.
fn place(first: u8, second: u8) -> (usize, u64) {
    let place = usize::from(first) << 8 | usize::from(second);
    (place >> 6, 1 << (place & 63))
}

/// Masks a stream: holds back only what may be the beginning of a secret.
pub struct RedactingStream {
    redactor: Redactor,
    held: Vec<u8>,
}

impl std::fmt::Debug for RedactingStream {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{:?}, {} bytes held back", self.redactor, self.held.len())
    }
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
    pub fn push<'a>(&mut self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        if self.redactor.is_empty() {
            return Cow::Borrowed(bytes);
        }
        self.held.extend_from_slice(bytes);
        let (output, held) = self.redactor.masked(&self.held, false);
        self.held.drain(..self.held.len() - held);
        Cow::Owned(output)
    }

    /// The bytes still held back, masked, once no more will come.
    pub fn finish(&mut self) -> Vec<u8> {
        self.redactor.bytes(&std::mem::take(&mut self.held))
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
            let mut output = stream.push(first).into_owned();
            output.extend(stream.push(second).iter());
            output.extend(stream.finish());
            prop_assert_eq!(String::from_utf8(output).unwrap(), format!("{before}{MASK}{after}"));
        }

        #[test]
        fn what_holds_no_secret_is_exact(bytes: Vec<u8>) {
            prop_assert_eq!(Redactor::new(["s3cr3t-s3cr3t-value"]).bytes(&bytes), bytes);
        }
    }

    #[test]
    fn secrets_follow_each_other_and_a_beginning_at_the_end_is_none() {
        let mut stream = RedactingStream::new(Redactor::new(["aaaaaaaab", "aaaaaaaac"]));
        let mut output = Vec::new();
        for byte in b"aaaaaaaaaaabaaaaaaaacaaaaaaaa" {
            output.extend(stream.push(&[*byte]).iter());
        }
        assert_eq!(stream.held(), 8);
        output.extend(stream.finish());
        assert_eq!(String::from_utf8(output).unwrap(), format!("aaa{MASK}{MASK}aaaaaaaa"));
    }

    #[test]
    fn nothing_shows_its_secrets() {
        assert!(!format!("{:?}", RedactingStream::new(Redactor::new(["hunter2hunter2"]))).contains("hunter2"));
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
}
