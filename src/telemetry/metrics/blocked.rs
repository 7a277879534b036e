//! The blocked pods, and since when: their number alone does not show that one has been blocked for an hour.

use crate::fact::PodRef;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The pods that are blocked now, by UID.
#[derive(Debug, Default)]
pub(super) struct BlockedPods(Mutex<HashMap<Box<str>, Instant>>);

impl BlockedPods {
    pub(super) fn add(&self, pod: &PodRef<'_>) {
        self.lock().entry(pod.uid.into()).or_insert_with(Instant::now);
    }

    pub(super) fn remove(&self, pod: &PodRef<'_>) {
        self.lock().remove(pod.uid);
    }

    /// Returns how long the pod that is blocked longest has been blocked; 0 without any.
    pub(super) fn longest(&self) -> Duration {
        let first = self.lock().values().min().copied();
        first.map(|first| first.elapsed()).unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
