//! Names on the Node that more than the marks use.

/// Prefix of Ebbtide's own annotations and labels.
pub(super) const OWN_PREFIX: &str = "ebbtide/";

/// Name of the annotation by which an owner excludes a Node, or a pod asks not to be disturbed.
pub const IGNORE_ANNOTATION: &str = "ebbtide/ignore";

/// Name of the label that keeps load balancers from sending traffic to a Node, defined by Kubernetes.
pub(super) const EXCLUDE_LABEL: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
