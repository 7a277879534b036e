//! Converters of single values.

pub use super::row::{is_empty, needless};

use super::row::{Conversion, NthValue, UNCORDON_AFTER};
use crate::cli::settings::MIN_HEARTBEAT_INTERVAL;
use serde_json::{Map, Value, json};
use std::time::Duration;

/// Maximum duration in seconds: the longest life of a hook.
const MAX_SECONDS: u64 = 48 * 3600;

/// Reads a switch, which Helm's `--set-string` makes a text.
pub fn switch(value: &Value) -> Option<bool> {
    value.as_bool().or_else(|| value.as_str()?.parse().ok())
}

/// Returns another switch of NTH, or its default there.
pub fn is_on(all: &Value, key: &str, default: bool) -> bool {
    switch(&all[key]).unwrap_or(default)
}

/// Reads a whole number, which Helm's `--set-string` makes a text.
pub fn number(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| value.as_str()?.trim().parse().ok())
}

/// Returns the result for a value of a wrong type.
pub fn wrong(wanted: &str) -> Conversion {
    Conversion::Lost(format!("is not {wanted}, which NTH requires; correct it and try again"))
}

/// Converts a value that Ebbtide does not have.
pub fn lost(nth: &NthValue<'_>) -> Conversion {
    if is_empty(nth.value) { Conversion::Nothing } else { nth.lost() }
}

/// Copies a text.
pub fn text(nth: &NthValue<'_>) -> Conversion {
    match nth.value {
        // An empty text differs from NTH's default.
        Value::String(text) if text.is_empty() => match nth.row.key {
            "priorityClassName" => nth.set(""),
            _ if nth.row.default == "null" => Conversion::Nothing,
            _ => Conversion::Lost("is empty, so Ebbtide's default applies".to_owned()),
        },
        Value::String(text) => nth.set(text.as_str()),
        Value::Number(number) => nth.set(number.to_string()),
        _ => wrong("a text"),
    }
}

/// Copies a switch.
pub fn same_switch(nth: &NthValue<'_>) -> Conversion {
    switch(nth.value).map_or_else(|| wrong("true or false"), |on| nth.set(on))
}

/// Copies a number.
pub fn same_number(nth: &NthValue<'_>) -> Conversion {
    match number(nth.value) {
        Some(number) if number >= 0 => nth.set(number),
        _ => wrong("a whole number"),
    }
}

/// Copies a map of texts.
pub fn texts(nth: &NthValue<'_>) -> Conversion {
    match text_map(nth.value) {
        Ok(texts) if texts.is_empty() => Conversion::Nothing,
        Ok(texts) => nth.set(texts),
        Err(wanted) => wrong(wanted),
    }
}

/// Reads a map of texts; the error names the required type. Like Helm, it drops null values.
pub fn text_map(value: &Value) -> Result<Map<String, Value>, &'static str> {
    let mut texts = Map::new();
    for (key, value) in value.as_object().ok_or("a map")? {
        match value {
            Value::Null => None,
            Value::String(_) => texts.insert(key.clone(), value.clone()),
            Value::Number(_) | Value::Bool(_) => texts.insert(key.clone(), value.to_string().into()),
            _ => return Err("a map of texts"),
        };
    }
    Ok(texts)
}

/// Copies a list of maps.
pub fn maps(nth: &NthValue<'_>) -> Conversion {
    match nth.value.as_array() {
        Some(list) if list.is_empty() => Conversion::Nothing,
        Some(list) if list.iter().all(Value::is_object) => nth.set(nth.value.clone()),
        _ => wrong("a list of maps"),
    }
}

/// Converts the name or the tag of NTH's image.
pub fn image(nth: &NthValue<'_>) -> Conversion {
    lost(nth)
}

/// Converts the limit of a drain. To NTH a number that is not positive is no limit.
pub fn limit(nth: &NthValue<'_>) -> Conversion {
    if number(nth.value).is_some_and(|seconds| seconds <= 0) {
        return Conversion::Lost(
            "sets no limit; without a limit a drain may use all the time that its notice allows".to_owned(),
        );
    }
    seconds(nth)
}

/// Converts seconds to a duration. A number that is not positive has no effect.
pub fn seconds(nth: &NthValue<'_>) -> Conversion {
    match number(nth.value) {
        Some(seconds) if seconds <= 0 => Conversion::Nothing,
        Some(seconds) => match duration(seconds) {
            Some(text) => nth.set(text),
            None => Conversion::Lost("is longer than 48 h, the maximum".to_owned()),
        },
        None => wrong("a number of seconds"),
    }
}

fn duration(seconds: i64) -> Option<String> {
    let seconds = u64::try_from(seconds).ok().filter(|seconds| (1..=MAX_SECONDS).contains(seconds))?;
    Some(format!("{seconds}s"))
}

