//! Reading YAML that somebody else wrote: bounded, and each failure one sentence.

use serde_json::{Map, Value};
use serde_saphyr::Error;

/// More than any values file has, and few enough that no file of a few lines can fill the memory by its aliases.
const NODES: usize = 20_000;

/// The values of a file.
///
/// # Errors
/// Why there are none.
pub(super) fn values(text: &str) -> Result<Map<String, Value>, String> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_nodes: NODES, max_events: 3 * NODES, max_depth: 32, max_documents: 2 },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: NODES },
        with_snippet: false,
    };
    let read: Result<Option<Value>, _> = serde_saphyr::from_str_with_options(text, options);
    match read {
        Ok(Some(Value::Object(values))) => Ok(values),
        Ok(None | Some(Value::Null)) => Ok(Map::new()),
        Ok(Some(_)) => Err("holds no values, which are a map of names; give a values file of NTH's chart".to_owned()),
        Err(error) => Err(why(&error)),
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
