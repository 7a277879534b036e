//! Converters of NTH's webhook.

use super::conversions::{lost, wrong};
use super::row::{Conversion, NthValue, Setting};
use serde_json::{Value, json};

/// The Secret to make of a URL in NTH's values.
const SECRET: &str = "ebbtide-notifications";

/// Returns a text that is not empty.
fn filled<'a>(nth: &'a NthValue<'_>, key: &str) -> Option<&'a str> {
    nth.other(key).and_then(Value::as_str).filter(|text| !text.is_empty())
}

/// Whether NTH has a webhook.
fn is_used(nth: &NthValue<'_>) -> bool {
    filled(nth, "webhookURL").or_else(|| filled(nth, "webhookURLSecretName")).is_some()
}

/// Returns the settings of every webhook. NTH posts once, after the drain, whether it failed or not; without a template an object with a
/// text, as Slack and others take it.
fn common(nth: &NthValue<'_>, mut settings: Vec<Setting>) -> Conversion {
    settings.push(("notifications.phases.all".to_owned(), json!("done+failed")));
    let template = ["webhookTemplate", "webhookTemplateConfigMapName"].iter().any(|key| filled(nth, key).is_some());
    if !template {
        settings.push(("notifications.format".to_owned(), json!("slack")));
    }
    nth.differs(settings)
}

/// Converts the URL. Values of a chart are no place for it.
pub fn url(nth: &NthValue<'_>) -> Conversion {
    match nth.value.as_str() {
        // NTH takes the Secret then.
        _ if filled(nth, "webhookURLSecretName").is_some() => Conversion::Nothing,
        Some("") => Conversion::Nothing,
        Some(_) => common(nth, vec![("notifications.existingSecret".to_owned(), json!(SECRET))]),
        None => wrong("a text"),
    }
}

/// Converts the name of the Secret with the URL.
pub fn secret(nth: &NthValue<'_>) -> Conversion {
    match nth.value.as_str() {
        Some("") => Conversion::Nothing,
        Some(name) => common(
            nth,
            vec![
                ("notifications.existingSecret".to_owned(), json!(name)),
                ("notifications.secretKeys.url".to_owned(), json!("webhookurl")),
            ],
        ),
        None => wrong("a text"),
    }
}

/// Converts the headers, a JSON object in a text. Ebbtide sends the content type itself.
pub fn headers(nth: &NthValue<'_>) -> Conversion {
    let Some(text) = nth.value.as_str() else { return wrong("a text") };
    let Ok(Value::Object(mut headers)) = serde_json::from_str(text) else {
        return if text.is_empty() || !is_used(nth) { Conversion::Nothing } else { wrong("a JSON object of headers") };
    };
    let is_default = |name: &str, value: &Value| {
        name.eq_ignore_ascii_case("content-type")
            && value.as_str().is_some_and(|value| value.starts_with("application/json"))
    };
    headers.retain(|name, value| !is_default(name, value));
    if headers.is_empty() || !is_used(nth) { Conversion::Nothing } else { nth.lost() }
}

/// Converts the proxy.
pub fn proxy(nth: &NthValue<'_>) -> Conversion {
    match nth.value.as_str() {
        Some(proxy) if proxy.is_empty() || !is_used(nth) => Conversion::Nothing,
        Some(proxy) if proxy.contains('@') => nth.lost(),
        // NTH's help writes it so.
        Some(proxy) => nth.set(proxy.replacen("tcp://", "http://", 1)),
        None => wrong("a text"),
    }
}

/// Converts a part of the template, or of its place.
pub fn template(nth: &NthValue<'_>) -> Conversion {
    if is_used(nth) { lost(nth) } else { Conversion::Nothing }
}
