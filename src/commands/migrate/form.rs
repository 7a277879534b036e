//! The forms in which people have NTH's values: a values file, the values of a parent chart, or an object of Kubernetes, Argo CD or Flux.

use super::pods::NTH;
use super::read::{ValuesError, values};
use super::{Remark, Topic, remark};
use serde_json::{Map, Value, json};

/// The first lines of `helm get values`, which are no values.
const HEADERS: [&str; 2] = ["USER-SUPPLIED VALUES", "COMPUTED VALUES"];

/// NTH's values, with remarks on what is not in them.
pub(super) struct Found {
    pub values: Value,
    pub remarks: Vec<Remark>,
}

impl Found {
    /// Returns the values in these documents of a file.
    ///
    /// # Errors
    /// What the file is instead.
    pub(super) fn of(mut documents: Vec<Map<String, Value>>) -> Result<Self, ValuesError> {
        let Some(mut first) = (documents.len() == 1).then(|| documents.remove(0)) else {
            return Self::among(documents.iter().collect());
        };
        for header in HEADERS {
            if first.get(header).is_some_and(Value::is_null) {
                first.remove(header);
            }
        }
        match (first.contains_key("apiVersion"), first.get("kind").and_then(Value::as_str)) {
            (true, Some("List")) => {
                let items = first.get("items").and_then(Value::as_array);
                Self::among(items.into_iter().flatten().filter_map(Value::as_object).collect())
            }
            (true, Some(kind)) => Self::of_object(kind, &first)?.ok_or_else(|| ValuesError::Object(kind.to_owned())),
            _ => Ok(Self::plain(match first.get_mut(NTH) {
                Some(values @ Value::Object(_)) => values.take(),
                _ => first.into(),
            })),
        }
    }

    pub(super) fn plain(values: Value) -> Self {
        Self { values, remarks: Vec::new() }
    }

    /// Returns the values of NTH's only object among these, as in a manifest or a list of `kubectl get`.
    fn among(objects: Vec<&Map<String, Value>>) -> Result<Self, ValuesError> {
        let mut found = Vec::new();
        for object in objects {
            let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default();
            found.extend(Self::of_object(kind, object)?);
        }
        match (found.pop(), found.len()) {
            (Some(one), 0) => Ok(one),
            (_, others) => Err(ValuesError::Objects(if others == 0 { 0 } else { others + 1 })),
        }
    }

    /// Returns the values of an object; `None` if it has none of NTH's.
    fn of_object(kind: &str, object: &Map<String, Value>) -> Result<Option<Self>, ValuesError> {
        let spec = object.get("spec").unwrap_or(&Value::Null);
        match kind {
            "Deployment" | "DaemonSet" => Ok(Self::of_workload(kind, spec)),
            "HelmRelease" => Ok(Some(Self::of_release(spec))),
            "Application" => Self::of_application(spec).map(Some),
            _ => Ok(None),
        }
    }

    /// Sets a value by its name with dots.
    pub(super) fn set(&mut self, name: &str, value: Value) {
        let mut place = &mut self.values;
        for part in name.split('.') {
            if !place.is_object() {
                *place = json!({});
            }
            place = &mut place[part];
        }
        *place = value;
    }

    fn of_release(spec: &Value) -> Self {
        let values = if spec["values"].is_object() { spec["values"].clone() } else { json!({}) };
        let mut found = Self::plain(values);
        if spec["valuesFrom"].as_array().is_some_and(|from| !from.is_empty()) {
            let text = "names ConfigMaps or Secrets, which are not read; give the output of helm get values instead";
            found.remarks.push(remark(Topic::Missing, "spec.valuesFrom", text));
        }
        found
    }

    fn of_application(spec: &Value) -> Result<Self, ValuesError> {
        let sources = spec["sources"].as_array().into_iter().flatten();
        let is_nth = |source: &&Value| source["chart"] == NTH;
        let source = sources.into_iter().find(is_nth).unwrap_or(&spec["source"]);
        let helm = &source["helm"];
        let mut found = Self::plain(json!({}));
        if let Some(text) = helm["values"].as_str() {
            found.values = values(text)?.into_iter().next().unwrap_or_default().into();
        }
        // As Argo CD does: values of the object win, and parameters over these.
        if let Value::Object(all) = &helm["valuesObject"] {
            all.iter().for_each(|(name, value)| found.values[name] = value.clone());
        }
        for parameter in helm["parameters"].as_array().into_iter().flatten() {
            if let (Some(name), Some(value)) = (parameter["name"].as_str(), parameter["value"].as_str()) {
                found.set(name, scalar(value));
            }
        }
        if helm["valueFiles"].as_array().is_some_and(|files| !files.is_empty()) {
            let text =
                "names files of the repository, which are not read; give these, or the output of helm get values";
            found.remarks.push(remark(Topic::Missing, "spec.source.helm.valueFiles", text));
        }
        Ok(found)
    }
}

/// Returns the value that a text stands for, as the chart has it.
pub(super) fn scalar(text: &str) -> Value {
    match text {
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        _ => text.parse::<i64>().map_or_else(|_| json!(text), |number| json!(number)),
    }
}
