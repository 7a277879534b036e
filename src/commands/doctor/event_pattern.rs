//! Event patterns of EventBridge, without what differs between the events of one kind. EventBridge itself matches them. Pure.

use serde_json::{Map, Value, json};

/// An event pattern without its conditions on fields that an event lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommonPattern {
    /// The pattern.
    pub pattern: Value,
    /// The path of a field with such a condition, if there is one.
    pub narrows: Option<String>,
}

impl CommonPattern {
    /// Returns what `pattern` has in common with `event`, which has only the fields that all events of its kind share; `None` if the
    /// pattern lists texts for the source or the type, and not the event's: then EventBridge need not be asked.
    #[must_use]
    pub fn of(pattern: &str, event: &Value) -> Option<Self> {
        let mut pattern: Map<String, Value> = serde_json::from_str(pattern).ok()?;
        let lists_others = |field: &&str| {
            let listed = pattern.get(*field).and_then(Value::as_array);
            listed.is_some_and(|listed| listed.iter().all(Value::is_string) && !listed.contains(&event[*field]))
        };
        if ["source", "detail-type"].iter().any(lists_others) {
            return None;
        }
        let narrows = widen(&mut pattern, event, "");
        // EventBridge refuses an empty pattern. All events of AWS have this version.
        pattern.entry("version").or_insert(json!(["0"]));
        Some(Self { pattern: pattern.into(), narrows })
    }
}

/// Removes the conditions on fields that `event` lacks, and returns the path of one.
fn widen(pattern: &mut Map<String, Value>, event: &Value, path: &str) -> Option<String> {
    let mut narrows = None;
    pattern.retain(|field, wanted| {
        let path = format!("{path}{field}");
        match (event.get(field), wanted) {
            (None, _) => {
                narrows = Some(path);
                false
            }
            (Some(event @ Value::Object(_)), Value::Object(wanted)) => {
                narrows = widen(wanted, event, &format!("{path}.")).or_else(|| narrows.take());
                !wanted.is_empty()
            }
            (Some(_), _) => true,
        }
    });
    narrows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> Value {
        json!({ "version": "0", "source": "aws.ec2", "detail-type": "EC2 Spot Instance Interruption Warning",
                "detail": { "instance-action": "terminate" } })
    }

    #[test]
    fn conditions_on_fields_that_differ_between_events_are_left_out_and_named() {
        for (pattern, left, narrows) in [
            (r#"{"source": [{"prefix": "aws."}]}"#, r#"{"source": [{"prefix": "aws."}], "version": ["0"]}"#, None),
            (r#"{"version": ["1"]}"#, r#"{"version": ["1"]}"#, None),
            (
                r#"{"source": ["aws.ec2"], "detail": {"instance-action": ["stop"], "instance-id": ["i-1"]}}"#,
                r#"{"source": ["aws.ec2"], "detail": {"instance-action": ["stop"]}, "version": ["0"]}"#,
                Some("detail.instance-id"),
            ),
            (r#"{"resources": [{"prefix": "arn:"}]}"#, r#"{"version": ["0"]}"#, Some("resources")),
            (r#"{"detail": {"tags": {"a": ["b"]}}}"#, r#"{"version": ["0"]}"#, Some("detail.tags")),
            (r#"{"$or": [{"source": ["aws.ec2"]}]}"#, r#"{"version": ["0"]}"#, Some("$or")),
        ] {
            let pattern = CommonPattern::of(pattern, &event()).unwrap();
            let left: Value = serde_json::from_str(left).unwrap();
            assert_eq!((pattern.pattern, pattern.narrows.as_deref()), (left, narrows));
        }
    }

    #[test]
    fn a_list_without_the_event_s_source_or_type_needs_no_call() {
        for pattern in [
            r#"{"source": ["aws.s3"]}"#,
            r#"{"detail-type": ["AWS Health Event"], "detail": {"instance-id": ["i-1"]}}"#,
            r#"{"source": []}"#,
            "no",
        ] {
            assert_eq!(CommonPattern::of(pattern, &event()), None, "{pattern}");
        }
        for pattern in [r#"{"source": ["aws.s3", "aws.ec2"]}"#, r#"{"source": ["aws.s3", {"prefix": "aws"}]}"#] {
            assert!(CommonPattern::of(pattern, &event()).is_some(), "{pattern}");
        }
    }
}
