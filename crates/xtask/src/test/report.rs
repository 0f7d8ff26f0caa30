//! What is kept of a tier's output until the summary: the numbers, and why each test failed.

use super::count::{Count, strip_colors};

/// As much of a failed test's output as the summary repeats.
const LINES: usize = 8;
const CHARACTERS: usize = 300;

#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) count: Count,
    pub(crate) failures: Vec<Failure>,
    is_inside: bool,
}

/// A failed test, and its output from its panic on.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) test: String,
    pub(crate) lines: Vec<String>,
}

impl Report {
    /// Takes in a line of the Rust test harness.
    pub(crate) fn read(&mut self, line: &str) {
        self.count.add(line);
        let plain = strip_colors(line);
        let plain = plain.trim_end();
        if let Some(test) = plain.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----")) {
            self.failures.push(Failure { test: test.to_owned(), lines: Vec::new() });
            self.is_inside = true;
        } else if plain == "failures:" {
            self.is_inside = false;
        } else if self.is_inside {
            self.keep(plain);
        }
    }

    fn keep(&mut self, line: &str) {
        let Some(failure) = self.failures.last_mut() else { return };
        let has_panicked = !failure.lines.is_empty() || line.contains("panicked at");
        if line == "stack backtrace:" || line.starts_with("note: run with `RUST_BACKTRACE") {
            self.is_inside = false;
        } else if has_panicked && !line.trim().is_empty() && failure.lines.len() < LINES {
            let mut kept: String = line.chars().take(CHARACTERS).collect();
            if kept.len() < line.len() {
                kept.push('…');
            }
            failure.lines.push(kept);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
test jobs::one ... FAILED
test jobs::two ... ok

failures:

---- jobs::one stdout ----
what it printed before

thread 'jobs::one' (12) panicked at tests/workerd/jobs.rs:7:5:
assertion `left == right` failed: {\"state\":\"failed\"}
  left: 1
 right: 2
note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace


failures:
    jobs::one

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.42s
";

    #[test]
    fn a_failed_test_is_kept_from_its_panic_on() {
        let mut report = Report::default();
        OUTPUT.split_inclusive('\n').for_each(|line| report.read(line));
        assert_eq!(report.count, Count { passed: 1, failed: 1, ignored: 0 });
        let [failure] = report.failures.as_slice() else { panic!("{report:?}") };
        assert_eq!(failure.test, "jobs::one");
        let expected = [
            "thread 'jobs::one' (12) panicked at tests/workerd/jobs.rs:7:5:",
            "assertion `left == right` failed: {\"state\":\"failed\"}",
            "  left: 1",
            " right: 2",
        ];
        assert_eq!(failure.lines, expected);
    }

    #[test]
    fn long_output_is_cut_and_says_so() {
        let mut report = Report::default();
        report.read("---- one stdout ----\n");
        report.read("thread 'one' panicked at one.rs:1:1:\n");
        (0..50).for_each(|_| report.read(&"é".repeat(1000)));
        let lines = &report.failures[0].lines;
        assert_eq!(lines.len(), LINES);
        assert_eq!(lines[1], format!("{}…", "é".repeat(CHARACTERS)));
    }
}
