//! Since when pods are held back: a gauge of how many says nothing about one that has been held for an hour.

use crate::fact::OnPod;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The pods that are held back now, by UID.
#[derive(Debug, Default)]
pub(super) struct Held(Mutex<HashMap<Box<str>, Instant>>);

impl Held {
    pub(super) fn add(&self, pod: &OnPod<'_>) {
        self.lock().entry(pod.uid.into()).or_insert_with(Instant::now);
    }

    pub(super) fn remove(&self, pod: &OnPod<'_>) {
        self.lock().remove(pod.uid);
    }

    /// How long the one that has been held for longest has been; nothing without any.
    pub(super) fn longest(&self) -> Duration {
        let first = self.lock().values().min().copied();
        first.map(|first| first.elapsed()).unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
