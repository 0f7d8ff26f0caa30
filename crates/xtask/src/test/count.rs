//! Counting what the Rust test harness reports.

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Count {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) ignored: u64,
}

impl Count {
    /// Adds what a line says, if it is the summary of one test binary.
    pub(crate) fn add(&mut self, line: &str) {
        let plain = strip_colors(line);
        let Some(summary) = plain.trim().strip_prefix("test result: ") else { return };
        for part in summary.split(['.', ';']) {
            let mut words = part.split_whitespace();
            let (Some(number), Some(kind)) = (words.next().and_then(|word| word.parse::<u64>().ok()), words.next())
            else {
                continue;
            };
            match kind {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.ignored += number,
                _ => {}
            }
        }
    }
}

pub(crate) fn strip_colors(line: &str) -> String {
    let mut kept = String::new();
    let mut parts = line.split('\x1b');
    kept.push_str(parts.next().unwrap_or_default());
    for part in parts {
        kept.push_str(part.split_once('m').map_or("", |(_, rest)| rest));
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_add_up_and_other_lines_do_not_count() {
        let mut count = Count::default();
        count.add("test passes ... ok");
        count.add("test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out; finished in 0.42s\n");
        count.add("test result: \x1b[31mFAILED\x1b(B\x1b[m. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out");
        assert_eq!(count, Count { passed: 15, failed: 2, ignored: 1 });
    }
}
