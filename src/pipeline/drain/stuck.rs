//! Pods that are still there although their grace period is long over, on a node whose kubelet lives: a volume that does not unmount, a
//! runtime or a network plugin that hangs. Pure.

use super::select::{Departure, Selection};
use jiff::{SignedDuration, Timestamp};

/// Time after the end of a pod's grace period at which the pod is reported. The runtime and the API server need some seconds.
const REPORTED_AFTER: SignedDuration = SignedDuration::from_mins(1);

/// Time after the end of a pod's grace period at which a drain under a lifecycle hook gives up a pod whose containers have ended.
pub const GIVEN_UP_AFTER: SignedDuration = SignedDuration::from_mins(5);

/// The same for a pod whose containers still run: they may still write to a volume.
pub const RUNNING_GIVEN_UP_AFTER: SignedDuration = SignedDuration::from_mins(15);

impl Departure {
    /// Returns why the pod is stuck at `now`, in a sentence; `None` if it is not.
    #[must_use]
    pub fn stuck(&self, now: Timestamp) -> Option<String> {
        let ends = self.ends.filter(|ends| after(*ends, REPORTED_AFTER) <= now)?;
        let at = ends.strftime("%Y-%m-%dT%H:%M:%SZ");
        Some(if self.runs {
            format!("its termination, which was due at {at}; its containers still run")
        } else {
            format!(
                "its termination, which was due at {at}; its containers have ended, but the kubelet has not cleaned up"
            )
        })
    }

    /// Returns when a drain under a lifecycle hook gives up the pod.
    fn given_up_at(&self) -> Option<Timestamp> {
        Some(after(self.ends?, if self.runs { RUNNING_GIVEN_UP_AFTER } else { GIVEN_UP_AFTER }))
    }
}

impl Selection {
    /// Returns whether only stuck pods are left at `now`, and a drain under a lifecycle hook gives all of them up.
    pub(super) fn is_stuck(&self, now: Timestamp) -> bool {
        let given_up = |departure: &Departure| departure.given_up_at().is_some_and(|at| at <= now);
        self.evict.is_empty()
            && self.own_pod.is_none()
            && !self.terminating.is_empty()
            && self.terminating.iter().all(given_up)
    }

    /// Returns the next time after `now` at which a terminating pod becomes stuck, or is given up.
    pub(super) fn stuck_next(&self, now: Timestamp) -> Option<Timestamp> {
        let times = |departure: &Departure| {
            [departure.ends.map(|ends| after(ends, REPORTED_AFTER)), departure.given_up_at()].into_iter().flatten()
        };
        self.terminating.iter().flat_map(times).filter(|at| *at > now).min()
    }
}

/// Returns the time this much later, or the last that there is.
pub(super) fn after(at: Timestamp, by: SignedDuration) -> Timestamp {
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}
