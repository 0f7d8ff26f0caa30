//! What the sandbox uses: processor, memory, disk, processes, read from `/proc` when asked.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sandbox_api::Metrics;

use super::processes::Table;
use super::settings::Settings;
use super::tree::{Process, Supervisors, snapshot};
use crate::http::Problem;

/// Two readings closer together than this tell nothing; the later one repeats the earlier.
const LEAST_INTERVAL: Duration = Duration::from_millis(100);

/// Reads metrics, and remembers the last reading for the processor's share.
pub(crate) struct Meter {
    settings: Arc<Settings>,
    supervisors: Arc<Supervisors>,
    background: Arc<Table>,
    /// Absent until the first one was taken, see [`Meter::begin`].
    last: Mutex<Option<Reading>>,
}

struct Reading {
    at: Instant,
    ticks: u64,
    percent: f64,
}

impl Meter {
    pub(crate) fn new(settings: Arc<Settings>, supervisors: Arc<Supervisors>, background: Arc<Table>) -> Self {
        Self { settings, supervisors, background, last: Mutex::new(None) }
    }

    /// Takes the reading that the first share is counted from. It looks at every process, for which nobody who waits for the
    /// daemon should have to wait.
    pub(crate) fn begin(&self) {
        let ticks = total_ticks(&snapshot());
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.get_or_insert(Reading { at: Instant::now(), ticks, percent: 0.0 });
    }

    pub(crate) fn read(&self) -> Result<Metrics, Problem> {
        let processes = snapshot();
        let disk = rustix::fs::statvfs(&self.settings.root).map_err(Problem::internal)?;
        // Supervisors share the daemon's memory, which counts once.
        let supervisors = self.supervisors.all();
        let resident: u64 = processes
            .iter()
            .filter(|process| !supervisors.contains(&process.pid))
            .map(|process| process.resident_pages)
            .sum();
        Ok(Metrics {
            cpu_percent: self.cpu_percent(total_ticks(&processes)),
            memory_mb: (resident * rustix::param::page_size() as u64) as f64 / 1e6,
            disk_used_bytes: (disk.f_blocks - disk.f_bfree) * disk.f_frsize,
            disk_free_bytes: disk.f_bavail * disk.f_frsize,
            processes: processes.iter().filter(|process| !process.zombie).count() as u64,
            background_processes: self.background.running() as u64,
        })
    }

    fn cpu_percent(&self, ticks: u64) -> f64 {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let last = last.get_or_insert(Reading { at: Instant::now(), ticks, percent: 0.0 });
        let elapsed = last.at.elapsed();
        if elapsed >= LEAST_INTERVAL {
            // Processes that ended took their ticks with them, so the sum can shrink.
            let used = ticks.saturating_sub(last.ticks) as f64 / rustix::param::clock_ticks_per_second() as f64;
            *last = Reading { at: Instant::now(), ticks, percent: 100.0 * used / elapsed.as_secs_f64() };
        }
        last.percent
    }
}

fn total_ticks(processes: &[Process]) -> u64 {
    processes.iter().map(|process| process.ticks).sum()
}
