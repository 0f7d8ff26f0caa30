//! The form in which answers are shown.

use crate::failure::Result;
use crate::render;
use crate::terminal::write_out;
use serde_json::Value;

#[derive(Clone, Copy)]
pub(crate) struct Output {
    json: bool,
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        Self { json }
    }

    pub(crate) fn as_json(self) -> Self {
        Self { json: true }
    }

    pub(crate) fn is_json(self) -> bool {
        self.json
    }

    /// One answer: for a person, or as one line of JSON.
    pub(crate) fn value(self, value: &Value) -> Result<()> {
        let text = if self.json { format!("{value}\n") } else { render::human(value, terminal_width()) };
        write_out(text.as_bytes())
    }
}

/// Columns of the terminal that reads; nothing where no terminal does.
pub(crate) fn terminal_width() -> Option<usize> {
    let terminal = console::Term::stdout();
    terminal.is_term().then(|| usize::from(terminal.size().1))
}
