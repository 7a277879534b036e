//! A message for an incoming webhook of Slack: blocks, and a text for where blocks are not shown.

use super::super::notification::Notification;
use serde_json::{Value, json};

/// Maximum length of a block's text that Slack accepts, in characters.
const MAX_TEXT: usize = 3000;

/// Maximum length of a header's text, in characters.
const MAX_HEADER: usize = 150;

/// Maximum number of fields in a block.
const MAX_FIELDS: usize = 10;

/// Maximum length of a field's text, in characters.
const MAX_FIELD: usize = 2000;

/// Returns the message. Texts are `verbatim`, so that no name becomes a link or calls a person.
pub(super) fn message(notification: &Notification) -> Value {
    let mrkdwn = |text: String| json!({"type": "mrkdwn", "text": text, "verbatim": true});
    let field = |(name, value): (&str, String)| mrkdwn(format!("*{name}*\n{}", escaped(&value, MAX_FIELD - 20)));
    let fields: Vec<Value> = notification.rows().into_iter().map(field).collect();
    let mut blocks = vec![
        json!({"type": "header", "text": {"type": "plain_text", "text": escaped(&notification.title, MAX_HEADER), "emoji": false}}),
        json!({"type": "section", "text": mrkdwn(escaped(&notification.text, MAX_TEXT))}),
    ];
    blocks.extend(fields.chunks(MAX_FIELDS).map(|fields| json!({"type": "section", "fields": fields})));
    blocks.push(json!({"type": "context", "elements": [mrkdwn(escaped(&notification.footer(), MAX_TEXT))]}));
    json!({"text": escaped(&format!("{}. {}", notification.title, notification.text), MAX_TEXT), "blocks": blocks})
}

/// Escapes the characters that control Slack's markup.
pub(super) fn escape(text: &str) -> String {
    escaped(text, usize::MAX)
}

/// Escapes a text, and cuts it so that at most `max` characters are left.
fn escaped(text: &str, max: usize) -> String {
    let (mut out, mut length) = (String::with_capacity(text.len()), 0);
    for (at, c) in text.char_indices() {
        let mut buffer = [0; 4];
        let shown = match c {
            '&' => "&amp;",
            '<' => "&lt;",
            '>' => "&gt;",
            c => c.encode_utf8(&mut buffer),
        };
        let room = if at + c.len_utf8() == text.len() { max } else { max - 1 };
        length += shown.chars().count();
        if length > room {
            out.push('…');
            break;
        }
        out.push_str(shown);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_long_texts_cut() {
        assert_eq!(escape("<!channel> & <@U1>"), "&lt;!channel&gt; &amp; &lt;@U1&gt;");
        assert_eq!((escaped("abc", 3), escaped("abcd", 3)), ("abc".to_owned(), "ab…".to_owned()));
        assert_eq!((escaped("a&b", 6), escaped("aü", 2)), ("a…".to_owned(), "aü".to_owned()));
        let long = escaped(&"&".repeat(5000), MAX_TEXT);
        assert!(long.chars().count() <= MAX_TEXT && long.ends_with("&amp;…"), "{}", long.len());
    }
}
