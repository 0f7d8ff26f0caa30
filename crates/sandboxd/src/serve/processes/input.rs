//! Standard input of a process that keeps it open: bytes wait here until the process reads them.

use std::collections::VecDeque;

use sandbox_api::{ControlErrorCode, InputTaken, ProcessInput};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;

use super::process::Process;
use crate::http::Problem;
use crate::serve::tree::check_id;

/// Bytes that may wait.
const WAITING_BYTES: usize = 1 << 20;
/// Answers that are remembered, to recognise a repeated request.
const REMEMBERED: usize = 64;
/// Bytes written at once.
const WRITE_BYTES: usize = 32 << 10;

/// What waits to be written.
#[derive(Default)]
pub(super) struct Input {
    /// Whether the present run has a standard input to write to.
    open: bool,
    /// Whether it is to be closed after what waits.
    closing: bool,
    waiting: VecDeque<u8>,
    answered: VecDeque<(String, InputTaken)>,
}

impl Input {
    /// A run begins.
    pub(super) fn begin(&mut self, open: bool) {
        *self = Self { open, answered: std::mem::take(&mut self.answered), ..Self::default() };
    }

    /// Nobody reads any more.
    pub(super) fn end(&mut self) {
        self.begin(false);
    }

    pub(super) fn is_open(&self) -> bool {
        self.open && !self.closing
    }

    fn answered(&self, id: Option<&str>) -> Option<InputTaken> {
        self.answered.iter().find(|(known, _)| Some(known.as_str()) == id).map(|(_, answer)| *answer)
    }

    fn take(&mut self, id: Option<String>, bytes: &[u8], close: bool) -> Result<InputTaken, Problem> {
        if !self.is_open() {
            let message = "data: the process has ended, or its standard input is closed; nothing was written";
            return Err(Problem::new(ControlErrorCode::ProcessEnded, message));
        }
        if self.waiting.len() + bytes.len() > WAITING_BYTES {
            let waiting = self.waiting.len();
            let message =
                format!("data: the process has yet to read {waiting} bytes that came before; nothing was taken");
            return Err(Problem::new(ControlErrorCode::Unavailable, message));
        }
        self.waiting.extend(bytes);
        self.closing |= close;
        let answer =
            InputTaken { bytes: bytes.len() as u64, waiting_bytes: self.waiting.len() as u64, closed: self.closing };
        if let Some(id) = id {
            self.answered.push_back((id, answer));
            let surplus = self.answered.len().saturating_sub(REMEMBERED);
            self.answered.drain(..surplus);
        }
        Ok(answer)
    }
}

/// Takes bytes for a process; the same id again is answered as before.
pub(super) fn write(process: &Process, request: ProcessInput) -> Result<InputTaken, Problem> {
    if let Some(id) = &request.id {
        check_id(id)?;
    }
    let bytes = match &request.data {
        None => Vec::new(),
        Some(data) => {
            data.decode().ok_or_else(|| Problem::invalid("data.data: it is not base64 although encoding says so"))?
        }
    };
    if bytes.len() > WAITING_BYTES {
        return Err(Problem::invalid(format!("data: at most {WAITING_BYTES} bytes at once")));
    }
    let mut state = process.state();
    if let Some(answer) = state.input.answered(request.id.as_deref()) {
        return Ok(answer);
    }
    let answer = state.input.take(request.id, &bytes, request.close)?;
    drop(state);
    process.input_changed.notify_one();
    Ok(answer)
}

/// Writes what waits, for as long as it is polled; ends when the input is closed on either side.
pub(super) async fn feed(process: &Process, mut writer: pipe::Sender) {
    loop {
        let (piece, closing) = {
            let state = process.state();
            (state.input.waiting.iter().take(WRITE_BYTES).copied().collect::<Vec<u8>>(), state.input.closing)
        };
        if piece.is_empty() {
            if closing {
                return;
            }
            process.input_changed.notified().await;
            continue;
        }
        match writer.write(&piece).await {
            Ok(length) => drop(process.state().input.waiting.drain(..length)),
            Err(_) => {
                // The process closed its end: nothing can be written any more.
                process.state().input.end();
                return;
            }
        }
    }
}
