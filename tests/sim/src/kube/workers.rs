//! The API server's capacity. Without a limit a storm would cost nothing here.

use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::sleep;

/// Limits the number of calls at a time and gives each a duration; other calls queue, first come, first served. Unlimited at first.
#[derive(Debug, Default)]
pub(super) struct Workers(Mutex<Option<(Arc<Semaphore>, Duration)>>);

impl Workers {
    /// Sets the number of workers; calls that have begun are not affected.
    pub fn set(&self, count: usize, takes: Duration) {
        *self.0.lock() = Some((Arc::new(Semaphore::new(count)), takes));
    }

    /// Waits for a worker and for the duration of a call. A client that hangs up earlier releases its worker, without effect.
    pub async fn work<T>(&self, call: impl FnOnce() -> T) -> T {
        let bound = self.0.lock().clone();
        let Some((workers, takes)) = bound else { return call() };
        // Never closed.
        let _worker = workers.acquire().await;
        sleep(takes).await;
        call()
    }
}
