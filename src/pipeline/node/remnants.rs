//! What is left of Ebbtide on a Node once nothing of it runs, and the patches that remove it. Pure.

use super::Node;
use super::mark::{KIND_LABEL, MarkSettings};
use super::names::{IGNORE_ANNOTATION, OWN_PREFIX, TEST_ANNOTATION};
use super::release::NodeRelease;
use super::replacement::AskedReplacement;
use super::wire::TrimmedNode;
use crate::fact::condition;
use serde_json::{Map, Value, json};

/// Types of the conditions of a drain: Ebbtide's own, and those of KEP-5683, which Ebbtide sets only together with its own.
const CONDITIONS: [&str; 3] = [condition::DRAINING, condition::IN_PROGRESS, condition::DRAINED];

/// What is left of Ebbtide on a Node. Annotations with which users give Ebbtide an order stay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remnants {
    /// Whether the Node is cordoned by Ebbtide.
    pub cordon: bool,
    /// Taints that can be Ebbtide's, as `kubectl` writes them.
    pub taints: Vec<String>,
    /// Labels that can be Ebbtide's.
    pub labels: Vec<String>,
    /// Names of annotations.
    pub annotations: Vec<String>,
    /// Types of conditions.
    pub conditions: Vec<&'static str>,
    /// Taints and labels that the Node lists for removal, and that stay: no mark by these settings can have put them there.
    pub left: Vec<String>,
    /// Kinds of the notices that hold the Node, or are planned for it.
    pub notices: Vec<String>,
    /// Whether a lifecycle hook of the Node's instance may wait for Ebbtide.
    pub hook: bool,
    /// The Auto Scaling group that was asked to replace the Node, if one was.
    pub group: Option<String>,
    patch: Value,
}

impl Remnants {
    /// Returns what is left on the Node; `None` if nothing is. `conditions` are the types of the conditions of a drain that the Node has.
    #[must_use]
    pub fn of(node: &Node, conditions: Vec<&'static str>, settings: &MarkSettings) -> Option<Self> {
        let is_order = |name: &str| matches!(name, IGNORE_ANNOTATION | TEST_ANNOTATION);
        let annotations: Vec<_> =
            node.record.with_prefix(OWN_PREFIX).map(|(name, _)| name.clone()).filter(|name| !is_order(name)).collect();
        let (undo, left) = settings.divide(node.record.undo().clone());
        let has_label = |label: &&str| node.labels.contains_key(*label);
        let labels: Vec<_> = undo.labels.iter().map(String::as_str).chain([KIND_LABEL]).filter(has_label).collect();
        if annotations.is_empty() && labels.is_empty() && conditions.is_empty() {
            return None;
        }
        let removed: Map<String, Value> = annotations.iter().map(|name| (name.clone(), Value::Null)).collect();
        let patch = NodeRelease::full_patch(node, removed, settings);
        let live = || node.record.all().map(|(_, notice)| notice).filter(|notice| notice.work.is_live());
        let is_on_node = |taint: &String| node.taints.iter().any(|own| super::mark::written(own) == *taint);
        Some(Self {
            cordon: patch.uncordons,
            taints: undo.taints.iter().filter(|taint| is_on_node(taint)).cloned().collect(),
            labels: labels.into_iter().map(str::to_owned).collect(),
            annotations,
            conditions,
            left,
            notices: live().map(|notice| notice.kind.clone()).collect(),
            hook: live().any(|notice| notice.work.holds() && notice.has_hook()),
            group: AskedReplacement::of(node).map(|asked| asked.group),
            patch: patch.body,
        })
    }

    /// Returns the patch of the Node; `None` if there is nothing but conditions.
    #[must_use]
    pub fn patch(&self) -> Option<&Value> {
        (!self.annotations.is_empty() || !self.labels.is_empty()).then_some(&self.patch)
    }

    /// Returns the strategic merge patch of the Node's status; `None` if it has no conditions of a drain.
    #[must_use]
    pub fn status_patch(&self) -> Option<Value> {
        let removed = |kind: &&str| json!({ "type": kind, "$patch": "delete" });
        let conditions: Vec<_> = self.conditions.iter().map(removed).collect();
        (!conditions.is_empty()).then(|| json!({ "status": { "conditions": conditions } }))
    }
}

/// Returns the types of the conditions of a drain that the Node has, if Ebbtide's own is among them: other tools set the others, too.
#[must_use]
pub fn drain_conditions(node: &TrimmedNode) -> Vec<&'static str> {
    let has = |kind: &&str| node.status.has_condition(kind);
    if has(&condition::DRAINING) { CONDITIONS.into_iter().filter(has).collect() } else { Vec::new() }
}
