//! The blocked pods, and since when: their number alone does not show that one has been blocked for an hour.

use crate::fact::PodRef;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

/// The pods that are blocked now, by UID.
#[derive(Debug, Default)]
pub(super) struct BlockedPods(Mutex<HashMap<Box<str>, Instant>>);

impl BlockedPods {
    pub(super) fn add(&self, pod: &PodRef<'_>) {
        self.0.lock().entry(pod.uid.into()).or_insert_with(Instant::now);
    }

    pub(super) fn remove(&self, pod: &PodRef<'_>) {
        self.0.lock().remove(pod.uid);
    }

    /// Returns how long the pod that is blocked longest has been blocked; 0 without any.
    pub(super) fn longest(&self) -> Duration {
        let first = self.0.lock().values().min().copied();
        first.map(|first| first.elapsed()).unwrap_or_default()
    }
}
