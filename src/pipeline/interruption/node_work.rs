//! Cordons and drains the Node of an instance.

use super::completion::KeptHook;
use super::drain_part::outlasts;
use super::known::Progress;
use super::late::{is_healthy_again, is_late, returns_by_boot};
use super::shared_drain::{EarlySeat, SharedDrain};
use super::step::{QuietTime, Target};
use super::{Action, Case, MessageLink, NoticeOutcome};
use crate::clients::gate::{Backoff, CALL_TIMEOUT, Class, KubeError};
use crate::fact::{Fact, UndoReason};
use crate::pipeline::event::{Detail, Notice, NoticeTime, ScheduledChange};
use crate::pipeline::node::mark::Mark;
use crate::pipeline::node::record::{Record, has_had};
use crate::pipeline::node::release::NodeRelease;
use crate::pipeline::node::{CordonOutcome, FullOfHints, Node};
use futures_util::future::{join, join_all};
use jiff::Timestamp;
use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// Maximum time to cordon other Nodes of the instance.
const OTHERS_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause before work starts over that found the record of another source.
const STARTS_OVER_AFTER: Duration = Duration::from_secs(2);

/// Time after a cordon at which the index shows other replicas' cordons of the same time.
const RECOUNTED_AFTER: Duration = Duration::from_secs(2);

impl Case {
    /// Passes on newer copies of the notice that other replicas have received. A copy may wait for AWS's confirmation while the work
    /// continues. Never ends.
    pub(super) async fn follow_revisions(&self, link: &MessageLink) -> Infallible {
        loop {
            let known = Arc::clone(&link.notice.borrow());
            link.revise(&Arc::new(self.revised_elsewhere(&known).await));
        }
    }

    /// Waits until another replica has received a newer copy of the notice: the mark on the Node then has another start, or is gone because
    /// AWS has called the change off. Returns the copy.
    async fn revised_elsewhere(&self, notice: &Notice) -> Notice {
        let Detail::ScheduledChange(change) = &notice.detail else { return pending().await };
        let (key, begins) = (notice.key(), change.start.map(Timestamp::as_second));
        let mut marked = None;
        let newer = |known: Option<&Arc<Node>>| {
            let known = known?;
            if known.record.notice(key).is_none() {
                // Without other marks the Node is uncordoned now, which another check notices. A restart removes marks too.
                let is_marked = marked.as_ref() == Some(&(Arc::clone(&known.uid), known.boot.clone()));
                return (known.cordoned && is_marked).then_some((None, change.start));
            }
            marked = known.has_notice_since_boot(key).then(|| (Arc::clone(&known.uid), known.boot.clone()));
            let copy = known.record.notice(key)?;
            let (at, start) = (copy.since.filter(|at| *at > notice.at())?, copy.start?);
            (Some(start.as_second()) != begins).then_some((Some(at), Some(start)))
        };
        let (at, start) = self.interrupter.index.until(&notice.instance, newer).await;
        let change = ScheduledChange { start, withdrawn: at.is_none(), ..change.clone() };
        // Only the other replica knows AWS's time of the withdrawal, if it is AWS's.
        let withdrawn_at = notice.at() + Duration::from_secs(1);
        let time = match (at, notice.time) {
            (None, NoticeTime::Seen(_)) => NoticeTime::Seen(withdrawn_at),
            _ => NoticeTime::Announced(at.unwrap_or(withdrawn_at)),
        };
        notice.revised(time, Detail::ScheduledChange(change))
    }

    /// Returns the work on the instance's other Nodes: a kubelet that changed its name leaves an old Node with pods.
    fn others(&self, target: &Target) -> Vec<(Self, Target)> {
        let others = self.interrupter.index.others(&target.node).into_iter().filter(|node| !node.is_excluded());
        let case = |node: Arc<Node>| {
            let target = Target { node: Arc::clone(&node), deadline: target.deadline };
            (Self { node: Some(node), ..self.clone() }, target)
        };
        others.map(case).collect()
    }

