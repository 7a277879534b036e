//! One key, one worker: work with the same key is joined while it runs, and ends with its last seat.
//!
//! A [`Seat`] is a share in the work. [`Seat::leave`] is the graceful end: the last seat stops the work, and waits until it has stopped.
//! Dropping the last seat aborts the work. Work that is started while its predecessor is still stopping waits for it, so that the two never
//! run at the same time.

use crate::fact::TaskKind;
use crate::runtime::task::{Ending, Handle, TaskError, Tasks};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Work by key. `X` is the state that the work shares with its seats, `T` its result.
#[derive(Debug)]
pub struct Slots<K: Hash + Eq, X, T> {
    tasks: Tasks,
    kind: TaskKind,
    entries: Entries<K, X, T>,
}

type Entries<K, X, T> = Arc<Mutex<HashMap<K, Weak<Entry<K, X, T>>>>>;

#[derive(Debug)]
struct Entry<K: Hash + Eq, X, T> {
    key: K,
    shared: Arc<X>,
    stop: CancellationToken,
    result: watch::Receiver<Option<T>>,
    /// Number of seats; changed under the lock of `entries` only.
    seats: AtomicUsize,
    _task: Handle<()>,
    entries: Entries<K, X, T>,
}

/// A share in running work.
#[derive(Debug)]
#[must_use = "dropping the last seat aborts the work"]
pub struct Seat<K: Hash + Eq, X, T> {
    entry: Arc<Entry<K, X, T>>,
}

impl<K, X, T> Slots<K, X, T>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    X: Send + Sync + 'static,
    T: Ending + Clone + Send + Sync + 'static,
{
    /// No work yet; its tasks have this kind.
    #[must_use]
    pub fn new(tasks: Tasks, kind: TaskKind) -> Self {
        Self { tasks, kind, entries: Arc::default() }
    }

    /// Joins the work that runs for `key`, or starts `work` for it. Returns a seat, and whether the work ran already.
    pub fn join<F>(
        &self,
        key: K,
        shared: impl FnOnce() -> X,
        work: impl FnOnce(Arc<X>, CancellationToken) -> F,
    ) -> (Seat<K, X, T>, bool)
    where
        F: Future<Output = T> + Send + 'static,
    {
        let mut entries = self.entries.lock();
        let running = entries.get(&key).and_then(Weak::upgrade);
        if let Some(entry) = running.as_ref().filter(|entry| entry.is_joinable()) {
            entry.seats.fetch_add(1, Ordering::Relaxed);
            return (Seat { entry: Arc::clone(entry) }, true);
        }
        let (sender, result) = watch::channel(None);
        let shared = Arc::new(shared());
        let stop = CancellationToken::new();
        let before = running.as_ref().map(|entry| entry.result.clone());
        // Boxed, because the task below would hold it twice: as its capture, and as the future that it awaits.
        let work = Box::pin(work(Arc::clone(&shared), stop.clone()));
        let task = self.tasks.spawn(self.kind, async move {
            if let Some(mut before) = before {
                // An error means that it panicked, which is an end too.
                let _ = before.wait_for(Option::is_some).await;
            }
            sender.send_replace(Some(work.await));
        });
        let entry = Arc::new(Entry {
            key: key.clone(),
            shared,
            stop,
            result,
            seats: AtomicUsize::new(1),
            _task: task,
            entries: Arc::clone(&self.entries),
        });
        entries.insert(key, Arc::downgrade(&entry));
        drop(entries);
        // Only now: the drop of the predecessor's last owner takes the lock.
        drop(running);
        (Seat { entry }, false)
    }
}

impl<K: Hash + Eq, X, T> Slots<K, X, T> {
    /// Joins the work that runs for `key`, if there is any.
    pub fn join_running(&self, key: &K) -> Option<Seat<K, X, T>> {
        let entries = self.entries.lock();
        let entry = entries.get(key).and_then(Weak::upgrade)?;
        if !entry.is_joinable() {
            // The drop of its last owner takes the lock.
            drop(entries);
            return None;
        }
        entry.seats.fetch_add(1, Ordering::Relaxed);
        Some(Seat { entry })
    }
}

impl<K: Hash + Eq, X, T> Entry<K, X, T> {
    /// Whether the work has neither ended nor been asked to stop.
    fn is_joinable(&self) -> bool {
        !self.stop.is_cancelled() && self.result.borrow().is_none() && self.result.has_changed().is_ok()
    }
}

