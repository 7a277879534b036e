//! The replacement of a Node by its Auto Scaling group. An annotation on the old Node records the request to the group, one on the new Node
//! the instance that it replaces: any replica can continue after any restart, none requests twice, and two Nodes never count on the same new
//! one. Pure.

use super::Node;
use super::patch::guarded;
use super::record::{text, whole_seconds};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::time::Duration;

/// Name of the annotation of a Node that its group replaces.
const REPLACEMENT_ANNOTATION: &str = "ebbtide/replacement";

/// Name of the annotation of a Node that has replaced another: the other's instance.
const REPLACES_ANNOTATION: &str = "ebbtide/replaces";

/// Time after which the note of a request that was not confirmed no longer counts.
pub const NOTE_STALE: Duration = Duration::from_secs(90);

/// A replacement that a group was asked for: Ebbtide sets the instance's health to unhealthy in Auto Scaling.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct AskedReplacement {
    /// The Auto Scaling group.
    pub group: String,
    /// The time at which it was asked, in whole seconds.
    pub since: Timestamp,
    /// Whether no drain waits for it: it did not come in time, or the Node was drained before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub late: bool,
    /// Whether the request is not confirmed yet: the note is written before it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub asking: bool,
}

impl AskedReplacement {
    /// Returns the replacement of the Node that was asked for. An annotation that a user has edited beyond parsing is ignored.
    #[must_use]
    pub fn of(node: &Node) -> Option<Self> {
        serde_json::from_str(node.record.text(REPLACEMENT_ANNOTATION)?).ok()
    }

    /// The replacement by `group` that is asked for at `at`.
    #[must_use]
    pub fn new(group: &str, at: Timestamp) -> Self {
        Self { group: group.to_owned(), since: whole_seconds(at), late: false, asking: true }
    }

    /// Returns the patch that notes the replacement; `None` if the Node has a note.
    #[must_use]
    pub fn patch(&self, node: &Node) -> Option<Value> {
        Self::of(node).is_none().then(|| self.written(node))
    }

    /// Returns the patch that notes that the group was asked; `None` if the Node has no note, or one of a confirmed request.
    #[must_use]
    pub fn asked(node: &Node) -> Option<Value> {
        let noted = Self::of(node).filter(|noted| noted.asking)?;
        Some(Self { asking: false, ..noted }.written(node))
    }

    /// Returns the patch that notes that the replacement did not come in time; `None` if the Node has no note.
    #[must_use]
    pub fn late(node: &Node) -> Option<Value> {
        Some(Self { late: true, ..Self::of(node)? }.written(node))
    }

    fn written(&self, node: &Node) -> Value {
        guarded(node, &json!({ REPLACEMENT_ANNOTATION: text(self) }), &json!({}), json!({}))
    }

    /// Returns the patch that removes the note of a replacement that was not accepted; `None` if there is none.
    #[must_use]
    pub fn removal(node: &Node) -> Option<Value> {
        let noted = node.record.has(REPLACEMENT_ANNOTATION);
        noted.then(|| guarded(node, &json!({ REPLACEMENT_ANNOTATION: Value::Null }), &json!({}), json!({})))
    }
}

/// Returns when the note of an unconfirmed request no longer counts: the replica that wrote it has ended before.
pub(super) fn stale_at(node: &Node) -> Option<Timestamp> {
    let asking = AskedReplacement::of(node).filter(|noted| noted.asking)?;
    asking.since.checked_add(NOTE_STALE).ok()
}

/// Whether the Node's group was asked to replace it, and terminates its instance for that.
#[must_use]
pub fn is_asked(node: &Node) -> bool {
    AskedReplacement::of(node).is_some_and(|noted| !noted.asking)
}

/// Whether the Node is terminated because its group was asked to replace it, or is about to be asked.
#[must_use]
pub fn is_replaced(node: &Node, now: Timestamp) -> bool {
    AskedReplacement::of(node).is_some() && stale_at(node).is_none_or(|at| at > now)
}

/// Adds the removal of a note to a patch that removes the Node's marks: its instance has come back after all.
pub(super) fn forget(node: &Node, annotations: &mut Map<String, Value>) {
    if node.record.has(REPLACEMENT_ANNOTATION) {
        annotations.insert(REPLACEMENT_ANNOTATION.to_owned(), Value::Null);
    }
}

/// Whether the Node replaces an instance other than this one.
#[must_use]
pub fn replaces_another(node: &Node, instance: &str) -> bool {
    node.record.text(REPLACES_ANNOTATION).is_some_and(|old| old != instance)
}

/// Returns the patch that notes that the Node replaces this instance; `None` if it replaces one already.
#[must_use]
pub fn claim(node: &Node, instance: &str) -> Option<Value> {
    let note = || guarded(node, &json!({ REPLACES_ANNOTATION: instance }), &json!({}), json!({}));
    (!node.record.has(REPLACES_ANNOTATION)).then(note)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_notes_are_on_both_nodes() {
        let mut node = Node::for_tests("node-1");
        let asked = AskedReplacement::new("workers", "2026-11-21T12:00:00.7Z".parse().unwrap());
        let written = |patch: &Value, key: &str| patch["metadata"]["annotations"][key].as_str().unwrap().to_owned();
        let note = written(&asked.patch(&node).unwrap(), REPLACEMENT_ANNOTATION);
        assert_eq!(note, r#"{"group":"workers","since":"2026-11-21T12:00:00Z","asking":true}"#);
        assert_eq!(AskedReplacement::removal(&node), None);
        node.record.insert(REPLACEMENT_ANNOTATION, note);
        assert_eq!((AskedReplacement::of(&node), asked.patch(&node)), (Some(asked), None));
        assert!(AskedReplacement::removal(&node).is_some());
        let after = |seconds| "2026-11-21T12:00:00Z".parse::<Timestamp>().unwrap() + Duration::from_secs(seconds);
        assert!(is_replaced(&node, after(89)) && !is_replaced(&node, after(90)), "nobody has asked");
        let note = written(&AskedReplacement::asked(&node).unwrap(), REPLACEMENT_ANNOTATION);
        node.record.insert(REPLACEMENT_ANNOTATION, note);
        assert!(is_replaced(&node, after(90)) && AskedReplacement::asked(&node).is_none());

        let mut new = Node::for_tests("node-2");
        let note = written(&claim(&new, "i-1").unwrap(), REPLACES_ANNOTATION);
        new.record.insert(REPLACES_ANNOTATION, note);
        assert!(!replaces_another(&new, "i-1") && replaces_another(&new, "i-2"));
        assert_eq!(claim(&new, "i-2"), None);
    }
}
