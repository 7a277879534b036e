//! Reading a user's YAML file: with limits, and one sentence for each error.

use serde_json::{Map, Value};
use serde_saphyr::{Error, Options};

/// Maximum number of YAML nodes: more than any values file has, and few enough that aliases in a short file can't fill the memory.
const MAX_YAML_NODES: usize = 20_000;

/// The reason why a text is not a values file, with what to give instead.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValuesError {
    /// The document is not a map.
    #[error("is not a map of values; give a values file of NTH's chart")]
    NotAMap,
    /// The values are in a parent chart's.
    #[error("has the values of a parent chart; give the part below aws-node-termination-handler as a file of its own")]
    OfParent,
    /// The file has several documents.
    #[error("has a second document on line {line}; give one values file")]
    MultipleDocuments {
        /// The line of the second document.
        line: u64,
    },
    /// The file has a name twice.
    #[error("has {name} twice, the second time on line {line}; remove one")]
    DuplicateName {
        /// The name.
        name: String,
        /// The line of the second occurrence.
        line: u64,
    },
    /// The file exceeds the limits.
    #[error("is deeper or larger than any values file, on line {line}; give a values file of NTH's chart")]
    TooLarge {
        /// The line at which the limit is reached.
        line: u64,
    },
    /// The text is not YAML.
    #[error("is not valid YAML: {0}")]
    Malformed(String),
}

/// Reads the values of a file.
///
/// # Errors
/// The reason why the text is not a values file.
pub(super) fn values(text: &str) -> Result<Map<String, Value>, ValuesError> {
    let read: Result<Option<Value>, _> = match serde_saphyr::from_str_with_options(text, options()) {
        // A file may end with a separator, after which an empty document begins.
        Err(error @ Error::MultipleDocuments { .. }) => match serde_saphyr::from_multiple_with_options(text, options())
        {
            Ok::<Vec<Value>, _>(mut documents) if documents.len() <= 1 => Ok(documents.pop()),
            Ok(_) => Err(error),
            Err(error) => Err(error),
        },
        read => read,
    };
    match read.map(|value| value.map(with_whole_numbers)) {
        Ok(Some(Value::Object(values))) => Ok(values),
        Ok(None | Some(Value::Null)) => Ok(Map::new()),
        Ok(Some(_)) => Err(ValuesError::NotAMap),
        Err(error) => Err(values_error(&error)),
    }
}

/// Returns the options of Helm's reader, which reads numbers as in YAML 1.1.
fn options() -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_nodes: MAX_YAML_NODES, max_events: 3 * MAX_YAML_NODES, max_depth: 32, max_documents: 8
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MAX_YAML_NODES },
        legacy_octal_numbers: true,
        with_snippet: false,
    }
}

/// Converts floating-point numbers with a whole value to integers: to Helm `1e3` is 1000, and `089`, which is no octal number, is 89.
#[allow(clippy::cast_possible_truncation, reason = "whole numbers below 2^53 are exact")]
fn with_whole_numbers(value: Value) -> Value {
    /// The first whole number after which the type skips some: 2^53.
    const EXACT_BELOW: f64 = 9_007_199_254_740_992.0;
    match value {
        Value::Number(number) if number.is_f64() => match number.as_f64() {
            Some(float) if float.fract() == 0.0 && float.abs() < EXACT_BELOW => (float as i64).into(),
            _ => number.into(),
        },
        Value::Array(list) => list.into_iter().map(with_whole_numbers).collect(),
        Value::Object(map) => map.into_iter().map(|(key, value)| (key, with_whole_numbers(value))).collect(),
        other => other,
    }
}

/// Returns the error without the library's advice, which is for its callers.
fn values_error(error: &Error) -> ValuesError {
    let line = error.location().map_or(0, |at| at.line());
    match error {
        Error::AliasError { error, .. } => values_error(error),
        Error::MultipleDocuments { .. } => ValuesError::MultipleDocuments { line },
        Error::DuplicateMappingKey { key, .. } => {
            ValuesError::DuplicateName { name: key.clone().unwrap_or_else(|| "a name".to_owned()), line }
        }
        Error::Budget { .. } | Error::AliasReplayLimitExceeded { .. } | Error::AliasReplayStackDepthExceeded { .. } => {
            ValuesError::TooLarge { line }
        }
        other => ValuesError::Malformed(other.to_string().lines().next().unwrap_or_default().to_owned()),
    }
}