/// Converts the grace period of all pods.
pub fn pod_grace(nth: &NthValue<'_>) -> Conversion {
    match number(nth.value) {
        Some(0) => Conversion::Lost(
            "0 would let two pods of a StatefulSet run at once, so Ebbtide does not allow it; choose 1 or more"
                .to_owned(),
        ),
        Some(seconds) if seconds > 24 * 3600 => Conversion::Lost("is longer than 24 h, the maximum".to_owned()),
        _ => seconds(nth),
    }
}

/// Converts the time for which heartbeats are sent. The end of the drain ends them as well.
pub fn heartbeat_until(nth: &NthValue<'_>) -> Conversion {
    let drain = nth.other("nodeTerminationGracePeriod").and_then(number).filter(|seconds| *seconds > 0);
    match (number(nth.value), drain) {
        (Some(until), Some(drain)) if until >= drain => Conversion::Needless,
        _ => seconds(nth),
    }
}

/// Converts the switch that cordons without a drain, for all kinds of NTH's notices: in IMDS mode those that are switched on.
pub fn cordon_only(nth: &NthValue<'_>) -> Conversion {
    let is_on = |key, default| is_on(nth.all, key, default);
    let hears = |path: &&&str| {
        nth.queue
            || match **path {
                "actions.asgTerminate" => is_on("enableASGLifecycleDraining", true),
                "actions.spot" => is_on("enableSpotInterruptionDraining", true),
                "actions.scheduledChange" => is_on("enableScheduledEventDraining", true),
                "actions.rebalance" => {
                    is_on("enableRebalanceMonitoring", false) || is_on("enableRebalanceDraining", false)
                }
                _ => false,
            }
    };
    match switch(nth.value) {
        Some(false) => Conversion::Nothing,
        None => wrong("true or false"),
        Some(true) => {
            let kinds = nth.row.to.iter().filter(|to| **to != UNCORDON_AFTER).filter(hears);
            let mut on: Vec<_> = kinds.map(|to| ((*to).to_owned(), json!("cordon"))).collect();
            if on.iter().any(|(path, _)| path == "actions.rebalance") {
                on.push((UNCORDON_AFTER.to_owned(), json!("0s")));
            }
            if nth.queue { nth.differs(on) } else { Conversion::Set(on) }
        }
    }
}

/// Converts NTH's taint for each kind to one taint for all kinds.
pub fn taint(nth: &NthValue<'_>) -> Conversion {
    match switch(nth.value) {
        Some(false) => Conversion::Nothing,
        None => wrong("true or false"),
        Some(true) => {
            let env = |name: &str| {
                let list = nth.other("extraEnv")?.as_array()?;
                list.iter().find(|env| env["name"] == name)?["value"].as_str()
            };
            // The API server rejects any other effect.
            let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
            let effect = env("TAINT_EFFECT").filter(|effect| effects.contains(effect)).unwrap_or(effects[0]);
            let taint = format!("ebbtide/going:{effect}");
            Conversion::Differs(vec![(nth.row.to[0].to_owned(), json!([taint]))], nth.row.why.to_owned())
        }
    }
}

/// Converts the switch that lets pods with an emptyDir be evicted. Ours is inverted.
pub fn local_data(nth: &NthValue<'_>) -> Conversion {
    match switch(nth.value) {
        Some(true) => Conversion::Nothing,
        Some(false) => nth.differs(nth.setting(true).into_iter().collect()),
        None => wrong("true or false"),
    }
}

/// Copies a switch that is off by default on both sides.
pub fn if_on(nth: &NthValue<'_>) -> Conversion {
    switch(nth.value).map_or_else(|| wrong("true or false"), |on| if on { nth.set(true) } else { Conversion::Nothing })
}

/// Converts the switch for JSON logs.
pub fn json_logs(nth: &NthValue<'_>) -> Conversion {
    switch(nth.value)
        .map_or_else(|| wrong("true or false"), |on| if on { nth.set("json") } else { Conversion::Nothing })
}

/// Converts the log level.
pub fn log_level(nth: &NthValue<'_>) -> Conversion {
    let level = nth.value.as_str().unwrap_or_default().to_lowercase();
    if ["info", "debug", "error"].contains(&level.as_str()) { nth.set(level) } else { wrong("info, debug or error") }
}

/// Converts the switch for Events.
pub fn events(nth: &NthValue<'_>) -> Conversion {
    switch(nth.value).map_or_else(|| wrong("true or false"), |on| nth.set(if on { "all" } else { "none" }))
}

/// Converts the interval between heartbeats.
pub fn heartbeat(nth: &NthValue<'_>) -> Conversion {
    match number(nth.value) {
        Some(seconds) if seconds > 3600 => wrong("a number of seconds up to 3600"),
        Some(seconds @ 1..) if Duration::from_secs(seconds.unsigned_abs()) < MIN_HEARTBEAT_INTERVAL => {
            let shortest = MIN_HEARTBEAT_INTERVAL.as_secs();
            Conversion::Lost(format!(
                "is shorter than {shortest} s, so AWS would throttle the account; choose {shortest} or more"
            ))
        }
        _ => seconds(nth),
    }
}

