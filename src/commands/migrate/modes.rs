//! Converters of values that depend on NTH's mode, on other values, or on the name of a variable.

use super::conversions::{if_on, same_number, switch, text, wrong};
use super::pods;
use super::row::{Conversion, NthValue};
use serde_json::json;

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
    let wanted = switch(&nth.all[group]["create"]) == Some(true);
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
    let on = |key: &str| nth.other(key).and_then(switch).unwrap_or_default();
    let (monitored, drained) = (on("enableRebalanceMonitoring"), on("enableRebalanceDraining"));
    nth.set(if drained {
        "drain"
    } else if monitored {
        "cordon"
    } else {
        "ignore"
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
