//! W3C Trace Context: which trace a call belongs to, and the headers that carry it from hop to hop.
//!
//! A request's `traceparent` is taken over where it is well formed. Anything else is as if it were absent: a new trace begins and its
//! `tracestate` is dropped. Each request that leaves gets a span of its own below the one it is made for. Leaves out sampling: every
//! call is logged, and the caller's flag is only passed on.

/// The header that names the trace, the span, and whether it is sampled.
pub const TRACEPARENT: &str = "traceparent";
/// The header with what other systems want to carry along.
pub const TRACESTATE: &str = "tracestate";

/// Longest `tracestate` that is passed on; the specification asks for this many characters at least.
const LONGEST_STATE: usize = 512;
/// Most members of a `tracestate` (Trace Context, section 3.3.1.1).
const MOST_MEMBERS: usize = 32;

const SAMPLED: u8 = 1;

/// One span of one trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// 32 digits of hexadecimal.
    pub trace_id: String,
    /// 16 digits of hexadecimal.
    pub span_id: String,
    /// The caller's span; none when the trace begins here.
    pub parent_span_id: Option<String>,
    sampled: bool,
    state: Option<String>,
}

impl Trace {
    /// The span of a request with these headers; `random` makes its ids.
    pub fn of_request(traceparent: Option<&str>, tracestate: Option<&str>, random: impl Fn() -> [u8; 16]) -> Self {
        match traceparent.and_then(parse) {
            Some((trace_id, parent, sampled)) => Self {
                trace_id: trace_id.to_owned(),
                span_id: span_id(random()),
                parent_span_id: Some(parent.to_owned()),
                sampled,
                state: tracestate.and_then(bounded),
            },
            None => Self {
                trace_id: hexadecimal(&not_zero(random())),
                span_id: span_id(random()),
                parent_span_id: None,
                sampled: true,
                state: None,
            },
        }
    }

    /// The span of a request that leaves on behalf of this one.
    pub fn child(&self, random: [u8; 16]) -> Self {
        Self { parent_span_id: Some(self.span_id.clone()), span_id: span_id(random), ..self.clone() }
    }

    /// The value of `traceparent` that names this span.
    pub fn traceparent(&self) -> String {
        let flags = if self.sampled { SAMPLED } else { 0 };
        format!("00-{}-{}-{flags:02x}", self.trace_id, self.span_id)
    }

    /// The headers of a request that is this span.
    pub fn headers(&self) -> Vec<(&'static str, String)> {
        let state = self.state.iter().map(|state| (TRACESTATE, state.clone()));
        std::iter::once((TRACEPARENT, self.traceparent())).chain(state).collect()
    }
}

/// Trace id, span id and the sampled flag. A version after 00 may be longer and is read as far as 00 goes.
fn parse(header: &str) -> Option<(&str, &str, bool)> {
    let header = header.trim_matches([' ', '\t']);
    let (version, rest) = (header.get(..2)?, header.get(2..)?);
    let (trace_id, span, flags) = (rest.get(1..33)?, rest.get(34..50)?, rest.get(51..53)?);
    let dashes = [0, 33, 50].iter().all(|&place| rest.as_bytes().get(place) == Some(&b'-'));
    let known = if version == "00" {
        rest.len() == 53
    } else {
        version != "ff" && (rest.len() == 53 || rest.as_bytes().get(53) == Some(&b'-'))
    };
    let digits = |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let set = |text: &str| digits(text) && text.bytes().any(|byte| byte != b'0');
    let valid = known && dashes && digits(version) && set(trace_id) && set(span) && digits(flags);
    let flags = u8::from_str_radix(flags, 16).ok().filter(|_| valid)?;
    Some((trace_id, span, flags & SAMPLED == SAMPLED))
}

/// A list that is well formed, cut after the last member that fits; nothing when a member is not well formed.
fn bounded(header: &str) -> Option<String> {
    let mut kept = String::new();
    let members = header.split(',').map(|member| member.trim_matches([' ', '\t'])).filter(|member| !member.is_empty());
    for (count, member) in members.enumerate() {
        if count == MOST_MEMBERS || !is_member(member) {
            return None;
        }
        if kept.len() + 1 + member.len() <= LONGEST_STATE {
            if !kept.is_empty() {
                kept.push(',');
            }
            kept.push_str(member);
        }
    }
    Some(kept).filter(|kept| !kept.is_empty())
}

