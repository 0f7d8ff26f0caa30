//! `If-Match` and `If-None-Match` of an upload: write only over the version that the caller knows (RFC 9110, section 13).

use axum::http::HeaderMap;
use hyper::header::{HeaderName, IF_MATCH, IF_NONE_MATCH};
use sandbox_api::ControlErrorCode;

use crate::http::Problem;

/// What must be so for a write to happen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Precondition {
    /// Tags of which the file must have one; `*` is any file.
    matches: Option<Vec<String>>,
    /// Whether there must be no file.
    absent: bool,
}

impl Precondition {
    pub(super) fn of(headers: &HeaderMap) -> Result<Self, Problem> {
        let absent = match value(headers, &IF_NONE_MATCH)? {
            None => false,
            Some("*") => true,
            Some(_) => return Err(Problem::invalid("If-None-Match: only `*` has a meaning for an upload")),
        };
        let matches = value(headers, &IF_MATCH)?.map(tags).transpose()?;
        Ok(Self { matches, absent })
    }

    /// Holds the file as it is, `None` when there is none, against what the caller knows.
    pub(super) fn check(&self, etag: Option<&str>) -> Result<(), Problem> {
        let refused = |message: &str| Err(Problem::new(ControlErrorCode::PreconditionFailed, message));
        if self.absent && etag.is_some() {
            return refused("If-None-Match: there is a file of that name");
        }
        match (&self.matches, etag) {
            (None, _) => Ok(()),
            (Some(_), None) => refused("If-Match: there is no file of that name"),
            (Some(tags), Some(etag)) if tags.iter().any(|tag| tag == "*" || tag == etag) => Ok(()),
            (Some(_), Some(_)) => refused("If-Match: the file was changed since; read it again"),
        }
    }
}

fn value<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Problem> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    value.to_str().map(|text| Some(text.trim())).map_err(|_| Problem::invalid(format!("{name}: is no list of tags")))
}

/// Strong tags of a list. Weak ones match nothing, and no tag of this API holds a comma.
fn tags(list: &str) -> Result<Vec<String>, Problem> {
    let tags: Vec<String> = list.split(',').map(|tag| tag.trim().to_owned()).collect();
    let well_formed = |tag: &String| {
        tag == "*" || (tag.len() >= 2 && tag.trim_start_matches("W/").starts_with('"') && tag.ends_with('"'))
    };
    if tags.iter().all(well_formed) { Ok(tags) } else { Err(Problem::invalid("If-Match: is no list of tags")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    fn holds(name: HeaderName, value: &'static str, etag: Option<&str>) -> Result<(), String> {
        let mut headers = HeaderMap::new();
        headers.insert(name, HeaderValue::from_static(value));
        let precondition = Precondition::of(&headers).map_err(|problem| format!("{problem:?}"))?;
        precondition.check(etag).map_err(|problem| format!("{problem:?}"))
    }

    #[test]
    fn only_the_known_version_is_written_over() {
        assert!(holds(IF_MATCH, "\"a\"", Some("\"a\"")).is_ok());
        assert!(holds(IF_MATCH, "\"b\", \"a\"", Some("\"a\"")).is_ok());
        assert!(holds(IF_MATCH, "*", Some("\"a\"")).is_ok());
        for (value, etag) in [("\"b\"", Some("\"a\"")), ("W/\"a\"", Some("\"a\"")), ("\"a\"", None), ("*", None)] {
            assert!(holds(IF_MATCH, value, etag).expect_err(value).contains("PreconditionFailed"));
        }
        assert!(holds(IF_MATCH, "a", None).expect_err("no tag").contains("InvalidArguments"));
    }

    #[test]
    fn absent_means_absent() {
        assert!(holds(IF_NONE_MATCH, "*", None).is_ok());
        assert!(holds(IF_NONE_MATCH, "*", Some("\"a\"")).expect_err("a file").contains("PreconditionFailed"));
        assert!(holds(IF_NONE_MATCH, "\"a\"", None).expect_err("a tag").contains("InvalidArguments"));
    }
}
