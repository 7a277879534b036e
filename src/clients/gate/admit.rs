//! Admission: how many calls are in flight, and which call goes next.
//!
//! A call in flight has a place. It gives the place back by dropping it, whether it was answered or given up, and the place goes to
//! the next waiting call. Admission has no task of its own.
//!
//! # The order of calls, and why no class starves
//!
//! 1. **The limit adapts.** It grows by one for each limit's worth of answers while all places are taken. It shrinks by a third when
//!    the server throttles, once a second at most, because answers to calls of the same overload are no news. Other failures
//!    are no sign of load.
//! 2. **Precedence.** A free place goes to the first class that has a waiting call; within the class to the call with the earliest
//!    deadline, then to the one that came first. Deadlines don't move, so that a waiting call only moves forward.
//! 3. **A share for every class.** Precedence alone would let a storm of cordons stop all lists. So a place given to one class
//!    passes over all waiting classes behind it, and a class passed over [`MAX_PASSED_OVER`] times is next, the first of several.
//!    Whatever the other classes do, a waiting class has a place after `MAX_PASSED_OVER` + `COUNT` others at the latest.
//! 4. **A reserve for the privileged classes.** Calls that hang hold their places until they time out. So the privileged
//!    classes have places beyond the limit, a quarter more, which no other class can take. They use these first, and
//!    compete for the common places only if the reserve is taken. A place in the reserve passes over the privileged classes alone: no
//!    other could have had it. Nor does a privileged call queue behind lower classes that wait for common places.
//! 5. **Yielding.** [`CallClass::yields_to`] names a class that has to be quiet before a call begins, even if there is room: evicted
//!    pods must not land on a node whose cordon is on its way. A call that gets a place while such calls have come
//!    gives it back. It yields for [`MAX_YIELD`] at most, so that a cordon that hangs stops no drain.
//! 6. **Throttled calls wait here**, for the time the server asks for or with a backoff that all calls of the gate share. The wait is
//!    bounded by [`MAX_RETRY_AFTER`] and by a part of the time left, so that the caller has time for another try.

mod places;
#[cfg(test)]
mod tests;

use super::{CALL_TIMEOUT, CallClass, Category, LAST_CALL};
use parking_lot::Mutex;
use places::Places;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout_at};

/// Maximum number of places that other classes get while a class waits, before it is next.
const MAX_PASSED_OVER: u32 = 8;

/// Maximum time that a call yields to another class.
const MAX_YIELD: Duration = Duration::from_secs(5);

/// Maximum wait that a server can ask for. A proxy's mistake must not stop drains, whose deadlines may come nearer meanwhile.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(10);

/// A throttled call waits for at most the time left divided by this number.
const TIME_LEFT_DIVISOR: u32 = 4;

/// Admits calls. Clones share the places.
#[derive(Clone, Debug)]
pub(super) struct Admitter(Arc<AdmitterState>);

#[derive(Debug)]
struct AdmitterState {
    places: Mutex<Places>,
    /// Number of calls of each class that wait or are in flight.
    calls: Box<[watch::Sender<usize>]>,
}

/// The admission of one call: its place, and its time.
#[derive(Debug)]
pub(super) struct Admission {
    permit: Permit,
    holds_place_while_throttled: bool,
    _registration: Registration,
    begun: Instant,
    deadline: Instant,
}

/// A place; dropping it admits the next call.
#[derive(Debug)]
struct Permit {
    /// `None` if the place was given back already.
    admitter: Option<Admitter>,
    rank: usize,
}

/// Counts one call in its class, from its request for a place until it has given the place back.
#[derive(Debug)]
struct Registration {
    admitter: Admitter,
    rank: usize,
}

impl Admitter {
    /// An admitter whose places are all free.
    pub(super) fn new<C: CallClass>() -> Self {
        let calls = (0..C::COUNT).map(|_| watch::Sender::new(0)).collect();
        Self(Arc::new(AdmitterState { places: Mutex::new(Places::new::<C>()), calls }))
    }

