//! Reading a user's YAML file: with limits, and one sentence for each error.

use serde_json::{Map, Value};
use serde_saphyr::{Error, Options};

/// Maximum number of YAML nodes: more than any values file has, and few enough that aliases in a short file can't fill the memory.
const MAX_YAML_NODES: usize = 20_000;

/// The reason why a text is not a values file, with what to give instead.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValuesError {
    /// There is no document, as of a pipe whose first command has failed, or only null, which jq writes for a name that is not there.
    #[error(
        "is empty or null: did the command before it fail, or name what is not there? Give a values file of NTH's chart; {{}} stands for NTH's \
         defaults, for which helm get values prints null"
    )]
    Empty,
    /// The document is not a map.
    #[error("is not a map of values; give a values file of NTH's chart")]
    NotAMap,
    /// The file has a name that NTH's chart does not have, and none that only NTH's chart has.
    #[error(
        "has {0}, which NTH's chart does not have, and no value that only NTH's chart has; give a values file of NTH's chart, or of its parent \
         chart"
    )]
    Foreign(String),
    /// A parent chart has NTH's values under two names.
    #[error("has NTH's values under {0} and under {1}; give what is under one of the names")]
    Several(String, String),
    /// The object does not show NTH's values.
    #[error(
        "is of kind {0} and does not show NTH's values: files and objects that it names are not read; give a values file of NTH's chart, or its \
         Deployment, DaemonSet, HelmRelease or Application as YAML"
    )]
    Object(String),
    /// The file has several objects; this number of them have NTH's values.
    #[error(
        "has several objects, {0} of them with NTH's values; give one of NTH's: its Deployment, DaemonSet, HelmRelease or Application"
    )]
    Objects(usize),
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

/// Reads the documents of a file, each a map. Empty documents and null are left out.
///
/// # Errors
/// The reason why the text is not a values file.
pub(super) fn values(text: &str) -> Result<Vec<Map<String, Value>>, ValuesError> {
    let read: Vec<Value> =
        serde_saphyr::from_multiple_with_options(text, options()).map_err(|error| values_error(&error))?;
    // A file may begin or end with a separator, next to which an empty document is.
    let documents = read.into_iter().filter(|document| !document.is_null()).map(with_whole_numbers);
    documents
        .map(|document| match document {
            Value::Object(values) => Ok(values),
            _ => Err(ValuesError::NotAMap),
        })
        .collect()
}

/// Returns the options of Helm's reader, which reads numbers as in YAML 1.1.
fn options() -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_nodes: MAX_YAML_NODES, max_events: 3 * MAX_YAML_NODES, max_depth: 32, max_documents: 64
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
        Error::DuplicateMappingKey { key, .. } => {
            ValuesError::DuplicateName { name: key.clone().unwrap_or_else(|| "a name".to_owned()), line }
        }
        Error::Budget { .. } | Error::AliasReplayLimitExceeded { .. } | Error::AliasReplayStackDepthExceeded { .. } => {
            ValuesError::TooLarge { line }
        }
        other => ValuesError::Malformed(other.to_string().lines().next().unwrap_or_default().to_owned()),
    }
}
