//! Who may call now: places in flight, as many as the other side bears, handed out by class and by deadline.
//!
//! A place is a value: dropped, by a caller who was answered as by one who gave up, it goes to the next. Nothing here has a
//! task of its own.

use super::backoff::jittered;
use super::{CALL_TIMEOUT, Category, LAST_CALL};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout_at};

/// One overload cuts the limit once: answers to calls that were in flight with it say nothing new.
const CUT_AT_MOST_EVERY: Duration = Duration::from_secs(1);

/// A class that waits is passed over at most so often before it has its turn: its share.
const PATIENCE: u32 = 8;

/// Another class is let go first for no longer than this, so that one of its calls that hangs stops nobody.
const LETS_FIRST: Duration = Duration::from_secs(5);

/// How long a throttled call waits at first, where nobody says how long.
const KEEPS_FIRST: Duration = Duration::from_millis(250);

/// A server that asks for longer is asked again after this: a wrong word of a proxy must not stop drains, whose deadlines may have
/// moved nearer meanwhile.
const ASKED_AT_MOST: Duration = Duration::from_secs(10);

/// A throttled call waits for no more than this part of the time that is left to it.
const PART_OF_THE_REST: u32 = 4;

/// What the calls of one gate are for: a closed set, in order of precedence.
pub trait Classes: Copy + std::fmt::Debug + Send + Sync + 'static {
    /// How many there are.
    const COUNT: usize;

    /// How many calls may be in flight.
    const LIMITS: Limits;

    /// The class's place in the order of precedence, from 0.
    fn rank(self) -> usize;

    /// The class that this one lets go first: none of its calls begins while one of that class waits or is in flight, for a
    /// few seconds at most.
    fn lets_first(self) -> Option<Self> {
        None
    }

    /// So many of the first classes have places beyond the limit, a quarter more: others, which wait for answers that don't come, must
    /// not hold them up.
    const PRESSING: usize = 0;

    /// Whether a throttled call keeps its place while it waits: where others would only be throttled in its stead.
    const KEEPS_PLACE: bool = false;

    /// How long a throttled call waits at the most, where nobody says how long.
    const KEEPS_MOST: Duration = Duration::from_secs(5);
}

/// Bounds of how many calls may be in flight.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Where it starts.
    pub first: u16,
    /// However overloaded the other side is.
    pub least: u16,
    /// However well it answers.
    pub most: u16,
}

/// Hands out places. Clones hand out the same ones.
#[derive(Clone, Debug)]
pub(super) struct Admission(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// How many calls of each class wait or are in flight.
    calls: Box<[watch::Sender<usize>]>,
}

#[derive(Debug)]
struct State {
    limits: Limits,
    limit: f64,
    in_flight: usize,
    /// Those of them that press.
    pressing_in_flight: usize,
    cut_at: Option<Instant>,
    /// How long a throttled call waits at the most.
    keeps_most: Duration,
    /// While calls are throttled: how long one waits, and since when it is so long.
    throttled: Option<(Duration, Instant)>,
    arrivals: u64,
    /// Who waits, by class.
    waiting: Box<[Line]>,
    /// So many of the first classes have more places.
    pressing: usize,
    passed_over: Box<[u32]>,
}

/// Who waits of one class, by the time at which it must be done, then by arrival.
type Line = BTreeMap<(Instant, u64), oneshot::Sender<Permit>>;

/// The right to one call in flight; dropping it admits the next.
#[derive(Debug)]
struct Permit(Option<Admission>, usize);

/// One of a class's calls, from when it asks for a place until it has given it back.
#[derive(Debug)]
struct Counted {
    admission: Admission,
    rank: usize,
}

/// A caller's turn: its place, and the time that it has.
#[derive(Debug)]
pub(super) struct Turn {
    permit: Permit,
    keeps_place: bool,
    _counted: Counted,
    begun: Instant,
    by: Instant,
}

impl Admission {
    /// All places are free.
    pub(super) fn new<C: Classes>() -> Self {
        let limits = C::LIMITS;
        let state = State {
            limits,
            limit: f64::from(limits.first),
            in_flight: 0,
            pressing_in_flight: 0,
            cut_at: None,
            keeps_most: C::KEEPS_MOST,
            throttled: None,
            arrivals: 0,
            waiting: (0..C::COUNT).map(|_| Line::new()).collect(),
            pressing: C::PRESSING,
            passed_over: (0..C::COUNT).map(|_| 0).collect(),
        };
        let calls = (0..C::COUNT).map(|_| watch::Sender::new(0)).collect();
        Self(Arc::new(Shared { state: Mutex::new(state), calls }))
    }

