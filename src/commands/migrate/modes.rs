//! Converters of values that depend on NTH's mode, on other values, or on the name of a variable.

use super::conversions::{
    if_on, is_empty, is_on, maps, needless, same_number, same_switch, switch, text, texts, wrong,
};
use super::pods;
use super::row::{Conversion, NthValue, UNCORDON_AFTER};
use serde_json::{Value, json};

/// Converts a value of the `PodMonitor`, which NTH creates only in IMDS mode.
pub fn pod_monitor(nth: &NthValue<'_>) -> Conversion {
    if nth.queue { other_mode(nth) } else { monitor(nth) }
}

/// Converts a value of the `ServiceMonitor`, which NTH creates only in queue mode.
pub fn service_monitor(nth: &NthValue<'_>) -> Conversion {
    if nth.queue { monitor(nth) } else { other_mode(nth) }
}

fn other_mode(nth: &NthValue<'_>) -> Conversion {
    if nth.row.key.ends_with(".create") { Conversion::Needless } else { Conversion::Nothing }
}

fn monitor(nth: &NthValue<'_>) -> Conversion {
    let group = nth.row.key.split('.').next().unwrap_or_default();
    let wanted = is_on(&nth.all[group], "create", false);
    match nth.row.key.rsplit('.').next() {
        Some("create") => if_on(nth),
        _ if !wanted => Conversion::Nothing,
        Some("labels") => pods::labels(nth),
        Some("sampleLimit") => same_number(nth),
        _ => text(nth),
    }
}

/// Converts a switch for one kind of notice, which NTH reads only in IMDS mode.
pub fn imds_kind(nth: &NthValue<'_>) -> Conversion {
    if nth.queue {
        return Conversion::Needless;
    }
    switch(nth.value).map_or_else(|| wrong("true or false"), |on| nth.set(if on { "drain" } else { "ignore" }))
}

/// Converts the action for a rebalance recommendation in IMDS mode: ignore, cordon or drain.
pub fn imds_rebalance(nth: &NthValue<'_>) -> Conversion {
    if nth.queue {
        return Conversion::Needless;
    }
    let on = |key| is_on(nth.all, key, false);
    let (monitored, drained) = (on("enableRebalanceMonitoring"), on("enableRebalanceDraining"));
    match (drained, monitored) {
        (true, _) => nth.set("drain"),
        (false, false) => nth.set("ignore"),
        (false, true) => {
            let mut set: Vec<_> = nth.setting("cordon").into_iter().collect();
            set.push((UNCORDON_AFTER.to_owned(), json!("0s")));
            Conversion::Set(set)
        }
    }
}

/// Converts the URL of the queue, which the chart checks in the same way.
pub fn queue_url(nth: &NthValue<'_>) -> Conversion {
    let path = |url: &str| {
        let (_, path) = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"))?.split_once('/')?;
        path.chars().find(|c| *c != '/')
    };
    match text(nth) {
        Conversion::Set(set) if nth.value.as_str().and_then(path).is_none() => nth.differs(set),
        other => other,
    }
}

/// Converts the switch for the node's network.
pub fn agent_network(nth: &NthValue<'_>) -> Conversion {
    if nth.queue { needless(nth) } else { same_switch(nth) }
}

/// Converts the priority class of NTH's DaemonSet.
pub fn agent_priority(nth: &NthValue<'_>) -> Conversion {
    match nth.value {
        _ if nth.queue => needless(nth),
        Value::String(name) => nth.set(name.as_str()),
        _ => wrong("a text"),
    }
}

/// Converts the address of the metadata. The agent takes one without a path.
pub fn agent_metadata(nth: &NthValue<'_>) -> Conversion {
    let host = |url: &str| url.strip_prefix("http://").map(|host| host.trim_end_matches('/').to_owned());
    match nth.value.as_str() {
        _ if nth.queue => needless(nth),
        Some("") => Conversion::Nothing,
        Some(url) => match host(url).filter(|host| !host.is_empty() && !host.contains('/')) {
            Some(host) => nth.set(format!("http://{host}")),
            None => Conversion::Lost("is not http://HOST, which the agent requires".to_owned()),
        },
        None => wrong("a text"),
    }
}

/// Converts labels of the nodes that have a pod of NTH's DaemonSet.
pub fn agent_selector(nth: &NthValue<'_>) -> Conversion {
    if nth.queue || is_covered(nth, "nodeSelector") { of_other_key(nth) } else { texts(nth) }
}

/// Copies labels of the pods of NTH's DaemonSet on Linux.
pub fn agent_labels(nth: &NthValue<'_>) -> Conversion {
    if nth.queue { needless(nth) } else { pods::labels(nth) }
}

