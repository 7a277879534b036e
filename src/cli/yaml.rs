//! Writes YAML that parsers of YAML 1.1, such as Helm's, read back unchanged: strings such as `yes` or `1e3` are quoted.

use serde::Serialize;
use serde_json::Value;
use serde_saphyr::{FlowSeq, SerializerOptions, ser_options, to_string_with_options};

/// Indents lists below their key, as the chart's values are written, and keeps a long text on its line.
fn options() -> SerializerOptions {
    ser_options! { compact_list_indent: false, prefer_block_scalars: false }
}

/// Returns a value as YAML, which ends with a newline. This can't fail: no map has keys that are not strings.
#[must_use]
pub fn to_yaml(value: &impl Serialize) -> String {
    to_string_with_options(value, options()).unwrap_or_default()
}

/// Returns a value on one line, without a newline; `None` for maps, and for lists of maps or lists.
#[must_use]
pub fn to_yaml_line(value: &Value) -> Option<String> {
    let line = match value {
        Value::Object(map) if !map.is_empty() => return None,
        Value::Array(list) if list.iter().any(|value| value.is_object() || value.is_array()) => return None,
        Value::Array(list) => to_yaml(&FlowSeq(list)),
        other => to_yaml(other),
    };
    Some(line.trim_end().to_owned())
}
