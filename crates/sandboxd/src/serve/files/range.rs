//! One `Range` of bytes (RFC 9110, section 14).

use std::ops::Range;

/// What a `Range` header asks for, given the file's size.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// Everything: there is no such header, or one that may be ignored (several ranges, another unit, bad syntax).
    Whole,
    /// These bytes; never empty.
    Part(Range<u64>),
    /// Bytes that the file does not have.
    Unsatisfiable,
}

/// Reads the header's value.
pub(super) fn wanted(header: Option<&str>, size: u64) -> Wanted {
    let Some((first, last)) =
        header.and_then(|value| value.trim().strip_prefix("bytes=")).and_then(|value| value.trim().split_once('-'))
    else {
        return Wanted::Whole;
    };
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(first) || !digits(last) {
        return Wanted::Whole;
    }
    // A number too large for 64 bits is beyond the end of every file.
    let number = |text: &str| text.parse::<u64>().unwrap_or(u64::MAX);
    match (first, last) {
        ("", "") => Wanted::Whole,
        ("", suffix) => match number(suffix) {
            0 => Wanted::Unsatisfiable,
            _ if size == 0 => Wanted::Unsatisfiable,
            length => Wanted::Part(size.saturating_sub(length)..size),
        },
        (start, end) => {
            let start = number(start);
            let end = if end.is_empty() { u64::MAX } else { number(end) };
            if end < start {
                Wanted::Whole
            } else if start >= size {
                Wanted::Unsatisfiable
            } else {
                Wanted::Part(start..size.min(end.saturating_add(1)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_means_its_bytes() {
        assert_eq!(wanted(Some("bytes=0-4"), 10), Wanted::Part(0..5));
        assert_eq!(wanted(Some("bytes=4-"), 10), Wanted::Part(4..10));
        assert_eq!(wanted(Some("bytes=-3"), 10), Wanted::Part(7..10));
        assert_eq!(wanted(Some("bytes=-30"), 10), Wanted::Part(0..10));
        assert_eq!(wanted(Some("bytes=8-99999999999999999999999"), 10), Wanted::Part(8..10));
    }

    #[test]
    fn what_the_file_does_not_have_is_said() {
        for header in ["bytes=10-", "bytes=10-12", "bytes=-0", "bytes=99999999999999999999999-"] {
            assert_eq!(wanted(Some(header), 10), Wanted::Unsatisfiable, "{header}");
        }
        assert_eq!(wanted(Some("bytes=0-"), 0), Wanted::Unsatisfiable);
        assert_eq!(wanted(Some("bytes=-1"), 0), Wanted::Unsatisfiable);
    }

    #[test]
    fn what_is_no_single_range_is_ignored() {
        for header in
            [None, Some("bytes=-"), Some("bytes=5-2"), Some("bytes=0-1,3-4"), Some("lines=1-2"), Some("bytes=a-b")]
        {
            assert_eq!(wanted(header, 10), Wanted::Whole, "{header:?}");
        }
    }
}
