//! The reboot of a Node's instance that EC2 was asked for. An annotation on the Node records it before the call: no replica asks twice within
//! an hour, whatever happens to the one that asked. It outlives the marks. Pure.

use super::Node;
use super::patch::guarded;
use super::record::whole_seconds;
use jiff::Timestamp;
use serde_json::{Value, json};

/// Name of the annotation of a Node whose instance was rebooted: when EC2 was asked.
const REBOOT_ANNOTATION: &str = "ebbtide/reboot";

/// Returns when EC2 was last asked to reboot the Node's instance. An annotation that a user has edited beyond parsing is ignored.
#[must_use]
pub fn rebooted_at(node: &Node) -> Option<Timestamp> {
    node.record.text(REBOOT_ANNOTATION)?.parse().ok()
}

/// Returns the patch that notes a reboot at `at`, if the Node's last is still `known`: another replica may have asked meanwhile.
#[must_use]
pub fn note(node: &Node, known: Option<Timestamp>, at: Timestamp) -> Option<Value> {
    (rebooted_at(node) == known).then(|| annotated(node, &json!(whole_seconds(at))))
}

/// Returns the patch that removes the note of a reboot that EC2 refused; `None` if there is none.
#[must_use]
pub fn removal(node: &Node) -> Option<Value> {
    node.record.has(REBOOT_ANNOTATION).then(|| annotated(node, &Value::Null))
}

fn annotated(node: &Node, value: &Value) -> Value {
    guarded(node, &json!({ REBOOT_ANNOTATION: value }), &json!({}), json!({}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reboot_is_noted_once() {
        let mut node = Node::for_tests("node-1");
        let at: Timestamp = "2026-11-30T12:00:00.7Z".parse().unwrap();
        assert_eq!((rebooted_at(&node), removal(&node)), (None, None));
        let patch = note(&node, None, at).unwrap();
        let text = patch["metadata"]["annotations"][REBOOT_ANNOTATION].as_str().unwrap();
        assert_eq!(text, "2026-11-30T12:00:00Z");
        node.record.insert(REBOOT_ANNOTATION, text.to_owned());
        let noted = rebooted_at(&node);
        assert_eq!(noted, Some(whole_seconds(at)));
        assert_eq!(note(&node, None, at), None, "another replica has asked");
        assert!(note(&node, noted, at).is_some() && removal(&node).is_some());
        node.record.insert(REBOOT_ANNOTATION, "soon");
        assert_eq!(rebooted_at(&node), None);
    }
}
