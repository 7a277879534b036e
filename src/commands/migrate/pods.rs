//! Converters of values about NTH's own pods that refer to their surroundings: Secrets, pods of the same namespace, labels, ports.

use super::conversions::{maps, number, same_switch, switch, text_map, wrong};
use super::row::{Conversion, NthValue, Setting};
use serde_json::{Map, Value};

/// The name of NTH's objects.
const NTH: &str = "aws-node-termination-handler";

/// Labels that our chart sets itself and rejects in values.
const CHART_LABELS: [&str; 5] = [
    "helm.sh/chart",
    "app.kubernetes.io/name",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/version",
    "app.kubernetes.io/managed-by",
];

/// The default ports of our chart: of the service, and of the agent.
const DEFAULT_PORTS: [i64; 2] = [8080, 18464];

/// The defaults of our chart's `resources`.
pub(super) const RESOURCES: [(&str, &[&str]); 2] = [("requests", &["cpu", "memory"]), ("limits", &["memory"])];

/// Copies a switch that, when off, makes the user create an object.
pub fn made_by_others(nth: &NthValue<'_>) -> Conversion {
    match same_switch(nth) {
        Conversion::Set(set) if switch(nth.value) == Some(false) => nth.differs(set),
        other => other,
    }
}

/// Copies names of objects, which must exist in our namespace.
pub fn in_namespace(nth: &NthValue<'_>) -> Conversion {
    match maps(nth) {
        Conversion::Set(set) => nth.differs(set),
        other => other,
    }
}

/// Copies labels, except those that our chart rejects and those that `customLabels` sets already.
pub fn labels(nth: &NthValue<'_>) -> Conversion {
    let labels = match text_map(nth.value) {
        Ok(labels) => labels,
        Err(wanted) => return wrong(wanted),
    };
    let common = if nth.row.key == "customLabels" { Map::new() } else { given(nth, "customLabels") };
    let is_taken = |name: &String| CHART_LABELS.contains(&name.as_str()) || common.contains_key(name);
    let is_left = |(name, value): &(&String, &Value)| is_taken(name) && common.get(*name) != Some(*value);
    let left: Vec<_> = labels.iter().filter(is_left).map(|(name, _)| name.as_str()).collect();
    let mut set = Vec::new();
    for (path, mut labels) in of_pods(nth, &labels) {
        labels.retain(|name, _| !is_taken(name));
        if !labels.is_empty() {
            set.push((path.to_owned(), labels.into()));
        }
    }
    match (left.is_empty(), set.is_empty()) {
        (true, true) => Conversion::Nothing,
        (true, false) => Conversion::Set(set),
        _ => {
            let left = left.join(", ");
            Conversion::Differs(set, format!("{left} left out: the chart itself or customLabels sets it"))
        }
    }
}

/// Returns a map for the pods of each of our values that replace it. NTH's DaemonSet merges that of both modes and its own.
fn of_pods(nth: &NthValue<'_>, map: &Map<String, Value>) -> Vec<(&'static str, Map<String, Value>)> {
    let merged = |key: &str| {
        let mut both = given(nth, key);
        both.extend(given(nth, &linux(key)));
        both
    };
    let mut maps = Vec::new();
    for to in nth.row.to {
        match to.strip_prefix("agent.") {
            None => maps.push((*to, map.clone())),
            Some(key) if !nth.queue => maps.push((*to, merged(key))),
            Some(_) => {}
        }
    }
    maps
}

/// Returns NTH's name of a value for its DaemonSet on Linux.
pub(super) fn linux(key: &str) -> String {
    let (first, rest) = key.split_at(1);
    format!("linux{}{rest}", first.to_uppercase())
}