    /// Cordons the Node and the instance's other Nodes. For a hint this is limited by the number of nodes that hints hold. A cordon beyond
    /// the limit, made because another replica cordoned at the same time, is undone.
    pub(super) async fn cordon(&self, target: Target, mark: &Mark, early: &mut Option<EarlySeat>) -> Progress {
        let Self { interrupter, notice, .. } = self;
        let (hints, index, policy) = (&interrupter.hints, &interrupter.index, &self.policy);
        let is_hint = notice.kind().is_hint() && policy.action(notice) == Action::Cordon;
        // A node that is already cordoned loses no capacity by this.
        let takes = |node: &Node| !node.cordoned && !self.has_mark(node);
        let Some(node) = index.newest(&target.node).filter(|node| is_hint && takes(node)) else {
            return self.cordon_all(target, mark, early).await;
        };
        let seat = match hints.seat(index, &node) {
            Ok(seat) => seat,
            Err(FullOfHints { group, held, of }) => {
                self.emit(&Fact::CordonLimited { about: self.about(), group: &group, held, of });
                return Progress::Ended(NoticeOutcome::Reported);
            }
        };
        let by = target.deadline.at();
        let found = self.cordon_all(target, mark, early).await;
        if !matches!(found, Progress::Cordoned(_)) || policy.dry_run {
            return found;
        }
        sleep(RECOUNTED_AFTER).await;
        let Some(node) = index.newest(&node) else { return found };
        if !seat.is_late(index, &node).await {
            return found;
        }
        let key = notice.key();
        let own = |node: &Node| NodeRelease::of_notice(node, key, UndoReason::OverLimit);
        let by = by.max(Instant::now() + CALL_TIMEOUT);
        let mut all = self.release_marks_of(&node, by, own).await;
        for other in index.others(&node) {
            all &= self.release_marks_of(&other, by, own).await;
        }
        if all { Progress::Ended(NoticeOutcome::Reported) } else { found }
    }

    async fn cordon_all(&self, target: Target, mark: &Mark, early: &mut Option<EarlySeat>) -> Progress {
        let others = self.others(&target);
        // A named future that is awaited at two places takes memory for each.
        if others.is_empty() {
            return self.cordon_one(target, mark, early).await;
        }
        let others = others.iter().map(|(case, target)| async move {
            let mut early = None;
            case.cordon_one(target.clone(), mark, &mut early).await
        });
        // Only for a limited time, because the Ready Node waits for them. A drain restores a missing cordon anyway.
        let others = timeout(OTHERS_TIMEOUT, join_all(others));
        Box::pin(join(self.cordon_one(target, mark, early), others)).await.0
    }

    /// Drains the Node and the instance's other Nodes. The worst result counts.
    pub(super) async fn drain(&self, target: &Target, hook: Option<&KeptHook>, early: Option<EarlySeat>) -> Progress {
        let others = self.others(target);
        if others.is_empty() {
            return self.drain_marked(target, hook, early).await;
        }
        let others = others.iter().map(|(case, target)| async move {
            // A Node that registered since the cordon is cordoned now, with the notice's mark, which carries the undo. Only for a limited
            // time, as above.
            if !case.has_mark(&target.node) {
                let (mark, mut early) = (case.mark(target), None);
                let _ = timeout(OTHERS_TIMEOUT, Box::pin(case.cordon_one(target.clone(), &mark, &mut early))).await;
            }
            SharedDrain { case, target, hook }.run(None, false).await
        });
        let (progress, others) = Box::pin(join(self.drain_marked(target, hook, early), join_all(others))).await;
        let failed = |progress: &Progress| matches!(progress, Progress::Ended(outcome) if outcome.is_failure());
        if failed(&progress) { progress } else { others.into_iter().find(failed).unwrap_or(progress) }
    }

