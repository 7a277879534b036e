//! The converters, and those of single values.

use super::Topic;
use super::pods;
use super::selectors;
use super::table::{Env, How, Mode, table};
use super::value::{Conversion, NthValue, is_empty, number, switch, texts};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Maximum duration in seconds: the longest life of a hook.
const MAX_SECONDS: i64 = 48 * 3600;

impl How {
    /// Converts a value.
    pub fn convert(&self, nth: &NthValue<'_>) -> Conversion {
        match self {
            Self::Lost if is_empty(nth.value) => Conversion::default(),
            Self::Lost => nth.remark(Topic::Lost),
            Self::Needless => nth.remark(Topic::Needless),
            Self::TextOrEmpty if nth.value == "" => nth.set(""),
            Self::Text | Self::TextOrEmpty => text(nth),
            Self::Word(words) => word(nth, words),
            Self::Switch { on, off } => either(nth, on, off),
            Self::Number(name) => match number(nth.value) {
                Some(number @ 0..) => nth.set(number),
                _ => Conversion::wrong(name),
            },
            Self::Seconds => match number(nth.value) {
                Some(..=0) => Conversion::default(),
                Some(seconds @ 1..=MAX_SECONDS) => nth.set(format!("{seconds}s")),
                Some(_) => Conversion::of(Topic::Lost, "is longer than 48 h, the maximum"),
                None => Conversion::wrong("a number of seconds"),
            },
            Self::Texts => match texts(nth.value) {
                Ok(texts) if texts.is_empty() => Conversion::default(),
                Ok(texts) => nth.set(texts),
                Err(wanted) => Conversion::wrong(wanted),
            },
            Self::Map => match nth.value {
                Value::Object(map) if map.is_empty() => Conversion::default(),
                Value::Object(map) => nth.set(map.clone()),
                _ => Conversion::wrong("a map"),
            },
            Self::ListOfMaps => match nth.value {
                Value::Array(list) if list.iter().all(Value::is_object) => nth.set(list.clone()),
                _ => Conversion::wrong("a list of maps"),
            },
            Self::Named => named(nth),
            Self::Labels => pods::labels(nth),
            Self::Annotations => pods::annotations(nth),
            Self::Affinity => selectors::affinity(nth),
            Self::Tolerations => pods::tolerations(nth),
            Self::Resources => pods::resources(nth),
            Self::Budget => pods::budget(nth),
            Self::Env(env) => self::env(nth, env),
            Self::Cordon => cordon(nth),
            Self::Taint => taint(nth),
            Self::Webhook(secret) => webhook(nth, secret.as_deref()),
            Self::WebhookHeaders => headers(nth),
            Self::WebhookProxy => proxy(nth),
            Self::MetadataUrl => metadata_url(nth),
        }
    }
}

fn text(nth: &NthValue<'_>) -> Conversion {
    match nth.value {
        // An empty text differs from NTH's default.
        Value::String(text) if text.is_empty() && nth.row.default.is_null() => Conversion::default(),
        Value::String(text) if text.is_empty() => Conversion::of(Topic::Lost, "is empty, so Ebbtide's default applies"),
        Value::String(text) => nth.set(text.as_str()),
        Value::Number(number) => nth.set(number.to_string()),
        _ => Conversion::wrong("a text"),
    }
}

fn word(nth: &NthValue<'_>, words: &BTreeMap<String, String>) -> Conversion {
    match words.get(&nth.value.as_str().unwrap_or_default().to_lowercase()) {
        Some(ours) => nth.set(ours.as_str()),
        None => Conversion::wrong(&format!("one of {}", words.keys().cloned().collect::<Vec<_>>().join(", "))),
    }
}

fn named(nth: &NthValue<'_>) -> Conversion {
    match nth.value {
        Value::Array(list) if list.iter().all(|item| item.is_object() || item.is_string()) => {
            let with_name = |item: &Value| if item.is_string() { json!({ "name": item }) } else { item.clone() };
            nth.set(list.iter().map(with_name).collect::<Vec<_>>())
        }
        _ => Conversion::wrong("a list of maps"),
    }
}

fn either(nth: &NthValue<'_>, on: &[Value], off: &[Value]) -> Conversion {
    match switch(nth.value) {
        Some(true) => nth.set_all(on.iter().cloned()),
        Some(false) => nth.set_all(off.iter().cloned()),
        None => Conversion::wrong("true or false"),
    }
}

/// Cordons for each kind of notice that NTH hears: in IMDS mode the kinds that are switched on.
fn cordon(nth: &NthValue<'_>) -> Conversion {
    let action = |path: &String| if path.starts_with("actions.") { "cordon".into() } else { "0s".into() };
    let on: Vec<Value> = nth.row.ours.iter().map(action).collect();
    let mut conversion = either(nth, &on, &[]);
    let is_heard = |path: &String| {
        let mut kinds = table().rows().filter(|row| row.mode == Some(Mode::Imds) && row.ours.contains(path));
        nth.mode == Mode::Queue || kinds.any(|row| nth.is_on(&row.nth))
    };
    conversion.settings.retain(|(path, _)| is_heard(path));
    conversion
}

