//! The nodes that are drained now, counted against their maximum; and the notices that wait for room although AWS has not confirmed them.

use crate::pipeline::event::{InstanceId, NoticeKind};
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// Time for which the count of drains of other replicas is kept: a storm asks a thousand times.
const COUNT_KEPT: Duration = Duration::from_secs(1);

/// Time after which a notice that waits for room looks again: drains of other replicas end without a word.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// Maximum number of notices that wait unproven. Each holds its message, and those who forge them have many.
const MAX_UNPROVEN: usize = 1_000;

/// Maximum number of them about one instance: AWS has fewer kinds.
const MAX_UNPROVEN_OF_ONE: usize = 8;

/// The instances whose nodes are drained now, by notices that this process has admitted, and as marks on Nodes say.
#[derive(Debug, Default)]
pub struct Draining {
    state: Mutex<State>,
    /// Notified when a notice that was admitted has ended.
    freed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Admitted notices by instance.
    admitted: HashMap<InstanceId, Places>,
    /// The instances by the marks on their Nodes, and when those were read.
    marked: Option<(Instant, HashSet<InstanceId>)>,
    /// The instances and kinds of notices that wait unproven, the oldest first, with the tokens that end their waits.
    unproven: VecDeque<(InstanceId, NoticeKind, CancellationToken)>,
}

/// The admitted notices of one instance.
#[derive(Debug, Default, PartialEq, Eq)]
struct Places {
    all: usize,
    /// Those that there was room for.
    by_room: usize,
}

impl State {
    /// Returns the number of instances besides this one.
    fn others(&self, instance: &InstanceId) -> usize {
        let marked = self.marked.iter().flat_map(|(_, marked)| marked);
        let only_marked = marked.filter(|other| !self.admitted.contains_key(*other));
        self.admitted.keys().chain(only_marked).filter(|other| *other != instance).count()
    }

    /// Returns the place of the oldest of the notices that wait unproven, of the instance and kind that have the most.
    fn oldest_of_most(&self, of: impl Fn(&InstanceId) -> bool) -> Option<usize> {
        let mut groups: HashMap<(&InstanceId, NoticeKind), (usize, usize)> = HashMap::new();
        for (place, (instance, kind, _)) in self.unproven.iter().enumerate().filter(|(_, (instance, ..))| of(instance))
        {
            groups.entry((instance, *kind)).or_insert((0, place)).0 += 1;
        }
        groups.into_values().max_by_key(|(count, oldest)| (*count, Reverse(*oldest))).map(|(_, oldest)| oldest)
    }
}

impl Draining {
    /// Admits a notice of the instance if fewer than `at_most` others are drained. `marked` reads which nodes are drained, by their
    /// marks.
    ///
    /// # Errors
    /// The number of nodes that are drained.
    pub(super) fn admit(
        self: &Arc<Self>,
        instance: &InstanceId,
        at_most: usize,
        marked: impl FnOnce() -> HashSet<InstanceId>,
    ) -> Result<Admitted, usize> {
        let now = Instant::now();
        let mut state = self.lock();
        if state.marked.as_ref().is_none_or(|(read, _)| now >= *read + COUNT_KEPT) {
            state.marked = Some((now, marked()));
        }
        let others = state.others(instance);
        if others >= at_most {
            return Err(others);
        }
        Ok(self.admitted(state, instance, true))
    }

    /// Admits a notice of the instance, however many nodes are drained.
    pub(super) fn admit_anyway(self: &Arc<Self>, instance: &InstanceId) -> Admitted {
        self.admitted(self.lock(), instance, false)
    }

    fn admitted(self: &Arc<Self>, mut state: MutexGuard<'_, State>, instance: &InstanceId, by_room: bool) -> Admitted {
        let places = state.admitted.entry(instance.clone()).or_default();
        places.all += 1;
        places.by_room += usize::from(by_room);
        Admitted { draining: Arc::clone(self), instance: instance.clone(), by_room }
    }

    /// Whether the instance is drained because there was room.
    pub(super) fn had_room(&self, instance: &InstanceId) -> bool {
        self.lock().admitted.get(instance).is_some_and(|places| places.by_room > 0)
    }