    /// Waits for a place. The call's own time begins with it.
    pub(super) async fn admit<C: CallClass>(&self, class: C, deadline: Instant) -> Admission {
        let registration = Registration::new(self.clone(), class.rank());
        let permit = match class.yields_to() {
            None => self.enter(class.rank(), deadline).await,
            Some(first) => self.enter_after(first.rank(), class.rank(), deadline).await,
        };
        Admission {
            permit,
            holds_place_while_throttled: C::HOLDS_PLACE_WHILE_THROTTLED,
            _registration: registration,
            begun: Instant::now(),
            deadline,
        }
    }

    /// Waits for a place that is had while no call of the class `first` waits or is in flight.
    async fn enter_after(&self, first: usize, rank: usize, deadline: Instant) -> Permit {
        let until = Instant::now() + MAX_YIELD;
        let mut calls = self.0.calls[first].subscribe();
        loop {
            let in_time = timeout_at(until, calls.wait_for(|calls| *calls == 0)).await.is_ok();
            let permit = self.enter(rank, deadline).await;
            // Calls of the other class may have come while this one waited for its place; then they have more use for it.
            if !in_time || Instant::now() >= until || *calls.borrow() == 0 {
                return permit;
            }
        }
    }

    async fn enter(&self, rank: usize, deadline: Instant) -> Permit {
        let permit = {
            let mut places = self.0.places.lock();
            if places.can_enter(rank) {
                places.enter(rank);
                return Permit { admitter: Some(self.clone()), rank };
            }
            let (sender, permit) = oneshot::channel();
            places.wait(rank, deadline, sender);
            permit
        };
        // The sender lives in the places, which `self` keeps.
        permit.await.unwrap_or(Permit { admitter: None, rank })
    }

    /// Gives free places to waiting calls. A receiver that has gone away drops its permit, which takes the lock: so the lock is not
    /// held while a permit is sent.
    fn admit_waiting(&self) {
        loop {
            let Some((waiter, rank)) = self.0.places.lock().next_waiter() else { return };
            // `Err` returns the permit. Dropping it would recurse, so its place is given back here.
            if let Err(mut refused) = waiter.send(Permit { admitter: Some(self.clone()), rank }) {
                refused.admitter = None;
                self.0.places.lock().leave(rank);
            }
        }
    }
}

impl Admission {
    /// Returns the timeout of the call: its deadline, but never less than [`LAST_CALL`].
    pub(super) fn timeout(&self) -> Duration {
        self.deadline.saturating_duration_since(self.begun).clamp(LAST_CALL, CALL_TIMEOUT)
    }

    /// Returns the time since the call began.
    pub(super) fn took(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Returns the wait that the server asks for, bounded.
    pub(super) fn bounded(&self, retry_after: Duration) -> Duration {
        let left = self.deadline.saturating_duration_since(Instant::now());
        retry_after.min(MAX_RETRY_AFTER).min(left / TIME_LEFT_DIVISOR)
    }

    /// Ends the admission with the call's answer. A throttled call waits here, so that its caller may try again at once.
    pub(super) async fn finish(self, failed: Option<Category>, retry_after: Option<Duration>) {
        let wait = match &self.permit.admitter {
            Some(admitter) => admitter.0.places.lock().learn(self.begun, failed, retry_after),
            None => Duration::ZERO,
        };
        let until = Instant::now() + self.bounded(wait);
        let Self { permit, holds_place_while_throttled, _registration, .. } = self;
        let place = holds_place_while_throttled.then_some(permit);
        if until > Instant::now() {
            sleep_until(until).await;
        }
        drop(place);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(admitter) = self.admitter.take() {
            admitter.0.places.lock().leave(self.rank);
            admitter.admit_waiting();
        }
    }
}

impl Registration {
    fn new(admitter: Admitter, rank: usize) -> Self {
        // Wakes no receiver: they wait until there are no calls.
        admitter.0.calls[rank].send_if_modified(|calls| {
            *calls += 1;
            false
        });
        Self { admitter, rank }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.admitter.0.calls[self.rank].send_if_modified(|calls| {
            *calls -= 1;
            *calls == 0
        });
    }
}