/// Converts the delay of a completion, which has an effect only if hooks are completed.
pub fn complete_after(nth: &NthValue<'_>) -> Conversion {
    match seconds(nth) {
        Conversion::Set(_) if is_on(nth.all, "cordonOnly", false) => {
            Conversion::Lost("with cordonOnly no hook is completed, so there is nothing to delay".to_owned())
        }
        Conversion::Set(_) if !nth.queue => Conversion::Lost(
            "no hook is completed until settings.nodeHook names it; set settings.completeAfter then".to_owned(),
        ),
        other => other,
    }
}

/// Converts the key of the managed tag. Ours reads a `=` as the end of the key.
pub fn managed_tag(nth: &NthValue<'_>) -> Conversion {
    if nth.value.as_str().is_some_and(|tag| tag.contains('=')) {
        return Conversion::Lost(
            "has a = in its key, which settings.managedTag reads as KEY=VALUE; choose another tag".to_owned(),
        );
    }
    text(nth)
}

/// Copies the annotations of the service account, such as its role.
pub fn account_annotations(nth: &NthValue<'_>) -> Conversion {
    match texts(nth) {
        Conversion::Set(set) if nth.value.get("eks.amazonaws.com/role-arn").is_some() => nth.differs(set),
        other => other,
    }
}

/// Copies tolerations, except those of a cordon.
pub fn tolerations(nth: &NthValue<'_>) -> Conversion {
    let Some(list) = nth.value.as_array() else { return wrong("a list of maps") };
    let cordon = |toleration: &&Value| {
        let key = toleration["key"].as_str().unwrap_or_default();
        let effect = toleration["effect"].as_str().unwrap_or_default();
        (key.is_empty() || key == "node.kubernetes.io/unschedulable") && (effect.is_empty() || effect == "NoSchedule")
    };
    let kept: Vec<Value> = list.iter().filter(|toleration| !cordon(toleration)).cloned().collect();
    let set = if kept.is_empty() { Vec::new() } else { vec![(nth.row.to[0].to_owned(), json!(kept))] };
    if kept.len() == list.len() { Conversion::Set(set) } else { nth.differs(set) }
}

/// Converts the disruption budget of NTH's pods.
pub fn budget(nth: &NthValue<'_>) -> Conversion {
    let Some(map) = nth.value.as_object() else { return wrong("a map") };
    let percent = |text: &str| text.strip_suffix('%').is_some_and(|number| number.parse::<u8>().is_ok());
    let mut fields = map.iter();
    match (fields.next(), fields.next()) {
        (None, _) => Conversion::Nothing,
        (Some((field, count)), None) if count.is_u64() || count.as_str().is_some_and(percent) => {
            let ours = nth.row.to.iter().find(|to| to.rsplit('.').next() == Some(field));
            match ours {
                None => nth.lost(),
                Some(_) if lets_none_go(field, count, replicas(nth)) => Conversion::Differs(
                    vec![(nth.row.to[0].to_owned(), json!(1))],
                    format!(
                        "{field} lets none of {} pods be evicted, and no drain of their nodes would end: the chart refuses it; maxUnavailable: 1 instead",
                        replicas(nth)
                    ),
                ),
                Some(to) => Conversion::Set(vec![((*to).to_owned(), count.clone())]),
            }
        }
        _ => nth.lost(),
    }
}

/// Returns the number of pods that Ebbtide's chart will run: NTH's, unless that is its default.
fn replicas(nth: &NthValue<'_>) -> i64 {
    nth.other("replicas").and_then(number).filter(|replicas| *replicas != 1).unwrap_or(2)
}

/// Whether a disruption budget, which rounds up, never allows an eviction.
fn lets_none_go(field: &str, count: &Value, replicas: i64) -> bool {
    let percent =
        count.as_str().and_then(|text| text.strip_suffix('%')).and_then(|percent| percent.parse::<i64>().ok());
    let pods = percent.map_or_else(
        || count.as_i64().unwrap_or(i64::MAX),
        |percent| percent.saturating_mul(replicas).saturating_add(99) / 100,
    );
    replicas > 0 && if field == "minAvailable" { pods > 0 && pods >= replicas } else { pods == 0 }
}

/// Converts the grace period of NTH's own pod.
pub fn own_grace(nth: &NthValue<'_>) -> Conversion {
    match number(nth.value) {
        Some(seconds) if seconds >= 15 => nth.set(seconds),
        Some(_) => nth.lost(),
        None => wrong("a number of seconds"),
    }
}

/// Converts the out-of-service taint, which Ebbtide sets at another time.
pub fn out_of_service(nth: &NthValue<'_>) -> Conversion {
    match if_on(nth) {
        Conversion::Set(_) if !nth.queue => {
            Conversion::Lost("EC2's state changes trigger the taint, and without a queue none come".to_owned())
        }
        Conversion::Set(set) => nth.differs(set),
        other => other,
    }
}

/// Checks the switch for queue mode, which `convert` reads itself.
pub fn queue_mode(nth: &NthValue<'_>) -> Conversion {
    if switch(nth.value).is_some() { Conversion::Nothing } else { wrong("true or false") }
}
