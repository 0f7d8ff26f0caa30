//! Which calls wait until somebody approves them: by the tool, by what it can destroy, by a pattern on its arguments.
//!
//! Rules are a key's own. A token has those of its key and its own; a key that makes another gives all of its rules on.

use std::collections::BTreeSet;

use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::error::Error;
use crate::guardrails::Approval;

/// Seconds that a call waits when its key says nothing.
const DEFAULT_WAIT_SECONDS: u32 = 24 * 60 * 60;

/// Most rules on arguments.
const MOST_RULES: usize = 32;

/// Most bytes of a pointer, and of a pattern.
const LONGEST_TEXT: usize = 256;

/// Calls of a key that wait until another key approves them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ApprovalRules {
    /// Every call of these tools.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    #[schema(required = false)]
    pub tools: BTreeSet<String>,
    /// Every call of a tool that can end or overwrite something (`destructiveHint`), but for cancelJob. Default false.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub destructive: bool,
    /// Every call with an argument that one of these rules describes; at most 32.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub arguments: Vec<ArgumentRule>,
    /// Whether this key may approve its own calls, if it holds the scope `jobs:approve`. Default false.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub approves_own: bool,
    /// Seconds after which a call that nobody approved is rejected; default 86,400, a day.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 2_592_000)]
    pub expires_after: Option<u32>,
}

/// An argument that makes a call wait.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ArgumentRule {
    /// Only in calls of this tool; without it in calls of any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// JSON pointer of the argument, such as `/zoneId`.
    #[schema(min_length = 2, max_length = 256)]
    pub pointer: String,
    /// What its whole text is like: `*` stands for any characters, `?` for one. Of a list or an object, one value in it.
    #[schema(min_length = 1, max_length = 256)]
    pub pattern: String,
}

/// Why a call waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Reason {
    pub rule: Rule,
    /// The rule that describes an argument.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argument: Option<ArgumentRule>,
}

/// Kind of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum Rule {
    /// The tool itself always needs approval.
    Guardrail,
    /// The tool is among those of the key's rules.
    Tool,
    /// The tool can end or overwrite something.
    Destructive,
    /// An argument matches a pattern.
    Argument,
}

/// What is known of the arguments of a call, by who has them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Inspected {
    /// The first rule that describes one of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matched: Option<ArgumentRule>,
}

/// What the rules say of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    Free,
    Waits(Reason),
    /// It depends on its arguments, by these rules.
    Depends(Vec<ArgumentRule>),
}

impl ApprovalRules {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a call of `tool` waits.
    pub fn judge(&self, tool: &str, approval: Approval, destroys: bool, inspected: Option<&Inspected>) -> Judgement {
        let waits = |rule| Judgement::Waits(Reason { rule, argument: None });
        if approval == Approval::Needed {
            return waits(Rule::Guardrail);
        }
        if self.tools.contains(tool) {
            return waits(Rule::Tool);
        }
        if self.destructive && destroys && approval != Approval::Brake {
            return waits(Rule::Destructive);
        }
        let rules = self.arguments.iter().filter(|rule| rule.tool.as_deref().is_none_or(|named| named == tool));
        let rules: Vec<ArgumentRule> = rules.cloned().collect();
        match inspected {
            _ if rules.is_empty() => Judgement::Free,
            None => Judgement::Depends(rules),
            Some(Inspected { matched: None }) => Judgement::Free,
            Some(Inspected { matched }) => Judgement::Waits(Reason { rule: Rule::Argument, argument: matched.clone() }),
        }
    }

    /// Until when a call that is asked at `now` waits.
    pub fn expires_at(&self, now: i64) -> i64 {
        now + i64::from(self.expires_after.unwrap_or(DEFAULT_WAIT_SECONDS)) * 1000
    }

    /// What waits by either.
    pub fn narrowed(&self, other: &Self) -> Self {
        let mut arguments = self.arguments.clone();
        arguments.extend(other.arguments.iter().filter(|rule| !self.arguments.contains(rule)).cloned());
        Self {
            tools: self.tools.union(&other.tools).cloned().collect(),
            destructive: self.destructive || other.destructive,
            arguments,
            approves_own: self.approves_own && other.approves_own,
            expires_after: match (self.expires_after, other.expires_after) {
                (Some(one), Some(another)) => Some(one.min(another)),
                (one, another) => one.or(another),
            },
        }
    }

