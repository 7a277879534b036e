//! A Node's drain is shared: each interruption adds its own deadline.

use super::Seat;
use crate::pipeline::drain::{Deadline, Plan, Progress, Report};
use crate::runtime::task::Ending;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// A seat in a Node's drain.
pub(super) type DrainSeat = Seat<Arc<str>, Deadlines, Arc<Report>>;

impl Ending for Arc<Report> {
    fn failed(&self) -> bool {
        !self.outcome.is_success()
    }
}

/// The deadlines of the interruptions that share a drain, and how far the drain has come.
#[derive(Debug)]
pub struct Deadlines {
    plan: watch::Sender<Plan>,
    entries: Mutex<Entries>,
    progress: Progress,
}

#[derive(Debug, Default)]
struct Entries {
    deadlines: BTreeMap<u64, Deadline>,
    /// The earliest end of the capacity that any interruption has known: it stays true when the interruption has left.
    capacity_ends: Option<Instant>,
}

impl Deadlines {
    pub(super) fn new(first: Deadline) -> Self {
        Self { plan: watch::Sender::new(first.into()), entries: Mutex::default(), progress: Progress::default() }
    }

    /// The drain's plan, as it changes.
    pub(super) fn plan(&self) -> watch::Receiver<Plan> {
        self.plan.subscribe()
    }

    /// How far the drain has come.
    pub(super) fn progress(&self) -> Progress {
        self.progress.clone()
    }

    /// Adds a deadline until the entry is dropped.
    pub(super) fn add(self: &Arc<Self>, deadline: Deadline) -> DeadlineEntry {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let id = entries.deadlines.last_key_value().map_or(0, |(id, _)| id + 1);
        entries.deadlines.insert(id, deadline);
        entries.capacity_ends = entries.capacity_ends.into_iter().chain(deadline.capacity_ends()).min();
        self.settle(&entries);
        DeadlineEntry { deadlines: Arc::clone(self), id }
    }

    fn settle(&self, entries: &Entries) {
        // Without an entry the drain is on its way out, and its last plan stands.
        if let Some(plan) = Plan::of(entries.deadlines.values().copied()) {
            let plan = plan.knowing(entries.capacity_ends);
            self.plan.send_if_modified(|current| std::mem::replace(current, plan) != plan);
        }
    }

    /// Returns when the patience of an interruption with this deadline is over while the drain goes on for others; never, if the drain
    /// ends with that patience.
    pub(super) async fn out_of_patience(&self, deadline: Deadline) {
        let mut plan = self.plan.subscribe();
        let goes_on = |plan: &Plan| plan.end().at() > deadline.at();
        sleep_until(deadline.at()).await;
        if deadline.is_hard() || plan.wait_for(goes_on).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// An interruption's deadline in a drain.
pub(super) struct DeadlineEntry {
    deadlines: Arc<Deadlines>,
    id: u64,
}

impl Drop for DeadlineEntry {
    fn drop(&mut self) {
        let mut entries = self.deadlines.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.deadlines.remove(&self.id);
        self.deadlines.settle(&entries);
    }
}
