//! Converters of values about NTH's own pods that refer to their surroundings: labels, ports, pods of the same namespace, nodes.

use super::Topic;
use super::table::Mode;
use super::value::{Conversion, NthValue, number, texts};
use serde_json::{Map, Value};

/// Name of NTH's chart, and of its objects, its image and its container.
pub(super) const NTH: &str = "aws-node-termination-handler";

/// Labels that our chart sets itself and rejects in values.
pub(super) const CHART_LABELS: [&str; 5] = [
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

/// Copies labels, except those that our chart rejects and those that `customLabels` sets already.
pub fn labels(nth: &NthValue<'_>) -> Conversion {
    let labels = match texts(nth.value) {
        Ok(labels) => labels,
        Err(wanted) => return Conversion::wrong(wanted),
    };
    let common = if nth.row.nth == "customLabels" { Map::new() } else { given(nth, "customLabels") };
    let is_taken = |name: &String| CHART_LABELS.contains(&name.as_str()) || common.contains_key(name);
    let is_left = |(name, value): &(&String, &Value)| is_taken(name) && common.get(*name) != Some(*value);
    let left: Vec<_> = labels.iter().filter(is_left).map(|(name, _)| name.as_str()).collect();
    let differs = format!("{} left out: the chart itself or customLabels sets it", left.join(", "));
    let mut conversion = of_pods(nth, &labels, |_, labels| labels.retain(|name, _| !is_taken(name)));
    conversion.remark = (!left.is_empty()).then_some((Topic::Differs, differs));
    conversion
}

/// Copies annotations. Those that give Prometheus the place of the metrics change.
pub fn annotations(nth: &NthValue<'_>) -> Conversion {
    let annotations = match texts(nth.value) {
        Ok(annotations) => annotations,
        Err(wanted) => return Conversion::wrong(wanted),
    };
    let [service, agent] = DEFAULT_PORTS;
    let service = number(&nth.all["prometheusServerPort"]).filter(|port| *port != 9092).unwrap_or(service);
    let mut differences = Vec::new();
    let conversion = of_pods(nth, &annotations, |path, ours| {
        let port = if path.starts_with("agent.") { agent } else { service }.to_string();
        for (name, right) in [("port", &*port), ("path", "/metrics"), ("scheme", "http")] {
            let name = format!("prometheus.io/{name}");
            if let Some(value) = ours.get_mut(&name).filter(|value| *value != right) {
                *value = right.into();
                if annotations.contains_key(&name) {
                    differences.push(format!("{name} is {right} in {path}"));
                }
            }
        }
    });
    if annotations.iter().any(|(name, value)| name.contains(NTH) || value.to_string().contains(NTH)) {
        differences.push(format!(
            "{NTH} is named; Ebbtide's pods and their container are called ebbtide, the agent's container agent, so change the name"
        ));
    }
    conversion.differing(&differences)
}

/// Sets a map for the pods of each of our values, after a change. NTH's DaemonSet merges that of both modes and its own.
fn of_pods(
    nth: &NthValue<'_>,
    map: &Map<String, Value>,
    mut change: impl FnMut(&str, &mut Map<String, Value>),
) -> Conversion {
    let mut conversion = Conversion::default();
    for path in nth.row.ours.iter().filter(|_| !map.is_empty()) {
        let mut ours = match path.strip_prefix("agent.") {
            None => map.clone(),
            Some(_) if nth.mode == Mode::Queue => continue,
            Some(key) => given(nth, key).into_iter().chain(given(nth, &linux(key))).collect(),
        };
        change(path, &mut ours);
        if !ours.is_empty() {
            conversion.settings.push((path.clone(), ours.into()));
        }
    }
    conversion
}

/// Returns the map of texts under another key.
pub fn given(nth: &NthValue<'_>, key: &str) -> Map<String, Value> {
    texts(&nth.all[key]).unwrap_or_default()
}

/// Returns NTH's name of a value for its DaemonSet on Linux.
pub fn linux(key: &str) -> String {
    let (first, rest) = key.split_at(1);
    format!("linux{}{rest}", first.to_uppercase())
}

/// Copies tolerations, except those of a cordon.
pub fn tolerations(nth: &NthValue<'_>) -> Conversion {
    let Some(list) = nth.value.as_array() else { return Conversion::wrong("a list of maps") };
    let is_cordon = |toleration: &Value| {
        let is = |field: &str, known: &str| {
            matches!(toleration[field].as_str(), None | Some("")) || toleration[field] == known
        };
        is("key", "node.kubernetes.io/unschedulable") && is("effect", "NoSchedule")
    };
    let kept: Vec<Value> = list.iter().filter(|toleration| !is_cordon(toleration)).cloned().collect();
    let differs = (kept.len() < list.len()).then(|| nth.row.remark.clone());
    let set = if kept.is_empty() { Conversion::default() } else { nth.set(kept) };
    set.differing(differs.as_slice())
}

/// Copies requests and limits. Missing ones are set to null: Helm would fill them in from our defaults, and a default limit could be less
/// than a copied request.
pub fn resources(nth: &NthValue<'_>) -> Conversion {
    let mut resources = match nth.value {
        Value::Object(map) if map.is_empty() => return Conversion::default(),
        Value::Object(map) => map.clone(),
        _ => return Conversion::wrong("a map"),
    };
    for (part, names) in RESOURCES {
        match resources.entry(part).or_insert(Value::Null) {
            Value::Object(given) if !given.is_empty() => {
                for name in names {
                    given.entry(*name).or_insert(Value::Null);
                }
            }
            empty @ (Value::Null | Value::Object(_)) => *empty = Value::Null,
            _ => return Conversion::wrong("a map of maps"),
        }
    }
    // In IMDS mode they are those of the DaemonSet.
    let path = &nth.row.ours[usize::from(nth.mode == Mode::Imds)];
    Conversion { settings: vec![(path.clone(), resources.into())], remark: None }
}

/// Converts the disruption budget of NTH's pods. One that never allows an eviction, rounded up as Kubernetes does, becomes one that does.
pub fn budget(nth: &NthValue<'_>) -> Conversion {
    let Some(map) = nth.value.as_object() else { return Conversion::wrong("a map") };
    let mut fields = map.iter();
    let Some((field, count)) = fields.next() else { return Conversion::default() };
    // Ebbtide's chart runs as many pods as NTH, unless that is NTH's default.
    let replicas = number(&nth.all["replicas"]).filter(|replicas| *replicas != 1).unwrap_or(2);
    let pods = count.as_u64().or_else(|| {
        let percent: u8 = count.as_str()?.strip_suffix('%')?.parse().ok()?;
        Some(u64::from(percent).saturating_mul(u64::try_from(replicas).unwrap_or_default()).div_ceil(100))
    });
    let path = nth.row.ours.iter().find(|path| path.rsplit('.').next() == Some(field));
    let (Some(pods), Some(path), None) = (pods, path, fields.next()) else { return nth.remark(Topic::Lost) };
    let lets_none_go = match u64::try_from(replicas) {
        Ok(replicas @ 1..) if field == "minAvailable" => pods > 0 && pods >= replicas,
        Ok(1..) => pods == 0,
        _ => false,
    };
    if lets_none_go {
        let differs = format!(
            "{field} lets none of {replicas} pods be evicted, and no drain of their nodes would end: the chart refuses it; maxUnavailable: 1 instead"
        );
        return nth.set(1).differing(&[differs]);
    }
    Conversion { settings: vec![(path.clone(), count.clone())], remark: None }
}
