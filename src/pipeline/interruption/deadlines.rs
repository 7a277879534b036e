//! Joining a node's drain: each interruption brings its own deadline, and the earliest counts.

use super::Seat;
use crate::pipeline::drain::{Deadline, Plan, Progress, Report};
use crate::runtime::task::Ending;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// A share in a node's drain.
pub(super) type DrainSeat = Seat<Arc<str>, Deadlines, Arc<Report>>;

impl Ending for Arc<Report> {
    fn failed(&self) -> bool {
        !self.outcome.is_success()
    }
}

/// What the interruptions that joined a drain share with it: their deadlines, and how far it has come.
#[derive(Debug)]
pub struct Deadlines {
    plan: watch::Sender<Plan>,
    all: Mutex<All>,
    progress: Progress,
}

#[derive(Debug, Default)]
struct All {
    deadlines: BTreeMap<u64, Deadline>,
    /// When the capacity goes, as anybody has known who joined: that stays true when their patience is over.
    goes: Option<Instant>,
}

impl Deadlines {
    pub(super) fn new(first: Deadline) -> Self {
        Self { plan: watch::Sender::new(first.into()), all: Mutex::default(), progress: Progress::default() }
    }

    /// What they come to, as it changes.
    pub(super) fn plan(&self) -> watch::Receiver<Plan> {
        self.plan.subscribe()
    }

    /// How far the drain has come.
    pub(super) fn progress(&self) -> Progress {
        self.progress.clone()
    }

    pub(super) fn add(self: &Arc<Self>, deadline: Deadline) -> Joined {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let id = all.deadlines.last_key_value().map_or(0, |(id, _)| id + 1);
        all.deadlines.insert(id, deadline);
        all.goes = all.goes.into_iter().chain(deadline.goes).min();
        self.settle(&all);
        Joined { deadlines: Arc::clone(self), id }
    }

    fn settle(&self, all: &All) {
        // With nobody left the drain is on its way out, and its last plan stands.
        if let Some(plan) = Plan::of(all.deadlines.values().copied()) {
            let plan = plan.knowing(all.goes);
            self.plan.send_if_modified(|current| std::mem::replace(current, plan) != plan);
        }
    }

    /// Returns when the patience of one who has this deadline is over while the drain goes on for others; never, if it ends with it.
    pub(super) async fn out_of_patience(&self, ours: Deadline) {
        sleep_until(ours.at).await;
        let mut plan = self.plan.subscribe();
        let goes_on = |plan: &Plan| !ours.is_hard() && plan.end().at > ours.at;
        if plan.wait_for(goes_on).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// An interruption's own deadline in a drain, for as long as it has joined.
pub(super) struct Joined {
    deadlines: Arc<Deadlines>,
    id: u64,
}

impl Drop for Joined {
    fn drop(&mut self) {
        let mut all = self.deadlines.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.deadlines.remove(&self.id);
        self.deadlines.settle(&all);
    }
}
