//! The drains at risk: those that are blocked, with at most half of their time left. They are counted at a scrape, because the time passes
//! without facts.

use crate::fact::{DeadlineType, Fact};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

/// The running drains, by the UIDs of their Nodes.
#[derive(Debug, Default)]
pub(super) struct WatchedDrains(Mutex<HashMap<Box<str>, WatchedDrain>>);

#[derive(Debug)]
struct WatchedDrain {
    begun: Instant,
    deadline: Instant,
    kind: DeadlineType,
    is_blocked: bool,
}

impl WatchedDrains {
    pub(super) fn note(&self, fact: &Fact<'_>) {
        let now = Instant::now();
        match *fact {
            Fact::DrainBegun { on, until, hard, .. } => {
                let (deadline, kind) = (after(now, until), DeadlineType::of(hard));
                let drain = WatchedDrain { begun: now, deadline, kind, is_blocked: false };
                self.0.lock().insert(on.uid.into(), drain);
            }
            Fact::DrainDeadlineMoved { on, until, hard } => self.change(on.uid, |drain| {
                (drain.deadline, drain.kind) = (after(now, until), DeadlineType::of(hard));
            }),
            Fact::DrainBlocked { on, .. } => self.change(on.uid, |drain| drain.is_blocked = true),
            Fact::DrainUnblocked { on } => self.change(on.uid, |drain| drain.is_blocked = false),
            Fact::DrainEnded { on, .. } | Fact::DrainAbandoned { on } => {
                self.0.lock().remove(on.uid);
            }
            _ => {}
        }
    }

    /// Returns the number of drains at risk whose deadline is of this type.
    pub(super) fn at_risk(&self, kind: DeadlineType) -> usize {
        let now = Instant::now();
        self.0.lock().values().filter(|drain| drain.kind == kind && drain.is_at_risk(now)).count()
    }

    fn change(&self, node_uid: &str, change: impl FnOnce(&mut WatchedDrain)) {
        if let Some(drain) = self.0.lock().get_mut(node_uid) {
            change(drain);
        }
    }
}

impl WatchedDrain {
    fn is_at_risk(&self, now: Instant) -> bool {
        self.is_blocked && now >= self.begun + self.deadline.saturating_duration_since(self.begun) / 2
    }
}

fn after(now: Instant, until: Duration) -> Instant {
    now.checked_add(until).unwrap_or(now)
}