/// Copies annotations of the pods of NTH's DaemonSet on Linux.
pub fn agent_annotations(nth: &NthValue<'_>) -> Conversion {
    if nth.queue { needless(nth) } else { pods::annotations(nth) }
}

/// Copies a map about NTH's DaemonSet.
pub fn agent_map(nth: &NthValue<'_>) -> Conversion {
    match nth.value {
        _ if nth.queue || nth.row.key.ends_with("Affinity") && is_covered(nth, "affinity") => of_other_key(nth),
        Value::Object(map) if map.is_empty() => Conversion::Nothing,
        Value::Object(map) => nth.set(map.clone()),
        _ => wrong("a map"),
    }
}

/// Converts taints that the pods of NTH's DaemonSet tolerate.
pub fn agent_tolerations(nth: &NthValue<'_>) -> Conversion {
    match nth.value.as_array() {
        _ if nth.queue || is_covered(nth, "tolerations") => of_other_key(nth),
        // Without any, ours would be all.
        Some(list) if list.is_empty() && nth.row.key.starts_with("daemonset") => nth.set(nth.value.clone()),
        _ => maps(nth),
    }
}

fn of_other_key(nth: &NthValue<'_>) -> Conversion {
    if nth.queue { needless(nth) } else { Conversion::Nothing }
}

/// Whether another value takes precedence: `linux…`, then the value for both modes, then `daemonset…`.
fn is_covered(nth: &NthValue<'_>, common: &str) -> bool {
    let given = |key: &str| !is_empty(&nth.all[key]);
    nth.row.key.starts_with("daemonset") && (given(common) || given(&pods::linux(common)))
}

/// Whether a termination by a group drains its node in IMDS mode.
pub fn drains_terminations(all: &Value) -> bool {
    is_on(all, "enableASGLifecycleDraining", true) && !is_on(all, "cordonOnly", false)
}

/// Where the agent's pods run by NTH's values for both modes: our value, its name, and NTH's name.
pub fn agent_pods(all: &Value) -> impl Iterator<Item = (&Value, String, &'static str)> {
    let keys = ["nodeSelector", "tolerations", "affinity"];
    let given = keys.into_iter().filter(|key| is_empty(&all[pods::linux(key)]));
    given.map(|key| (&all[key], format!("agent.{key}"), key)).filter(|(value, _, key)| match *key {
        "tolerations" => value.as_array().is_some_and(|list| !list.is_empty() && list.iter().all(Value::is_object)),
        "affinity" => value.as_object().is_some_and(|map| !map.is_empty()),
        _ => value.as_object().is_some_and(|map| !map.is_empty() && map.values().all(Value::is_string)),
    })
}

/// NTH's own variables that Ebbtide does not need.
const NEEDLESS_ENV: [&str; 4] = ["KUBE_API_QPS", "KUBE_API_BURST", "USE_APISERVER_CACHE", "TAINT_EFFECT"];

/// Prefixes of the variables of libraries that have the same effect on Ebbtide.
const LIBRARY_ENV: [&str; 9] =
    ["AWS_", "SSL_CERT_", "TZ", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"];

/// Variables with such a prefix that are left out: our settings replace the first two, and the SDK for Rust reads `SSL_CERT_FILE` instead
/// of the third.
const IGNORED_ENV: [&str; 3] = ["AWS_REGION", "AWS_ENDPOINT", "AWS_CA_BUNDLE"];

/// Copies environment variables, except NTH's own.
pub fn extra_env(nth: &NthValue<'_>) -> Conversion {
    let Some(list) = nth.value.as_array() else { return wrong("a list of maps") };
    let (mut kept, mut left, mut remarks) = (Vec::new(), Vec::new(), Vec::new());
    for env in list {
        let name = env["name"].as_str().unwrap_or_default();
        let ours = LIBRARY_ENV.iter().any(|begin| name.starts_with(begin)) && !IGNORED_ENV.contains(&name);
        let from = &env["valueFrom"];
        // A resourceFieldRef may name NTH's container, which our pods don't have.
        let plain = env["value"].is_string() || from.is_object() && from["resourceFieldRef"].is_null();
        if ours && plain {
            if from["secretKeyRef"].is_object() || from["configMapKeyRef"].is_object() {
                remarks.push(format!("the source of {name} must exist in Ebbtide's namespace as well"));
            }
            kept.push(env.clone());
        } else if !NEEDLESS_ENV.contains(&name) {
            left.push(if name.is_empty() { "a variable without a name" } else { name });
        }
    }
    let set = if kept.is_empty() { Vec::new() } else { vec![(nth.row.to[0].to_owned(), json!(kept))] };
    if !left.is_empty() {
        remarks.push(format!("{} left out: {}", left.join(", "), nth.row.why));
    }
    if remarks.is_empty() { Conversion::Set(set) } else { Conversion::Differs(set, remarks.join("; ")) }
}