/// Makes one taint of NTH's taints for each kind, with the effect that a variable of NTH gives them.
fn taint(nth: &NthValue<'_>) -> Conversion {
    let env = nth.all["extraEnv"].as_array().and_then(|list| list.iter().find(|env| env["name"] == "TAINT_EFFECT"));
    // The API server rejects any other effect.
    let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
    let effect = env.and_then(|env| env["value"].as_str()).filter(|effect| effects.contains(effect));
    either(nth, &[json!([format!("ebbtide/going:{}", effect.unwrap_or(effects[0]))])], &[])
}

/// NTH posts once, after the drain, whether it failed or not; without a template an object with a text, as Slack and others take it.
/// Values of a chart are no place for the URL.
fn webhook(nth: &NthValue<'_>, secret: Option<&str>) -> Conversion {
    let Some(given) = nth.value.as_str() else { return Conversion::wrong("a text") };
    if given.is_empty() {
        return Conversion::default();
    }
    let mut conversion = nth.set_all([secret.unwrap_or(given).into(), "webhookurl".into()]);
    conversion.settings.push(("notifications.phases.all".to_owned(), "done+failed".into()));
    let template = nth.all["webhookTemplate"].as_str().unwrap_or_default();
    let has_template = ["webhookTemplate", "webhookTemplateConfigMapName"].iter().any(|key| nth.is_on(key));
    // What NTH's own template, Slack and Teams expect.
    let format = match template {
        _ if template.contains("MessageCard") => Some("teams"),
        _ if !has_template || template.contains("\"text\"") || given.contains("hooks.slack.com") => Some("slack"),
        _ => None,
    };
    conversion.settings.extend(format.map(|format| ("notifications.format".to_owned(), format.into())));
    conversion
}

/// Reads the headers, a JSON object in a text. Ebbtide sends the content type itself.
fn headers(nth: &NthValue<'_>) -> Conversion {
    let Some(text) = nth.value.as_str() else { return Conversion::wrong("a text") };
    let is_own = |(name, value): (&String, &Value)| {
        name.eq_ignore_ascii_case("content-type")
            && value.as_str().is_some_and(|value| value.starts_with("application/json"))
    };
    match serde_json::from_str(text) {
        _ if text.is_empty() => Conversion::default(),
        Ok(Value::Object(headers)) if headers.iter().all(is_own) => Conversion::default(),
        Ok(Value::Object(_)) => nth.remark(Topic::Lost),
        _ => Conversion::wrong("a JSON object of headers"),
    }
}

fn proxy(nth: &NthValue<'_>) -> Conversion {
    match nth.value.as_str() {
        Some("") => Conversion::default(),
        Some(proxy) if proxy.contains('@') => nth.remark(Topic::Lost),
        // NTH's help writes it so.
        Some(proxy) => nth.set(proxy.replacen("tcp://", "http://", 1)),
        None => Conversion::wrong("a text"),
    }
}

/// The agent takes an address without a path.
fn metadata_url(nth: &NthValue<'_>) -> Conversion {
    let Some(url) = nth.value.as_str() else { return Conversion::wrong("a text") };
    let host = url.strip_prefix("http://").map(|host| host.trim_end_matches('/'));
    match host.filter(|host| !host.is_empty() && !host.contains('/')) {
        Some(host) => nth.set(format!("http://{host}")),
        None => Conversion::of(Topic::Lost, "is not http://HOST, which the agent requires"),
    }
}

/// Copies environment variables, except NTH's own.
fn env(nth: &NthValue<'_>, rules: &Env) -> Conversion {
    let Some(list) = nth.value.as_array() else { return Conversion::wrong("a list of maps") };
    let (mut kept, mut left, mut differences) = (Vec::new(), Vec::new(), Vec::new());
    for env in list {
        let (name, from) = (env["name"].as_str().unwrap_or_default(), &env["valueFrom"]);
        // A resourceFieldRef may name NTH's container, which our pods don't have.
        let plain = env["value"].is_string() || from.is_object() && from["resourceFieldRef"].is_null();
        if rules.takes(name) && plain {
            if from["secretKeyRef"].is_object() || from["configMapKeyRef"].is_object() {
                differences.push(format!("the source of {name} must exist in Ebbtide's namespace as well"));
            }
            kept.push(env.clone());
        } else if !rules.needless.iter().any(|known| known == name) {
            left.push(if name.is_empty() { "a variable without a name" } else { name });
        }
    }
    if !left.is_empty() {
        differences.push(format!("{} left out: {}", left.join(", "), nth.row.remark));
    }
    let set = if kept.is_empty() { Conversion::default() } else { nth.set(kept) };
    set.differing(&differences)
}
