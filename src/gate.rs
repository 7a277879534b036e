//! The one gate for outgoing calls: how many at once, which first, for how long, and what became of them.
//!
//! Calls to the API server take a [`Permit`] of one [`Gate`], whose in-flight limit adapts to what the server bears. A permit
//! is taken before the call's timeout begins. There is one layer of retries, the callers', who know their deadline; nothing
//! here retries.

mod backoff;
mod error;

pub use backoff::Backoff;
pub use error::{AwsError, Category, KubeError, category_of_code};

use crate::fact::{Fact, Facts};
use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

/// The longest any call but a watch and a long poll may take.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Where the limit starts: what one API server with default priority-and-fairness takes without queueing.
const FIRST_LIMIT: f64 = 64.0;
const LEAST_LIMIT: f64 = 4.0;
const MOST_LIMIT: f64 = 512.0;

/// One overload cuts the limit once: answers to calls that were in flight with it say nothing new.
const CUT_AT_MOST_EVERY: Duration = Duration::from_secs(1);

/// A class that waits is passed over at most so often before it has its turn: its share.
const PATIENCE: u32 = 8;

/// What a call to the API server is for, in order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Deletes, and evictions with less than 15 s left.
    Urgent,
    /// Patches that cordon: in a storm they come before any eviction, or pods land on the next victim.
    Cordon,
    /// Lists and reads.
    List,
    /// Evictions, by deadline.
    Evict,
}

impl Class {
    const COUNT: usize = 4;
    /// With less than this left, an eviction is urgent.
    const URGENT: Duration = Duration::from_secs(15);

    /// The class of an eviction that must be done by `deadline`.
    #[must_use]
    pub fn of_eviction(deadline: Instant) -> Self {
        if deadline.saturating_duration_since(Instant::now()) < Self::URGENT { Self::Urgent } else { Self::Evict }
    }
}

/// A call to the API server: what it does, and to what.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The verb, as RBAC names it.
    pub verb: &'static str,
    /// The resource, as RBAC names it.
    pub resource: &'static str,
    /// The object's name.
    pub subject: &'a str,
}

/// Admits calls to the API server. Clones are the same gate.
#[derive(Clone, Debug)]
pub struct Gate {
    state: Arc<Mutex<State>>,
    facts: Facts,
}

#[derive(Debug)]
struct State {
    limit: f64,
    in_flight: usize,
    cut_at: Option<Instant>,
    arrivals: u64,
    /// Who waits, by class; within a class by the time it must be done, then by arrival.
    waiting: [BTreeMap<(Instant, u64), oneshot::Sender<Permit>>; Class::COUNT],
    passed_over: [u32; Class::COUNT],
}

/// The right to one call in flight; dropping it admits the next.
#[derive(Debug)]
struct Permit(Option<Gate>);

impl Gate {
    /// An open gate.
    #[must_use]
    pub fn new(facts: Facts) -> Self {
        let state = State {
            limit: FIRST_LIMIT,
            in_flight: 0,
            cut_at: None,
            arrivals: 0,
            waiting: Default::default(),
            passed_over: [0; Class::COUNT],
        };
        Self { state: Arc::new(Mutex::new(state)), facts }
    }

