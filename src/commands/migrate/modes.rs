//! What becomes of a value that depends on others: on the mode, on its neighbours, on what a variable is called.

use super::conversions::{Asked, Became, if_on, lost, switch, text, wrong};
use super::pods;
use serde_json::json;

/// The monitor of the mode that NTH is in; of the other mode there is none.
pub fn pod_monitor(asked: &Asked<'_>) -> Became {
    if asked.queue { other_mode(asked) } else { monitor(asked) }
}

/// As [`pod_monitor`].
pub fn service_monitor(asked: &Asked<'_>) -> Became {
    if asked.queue { monitor(asked) } else { other_mode(asked) }
}

fn other_mode(asked: &Asked<'_>) -> Became {
    if asked.row.key.ends_with(".create") { Became::Needless } else { Became::Nothing }
}

fn monitor(asked: &Asked<'_>) -> Became {
    let group = asked.row.key.split('.').next().unwrap_or_default();
    let wanted = switch(&asked.nth[group]["create"]) == Some(true);
    match asked.row.key.rsplit('.').next() {
        Some("create") => if_on(asked),
        _ if !wanted => Became::Nothing,
        Some("labels") => pods::labels(asked),
        Some("interval") => text(asked),
        _ => lost(asked),
    }
}

/// What NTH's IMDS mode does at a kind of notice; its queue mode does not ask.
pub fn imds_kind(asked: &Asked<'_>) -> Became {
    if asked.queue {
        return Became::Needless;
    }
    switch(asked.value).map_or_else(|| wrong("true or false"), |on| asked.set(if on { "drain" } else { "ignore" }))
}

/// A rebalance recommendation in IMDS mode is ignored, cordoned or drained.
pub fn imds_rebalance(asked: &Asked<'_>) -> Became {
    if asked.queue {
        return Became::Needless;
    }
    let on = |key: &str| asked.other(key).and_then(switch).unwrap_or_default();
    let (monitored, drained) = (on("enableRebalanceMonitoring"), on("enableRebalanceDraining"));
    asked.set(if drained {
        "drain"
    } else if monitored {
        "cordon"
    } else {
        "ignore"
    })
}

/// Variables of NTH's own that are more than a second spelling of a value.
const NEEDLESS_ENV: [&str; 4] = ["KUBE_API_QPS", "KUBE_API_BURST", "USE_APISERVER_CACHE", "TAINT_EFFECT"];

/// Variables of other programs and libraries that mean the same here, by how they begin.
const OTHERS_ENV: [&str; 9] =
    ["AWS_", "SSL_CERT_", "TZ", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"];

/// What of these does not: settings of ours say the first two, and the SDK for Rust does not read the third (`SSL_CERT_FILE` is read).
const NOT_READ: [&str; 3] = ["AWS_REGION", "AWS_ENDPOINT", "AWS_CA_BUNDLE"];

/// More environment variables: NTH's own mean nothing here.
pub fn extra_env(asked: &Asked<'_>) -> Became {
    let Some(list) = asked.value.as_array() else { return wrong("a list of maps") };
    let (mut kept, mut left, mut remarks) = (Vec::new(), Vec::new(), Vec::new());
    for env in list {
        let name = env["name"].as_str().unwrap_or_default();
        let ours = OTHERS_ENV.iter().any(|begin| name.starts_with(begin)) && !NOT_READ.contains(&name);
        let from = &env["valueFrom"];
        // This one may name NTH's container, which our pods don't have.
        let plain = env["value"].is_string() || from.is_object() && from["resourceFieldRef"].is_null();
        if ours && plain {
            if from["secretKeyRef"].is_object() || from["configMapKeyRef"].is_object() {
                remarks.push(format!("what {name} is read from must be in Ebbtide's namespace, too"));
            }
            kept.push(env.clone());
        } else if !NEEDLESS_ENV.contains(&name) {
            left.push(if name.is_empty() { "one without a name" } else { name });
        }
    }
    let set = if kept.is_empty() { Vec::new() } else { vec![(asked.row.to[0].to_owned(), json!(kept))] };
    if !left.is_empty() {
        remarks.push(format!("{} left out: {}", left.join(", "), asked.row.why));
    }
    if remarks.is_empty() { Became::Set(set) } else { Became::Differs(set, remarks.join("; ")) }
}
