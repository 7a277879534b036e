//! A message confirms what the Node's agent reported first: the record, or the plan, names the message, and the agent can no longer withdraw
//! the notice. Pure.

use super::Node;
use super::names::is_from_node;
use super::patch::guarded;
use super::record::{NoticeRecord, RecordChange};
use crate::pipeline::event::{Identity, Notice};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::time::Duration;

/// Maximum difference between the times of a notice as the metadata and as an event name them. An instance is not interrupted twice in it.
const SAME_WITHIN: Duration = Duration::from_mins(2);

/// Whether these are times of the same notice.
pub(super) fn are_same(a: Timestamp, b: Timestamp) -> bool {
    a.duration_since(b).unsigned_abs() <= SAME_WITHIN
}

/// Returns the patch that names this message in the record or the plan of the agent's notice of the same; `None` if there is none.
#[must_use]
pub fn patch(node: &Node, notice: &Notice, message: &str) -> Option<Value> {
    // A copy of what AWS has cancelled confirms nothing.
    let is_over = node.record.withdrawn_at(notice.key()).is_some_and(|at| at > notice.at());
    if notice.is_withdrawn() || notice.hook().is_some() || is_over {
        return None;
    }
    let is_same = |known: &NoticeRecord| match (notice.start(), &notice.identity) {
        (Some(start), _) => known.start.is_some_and(|known| known.as_second() == start.as_second()),
        (None, Identity::Event { .. }) => {
            known.is_of(notice.kind()) && known.since.is_some_and(|since| are_same(since, notice.at()))
        }
        _ => false,
    };
    let confirmed = confirmed_by(node, message, |known| known.is_only_reported() && is_same(known));
    (!confirmed.is_empty()).then(|| guarded(node, &node.record.annotations(&confirmed).into(), &json!({}), json!({})))
}

/// Returns the records and plans of the agent's notice of the change with this start that a message has confirmed, without the
/// confirmation: the agent can withdraw them again.
pub(super) fn unconfirmed(node: &Node, start: Timestamp) -> Vec<RecordChange> {
    confirmed_by(node, "", |known| {
        let is_same = known.start.is_some_and(|known| known.as_second() == start.as_second());
        is_from_node(&known.message) && !known.confirmed_by.is_empty() && is_same
    })
}

/// Returns the records and plans for which `is_due` holds, as confirmed by this message.
fn confirmed_by(node: &Node, message: &str, is_due: impl Fn(&NoticeRecord) -> bool) -> Vec<RecordChange> {
    let confirmed = |record: &NoticeRecord| NoticeRecord { confirmed_by: message.to_owned(), ..record.clone() };
    let due = node.record.all().filter(|(_, known)| known.work.is_live() && is_due(known));
    due.map(|(key, known)| RecordChange { key, left: Some(confirmed(known)) }).collect()
}
