//! The boot of a Node in which a record was written: another one may be the return of the Node's instance.

use serde::{Deserialize, Serialize};

/// The boot ID of a Node at the time of a record; empty until the kubelet has reported one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(transparent)]
pub struct Boot(String);

/// The boot ID in the record of a Node that may have come back before it: each boot counts as one after it.
const UNKNOWN: &str = "?";

impl Boot {
    /// Returns the boot with this ID.
    #[must_use]
    pub(in crate::pipeline::node) fn new(id: &str) -> Self {
        Self(id.to_owned())
    }

    /// Returns the boot of a Node that may have come back already.
    #[must_use]
    pub(in crate::pipeline::node) fn unknown() -> Self {
        Self::new(UNKNOWN)
    }

    /// Whether the kubelet had reported none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the Node may have come back before the record was written.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.0 == UNKNOWN
    }

    /// Whether this is the boot with this ID.
    #[must_use]
    pub fn is(&self, id: &str) -> bool {
        !self.is_empty() && self.0 == id
    }

    /// Whether the Node, which has the boot with this ID now, has restarted since.
    #[must_use]
    pub fn is_before(&self, id: &str) -> bool {
        !self.is_empty() && !id.is_empty() && self.0 != id
    }
}
