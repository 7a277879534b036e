//! Holds: one annotation reports that an interruption of the Node waits for a user or another controller, who releases it with a second
//! one. Any replica can continue the wait of another. Pure.

use super::Node;
use super::patch::guarded;
use crate::fact::HoldPoint;
use serde_json::{Map, Value, json};

/// Name of the annotation that names the point at which an interruption waits.
const HOLD_ANNOTATION: &str = "ebbtide/hold";

/// Name of the annotation that releases it: one of the points, several with commas, or `true` for all of them.
const RELEASE_ANNOTATION: &str = "ebbtide/release";

/// Name of the annotation that names the point whose hold has timed out and is not repeated.
const HELD_ANNOTATION: &str = "ebbtide/held";

/// Whether the Node's interruptions need not wait at this point: a user or a controller has released them, or the hold has timed out.
#[must_use]
pub fn is_over(node: &Node, point: HoldPoint) -> bool {
    is_released(node, point) || names(node, HELD_ANNOTATION, point)
}

/// Whether a user or a controller has released the Node's interruptions from this point. That lasts until the Node's marks are removed, so
/// that neither a takeover nor a second notice about the instance waits again.
#[must_use]
pub fn is_released(node: &Node, point: HoldPoint) -> bool {
    names(node, RELEASE_ANNOTATION, point)
}

fn names(node: &Node, annotation: &str, point: HoldPoint) -> bool {
    let points = node.record.text(annotation);
    points.is_some_and(|points| points.split(',').map(str::trim).any(|word| word == "true" || word == point.as_str()))
}

/// A change of a hold, as the Node records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldChange {
    /// It begins.
    Begins,
    /// It ends.
    Ends,
    /// It ends because evictions begin: no takeover delays them again.
    Over,
}

/// Returns the patch that records the change; `None` if the Node has it.
pub(super) fn patch(node: &Node, point: HoldPoint, change: HoldChange) -> Option<Value> {
    let annotations = match change {
        HoldChange::Begins => json!({ HOLD_ANNOTATION: point.as_str() }),
        HoldChange::Ends => json!({ HOLD_ANNOTATION: null }),
        HoldChange::Over => json!({ HOLD_ANNOTATION: null, HELD_ANNOTATION: point.as_str() }),
    };
    let is_new = is_held(node, point) == (change != HoldChange::Begins);
    is_new.then(|| guarded(node, &annotations, &json!({}), json!({})))
}

/// Whether an interruption of the Node is held at this point.
#[must_use]
pub fn is_held(node: &Node, point: HoldPoint) -> bool {
    node.record.text(HOLD_ANNOTATION).is_some_and(|held| held == point.as_str())
}

/// Adds the removal of the Node's annotations of holds to a patch: an old release must not release the next interruption.
pub(super) fn forget(node: &Node, annotations: &mut Map<String, Value>) {
    let all = [HOLD_ANNOTATION, RELEASE_ANNOTATION, HELD_ANNOTATION];
    let known = all.into_iter().filter(|name| node.record.has(name));
    annotations.extend(known.map(|name| (name.to_owned(), Value::Null)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, value: &str) -> Node {
        let mut node = Node::for_tests("node-1");
        node.record.insert(name, value);
        node
    }

    #[test]
    fn a_release_names_its_points() {
        for (said, released) in [
            ("before-drain", [true, false]),
            ("before-completion", [false, true]),
            ("before-drain, before-completion", [true, true]),
            ("true", [true, true]),
            ("false", [false, false]),
            ("", [false, false]),
        ] {
            let node = node(RELEASE_ANNOTATION, said);
            assert_eq!(HoldPoint::ALL.map(|point| is_released(&node, point)), released, "{said:?}");
        }
    }

    #[test]
    fn a_hold_is_written_once_and_only_its_own_is_ended() {
        let held = node(HOLD_ANNOTATION, "before-drain");
        let written = |point, change| patch(&held, point, change).map(|patch| patch["metadata"]["annotations"].clone());
        assert_eq!(written(HoldPoint::BeforeDrain, HoldChange::Begins), None);
        assert_eq!(written(HoldPoint::BeforeCompletion, HoldChange::Ends), None);
        assert_eq!(written(HoldPoint::BeforeDrain, HoldChange::Ends), Some(json!({ "ebbtide/hold": null })));
        let over = json!({ "ebbtide/hold": null, "ebbtide/held": "before-drain" });
        assert_eq!(written(HoldPoint::BeforeDrain, HoldChange::Over), Some(over));
        let next = json!({ "ebbtide/hold": "before-completion" });
        assert_eq!(written(HoldPoint::BeforeCompletion, HoldChange::Begins), Some(next));
    }
}
