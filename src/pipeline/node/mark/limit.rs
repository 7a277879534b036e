//! Which records count as drains, and which give way to others.

use super::{Mark, Node, NoticeRecord};
use crate::pipeline::event::{NoticeKey, NoticeKind};
use jiff::Timestamp;

/// Returns whether a record on the Node is that of a drain, whenever its deadline is: that comes from the message.
#[must_use]
pub fn is_drained(node: &Node) -> bool {
    node.record.notices().any(|(_, notice)| notice.is_drain())
}

/// Returns whether the Node has the record of a drain for the notice with this key, for a change that starts at `start`; if `hard`, for one
/// with which the capacity ends.
#[must_use]
pub fn is_drained_for(node: &Node, key: NoticeKey, start: Option<Timestamp>, hard: bool) -> bool {
    let notice = node.record.notice(key).filter(|notice| notice.is_drain() && notice.starts_at(start));
    notice.is_some_and(|notice| notice.hard || !hard)
}

/// Returns whether the Node has the record of a drain that was written since this boot.
pub(in crate::pipeline::node) fn is_drained_since(node: &Node, boot: &str) -> bool {
    let is_since =
        |notice: &NoticeRecord| notice.boot.is_empty() || notice.is_of_unknown_boot() || notice.is_since_boot(boot);
    node.record.notices().any(|(_, notice)| notice.is_drain() && is_since(notice))
}

/// Returns since when only hints whose action is no drain hold the Node cordoned; `None` if something else does, or nothing.
pub(in crate::pipeline::node) fn hinted_since(node: &Node) -> Option<Timestamp> {
    if !node.cordoned || !node.record.undo().cordon {
        return None;
    }
    let only_cordons = |notice: &NoticeRecord| !notice.is_drain() && notice.kind().is_some_and(NoticeKind::is_hint);
    let since = node.record.notices().map(|(_, notice)| only_cordons(notice).then(|| notice.since.unwrap_or_default()));
    since.collect::<Option<Vec<_>>>()?.into_iter().min()
}

impl Mark {
    /// Returns the name of the oldest mark on the Node that is not of a drain, if this one is.
    pub(super) fn crowds_out<'a>(&self, node: &'a Node) -> Option<&'a String> {
        self.notice.deadline?;
        let cordons = node.record.notices().filter(|(_, notice)| !notice.is_drain());
        cordons.min_by_key(|(_, notice)| notice.since).map(|(name, _)| name)
    }
}