    /// Counts a notice of the instance that waits unproven. Where there are too many, the oldest wait of the kind and instance that have
    /// the most is ended by its token: what is real is confirmed within seconds, and is one of its kind.
    pub(super) fn wait_unproven(
        self: &Arc<Self>,
        instance: &InstanceId,
        kind: NoticeKind,
        end: &CancellationToken,
    ) -> Unproven {
        let mut state = self.lock();
        let of_one = state.unproven.iter().filter(|(other, ..)| other == instance).count();
        let oldest = match of_one {
            MAX_UNPROVEN_OF_ONE.. => state.oldest_of_most(|of| of == instance),
            _ => (state.unproven.len() >= MAX_UNPROVEN).then(|| state.oldest_of_most(|_| true)).flatten(),
        };
        if let Some((.., crowded_out)) = oldest.and_then(|place| state.unproven.remove(place)) {
            crowded_out.cancel();
        }
        state.unproven.push_back((instance.clone(), kind, end.clone()));
        Unproven { draining: Arc::clone(self), end: end.clone() }
    }

    /// Waits until there may be room.
    pub(super) async fn changed(&self) {
        tokio::select! {
            biased;
            // One at a time: there is room for one.
            () = self.freed.notified() => {}
            () = sleep(LOOK_AGAIN) => {}
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A notice that was admitted. Its node counts as drained while this lives.
#[derive(Debug)]
pub(super) struct Admitted {
    draining: Arc<Draining>,
    instance: InstanceId,
    by_room: bool,
}

/// A notice that waits unproven. Counts while this lives.
#[derive(Debug)]
pub(super) struct Unproven {
    draining: Arc<Draining>,
    end: CancellationToken,
}

impl Drop for Unproven {
    fn drop(&mut self) {
        self.draining.lock().unproven.retain(|(.., end)| *end != self.end);
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut state = self.draining.lock();
        if let Some(places) = state.admitted.get_mut(&self.instance) {
            places.all -= 1;
            places.by_room -= usize::from(self.by_room);
            if places.all == 0 {
                state.admitted.remove(&self.instance);
            }
        }
        drop(state);
        self.draining.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: usize) -> InstanceId {
        InstanceId::new(&format!("i-{n:017x}")).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_counts_once_whoever_drains_it() {
        let draining = Arc::new(Draining::default());
        let marked = || HashSet::from([id(1), id(2)]);
        let first = draining.admit(&id(1), 3, marked).unwrap();
        let again = draining.admit(&id(1), 3, marked).unwrap();
        let third = draining.admit(&id(3), 3, marked).unwrap();
        assert_eq!(draining.admit(&id(4), 3, marked).unwrap_err(), 3);
        let second = draining.admit(&id(2), 3, marked).expect("another replica drains it, and two others are drained");
        assert_eq!(draining.admit(&id(2), 2, marked).unwrap_err(), 2, "that it is drained opens no door");
        let confirmed = draining.admit_anyway(&id(4));
        assert_eq!(draining.admit(&id(5), 3, marked).unwrap_err(), 4);
        drop((first, again, second, third, confirmed));
        assert_eq!(draining.lock().admitted, HashMap::new());
        assert_eq!(draining.admit(&id(5), 2, marked).unwrap_err(), 2, "the marks stay");
        sleep(COUNT_KEPT).await;
        draining.admit(&id(5), 2, HashSet::new).expect("they are gone");
    }

    #[test]
    fn a_wait_that_is_over_counts_no_more() {
        let draining = Arc::new(Draining::default());
        let wait = |kind| {
            let end = CancellationToken::new();
            (draining.wait_unproven(&id(1), kind, &end), end)
        };
        drop((0..MAX_UNPROVEN_OF_ONE).map(|_| wait(NoticeKind::Spot)).collect::<Vec<_>>());
        let honest = wait(NoticeKind::Rebalance);
        let full: Vec<_> = (1..MAX_UNPROVEN_OF_ONE).map(|_| wait(NoticeKind::Spot)).collect();
        assert!(full.iter().chain([&honest]).all(|(_, end)| !end.is_cancelled()), "those before are over");
        let more = [wait(NoticeKind::Spot), wait(NoticeKind::Spot)];
        let ended: Vec<_> = full.iter().map(|(_, end)| end.is_cancelled()).collect();
        assert!(
            ended[..2].iter().all(|ended| *ended) && !ended[2..].contains(&true),
            "the oldest of the most: {ended:?}"
        );
        assert!(!honest.1.is_cancelled() && !more[1].1.is_cancelled());
        let others = (0..MAX_UNPROVEN - 5).map(|n| {
            let end = CancellationToken::new();
            (draining.wait_unproven(&id(2 + n), NoticeKind::Spot, &end), end)
        });
        let others: Vec<_> = others.collect();
        assert!(
            !honest.1.is_cancelled() && full[2].1.is_cancelled(),
            "of all, the oldest of the instance with the most"
        );
        assert!(others.last().is_some_and(|(_, end)| !end.is_cancelled()));
    }
}
