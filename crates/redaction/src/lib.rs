//! Masks the values of known secrets, as they are and in the usual forms (`forms.rs`), across the borders of chunks.
//!
//! Works on bytes, so that a secret inside output that is not text is masked as well. A [`Redactor`] that knows no
//! secret passes everything through. Raw files are byte-exact and are not masked.

mod environment;
mod forms;
mod search;
mod shapes;

use std::borrow::Cow;

use serde_json::Value;

use search::{Mark, Reader};

pub use environment::{LIST, declare_secret, secrets};
pub use shapes::{without_credentials, without_userinfo};

/// What stands in place of a secret.
pub const MASK: &str = "[redacted]";

/// A value shorter than this is not treated as a secret: masking it would garble ordinary text.
pub const SHORTEST_SECRET: usize = 8;

/// The secrets that must not leave with an answer.
#[derive(Clone, Default)]
pub struct Redactor {
    /// Every form of every secret, in the order of their bytes.
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
        secrets.sort();
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
    /// the end of all. Of secrets that begin at one place the longest is masked.
    fn masked(&self, input: &[u8], is_last: bool) -> (Vec<u8>, usize) {
        let Some(skipped) = self.candidate(input) else { return (input.to_vec(), 0) };
        let (plain, candidate) = input.split_at(skipped);
        if !is_last && self.may_begin_secret(candidate) {
            return (plain.to_vec(), candidate.len());
        }
        let marks = self.marks(candidate, is_last);
        let mut output = Vec::with_capacity(input.len());
        output.extend_from_slice(plain);
        let mut next = 0;
        let is_marked = |mark: &Mark| *mark != Mark::Nothing;
        while let Some(between) = marks.get(next..).and_then(|marks| marks.iter().position(is_marked)) {
            let place = next + between;
            output.extend_from_slice(candidate.get(next..place).unwrap_or_default());
            match marks.get(place) {
                Some(Mark::Secret(length)) => {
                    output.extend_from_slice(MASK.as_bytes());
                    next = place + length;
                }
                _ => return (output, candidate.len() - place),
            }
        }
        output.extend_from_slice(candidate.get(next..).unwrap_or_default());
        (output, 0)
    }

