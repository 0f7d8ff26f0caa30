//! Looking for a line in output as it comes, within bounds of memory and time.

use regex::{Regex, RegexBuilder};
use sandbox_api::{LogChannel, MatchedLine};

use crate::http::Problem;

/// Longest text or pattern.
const LONGEST_NEEDLE: usize = 1024;
/// Memory of a compiled pattern.
const PATTERN_BYTES: usize = 1 << 20;
/// A line that is longer is looked at in parts.
const LONGEST_LINE: usize = 16 << 10;
/// What two parts have in common, so that nothing is missed at their border.
const OVERLAP: usize = 1 << 10;
/// Text told of a line.
const TOLD_BYTES: usize = 4096;

/// What is looked for.
pub(super) enum Needle {
    Text(String),
    Pattern(Box<Regex>),
}

impl Needle {
    pub(super) fn text(text: String) -> Result<Self, Problem> {
        check("text", &text)?;
        if text.contains('\n') {
            return Err(Problem::invalid("text: has a line end, and no line has one"));
        }
        Ok(Self::Text(text))
    }

    pub(super) fn pattern(pattern: &str) -> Result<Self, Problem> {
        check("pattern", pattern)?;
        let compiled = RegexBuilder::new(pattern).size_limit(PATTERN_BYTES).dfa_size_limit(PATTERN_BYTES).build();
        compiled.map(Box::new).map(Self::Pattern).map_err(|error| Problem::invalid(format!("pattern: {error}")))
    }

    fn is_in(&self, line: &str) -> bool {
        match self {
            Self::Text(text) => line.contains(text),
            Self::Pattern(pattern) => pattern.is_match(line),
        }
    }
}

fn check(field: &str, needle: &str) -> Result<(), Problem> {
    if needle.is_empty() || needle.len() > LONGEST_NEEDLE {
        return Err(Problem::invalid(format!("{field}: 1 to {LONGEST_NEEDLE} bytes")));
    }
    Ok(())
}

/// Cuts output into lines, each channel for itself, and tries each once.
pub(super) struct Matcher {
    needle: Needle,
    unfinished: [Vec<u8>; 2],
}

impl Matcher {
    pub(super) fn new(needle: Needle) -> Self {
        Self { needle, unfinished: Default::default() }
    }

    /// Takes a piece of output; the first line in it that fits.
    pub(super) fn take(&mut self, channel: LogChannel, bytes: &[u8]) -> Option<MatchedLine> {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            for part in part.chunks(LONGEST_LINE - OVERLAP) {
                let unfinished = self.line(channel);
                unfinished.extend_from_slice(part);
                let complete = part.ends_with(b"\n");
                if !complete && unfinished.len() < LONGEST_LINE {
                    continue;
                }
                let line = std::mem::take(unfinished);
                if let Some(found) = self.test(channel, &line) {
                    return Some(found);
                }
                if !complete {
                    *self.line(channel) = line[line.len().saturating_sub(OVERLAP)..].to_vec();
                }
            }
        }
        None
    }

    /// Tries the lines that have not ended: a prompt never does.
    pub(super) fn unfinished(&self) -> Option<MatchedLine> {
        let [stdout, stderr] = &self.unfinished;
        let lines = [(LogChannel::Stdout, stdout), (LogChannel::Stderr, stderr)];
        lines.into_iter().filter(|(_, line)| !line.is_empty()).find_map(|(channel, line)| self.test(channel, line))
    }

    fn line(&mut self, channel: LogChannel) -> &mut Vec<u8> {
        let [stdout, stderr] = &mut self.unfinished;
        match channel {
            LogChannel::Stdout => stdout,
            LogChannel::Stderr => stderr,
        }
    }

    fn test(&self, channel: LogChannel, line: &[u8]) -> Option<MatchedLine> {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line));
        self.needle.is_in(&line).then(|| {
            let mut text = line.into_owned();
            text.truncate(text.floor_char_boundary(TOLD_BYTES));
            MatchedLine { channel, text }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUT: LogChannel = LogChannel::Stdout;

    fn text(text: &str) -> Matcher {
        Matcher::new(Needle::text(text.into()).expect("a good text"))
    }

    fn pattern(pattern: &str) -> Matcher {
        Matcher::new(Needle::pattern(pattern).expect("a good pattern"))
    }

    #[test]
    fn lines_are_found_wherever_the_pieces_are_cut() {
        let output = "first\nlistening on port 8080\r\nlast\n".as_bytes();
        for cut in 0..output.len() {
            let mut matcher = pattern(r"^listening on port \d+$");
            let (head, tail) = output.split_at(cut);
            let found = matcher.take(OUT, head).or_else(|| matcher.take(OUT, tail)).expect("the line");
            assert_eq!(found.text, "listening on port 8080", "{cut}");
        }
    }

    #[test]
    fn channels_are_not_mixed() {
        let mut matcher = text("ready now");
        assert!(matcher.take(OUT, b"ready ").is_none());
        assert!(matcher.take(LogChannel::Stderr, b"now\n").is_none());
        assert!(matcher.take(OUT, b"now\n").is_some());
    }

    #[test]
    fn a_prompt_is_found_although_its_line_never_ends() {
        let mut matcher = text("name? ");
        assert!(matcher.take(OUT, b"your name? ").is_none());
        assert!(matcher.unfinished().is_some());
    }

    #[test]
    fn a_line_without_end_takes_bounded_memory_and_hides_nothing() {
        let mut matcher = text("needle");
        for _ in 0..100 {
            assert!(matcher.take(OUT, &[b'x'; 5000]).is_none());
            assert!(matcher.unfinished[0].len() < LONGEST_LINE);
        }
        for distance in [LONGEST_LINE - OVERLAP - 3, LONGEST_LINE - 3, 2 * (LONGEST_LINE - OVERLAP) - 2] {
            let mut matcher = text("needle");
            let mut line = vec![b'x'; distance];
            line.extend_from_slice(b"needle");
            line.extend(vec![b'y'; 40_000]);
            assert!(matcher.take(OUT, &line).is_some(), "{distance}");
        }
    }

    #[test]
    fn needles_are_bounded() {
        assert!(Needle::text(String::new()).is_err());
        assert!(Needle::text("x".repeat(1025)).is_err());
        assert!(Needle::pattern("(").is_err());
        assert!(Needle::pattern("((a{1000}){1000}){1000}").is_err());
    }

    #[test]
    fn bytes_that_are_no_text_do_not_hide_a_line() {
        assert!(text("up").take(OUT, b"\xff\xfe up \xff\n").is_some());
    }
}
