//! A row of the table: a value of NTH's chart and its converter; and the argument and the result of a conversion.

use serde_json::Value;

/// A value of NTH's chart.
#[derive(Debug)]
pub struct Row {
    /// The value's name, with dots.
    pub key: &'static str,
    /// The default of NTH's chart, as JSON.
    pub default: &'static str,
    /// The names of our values that replace it; empty if there are none.
    pub to: &'static [&'static str],
    /// The difference, or the reason why no value of ours replaces it.
    pub why: &'static str,
    pub(super) convert: Converter,
}

/// Our value that keeps cordons for rebalance recommendations, as NTH does.
pub(super) const UNCORDON_AFTER: &str = "settings.uncordonAfter";

/// Converts a value of NTH.
pub(super) type Converter = fn(&NthValue<'_>) -> Conversion;

/// A value of NTH, with all other values.
pub struct NthValue<'a> {
    /// All values.
    pub all: &'a Value,
    /// Whether the values are for queue mode.
    pub queue: bool,
    /// The value's row.
    pub row: &'static Row,
    /// The value.
    pub value: &'a Value,
}

/// One of our values, by its name with dots.
pub(super) type Setting = (String, Value);

/// The result of a conversion.
pub enum Conversion {
    /// These values of ours do the same.
    Set(Vec<Setting>),
    /// The value has no effect.
    Nothing,
    /// These values of ours do not do quite the same; the text is the difference.
    Differs(Vec<Setting>, String),
    /// The value has an effect that no value of ours has; the text is the effect.
    Lost(String),
    /// Ebbtide needs no such value.
    Needless,
}

pub(super) const fn row(
    key: &'static str,
    default: &'static str,
    to: &'static [&'static str],
    convert: Converter,
    why: &'static str,
) -> Row {
    Row { key, default, to, why, convert }
}

/// Returns the row of a value of NTH's DaemonSet on Windows, where the agent does not run.
pub(super) const fn windows_only(key: &'static str, default: &'static str) -> Row {
    row(
        key,
        default,
        &[],
        of_windows,
        "only NTH's DaemonSet on Windows uses it; Ebbtide's agent runs on Linux only, so notices about Windows nodes need the queue",
    )
}

/// Returns the row of a value of NTH's DaemonSet that the agent has, too.
pub(super) const fn of_agent(
    key: &'static str,
    default: &'static str,
    to: &'static [&'static str],
    convert: Converter,
) -> Row {
    row(key, default, to, convert, "only NTH's DaemonSet (IMDS mode) uses it")
}

/// Converts a value that Ebbtide does not need.
pub fn needless(_: &NthValue<'_>) -> Conversion {
    Conversion::Needless
}

/// Loses a value of NTH's DaemonSet on Windows.
fn of_windows(nth: &NthValue<'_>) -> Conversion {
    match nth.value {
        _ if nth.queue => Conversion::Needless,
        value if is_empty(value) || *value == "linux" => Conversion::Nothing,
        _ => nth.lost(),
    }
}

/// Whether a value is empty, as Helm sees it.
pub fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

impl NthValue<'_> {
    /// Whether the value is the default of NTH's chart.
    pub fn is_default(&self) -> bool {
        serde_json::from_str(self.row.default).is_ok_and(|default: Value| default == *self.value)
    }

    /// Returns another value of NTH, if it is set.
    pub fn other(&self, key: &str) -> Option<&Value> {
        self.all.get(key).filter(|value| !value.is_null())
    }

    /// Sets our value.
    pub fn set(&self, value: impl Into<Value>) -> Conversion {
        self.setting(value).map_or(Conversion::Nothing, |setting| Conversion::Set(vec![setting]))
    }

    /// Returns our value as a setting, if the row names one.
    pub(super) fn setting(&self, value: impl Into<Value>) -> Option<Setting> {
        self.row.to.first().map(|to| ((*to).to_owned(), value.into()))
    }

    /// Sets our values, with the row's remark on the difference.
    pub(super) fn differs(&self, settings: Vec<Setting>) -> Conversion {
        Conversion::Differs(settings, self.row.why.to_owned())
    }

    /// Loses the value, with the row's remark.
    pub fn lost(&self) -> Conversion {
        Conversion::Lost(self.row.why.to_owned())
    }
}