    /// Whether everything that waits by these rules waits by `other` too.
    pub fn covers(&self, other: &Self) -> bool {
        self.tools.is_subset(&other.tools)
            && (other.destructive || !self.destructive)
            && self.arguments.iter().all(|rule| other.arguments.contains(rule))
            && (self.approves_own || !other.approves_own || self.is_empty())
    }

    /// 400 for rules that nothing could be held against.
    pub fn check(&self) -> Result<(), Error> {
        if self.arguments.len() > MOST_RULES {
            let message = format!("has more than {MOST_RULES} entries");
            return Err(Error::invalid("/permissions/approval/arguments", message));
        }
        for (index, rule) in self.arguments.iter().enumerate() {
            let field = |name| format!("/permissions/approval/arguments/{index}/{name}");
            if !rule.pointer.starts_with('/') || rule.pointer.len() > LONGEST_TEXT {
                return Err(Error::invalid(&field("pointer"), "is not a JSON pointer such as /zoneId"));
            }
            if rule.pattern.is_empty() || rule.pattern.len() > LONGEST_TEXT {
                return Err(Error::invalid(&field("pattern"), "is empty or too long"));
            }
        }
        Ok(())
    }
}

/// Holds rules against arguments as they were sent; against paths that were sent percent-encoded also as what they stand for.
pub fn inspect(rules: &[ArgumentRule], arguments: &Value) -> Inspected {
    let is_encoded = arguments.get("pathEncoding").is_some_and(|encoding| encoding == "percent");
    let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    let matches = |rule: &&ArgumentRule| match arguments.pointer(&rule.pointer) {
        Some(value) if describes(&rule.pattern, value) => true,
        Some(Value::String(text)) if is_encoded => is_like(&rule.pattern, &decoded(text)),
        _ => false,
    };
    Inspected { matched: rules.iter().find(matches).cloned() }
}

fn describes(pattern: &str, value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::String(text) => is_like(pattern, text),
        Value::Array(items) => items.iter().any(|item| describes(pattern, item)),
        Value::Object(fields) => fields.values().any(|item| describes(pattern, item)),
        Value::Bool(_) | Value::Number(_) => is_like(pattern, &value.to_string()),
    }
}

