//! NTH's other objects in the same manifest: its `ServiceAccount`, its disruption budget and its monitor.

use super::form::Found;
use super::value::is_empty;
use serde_json::{Map, Value, json};

/// Ends of the domains of labels and annotations that charts, kOps and other tools set: Ebbtide's objects have those of their own tool.
const TOOLS: [&str; 6] =
    ["app.kubernetes.io", "argoproj.io", "fluxcd.io", "helm.sh", "kops.k8s.io", "kubectl.kubernetes.io"];

/// Labels that NTH's chart and kOps set.
const NTHS: [&str; 2] = ["k8s-app", "kubernetes.io/os"];

impl Found {
    /// Takes the disruption budget and the monitor of the workload's pods.
    pub(super) fn take_beside(&mut self, workload: &Value, manifest: &[Value]) {
        let pods = &workload["spec"]["template"]["metadata"]["labels"];
        for object in manifest.iter().filter(|object| selects(&object["spec"]["selector"], pods)) {
            let spec = &object["spec"];
            match object["kind"].as_str() {
                Some("PodDisruptionBudget") if are_together(object, workload) => {
                    let mut budget = spec.as_object().cloned().unwrap_or_default();
                    budget.remove("selector");
                    self.set("podDisruptionBudget", budget.into());
                }
                Some("ServiceMonitor") => {
                    self.take_monitor("serviceMonitor", object, &spec["endpoints"][0], workload);
                }
                Some("PodMonitor") => {
                    self.take_monitor("podMonitor", object, &spec["podMetricsEndpoints"][0], workload);
                }
                _ => {}
            }
        }
    }

    fn take_monitor(&mut self, name: &str, monitor: &Value, endpoint: &Value, workload: &Value) {
        let metadata = &monitor["metadata"];
        let namespace = if are_together(monitor, workload) { &Value::Null } else { &metadata["namespace"] };
        let fields = [
            ("create", json!(true)),
            ("namespace", namespace.clone()),
            ("labels", without_tools(&metadata["labels"]).into()),
            ("interval", endpoint["interval"].clone()),
            ("sampleLimit", monitor["spec"]["sampleLimit"].clone()),
        ];
        for (field, value) in fields.into_iter().filter(|(_, value)| !is_empty(value)) {
            self.set(&format!("{name}.{field}"), value);
        }
    }
}

/// Returns the annotations of the `ServiceAccount` of the workload's pods, if the manifest has it.
pub(super) fn account_annotations(workload: &Value, manifest: &[Value]) -> Map<String, Value> {
    let name = &workload["spec"]["template"]["spec"]["serviceAccountName"];
    let is_theirs = |object: &&Value| {
        object["kind"] == "ServiceAccount" && object["metadata"]["name"] == *name && are_together(object, workload)
    };
    let account = manifest.iter().find(is_theirs).unwrap_or(&Value::Null);
    without_tools(&account["metadata"]["annotations"])
}

/// Returns labels or annotations, except those of tools and of NTH.
pub(super) fn without_tools(map: &Value) -> Map<String, Value> {
    let mut map = map.as_object().cloned().unwrap_or_default();
    map.retain(|name, _| {
        let domain = name.split_once('/').map_or("", |(domain, _)| domain);
        !TOOLS.iter().any(|tool| domain.ends_with(tool)) && !NTHS.contains(&name.as_str())
    });
    map
}

/// Whether two objects are in one namespace, as far as they show theirs.
fn are_together(one: &Value, other: &Value) -> bool {
    let (one, other) = (&one["metadata"]["namespace"], &other["metadata"]["namespace"]);
    one == other || one.is_null() || other.is_null()
}

/// Whether a selector selects pods by labels.
fn selects(selector: &Value, pods: &Value) -> bool {
    let labels = selector["matchLabels"].as_object();
    labels.is_some_and(|labels| !labels.is_empty() && labels.iter().all(|(name, value)| pods[name] == *value))
}
