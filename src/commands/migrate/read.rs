//! Reading YAML that somebody else wrote: bounded, and each failure one sentence.

use serde_json::{Map, Value};
use serde_saphyr::{Error, Options};

/// More than any values file has, and few enough that no file of a few lines can fill the memory by its aliases.
const NODES: usize = 20_000;

/// The values of a file.
///
/// # Errors
/// Why there are none.
pub(super) fn values(text: &str) -> Result<Map<String, Value>, String> {
    let read: Result<Option<Value>, _> = match serde_saphyr::from_str_with_options(text, options()) {
        // A file may end in a line of its own for the next document, of which nothing comes.
        Err(error @ Error::MultipleDocuments { .. }) => match serde_saphyr::from_multiple_with_options(text, options())
        {
            Ok::<Vec<Value>, _>(mut documents) if documents.len() <= 1 => Ok(documents.pop()),
            Ok(_) => Err(error),
            Err(error) => Err(error),
        },
        read => read,
    };
    match read.map(|value| value.map(whole)) {
        Ok(Some(Value::Object(values))) => Ok(values),
        Ok(None | Some(Value::Null)) => Ok(Map::new()),
        Ok(Some(_)) => Err("holds no values, which are a map of names; give a values file of NTH's chart".to_owned()),
        Err(error) => Err(why(&error)),
    }
}

/// As Helm reads, which is YAML 1.1 in what a number may look like.
fn options() -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_nodes: NODES, max_events: 3 * NODES, max_depth: 32, max_documents: 8 },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: NODES },
        legacy_octal_numbers: true,
        with_snippet: false,
    }
}

/// The same, where whole numbers look like it: to Helm `1e3` is 1000, and `089`, which is no octal number, is 89.
#[allow(clippy::cast_possible_truncation, reason = "of whole numbers that are exact, nothing is lost")]
fn whole(value: Value) -> Value {
    /// From here on not every whole number can be said by this type.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match value {
        Value::Number(number) if number.is_f64() => match number.as_f64() {
            Some(float) if float.fract() == 0.0 && float.abs() < EXACT => (float as i64).into(),
            _ => number.into(),
        },
        Value::Array(list) => list.into_iter().map(whole).collect(),
        Value::Object(map) => map.into_iter().map(|(key, value)| (key, whole(value))).collect(),
        other => other,
    }
}

/// What is wrong, without the library's advice, which is for those who call it.
fn why(error: &Error) -> String {
    let line = error.location().map_or(0, |at| at.line());
    match error {
        Error::AliasError { error, .. } => why(error),
        Error::MultipleDocuments { .. } => format!("holds another document from line {line} on; give one values file"),
        Error::DuplicateMappingKey { key, .. } => {
            format!("says {} twice, on line {line} again; leave one", key.as_deref().unwrap_or("a name"))
        }
        Error::Budget { .. } | Error::AliasReplayLimitExceeded { .. } | Error::AliasReplayStackDepthExceeded { .. } => {
            format!("is deeper, or larger, than any values file, on line {line}; give a values file of NTH's chart")
        }
        other => {
            let said = other.to_string();
            format!("is not the YAML of a values file: {}", said.lines().next().unwrap_or_default())
        }
    }
}
