//! An event of `PagerDuty`'s Events API v2. All phases of an interruption have one key, so they are one alert, which `done` resolves.

use super::super::notification::Notification;
use crate::fact::NotificationPhase;
use crate::telemetry::bounded::bounded;
use serde_json::{Value, json};

/// Maximum length of a summary that `PagerDuty` accepts; it counts characters.
const MAX_SUMMARY: usize = 1024;

/// Returns the event.
pub(super) fn event(notification: &Notification, routing_key: &str) -> serde_json::Result<Value> {
    let severity = match notification.phase {
        NotificationPhase::Notice => "info",
        NotificationPhase::Blocked => "warning",
        NotificationPhase::Failed => "error",
        NotificationPhase::Done => {
            return Ok(json!({"routing_key": routing_key, "event_action": "resolve", "dedup_key": notification.key}));
        }
    };
    let source = notification.node.as_ref().or(notification.instance.as_ref()).unwrap_or(&notification.replica);
    let mut payload = json!({
        "summary": bounded(&format_args!("{}. {}", notification.title, notification.text), MAX_SUMMARY),
        "source": source,
        "severity": severity,
        "timestamp": notification.time,
        "class": notification.kind.unwrap_or("storm"),
        "custom_details": serde_json::to_value(notification)?,
    });
    if let Some(cluster) = &notification.cluster {
        payload["group"] = json!(cluster);
    }
    Ok(json!({
        "routing_key": routing_key,
        "event_action": "trigger",
        "dedup_key": notification.key,
        "client": "Ebbtide",
        "payload": payload,
    }))
}