    /// Makes one call to the API server: waits for its turn, then at most until `by` and never longer than [`CALL_TIMEOUT`].
    ///
    /// A call whose time has come already is given [`LAST_CALL`]: something is better than nothing.
    ///
    /// # Errors
    /// What the server or the transport said, classified; or that no answer came in time.
    pub async fn kube<T>(
        &self,
        call: Call<'_>,
        class: Class,
        by: Instant,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, KubeError> {
        let permit = self.enter(class, by).await;
        let begun = Instant::now();
        let limit = by.saturating_duration_since(begun).clamp(LAST_CALL, CALL_TIMEOUT);
        let result = match timeout(limit, Box::pin(request)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(KubeError::new(call.verb, call.resource, call.subject, &error)),
            Err(_) => Err(KubeError::timed_out(call.verb, call.resource, call.subject, limit)),
        };
        let outcome = result.as_ref().map_or_else(|error| error.category.as_str(), |_| "ok");
        permit.answered(result.as_ref().err().map(|error| error.category));
        let Call { verb, resource, .. } = call;
        self.facts.emit(&Fact::KubeCall { verb, resource, outcome, took: begun.elapsed() });
        result
    }

    async fn enter(&self, class: Class, by: Instant) -> Permit {
        let turn = {
            let mut state = self.lock();
            if state.has_room() && state.nobody_waits() {
                state.in_flight += 1;
                return Permit(Some(self.clone()));
            }
            let (sender, turn) = oneshot::channel();
            state.arrivals += 1;
            let arrival = state.arrivals;
            state.waiting[class as usize].insert((by, arrival), sender);
            turn
        };
        // A sender is dropped only together with the gate's state, which `self` keeps.
        turn.await.unwrap_or(Permit(None))
    }

    /// Hands free places to those who wait. A permit whose taker has gone away comes back by its drop, so the lock is not
    /// held while it is sent.
    fn admit(&self) {
        loop {
            let Some(taker) = self.lock().next_taker() else { return };
            // `Err` gives the permit back; dropping it would recurse, so its place is freed here.
            if let Err(mut refused) = taker.send(Permit(Some(self.clone()))) {
                refused.0 = None;
                self.lock().in_flight -= 1;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a call is given whose deadline is now or has passed.
pub const LAST_CALL: Duration = Duration::from_secs(2);

impl State {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the limit lies between 4 and 512")]
    fn has_room(&self) -> bool {
        self.in_flight < self.limit as usize
    }

    fn nobody_waits(&self) -> bool {
        self.waiting.iter().all(BTreeMap::is_empty)
    }

    /// Takes the next place, and says whose it is: the first class that waits, unless one behind it was passed over too often.
    fn next_taker(&mut self) -> Option<oneshot::Sender<Permit>> {
        if !self.has_room() {
            return None;
        }
        let waits = |class: &usize| !self.waiting[*class].is_empty();
        let first = (0..Class::COUNT).find(waits)?;
        let starved = (first + 1..Class::COUNT).filter(waits).find(|class| self.passed_over[*class] >= PATIENCE);
        let chosen = starved.unwrap_or(first);
        for class in chosen + 1..Class::COUNT {
            if !self.waiting[class].is_empty() {
                self.passed_over[class] += 1;
            }
        }
        self.passed_over[chosen] = 0;
        let (_, taker) = self.waiting[chosen].pop_first()?;
        self.in_flight += 1;
        Some(taker)
    }
}

impl Permit {
    /// Learns from the answer: the limit grows by one for each limit's worth of good answers while it is used up, and is cut by a
    /// third when the server is overloaded.
    fn answered(self, failed: Option<Category>) {
        let Some(gate) = &self.0 else { return };
        let mut state = gate.lock();
        match failed {
            Some(Category::Throttled) => {
                let now = Instant::now();
                if state.cut_at.is_none_or(|at| now - at >= CUT_AT_MOST_EVERY) {
                    state.limit = (state.limit * 2.0 / 3.0).max(LEAST_LIMIT);
                    state.cut_at = Some(now);
                }
            }
            // What failed otherwise says nothing about how much the server bears; a refusal or a conflict is an answer like any other.
            Some(Category::TimedOut | Category::Unavailable | Category::Unreachable) => {}
            _ if !state.has_room() => state.limit = (state.limit + 1.0 / state.limit).min(MOST_LIMIT),
            _ => {}
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(gate) = self.0.take() {
            gate.lock().in_flight -= 1;
            gate.admit();
        }
    }
}

/// Makes one call to AWS, in at most `limit`, and tells what became of it.
///
/// # Errors
/// What AWS or the transport said, classified; or that no answer came in time.
pub async fn aws<T, E>(
    facts: &Facts,
    (service, operation): (&'static str, &'static str),
    subject: &str,
    limit: Duration,
    request: impl Future<Output = Result<T, SdkError<E, HttpResponse>>>,
) -> Result<T, AwsError>
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    let begun = Instant::now();
    let result = match timeout(limit, Box::pin(request)).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(AwsError::from_sdk(service, operation, subject, &error)),
        Err(_) => Err(AwsError::timed_out(service, operation, subject, limit)),
    };
    let outcome = result.as_ref().map_or_else(|error| error.category.as_str(), |_| "ok");
    facts.emit(&Fact::AwsCall { service, operation, outcome, took: begun.elapsed() });
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc;

    fn gate(limit: f64) -> Gate {
        let gate = Gate::new(Facts::to(Vec::new()));
        gate.lock().limit = limit;
        gate
    }

    /// Fills the gate, lets calls of the given classes queue, then frees place after place and tells who came in which order.
    async fn order(classes: &[Class]) -> Vec<Class> {
        let gate = gate(1.0);
        let held = gate.enter(Class::List, Instant::now()).await;
        let (told, mut order) = mpsc::unbounded_channel();
        let waiting = classes.iter().map(|class| {
            let (gate, told) = (gate.clone(), told.clone());
            async move {
                let _permit = gate.enter(*class, Instant::now()).await;
                told.send(*class).unwrap();
            }
        });
        let all = futures_util::future::join_all(waiting);
        tokio::pin!(all);
        assert!(futures_util::poll!(&mut all).is_pending());
        drop(held);
        all.await;
        order.close();
        let mut seen = Vec::new();
        while let Some(class) = order.recv().await {
            seen.push(class);
        }
        seen
    }

    #[tokio::test(start_paused = true)]
    async fn cordons_go_before_lists_and_evictions() {
        let seen = order(&[Class::Evict, Class::List, Class::Cordon, Class::Urgent, Class::Cordon]).await;
        assert_eq!(seen, [Class::Urgent, Class::Cordon, Class::Cordon, Class::List, Class::Evict]);
    }

    #[tokio::test(start_paused = true)]
    async fn no_class_starves() {
        let mut classes = vec![Class::Cordon; 20];
        classes.push(Class::Evict);
        let seen = order(&classes).await;
        let turn = seen.iter().position(|class| *class == Class::Evict);
        assert_eq!(turn, Some(PATIENCE as usize), "{seen:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_who_gave_up_leaves_no_hole() {
        let gate = gate(1.0);
        let held = gate.enter(Class::List, Instant::now()).await;
        let mut given_up = Box::pin(gate.enter(Class::Urgent, Instant::now()));
        assert!(futures_util::poll!(&mut given_up).is_pending());
        drop(given_up);
        let mut patient = Box::pin(gate.enter(Class::Evict, Instant::now()));
        assert!(futures_util::poll!(&mut patient).is_pending());
        drop(held);
        drop(patient.await);
        assert_eq!(gate.lock().in_flight, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn overload_narrows_the_gate_once_a_second_and_success_widens_it() {
        let gate = gate(9.0);
        gate.enter(Class::List, Instant::now()).await.answered(Some(Category::Throttled));
        gate.enter(Class::List, Instant::now()).await.answered(Some(Category::Throttled));
        assert!((gate.lock().limit - 6.0).abs() < f64::EPSILON);
        tokio::time::advance(CUT_AT_MOST_EVERY).await;
        gate.enter(Class::List, Instant::now()).await.answered(Some(Category::Throttled));
        assert!((gate.lock().limit - 4.0).abs() < f64::EPSILON);
        let mut full = Vec::new();
        for _ in 0..4 {
            full.push(gate.enter(Class::List, Instant::now()).await);
        }
        full.pop().expect("four were taken").answered(None);
        assert!((gate.lock().limit - 4.25).abs() < f64::EPSILON);
    }
}
