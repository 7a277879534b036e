//! The record of all calls that reached the simulated services: what tests count.

use crate::clock::Clock;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// One call as it arrived, before anything was decided about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// When it arrived, since the world began.
    pub at: Duration,
    /// `sqs`, `autoscaling`, `ec2` or `kube`.
    pub service: &'static str,
    /// An AWS operation (`ReceiveMessage`), or a Kubernetes verb and resource (`create pods/eviction`, `list pods`,
    /// `watch nodes`, `patch nodes`, `get pods`, `delete pods`).
    pub operation: String,
    /// What it is about: an object's name (`default/web-1`, `node-3`), a lifecycle action token, a queue URL, an
    /// instance id; empty where a call has no single subject.
    pub subject: String,
    /// What was answered: an HTTP status, or 0 where no answer was given (a hang, a dropped connection).
    pub status: u16,
}

/// A shared, growing record of [`Call`]s.
#[derive(Clone, Debug)]
pub struct Calls {
    clock: Clock,
    log: Arc<Mutex<Vec<Call>>>,
}

impl Calls {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, log: Arc::default() }
    }

    /// Notes a call; answers where it stands, for [`Calls::answered`].
    pub(crate) fn arrived(&self, service: &'static str, operation: &str, subject: &str) -> usize {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.push(Call {
            at: self.clock.elapsed(),
            service,
            operation: operation.to_owned(),
            subject: subject.to_owned(),
            status: 0,
        });
        log.len() - 1
    }

    pub(crate) fn answered(&self, index: usize, status: u16) {
        if let Some(call) = self.log.lock().unwrap_or_else(PoisonError::into_inner).get_mut(index) {
            call.status = status;
        }
    }

    /// All calls so far.
    #[must_use]
    pub fn all(&self) -> Vec<Call> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The calls of one operation so far, in order.
    #[must_use]
    pub fn of(&self, operation: &str) -> Vec<Call> {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.iter().filter(|call| call.operation == operation).cloned().collect()
    }

    /// How many calls of one operation arrived so far.
    #[must_use]
    pub fn count(&self, operation: &str) -> usize {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.iter().filter(|call| call.operation == operation).count()
    }
}
