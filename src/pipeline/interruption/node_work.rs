//! An instance that goes: its Node is found, cordoned and drained.

use super::deadlines::{DrainSeat, Joined};
use super::decisions::is_late;
use super::policy::Action;
use super::{Case, Draining, Interrupter, Outcome};
use crate::clients::gate::{Backoff, LAST_CALL};
use crate::fact::Fact;
use crate::pipeline::drain;
use crate::pipeline::drain::Deadline;
use crate::pipeline::node::{Marked, Node};
use crate::runtime::task::Died;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

/// A Node that went and came back so often is not followed any more.
const REPLACED: usize = 5;

/// So long after its Node was found gone, the instance's next one is waited for.
const SUCCESSOR: Duration = Duration::from_secs(2);

/// What became of the work on one Node.
enum Worked {
    /// It has ended.
    Ended(Outcome),
    /// The Node is gone; what that comes to, if no other has come in its place.
    NodeGone(Outcome),
}

impl Draining {
    /// Does what the action asks. May be cancelled at any await.
    pub(super) async fn work(&mut self, action: Action) -> Outcome {
        if action == Action::Ready {
            return Box::pin(self.await_ready()).await;
        }
        let mut outcome = Outcome::NothingToDrain;
        for _ in 0..REPLACED {
            let Some(node) = self.find().await else { return outcome };
            self.case.node = Some(Arc::clone(&node));
            match self.work_on(&node, action).await {
                Worked::Ended(ended) => return ended,
                Worked::NodeGone(gone) => outcome = gone,
            }
            // A Node that somebody deletes while its kubelet lives registers again, with its pods.
            let other = |known: Option<&Arc<Node>>| known.filter(|known| known.uid != node.uid).map(|_| ());
            let Case { interrupter, notice, .. } = &self.case;
            if timeout(SUCCESSOR, interrupter.index.until(&notice.instance, other)).await.is_err() {
                return outcome;
            }
        }
        outcome
    }

    async fn work_on(&self, node: &Arc<Node>, action: Action) -> Worked {
        let Case { interrupter, .. } = &self.case;
        if node.is_excluded() {
            self.case.tell_forgone(node);
            return Worked::Ended(Outcome::Excluded);
        }
        if is_late(&self.case.notice, node, self.deadline, &self.case.interrupter.clock) {
            return Worked::Ended(Outcome::Stale);
        }
        // One that has passed leaves a moment, for a drain that runs already, too.
        let deadline = self.deadline.at_least(Instant::now() + LAST_CALL);
        let mut early = Early { interrupter, node, deadline, joined: None };
        if action == Action::Drain {
            early.join();
        }
        match self.cordon(node, action, &mut early).await {
            Some(Marked::Cordoned { .. }) => {}
            Some(Marked::Gone) => return Worked::NodeGone(Outcome::NothingToDrain),
            None => return Worked::Ended(Outcome::Failed),
        }
        if action == Action::Cordon {
            return Worked::Ended(Outcome::Cordoned);
        }
        if let Some(outcome) = Box::pin(self.delay(node, &mut early)).await {
            return Worked::Ended(outcome);
        }
        self.drain(node, deadline).await
    }

    /// The instance's Node; where it has none, waits for it, as long as that is worth it.
    async fn find(&self) -> Option<Arc<Node>> {
        let Case { interrupter, notice, .. } = &self.case;
        if let Some(node) = interrupter.index.get(&notice.instance) {
            return Some(node);
        }
        // While the index is blind, the time that is granted for registration does not run.
        timeout_at(self.deadline.at, interrupter.index.live()).await.ok()?;
        if let Some(node) = interrupter.index.get(&notice.instance) {
            return Some(node);
        }
        let now = Instant::now();
        let give_up = interrupter.policy.awaits_node_until(&notice.detail, self.deadline.at, now)?;
        let at_most = give_up.saturating_duration_since(now);
        self.case.tell(&Fact::NodeAwaited { about: self.case.about(), at_most });
        timeout_at(give_up, interrupter.index.until(&notice.instance, |node| node.map(Arc::clone))).await.ok()
    }

