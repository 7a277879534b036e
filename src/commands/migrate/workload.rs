//! NTH's Deployment or DaemonSet, whose container has the values as variables or arguments.

use super::form::Found;
use super::pods::NTH;
use super::table::table;
use super::{Topic, remark};
use serde_json::{Map, Value, json};

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

impl Found {
    /// Returns what NTH's container is given by arguments and variables, and where its pods run; `None` if there is no such container, or
    /// if it is for Windows.
    pub(super) fn of_workload(kind: &str, spec: &Value) -> Option<Self> {
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
