//! What to do about an error, by its code.
//!
//! The text is that of docs/errors.md; where that speaks of HTTP, it is said here in words of the command line.

/// What to do next.
pub(crate) fn next_step(code: &str) -> Option<&'static str> {
    Some(match code {
        "unauthenticated" => "`cfops login` stores another key.",
        "unknown_tool" => "`cfops tools` lists what this key may call.",
        "invalid_arguments" => "Mend what is named above; `--help` after the command has every field.",
        "not_found" => {
            "`cfops list-sandboxes` lists sandboxes, `cfops list-files` files, `cfops list-processes` processes."
        }
        "payload_too_large" => "Use `cfops cp` for what is large.",
        "in_progress" | "sandbox_unavailable" | "rate_limited" => {
            "Try again, after the seconds above where there are some."
        }
        "idempotency_mismatch" => "Take another --idempotency-key for another call.",
        "timeout" => "What it wrote came before this. Give it more time with --timeout.",
        other => return documented(other),
    })
}

/// The last column of the table in docs/errors.md.
fn documented(code: &str) -> Option<&'static str> {
    let name = format!("| `{code}` |");
    let row = include_str!("../../../docs/errors.md").lines().find(|line| line.starts_with(&name))?;
    row.trim().trim_end_matches('|').rsplit('|').next().map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_documented_code_has_a_next_step() {
        let rows = include_str!("../../../docs/errors.md").lines().filter(|line| line.starts_with("| `"));
        let codes: Vec<&str> = rows.filter_map(|row| row.split('`').nth(1)).collect();
        assert!(codes.len() > 20, "{codes:?}");
        for code in codes {
            assert!(next_step(code).is_some_and(|text| text.len() > 10), "{code}");
        }
        assert_eq!(next_step("no_space"), Some("Remove files, or use another sandbox."));
        assert_eq!(next_step("of_a_newer_service"), None);
    }
}
