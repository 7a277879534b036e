//! What becomes of one value.

use super::rows::Row;
use crate::cli::settings::SHORTEST_HEARTBEAT;
use serde_json::{Map, Value, json};
use std::time::Duration;

/// A value of NTH's, and all that stands around it.
pub struct Asked<'a> {
    /// All values.
    pub nth: &'a Value,
    /// Whether they are for queue mode.
    pub queue: bool,
    /// What the table says of this one.
    pub row: &'static Row,
    /// The value.
    pub value: &'a Value,
}

/// What became of it.
pub enum Became {
    /// These values of ours.
    Set(Vec<(String, Value)>),
    /// Nothing: it says what is so anyway.
    Nothing,
    /// These values of ours, which do not do quite the same.
    Differs(Vec<(String, Value)>, String),
    /// Nothing, though something was asked for.
    Lost(String),
    /// Nothing: there is no need of it here.
    Needless,
}

/// How a value is carried over.
pub type How = fn(&Asked<'_>) -> Became;

/// A hook lives 48 h at the longest, and so do our durations.
const LONGEST: u64 = 48 * 3600;

impl Asked<'_> {
    /// Whether it is what NTH's chart says by itself.
    pub fn is_default(&self) -> bool {
        serde_json::from_str(self.row.default).is_ok_and(|default: Value| default == *self.value)
    }

    /// Another value of NTH's, where it is given.
    pub fn other(&self, key: &str) -> Option<&Value> {
        self.nth.get(key).filter(|value| !value.is_null())
    }

    pub fn set(&self, value: impl Into<Value>) -> Became {
        self.row.to.first().map_or(Became::Nothing, |to| Became::Set(vec![((*to).to_owned(), value.into())]))
    }

    fn lost(&self) -> Became {
        Became::Lost(self.row.why.to_owned())
    }
}

/// A switch, which `--set-string` makes a text.
pub fn switch(value: &Value) -> Option<bool> {
    value.as_bool().or_else(|| value.as_str()?.parse().ok())
}

/// A whole number, which `--set-string` makes a text.
pub fn number(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| value.as_str()?.trim().parse().ok())
}

/// What is not even a value for NTH.
pub fn wrong(wanted: &str) -> Became {
    Became::Lost(format!("is not {wanted}, which NTH wants here; mend it, and try again"))
}

/// Something that Ebbtide does not have.
pub fn lost(asked: &Asked<'_>) -> Became {
    if is_empty(asked.value) { Became::Nothing } else { asked.lost() }
}

