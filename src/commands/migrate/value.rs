//! A value of NTH with its row: whether it has an effect, and its conversion.

use super::Topic;
use super::table::{Case, Mode, Row, table};
use serde_json::{Map, Value};

/// A value of NTH, with all other values.
#[derive(Clone, Copy)]
pub struct NthValue<'a> {
    /// All values.
    pub all: &'a Value,
    pub mode: Mode,
    /// The value's row.
    pub row: &'static Row,
    /// The value.
    pub value: &'a Value,
}

/// The result of a conversion.
#[derive(Default)]
pub struct Conversion {
    /// Values of ours, by their names with dots.
    pub settings: Vec<(String, Value)>,
    /// What the user must know.
    pub remark: Option<(Topic, String)>,
}

impl<'a> NthValue<'a> {
    /// Returns the value of a row.
    pub fn new(all: &'a Value, mode: Mode, row: &'static Row) -> Self {
        Self { all, mode, row, value: row.nth.split('.').fold(all, |value, part| &value[part]) }
    }

    /// Converts the value. Like Helm, this treats null as unset. A default of NTH needs no conversion.
    pub fn convert(&self) -> Conversion {
        let Row { mode, default, only_with, unless, how, .. } = self.row;
        if self.value.is_null() || self.value == default {
            return Conversion::default();
        }
        if let Some(mode) = mode.filter(|mode| *mode != self.mode) {
            return self.unread(mode);
        }
        let needless = if only_with.is_empty() || only_with.iter().any(|key| self.is_on(key)) {
            unless.iter().find(|key| self.is_on(key)).map(|instead| format!("has no effect with {instead}"))
        } else {
            Some(format!("has no effect without {}", only_with.join(" or ")))
        };
        match needless {
            None => self.with_case(how.convert(self)),
            Some(_) if is_empty(self.value) => Conversion::default(),
            Some(why) => Conversion::of(Topic::Needless, &why),
        }
    }

    /// Returns the reason why a value of the other mode is not needed: that of a case with the mode, or else the general one.
    fn unread(&self, by: Mode) -> Conversion {
        let case = self.row.cases.iter().find(|case| case.mode == Some(self.mode) && case.applies(self));
        match (case, by) {
            (Some(Case { topic, text, .. }), _) => Conversion::of(*topic, text.as_ref().unwrap_or(&self.row.remark)),
            (None, Mode::Queue) => Conversion::of(Topic::Needless, "only NTH's queue mode reads it"),
            (None, Mode::Imds) => Conversion::of(Topic::Needless, "only NTH's IMDS mode reads it"),
        }
    }

    /// Returns the conversion in the case that applies. A conversion that made a remark itself does not differ twice.
    fn with_case(&self, converted: Conversion) -> Conversion {
        let Some(Case { topic, text, .. }) = self.case() else { return converted };
        let case = Conversion::of(*topic, text.as_ref().unwrap_or(&self.row.remark));
        match topic {
            Topic::Differs if converted.settings.is_empty() || converted.remark.is_some() => converted,
            Topic::Differs => Conversion { settings: converted.settings, ..case },
            _ => case,
        }
    }

    fn case(&self) -> Option<&'static Case> {
        self.row.cases.iter().find(|case| case.applies(self))
    }

    /// Whether another value has an effect: a switch that is on, or a value that is not empty, which the mode reads.
    pub fn is_on(&self, key: &str) -> bool {
        let Some(row) = table().rows().find(|row| row.nth == key) else { return false };
        let other = Self::new(self.all, self.mode, row);
        let on = match &row.default {
            Value::Bool(default) => switch(other.value).unwrap_or(*default),
            Value::String(_) => other.value.as_str().is_some_and(|text| !text.is_empty()),
            _ => !is_empty(other.value),
        };
        let read = row.mode.is_none_or(|mode| mode == self.mode);
        on && read && other.case().is_none_or(|case| case.topic == Topic::Differs)
    }

    /// Sets our value, if the row names one.
    pub fn set(&self, value: impl Into<Value>) -> Conversion {
        self.set_all([value.into()])
    }

    /// Sets our values, in the order in which the row names them.
    pub fn set_all(&self, values: impl IntoIterator<Item = Value>) -> Conversion {
        Conversion { settings: self.row.ours.iter().cloned().zip(values).collect(), remark: None }
    }

    /// Returns the row's remark.
    pub fn remark(&self, topic: Topic) -> Conversion {
        Conversion::of(topic, &self.row.remark)
    }
}

impl Conversion {
    /// Returns a remark.
    pub fn of(topic: Topic, text: &str) -> Self {
        Self { settings: Vec::new(), remark: Some((topic, text.to_owned())) }
    }

    /// Returns the result for a value of a wrong type.
    pub fn wrong(wanted: &str) -> Self {
        Self::of(Topic::Lost, &format!("is not {wanted}, which NTH requires; correct it and try again"))
    }

    /// Adds differences.
    pub fn differing(self, differences: &[String]) -> Self {
        let remark = (!differences.is_empty()).then(|| (Topic::Differs, differences.join("; ")));
        Self { remark, ..self }
    }
}

/// Reads a switch, which Helm's `--set-string` makes a text.
pub fn switch(value: &Value) -> Option<bool> {
    value.as_bool().or_else(|| value.as_str()?.parse().ok())
}

/// Reads a whole number, which Helm's `--set-string` makes a text.
pub fn number(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| value.as_str()?.trim().parse().ok())
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

/// Reads a map of texts; the error names the required type. Like Helm, it drops null values.
pub fn texts(value: &Value) -> Result<Map<String, Value>, &'static str> {
    let mut texts = Map::new();
    for (key, value) in value.as_object().ok_or("a map")? {
        match value {
            Value::Null => None,
            Value::String(_) => texts.insert(key.clone(), value.clone()),
            Value::Number(_) | Value::Bool(_) => texts.insert(key.clone(), value.to_string().into()),
            _ => return Err("a map of texts"),
        };
    }
    Ok(texts)
}