impl<K: Hash + Eq, X, T: Clone> Seat<K, X, T> {
    /// Returns the state that the work shares.
    #[must_use]
    pub fn shared(&self) -> &Arc<X> {
        &self.entry.shared
    }

    /// Waits for the work's result.
    ///
    /// # Errors
    /// When the work panicked.
    pub async fn ended(&self) -> Result<T, TaskError> {
        let mut result = self.entry.result.clone();
        let ended = result.wait_for(Option::is_some).await;
        ended.ok().and_then(|result| result.clone()).ok_or(TaskError::Panicked)
    }

    /// Gives up the seat. The last one stops the work, and waits until it has stopped.
    pub async fn leave(self) {
        let entry = Arc::clone(&self.entry);
        // The drop counts down, and asks the work to stop if this was the last seat. Our share in the entry prevents the abort.
        drop(self);
        if entry.stop.is_cancelled() {
            let mut result = entry.result.clone();
            let _ = result.wait_for(Option::is_some).await;
        }
    }
}

impl<K: Hash + Eq, X, T> Drop for Seat<K, X, T> {
    fn drop(&mut self) {
        // Under the lock, so that no seat is taken in work that is asked to stop.
        let _entries = self.entry.entries.lock();
        if self.entry.seats.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.entry.stop.cancel();
        }
    }
}

impl<K: Hash + Eq, X, T> Drop for Entry<K, X, T> {
    fn drop(&mut self) {
        let mut entries = self.entries.lock();
        // A successor may have the key already.
        if entries.get(&self.key).is_some_and(|entry| entry.strong_count() == 0) {
            entries.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fact::Facts;
    use std::time::Duration;
    use tokio::time::sleep;

    type Outcome = Result<u32, ()>;

    fn slots() -> (Tasks, Slots<&'static str, AtomicUsize, Outcome>) {
        let tasks = Tasks::new(Facts::to(Vec::new()));
        (tasks.clone(), Slots::new(tasks, TaskKind::Drain))
    }

    async fn work(started: Arc<AtomicUsize>, stop: CancellationToken) -> Outcome {
        started.fetch_add(1, Ordering::SeqCst);
        tokio::select! {
            () = sleep(Duration::from_secs(10)) => Ok(7),
            () = stop.cancelled() => { sleep(Duration::from_secs(1)).await; Err(()) }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn two_share_one_piece_of_work() {
        let (tasks, slots) = slots();
        let starts = Arc::new(AtomicUsize::new(0));
        let join = || slots.join("a", AtomicUsize::default, |_, stop| work(Arc::clone(&starts), stop));
        let ((first, joined), (second, joined_too)) = (join(), join());
        assert_eq!((joined, joined_too), (false, true));
        first.leave().await;
        assert_eq!(second.ended().await, Ok(Ok(7)), "the second still wants it");
        drop(second);
        assert_eq!(starts.load(Ordering::SeqCst), 1);
        tasks.gone(|_| true).await;
        assert!(slots.entries.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_to_leave_stops_it_and_a_successor_waits_for_that() {
        let (tasks, slots) = slots();
        let starts = Arc::new(AtomicUsize::new(0));
        let join = || slots.join("a", AtomicUsize::default, |_, stop| work(Arc::clone(&starts), stop)).0;
        let first = join();
        let begun = tokio::time::Instant::now();
        sleep(Duration::from_secs(1)).await;
        let mut leaving = Box::pin(first.leave());
        assert!(futures_util::poll!(&mut leaving).is_pending());
        let successor = join();
        leaving.await;
        assert_eq!(begun.elapsed(), Duration::from_secs(2), "leaving waits for the end");
        assert_eq!(successor.ended().await, Ok(Ok(7)));
        assert_eq!(begun.elapsed(), Duration::from_secs(12), "the successor began after it");
        drop(successor);
        tasks.gone(|_| true).await;
    }

    #[tokio::test(start_paused = true)]
    async fn dropping_the_last_seat_aborts_it() {
        let (tasks, slots) = slots();
        let starts = Arc::new(AtomicUsize::new(0));
        drop(slots.join("a", AtomicUsize::default, |_, stop| work(Arc::clone(&starts), stop)));
        tasks.gone(|_| true).await;
        assert!(slots.entries.lock().is_empty());
    }
}
