//! The marks of a notice, as the patch of its Node has them.

use super::view::{MarksView, Moment};
use crate::pipeline::node::Node;
use crate::pipeline::node::mark::written;
use serde_json::Value;
use std::collections::BTreeMap;

impl MarksView {
    /// Returns the view of the patch.
    pub(super) fn of(patch: &Value, node: &Node, taken_back: Option<Moment>) -> Self {
        let texts = |field: &str| -> BTreeMap<String, String> {
            let entries = patch["metadata"][field].as_object().cloned().unwrap_or_default();
            let text = |value: Value| value.as_str().map(str::to_owned);
            entries.into_iter().filter_map(|(key, value)| Some((key, text(value)?))).collect()
        };
        let taints: Vec<_> = serde_json::from_value(patch["spec"]["taints"].clone()).unwrap_or_default();
        Self {
            cordon: patch["spec"]["unschedulable"] == true && !node.cordoned,
            annotations: texts("annotations"),
            labels: texts("labels"),
            taints: taints.iter().filter(|taint| !node.taints.contains(taint)).map(written).collect(),
            taken_back,
        }
    }
}
