//! YAML for answers and values files, as readers of YAML 1.1 such as Helm take it: a text that they would take for another type is quoted.

use serde::Serialize;
use serde_json::Value;
use serde_saphyr::{FlowSeq, SerializerOptions, ser_options, to_string_with_options};

fn options() -> SerializerOptions {
    ser_options! { compact_list_indent: false, prefer_block_scalars: false }
}

/// Returns a value on several lines, the last of which ends as well.
#[must_use]
pub fn block(value: &impl Serialize) -> String {
    to_string_with_options(value, options()).unwrap_or_default()
}

/// Returns a value on one line; `None` for maps, and for lists of maps or lists.
#[must_use]
pub fn flat(value: &Value) -> Option<String> {
    let line = match value {
        Value::Object(map) if !map.is_empty() => return None,
        Value::Array(list) if list.iter().any(|value| value.is_object() || value.is_array()) => return None,
        Value::Array(list) => block(&FlowSeq(list)),
        other => block(other),
    };
    Some(line.trim_end().to_owned())
}
