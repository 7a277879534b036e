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

/// A right that may be missing.
#[derive(Debug, Default)]
pub struct Denial(Mutex<Option<Instant>>);

impl Denial {
    /// Notes that the right was denied now.
    pub fn note(&self) {
        *self.0.lock() = Some(Instant::now());
    }

    /// Whether the right was denied in the last minutes.
    pub fn is_recent(&self) -> bool {
        self.0.lock().is_some_and(|at| at.elapsed() < DENIAL_KEPT)
    }
}

/// An answer, and the end of the time for which it is kept; `None` while nobody has got one.
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
    /// Returns the answer that is kept, or that of `ask`, which says for how long it is kept. Only the first of several callers asks; the
    /// others wait for its answer, or ask themselves if it is dropped.
    pub async fn get<F: Future<Output = (V, Duration)>>(&self, question: K, ask: impl FnOnce() -> F) -> V {
        let slot = {
            let mut slots = self.0.lock();
            let now = Instant::now();
            // A slot that is locked is being filled.
            sweep(&mut slots, |slot| {
                slot.try_lock().map_or(true, |slot| slot.as_ref().is_some_and(|(_, until)| now < *until))
            });
            Arc::clone(slots.entry(question).or_default())
        };
        let mut slot = slot.lock().await;
        if let Some((answer, until)) = &*slot
            && Instant::now() < *until
        {
            return answer.clone();
        }
        // Boxed: most callers only wait.
        let (answer, kept) = Box::pin(ask()).await;
        *slot = Some((answer.clone(), Instant::now() + kept));
        answer
    }
}

/// Removes what is no longer kept from a table that has grown: whoever may write to the queue names its keys.
pub fn sweep<K: Eq + Hash, V>(table: &mut HashMap<K, V>, is_kept: impl Fn(&V) -> bool) {
    if table.len() >= SWEPT_AT && table.len().is_power_of_two() {
        table.retain(|_, value| is_kept(value));
    }
}