/// Something that Ebbtide has no need of.
pub fn needless(_: &Asked<'_>) -> Became {
    Became::Needless
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

/// A text, as it is.
pub fn text(asked: &Asked<'_>) -> Became {
    match asked.value {
        // Said on purpose, where NTH's default is another.
        Value::String(text) if text.is_empty() => match asked.row.key {
            "priorityClassName" => asked.set(""),
            _ if asked.row.default == "null" => Became::Nothing,
            _ => Became::Lost("is empty, which says nothing here: Ebbtide's default applies".to_owned()),
        },
        Value::String(text) => asked.set(text.as_str()),
        Value::Number(number) => asked.set(number.to_string()),
        _ => wrong("a text"),
    }
}

/// A switch, as it is.
pub fn same_switch(asked: &Asked<'_>) -> Became {
    switch(asked.value).map_or_else(|| wrong("true or false"), |on| asked.set(on))
}

/// A number, as it is.
pub fn same_number(asked: &Asked<'_>) -> Became {
    match number(asked.value) {
        Some(number) if number >= 0 => asked.set(number),
        _ => wrong("a whole number"),
    }
}

/// A map of texts, as it is.
pub fn texts(asked: &Asked<'_>) -> Became {
    match text_map(asked.value) {
        Ok(texts) if texts.is_empty() => Became::Nothing,
        Ok(texts) => asked.set(texts),
        Err(wanted) => wrong(wanted),
    }
}

/// A value as a map of texts; else what it should be. What is null says nothing, as to Helm.
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

/// A list of maps, as it is.
pub fn maps(asked: &Asked<'_>) -> Became {
    match asked.value.as_array() {
        Some(list) if list.is_empty() => Became::Nothing,
        Some(list) if list.iter().all(Value::is_object) => asked.set(asked.value.clone()),
        _ => wrong("a list of maps"),
    }
}

/// What an image is called and how it is tagged: NTH's image is of no use.
pub fn image(asked: &Asked<'_>) -> Became {
    lost(asked)
}

/// How long a drain may take; what is not positive is no limit to NTH.
pub fn limit(asked: &Asked<'_>) -> Became {
    if number(asked.value).is_some_and(|seconds| seconds <= 0) {
        return Became::Lost("sets no limit; without one of ours a drain takes what its notice allows".to_owned());
    }
    seconds(asked)
}

/// Seconds as a duration; what is not positive asks for nothing.
pub fn seconds(asked: &Asked<'_>) -> Became {
    match number(asked.value) {
        Some(seconds) if seconds <= 0 => Became::Nothing,
        Some(seconds) => match duration(seconds) {
            Some(text) => asked.set(text),
            None => Became::Lost("is longer than 48 h, which is the most".to_owned()),
        },
        None => wrong("a number of seconds"),
    }
}

fn duration(seconds: i64) -> Option<String> {
    let seconds = u64::try_from(seconds).ok().filter(|seconds| (1..=LONGEST).contains(seconds))?;
    Some(format!("{seconds}s"))
}

/// Every pod's grace period.
pub fn pod_grace(asked: &Asked<'_>) -> Became {
    match number(asked.value) {
        Some(0) => Became::Lost(
            "0 would let two pods of a StatefulSet run at once; Ebbtide never sends it: choose 1 or more".to_owned(),
        ),
        Some(seconds) if seconds > 24 * 3600 => Became::Lost("is longer than 24 h, which is the most".to_owned()),
        _ => seconds(asked),
    }
}

/// How long heartbeats go on. A drain that ends before them ends them, too.
pub fn heartbeat_until(asked: &Asked<'_>) -> Became {
    let drain = asked.other("nodeTerminationGracePeriod").and_then(number).filter(|seconds| *seconds > 0);
    match (number(asked.value), drain) {
        (Some(until), Some(drain)) if until >= drain => Became::Needless,
        _ => seconds(asked),
    }
}

/// Whether all kinds are cordoned only.
pub fn cordon_only(asked: &Asked<'_>) -> Became {
    match switch(asked.value) {
        Some(false) => Became::Nothing,
        None => wrong("true or false"),
        Some(true) => {
            let on = asked.row.to.iter().map(|to| ((*to).to_owned(), json!("cordon"))).collect();
            Became::Differs(on, asked.row.why.to_owned())
        }
    }
}

/// A taint for all kinds, in the place of one for each.
pub fn taint(asked: &Asked<'_>) -> Became {
    match switch(asked.value) {
        Some(false) => Became::Nothing,
        None => wrong("true or false"),
        Some(true) => {
            let env = |name: &str| {
                let list = asked.other("extraEnv")?.as_array()?;
                list.iter().find(|env| env["name"] == name)?["value"].as_str()
            };
            // Anything else is no effect, and would be refused.
            let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
            let effect = env("TAINT_EFFECT").filter(|effect| effects.contains(effect)).unwrap_or(effects[0]);
            let taint = format!("ebbtide/going:{effect}");
            Became::Differs(vec![(asked.row.to[0].to_owned(), json!([taint]))], asked.row.why.to_owned())
        }
    }
}

/// A switch whose other side is the default here: what `to` says is set where NTH's is off.
pub fn turned(asked: &Asked<'_>) -> Became {
    switch(asked.value).map_or_else(|| wrong("true or false"), |on| if on { Became::Nothing } else { asked.set(true) })
}

/// A switch that is off by default on both sides.
pub fn if_on(asked: &Asked<'_>) -> Became {
    switch(asked.value).map_or_else(|| wrong("true or false"), |on| if on { asked.set(true) } else { Became::Nothing })
}

/// Whether logs are JSON.
pub fn json_logs(asked: &Asked<'_>) -> Became {
    switch(asked.value)
        .map_or_else(|| wrong("true or false"), |on| if on { asked.set("json") } else { Became::Nothing })
}

/// The level of logs.
pub fn log_level(asked: &Asked<'_>) -> Became {
    let level = asked.value.as_str().unwrap_or_default().to_lowercase();
    if ["info", "debug", "error"].contains(&level.as_str()) { asked.set(level) } else { wrong("info, debug or error") }
}

/// Which Events are written.
pub fn events(asked: &Asked<'_>) -> Became {
    switch(asked.value).map_or_else(|| wrong("true or false"), |on| asked.set(if on { "all" } else { "none" }))
}

/// How often heartbeats are sent.
pub fn heartbeat(asked: &Asked<'_>) -> Became {
    match number(asked.value) {
        Some(seconds) if seconds > 3600 => wrong("a number of seconds up to 3600"),
        Some(seconds @ 1..) if Duration::from_secs(seconds.unsigned_abs()) < SHORTEST_HEARTBEAT => {
            let shortest = SHORTEST_HEARTBEAT.as_secs();
            Became::Lost(format!("is shorter than {shortest} s, and would be throttled; choose {shortest} or more"))
        }
        _ => seconds(asked),
    }
}

/// How long a completion is held back: only where there is one.
pub fn complete_after(asked: &Asked<'_>) -> Became {
    let is = |key: &str, wanted: bool| asked.other(key).and_then(switch) == Some(wanted);
    match seconds(asked) {
        Became::Set(_) if is("cordonOnly", true) => {
            Became::Lost("with cordonOnly no hook is completed, so nothing can be held back".to_owned())
        }
        // As [`imds_kind`](super::modes::imds_kind) says.
        Became::Set(_) if !asked.queue && is("enableASGLifecycleDraining", false) => Became::Lost(
            "without enableASGLifecycleDraining no hook is completed, so nothing can be held back".to_owned(),
        ),
        became => became,
    }
}

/// The tag by its key; with `=` ours would be a key and a value.
pub fn managed_tag(asked: &Asked<'_>) -> Became {
    if asked.value.as_str().is_some_and(|tag| tag.contains('=')) {
        return Became::Lost(
            "has a = in its key, which settings.managedTag reads as KEY=VALUE; choose another tag".to_owned(),
        );
    }
    text(asked)
}

/// Annotations of the service account, of which one names a role.
pub fn account_annotations(asked: &Asked<'_>) -> Became {
    match texts(asked) {
        Became::Set(set) if asked.value.get("eks.amazonaws.com/role-arn").is_some() => {
            Became::Differs(set, asked.row.why.to_owned())
        }
        became => became,
    }
}

/// Tolerations, but for those of a cordon.
pub fn tolerations(asked: &Asked<'_>) -> Became {
    let Some(list) = asked.value.as_array() else { return wrong("a list of maps") };
    let cordon = |toleration: &&Value| {
        let key = toleration["key"].as_str().unwrap_or_default();
        let effect = toleration["effect"].as_str().unwrap_or_default();
        (key.is_empty() || key == "node.kubernetes.io/unschedulable") && (effect.is_empty() || effect == "NoSchedule")
    };
    let kept: Vec<Value> = list.iter().filter(|toleration| !cordon(toleration)).cloned().collect();
    let set = if kept.is_empty() { Vec::new() } else { vec![(asked.row.to[0].to_owned(), json!(kept))] };
    if kept.len() == list.len() { Became::Set(set) } else { Became::Differs(set, asked.row.why.to_owned()) }
}

/// The pods' disruption budget.
pub fn budget(asked: &Asked<'_>) -> Became {
    let Some(map) = asked.value.as_object() else { return wrong("a map") };
    let most = &asked.value["maxUnavailable"];
    let percent = |text: &str| text.strip_suffix('%').is_some_and(|number| number.parse::<u8>().is_ok());
    match map.len() {
        0 => Became::Nothing,
        1 if most.is_u64() || most.as_str().is_some_and(percent) => asked.set(most.clone()),
        _ => asked.lost(),
    }
}

/// The pod's own grace period.
pub fn own_grace(asked: &Asked<'_>) -> Became {
    match number(asked.value) {
        Some(seconds) if seconds >= 15 => asked.set(seconds),
        Some(_) => asked.lost(),
        None => wrong("a number of seconds"),
    }
}

/// The taint for pods of nodes that are gone: not at the same moment.
pub fn out_of_service(asked: &Asked<'_>) -> Became {
    match if_on(asked) {
        Became::Set(set) => Became::Differs(set, asked.row.why.to_owned()),
        became => became,
    }
}

/// Which mode it is: that is looked at before all.
pub fn queue_mode(asked: &Asked<'_>) -> Became {
    if switch(asked.value).is_some() { Became::Nothing } else { wrong("true or false") }
}
