//! Types and reasons of the conditions with which a drain is reported on its Node.

/// Ebbtide's own: True during a drain.
pub const DRAINING: &str = "EbbtideDraining";

/// The reason of Ebbtide's own while pods are held back.
pub const BLOCKED: &str = "Blocked";

/// One of the two that KEP-5683 proposes (kubernetes/enhancements, alpha in v1.37), and that any tool sets: True during a drain.
pub const IN_PROGRESS: &str = "DrainInProgress";

/// The other: True from the end of a drain until the Node is in use again.
pub const DRAINED: &str = "Drained";