fn is_member(member: &str) -> bool {
    let Some((key, value)) = member.split_once('=') else { return false };
    let key_letter = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-' | b'*' | b'/' | b'@')
    };
    let value_letter = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'=';
    let sizes = (1..=256).contains(&key.len()) && (1..=256).contains(&value.len());
    sizes && key.bytes().all(key_letter) && value.bytes().all(value_letter)
}

fn span_id(random: [u8; 16]) -> String {
    let bytes = not_zero(random);
    let (_, last) = bytes.split_at(8);
    hexadecimal(last)
}

/// Ids of nothing but zeros are not valid.
fn not_zero(mut random: [u8; 16]) -> [u8; 16] {
    let [.., last] = &mut random;
    *last |= 1;
    random
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    fn received(traceparent: &str, tracestate: Option<&str>) -> Trace {
        Trace::of_request(Some(traceparent), tracestate, || [5; 16])
    }

    #[test]
    fn a_trace_is_taken_over_with_a_span_of_its_own() {
        for flags in ["00", "01", "03", "ff"] {
            let trace = received(&format!("00-{TRACE}-{SPAN}-{flags}"), Some("a=b"));
            assert_eq!((trace.trace_id.as_str(), trace.parent_span_id.as_deref()), (TRACE, Some(SPAN)));
            assert_ne!(trace.span_id, SPAN);
            let sampled = if flags == "00" { "00" } else { "01" };
            let expected = format!("00-{TRACE}-{}-{sampled}", trace.span_id);
            assert_eq!(trace.headers(), [(TRACEPARENT, expected), (TRACESTATE, "a=b".to_owned())]);
        }
        let later = received(&format!("cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like"), None);
        assert_eq!(later.trace_id, TRACE, "a later version is read as far as this one goes");
        assert!(later.traceparent().starts_with("00-"));
    }

    #[test]
    fn what_is_malformed_begins_a_new_trace_without_its_state() {
        let zero = "0".repeat(32);
        for malformed in [
            String::new(),
            "00".into(),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("00-{TRACE}-{SPAN}-0"),
            format!("00-{TRACE}-{SPAN}-0x"),
            format!("00-{TRACE}-{SPAN}-01, 00-{TRACE}-{SPAN}-01"),
            format!("cc-{TRACE}-{SPAN}-01.what"),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{zero}-{SPAN}-01"),
            format!("00-{TRACE}-{}-01", "0".repeat(16)),
            format!("00_{TRACE}_{SPAN}_01"),
            format!("00-{}é-{SPAN}-01", &TRACE[..30]),
        ] {
            let trace = received(&malformed, Some("a=b"));
            assert_eq!(
                (trace.trace_id.as_str(), trace.parent_span_id),
                ("05".repeat(16).as_str(), None),
                "{malformed}"
            );
            assert_eq!(trace.state, None);
        }
    }

    #[test]
    fn a_request_that_leaves_is_a_child() {
        let trace = received(&format!("00-{TRACE}-{SPAN}-01"), Some("a=b"));
        let child = trace.child([9; 16]);
        assert_eq!((&child.trace_id, child.parent_span_id.as_ref()), (&trace.trace_id, Some(&trace.span_id)));
        assert_eq!((child.span_id.as_str(), child.state.as_deref()), ("0909090909090909", Some("a=b")));
    }

    #[test]
    fn state_is_bounded_and_well_formed() {
        assert_eq!(bounded(" a=1 ,\t, b@c=2 3 ").as_deref(), Some("a=1,b@c=2 3"));
        for bad in ["", "a", "A=1", "a=", "=1", "a=1,b", "a=b=c", "a=é", "a=\u{7f}"] {
            assert_eq!(bounded(bad), None, "{bad:?}");
        }
        let many: Vec<String> = (0..33).map(|number| format!("k{number}=v")).collect();
        assert_eq!(bounded(&many.join(",")), None);
        let long: Vec<String> = (0..4).map(|number| format!("k{number}={}", "v".repeat(200))).collect();
        assert_eq!(bounded(&long.join(",")), Some(long[..2].join(",")), "whole members, as many as fit");
    }

    proptest! {
        #[test]
        fn any_header_leads_to_a_valid_trace(traceparent in ".{0,80}", tracestate in ".{0,700}", random: [u8; 16]) {
            let trace = Trace::of_request(Some(&traceparent), Some(&tracestate), || random);
            let header = trace.traceparent();
            prop_assert!(parse(&header).is_some(), "{}", header);
            prop_assert!(trace.state.as_ref().is_none_or(|state| state.len() <= LONGEST_STATE && state.is_ascii()));
        }
    }
}
