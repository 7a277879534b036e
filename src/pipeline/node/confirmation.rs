//! A message confirms what the Node's agent or EC2's list reported first: it joins the record, and the agent can no longer withdraw the notice.
//! Pure.

use super::Node;
use super::patch::recorded;
use super::record::{NoticeRecord, Source, joining};
use crate::pipeline::event::{Identity, Notice, NoticeKey};
use jiff::Timestamp;
use serde_json::Value;
use std::time::Duration;

/// Maximum difference between the times of a notice as the metadata and as an event name them. An instance is not interrupted twice in it.
const SAME_WITHIN: Duration = Duration::from_mins(2);

/// Whether these are times of the same notice.
pub(super) fn are_same(a: Timestamp, b: Timestamp) -> bool {
    a.duration_since(b).unsigned_abs() <= SAME_WITHIN
}

/// Returns the patch with which this message joins the record of the same notice by another source; `None` if there is none, or it has joined.
#[must_use]
pub fn patch(node: &Node, notice: &Notice, message: &str) -> Option<Value> {
    if notice.is_withdrawn() || notice.hook().is_some() {
        return None;
    }
    let first = first_of(node, notice).filter(|(_, known)| known.work.is_live())?;
    let changes = joining(&node.record, first, Source::of(notice, message))?;
    Some(recorded(node, &changes))
}

/// Returns the record of this notice by another source, with its key.
fn first_of<'a>(node: &'a Node, notice: &Notice) -> Option<(NoticeKey, &'a NoticeRecord)> {
    // An event has no id in common with the metadata.
    let Identity::Event { .. } = &notice.identity else {
        return node.record.of(notice).filter(|(key, _)| *key != notice.key());
    };
    let is_same = |known: &NoticeRecord| known.since.is_some_and(|since| are_same(since, notice.at()));
    node.record.all().find(|(_, known)| known.is_only_reported() && known.is_of(notice.kind()) && is_same(known))
}