    /// Waits for a place. The call's own time begins only then.
    pub(super) async fn turn<C: Classes>(&self, class: C, by: Instant) -> Turn {
        let counted = Counted::new(self.clone(), class.rank());
        let permit = match class.lets_first() {
            None => self.enter(class.rank(), by).await,
            Some(first) => self.enter_after(first.rank(), class.rank(), by).await,
        };
        Turn { permit, keeps_place: C::KEEPS_PLACE, _counted: counted, begun: Instant::now(), by }
    }

    async fn enter_after(&self, first: usize, rank: usize, by: Instant) -> Permit {
        let until = Instant::now() + LETS_FIRST;
        let mut calls = self.0.calls[first].subscribe();
        loop {
            let in_time = timeout_at(until, calls.wait_for(|calls| *calls == 0)).await.is_ok();
            let permit = self.enter(rank, by).await;
            // While this one waited for its place, calls that go first may have come; then somebody else has more use for it.
            if !in_time || Instant::now() >= until || *calls.borrow() == 0 {
                return permit;
            }
        }
    }

    async fn enter(&self, rank: usize, by: Instant) -> Permit {
        let turn = {
            let mut state = self.lock();
            if state.has_room(rank) && state.nobody_waits_before(rank) {
                state.enter(rank);
                return Permit(Some(self.clone()), rank);
            }
            let (sender, turn) = oneshot::channel();
            state.arrivals += 1;
            let arrival = state.arrivals;
            state.waiting[rank].insert((by, arrival), sender);
            turn
        };
        // A sender is dropped only together with the state, which `self` keeps.
        turn.await.unwrap_or(Permit(None, rank))
    }

