//! The forms in which people have NTH's values: a values file, the values of a parent chart, or an object of Kubernetes, Argo CD or Flux.

use super::pods::NTH;
use super::read::{ValuesError, values};
use super::table::table;
use super::{Remark, Topic, remark};
use serde_json::{Map, Value, json};

/// The first lines of `helm get values`, which are no values.
const HEADERS: [&str; 2] = ["USER-SUPPLIED VALUES", "COMPUTED VALUES"];

/// Variables of NTH that do not have the name of their value.
const VARIABLES: [(&str, &str); 5] = [
    ("METADATA_URL", "instanceMetadataURL"),
    ("GRACE_PERIOD", "podTerminationGracePeriod"),
    ("UPTIME_FROM_FILE", "procUptimeFile"),
    ("PROBES_SERVER_PORT", "probes.httpGet.port"),
    ("PROBES_SERVER_ENDPOINT", "probes.httpGet.path"),
];

/// Fields of a pod that the chart has as values of the same name.
const POD_FIELDS: [&str; 5] = ["nodeSelector", "tolerations", "affinity", "priorityClassName", "dnsPolicy"];

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

    fn plain(values: Value) -> Self {
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

    /// Returns what NTH's container is given by arguments and variables, and where its pods run; `None` if there is no such container, or
    /// if it is for Windows.
    fn of_workload(kind: &str, spec: &Value) -> Option<Self> {
        let pod = &spec["template"]["spec"];
        let containers = pod["containers"].as_array()?;
        let is_nth = |container: &&Value| {
            ["name", "image"].iter().any(|field| container[*field].as_str().is_some_and(|text| text.contains(NTH)))
        };
        let container = containers.iter().find(is_nth)?;
        if pod["nodeSelector"]["kubernetes.io/os"] == "windows" {
            return None;
        }
        let mut found = Self::plain(json!({}));
        found.take_variables(container);
        found.take_arguments(container);
        let mut selector = pod["nodeSelector"].clone();
        if let Some(selector) = selector.as_object_mut() {
            selector.remove("kubernetes.io/os");
        }
        for field in POD_FIELDS {
            let value = if field == "nodeSelector" { &selector } else { &pod[field] };
            // The API server fills in the policy.
            let is_filled_in = field == "dnsPolicy" && value == "ClusterFirst";
            let is_given = !value.is_null() && value.as_object().is_none_or(|map| !map.is_empty()) && !is_filled_in;
            if is_given {
                found.set(field, value.clone());
            }
        }
        if !container["resources"].as_object().is_none_or(Map::is_empty) {
            found.set("resources", container["resources"].clone());
        }
        if pod["imagePullSecrets"].as_array().is_some_and(|secrets| !secrets.is_empty()) {
            found.set("image.pullSecrets", pod["imagePullSecrets"].clone());
        }
        if kind == "Deployment" && spec["replicas"].is_u64() {
            found.set("replicas", spec["replicas"].clone());
        }
        if let Some(account) = pod["serviceAccountName"].as_str() {
            let text = format!(
                "the object shows its name, {account}, not its role: give Ebbtide's ServiceAccount the role, by serviceAccount.annotations or an \
                 association of EKS Pod Identity"
            );
            found.remarks.push(remark(Topic::Missing, "serviceAccount", &text));
        }
        Some(found)
    }

    fn take_variables(&mut self, container: &Value) {
        for variable in container["env"].as_array().into_iter().flatten() {
            let (name, from) = (variable["name"].as_str().unwrap_or_default(), &variable["valueFrom"]);
            let secret = from["secretKeyRef"]["name"].as_str();
            match (variable["value"].as_str(), secret) {
                (Some(value), _) => self.take(name, value, variable),
                (None, Some(secret)) if name == "WEBHOOK_URL" => self.set("webhookURLSecretName", json!(secret)),
                // The pod's own names.
                (None, _) if from["fieldRef"].is_object() => {}
                (None, _) => self.take_extra(variable),
            }
        }
    }

    fn take_arguments(&mut self, container: &Value) {
        let given = ["command", "args"].iter().flat_map(|field| container[*field].as_array().into_iter().flatten());
        let mut given = given.filter_map(Value::as_str).peekable();
        while let Some(argument) = given.next() {
            let Some(flag) = argument.strip_prefix("--").or_else(|| argument.strip_prefix('-')) else { continue };
            let (flag, value) = match flag.split_once('=') {
                Some((flag, value)) => (flag, value),
                None => (flag, given.next_if(|next| !next.starts_with('-')).unwrap_or("true")),
            };
            let name = flag.replace('-', "_").to_uppercase();
            self.take(&name, value, &json!({ "name": name, "value": value }));
        }
    }

    /// Takes a variable: as the value of its name, or else as one of the chart's extra variables.
    fn take(&mut self, name: &str, value: &str, variable: &Value) {
        if value.is_empty() {
            return;
        }
        let known = table().rows().map(|row| &*row.nth).find(|key| variable_of(key) == name);
        let aliases = || VARIABLES.iter().find(|(variable, _)| *variable == name).map(|(_, key)| *key);
        match known.or_else(aliases) {
            Some(key) => self.set(key, scalar(value)),
            None => self.take_extra(variable),
        }
    }

    fn take_extra(&mut self, variable: &Value) {
        if let Value::Array(all) = &mut self.values["extraEnv"] {
            all.push(variable.clone());
        } else {
            self.set("extraEnv", json!([variable]));
        }
    }

    /// Sets a value by its name with dots.
    fn set(&mut self, name: &str, value: Value) {
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

/// Returns the variable of a value: `QUEUE_URL` of `queueURL`.
fn variable_of(key: &str) -> String {
    let letters: Vec<char> = key.chars().collect();
    let mut variable = String::new();
    for (n, letter) in letters.iter().enumerate() {
        let before = n.checked_sub(1).map(|before| letters[before]);
        let starts = before.is_some_and(|before| !before.is_uppercase())
            || before.is_some() && letters.get(n + 1).is_some_and(|next| next.is_lowercase());
        if letter.is_uppercase() && starts {
            variable.push('_');
        }
        variable.extend(letter.to_uppercase());
    }
    variable
}

/// Returns the value that a text stands for, as the chart has it.
fn scalar(text: &str) -> Value {
    match text {
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        _ => text.parse::<i64>().map_or_else(|_| json!(text), |number| json!(number)),
    }
}
