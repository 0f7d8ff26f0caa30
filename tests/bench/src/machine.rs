//! What kind of machine the numbers are of, and how busy it was.

use std::fmt;

use serde_json::{Value, json};

/// The machine, as it was when the measurement began and as busy as it was when it ended.
pub(crate) struct Machine {
    processors: usize,
    kernel: String,
    load_before: String,
    load_after: String,
}

impl Machine {
    pub(crate) fn now() -> Self {
        let load = load();
        Self {
            processors: std::thread::available_parallelism().map_or(0, usize::from),
            kernel: read("/proc/sys/kernel/osrelease"),
            load_before: load.clone(),
            load_after: load,
        }
    }

    pub(crate) fn measured(mut self) -> Self {
        self.load_after = load();
        self
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "processors": self.processors, "architecture": std::env::consts::ARCH, "kernel": self.kernel,
            "loadBefore": self.load_before, "loadAfter": self.load_after,
        })
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { processors, kernel, load_before, load_after } = self;
        let architecture = std::env::consts::ARCH;
        write!(formatter, "{processors} processors ({architecture}), Linux {kernel}, ")?;
        write!(formatter, "load of the last minute {load_before} before and {load_after} after")
    }
}

fn load() -> String {
    read("/proc/loadavg").split(' ').next().unwrap_or_default().to_owned()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}
