//! NTH's Deployment or DaemonSet, whose container has the values as variables or arguments.

use super::form::Found;
use super::manifest::{account_annotations, without_tools};
use super::pods::NTH;
use super::table::{How, table};
use super::value::is_empty;
use super::{Topic, remark};
use serde_json::{Map, Value, json};
use std::path::Path;

/// Variables of NTH that do not have the name of their value.
const VARIABLES: [(&str, &str); 5] = [
    ("METADATA_URL", "instanceMetadataURL"),
    ("GRACE_PERIOD", "podTerminationGracePeriod"),
    ("UPTIME_FROM_FILE", "procUptimeFile"),
    ("PROBES_SERVER_PORT", "probes.httpGet.port"),
    ("PROBES_SERVER_ENDPOINT", "probes.httpGet.path"),
];

/// Fields of a pod, with the values that NTH's chart has for them in its Deployment and in its DaemonSet.
const POD_FIELDS: [(&str, &str, &str); 10] = [
    ("nodeSelector", "nodeSelector", "daemonsetNodeSelector"),
    ("tolerations", "tolerations", "daemonsetTolerations"),
    ("affinity", "affinity", "daemonsetAffinity"),
    ("priorityClassName", "priorityClassName", "daemonsetPriorityClassName"),
    ("dnsPolicy", "dnsPolicy", "linuxDnsPolicy"),
    ("imagePullSecrets", "image.pullSecrets", "image.pullSecrets"),
    ("terminationGracePeriodSeconds", "terminationGracePeriodSeconds", "terminationGracePeriodSeconds"),
    ("topologySpreadConstraints", "topologySpreadConstraints", "topologySpreadConstraints"),
    ("dnsConfig", "dnsConfig", "dnsConfig"),
    ("securityContext", "podSecurityContext", "podSecurityContext"),
];

/// Fields of a container, with their values in NTH's chart.
const CONTAINER_FIELDS: [(&str, &str); 3] =
    [("resources", "resources"), ("securityContext", "securityContext"), ("imagePullPolicy", "image.pullPolicy")];

impl Found {
    /// Returns what NTH's container is given by arguments and variables, and where its pods run; `None` if there is no such container, or
    /// if it is for Windows.
    pub(super) fn of_workload(object: &Value, manifest: &[Value]) -> Option<Self> {
        let spec = &object["spec"];
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
        found.refer("envFrom", &container["envFrom"], "a values file of NTH's chart");
        found.take_metadata(object);
        let is_daemon_set = object["kind"] == "DaemonSet";
        for (field, deployment, daemon_set) in POD_FIELDS {
            let mut value = pod[field].clone();
            if let Some(selector) = value.as_object_mut() {
                selector.remove("kubernetes.io/os");
            }
            // The API server fills them in.
            let is_default = match field {
                "dnsPolicy" => value == "ClusterFirst",
                "terminationGracePeriodSeconds" => value == 30,
                _ => false,
            };
            if !is_default && !is_empty(&value) {
                found.set(if is_daemon_set { daemon_set } else { deployment }, value);
            }
        }
        for (field, name) in CONTAINER_FIELDS.into_iter().filter(|(field, _)| !is_empty(&container[*field])) {
            found.set(name, container[field].clone());
        }
        if is_daemon_set {
            found.set("useHostNetwork", json!(pod["hostNetwork"] == true));
            found.take_update_strategy(&spec["updateStrategy"]);
        } else {
            found.take_deployment(spec);
        }
        found.take_beside(object, manifest);
        found.take_account(pod, container, account_annotations(object, manifest));
        Some(found)
    }

    /// Takes the labels and annotations of the pods, and names those of the object, which may be a tool's.
    fn take_metadata(&mut self, object: &Value) {
        let (spec, pods) = (&object["spec"], &object["spec"]["template"]["metadata"]);
        let mut labels = without_tools(&pods["labels"]);
        labels.retain(|name, _| spec["selector"]["matchLabels"][name].is_null());
        for (name, map) in [("podLabels", labels), ("podAnnotations", without_tools(&pods["annotations"]))] {
            if !map.is_empty() {
                self.set(name, map.into());
            }
        }
        let labels: Vec<_> = without_tools(&object["metadata"]["labels"]).into_iter().map(|(name, _)| name).collect();
        if !labels.is_empty() {
            let text = format!(
                "the object's {} may be a tool's, and not of customLabels; set commonLabels if Ebbtide's objects need it",
                labels.join(", ")
            );
            self.remarks.push(remark(Topic::Lost, "customLabels", &text));
        }
    }

