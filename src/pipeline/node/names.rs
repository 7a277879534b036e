//! Names on the Node that more than the marks use.

/// Prefix of Ebbtide's own annotations and labels.
pub(super) const OWN_PREFIX: &str = "ebbtide/";

/// Prefix of the annotations that the agent writes: `ebbtide/says.<kind>`.
pub(super) const AGENT_PREFIX: &str = "ebbtide/says.";

/// Maximum number of annotations with one prefix that are written and read. All annotations of a Node share 256 KiB, an attacker with
/// access to the queue can have them written, and each may start work.
pub(super) const MAX_OF_A_PREFIX: usize = 64;

/// Maximum number of annotations with [`AGENT_PREFIX`] that are read: twice as many as there are kinds.
pub(super) const MAX_AGENT_NOTICES: usize = 8;

/// Name of the annotation that excludes a Node, or protects a pod from disturbance.
pub const IGNORE_ANNOTATION: &str = "ebbtide/ignore";

/// Name of the annotation that allows test messages about a Node.
pub const TEST_ANNOTATION: &str = "ebbtide/allow-test";

/// Name of the label that keeps load balancers from sending traffic to a Node, defined by Kubernetes.
pub(super) const EXCLUDE_LABEL: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// Prefix of the id that stands for a message in the mark of a Node's notice: `node/<kind>/<id or time>`.
pub(super) const FROM_NODE: &str = "node/";

/// Whether the mark or the plan with this message is that of a Node's notice: of its agent, or of a condition.
#[must_use]
pub fn is_from_node(message: &str) -> bool {
    message.starts_with(FROM_NODE)
}

/// Returns the id that stands for a message in a mark; for a Node's notice, the id or the time in the metadata.
pub(super) fn id_of(message: &str) -> &str {
    let reported = message.strip_prefix(FROM_NODE).and_then(|reported| reported.split_once('/'));
    reported.map_or(message, |(_, id)| id)
}
