//! What becomes of values about NTH's own pods that name what is around them: Secrets and other pods in their namespace, labels, ports.

use super::conversions::{Asked, Became, maps, number, same_switch, switch, text_map, wrong};
use serde_json::{Map, Value};

/// The name that NTH's chart gives to what it makes.
const NTH: &str = "aws-node-termination-handler";

/// Labels that our chart sets by itself, and takes from nobody.
const OWN_LABELS: [&str; 5] = [
    "helm.sh/chart",
    "app.kubernetes.io/name",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/version",
    "app.kubernetes.io/managed-by",
];

/// The port of our chart, unless another is asked for.
const PORT: i64 = 8080;

/// What our chart's `resources` say by themselves.
pub(super) const RESOURCES: [(&str, &[&str]); 2] = [("requests", &["cpu", "memory"]), ("limits", &["memory"])];

/// A switch without which somebody else made what NTH needs: nobody has for us.
pub fn made_by_others(asked: &Asked<'_>) -> Became {
    match same_switch(asked) {
        Became::Set(set) if switch(asked.value) == Some(false) => Became::Differs(set, asked.row.why.to_owned()),
        became => became,
    }
}

/// Names of things in NTH's namespace, which must be in ours.
pub fn in_namespace(asked: &Asked<'_>) -> Became {
    match maps(asked) {
        Became::Set(set) => Became::Differs(set, asked.row.why.to_owned()),
        became => became,
    }
}

/// Labels, but for those that our chart takes from nobody, or takes for everything already.
pub fn labels(asked: &Asked<'_>) -> Became {
    let mut labels = match text_map(asked.value) {
        Ok(labels) => labels,
        Err(wanted) => return wrong(wanted),
    };
    let common = if asked.row.key == "customLabels" { Map::new() } else { given(asked, "customLabels") };
    let mut left = Vec::new();
    labels.retain(|name, value| {
        let taken = OWN_LABELS.contains(&name.as_str()) || common.contains_key(name);
        if taken && common.get(name) != Some(value) {
            left.push(name.clone());
        }
        !taken
    });
    let set = set(asked, labels);
    if left.is_empty() {
        return if set.is_empty() { Became::Nothing } else { Became::Set(set) };
    }
    Became::Differs(set, format!("{} left out: the chart itself sets it, or customLabels does", left.join(", ")))
}

/// Annotations. Some tell Prometheus where the metrics are.
pub fn annotations(asked: &Asked<'_>) -> Became {
    let mut annotations = match text_map(asked.value) {
        Ok(annotations) if annotations.is_empty() => return Became::Nothing,
        Ok(annotations) => annotations,
        Err(wanted) => return wrong(wanted),
    };
    let theirs = asked.other("prometheusServerPort").and_then(number).filter(|port| *port != 9092);
    let port = theirs.unwrap_or(PORT).to_string();
    let mut remarks = Vec::new();
    for (name, ours) in
        [("prometheus.io/port", &*port), ("prometheus.io/path", "/metrics"), ("prometheus.io/scheme", "http")]
    {
        if let Some(value) = annotations.get_mut(name).filter(|value| *value != ours) {
            *value = ours.into();
            remarks.push(format!("{name} is {ours} here"));
        }
    }
    if annotations.iter().any(|(name, value)| name.contains(NTH) || value.to_string().contains(NTH)) {
        remarks.push(format!("{NTH} is named; our pods and their container are called ebbtide, so change it"));
    }
    let set = set(asked, annotations);
    if remarks.is_empty() { Became::Set(set) } else { Became::Differs(set, remarks.join("; ")) }
}

/// How the pods are spread: a list of maps.
pub fn spread(asked: &Asked<'_>) -> Became {
    match maps(asked) {
        Became::Set(set) => beside_others(asked, set),
        became => became,
    }
}

/// Beside what the pods run: a map.
pub fn affinity(asked: &Asked<'_>) -> Became {
    match asked.value {
        Value::Object(map) if map.is_empty() => Became::Nothing,
        Value::Object(map) => beside_others(asked, set(asked, map.clone())),
        _ => wrong("a map"),
    }
}

/// What looks for other pods does so in their own namespace, by labels.
fn beside_others(asked: &Asked<'_>, set: Vec<(String, Value)>) -> Became {
    let mut ours = given(asked, "customLabels");
    ours.extend(given(asked, "podLabels"));
    ours.retain(|name, _| !OWN_LABELS.contains(&name.as_str()));
    if finds_the_same(asked.value, &ours) { Became::Set(set) } else { Became::Differs(set, asked.row.why.to_owned()) }
}

/// Whether every selector in a value finds what it found beside NTH: ours in the place of NTH's, by labels that they share, or pods of
/// a namespace that it names.
fn finds_the_same(value: &Value, ours: &Map<String, Value>) -> bool {
    match value {
        Value::Array(list) => list.iter().all(|value| finds_the_same(value, ours)),
        Value::Object(map) => map.iter().all(|(name, value)| match (name.as_str(), value) {
            ("labelSelector", Value::Object(_)) => {
                let labels = value["matchLabels"].as_object();
                let expressions = value["matchExpressions"].as_array().is_some_and(|list| !list.is_empty());
                let shared = labels.into_iter().flatten().all(|(name, value)| ours.get(name) == Some(value));
                let elsewhere = map.get("namespaceSelector").is_some_and(Value::is_object)
                    || map.get("namespaces").and_then(Value::as_array).is_some_and(|names| !names.is_empty());
                shared && !expressions || elsewhere && !value.to_string().contains(NTH)
            }
            _ => finds_the_same(value, ours),
        }),
        _ => true,
    }
}

/// What the container asks for, and its limits. Helm would fill in from our defaults what NTH's leave out, and a limit of ours could be
/// less than a request of theirs.
pub fn resources(asked: &Asked<'_>) -> Became {
    let mut resources = match asked.value {
        Value::Object(map) if map.is_empty() => return Became::Nothing,
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
    asked.set(resources)
}

/// Texts that are given under another key.
fn given(asked: &Asked<'_>, key: &str) -> Map<String, Value> {
    asked.other(key).and_then(|value| text_map(value).ok()).unwrap_or_default()
}

fn set(asked: &Asked<'_>, map: Map<String, Value>) -> Vec<(String, Value)> {
    let to = asked.row.to.first().filter(|_| !map.is_empty());
    to.map(|to| ((*to).to_owned(), map.into())).into_iter().collect()
}
