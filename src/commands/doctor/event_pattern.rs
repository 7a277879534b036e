//! Event patterns of EventBridge: the operators that rules for these events commonly use. Pure.

use super::glob::covers;
use serde_json::Value;

/// Whether a pattern matches an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Match {
    /// It matches.
    Yes,
    /// It does not match.
    No,
    /// It depends on fields that differ between events, or uses an operator that is not judged. The text names the reason.
    NotJudged(String),
}

impl Match {
    fn and(self, other: impl FnOnce() -> Self) -> Self {
        match self {
            Self::No => Self::No,
            Self::Yes => other(),
            Self::NotJudged(why) => match other() {
                Self::No => Self::No,
                _ => Self::NotJudged(why),
            },
        }
    }

    fn or(self, other: impl FnOnce() -> Self) -> Self {
        match self {
            Self::Yes => Self::Yes,
            Self::No => other(),
            Self::NotJudged(why) => match other() {
                Self::Yes => Self::Yes,
                _ => Self::NotJudged(why),
            },
        }
    }
}

/// Judges whether `pattern` matches `event`, which has only the fields that all events of its kind share.
#[must_use]
pub fn judge(pattern: &Value, event: &Value) -> Match {
    fields(pattern, event, "")
}

fn fields(pattern: &Value, event: &Value, path: &str) -> Match {
    let Some(wanted) = pattern.as_object() else { return Match::NotJudged("it is not a JSON object".to_owned()) };
    wanted.iter().fold(Match::Yes, |so_far, (key, wanted)| {
        so_far.and(|| {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            if key.starts_with('$') {
                return Match::NotJudged(format!("it uses {key}"));
            }
            match (wanted, event.get(key)) {
                (Value::Object(_), Some(inside)) => fields(wanted, inside, &path),
                (Value::Array(choices), found) => {
                    choices.iter().fold(Match::No, |so_far, choice| so_far.or(|| judge_choice(choice, found, &path)))
                }
                _ => Match::NotJudged(format!("it narrows {path}")),
            }
        })
    })
}

/// Judges one of the values or conditions of a field.
fn judge_choice(choice: &Value, found: Option<&Value>, path: &str) -> Match {
    if choice.get("exists") == Some(&Value::Bool(true)) && found.is_some() {
        return Match::Yes;
    }
    let Some(found) = found else { return Match::NotJudged(format!("it narrows {path}")) };
    let Some(condition) = choice.as_object() else { return yes(choice == found) };
    let (Some((name, value)), Some(text)) = (condition.iter().next(), found.as_str()) else {
        return Match::NotJudged(format!("it narrows {path}"));
    };
    match (name.as_str(), value.as_str()) {
        ("prefix", Some(begin)) => yes(text.starts_with(begin)),
        ("suffix", Some(end)) => yes(text.ends_with(end)),
        ("wildcard", Some(pattern)) => yes(covers(pattern, text)),
        ("equals-ignore-case", Some(other)) => yes(text.eq_ignore_ascii_case(other)),
        ("anything-but", Some(other)) => yes(text != other),
        ("anything-but", None) if value.is_array() => {
            yes(!value.as_array().is_some_and(|others| others.iter().any(|other| other == found)))
        }
        _ => Match::NotJudged(format!("it uses {name}")),
    }
}

const fn yes(matches: bool) -> Match {
    if matches { Match::Yes } else { Match::No }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn event() -> Value {
        json!({ "source": "aws.ec2", "detail-type": "EC2 Spot Instance Interruption Warning",
                "account": "123456789012", "detail": { "instance-action": "terminate" } })
    }

    #[test]
    fn common_operators_are_judged() {
        for pattern in [
            json!({ "source": ["aws.ec2"] }),
            json!({ "source": ["aws.s3", "aws.ec2"], "detail-type": ["EC2 Spot Instance Interruption Warning"] }),
            json!({ "source": [{ "prefix": "aws." }], "detail": { "instance-action": ["terminate", "stop"] } }),
            json!({ "detail-type": [{ "wildcard": "EC2 *Warning" }], "account": ["123456789012"] }),
            json!({ "detail-type": [{ "suffix": "Warning" }], "source": [{ "exists": true }] }),
            json!({ "source": [{ "anything-but": ["aws.s3"] }], "account": [{ "anything-but": "1" }] }),
            json!({ "source": [{ "equals-ignore-case": "AWS.EC2" }] }),
            json!({ "source": ["aws.ec2", { "numeric": [">", 1] }] }),
        ] {
            assert_eq!(judge(&pattern, &event()), Match::Yes, "{pattern}");
        }
        for pattern in [
            json!({ "source": ["aws.autoscaling"] }),
            json!({ "source": [] }),
            json!({ "source": ["aws.ec2"], "account": ["1"] }),
            json!({ "source": [{ "anything-but": ["aws.ec2"] }] }),
            json!({ "detail": { "instance-action": ["hibernate"] } }),
            // A field that does not match decides, whatever else is not judged.
            json!({ "source": ["aws.s3"], "detail": { "instance-id": ["i-1"] } }),
            json!({ "detail": { "instance-id": ["i-1"] }, "source": ["aws.s3"] }),
        ] {
            assert_eq!(judge(&pattern, &event()), Match::No, "{pattern}");
        }
    }

    #[test]
    fn unknown_fields_and_operators_are_not_judged() {
        for (pattern, why) in [
            (json!({ "detail": { "instance-id": ["i-1"] } }), "it narrows detail.instance-id"),
            (json!({ "resources": [{ "prefix": "arn:" }] }), "it narrows resources"),
            (json!({ "detail": { "tags": { "a": ["b"] } } }), "it narrows detail.tags"),
            (json!({ "$or": [{ "source": ["aws.ec2"] }] }), "it uses $or"),
            (json!({ "source": [{ "cidr": "10.0.0.0/8" }] }), "it uses cidr"),
            (json!("source"), "it is not a JSON object"),
        ] {
            assert_eq!(judge(&pattern, &event()), Match::NotJudged(why.to_owned()), "{pattern}");
        }
    }
}