/// Copies annotations. Those that give Prometheus the place of the metrics change.
pub fn annotations(nth: &NthValue<'_>) -> Conversion {
    let annotations = match text_map(nth.value) {
        Ok(annotations) if annotations.is_empty() => return Conversion::Nothing,
        Ok(annotations) => annotations,
        Err(wanted) => return wrong(wanted),
    };
    let theirs = nth.other("prometheusServerPort").and_then(number).filter(|port| *port != 9092);
    let [service, agent] = DEFAULT_PORTS;
    let (mut set, mut remarks) = (Vec::new(), Vec::new());
    for (path, mut ours) in of_pods(nth, &annotations) {
        let port = if path.starts_with("agent.") { agent } else { theirs.unwrap_or(service) }.to_string();
        for (name, right) in
            [("prometheus.io/port", &*port), ("prometheus.io/path", "/metrics"), ("prometheus.io/scheme", "http")]
        {
            if let Some(value) = ours.get_mut(name).filter(|value| *value != right) {
                *value = right.into();
                if annotations.contains_key(name) {
                    remarks.push(format!("{name} is {right} in {path}"));
                }
            }
        }
        set.push((path.to_owned(), ours.into()));
    }
    if annotations.iter().any(|(name, value)| name.contains(NTH) || value.to_string().contains(NTH)) {
        remarks.push(format!(
            "{NTH} is named; Ebbtide's pods and their container are called ebbtide, the agent's container agent, so change the name"
        ));
    }
    if remarks.is_empty() { Conversion::Set(set) } else { Conversion::Differs(set, remarks.join("; ")) }
}

/// Copies the spread constraints.
pub fn spread(nth: &NthValue<'_>) -> Conversion {
    match maps(nth) {
        Conversion::Set(set) => with_selectors(nth, set),
        other => other,
    }
}

/// Copies the affinity.
pub fn affinity(nth: &NthValue<'_>) -> Conversion {
    match nth.value {
        Value::Object(map) if map.is_empty() => Conversion::Nothing,
        Value::Object(map) => with_selectors(nth, nth.setting(map.clone()).into_iter().collect()),
        _ => wrong("a map"),
    }
}

/// Copies a value with pod selectors, which apply to the pods' own namespace.
fn with_selectors(nth: &NthValue<'_>, set: Vec<Setting>) -> Conversion {
    let mut ours = given(nth, "customLabels");
    ours.extend(given(nth, "podLabels"));
    ours.retain(|name, _| !CHART_LABELS.contains(&name.as_str()));
    if selects_the_same(nth.value, &ours) { Conversion::Set(set) } else { nth.differs(set) }
}

/// Whether every pod selector in a value still selects the intended pods: ours by labels that we copy from NTH, or pods of a namespace
/// that it names.
fn selects_the_same(value: &Value, ours: &Map<String, Value>) -> bool {
    match value {
        Value::Array(list) => list.iter().all(|value| selects_the_same(value, ours)),
        Value::Object(map) => map.iter().all(|(name, value)| match (name.as_str(), value) {
            ("labelSelector", Value::Object(_)) => {
                let labels = value["matchLabels"].as_object();
                let expressions = value["matchExpressions"].as_array().is_some_and(|list| !list.is_empty());
                let shared = labels.into_iter().flatten().all(|(name, value)| ours.get(name) == Some(value));
                let elsewhere = map.get("namespaceSelector").is_some_and(Value::is_object)
                    || map.get("namespaces").and_then(Value::as_array).is_some_and(|names| !names.is_empty());
                shared && !expressions || elsewhere && !value.to_string().contains(NTH)
            }
            _ => selects_the_same(value, ours),
        }),
        _ => true,
    }
}

/// Copies requests and limits. Missing ones are set to null: Helm would fill them in from our defaults, and a default limit could be less
/// than a copied request.
pub fn resources(nth: &NthValue<'_>) -> Conversion {
    let mut resources = match nth.value {
        Value::Object(map) if map.is_empty() => return Conversion::Nothing,
        Value::Object(map) => map.clone(),
        _ => return wrong("a map"),
    };
    for (part, names) in RESOURCES {
        match resources.get_mut(part) {
            Some(Value::Object(given)) if !given.is_empty() => {
                for name in names {
                    given.entry(*name).or_insert(Value::Null);
                }
            }
            None | Some(Value::Null | Value::Object(_)) => {
                resources.insert(part.to_owned(), Value::Null);
            }
            Some(_) => return wrong("a map of maps"),
        }
    }
    // In IMDS mode they are those of the DaemonSet.
    let path = nth.row.to[usize::from(!nth.queue)];
    Conversion::Set(vec![(path.to_owned(), resources.into())])
}

/// Returns the map of texts under another key.
fn given(nth: &NthValue<'_>, key: &str) -> Map<String, Value> {
    nth.other(key).and_then(|value| text_map(value).ok()).unwrap_or_default()
}
