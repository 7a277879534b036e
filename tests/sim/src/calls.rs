//! Records all calls to the simulated services, for tests to count.

use crate::clock::Clock;
use crate::fault::Fault;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// One call as it arrived, before anything was decided about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Time of arrival since the world's start.
    pub at: Duration,
    /// `sqs`, `autoscaling`, `ec2` or `kube`.
    pub service: &'static str,
    /// An AWS operation (`ReceiveMessage`), or a Kubernetes verb and resource (`create pods/eviction`, `list pods`,
    /// `watch nodes`, `patch nodes`, `get pods`, `delete pods`).
    pub operation: String,
    /// Subject of the call: an object's name (`default/web-1`, `node-3`), a lifecycle action token, a queue URL, an
    /// instance ID; empty if a call has no single subject.
    pub subject: String,
    /// HTTP status of the answer, or 0 if no answer was given (a hang, a dropped connection).
    pub status: u16,
    /// Planned fault that the call met.
    pub fault: Option<Fault>,
}

/// A moment in the life of a call, for [`Calls::observe`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The call has arrived, and has had no effect.
    Arrived,
    /// The service has taken the call: its effect, or its own refusal, stands, and nobody knows yet.
    Served,
    /// The answer is on its way.
    Answered,
}

/// Looks at each moment of each call.
#[derive(Clone)]
struct Observer(Arc<Watching>);

type Watching = dyn Fn(Moment, &Call) + Send + Sync;

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}

/// A shared, growing record of [`Call`]s.
#[derive(Clone, Debug)]
pub struct Calls {
    clock: Clock,
    log: Arc<Mutex<Log>>,
}

#[derive(Debug, Default)]
struct Log {
    /// Number of forgotten calls.
    forgotten: usize,
    calls: Vec<Call>,
    observer: Option<Observer>,
}

impl Calls {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, log: Arc::default() }
    }

    /// Records a call; returns its place, for the later moments.
    pub(crate) fn arrived(&self, service: &'static str, operation: &str, subject: &str) -> usize {
        let place = {
            let mut log = self.log.lock();
            log.calls.push(Call {
                at: self.clock.elapsed(),
                service,
                operation: operation.to_owned(),
                subject: subject.to_owned(),
                status: 0,
                fault: None,
            });
            log.forgotten + log.calls.len() - 1
        };
        self.at(Moment::Arrived, place, |_| {});
        place
    }

    pub(crate) fn met(&self, place: usize, fault: Fault) {
        self.change(place, |call| call.fault = Some(fault));
    }

    pub(crate) fn served(&self, place: usize) {
        self.at(Moment::Served, place, |_| {});
    }

    pub(crate) fn answered(&self, place: usize, status: u16) {
        self.at(Moment::Answered, place, |call| call.status = status);
    }

    fn change(&self, place: usize, change: impl FnOnce(&mut Call)) -> Option<(Call, Observer)> {
        let mut log = self.log.lock();
        let index = place.checked_sub(log.forgotten)?;
        let call = log.calls.get_mut(index)?;
        change(call);
        let call = call.clone();
        Some((call, log.observer.clone()?))
    }

    /// Shows a call at a moment to the observer, who may look at the services: nothing is locked.
    fn at(&self, moment: Moment, place: usize, change: impl FnOnce(&mut Call)) {
        if let Some((call, Observer(look))) = self.change(place, change) {
            look(moment, &call);
        }
    }

    /// Shows every call from now on to `look`, at each of its moments, as it happens.
    pub fn observe(&self, look: impl Fn(Moment, &Call) + Send + Sync + 'static) {
        self.log.lock().observer = Some(Observer(Arc::new(look)));
    }

    /// Returns all calls so far.
    #[must_use]
    pub fn all(&self) -> Vec<Call> {
        self.log.lock().calls.clone()
    }

    /// Returns the calls of one operation so far, in order.
    #[must_use]
    pub fn of(&self, operation: &str) -> Vec<Call> {
        let log = self.log.lock();
        log.calls.iter().filter(|call| call.operation == operation).cloned().collect()
    }

    /// Returns the number of calls of one operation so far.
    #[must_use]
    pub fn count(&self, operation: &str) -> usize {
        let log = self.log.lock();
        log.calls.iter().filter(|call| call.operation == operation).count()
    }

    /// Returns the number of calls of each operation so far.
    #[must_use]
    pub fn tally(&self) -> BTreeMap<String, usize> {
        let log = self.log.lock();
        let mut tally = BTreeMap::new();
        for call in &log.calls {
            *tally.entry(call.operation.clone()).or_default() += 1;
        }
        tally
    }

    /// Forgets the calls that arrived before a time since the world's start.
    pub(crate) fn forget_before(&self, time: Duration) {
        let mut log = self.log.lock();
        let old = log.calls.partition_point(|call| call.at < time);
        log.calls.drain(..old);
        log.calls.shrink_to_fit();
        log.forgotten += old;
    }

    /// Forgets all calls so far, and frees their memory: for worlds with millions of calls.
    pub fn forget(&self) {
        let mut log = self.log.lock();
        log.forgotten += log.calls.len();
        log.calls = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn forgotten_calls_are_not_counted_nor_mistaken_for_later_ones() {
        let calls = Calls::new(Clock::new());
        let before = calls.arrived("kube", "list pods", "");
        calls.forget();
        let after = calls.arrived("kube", "patch nodes", "node-1");
        calls.answered(before, 500);
        calls.answered(after, 200);
        assert_eq!(calls.tally(), BTreeMap::from([("patch nodes".to_owned(), 1)]));
        assert_eq!(calls.all()[0].status, 200);
    }
}
