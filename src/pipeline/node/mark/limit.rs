//! How many annotations a Node carries, and which give way to others; and which count as drains.

use super::{Mark, Node, notices};

/// Maximum number of annotations with one prefix: all annotations of a Node share 256 KiB, and whoever writes to the queue has them
/// written.
const MAX_OF_A_PREFIX: usize = 64;

/// Whether the Node has as many annotations with this prefix as it may have.
pub(in crate::pipeline::node) fn is_full(node: &Node, prefix: &str) -> bool {
    node.annotations.keys().filter(|key| key.starts_with(prefix)).count() >= MAX_OF_A_PREFIX
}

/// Returns the annotation with this prefix that gives way to `key`: that with the earliest time, if the Node has as many as it may have,
/// and not `key`.
pub(in crate::pipeline::node) fn crowded_out<'a>(node: &'a Node, prefix: &str, key: &str) -> Option<&'a String> {
    let all = node.annotations.iter().filter(|(key, _)| key.starts_with(prefix));
    let oldest = all.min_by_key(|(_, time)| *time).map(|(key, _)| key);
    oldest.filter(|_| is_full(node, prefix) && !node.annotations.contains_key(key))
}

/// Returns whether the Node carries a mark of a drain that was set since this boot.
pub(in crate::pipeline::node) fn is_drained_since(node: &Node, boot: &str) -> bool {
    notices(node).any(|(_, mark)| mark.deadline.is_some() && (mark.boot.is_empty() || *mark.boot == *boot))
}

impl Mark {
    /// Returns the name of the oldest mark on the Node that is not of a drain, if this one is.
    pub(super) fn crowds_out<'a>(&self, node: &'a Node) -> Option<&'a String> {
        self.notice.deadline?;
        let cordons = notices(node).filter(|(_, mark)| mark.deadline.is_none());
        cordons.min_by_key(|(_, mark)| mark.since).map(|(name, _)| name)
    }
}
