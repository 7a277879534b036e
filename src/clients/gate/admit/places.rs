//! The places of a gate: how many there are, and which waiting call takes the next. Pure but for the clock.

use super::{CallClass, Category, MAX_PASSED_OVER, Permit};
use crate::clients::gate::Limits;
use crate::clients::gate::backoff::jittered;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Minimum interval between cuts of the limit: one overload cuts it once.
pub(super) const CUT_INTERVAL: Duration = Duration::from_secs(1);

/// First wait of throttled calls, if the server names no time.
pub(super) const FIRST_BACKOFF: Duration = Duration::from_millis(250);

/// The waiting calls of one class, by deadline, then by arrival.
pub(super) type Waiters = BTreeMap<(Instant, u64), oneshot::Sender<Permit>>;

#[derive(Debug)]
pub(super) struct Places {
    limits: Limits,
    /// Number of common places. A fraction is growth towards the next one.
    pub(super) limit: f64,
    /// Number of calls in flight.
    pub(super) in_flight: usize,
    /// Number of calls in flight of privileged classes.
    privileged_in_flight: usize,
    /// Number of privileged classes, counted from the first.
    privileged: usize,
    /// The waiting calls of each class.
    pub(super) waiting: Box<[Waiters]>,
    /// Number of places that went to classes before each class while it waited.
    passed_over: Box<[u32]>,
    /// Number of calls that had to wait so far.
    arrivals: u64,
    last_cut: Option<Instant>,
    max_backoff: Duration,
    /// The wait of throttled calls, from the first throttled answer to the first good one.
    backoff: Option<ThrottleBackoff>,
}

#[derive(Clone, Copy, Debug)]
struct ThrottleBackoff {
    wait: Duration,
    /// The time of the answer that set this wait.
    since: Instant,
}

impl Places {
    pub(super) fn new<C: CallClass>() -> Self {
        Self {
            limits: C::LIMITS,
            limit: f64::from(C::LIMITS.first),
            in_flight: 0,
            privileged_in_flight: 0,
            privileged: C::PRIVILEGED,
            waiting: (0..C::COUNT).map(|_| Waiters::new()).collect(),
            passed_over: (0..C::COUNT).map(|_| 0).collect(),
            arrivals: 0,
            last_cut: None,
            max_backoff: C::MAX_BACKOFF,
            backoff: None,
        }
    }

    /// Number of places that all classes compete for.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the limit lies between two u16")]
    fn common(&self) -> usize {
        self.limit as usize
    }

    /// Number of further places, for privileged classes only.
    fn reserve(&self) -> usize {
        self.common() / 4
    }

    /// Number of common places that are taken.
    fn common_taken(&self) -> usize {
        self.in_flight - self.privileged_in_flight.min(self.reserve())
    }

    fn has_reserve(&self, rank: usize) -> bool {
        rank < self.privileged && self.privileged_in_flight < self.reserve()
    }

    fn has_room(&self, rank: usize) -> bool {
        self.common_taken() < self.common() || self.has_reserve(rank)
    }

    /// Returns whether a new call has a place without waiting.
    pub(super) fn can_enter(&self, rank: usize) -> bool {
        // Lower classes may wait for common places, while a privileged call has one in the reserve.
        let before = if rank < self.privileged { rank + 1 } else { self.waiting.len() };
        self.has_room(rank) && self.waiting[..before].iter().all(Waiters::is_empty)
    }

    pub(super) fn enter(&mut self, rank: usize) {
        self.in_flight += 1;
        self.privileged_in_flight += usize::from(rank < self.privileged);
    }

    pub(super) fn leave(&mut self, rank: usize) {
        self.in_flight -= 1;
        self.privileged_in_flight -= usize::from(rank < self.privileged);
    }

    pub(super) fn wait(&mut self, rank: usize, deadline: Instant, waiter: oneshot::Sender<Permit>) {
        self.arrivals += 1;
        self.waiting[rank].insert((deadline, self.arrivals), waiter);
    }

    /// Takes the next place for a waiting call. Returns the call and its class's rank.
    pub(super) fn next_waiter(&mut self) -> Option<(oneshot::Sender<Permit>, usize)> {
        loop {
            let chosen = self.next_class()?;
            let (_, waiter) = self.waiting[chosen].pop_first()?;
            // A call that was given up does not use up its class's share.
            if waiter.is_closed() {
                continue;
            }
            // A place in the reserve could not have gone to the classes that are not privileged.
            let competing = if self.has_reserve(chosen) { self.privileged } else { self.waiting.len() };
            for class in chosen + 1..competing {
                if !self.waiting[class].is_empty() {
                    self.passed_over[class] += 1;
                }
            }
            self.passed_over[chosen] = 0;
            self.enter(chosen);
            return Some((waiter, chosen));
        }
    }

    /// Returns the first class that waits and has room, or else the first one behind it that was passed over too often.
    fn next_class(&self) -> Option<usize> {
        let waits = |class: &usize| !self.waiting[*class].is_empty() && self.has_room(*class);
        let first = (0..self.waiting.len()).find(waits)?;
        let starving =
            (first + 1..self.waiting.len()).filter(waits).find(|class| self.passed_over[*class] >= MAX_PASSED_OVER);
        Some(starving.unwrap_or(first))
    }

    /// Adapts the limit to the answer of a call that began at `begun`. Returns how long the call waits.
    pub(super) fn learn(
        &mut self,
        begun: Instant,
        failed: Option<Category>,
        retry_after: Option<Duration>,
    ) -> Duration {
        match failed {
            Some(Category::Throttled) => {
                let now = Instant::now();
                if self.last_cut.is_none_or(|at| now - at >= CUT_INTERVAL) {
                    self.limit = (self.limit * 2.0 / 3.0).max(f64::from(self.limits.least));
                    self.last_cut = Some(now);
                }
                return retry_after.unwrap_or_else(|| jittered(self.back_off(begun, now)));
            }
            Some(Category::TimedOut | Category::Unavailable | Category::Unreachable) => {}
            // A refusal or a conflict is an answer as well.
            _ => {
                if self.common_taken() >= self.common() {
                    self.limit = (self.limit + 1.0 / self.limit).min(f64::from(self.limits.most));
                }
                if self.backoff.is_some_and(|backoff| begun > backoff.since) {
                    self.backoff = None;
                }
            }
        }
        Duration::ZERO
    }

    /// Returns the wait of a throttled call: twice the last one, if the call began after the answer that set it. Calls that were in
    /// flight together wait alike.
    fn back_off(&mut self, begun: Instant, now: Instant) -> Duration {
        let wait = match self.backoff {
            None => FIRST_BACKOFF,
            Some(ThrottleBackoff { wait, since }) if begun > since => (wait * 2).min(self.max_backoff),
            Some(ThrottleBackoff { wait, .. }) => return wait,
        };
        self.backoff = Some(ThrottleBackoff { wait, since: now });
        wait
    }
}
