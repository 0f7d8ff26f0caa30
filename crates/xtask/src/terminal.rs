//! What the person at the terminal sees: steps, progress of long children, questions, and how a failure is told.

use std::cell::Cell;
use std::env;
use std::io::{self, BufRead, IsTerminal, Write};
use std::time::{Duration, Instant};

pub(crate) fn interactive() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal() && !continuous_integration()
}

pub(crate) fn continuous_integration() -> bool {
    env::var("CI").is_ok_and(|value| !matches!(value.as_str(), "" | "0" | "false"))
}

thread_local! {
    static IS_SILENT: Cell<bool> = const { Cell::new(false) };
}

/// Shows nothing more of what this thread does, because something else is shown meanwhile.
pub(crate) fn silence_thread() {
    IS_SILENT.set(true);
}

/// Shows what this does in a silent thread too.
pub(crate) fn aloud<T>(act: impl FnOnce() -> T) -> T {
    let was_silent = IS_SILENT.replace(false);
    let result = act();
    IS_SILENT.set(was_silent);
    result
}

/// A closed terminal must not end a command in the middle of its cleaning up, so failed writes are ignored.
pub(crate) fn raw(text: &str) {
    if IS_SILENT.get() {
        return;
    }
    let mut error = io::stderr().lock();
    let _ = error.write_all(text.as_bytes());
    let _ = error.flush();
}

pub(crate) fn step(text: &str) {
    raw(&format!("==> {text}\n"));
}

pub(crate) fn note(text: &str) {
    raw(&format!("    {text}\n"));
}

pub(crate) fn failure(error: &anyhow::Error) {
    raw(&format!("\nerror: {error}\n"));
    for cause in error.chain().skip(1) {
        raw(&format!("  because: {cause}\n"));
    }
}

/// Asks before something that changes the machine; anything but y or yes is no.
pub(crate) fn agree(question: &str) -> bool {
    raw(&format!("{question} [y/N] "));
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).is_ok() && matches!(answer.trim().to_lowercase().as_str(), "y" | "yes")
}

/// One line of progress of a long child: rewritten in place on a terminal, every 15 seconds a new line elsewhere.
pub(crate) struct Progress {
    label: String,
    started: Instant,
    shown: Instant,
    terminal: bool,
    dirty: bool,
}

impl Progress {
    pub(crate) fn start(label: &str) -> Self {
        let now = Instant::now();
        let terminal = io::stderr().is_terminal() && env::var_os("TERM").is_some_and(|term| term != "dumb");
        Self { label: label.to_owned(), started: now, shown: now, terminal, dirty: false }
    }

    pub(crate) fn update(&mut self, last_line: &str) {
        let interval = Duration::from_millis(if self.terminal { 200 } else { 15_000 });
        if self.shown.elapsed() < interval {
            return;
        }
        self.shown = Instant::now();
        let seconds = self.started.elapsed().as_secs();
        let line = shorten(&format!("    {} ({seconds} s) {}", self.label, printable(last_line)), 110);
        if self.terminal {
            raw(&format!("\r\x1b[K{line}"));
            self.dirty = true;
        } else {
            raw(&format!("{line}\n"));
        }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.dirty {
            raw("\r\x1b[K");
        }
    }
}

/// A line of a child's output without the control sequences that would move our cursor.
fn printable(line: &str) -> String {
    let mut kept = String::new();
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        if character == '\x1b' {
            // A control sequence ends with its first letter.
            characters.find(char::is_ascii_alphabetic);
        } else if !character.is_control() {
            kept.push(character);
        }
    }
    kept
}

fn shorten(line: &str, limit: usize) -> String {
    if line.chars().count() <= limit {
        return line.to_owned();
    }
    line.chars().take(limit - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_sequences_of_children_do_not_reach_the_terminal() {
        assert_eq!(printable("\x1b[1m\x1b[32mCompiling\x1b[0m serde\r"), "Compiling serde");
    }

    #[test]
    fn a_long_line_is_cut_by_characters() {
        assert_eq!(shorten("äöüß", 3), "äö…");
        assert_eq!(shorten("äöü", 3), "äöü");
    }
}
