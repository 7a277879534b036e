//! Names on the Node that more than the marks use.

/// Prefix of Ebbtide's own annotations and labels.
pub(super) const OWN_PREFIX: &str = "ebbtide/";

/// Prefix of the annotations by which a Node says what its instance was told: `ebbtide/says.<kind>`.
pub(super) const SAYS_PREFIX: &str = "ebbtide/says.";

/// Maximum number of annotations with one prefix that are written and read: all annotations of a Node share 256 KiB, whoever writes to
/// the queue has them written, and each may begin work.
pub(super) const MAX_OF_A_PREFIX: usize = 64;

/// Maximum number of annotations with [`SAYS_PREFIX`] that are read: twice as many as there are kinds.
pub(super) const MAX_SAYINGS: usize = 8;

/// Name of the annotation by which an owner excludes a Node, or a pod asks not to be disturbed.
pub const IGNORE_ANNOTATION: &str = "ebbtide/ignore";

/// Name of the label that keeps load balancers from sending traffic to a Node, defined by Kubernetes.
pub(super) const EXCLUDE_LABEL: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// Beginning of what the mark of a notice that a Node gives has in place of a message: `node/<kind>/<id or time>`.
pub(super) const FROM_NODE: &str = "node/";

/// Whether a mark or a plan with this in place of a message is of a notice that a Node gives.
#[must_use]
pub fn is_from_node(message: &str) -> bool {
    message.starts_with(FROM_NODE)
}

/// Returns what the mark of a notice has in place of a message; if a Node gives it, the id or the time that the metadata name.
pub(super) fn id_of(message: &str) -> &str {
    let said = message.strip_prefix(FROM_NODE).and_then(|said| said.split_once('/'));
    said.map_or(message, |(_, id)| id)
}
