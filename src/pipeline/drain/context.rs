//! The shared state of one drain, and its end.

use super::deadline::Plan;
use super::{Deadline, Deadlines, DrainTerms, Drainer, Recorder};
use crate::fact::{Fact, MIN_BLOCKED_TIME};
use crate::pipeline::node::Node;
use crate::runtime::clock;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// Maximum move of the end of a hook's drain, caused by pods that leave, that is not reported: many pods leave in turn.
const SMALL_MOVE: Duration = Duration::from_mins(2);

/// One drain.
pub(super) struct Drain<'a> {
    pub drainer: &'a Drainer,
    pub node: &'a Node,
    /// The settings of its pool. They stay when the Node's labels change.
    pub terms: DrainTerms,
    pub recorder: Recorder<'a>,
    pub deadlines: &'a Deadlines,
    pub plan: watch::Receiver<Plan>,
    pub begun: Instant,
    /// Earliest end of the drain, even if its deadline has passed.
    pub earliest_end: Instant,
}

impl Drain<'_> {
    /// Follows the marks on the Node, which show the hooks that other replicas keep alive.
    pub(super) async fn follow_marks(&self) -> Infallible {
        let Drainer { index, clock, .. } = self.drainer;
        let take = |known: Option<&Arc<Node>>| {
            let node = known?;
            let hooks = node.record.notices().filter(|(_, notice)| notice.has_hook());
            let hooks = hooks.filter_map(|(key, notice)| Some((key, clock.instant_of(notice.deadline?)))).collect();
            self.deadlines.take_marks(node.record.notices().map(|(key, _)| key).collect(), hooks);
            None
        };
        index.until_node(self.node, take).await
    }

    /// Emits when the drain becomes blocked, and when it no longer is.
    pub(super) async fn follow_blocks(&self) -> Infallible {
        let mut since = self.recorder.held_since();
        loop {
            let held_since = *since.borrow_and_update();
            tokio::select! {
                biased;
                // The recorder outlives this.
                Ok(()) = since.changed() => continue,
                () = clock::until(held_since.map(|since| since + MIN_BLOCKED_TIME)) => {}
            }
            self.recorder.drain_blocked();
            let _ = since.changed().await;
            self.recorder.drain_unblocked();
        }
    }

    /// Returns the end of the drain by the current plan.
    pub(super) fn end(&self) -> Deadline {
        self.plan.borrow().end()
    }

    /// Waits until the end of the drain, which the plan may move. Emits a fact about each move.
    pub(super) async fn ended(&self) {
        let mut plan = self.plan.clone();
        let mut known = self.end();
        loop {
            let (end, hooks_end) = {
                let plan = plan.borrow_and_update();
                (plan.end(), plan.hooks_end())
            };
            let is_small = hooks_end == Some(end.at())
                && end.is_hard() == known.is_hard()
                && (end.at()..=end.at() + SMALL_MOVE).contains(&known.at());
            if end != known && !is_small {
                let (until, hard) = (end.at().saturating_duration_since(Instant::now()), end.is_hard());
                self.drainer.facts.emit(&Fact::DrainDeadlineMoved { on: self.node.named(), until, hard });
                known = end;
            }
            let at = end.at().max(self.earliest_end);
            tokio::select! {
                biased;
                changed = plan.changed() => if changed.is_err() {
                    return sleep_until(at).await;
                },
                () = sleep_until(at) => return,
            }
        }
    }

    /// Waits until the time that `when` returns for the drain's end, which the plan may move; forever if `when` returns none.
    pub(super) async fn reached(&self, when: impl Fn(Deadline) -> Option<Instant>) {
        let mut plan = self.plan.clone();
        loop {
            let at = when(plan.borrow_and_update().end());
            tokio::select! {
                biased;
                () = clock::until(at) => return,
                Ok(()) = plan.changed() => {}
            }
        }
    }
}
