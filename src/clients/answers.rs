//! Answers that are kept for a while, and asked for once.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Time for which a missing right is not used again, so that a storm asks and reports once.
pub const DENIAL_KEPT: Duration = Duration::from_mins(5);

/// Time for which a failure is kept, so that not every notice of a storm asks again.
pub const FAILURE_KEPT: Duration = Duration::from_secs(30);

/// Number of entries of a table, of some hundred bytes each, at which old ones are swept out; then again at each doubling.
pub const SWEPT_AT: usize = 1024;

/// Missing rights, by the key of what each is needed for.
#[derive(Debug)]
pub struct Denials<K = ()>(Mutex<HashMap<K, Instant>>);

impl<K> Default for Denials<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash> Denials<K> {
    /// Notes that the right was denied now. Returns `true` if none of these rights was denied in the minutes before.
    pub fn note(&self, right: K) -> bool {
        let mut denied_at = self.0.lock();
        denied_at.retain(|_, at| at.elapsed() < DENIAL_KEPT);
        let is_first = denied_at.is_empty();
        denied_at.insert(right, Instant::now());
        is_first
    }

    /// Whether the right was denied in the last minutes.
    pub fn is_recent(&self, right: &K) -> bool {
        self.0.lock().get(right).is_some_and(|at| at.elapsed() < DENIAL_KEPT)
    }
}

/// An answer, and the time of its arrival; `None` before the first.
type Slot<V> = Arc<tokio::sync::Mutex<Option<(V, Instant)>>>;

/// Answers by question.
#[derive(Debug)]
pub struct Answers<K, V>(Mutex<HashMap<K, Slot<V>>>);

impl<K, V> Default for Answers<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash, V: Clone> Answers<K, V> {
    /// Returns the last answer while it is younger than the `max_age` that the caller allows for it, else the answer of `ask`. Only the
    /// first of several callers asks; the others wait for its answer, or ask themselves if it is dropped.
    pub async fn get<F: Future<Output = V>>(
        &self,
        question: K,
        max_age: impl Fn(&V) -> Duration,
        ask: impl FnOnce() -> F,
    ) -> V {
        let is_kept = |(answer, at): &(V, Instant)| at.elapsed() < max_age(answer);
        let slot = {
            let mut slots = self.0.lock();
            // A slot that is locked is being filled.
            sweep(&mut slots, |slot| slot.try_lock().map_or(true, |slot| slot.as_ref().is_some_and(is_kept)));
            Arc::clone(slots.entry(question).or_default())
        };
        let mut slot = slot.lock().await;
        if let Some((answer, _)) = slot.as_ref().filter(|slot| is_kept(slot)) {
            return answer.clone();
        }
        // Boxed: most callers only wait.
        let answer = Box::pin(ask()).await;
        *slot = Some((answer.clone(), Instant::now()));
        answer
    }

    /// Changes the last answer, if there is one. Waits for a caller that asks now.
    pub async fn update(&self, question: &K, change: impl FnOnce(&mut V)) {
        let slot = self.0.lock().get(question).cloned();
        if let Some(slot) = slot
            && let Some((answer, _)) = slot.lock().await.as_mut()
        {
            change(answer);
        }
    }
}

/// Removes from a table that has grown the entries that are no longer kept: an attacker with access to the queue can choose its keys.
pub fn sweep<K: Eq + Hash, V>(table: &mut HashMap<K, V>, is_kept: impl Fn(&V) -> bool) {
    if table.len() >= SWEPT_AT && table.len().is_power_of_two() {
        table.retain(|_, value| is_kept(value));
    }
}
