//! An Adaptive Card, as a Teams workflow "when a webhook request is received" takes it.
//!
//! Texts are runs of a `RichTextBlock`: unlike a `TextBlock`, it knows no markup, so no name becomes a link.

use super::super::notification::Notification;
use crate::fact::NotificationPhase;
use serde_json::{Value, json};

/// Returns the message. Workflows accept 28 KB, and all parts of a notification together are shorter.
pub(super) fn message(notification: &Notification) -> Value {
    let color = match notification.phase {
        NotificationPhase::Notice => "Accent",
        NotificationPhase::Blocked => "Warning",
        NotificationPhase::Done => "Good",
        NotificationPhase::Failed => "Attention",
    };
    let block = |runs: Vec<Value>| json!({"type": "RichTextBlock", "inlines": runs});
    let run = |text: &str| json!({"type": "TextRun", "text": text});
    let bold = |text: &str| json!({"type": "TextRun", "text": text, "weight": "Bolder"});
    let title = json!({
        "type": "TextRun", "text": notification.title, "weight": "Bolder", "size": "Medium", "color": color,
    });
    let mut body = vec![block(vec![title]), block(vec![run(&notification.text)])];
    let rows = notification.rows().into_iter();
    body.extend(rows.map(|(name, value)| block(vec![bold(&format!("{name}: ")), run(&value)])));
    body.push(block(vec![
        json!({"type": "TextRun", "text": notification.footer(), "isSubtle": true, "size": "Small"}),
    ]));
    json!({
        "type": "message",
        "attachments": [{
            "contentType": "application/vnd.microsoft.card.adaptive",
            "contentUrl": null,
            "content": {
                "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
                "type": "AdaptiveCard",
                "version": "1.2",
                "fallbackText": notification.title,
                "msteams": {"width": "Full"},
                "body": body,
            },
        }],
    })
}
