//! The chart's schema: as much of JSON Schema as it uses.

use regex_lite::Regex;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::LazyLock;

static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    let text = include_str!("../../../deploy/helm/ebbtide/values.schema.json");
    serde_json::from_str(text).expect("the schema must be JSON")
});

/// Patterns, compiled once.
static PATTERNS: LazyLock<BTreeMap<String, Regex>> = LazyLock::new(|| {
    let mut patterns = BTreeMap::new();
    collect(&SCHEMA, &mut patterns);
    patterns
});

fn collect(schema: &Value, into: &mut BTreeMap<String, Regex>) {
    let mut add = |pattern: &str| {
        into.entry(pattern.to_owned()).or_insert_with(|| Regex::new(pattern).expect("a pattern must be one"));
    };
    match schema {
        Value::Object(fields) => {
            fields.get("pattern").and_then(Value::as_str).into_iter().for_each(&mut add);
            let names = fields.get("patternProperties").and_then(Value::as_object).into_iter().flatten();
            names.for_each(|(name, _)| add(name));
            fields.values().for_each(|field| collect(field, into));
        }
        Value::Array(list) => list.iter().for_each(|each| collect(each, into)),
        _ => {}
    }
}

/// What Helm refuses.
#[derive(Debug)]
#[allow(dead_code, reason = "shown when a property fails")]
pub struct Problem {
    /// The place of the value.
    pub at: String,
    /// The value.
    pub value: Value,
    /// What is wrong with it.
    pub what: &'static str,
}

/// Returns what Helm refuses in values of the chart.
pub fn problems(values: &Value) -> Vec<Problem> {
    let mut problems = Vec::new();
    validate(&SCHEMA, values, "", &mut problems);
    problems
}

fn validate(schema: &Value, value: &Value, at: &str, problems: &mut Vec<Problem>) {
    if let Some(name) = schema["$ref"].as_str() {
        let pointer = name.strip_prefix('#').expect("a reference must be local");
        validate(SCHEMA.pointer(pointer).expect("a reference must be there"), value, at, problems);
    }
    let mut problem = |what| problems.push(Problem { at: at.to_owned(), value: value.clone(), what });
    let is = |kind: &Value| match kind.as_str() {
        Some("null") => value.is_null(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("number") => value.is_number(),
        Some("string") => value.is_string(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        other => unreachable!("{other:?} is no type"),
    };
    let typed = match &schema["type"] {
        Value::Null => true,
        Value::Array(kinds) => kinds.iter().any(is),
        kind => is(kind),
    };
    if !typed {
        problem("has another type");
    }
    if schema["enum"].as_array().is_some_and(|choices| !choices.contains(value)) {
        problem("is no choice");
    }
    let matches = |pattern: &str, text: &str| PATTERNS[pattern].is_match(text);
    if let Some(text) = value.as_str() {
        if schema["pattern"].as_str().is_some_and(|pattern| !matches(pattern, text)) {
            problem("does not match");
        }
        if schema["minLength"].as_u64().is_some_and(|least| (text.chars().count() as u64) < least) {
            problem("is too short");
        }
    }
    if let Some(number) = value.as_f64() {
        let beyond =
            |bound: &str, is: fn(f64, f64) -> bool| schema[bound].as_f64().is_some_and(|bound| is(number, bound));
        if beyond("minimum", |number, least| number < least) || beyond("maximum", |number, most| number > most) {
            problem("is out of bounds");
        }
    }
    for (n, item) in value.as_array().into_iter().flatten().enumerate().filter(|_| schema["items"].is_object()) {
        validate(&schema["items"], item, &format!("{at}/{n}"), problems);
    }
    let Some(fields) = value.as_object() else { return };
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !fields.contains_key(name) {
            problems.push(Problem { at: format!("{at}/{name}"), value: Value::Null, what: "is missing" });
        }
    }
    for (name, field) in fields {
        let at = format!("{at}/{name}");
        let named = schema["properties"].get(name);
        let patterns = schema["patternProperties"].as_object().into_iter().flatten();
        let known: Vec<&Value> = named
            .into_iter()
            .chain(patterns.filter(|(pattern, _)| matches(pattern, name)).map(|(_, schema)| schema))
            .collect();
        match (&known[..], &schema["additionalProperties"]) {
            ([], Value::Bool(false)) => {
                problems.push(Problem { at, value: Value::Null, what: "is no value of the chart" });
            }
            ([], others @ Value::Object(_)) => validate(others, field, &at, problems),
            (known, _) => known.iter().for_each(|schema| validate(schema, field, &at, problems)),
        }
    }
}
