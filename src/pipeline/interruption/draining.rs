//! Nodes being drained, counted against the maximum, and unproven notices: those that wait for room and that AWS has not confirmed.

use super::limits::DrainLimit;
use crate::pipeline::event::{InstanceId, NoticeKind};
use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// Time for which the count of other replicas' drains is kept: a storm asks a thousand times.
const COUNT_KEPT: Duration = Duration::from_secs(1);

/// Interval at which a waiting notice counts again: other replicas' drains end without a signal.
const RECOUNT_INTERVAL: Duration = Duration::from_secs(5);

/// Time after AWS's denial of a notice for which room alone admits none that AWS can confirm: an attacker sends again.
const DENIAL_REMEMBERED: Duration = Duration::from_mins(10);

/// Maximum number of unproven notices, unless twice the number of nodes is more. Each holds its message, and an attacker can forge many.
const UNPROVEN: usize = 1_000;

/// Maximum number of unproven notices in clusters of any size: half of the messages that a process holds.
const MAX_UNPROVEN: usize = 4_000;

/// Maximum number of unproven notices about one instance: AWS has fewer kinds.
const MAX_UNPROVEN_OF_ONE: usize = 8;

/// Instances whose nodes are being drained, by the notices that this process has admitted and by the marks on Nodes.
#[derive(Debug)]
pub struct DrainingNodes {
    /// Whether the limit is the user's: then marks count after this process's work on them has ended, AWS's denials only for their notices, and
    /// few notices wait unproven.
    is_strict: bool,
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
    /// The instances whose marks no longer count: the work of this process on them has ended.
    ended: HashSet<InstanceId>,
    /// The notices that wait unproven, the oldest first.
    unproven: VecDeque<UnprovenWait>,
    /// When AWS has denied a notice last.
    denied_at: Option<Instant>,
}

/// A notice that waits unproven.
#[derive(Debug)]
pub(super) struct UnprovenWait {
    /// Its instance.
    pub instance: InstanceId,
    /// Its kind.
    pub kind: NoticeKind,
    /// How easily AWS shows its proof; `None` if there is none.
    pub ease: Option<Timestamp>,
    /// Ends its wait.
    pub end: CancellationToken,
}

/// The admitted notices of one instance.
#[derive(Debug, Default, PartialEq, Eq)]
struct Places {
    all: usize,
    /// Those that there was room for.
    by_room: usize,
}

impl State {
    fn has_room(
        &mut self,
        instance: &InstanceId,
        at_most: usize,
        marked: impl FnOnce() -> HashSet<InstanceId>,
    ) -> Result<(), usize> {
        let now = Instant::now();
        if self.marked.as_ref().is_none_or(|(read, _)| now >= *read + COUNT_KEPT) {
            let mut marked = marked();
            self.ended.retain(|instance| marked.remove(instance));
            self.marked = Some((now, marked));
        }
        let others = self.others(instance);
        if others >= at_most { Err(others) } else { Ok(()) }
    }

    /// Returns the number of instances besides this one.
    fn others(&self, instance: &InstanceId) -> usize {
        let marked = self.marked.iter().flat_map(|(_, marked)| marked);
        let only_marked = marked.filter(|other| !self.admitted.contains_key(*other));
        self.admitted.keys().chain(only_marked).filter(|other| *other != instance).count()
    }

    /// Returns the position of an unproven notice of the instance and kind that have the most: the one that AWS would confirm last, or the
    /// oldest of several. Between equal numbers, prefers a notice without a proof.
    fn last_of_most(&self, of: impl Fn(&InstanceId) -> bool) -> Option<usize> {
        let mut groups = HashMap::new();
        for (place, wait) in self.unproven.iter().enumerate().filter(|(_, wait)| of(&wait.instance)) {
            let this = (wait.ease, place);
            let (count, last) = groups.entry((&wait.instance, wait.kind)).or_insert((0_usize, this));
            *count += 1;
            *last = this.min(*last);
        }
        let most = groups.into_values().max_by_key(|(count, (ease, place))| (*count, ease.is_none(), Reverse(*place)));
        most.map(|(_, (_, place))| place)
    }
}

