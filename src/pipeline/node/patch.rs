//! Patches of Nodes. Pure.

use super::Node;
use super::record::RecordChange;
use serde_json::{Value, json};

/// How much of its marks Ebbtide changes on a Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Extent {
    /// The cordon and the records.
    CordonAndRecord,
    /// These, and the taint that lets the pods of a stopped or terminated instance move.
    OutOfService,
    /// All marks, with the taints and the label of the settings.
    Whole,
}

impl Extent {
    /// Returns the next smaller extent: for a Node whose marks admission denies.
    pub(super) const fn smaller(self) -> Option<Self> {
        match self {
            Self::Whole => Some(Self::OutOfService),
            Self::OutOfService => Some(Self::CordonAndRecord),
            Self::CordonAndRecord => None,
        }
    }
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

/// Returns the patch that writes these changes of records, and nothing else.
pub(super) fn recorded(node: &Node, changes: &[RecordChange]) -> Value {
    guarded(node, &node.record.annotations(changes).into(), &json!({}), json!({}))
}
