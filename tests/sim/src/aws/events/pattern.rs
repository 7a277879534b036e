//! Event patterns: the part of EventBridge's language that tests use.

use serde_json::Value;

/// Returns whether a pattern matches an event, or why the pattern is refused.
///
/// # Errors
/// The reason, for a pattern that is empty or uses another operator than `prefix`.
pub fn matches(pattern: &Value, event: &Value) -> Result<bool, String> {
    let fields = pattern.as_object().filter(|fields| !fields.is_empty()).ok_or("an object must not be empty")?;
    let mut all = true;
    for (field, wanted) in fields {
        all &= match wanted {
            Value::Array(choices) => {
                let mut any = false;
                for choice in choices {
                    any |= chosen(choice, event.get(field))?;
                }
                any
            }
            wanted => matches(wanted, &event[field])?,
        };
    }
    Ok(all)
}

fn chosen(choice: &Value, found: Option<&Value>) -> Result<bool, String> {
    if !choice.is_object() {
        return Ok(found == Some(choice));
    }
    let prefix = choice["prefix"].as_str().ok_or_else(|| format!("{choice} is not simulated"))?;
    Ok(found.and_then(Value::as_str).is_some_and(|found| found.starts_with(prefix)))
}