impl DrainingNodes {
    /// No node is drained yet.
    #[must_use]
    pub fn new(limit: DrainLimit) -> Self {
        let is_strict = limit != DrainLimit::Shaping;
        Self { is_strict, state: Mutex::default(), freed: Notify::new() }
    }

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
    ) -> Result<DrainPlace, usize> {
        let mut state = self.state.lock();
        state.has_room(instance, at_most, marked)?;
        Ok(self.admitted(state, instance, true))
    }

    /// Whether a notice of the instance would be admitted.
    ///
    /// # Errors
    /// The number of nodes that are drained.
    pub(super) fn has_room(
        &self,
        instance: &InstanceId,
        at_most: usize,
        marked: impl FnOnce() -> HashSet<InstanceId>,
    ) -> Result<(), usize> {
        self.state.lock().has_room(instance, at_most, marked)
    }

    /// Admits a notice of the instance, however many nodes are drained.
    pub(super) fn admit_anyway(self: &Arc<Self>, instance: &InstanceId) -> DrainPlace {
        self.admitted(self.state.lock(), instance, false)
    }

    fn admitted(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, State>,
        instance: &InstanceId,
        by_room: bool,
    ) -> DrainPlace {
        state.ended.remove(instance);
        let places = state.admitted.entry(instance.clone()).or_default();
        places.all += 1;
        places.by_room += usize::from(by_room);
        DrainPlace { draining: Arc::clone(self), instance: instance.clone(), by_room }
    }

    /// Notes that AWS has denied a notice.
    pub(super) fn was_denied(&self) {
        self.state.lock().denied_at = Some(Instant::now());
    }

    /// Whether AWS has denied a notice lately, beyond the default limit.
    pub(super) fn was_denied_lately(&self) -> bool {
        let denied_at = self.state.lock().denied_at.filter(|_| !self.is_strict);
        denied_at.is_some_and(|at| at.elapsed() < DENIAL_REMEMBERED)
    }

    /// Whether the instance is drained because there was room.
    fn had_room(&self, instance: &InstanceId) -> bool {
        self.state.lock().admitted.get(instance).is_some_and(|places| places.by_room > 0)
    }

    /// Counts an unproven notice of the instance. If there are too many, ends one wait of the kind and instance that have the most: AWS
    /// confirms a genuine notice within seconds, and it is the only one of its kind. `nodes` is the number of Nodes: there is room for
    /// genuine notices of two kinds for each.
    pub(super) fn wait_unproven(self: &Arc<Self>, wait: UnprovenWait, nodes: usize) -> UnprovenPlace {
        // The default limit loses none of a storm's: the number of messages that a process holds bounds them.
        let most = if self.is_strict { MAX_UNPROVEN } else { usize::MAX };
        let mut state = self.state.lock();
        let of_one = state.unproven.iter().filter(|other| other.instance == wait.instance).count();
        let last = match of_one {
            MAX_UNPROVEN_OF_ONE.. => state.last_of_most(|of| *of == wait.instance),
            _ => (state.unproven.len() >= (2 * nodes).max(UNPROVEN).min(most))
                .then(|| state.last_of_most(|_| true))
                .flatten(),
        };
        if let Some(crowded_out) = last.and_then(|place| state.unproven.remove(place)) {
            crowded_out.end.cancel();
        }
        let unproven = UnprovenPlace { draining: Arc::clone(self), end: wait.end.clone() };
        state.unproven.push_back(wait);
        unproven
    }

    /// Lets another notice try to take the room: this one can't.
    pub(super) fn pass_on(&self) {
        self.freed.notify_one();
    }

    /// Waits until the instance is drained because there was room.
    pub(super) async fn until_room_of(&self, instance: &InstanceId) {
        while !self.had_room(instance) {
            sleep(RECOUNT_INTERVAL).await;
        }
    }

    /// Waits until there may be room.
    pub(super) async fn changed(&self) {
        tokio::select! {
            biased;
            // One at a time: there is room for one.
            () = self.freed.notified() => {}
            () = sleep(RECOUNT_INTERVAL) => {}
        }
    }
}

/// A notice that was admitted. Its node counts as drained while this lives.
#[derive(Debug)]
pub(super) struct DrainPlace {
    draining: Arc<DrainingNodes>,
    instance: InstanceId,
    by_room: bool,
}

