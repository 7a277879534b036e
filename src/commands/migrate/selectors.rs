//! Pod selectors in NTH's values, which select other pods once they are Ebbtide's.

use super::Topic;
use super::pods::{CHART_LABELS, NTH, given};
use super::table::How;
use super::value::{Conversion, NthValue, is_empty};
use serde_json::{Map, Value};

/// Copies an affinity, except its terms about pods that select others of Ebbtide's than they did of NTH's.
pub fn affinity(nth: &NthValue<'_>) -> Conversion {
    let Some(mut kept) = nth.value.as_object().cloned() else { return Conversion::wrong("a map") };
    let mut is_whole = true;
    for group in ["podAffinity", "podAntiAffinity"] {
        let Some(Value::Object(lists)) = kept.get_mut(group) else { continue };
        for list in lists.values_mut().filter_map(Value::as_array_mut) {
            let given = list.len();
            list.retain(|term| selects_the_same(nth, term));
            is_whole &= list.len() == given;
        }
        lists.retain(|_, list| !is_empty(list));
    }
    if is_whole {
        return How::Map.convert(nth);
    }
    kept.retain(|_, part| !is_empty(part));
    if kept.is_empty() {
        nth.remark(Topic::Lost)
    } else {
        Conversion { settings: nth.set(kept).settings, ..nth.remark(Topic::Differs) }
    }
}

/// Whether every pod selector in a value, which applies to the pods' own namespace, still selects the intended pods: ours by labels that
/// we copy from NTH, or pods of a namespace that it names.
pub fn selects_the_same(nth: &NthValue<'_>, value: &Value) -> bool {
    let mut ours = given(nth, "customLabels");
    ours.extend(given(nth, "podLabels"));
    ours.retain(|name, _| !CHART_LABELS.contains(&name.as_str()));
    all_select_the_same(value, &ours)
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
