//! The forms in which people have NTH's values: a values file, the values of a parent chart, or an object of Kubernetes, Argo CD or Flux.

use super::helm_set::{self, Place};
use super::pods::NTH;
use super::read::{ValuesError, values};
use super::table::table;
use super::value::is_empty;
use super::{OLDER, Remark, Topic, remark};
use crate::cli::text::clean;
use serde_json::{Map, Value};

/// The first lines of `helm get values`, which are no values.
const HEADERS: [&str; 2] = ["USER-SUPPLIED VALUES", "COMPUTED VALUES"];

/// The value that decides the mode.
const DECIDES: &str = "enableSqsTerminationDraining";

/// NTH's values, with remarks on what is not in them.
pub(super) struct Found {
    pub values: Value,
    /// The name under which a parent chart has them.
    pub parent: Option<String>,
    pub remarks: Vec<Remark>,
    /// They are not all: others are in files or objects that are not read.
    is_partial: bool,
}

impl Found {
    /// Returns the values in these documents of a file.
    ///
    /// # Errors
    /// What the file is instead.
    pub(super) fn of(mut documents: Vec<Map<String, Value>>) -> Result<Self, ValuesError> {
        let Some(mut first) = (documents.len() == 1).then(|| documents.remove(0)) else {
            let objects: Vec<_> = documents.into_iter().map(Value::Object).collect();
            return Self::among(&objects);
        };
        for header in HEADERS {
            if first.get(header).is_some_and(Value::is_null) {
                first.remove(header);
            }
        }
        match (first.contains_key("apiVersion"), first.get("kind").and_then(Value::as_str)) {
            (true, Some("List")) => {
                let items = first.get("items").and_then(Value::as_array);
                Self::among(items.map(Vec::as_slice).unwrap_or_default())
            }
            (true, Some(kind)) => {
                let kind = kind.to_owned();
                Self::of_object(&Value::Object(first), &[])?.ok_or(ValuesError::Object(kind))
            }
            _ => {
                let other = first.keys().find(|name| !is_nths(name) && *name != "global").map(|name| clean(name));
                Self::of_values(first, other.is_none())?.ok_or(ValuesError::Foreign(other.unwrap_or_default()))
            }
        }
    }

    pub(super) fn plain(values: Value) -> Self {
        Self { values, parent: None, remarks: Vec::new(), is_partial: false }
    }

    /// Returns the values that a parent chart has for NTH's, under the chart's name or an alias, or else those of NTH's chart itself: if
    /// they are known to be its own, or have a name that no other chart has.
    fn of_values(mut values: Map<String, Value>, are_nths: bool) -> Result<Option<Self>, ValuesError> {
        let has_own = |map: &Map<String, Value>| map.keys().any(|name| is_nths_alone(name));
        let parent = if matches!(values.get(NTH), Some(Value::Object(_) | Value::Null)) {
            Some(NTH.to_owned())
        } else if has_own(&values) {
            None
        } else {
            let mut below = values
                .iter()
                .filter(|(name, value)| !is_nths(name) && value.as_object().is_some_and(has_own))
                .map(|(name, _)| name.clone());
            match (below.next(), below.next()) {
                (Some(one), Some(other)) => return Err(ValuesError::Several(clean(&one), clean(&other))),
                (None, _) if !are_nths => return Ok(None),
                (name, _) => name,
            }
        };
        let below = parent.as_ref().and_then(|name| values.remove(name));
        let values = match below {
            Some(Value::Object(below)) => below,
            Some(_) => Map::new(),
            None => values,
        };
        Ok(Some(Self { parent, ..Self::plain(values.into()) }))
    }

    /// Returns the values of NTH's only object among these, as in a manifest or a list of `kubectl get`.
    fn among(objects: &[Value]) -> Result<Self, ValuesError> {
        let mut found = Vec::new();
        for object in objects {
            found.extend(Self::of_object(object, objects)?);
        }
        match (found.pop(), found.len()) {
            (Some(one), 0) => Ok(one),
            (_, others) => Err(ValuesError::Objects(if others == 0 { 0 } else { others + 1 })),
        }
    }

