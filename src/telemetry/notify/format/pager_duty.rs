//! An event of `PagerDuty`'s Events API v2. All phases of an interruption have one key, so they are one alert, which `done` resolves.

use super::super::notification::Notification;
use crate::fact::NotificationPhase;
use crate::telemetry::bounded::bounded;
use serde_json::{Value, json};

/// Maximum length of a summary that `PagerDuty` accepts; it counts characters.
const MAX_SUMMARY: usize = 1024;

/// Returns the event.
pub(super) fn event(told: &Notification, routing_key: &str) -> serde_json::Result<Value> {
    let severity = match told.phase {
        NotificationPhase::Notice => "info",
        NotificationPhase::Blocked => "warning",
        NotificationPhase::Failed => "error",
        NotificationPhase::Done => {
            return Ok(json!({"routing_key": routing_key, "event_action": "resolve", "dedup_key": told.key}));
        }
    };
    let source = told.node.as_ref().or(told.instance.as_ref()).unwrap_or(&told.replica);
    let mut payload = json!({
        "summary": bounded(&format_args!("{}. {}", told.title, told.text), MAX_SUMMARY),
        "source": source,
        "severity": severity,
        "timestamp": told.time,
        "class": told.kind.unwrap_or("storm"),
        "custom_details": serde_json::to_value(told)?,
    });
    if let Some(cluster) = &told.cluster {
        payload["group"] = json!(cluster);
    }
    Ok(json!({
        "routing_key": routing_key,
        "event_action": "trigger",
        "dedup_key": told.key,
        "client": "Ebbtide",
        "payload": payload,
    }))
}
