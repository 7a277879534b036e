//! The time that the pods which are left on a node need: a hook's default deadline leaves room for it. Pure.

use std::time::Duration;
use tokio::time::Instant;

/// Maximum time that pods' grace periods add to a drain, if the user has not set its end: a grace period of a week would keep an instance
/// for 48 hours.
pub const MAX_ADDED_GRACE: Duration = Duration::from_hours(2);

/// The time that the pods which are left on a node need to stop by themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remaining {
    /// The longest grace period of a pod that does not terminate yet; `None` without such a pod.
    pub(super) grace: Option<Duration>,
    /// The latest time at which all pods are gone that terminate, or could have terminated since they were first seen; `None` without pods.
    pub(super) gone: Option<Instant>,
    /// Minimum end of the drain after pods have left.
    pub(super) not_before: Option<Instant>,
}

impl Remaining {
    /// Returns the time for pods with this longest grace period.
    #[must_use]
    pub const fn of(longest_grace: Duration) -> Self {
        Self { grace: Some(longest_grace), gone: None, not_before: None }
    }

    /// Returns the end of a drain whose pods may be held back until `from`; `None` without pods.
    pub(super) fn after(self, from: Instant) -> Option<Instant> {
        let Self { grace, gone, not_before } = self;
        let ends = [grace.map(|grace| from + grace), gone, not_before];
        ends.into_iter().flatten().max().map(|end| end.min(from + MAX_ADDED_GRACE))
    }
}