    /// Drains the Node. If its cordon was forgone, tries meanwhile to set it, with the mark that carries the undo.
    async fn drain_marked(&self, target: &Target, hook: Option<&KeptHook>, early: Option<EarlySeat>) -> Progress {
        let known = self.interrupter.index.newest(&target.node);
        if self.policy.dry_run || known.is_none_or(|node| self.has_mark(&node)) {
            return SharedDrain { case: self, target, hook }.run(early, true).await;
        }
        let cordon = async {
            let try_cordon = || Box::pin(self.try_cordon(target, self.mark(target), Instant::now() + CALL_TIMEOUT));
            let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(10));
            match backoff.retry(None, try_cordon, |_| true).await {
                Ok(CordonOutcome::Late) => Progress::Ended(NoticeOutcome::Stale),
                // The drain itself notices that its Node is excluded or gone.
                _ => pending().await,
            }
        };
        tokio::select! {
            biased;
            progress = Box::pin(SharedDrain { case: self, target, hook }.run(early, true)) => progress,
            progress = cordon => progress,
        }
    }

    async fn try_cordon(&self, target: &Target, mark: Mark, by: Instant) -> Result<CordonOutcome, KubeError> {
        let mark = self.doubted(mark, &target.node);
        self.interrupter.marker.cordon(&target.node, &mark, by, |node| self.is_late(node, target)).await
    }

    /// Whether the Node shows now that the notice is late: the cordon may have taken several tries.
    fn is_late(&self, node: &Node, target: &Target) -> bool {
        let Self { interrupter, notice, .. } = self;
        // Without an earlier mark, no other check notices a restart.
        let returns = returns_by_boot(notice, interrupter.clock.now()) && notice.hook().is_none();
        let has_booted = returns && node.boot != target.node.boot;
        has_booted
            || is_healthy_again(notice, node, &target.node)
            || is_late(notice, node, target.deadline, &interrupter.clock, Instant::now(), self.waited())
    }

    /// Returns the notice's mark for the Node.
    fn mark(&self, target: &Target) -> Mark {
        let Self { interrupter, policy, notice, message, .. } = self;
        policy.mark(notice, message, target.deadline.at(), &interrupter.clock, Instant::now())
    }

    /// Returns whether the Node carries the notice's mark.
    fn has_mark(&self, node: &Node) -> bool {
        node.record.notice(self.notice.key()).is_some()
    }

    /// As [`has_had`], of the notice.
    pub(super) fn has_had_mark(&self) -> impl FnMut(&Record) -> bool + use<> {
        has_had(self.notice.key())
    }

    /// Records on the Node that the work continues until `at`: a restart before that is no return.
    pub(super) async fn put_off_mark(&self, node: &Node, at: Instant) {
        let Self { interrupter, notice, .. } = self;
        let (key, at) = (notice.key(), interrupter.clock.timestamp_of(at));
        let put_off = || {
            let by = (Class::Cordon, Instant::now() + CALL_TIMEOUT);
            interrupter.marker.revise(node, key, by, |known, _| known.put_off(at))
        };
        let _ = Backoff::new(Duration::from_secs(1), Duration::from_secs(10)).retry(None, put_off, |_| true).await;
    }

    /// Records on the Node that the work continues until `ends`, if that is later than its mark's deadline. Never ends.
    pub(super) async fn keep_marked(&self, ends: Option<Instant>) -> Infallible {
        if let (Some(node), Some(ends)) = (&self.node, ends) {
            let marked = self.marked_deadline(node);
            if let Some(marked) = marked.filter(|marked| outlasts(ends, *marked)) {
                // Most work ends earlier, and needs no call.
                sleep_until(marked).await;
                Box::pin(self.put_off_mark(node, ends)).await;
            }
        }
        pending().await
    }

    /// Returns the deadline of the notice's mark on the Node.
    pub(super) fn marked_deadline(&self, node: &Node) -> Option<Instant> {
        let Self { interrupter, notice, .. } = self;
        let known = interrupter.index.newest(node)?;
        let marked = known.record.deadline(notice.key(), notice.start())?;
        Some(interrupter.clock.instant_of(marked))
    }

    /// Cordons the Node, with retries until the deadline. Before a hard deadline only a third of the time is spent on that: afterwards pods
    /// are evicted without a cordon, and the drain continues to try to set it.
    async fn cordon_one(&self, target: Target, mark: &Mark, early: &mut Option<EarlySeat>) -> Progress {
        let Self { interrupter, notice, .. } = self;
        let about = self.about();
        let drains = self.policy.action(notice).drains();
        let give_up = target.deadline.at();
        let begun = Instant::now();
        let forgo_at = target.deadline.is_hard().then(|| begun + give_up.saturating_duration_since(begun) / 3);
        let try_until = forgo_at.filter(|_| drains).unwrap_or(give_up);
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
        let _cordoning = drains.then(|| interrupter.settling.cordoning(self.policy.settle));
        if drains {
            self.join_early(&target, early);
        }
        loop {
            let error = match Box::pin(self.try_cordon(&target, mark.clone(), try_until)).await {
                Ok(CordonOutcome::Cordoned { already, denied }) => {
                    if let Some(denied) = denied {
                        denied.report(&target.node, |fact| self.emit(fact));
                    }
                    let after = interrupter.clock.notice_instant(notice.at()).elapsed();
                    self.emit(&Fact::NodeCordoned { about, already, after });
                    return Progress::Cordoned(target);
                }
                Ok(CordonOutcome::Late) => return Progress::Ended(NoticeOutcome::Stale),
                Ok(CordonOutcome::OfAnother) => {
                    // It starts over, and joins that work. Only a change with a start has another source: the pause costs nothing.
                    sleep(STARTS_OVER_AFTER).await;
                    return Progress::Ended(NoticeOutcome::HandedOver);
                }
                Ok(CordonOutcome::Excluded) => return Progress::Ended(NoticeOutcome::Excluded),
                Ok(CordonOutcome::NodeGone) => return Progress::Gone(target.node, NoticeOutcome::NothingToDrain),
                Err(error) => error,
            };
            if drains {
                self.join_early(&target, early);
            }
            self.emit(&Fact::CordonFailed { about, category: error.category, error: &error });
            let wait = error.wait(backoff.step());
            if drains && forgo_at.is_some_and(|forgo_at| Instant::now() + wait >= forgo_at) {
                self.emit(&Fact::CordonForgone { about });
                return Progress::Cordoned(target);
            }
            // The last try is made at the deadline: until then the hook keeps the instance, and its pods run.
            if Instant::now() >= give_up {
                return Progress::Ended(NoticeOutcome::Failed);
            }
            sleep_until(give_up.min(Instant::now() + wait)).await;
        }
    }

    /// Waits before the drain until no more notices come.
    pub(super) async fn settle(&self, QuietTime { quiet, at_most }: QuietTime) {
        let interrupter = &self.interrupter;
        Box::pin(interrupter.settling.settled(quiet, at_most, || interrupter.index.marked_at())).await;
    }
}
