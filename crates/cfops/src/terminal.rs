//! Writing to standard output and standard error.

use crate::failure::{Failure, Result};
use std::borrow::Cow;
use std::io::{self, Write};

/// Text that cannot move the cursor, recolour the screen or turn the direction of writing.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    let moves = |letter: char| {
        (letter.is_control() && letter != '\n' && letter != '\t')
            || matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if text.contains(moves) { Cow::Owned(text.replace(moves, "\u{fffd}")) } else { Cow::Borrowed(text) }
}

/// Writes to standard output as the bytes are.
pub(crate) fn write_out(bytes: &[u8]) -> Result<()> {
    let mut stdout = io::stdout().lock();
    written(stdout.write_all(bytes).and_then(|()| stdout.flush()))
}

/// The same to standard error.
pub(crate) fn write_error(bytes: &[u8]) -> Result<()> {
    written(io::stderr().lock().write_all(bytes))
}

fn written(result: io::Result<()>) -> Result<()> {
    result.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::ReaderGone,
        _ => Failure::Here {
            what: format!("cannot write the output: {error}"),
            next: "See whether the disk that it goes to has room.".to_owned(),
        },
    })
}

/// A line for the person at the terminal. Where nobody looks, standard error stays as the command left it.
pub(crate) fn note(line: &str) {
    if console::user_attended_stderr() {
        eprintln!("{}", console::style(printable(line)).for_stderr().dim());
    }
}

/// A line of its own on standard error, over what follows: for the person at the terminal, or where it was asked for.
pub(crate) fn heading(line: &str, begins_line: bool, is_asked_for: bool) -> Result<()> {
    if !is_asked_for && !console::user_attended_stderr() {
        return Ok(());
    }
    let before = if begins_line { "" } else { "\n" };
    write_error(format!("{before}{}\n", console::style(printable(line)).for_stderr().dim()).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_from_elsewhere_cannot_move_the_cursor() {
        assert_eq!(printable("a\u{1b}[2Jb\r\u{202e}c"), "a\u{fffd}[2Jb\u{fffd}\u{fffd}c");
        assert!(matches!(printable("Ende\n\tgut – 良い"), Cow::Borrowed(_)));
    }
}
