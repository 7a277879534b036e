//! One drain, from its beginning to its outcome.
//!
//! ```text
//!             the watch shows no such Node             the API server agrees
//!   Rounds ──────────────────────────────▶ Checking ─────────────────────────▶ NodeGone
//!    │  ▲                                     │
//!    │  └── the Node exists: restart ─────────┘
//!    │
//!    ├── the Node is uncordoned for good ──────────────────▶ Uncordoned
//!    ├── the kubelet is silent, all pods are overdue ──────▶ NodeDead
//!    ├── all pods are stuck, and a hook waits ─────────────▶ Stuck
//!    ├── a list shows no pod that must leave ─────────────▶ Drained, or Blocked if a dry run was refused an eviction
//!    └── the deadline has passed (see `Drainer::run`) ────▶ Blocked, Failed or TimedOut
//! ```

use super::context::Drain;
use super::evict::Evictions;
use super::own_pod::OwnPod;
use super::rounds::{Rounds, RoundsEnd};
use super::tier::TierOrder;
use crate::fact::DrainOutcome;
use crate::pipeline::node::record::Record;
use std::pin::pin;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};

/// Minimum interval between checks of a Node that the watch does not show.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

impl Drain<'_> {
    /// Evicts pods in rounds while the Node exists and is cordoned.
    pub(super) async fn work(&self) -> DrainOutcome {
        let is_own = |record: &Record| self.deadlines.has_had_mark(record);
        let mut uncordoned = pin!(self.drainer.uncordoned(self.node, is_own));
        let mut rounds = pin!(self.rounds());
        let mut check_at = Instant::now();
        loop {
            let missing = async {
                sleep_until(check_at).await;
                self.drainer.missing(self.node).await;
            };
            tokio::select! {
                biased;
                // No pod is evicted during the check: a list by the Node's name may show the pods of another Node. Calls in progress
                // are dropped, because calls that are not polled would hold places in the gate.
                () = missing => {
                    uncordoned.set(self.drainer.uncordoned(self.node, is_own));
                    rounds.set(self.rounds());
                    if Box::pin(self.drainer.is_gone(self.node)).await {
                        return DrainOutcome::NodeGone;
                    }
                    check_at = Instant::now() + CHECK_INTERVAL;
                }
                () = &mut uncordoned => return DrainOutcome::Uncordoned,
                end = &mut rounds => {
                    let refused = || self.recorder.outcome_at_deadline() == DrainOutcome::Blocked;
                    return match end {
                        RoundsEnd::NodeDead => DrainOutcome::NodeDead,
                        RoundsEnd::Stuck => DrainOutcome::Stuck,
                        RoundsEnd::Drained if self.drainer.dry_run && refused() => DrainOutcome::Blocked,
                        RoundsEnd::Drained => DrainOutcome::Drained,
                    };
                }
            }
        }
    }

    /// Runs rounds until a list shows no pod that must leave. Evicts the pod of this process when its turn has come.
    async fn rounds(&self) -> RoundsEnd {
        let (watch_share, gaps) = self.drainer.pod_watch.join();
        let tiers = TierOrder::new(self.begun);
        let overdue = Notify::new();
        let evictions = Evictions { drain: self, watch_share: &watch_share, tiers: &tiers, overdue: &overdue };
        let own_pod = watch::Sender::new(OwnPod::default());
        let mut rounds = Rounds::new(&evictions, gaps, &own_pod);
        tokio::select! {
            biased;
            end = rounds.run() => end,
            never = evictions.leave_last(own_pod.subscribe()) => match never {},
        }
    }
}
