//! Records all calls to the simulated services, for tests to count.

use crate::clock::Clock;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
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
}

impl Calls {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, log: Arc::default() }
    }

    /// Records a call; returns its place, for [`Calls::answered`].
    pub(crate) fn arrived(&self, service: &'static str, operation: &str, subject: &str) -> usize {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.calls.push(Call {
            at: self.clock.elapsed(),
            service,
            operation: operation.to_owned(),
            subject: subject.to_owned(),
            status: 0,
        });
        log.forgotten + log.calls.len() - 1
    }

    pub(crate) fn answered(&self, index: usize, status: u16) {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let place = index.checked_sub(log.forgotten);
        if let Some(call) = place.and_then(|place| log.calls.get_mut(place)) {
            call.status = status;
        }
    }

    /// Returns all calls so far.
    #[must_use]
    pub fn all(&self) -> Vec<Call> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).calls.clone()
    }

    /// Returns the calls of one operation so far, in order.
    #[must_use]
    pub fn of(&self, operation: &str) -> Vec<Call> {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.calls.iter().filter(|call| call.operation == operation).cloned().collect()
    }

    /// Returns the number of calls of one operation so far.
    #[must_use]
    pub fn count(&self, operation: &str) -> usize {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.calls.iter().filter(|call| call.operation == operation).count()
    }

    /// Returns the number of calls of each operation so far.
    #[must_use]
    pub fn tally(&self) -> BTreeMap<String, usize> {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let mut tally = BTreeMap::new();
        for call in &log.calls {
            *tally.entry(call.operation.clone()).or_default() += 1;
        }
        tally
    }

    /// Forgets the calls that arrived before a time since the world's start.
    pub(crate) fn forget_before(&self, time: Duration) {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let old = log.calls.partition_point(|call| call.at < time);
        log.calls.drain(..old);
        log.calls.shrink_to_fit();
        log.forgotten += old;
    }

    /// Forgets all calls so far, and frees their memory: for worlds with millions of calls.
    pub fn forget(&self) {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
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
