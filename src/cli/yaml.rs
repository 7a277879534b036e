//! YAML that every version of the language reads alike, for answers and for values files.

use serde_json::Value;

/// Maximum length of a name, in bytes, that needs no sign of its own: YAML looks no further than 1,024 characters for its colon.
const MAX_PLAIN_NAME: usize = 1_000;

/// Whether a value fits on one line.
#[must_use]
pub fn is_flat(value: &Value) -> bool {
    match value {
        Value::Array(list) => list.iter().all(|value| !value.is_object() && !value.is_array()),
        Value::Object(map) => map.is_empty(),
        _ => true,
    }
}

/// Writes a value on one line. JSON is YAML of any version, and a quoted text is always a text.
#[must_use]
pub fn flat(value: &Value) -> String {
    match value {
        Value::String(text) => word(text),
        Value::Array(list) => format!("[{}]", list.iter().map(Value::to_string).collect::<Vec<_>>().join(", ")),
        other => other.to_string(),
    }
}

/// Writes a text, without quotes if every version of YAML reads it as a text.
fn word(text: &str) -> String {
    let safe = |c: char| c.is_ascii_alphanumeric() || "-_./:@".contains(c);
    let begins = text.starts_with(|c: char| c.is_ascii_alphabetic());
    let seconds =
        text.strip_suffix('s').is_some_and(|number| !number.is_empty() && number.bytes().all(|c| c.is_ascii_digit()));
    // Helm reads YAML 1.1, which has more words for booleans than true and false.
    let reserved =
        ["true", "false", "yes", "no", "on", "off", "y", "n", "null"].contains(&text.to_lowercase().as_str());
    if seconds || begins && !reserved && text.chars().all(safe) && !text.ends_with(':') {
        text.to_owned()
    } else {
        Value::from(text).to_string()
    }
}

/// Writes a value on several lines.
#[must_use]
pub fn lines(value: &Value) -> Vec<String> {
    let indented = |value: &Value| lines(value).into_iter().map(|line| format!("  {line}")).collect::<Vec<_>>();
    match value {
        value if is_flat(value) => vec![flat(value)],
        Value::Object(map) => map
            .iter()
            .flat_map(|(key, value)| {
                let (mut written, mut name) = (Vec::new(), word(key));
                if name.len() > MAX_PLAIN_NAME {
                    written.push(format!("? {name}"));
                    name.clear();
                }
                if is_flat(value) {
                    written.push(format!("{name}: {}", flat(value)));
                } else {
                    written.push(format!("{name}:"));
                    written.extend(indented(value));
                }
                written
            })
            .collect(),
        Value::Array(list) => list
            .iter()
            .flat_map(|value| {
                let mut below = indented(value);
                if let Some(first) = below.first_mut() {
                    first.replace_range(..1, "-");
                }
                below
            })
            .collect(),
        _ => Vec::new(),
    }
}