    /// Returns the values of an object of a manifest; `None` if it does not show NTH's, or not the one that decides the mode.
    fn of_object(object: &Value, manifest: &[Value]) -> Result<Option<Self>, ValuesError> {
        let spec = &object["spec"];
        let found = match object["kind"].as_str() {
            Some("Deployment" | "DaemonSet") => Self::of_workload(object, manifest),
            Some("HelmRelease") => Self::of_release(spec)?,
            Some("Application") => Self::of_application(spec)?,
            _ => None,
        };
        Ok(found.filter(|found| !found.is_partial || !found.values[DECIDES].is_null()))
    }

    /// Sets a value by its name with dots.
    pub(super) fn set(&mut self, name: &str, value: Value) {
        if let Some(place) = Place::of(name) {
            place.set(&mut self.values, value);
        }
    }

    /// Remarks on files and objects that are not read.
    pub(super) fn refer(&mut self, name: &str, to: &Value, instead: &str) {
        if !is_empty(to) {
            let text = format!("names what is not read, so that its values are missing here; give {instead} instead");
            self.remarks.push(remark(Topic::Missing, name, &text));
            self.is_partial = true;
        }
    }

    fn of_release(spec: &Value) -> Result<Option<Self>, ValuesError> {
        let chart = &spec["chart"]["spec"];
        let values = spec["values"].as_object().cloned().unwrap_or_default();
        let mut found = Self::of_values(values, chart["chart"] == NTH)?;
        if let Some(found) = &mut found {
            found.refer("spec.valuesFrom", &spec["valuesFrom"], "the output of helm get values");
            found.refer("spec.chart.spec.valuesFiles", &chart["valuesFiles"], "the output of helm get values");
        }
        Ok(found)
    }

    fn of_application(spec: &Value) -> Result<Option<Self>, ValuesError> {
        let sources = spec["sources"].as_array().into_iter().flatten();
        let is_nth = |source: &&Value| source["chart"] == NTH;
        let source = sources.into_iter().find(is_nth).unwrap_or(&spec["source"]);
        let helm = &source["helm"];
        // As Argo CD does: an object replaces the text, and parameters win over both.
        let mut given = match (&helm["valuesObject"], helm["values"].as_str()) {
            (Value::Object(object), _) => Self::plain(object.clone().into()),
            (_, text) => Self::plain(values(text.unwrap_or_default())?.into_iter().next().unwrap_or_default().into()),
        };
        for parameter in helm["parameters"].as_array().into_iter().flatten() {
            given.take_parameter(parameter);
        }
        let values = if let Value::Object(values) = given.values { values } else { Map::new() };
        let mut found = Self::of_values(values, source["chart"] == NTH)?;
        if let Some(found) = &mut found {
            found.remarks.append(&mut given.remarks);
            for files in ["valueFiles", "fileParameters"] {
                let name = format!("spec.source.helm.{files}");
                found.refer(&name, &helm[files], "the files, or the output of argocd app manifests");
            }
        }
        Ok(found)
    }

    /// Sets the value of a parameter of an Application.
    fn take_parameter(&mut self, parameter: &Value) {
        let (name, is_text) = (parameter["name"].as_str().unwrap_or_default(), parameter["forceString"] == true);
        let text = match &parameter["value"] {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            other => other.to_string(),
        };
        if let Some(place) = Place::of(name) {
            place.set(&mut self.values, helm_set::value(&text, is_text));
        } else {
            let text =
                format!("{name:?} is not a name for helm --set, which Argo CD requires; correct it and try again");
            self.remarks.push(remark(Topic::Lost, "spec.source.helm.parameters", &text));
        }
    }
}

/// Whether a name is one of NTH's values, now or in older charts.
fn is_nths(name: &str) -> bool {
    OLDER.contains(&name) || table().rows().any(|row| row.nth.split('.').next() == Some(name))
}

/// Whether a name is one of NTH's values, and not of other charts' as well.
fn is_nths_alone(name: &str) -> bool {
    is_nths(name) && !table().shared.iter().any(|shared| shared == name)
}
