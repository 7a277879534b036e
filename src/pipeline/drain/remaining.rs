//! The time that the pods which are left on a node need: a hook's default deadline leaves room for it. Pure.

use std::time::Duration;
use tokio::time::Instant;

/// Maximum time by which the pods of a node put off the end of its drain, if the user has not chosen that end: a grace period of a week
/// would keep an instance for 48 hours.
pub const MAX_ADDED_GRACE: Duration = Duration::from_hours(2);

/// The time that the pods which are left on a node need to stop by themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remaining {
    /// The longest grace period of a pod that does not terminate yet; `None` without such a pod.
    pub(super) grace: Option<Duration>,
    /// The time by which all pods are gone that terminate, or could have terminated since they were first seen; `None` without pods.
    pub(super) gone: Option<Instant>,
    /// The time before which the end does not move because pods have gone.
    pub(super) not_before: Option<Instant>,
}

impl Remaining {
    /// Returns the time for pods whose longest grace period is this.
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
