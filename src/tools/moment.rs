//! Times among the arguments of tools.

use crate::error::{Error, Result};
use crate::platform::parse_rfc3339;

/// The milliseconds of a time that may be given; `pointer` is where it stands in the arguments.
pub fn moment(text: Option<&str>, pointer: &str) -> Result<Option<i64>> {
    let message = "is not an RFC 3339 time such as 2026-01-31T12:00:00Z";
    text.map(|text| parse_rfc3339(text).ok_or_else(|| Error::invalid(pointer, message))).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_read_and_what_is_none_is_refused_by_its_field() {
        assert_eq!(moment(None, "/since").unwrap(), None);
        assert_eq!(moment(Some("1970-01-01T01:00:01+01:00"), "/since").unwrap(), Some(1000));
        let error = moment(Some("yesterday"), "/since").unwrap_err();
        assert!(format!("{error:?}").contains("/since"), "{error:?}");
    }
}
