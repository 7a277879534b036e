//! What a message tells that the Node has said before: its mark, or its plan, says so, and the Node can't take it back any more. Pure.

use super::Node;
use super::mark::{NOTICE_PREFIX, NoticeAnnotation, PLAN_PREFIX, guarded, read, withdrawn_at};
use super::names::is_from_node;
use crate::pipeline::event::{Identity, Notice};
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use std::time::Duration;

/// Maximum difference between the times of a notice as the metadata and as an event name them. An instance is not interrupted twice in it.
const SAME_WITHIN: Duration = Duration::from_mins(2);

/// Whether these are times of the same notice.
pub(super) fn are_same(a: Timestamp, b: Timestamp) -> bool {
    a.duration_since(b).unsigned_abs() <= SAME_WITHIN
}

/// Whether a mark or a plan is only of the Node's word. A plan has the same fields.
pub(super) fn is_only_said(mark: &NoticeAnnotation) -> bool {
    is_from_node(&mark.message) && mark.told.is_empty()
}

/// Returns the patch that writes this message into the mark or the plan that the Node's word about the same has left; `None` if there is
/// none.
#[must_use]
pub fn patch(node: &Node, notice: &Notice, message: &str) -> Option<Value> {
    // A copy of what AWS has called off tells nothing.
    let is_over = withdrawn_at(node, notice.key()).is_some_and(|at| at > notice.at());
    if notice.is_withdrawn() || notice.hook().is_some() || is_over {
        return None;
    }
    let is_same = |mark: &NoticeAnnotation| match (notice.start(), &notice.identity) {
        (Some(start), _) => mark.start.is_some_and(|known| known.as_second() == start.as_second()),
        (None, Identity::Event { .. }) => {
            mark.kind == notice.kind().as_str() && mark.since.is_some_and(|since| are_same(since, notice.at()))
        }
        _ => false,
    };
    let said = node.annotations.iter().filter(|(name, value)| {
        let mark = is_mark(name).then(|| read(value));
        mark.is_some_and(|mark| is_only_said(&mark) && is_same(&mark))
    });
    let told: Map<String, Value> =
        said.filter_map(|(name, value)| Some((name.clone(), json!(telling(value, Some(message))?)))).collect();
    (!told.is_empty()).then(|| guarded(node, &told.into(), &json!({}), json!({})))
}

/// Returns the marks and plans that the Node's word about the change with this begin has left and of which a message has told, too, with
/// values that name no message: the Node can take them back again.
pub(super) fn untold(node: &Node, begin: Timestamp) -> Vec<(String, String)> {
    let is_told = |mark: &NoticeAnnotation| {
        let is_same = mark.start.is_some_and(|start| start.as_second() == begin.as_second());
        is_from_node(&mark.message) && !mark.told.is_empty() && is_same
    };
    let told = node.annotations.iter().filter(|(name, value)| is_mark(name) && is_told(&read(value)));
    told.filter_map(|(name, value)| Some((name.clone(), telling(value, None)?))).collect()
}

fn is_mark(name: &str) -> bool {
    name.starts_with(NOTICE_PREFIX) || name.starts_with(PLAN_PREFIX)
}

/// Returns the mark or the plan with this message as the one that has told of it.
fn telling(mark: &str, message: Option<&str>) -> Option<String> {
    let mut mark: Map<String, Value> = serde_json::from_str(mark).ok()?;
    match message {
        Some(message) => drop(mark.insert("told".to_owned(), json!(message))),
        None => drop(mark.remove("told")),
    }
    Some(Value::from(mark).to_string())
}
