//! How much the API server gets done: without a bound a storm costs nothing here.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::sleep;

/// So many calls at a time, each of which takes so long; the others queue, first come, first served. Without bound at first.
#[derive(Debug, Default)]
pub(super) struct Workers(Mutex<Option<(Arc<Semaphore>, Duration)>>);

impl Workers {
    /// From now on there are `count`; calls that have begun are not touched.
    pub fn set(&self, count: usize, takes: Duration) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((Arc::new(Semaphore::new(count)), takes));
    }

    /// Does one call's work in its turn. A client that hangs up before its call is done frees its worker, without effect.
    pub async fn work<T>(&self, call: impl FnOnce() -> T) -> T {
        let bound = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some((workers, takes)) = bound else { return call() };
        // Never closed.
        let _worker = workers.acquire().await;
        sleep(takes).await;
        call()
    }
}