    fn take_deployment(&mut self, spec: &Value) {
        if spec["replicas"].is_u64() {
            self.set("replicas", spec["replicas"].clone());
        }
        // The API server fills it in.
        let default =
            json!({ "type": "RollingUpdate", "rollingUpdate": { "maxSurge": "25%", "maxUnavailable": "25%" } });
        if !is_empty(&spec["strategy"]) && spec["strategy"] != default {
            self.set("strategy", spec["strategy"].clone());
        }
        if spec["template"]["spec"]["hostNetwork"] == true {
            let text = "is not a value of NTH's chart for its Deployment: if Ebbtide's pods need the role of their nodes as well, set hostNetwork, \
                        and admin.port and status.port to ports that are free on the nodes";
            self.remarks.push(remark(Topic::Lost, "hostNetwork", text));
        }
    }

    fn take_update_strategy(&mut self, given: &Value) {
        let mut strategy = given.clone();
        if let Some(Value::Object(rolling)) = strategy.get_mut("rollingUpdate") {
            // The API server fills it in.
            rolling.retain(|name, value| name != "maxSurge" || *value != 0);
        }
        if !is_empty(&strategy) {
            self.set("updateStrategy", strategy);
        }
    }

    /// Takes the role that the pods' `ServiceAccount` has by its annotations.
    fn take_account(&mut self, pod: &Value, container: &Value, annotations: Map<String, Value>) {
        let is_shown = annotations.contains_key("eks.amazonaws.com/role-arn");
        if !annotations.is_empty() {
            self.set("serviceAccount.annotations", annotations.into());
        }
        if let Some(account) = pod["serviceAccountName"].as_str().filter(|_| !is_shown) {
            let env = container["env"].as_array().into_iter().flatten();
            let role =
                env.filter(|variable| variable["name"] == "AWS_ROLE_ARN").find_map(|role| role["value"].as_str());
            let shown = role.map_or_else(
                || format!("the object shows its name, {account}, not its role"),
                |role| format!("the object's role is {role}"),
            );
            let text = format!(
                "{shown}: give Ebbtide's ServiceAccount that role or one of its own, by serviceAccount.annotations or an association of EKS Pod \
                 Identity"
            );
            self.remarks.push(remark(Topic::Missing, "serviceAccount", &text));
        }
    }

    fn take_variables(&mut self, container: &Value) {
        for variable in container["env"].as_array().into_iter().flatten() {
            let (name, from) = (variable["name"].as_str().unwrap_or_default(), &variable["valueFrom"]);
            let secret = from["secretKeyRef"]["name"].as_str();
            match (variable["value"].as_str(), secret) {
                (Some(file), _) if is_carried(name) && is_mounted(file, container) => {
                    let text = "names a file in a volume of NTH's pods, which is not carried over: set extraVolumes, \
                                extraVolumeMounts and extraEnv";
                    self.remarks.push(remark(Topic::Lost, name, text));
                }
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

/// Whether an extra variable would be copied.
fn is_carried(name: &str) -> bool {
    table().rows().any(|row| matches!(&row.how, How::Env(rules) if rules.takes(name)))
}

/// Whether a text is the path of a file in a volume of the container.
fn is_mounted(path: &str, container: &Value) -> bool {
    let mounts = container["volumeMounts"].as_array().into_iter().flatten();
    mounts.filter_map(|mount| mount["mountPath"].as_str()).any(|mount| Path::new(path).starts_with(mount))
}

/// Returns the value that a text stands for, as the chart has it.
fn scalar(text: &str) -> Value {
    match text {
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        _ => text.parse::<i64>().map_or_else(|_| json!(text), |number| json!(number)),
    }
}