/// Whether the whole of `text` is like `pattern`. Looks at each pair of places once at most.
fn is_like(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut at, mut place) = (0, 0);
    // Where the last `*` stood, and how much of the text it stands for.
    let mut star: Option<(usize, usize)> = None;
    while let Some(letter) = text.get(place) {
        match pattern.get(at) {
            Some('*') => {
                star = Some((at, place));
                at += 1;
            }
            Some(wanted) if *wanted == '?' || wanted == letter => {
                at += 1;
                place += 1;
            }
            _ => {
                let Some((before, taken)) = star else { return false };
                star = Some((before, taken + 1));
                at = before + 1;
                place = taken + 1;
            }
        }
    }
    pattern.get(at..).is_some_and(|rest| rest.iter().all(|wanted| *wanted == '*'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rule(tool: Option<&str>, pointer: &str, pattern: &str) -> ArgumentRule {
        ArgumentRule { tool: tool.map(str::to_owned), pointer: pointer.into(), pattern: pattern.into() }
    }

    fn judge(rules: &ApprovalRules, tool: &str, destroys: bool, arguments: &Value) -> Option<Rule> {
        match rules.judge(tool, Approval::NotNeeded, destroys, None) {
            Judgement::Free => None,
            Judgement::Waits(reason) => Some(reason.rule),
            Judgement::Depends(by) => {
                let inspected = inspect(&by, arguments);
                match rules.judge(tool, Approval::NotNeeded, destroys, Some(&inspected)) {
                    Judgement::Waits(reason) => Some(reason.rule),
                    _ => None,
                }
            }
        }
    }

    #[test]
    fn a_call_waits_by_its_tool_by_what_it_destroys_or_by_its_arguments() {
        let free = ApprovalRules::default();
        assert_eq!(judge(&free, "exec", true, &json!({})), None);
        let needed = free.judge("deploy", Approval::Needed, false, None);
        assert_eq!(needed, Judgement::Waits(Reason { rule: Rule::Guardrail, argument: None }));
        let tools = ApprovalRules { tools: ["exec".to_owned()].into(), ..ApprovalRules::default() };
        assert_eq!(judge(&tools, "exec", true, &json!({})), Some(Rule::Tool));
        assert_eq!(judge(&tools, "readFile", false, &json!({})), None);
        let destructive = ApprovalRules { destructive: true, ..ApprovalRules::default() };
        assert_eq!(judge(&destructive, "exec", true, &json!({})), Some(Rule::Destructive));
        assert_eq!(judge(&destructive, "readFile", false, &json!({})), None);
        // What only ends what goes on waits where it is named.
        let brake = |rules: &ApprovalRules| rules.judge("cancelJob", Approval::Brake, true, None);
        assert_eq!(brake(&destructive), Judgement::Free);
        let named = ApprovalRules { tools: ["cancelJob".to_owned()].into(), ..destructive.clone() };
        assert_eq!(brake(&named), Judgement::Waits(Reason { rule: Rule::Tool, argument: None }));
        let pattern = vec![rule(Some("cancelJob"), "/jobId", "*")];
        let by_argument = ApprovalRules { arguments: pattern.clone(), ..destructive.clone() };
        assert_eq!(brake(&by_argument), Judgement::Depends(pattern));
        let arguments = vec![rule(Some("exec"), "/command", "*deploy*"), rule(None, "/zoneId", "prod-?")];
        let arguments = ApprovalRules { arguments, ..ApprovalRules::default() };
        assert_eq!(judge(&arguments, "exec", true, &json!({ "command": "make deploy all" })), Some(Rule::Argument));
        assert_eq!(judge(&arguments, "exec", true, &json!({ "command": "make" })), None);
        assert_eq!(judge(&arguments, "other", true, &json!({ "command": "make deploy" })), None);
        assert_eq!(judge(&arguments, "purge", true, &json!({ "zoneId": "prod-1" })), Some(Rule::Argument));
        assert_eq!(judge(&arguments, "purge", true, &json!({ "zoneId": ["a", "prod-2"] })), Some(Rule::Argument));
        assert_eq!(judge(&arguments, "purge", true, &json!({ "zoneId": null })), None);
    }

    #[test]
    fn patterns_mean_the_whole_text() {
        for (pattern, text) in [
            ("a", "a"),
            ("*", ""),
            ("*", "any\nthing"),
            ("a*c", "abbc"),
            ("a*c", "ac"),
            ("*b*b*", "xbyb"),
            ("?", "é"),
            ("**x", "aax"),
            ("5", "5"),
        ] {
            assert!(is_like(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [("a", "A"), ("a", "ab"), ("?", ""), ("a*c", "abcd"), ("*b*b*", "xb"), ("", "a")] {
            assert!(!is_like(pattern, text), "{pattern} {text}");
        }
        // Many stars against a long text end soon.
        assert!(!is_like(&format!("{}b", "a*".repeat(100)), &"a".repeat(20_000)));
        assert!(describes("true", &json!(true)) && describes("5*", &json!(50)));
    }

    #[test]
    fn rules_only_grow() {
        let rules = ApprovalRules {
            tools: ["exec".to_owned()].into(),
            arguments: vec![rule(None, "/zoneId", "prod")],
            expires_after: Some(60),
            ..ApprovalRules::default()
        };
        let other = ApprovalRules { destructive: true, approves_own: true, ..ApprovalRules::default() };
        let both = rules.narrowed(&other);
        assert!(rules.covers(&both) && !both.covers(&rules));
        assert!(both.destructive && !both.approves_own && both.expires_after == Some(60));
        let own = ApprovalRules { approves_own: true, ..rules.clone() };
        assert!(!rules.covers(&own) && own.covers(&rules));
        assert!(ApprovalRules::default().covers(&other));
        assert_eq!(rules.narrowed(&rules), rules);
    }

    #[test]
    fn rules_that_mean_nothing_are_refused() {
        let with = |rule| ApprovalRules { arguments: vec![rule], ..ApprovalRules::default() };
        assert!(with(rule(None, "/a", "b")).check().is_ok());
        for bad in [rule(None, "a", "b"), rule(None, "", "b"), rule(None, "/a", ""), rule(None, "/a", &"b".repeat(257))]
        {
            assert!(with(bad.clone()).check().is_err(), "{bad:?}");
        }
    }
}