    /// Cordons, again and again until the deadline; one that has passed still leaves a moment. `None` when that failed.
    async fn cordon(&self, node: &Node, action: Action, early: &mut Early<'_>) -> Option<Marked> {
        let Case { interrupter, notice, message, .. } = &self.case;
        let about = self.case.about();
        let give_up = self.deadline.at.max(Instant::now() + LAST_CALL);
        let mark = interrupter.policy.mark(notice, message, self.deadline.at, &interrupter.clock);
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
        loop {
            let error = match Box::pin(interrupter.marker.cordon(node, &mark, give_up)).await {
                Ok(marked) => {
                    if let Marked::Cordoned { already } = marked {
                        let after = interrupter.clock.notice_instant(notice.at).elapsed();
                        self.case.tell(&Fact::NodeCordoned { about, already, after });
                    }
                    return Some(marked);
                }
                Err(error) => error,
            };
            if action == Action::Drain {
                early.join();
            }
            self.case.tell(&Fact::CordonFailed { about, category: error.category, error: &error });
            let wait = error.wait(backoff.step());
            if Instant::now() + wait >= give_up {
                return None;
            }
            sleep(wait).await;
        }
    }

    /// Waits before the drain for as long as the policy wants, and the Node is there. Gives an outcome if somebody takes the cordon away
    /// meanwhile, and means it.
    async fn delay(&self, node: &Node, early: &mut Early<'_>) -> Option<Outcome> {
        let Case { interrupter, notice, .. } = &self.case;
        let mut running = interrupter.drainer.running.subscribe();
        if early.join() {
            return None;
        }
        let (at, now) = (interrupter.clock.notice_instant(notice.at), Instant::now());
        let from = interrupter.policy.drains_from(notice, at, now, self.deadline.at)?;
        self.case.tell(&Fact::DrainDelayed { about: self.case.about(), by: from - now });
        let drainer = &interrupter.drainer;
        // Somebody else's drain is ours, too.
        let started = async { while running.changed().await.is_ok() && !early.join() {} };
        tokio::select! {
            biased;
            () = drainer.missing(node) => None,
            () = drainer.uncordoned(node) => Some(Outcome::Uncordoned),
            () = started => None,
            () = sleep_until(from) => None,
        }
    }

    /// Joins the node's drain, or starts it, and waits for its end, or for that of our patience.
    async fn drain(&self, node: &Arc<Node>, deadline: Deadline) -> Worked {
        let (seat, joined) = self.case.interrupter.join_drain(node, deadline);
        if joined {
            self.case.tell(&Fact::DrainJoined { about: self.case.about() });
        }
        let shared = seat.shared();
        let _deadline = shared.add(deadline);
        tokio::select! {
            biased;
            ended = seat.ended() => match ended {
                Ok(report) if report.outcome == drain::Outcome::NodeGone => Worked::NodeGone(report.outcome.into()),
                Ok(report) => Worked::Ended(report.outcome.into()),
                Err(Died::Panicked | Died::Cancelled) => Worked::Ended(Outcome::Crashed),
            },
            () = shared.out_of_patience(deadline) => Worked::Ended(shared.progress().outcome().into()),
        }
    }
}

/// A seat in a drain of the node that runs before ours begins: it learns of our deadline at once, whatever becomes of our mark and our
/// delay.
struct Early<'a> {
    interrupter: &'a Interrupter,
    node: &'a Node,
    deadline: Deadline,
    joined: Option<(Joined, DrainSeat)>,
}

impl Early<'_> {
    /// Tells whether such a drain runs.
    fn join(&mut self) -> bool {
        if self.joined.is_none() {
            let seat = self.interrupter.drains.join_running(&self.node.uid);
            self.joined = seat.map(|seat| (seat.shared().add(self.deadline), seat));
        }
        self.joined.is_some()
    }
}

impl Case {
    /// Settles what a drain has told of a Node that is left alone now.
    pub(super) fn tell_forgone(&self, node: &Node) {
        if node.draining {
            self.tell(&Fact::DrainForgone { on: node.named() });
        }
    }
}
