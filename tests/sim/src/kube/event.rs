//! Events: one resource under two API groups, with the real server's validation.

use super::refusal::Refusal;
use super::route::Resource;
use serde_json::{Map, Value};

/// Field names of the core group, in which Events are stored, and those of `events.k8s.io/v1`.
const WORDS: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

/// Returns a field's name in `events.k8s.io/v1`.
pub(super) fn to_events_v1(field: &str) -> &str {
    WORDS.iter().find(|(core, _)| *core == field).map_or(field, |(_, new)| new)
}

/// Renames the fields of `events.k8s.io/v1` to those of the core group.
pub(super) fn from_events_v1(event: Map<String, Value>) -> Map<String, Value> {
    let rename = |(field, value): (String, Value)| {
        let core = WORDS.iter().find(|(_, new)| *new == field).map(|(core, _)| (*core).to_owned());
        (core.unwrap_or(field), value)
    };
    event.into_iter().map(rename).collect()
}

/// Validates an Event in the core group's format. `strict` is for `events.k8s.io/v1`, which requires more.
pub(super) fn check(event: &Map<String, Value>, namespace: &str, strict: bool) -> Result<(), Refusal> {
    let text = |field: &str| event.get(field).and_then(Value::as_str).unwrap_or_default();
    let name = event.get("metadata").and_then(|meta| meta["name"].as_str()).unwrap_or_default();
    let invalid = |field: &str, why: &str| Err(Refusal::invalid(Resource::Events, name, field, why));
    let about = event.get("involvedObject").and_then(|about| about["namespace"].as_str()).unwrap_or_default();
    // Events about objects without a namespace are in `default`.
    if namespace != if about.is_empty() { "default" } else { about } {
        return invalid("involvedObject.namespace", "Invalid value: does not match event.namespace");
    }
    if !strict {
        return Ok(());
    }
    if event.get("eventTime").is_none_or(Value::is_null) {
        return invalid("eventTime", "Required value");
    }
    for (field, shown) in [
        ("reportingComponent", "reportingController"),
        ("reportingInstance", "reportingInstance"),
        ("action", "action"),
        ("reason", "reason"),
    ] {
        match text(field).len() {
            0 => return invalid(shown, "Required value"),
            1..=128 => {}
            _ => return invalid(shown, "Invalid value: can have at most 128 characters"),
        }
    }
    if !matches!(text("type"), "Normal" | "Warning") {
        return invalid("type", "Invalid value: has invalid value");
    }
    if text("message").len() > 1024 {
        return invalid("note", "Invalid value: can have at most 1024 characters");
    }
    Ok(())
}
