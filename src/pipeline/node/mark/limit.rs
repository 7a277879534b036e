//! How many annotations a Node carries, and which give way to others; and which count as drains.

use super::{Mark, Node, NoticeAnnotation, UNKNOWN_BOOT, mark_of, notices, undo, whole_seconds};
use crate::pipeline::event::{NoticeKey, NoticeKind};
use crate::pipeline::node::names::MAX_OF_A_PREFIX;
use jiff::Timestamp;

/// Number of their bytes from which on there is no room for another: 64 of AWS's own names take less.
const MAX_BYTES_OF_A_PREFIX: usize = 32 * 1024;

/// Whether the Node has as many annotations with this prefix as it may have, or as long ones.
pub(in crate::pipeline::node) fn is_full(node: &Node, prefix: &str) -> bool {
    let of_prefix = node.annotations.iter().filter(|(key, _)| key.starts_with(prefix));
    let (count, bytes) =
        of_prefix.fold((0, 0), |(count, bytes), (key, value)| (count + 1, bytes + key.len() + value.len()));
    count >= MAX_OF_A_PREFIX || bytes >= MAX_BYTES_OF_A_PREFIX
}

/// Returns the annotation with this prefix that gives way to `key`: that with the earliest time, if the Node has as many as it may have,
/// and not `key`.
pub(in crate::pipeline::node) fn crowded_out<'a>(node: &'a Node, prefix: &str, key: &str) -> Option<&'a String> {
    let all = node.annotations.iter().filter(|(key, _)| key.starts_with(prefix));
    let oldest = all.min_by_key(|(_, time)| *time).map(|(key, _)| key);
    oldest.filter(|_| is_full(node, prefix) && !node.annotations.contains_key(key))
}

/// Returns whether a mark on the Node is that of a drain, whenever its deadline is: that comes from the message.
#[must_use]
pub fn is_drained(node: &Node) -> bool {
    notices(node).any(|(_, mark)| mark.deadline.is_some())
}

/// Returns whether the notice with this identity has left the mark of a drain on the Node, for a change that begins at `start`; if `hard`,
/// for one with which the capacity ends.
#[must_use]
pub fn is_drained_for(node: &Node, key: NoticeKey, start: Option<Timestamp>, hard: bool) -> bool {
    let mark = mark_of(node, key).filter(|mark| mark.deadline.is_some() && mark.start == start.map(whole_seconds));
    mark.is_some_and(|mark| mark.hard || !hard)
}

/// Returns whether the Node carries a mark of a drain that was set since this boot.
pub(in crate::pipeline::node) fn is_drained_since(node: &Node, boot: &str) -> bool {
    let is_since = |mark: &NoticeAnnotation| matches!(&*mark.boot, "" | UNKNOWN_BOOT) || *mark.boot == *boot;
    notices(node).any(|(_, mark)| mark.deadline.is_some() && is_since(&mark))
}

/// Returns since when only hints whose action is no drain hold the Node cordoned; `None` if something else does, or nothing.
pub(in crate::pipeline::node) fn hinted_since(node: &Node) -> Option<Timestamp> {
    if !node.cordoned || !undo(node).cordon {
        return None;
    }
    let is_hint =
        |mark: &NoticeAnnotation| NoticeKind::ALL.iter().any(|kind| kind.is_hint() && kind.as_str() == mark.kind);
    let only_cordons = |mark: &NoticeAnnotation| mark.deadline.is_none() && is_hint(mark);
    let marks = notices(node).map(|(_, mark)| only_cordons(&mark).then(|| mark.since.unwrap_or_default()));
    marks.collect::<Option<Vec<_>>>()?.into_iter().min()
}

impl Mark {
    /// Returns the name of the oldest mark on the Node that is not of a drain, if this one is.
    pub(super) fn crowds_out<'a>(&self, node: &'a Node) -> Option<&'a String> {
        self.notice.deadline?;
        let cordons = notices(node).filter(|(_, mark)| mark.deadline.is_none());
        cordons.min_by_key(|(_, mark)| mark.since).map(|(name, _)| name)
    }
}
