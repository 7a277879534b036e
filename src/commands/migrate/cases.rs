//! The cases of a row: what decides whether a value is lost, needless or different.

use super::pods::{CHART_LABELS, NTH, given};
use super::table::Case;
use super::value::{NthValue, number, switch};
use serde_json::{Map, Value};

impl Case {
    /// Whether all that the case names holds.
    pub fn applies(&self, nth: &NthValue<'_>) -> bool {
        let (value, number) = (nth.value, number(nth.value));
        let has = |what: &String| value.as_str().is_some_and(|text| text.contains(what)) || value.get(what).is_some();
        let is_from_value =
            |key: &String| self::number(&nth.all[key]).is_some_and(|least| least > 0 && number >= Some(least));
        self.mode.is_none_or(|mode| mode == nth.mode)
            && self.is.is_none_or(|on| switch(value) == Some(on))
            && self.has.as_ref().is_none_or(has)
            && self.from.is_none_or(|from| number >= Some(from))
            && self.to.is_none_or(|to| number.is_some_and(|number| number <= to))
            && self.from_value.as_ref().is_none_or(is_from_value)
            && self.on.as_ref().is_none_or(|key| nth.is_on(key))
            && !(self.foreign_selectors && selects_the_same(nth))
            && !(self.not_a_queue && value.as_str().is_some_and(is_queue_url))
    }
}

/// Whether the chart takes a text as the URL of a queue.
fn is_queue_url(text: &str) -> bool {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    rest.and_then(|rest| rest.split_once('/')).is_some_and(|(_, path)| path.chars().any(|c| c != '/'))
}

/// Whether every pod selector in a value, which applies to the pods' own namespace, still selects the intended pods: ours by labels that
/// we copy from NTH, or pods of a namespace that it names.
fn selects_the_same(nth: &NthValue<'_>) -> bool {
    let mut ours = given(nth, "customLabels");
    ours.extend(given(nth, "podLabels"));
    ours.retain(|name, _| !CHART_LABELS.contains(&name.as_str()));
    all_select_the_same(nth.value, &ours)
}

fn all_select_the_same(value: &Value, ours: &Map<String, Value>) -> bool {
    match value {
        Value::Array(list) => list.iter().all(|value| all_select_the_same(value, ours)),
        Value::Object(map) => map.iter().all(|(name, value)| match (name.as_str(), value) {
            ("labelSelector", Value::Object(_)) => {
                let labels = value["matchLabels"].as_object();
                let expressions = value["matchExpressions"].as_array().is_some_and(|list| !list.is_empty());
                let shared = labels.into_iter().flatten().all(|(name, value)| ours.get(name) == Some(value));
                let elsewhere = map.get("namespaceSelector").is_some_and(Value::is_object)
                    || map.get("namespaces").and_then(Value::as_array).is_some_and(|names| !names.is_empty());
                shared && !expressions || elsewhere && !value.to_string().contains(NTH)
            }
            _ => all_select_the_same(value, ours),
        }),
        _ => true,
    }
}