    /// What begins at each place of `bytes`; nothing at all where that is so of every place.
    fn marks(&self, bytes: &[u8], is_last: bool) -> Vec<Mark> {
        let mut marks = Vec::new();
        let mut mark = |place: usize, found: Mark| {
            if marks.is_empty() {
                marks.resize(bytes.len(), Mark::Nothing);
            }
            if let Some(mark) = marks.get_mut(place) {
                // The longer one of two secrets ends later.
                *mark = found;
            }
        };
        let mut readers: Vec<(usize, Reader<'_>)> = Vec::new();
        let mut is_read = vec![false; self.secrets.len()];
        let mut place = 0;
        // Two bytes of which every secret that begins with them is being read.
        let mut all_read: &[u8] = &[];
        while let Some(byte) = bytes.get(place) {
            let rest = bytes.get(place..).unwrap_or_default();
            if readers.is_empty() {
                match self.candidate(rest) {
                    Some(0) => {}
                    Some(skipped) => {
                        place += skipped;
                        continue;
                    }
                    None => break,
                }
            }
            let begun = rest.get(..rest.len().min(2)).unwrap_or_default();
            let to_read = if begun == all_read { None } else { Some(self.beginning_with(begun)) };
            all_read = begun;
            for (index, secret) in to_read.into_iter().flatten() {
                if let Some(is_read) = is_read.get_mut(index).filter(|is_read| !**is_read) {
                    *is_read = true;
                    readers.push((index, Reader::new(secret)));
                }
            }
            place += 1;
            readers.retain_mut(|(index, reader)| {
                if let Some(length) = reader.read(*byte) {
                    mark(place - length, Mark::Secret(length));
                }
                if let (true, Some(is_read)) = (reader.is_idle(), is_read.get_mut(*index)) {
                    *is_read = false;
                    all_read = &[];
                }
                !reader.is_idle()
            });
        }
        let ends = readers.iter().filter(|_| !is_last);
        ends.flat_map(|(_, reader)| reader.unfinished())
            .for_each(|length| mark(bytes.len() - length, Mark::Unfinished));
        marks
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

    /// Those of the secrets that begin with `bytes`, which are few, each with its number.
    fn beginning_with<'a>(&'a self, bytes: &'a [u8]) -> impl Iterator<Item = (usize, &'a [u8])> {
        let is_wanted = match bytes {
            [first, second] => {
                let (word, bit) = place(*first, *second);
                self.beginnings.get(word).is_some_and(|bits| bits & bit != 0)
            }
            _ => true,
        };
        let first = if is_wanted { self.first_from(bytes) } else { self.secrets.len() };
        let from_there = self.secrets.iter().enumerate().skip(first);
        from_there.map(|(index, secret)| (index, secret.as_slice())).take_while(|(_, secret)| secret.starts_with(bytes))
    }

    /// Number of the first secret that is not before `bytes`.
    fn first_from(&self, bytes: &[u8]) -> usize {
        self.secrets.partition_point(|secret| secret.as_slice() < bytes)
    }

    /// Whether `bytes` is the beginning of some secret, so that more bytes must be seen.
    fn may_begin_secret(&self, bytes: &[u8]) -> bool {
        // The first may be the bytes themselves.
        let mut near = self.secrets.iter().skip(self.first_from(bytes)).take(2);
        near.any(|secret| secret.len() > bytes.len() && secret.starts_with(bytes))
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

    /// What is to come out, found by comparing every secret at every place.
    fn compared(secrets: &[&str], input: &[u8], is_last: bool) -> (Vec<u8>, usize) {
        let forms: Vec<Vec<u8>> = secrets.iter().flat_map(|secret| forms::forms(secret).collect::<Vec<_>>()).collect();
        let (mut output, mut rest) = (Vec::new(), input);
        while let [first, after @ ..] = rest {
            if !is_last && forms.iter().any(|form| form.len() > rest.len() && form.starts_with(rest)) {
                return (output, rest.len());
            }
            match forms.iter().filter(|form| rest.starts_with(form)).map(Vec::len).max() {
                Some(length) => {
                    output.extend(MASK.as_bytes());
                    rest = &rest[length..];
                }
                None => {
                    output.push(*first);
                    rest = after;
                }
            }
        }
        (output, 0)
    }

    proptest! {
        #[test]
        fn what_is_masked_and_held_back_is_what_comparing_finds(
            secrets in proptest::collection::vec("[ab]{8,12}|(ab){4,7}|a{8,20}b?|b{1,3}(ab){4,6}", 1..6),
            text in "([ab]{0,30}|a{0,40}|(ab){0,20}){1,4}",
            is_last: bool,
        ) {
            let secrets: Vec<&str> = secrets.iter().map(String::as_str).collect();
            let (found, held) = Redactor::new(&secrets).masked(text.as_bytes(), is_last);
            let (expected, left) = compared(&secrets, text.as_bytes(), is_last);
            prop_assert_eq!((String::from_utf8(found).unwrap(), held), (String::from_utf8(expected).unwrap(), left));
        }
    }

    #[test]
    fn long_secrets_that_the_text_nearly_holds_everywhere_do_not_multiply_its_length() {
        let secrets: Vec<String> = (0..20).map(|more| format!("{}b", "a".repeat(100_000 + more))).collect();
        let text = "a".repeat(2 << 20);
        let begun = std::time::Instant::now();
        assert!(Redactor::new(&secrets).text(&text) == text);
        // Comparing each of them at every place takes hours.
        assert!(begun.elapsed().as_secs() < 120, "{:?}", begun.elapsed());
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
