//! Patches of Nodes. Pure.

use super::Node;
use serde::Serialize;
use serde_json::{Value, json};

/// Formats the value of an annotation. This can't fail: no map has keys that are not strings.
pub(super) fn text(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// Returns a merge patch that applies only to this version of the Node, and not to another Node of its name.
pub(super) fn guarded(node: &Node, annotations: &Value, labels: &Value, spec: Value) -> Value {
    let mut metadata = json!({ "uid": *node.uid, "resourceVersion": *node.resource_version });
    for (field, entries) in [("annotations", annotations), ("labels", labels)] {
        if entries.as_object().is_some_and(|entries| !entries.is_empty()) {
            metadata[field] = entries.clone();
        }
    }
    let mut patch = json!({ "metadata": metadata });
    if spec.as_object().is_some_and(|spec| !spec.is_empty()) {
        patch["spec"] = spec;
    }
    patch
}