    /// Hands free places to those who wait. A permit whose taker has gone away comes back by its drop, so the lock is not
    /// held while it is sent.
    fn admit(&self) {
        loop {
            let Some((taker, rank)) = self.lock().next_taker() else { return };
            // `Err` gives the permit back; dropping it would recurse, so its place is freed here.
            if let Err(mut refused) = taker.send(Permit(Some(self.clone()), rank)) {
                refused.0 = None;
                self.lock().leave(rank);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the limit lies between two u16")]
    fn places(&self) -> usize {
        self.limit as usize
    }

    /// The places of those that press beside the others'.
    fn reserve(&self) -> usize {
        self.places() / 4
    }

    /// How many of the places are taken in which all compete.
    fn taken(&self) -> usize {
        self.in_flight - self.pressing_in_flight.min(self.reserve())
    }

    fn has_reserve(&self, rank: usize) -> bool {
        rank < self.pressing && self.pressing_in_flight < self.reserve()
    }

    fn has_room(&self, rank: usize) -> bool {
        self.taken() < self.places() || self.has_reserve(rank)
    }

    fn enter(&mut self, rank: usize) {
        self.in_flight += 1;
        self.pressing_in_flight += usize::from(rank < self.pressing);
    }

    fn leave(&mut self, rank: usize) {
        self.in_flight -= 1;
        self.pressing_in_flight -= usize::from(rank < self.pressing);
    }

    /// Those behind may wait for places that they don't have, and this one does.
    fn nobody_waits_before(&self, rank: usize) -> bool {
        let before = if rank < self.pressing { rank + 1 } else { self.waiting.len() };
        self.waiting[..before].iter().all(Line::is_empty)
    }

    /// Takes the next place, and says whose it is.
    fn next_taker(&mut self) -> Option<(oneshot::Sender<Permit>, usize)> {
        loop {
            let chosen = self.next_class()?;
            let (_, taker) = self.waiting[chosen].pop_first()?;
            // One who gave up is not one who had the class's turn.
            if taker.is_closed() {
                continue;
            }
            // What is kept for those that press is nobody else's turn.
            if !self.has_reserve(chosen) {
                for class in chosen + 1..self.waiting.len() {
                    if !self.waiting[class].is_empty() {
                        self.passed_over[class] += 1;
                    }
                }
                self.passed_over[chosen] = 0;
            }
            self.enter(chosen);
            return Some((taker, chosen));
        }
    }

    /// The first class that waits and has room, unless one behind it was passed over too often.
    fn next_class(&self) -> Option<usize> {
        let waits = |class: &usize| !self.waiting[*class].is_empty() && self.has_room(*class);
        let first = (0..self.waiting.len()).find(waits)?;
        let starved = (first + 1..self.waiting.len()).filter(waits).find(|class| self.passed_over[*class] >= PATIENCE);
        Some(starved.unwrap_or(first))
    }

    /// Learns from the answer to a call: the limit grows by one for each limit's worth of good answers while it is used up, and is
    /// cut by a third when the other side is overloaded. Tells how long the call waits.
    fn learn(&mut self, begun: Instant, failed: Option<Category>, asked: Option<Duration>) -> Duration {
        match failed {
            Some(Category::Throttled) => {
                let now = Instant::now();
                if self.cut_at.is_none_or(|at| now - at >= CUT_AT_MOST_EVERY) {
                    self.limit = (self.limit * 2.0 / 3.0).max(f64::from(self.limits.least));
                    self.cut_at = Some(now);
                }
                return asked.unwrap_or_else(|| jittered(self.keeps(begun, now)));
            }
            // What failed otherwise says nothing about how much the other side bears; a refusal or a conflict is an answer like any
            // other.
            Some(Category::TimedOut | Category::Unavailable | Category::Unreachable) => {}
            _ => {
                if self.taken() >= self.places() {
                    self.limit = (self.limit + 1.0 / self.limit).min(f64::from(self.limits.most));
                }
                if self.throttled.is_some_and(|(_, since)| begun > since) {
                    self.throttled = None;
                }
            }
        }
        Duration::ZERO
    }

    /// How long a throttled call waits: twice as long as the last, if it began after that one was answered. Those
    /// that were in flight with it say nothing new.
    fn keeps(&mut self, begun: Instant, now: Instant) -> Duration {
        let keeps = match self.throttled {
            None => KEEPS_FIRST,
            Some((keeps, since)) if begun > since => (keeps * 2).min(self.keeps_most),
            Some((keeps, _)) => return keeps,
        };
        self.throttled = Some((keeps, now));
        keeps
    }
}

impl Counted {
    fn new(admission: Admission, rank: usize) -> Self {
        // Quietly: who waits, waits for there being none.
        admission.0.calls[rank].send_if_modified(|calls| {
            *calls += 1;
            false
        });
        Self { admission, rank }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.admission.0.calls[self.rank].send_if_modified(|calls| {
            *calls -= 1;
            *calls == 0
        });
    }
}

impl Turn {
    /// How long the call may take: until its deadline, but something is better than nothing.
    pub(super) fn limit(&self) -> Duration {
        self.by.saturating_duration_since(self.begun).clamp(LAST_CALL, CALL_TIMEOUT)
    }

    /// For how long the call has run.
    pub(super) fn took(&self) -> Duration {
        self.begun.elapsed()
    }

    /// What the other side asks for, no longer than is good for the caller.
    pub(super) fn bounded(&self, asked: Duration) -> Duration {
        let left = self.by.saturating_duration_since(Instant::now());
        asked.min(ASKED_AT_MOST).min(left / PART_OF_THE_REST)
    }

    /// Ends the turn. A throttled call waits for as long as the other side `asked`, or a while, though no longer than a part of the time
    /// that it has: so its caller has done the waiting that was asked for, and there is time for another try.
    pub(super) async fn answered(self, failed: Option<Category>, asked: Option<Duration>) {
        let waits = match &self.permit.0 {
            Some(admission) => admission.lock().learn(self.begun, failed, asked),
            None => Duration::ZERO,
        };
        let until = Instant::now() + self.bounded(waits);
        let Self { permit, keeps_place, _counted, .. } = self;
        let place = keeps_place.then_some(permit);
        if until > Instant::now() {
            sleep_until(until).await;
        }
        drop(place);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(admission) = self.0.take() {
            admission.lock().leave(self.1);
            admission.admit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Class, Lifecycle};
    use super::*;
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Wake, Waker};
    use tokio::sync::mpsc;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    const MOMENT: Duration = Duration::from_millis(1);

    fn narrow<C: Classes>(limit: f64) -> Admission {
        let admission = Admission::new::<C>();
        admission.lock().limit = limit;
        admission
    }

    /// Whether nobody has a place, waits for one, or is counted.
    fn is_empty(admission: &Admission) -> bool {
        let state = admission.lock();
        state.in_flight == 0
            && state.waiting.iter().all(Line::is_empty)
            && admission.0.calls.iter().all(|calls| *calls.borrow() == 0)
    }

    fn polled<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
        use futures_util::FutureExt;
        future.now_or_never()
    }

    /// Fills a gate of one place, lets calls of the given classes and deadlines queue, then frees place after place and tells
    /// who came in which order.
    async fn order<C: Classes>(calls: &[(C, Duration)]) -> Vec<(C, Duration)> {
        let admission = narrow::<C>(1.0);
        let begun = Instant::now();
        let held = admission.enter(0, begun).await;
        let (told, mut order) = mpsc::unbounded_channel();
        let waiting = calls.iter().map(|(class, by)| {
            let (admission, told) = (admission.clone(), told.clone());
            async move {
                let _turn = admission.turn(*class, begun + *by).await;
                told.send((*class, *by)).unwrap();
            }
        });
        let mut all = Box::pin(futures_util::future::join_all(waiting));
        assert!(polled(&mut all).is_none());
        drop(held);
        all.await;
        assert!(is_empty(&admission));
        order.close();
        let mut seen = Vec::new();
        while let Some(call) = order.recv().await {
            seen.push(call);
        }
        seen
    }

    #[tokio::test(start_paused = true)]
    async fn cordons_go_before_lists_and_evictions() {
        let calls = [Class::Tell, Class::Evict, Class::List, Class::Cordon, Class::Urgent, Class::Cordon];
        let seen = order(&calls.map(|class| (class, s(1)))).await;
        let seen: Vec<_> = seen.into_iter().map(|(class, _)| class).collect();
        let expected = [Class::Urgent, Class::Cordon, Class::Cordon, Class::List, Class::Tell];
        assert_eq!(seen.iter().filter(|class| **class != Class::Evict).copied().collect::<Vec<_>>(), expected);
        assert!(
            seen.iter().position(|class| *class == Class::Evict)
                > seen.iter().rposition(|class| *class == Class::Cordon)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn completions_go_before_heartbeats_and_those_that_expire_first_before_others() {
        let seen = order(&[
            (Lifecycle::Beat, s(300)),
            (Lifecycle::Beat, s(20)),
            (Lifecycle::Complete, s(900)),
            (Lifecycle::Beat, s(30)),
            (Lifecycle::Complete, s(500)),
            (Lifecycle::Look, s(5)),
        ])
        .await;
        let expected = [
            (Lifecycle::Look, s(5)),
            (Lifecycle::Complete, s(500)),
            (Lifecycle::Complete, s(900)),
            (Lifecycle::Beat, s(20)),
            (Lifecycle::Beat, s(30)),
            (Lifecycle::Beat, s(300)),
        ];
        assert_eq!(seen, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn no_class_starves() {
        let mut calls = vec![(Class::Cordon, s(1)); 20];
        calls.push((Class::List, s(1)));
        let seen = order(&calls).await;
        let turn = seen.iter().position(|(class, _)| *class == Class::List);
        assert_eq!(turn, Some(PATIENCE as usize), "{seen:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_eviction_waits_for_cordons_that_queue_or_are_in_flight() {
        let admission = narrow::<Class>(2.0);
        let by = Instant::now() + s(60);
        let first = admission.turn(Class::Cordon, by).await;
        let list = admission.turn(Class::List, by).await;
        let mut second = Box::pin(admission.turn(Class::Cordon, by));
        assert!(polled(&mut second).is_none());
        let mut evict = Box::pin(admission.turn(Class::Evict, by));
        assert!(polled(&mut evict).is_none());
        drop(first);
        let second = polled(&mut second).expect("the cordon has the place");
        drop(list);
        assert!(polled(&mut evict).is_none(), "there is room, but a cordon is in flight");
        assert!(polled(&mut Box::pin(admission.turn(Class::Urgent, by))).is_some(), "what is urgent waits for nobody");
        drop(second);
        assert!(polled(&mut evict).is_some());
        drop(evict);
        assert!(is_empty(&admission));
    }

    /// Counts how often a future was woken.
    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_eviction_that_waits_for_cordons_sleeps_until_there_are_none() {
        let admission = narrow::<Class>(2.0);
        let by = Instant::now() + s(60);
        let mut cordon = admission.turn(Class::Cordon, by).await;
        let woken = Arc::new(Woken::default());
        let mut evict = pin!(admission.turn(Class::Evict, by));
        let waker = Waker::from(Arc::clone(&woken));
        let mut poll = || evict.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(poll().is_pending());
        // There is always one: a storm's notices come one by one, and thousands of evictions may wait.
        for _ in 0..100 {
            cordon = admission.turn(Class::Cordon, by).await;
        }
        assert_eq!(woken.0.load(Ordering::Relaxed), 0);
        drop(cordon);
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        assert!(poll().is_ready());
    }

    #[tokio::test(start_paused = true)]
    async fn an_eviction_that_queues_gives_way_to_a_cordon_that_comes_later() {
        let admission = narrow::<Class>(2.0);
        let by = Instant::now() + s(60);
        let lists = [admission.turn(Class::List, by).await, admission.turn(Class::List, by).await];
        let mut evict = Box::pin(admission.turn(Class::Evict, by));
        assert!(polled(&mut evict).is_none());
        let mut cordon = Box::pin(admission.turn(Class::Cordon, by));
        assert!(polled(&mut cordon).is_none());
        drop(lists);
        assert!(polled(&mut evict).is_none(), "it had a place, and gave it back");
        drop(polled(&mut cordon).expect("the cordon has a place"));
        assert!(polled(&mut evict).is_some());
        drop(evict);
        assert!(is_empty(&admission));
    }

    #[tokio::test(start_paused = true)]
    async fn a_cordon_that_hangs_stops_no_eviction_for_longer_than_five_seconds() {
        let admission = narrow::<Class>(2.0);
        let by = Instant::now() + s(60);
        let _hangs = admission.turn(Class::Cordon, by).await;
        let mut evict = Box::pin(admission.turn(Class::Evict, by));
        assert!(polled(&mut evict).is_none());
        tokio::time::advance(s(5) - MOMENT).await;
        assert!(polled(&mut evict).is_none());
        tokio::time::advance(MOMENT).await;
        assert!(polled(&mut evict).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_throttled_call_waits_as_it_was_asked_to_within_its_time() {
        for (asked, by, waits) in [(s(7), s(60), s(7)), (s(7), s(8), s(2)), (s(3600), s(7200), s(10))] {
            let admission = narrow::<Lifecycle>(1.0);
            let by = Instant::now() + by;
            let throttled = admission.turn(Lifecycle::Beat, by).await;
            let mut answered = Box::pin(throttled.answered(Some(Category::Throttled), Some(asked)));
            assert!(polled(&mut answered).is_none());
            let mut next = Box::pin(admission.turn(Lifecycle::Complete, by));
            tokio::time::advance(waits.checked_sub(MOMENT).unwrap()).await;
            assert!(polled(&mut answered).is_none() && polled(&mut next).is_none(), "{asked:?} {waits:?}");
            tokio::time::advance(MOMENT).await;
            assert!(polled(&mut answered).is_some() && polled(&mut next).is_some(), "{asked:?} {waits:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_to_call_the_api_server_again_holds_nobody_up() {
        let admission = narrow::<Class>(1.0);
        let by = Instant::now() + s(60);
        let throttled = admission.turn(Class::Evict, by).await;
        let mut answered = Box::pin(throttled.answered(Some(Category::Throttled), Some(s(7))));
        assert!(polled(&mut answered).is_none());
        assert!(polled(&mut Box::pin(admission.turn(Class::List, by))).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn what_presses_has_places_that_others_cannot_take() {
        let admission = narrow::<Class>(8.0);
        let by = Instant::now() + s(60);
        let mut hang = Vec::new();
        for _ in 0..8 {
            hang.push(admission.turn(Class::Evict, by).await);
        }
        let mut list = Box::pin(admission.turn(Class::List, by));
        assert!(polled(&mut list).is_none());
        let urgent = polled(&mut Box::pin(admission.turn(Class::Urgent, by))).expect("a place beyond the limit");
        let cordon = polled(&mut Box::pin(admission.turn(Class::Cordon, by))).expect("another");
        let mut late = Box::pin(admission.turn(Class::Urgent, by));
        assert!(polled(&mut late).is_none(), "not without end");
        drop(urgent);
        drop(polled(&mut late).expect("the next that presses"));
        drop(cordon);
        assert!(polled(&mut list).is_none(), "the others still fill their places");
        hang.pop();
        assert!(polled(&mut list).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn where_nobody_says_how_long_the_time_doubles_until_a_call_is_answered_well() {
        let admission = Admission::new::<Lifecycle>();
        let by = Instant::now() + s(3600);
        let kept = async |failed| {
            admission.lock().limit = 2.0;
            // Two at a time: the second says nothing new.
            let turns = [admission.turn(Lifecycle::Beat, by).await, admission.turn(Lifecycle::Beat, by).await];
            tokio::time::advance(MOMENT).await;
            let begun = Instant::now();
            let [one, other] = turns.map(|turn| turn.answered(failed, None));
            tokio::join!(one, other);
            begun.elapsed()
        };
        let throttled = Some(Category::Throttled);
        for least in [250, 500, 1000, 2000, 2000, 2000].map(|step| Duration::from_millis(step / 2)) {
            let kept = kept(throttled).await;
            assert!(kept >= least && kept <= least * 2 + MOMENT, "{kept:?} {least:?}");
        }
        assert_eq!(kept(Some(Category::Unavailable)).await, Duration::ZERO);
        assert!(kept(throttled).await >= Lifecycle::KEEPS_MOST / 2, "a failure is no sign that it is over");
        assert_eq!(kept(None).await, Duration::ZERO);
        assert!(kept(throttled).await <= KEEPS_FIRST + MOMENT);
    }

    #[tokio::test(start_paused = true)]
    async fn callers_who_give_up_leave_no_hole() {
        let admission = narrow::<Class>(1.0);
        let by = Instant::now() + s(60);
        let held = admission.turn(Class::List, by).await;
        let mut given_up = Box::pin(admission.turn(Class::Urgent, by));
        let mut patient = Box::pin(admission.turn(Class::List, by));
        assert!(polled(&mut given_up).is_none() && polled(&mut patient).is_none());
        // While it waits, …
        drop(given_up);
        drop(held);
        let turn = polled(&mut patient).expect("the place is free");
        // … when it was given a place and has not looked, …
        let mut given_up = Box::pin(admission.turn(Class::Urgent, by));
        assert!(polled(&mut given_up).is_none());
        drop(turn);
        assert_eq!(admission.lock().in_flight, 1);
        drop(given_up);
        assert!(is_empty(&admission));
        // … while it lets others go first, …
        let cordon = admission.turn(Class::Cordon, by).await;
        let mut given_up = Box::pin(admission.turn(Class::Evict, by));
        assert!(polled(&mut given_up).is_none());
        drop((given_up, cordon));
        assert!(is_empty(&admission));
        // … and while it keeps its place.
        let turn = admission.turn(Class::Cordon, by).await;
        let mut given_up = Box::pin(turn.answered(Some(Category::Throttled), None));
        assert!(polled(&mut given_up).is_none());
        assert!(!is_empty(&admission));
        drop(given_up);
        assert!(is_empty(&admission));
    }

    #[tokio::test(start_paused = true)]
    async fn overload_narrows_the_gate_once_a_second_and_success_widens_it() {
        let admission = narrow::<Class>(9.0);
        // Its deadline has come, so it keeps its place no longer.
        let answer = async |failed| admission.turn(Class::List, Instant::now()).await.answered(failed, None).await;
        let limit = || admission.lock().limit;
        answer(Some(Category::Throttled)).await;
        answer(Some(Category::Throttled)).await;
        assert!((limit() - 6.0).abs() < f64::EPSILON);
        tokio::time::advance(CUT_AT_MOST_EVERY).await;
        answer(Some(Category::Throttled)).await;
        assert!((limit() - 4.0).abs() < f64::EPSILON);
        let mut full = Vec::new();
        for _ in 0..4 {
            full.push(admission.turn(Class::List, Instant::now()).await);
        }
        full.pop().expect("four were taken").answered(None, None).await;
        assert!((limit() - 4.25).abs() < f64::EPSILON);
    }
}
