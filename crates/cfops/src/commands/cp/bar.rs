//! How far a copy got, where somebody looks.

use crate::terminal::printable;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::Read;

pub(super) struct Bar(ProgressBar);

impl Bar {
    pub(super) fn new(name: &str, size: u64) -> Self {
        let bar = ProgressBar::with_draw_target(Some(size), ProgressDrawTarget::stderr());
        let template = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
        bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message(printable(name).into_owned());
        Self(bar)
    }

    pub(super) fn hidden() -> Self {
        Self(ProgressBar::hidden())
    }

    pub(super) fn set(&self, at: u64) {
        self.0.set_position(at);
    }

    pub(super) fn set_length(&self, length: u64) {
        self.0.set_length(length);
    }

    pub(super) fn counting<R: Read>(&self, reader: R) -> impl Read {
        self.0.wrap_read(reader)
    }

    pub(super) fn finish(&self) {
        self.0.finish();
    }
}
