//! An instance that goes: its Node is found, cordoned and drained.

use super::deadlines::{DeadlineEntry, DrainSeat};
use super::policy::Action;
use super::steps::{Finding, Target};
use super::{Case, Deadlines, NoticeOutcome};
use crate::clients::gate::{Backoff, LAST_CALL};
use crate::fact::{DrainOutcome, Fact};
use crate::pipeline::drain::Deadline;
use crate::pipeline::node::mark::Mark;
use crate::pipeline::node::{CordonOutcome, Node};
use crate::runtime::task::TaskError;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

/// Maximum time between the end of an instance's Node and its next registration.
const SUCCESSOR_TIMEOUT: Duration = Duration::from_secs(2);

/// A seat in a drain of the Node that runs before the interruption's own step: the drain learns of the deadline at once, whatever
/// happens to the mark and the delay.
pub(super) struct EarlySeat {
    _deadline: DeadlineEntry,
    _seat: DrainSeat,
}

impl Case {
    /// Finds the instance's Node.
    pub(super) async fn find_node(&self, by: Instant) -> Finding {
        let index = &self.interrupter.index;
        if let Some(node) = index.get(&self.notice.instance) {
            return Finding::Node(node);
        }
        // While the index is blind, the time that is granted for registration does not run.
        if timeout_at(by, index.live()).await.is_err() {
            return Finding::NoNodeInTime;
        }
        index.get(&self.notice.instance).map_or(Finding::NoNode, Finding::Node)
    }

    /// Waits until the instance registers as a Node.
    pub(super) async fn await_node(&self, until: Instant) -> Finding {
        let at_most = until.saturating_duration_since(Instant::now());
        self.tell(&Fact::NodeAwaited { about: self.about(), at_most });
        let registered = self.interrupter.index.until(&self.notice.instance, |node| node.map(Arc::clone));
        timeout_at(until, registered).await.map_or(Finding::NoNodeInTime, Finding::Node)
    }

    /// Waits until another Node has taken this one's place.
    pub(super) async fn await_successor(&self, node: &Node) -> Finding {
        let other = |known: Option<&Arc<Node>>| known.filter(|known| known.uid != node.uid).map(Arc::clone);
        let successor = self.interrupter.index.until(&self.notice.instance, other);
        timeout(SUCCESSOR_TIMEOUT, successor).await.map_or(Finding::NoNodeInTime, Finding::Node)
    }

    /// Cordons the Node, with retries until the deadline. Before a hard deadline only a third of the time is spent on that: then pods
    /// are evicted from a Node without a cordon, which the drain goes on trying to set.
    pub(super) async fn cordon(&self, target: Target, mark: &Mark, early: &mut Option<EarlySeat>) -> Finding {
        let Self { interrupter, notice, .. } = self;
        let about = self.about();
        let drains = interrupter.policy.action(notice) == Action::Drain;
        let give_up = target.deadline.at();
        let begun = Instant::now();
        let forgo_at = target.deadline.is_hard().then(|| begun + give_up.saturating_duration_since(begun) / 3);
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
        if drains {
            self.join_early(&target, early);
        }
        loop {
            let error = match Box::pin(interrupter.marker.cordon(&target.node, mark, give_up)).await {
                Ok(CordonOutcome::Cordoned { already }) => {
                    let after = interrupter.clock.notice_instant(notice.at).elapsed();
                    self.tell(&Fact::NodeCordoned { about, already, after });
                    return Finding::Cordoned(target);
                }
                Ok(CordonOutcome::NodeGone) => return Finding::NodeGone(target.node, NoticeOutcome::NothingToDrain),
                Err(error) => error,
            };
            if drains {
                self.join_early(&target, early);
            }
            self.tell(&Fact::CordonFailed { about, category: error.category, error: &error });
            let wait = error.wait(backoff.step());
            if drains && forgo_at.is_some_and(|forgo_at| Instant::now() + wait >= forgo_at) {
                self.tell(&Fact::CordonForgone { about });
                return Finding::Cordoned(target);
            }
            if Instant::now() + wait >= give_up {
                return Finding::Ended(NoticeOutcome::Failed);
            }
            sleep(wait).await;
        }
    }

    /// Waits before the drain while the Node is there and cordoned. A drain that somebody else has begun ends the wait.
    pub(super) async fn delay(&self, target: Target, until: Instant, early: &mut Option<EarlySeat>) -> Finding {
        let drainer = &self.interrupter.drainer;
        let mut running = drainer.running.subscribe();
        if self.join_early(&target, early) {
            return Finding::Delayed(target);
        }
        self.tell(&Fact::DrainDelayed { about: self.about(), by: until.saturating_duration_since(Instant::now()) });
        let started = async { while running.changed().await.is_ok() && !self.join_early(&target, early) {} };
        let uncordoned = tokio::select! {
            biased;
            () = drainer.missing(&target.node) => false,
            () = drainer.uncordoned(&target.node) => true,
            () = started => false,
            () = sleep_until(until) => false,
        };
        if uncordoned { Finding::Ended(NoticeOutcome::Uncordoned) } else { Finding::Delayed(target) }
    }

    /// Joins the Node's drain, or starts it, and waits for its end, or for that of the notice's patience. When the lifecycle action is
    /// `over`, the instance is going, and the deadline is now.
    pub(super) async fn drain(&self, target: &Target, over: CancellationToken) -> Finding {
        let (seat, joined) = self.join_drain(target);
        if joined {
            self.tell(&Fact::DrainJoined { about: self.about() });
        }
        let shared = seat.shared();
        let _deadline = shared.add(target.deadline);
        let instance_goes = async {
            over.cancelled().await;
            let _now = shared.add(Deadline::hard(Instant::now() + LAST_CALL));
            std::future::pending::<Infallible>().await
        };
        tokio::select! {
            biased;
            ended = seat.ended() => match ended {
                Ok(report) if report.outcome == DrainOutcome::NodeGone => {
                    Finding::NodeGone(Arc::clone(&target.node), report.outcome.into())
                }
                Ok(report) => Finding::Ended(report.outcome.into()),
                Err(TaskError::Panicked | TaskError::Cancelled) => Finding::Ended(NoticeOutcome::Crashed),
            },
            never = instance_goes => match never {},
            () = shared.out_of_patience(target.deadline) => Finding::Ended(shared.progress().outcome().into()),
        }
    }

    fn join_drain(&self, Target { node, deadline }: &Target) -> (DrainSeat, bool) {
        let drainer = Arc::clone(&self.interrupter.drainer);
        self.interrupter.drains.join(
            Arc::clone(&node.uid),
            || Deadlines::new(*deadline),
            // A drain that nobody waits for any more has no report to make: it is aborted.
            |deadlines, _stop| {
                let node = Arc::clone(node);
                async move { Arc::new(drainer.run(&node, deadlines.plan(), deadlines.progress()).await) }
            },
        )
    }

    /// Takes a seat in the Node's drain, if one runs. Returns whether there is a seat.
    fn join_early(&self, target: &Target, early: &mut Option<EarlySeat>) -> bool {
        if early.is_none() {
            let seat = self.interrupter.drains.join_running(&target.node.uid);
            *early = seat.map(|seat| EarlySeat { _deadline: seat.shared().add(target.deadline), _seat: seat });
        }
        early.is_some()
    }
}
