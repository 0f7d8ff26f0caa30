//! Ctrl-C and its like: what has to be put right first is put right, then the process ends as the signal says.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::{Mutex, PoisonError};

type Cleanup = Box<dyn FnOnce() + Send>;

static CLEANUP: Mutex<Option<Cleanup>> = Mutex::new(None);

/// Begins to listen for signals.
pub(crate) fn watch() -> std::io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            if let Some(cleanup) = take() {
                cleanup();
            }
            // Closes the connections, so that the service ends what runs on this caller's behalf.
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    });
    Ok(())
}

/// What is put right when a signal comes while this lives.
pub(crate) struct Held;

pub(crate) fn hold(cleanup: impl FnOnce() + Send + 'static) -> Held {
    *CLEANUP.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(cleanup));
    Held
}

impl Drop for Held {
    fn drop(&mut self) {
        take();
    }
}

fn take() -> Option<Cleanup> {
    CLEANUP.lock().unwrap_or_else(PoisonError::into_inner).take()
}
