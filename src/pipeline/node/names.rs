//! Names on the Node that more than the marks use.

/// Prefix of Ebbtide's own annotations and labels.
pub(super) const OWN_PREFIX: &str = "ebbtide/";

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