/// A notice that waits unproven. Counts while this lives.
#[derive(Debug)]
pub(super) struct UnprovenPlace {
    draining: Arc<DrainingNodes>,
    end: CancellationToken,
}

impl Drop for UnprovenPlace {
    fn drop(&mut self) {
        self.draining.state.lock().unproven.retain(|wait| wait.end != self.end);
    }
}

impl Drop for DrainPlace {
    fn drop(&mut self) {
        let mut state = self.draining.state.lock();
        if let Some(places) = state.admitted.get_mut(&self.instance) {
            places.all -= 1;
            places.by_room -= usize::from(self.by_room);
            if places.all == 0 {
                state.admitted.remove(&self.instance);
                let State { marked, ended, .. } = &mut *state;
                if self.draining.is_strict {
                    // Its mark may be newer than the count.
                    if let Some((_, marked)) = marked {
                        marked.insert(self.instance.clone());
                    }
                } else {
                    // Also before the first count: what needed no room has left a mark, too.
                    ended.insert(self.instance.clone());
                    if let Some((_, marked)) = marked {
                        marked.remove(&self.instance);
                    }
                }
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
        let draining = Arc::new(DrainingNodes::new(DrainLimit::None));
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
        assert_eq!(draining.state.lock().admitted, HashMap::new());
        assert_eq!(draining.admit(&id(5), 4, marked).unwrap_err(), 4, "the marks stay, and those of the last second");
        sleep(COUNT_KEPT).await;
        draining.admit(&id(5), 2, HashSet::new).expect("they are gone");
    }

    /// Its mark stays until the deadline, and was not counted before.
    #[tokio::test(start_paused = true)]
    async fn a_drain_that_needed_no_room_holds_none_after_its_end() {
        let draining = Arc::new(DrainingNodes::new(DrainLimit::Shaping));
        drop(draining.admit_anyway(&id(1)));
        draining.admit(&id(2), 1, || HashSet::from([id(1)])).expect("the first has ended");
    }

    #[test]
    fn a_wait_that_is_over_counts_no_more() {
        let draining = Arc::new(DrainingNodes::new(DrainLimit::None));
        let wait_of = |instance, kind| {
            let end = CancellationToken::new();
            let ease = (kind == NoticeKind::Spot).then_some(Timestamp::UNIX_EPOCH);
            let wait = UnprovenWait { instance, kind, ease, end: end.clone() };
            (draining.wait_unproven(wait, 10), end)
        };
        let wait = |kind| wait_of(id(1), kind);
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
        let others: Vec<_> = (0..UNPROVEN - 5).map(|n| wait_of(id(2 + n), NoticeKind::Spot)).collect();
        assert!(
            !honest.1.is_cancelled() && full[2].1.is_cancelled(),
            "of all, the oldest of the instance with the most"
        );
        assert!(others.last().is_some_and(|(_, end)| !end.is_cancelled()));
    }

    /// Some of them come twice: AWS recommends what it takes soon.
    #[test]
    fn the_honest_notices_of_all_nodes_wait_side_by_side() {
        let (draining, nodes) = (Arc::new(DrainingNodes::new(DrainLimit::None)), 2 * UNPROVEN);
        let wait = |n, kind| {
            let (instance, end) = (id(n), CancellationToken::new());
            let ease = (kind == NoticeKind::Spot).then_some(Timestamp::UNIX_EPOCH);
            let wait = UnprovenWait { instance, kind, ease, end: end.clone() };
            (draining.wait_unproven(wait, nodes), end)
        };
        let spots: Vec<_> = (0..nodes).map(|n| wait(n, NoticeKind::Spot)).collect();
        let mut others: Vec<_> = (0..nodes).map(|n| wait(n, NoticeKind::Rebalance)).collect();
        assert!(spots.iter().chain(&others).all(|(_, end)| !end.is_cancelled()));
        others.extend((nodes..nodes + 10).map(|n| wait(n, NoticeKind::Rebalance)));
        assert!(spots.iter().all(|(_, end)| !end.is_cancelled()), "what AWS may prove is ended last");
        assert_eq!(others.iter().filter(|(_, end)| end.is_cancelled()).count(), 10);
    }
}
