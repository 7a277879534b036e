//! Counts the facts that the service emits.

use ebbtide::fact::{Fact, Subscriber, WaitOutcome};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use tokio::sync::Notify;

/// The counts.
#[derive(Debug, Default)]
pub struct Tally {
    counted: Mutex<Counted>,
    begun: Notify,
}

/// Counts by two words.
pub type Table = BTreeMap<(&'static str, &'static str), usize>;

#[derive(Debug, Default)]
struct Counted {
    notices: Table,
    drains: BTreeMap<&'static str, usize>,
    waits: Table,
    evicted: usize,
    malformed: usize,
    troubles: Vec<String>,
}

impl Tally {
    /// Returns once the service knows the nodes, and so begins to receive messages.
    pub async fn begun(&self) {
        self.begun.notified().await;
    }

    /// Counts notices by kind and outcome.
    pub fn notices(&self) -> Table {
        self.lock().notices.clone()
    }

    /// Counts drains by outcome.
    pub fn drains(&self) -> BTreeMap<&'static str, usize> {
        self.lock().drains.clone()
    }

    /// Counts all drains that have ended.
    pub fn drains_ended(&self) -> usize {
        self.lock().drains.values().sum()
    }

    /// Counts waits for something by name and outcome.
    pub fn waits(&self) -> Table {
        self.lock().waits.clone()
    }

    /// Counts accepted evictions.
    pub fn evicted(&self) -> usize {
        self.lock().evicted
    }

    /// Counts messages that could not be parsed.
    pub fn malformed(&self) -> usize {
        self.lock().malformed
    }

    /// Facts that must not occur in the sandbox.
    pub fn troubles(&self) -> Vec<String> {
        self.lock().troubles.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock()
    }
}

impl Subscriber for Tally {
    fn note(&self, fact: &Fact<'_>) {
        let mut counted = self.lock();
        match fact {
            Fact::NodesSynced { .. } => self.begun.notify_one(),
            Fact::NoticeEnded { about, outcome, .. } => {
                *counted.notices.entry((about.kind.as_str(), outcome.as_str())).or_default() += 1;
            }
            Fact::NoticeJoined { about } => *counted.notices.entry((about.kind.as_str(), "joined")).or_default() += 1,
            Fact::DrainEnded { outcome, .. } => *counted.drains.entry(outcome.as_str()).or_default() += 1,
            Fact::WaitEnded { wait, outcome, .. } if *outcome != WaitOutcome::NotNeeded => {
                *counted.waits.entry((wait.as_str(), outcome.as_str())).or_default() += 1;
            }
            Fact::Eviction { result: Ok(()), .. } => counted.evicted += 1,
            Fact::MessageMalformed { .. } => counted.malformed += 1,
            Fact::TaskPanicked { task } => counted.troubles.push(format!("a task panicked: {task}")),
            Fact::MessageLeft { message, error, .. } => {
                counted.troubles.push(format!("message {message} could neither be deleted nor released: {error}"));
            }
            Fact::MessageLeaseEnded { message, why, .. } => {
                counted.troubles.push(format!("the lease of message {message} ended: {why}"));
            }
            _ => {}
        }
    }
}
