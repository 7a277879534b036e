//! Cordons and drains the Node of an instance.

use super::completion::KeptHook;
use super::late::{is_healthy_again, is_late, returns_by_boot};
use super::step::{Finding, Target};
use super::{Action, Case, MessageLink, NoticeOutcome, Seat};
use crate::clients::gate::{Backoff, CALL_TIMEOUT, Class, KubeError, LAST_CALL};
use crate::fact::{DrainOutcome, Fact, UndoReason};
use crate::pipeline::drain::{Deadline, DeadlineEntry, Deadlines, Report};
use crate::pipeline::event::{Detail, Notice, NoticeTime, ScheduledChange};
use crate::pipeline::node::mark::Mark;
use crate::pipeline::node::record::TERMINATION_GRACE;
use crate::pipeline::node::record::{Record, has_had};
use crate::pipeline::node::release::NodeRelease;
use crate::pipeline::node::{CordonOutcome, FullOfHints, Node};
use crate::runtime::task::{Ending, TaskError};
use futures_util::future::{join, join_all};
use jiff::Timestamp;
use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// Maximum time to cordon other Nodes of the instance.
const OTHERS_TIMEOUT: Duration = Duration::from_secs(5);

/// Time after a cordon at which the index shows other replicas' cordons of the same time.
const RECOUNTED_AFTER: Duration = Duration::from_secs(2);

/// A seat in a Node's drain.
type DrainSeat = Seat<Arc<str>, Deadlines, Arc<Report>>;

impl Ending for Arc<Report> {
    fn failed(&self) -> bool {
        !self.outcome.is_success()
    }
}

/// A seat in a drain of the Node that is already running before the interruption's own step: the drain gets the deadline at once, whatever
/// happens to the mark and the delay.
pub(super) struct EarlySeat {
    _deadline: DeadlineEntry,
    _seat: DrainSeat,
}

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
    pub(super) async fn cordon(&self, target: Target, mark: &Mark, early: &mut Option<EarlySeat>) -> Finding {
        let Self { interrupter, notice, .. } = self;
        let (hints, index, policy) = (&interrupter.hints, &interrupter.index, &interrupter.policy);
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
                return Finding::Ended(NoticeOutcome::Reported);
            }
        };
        let by = target.deadline.at();
        let found = self.cordon_all(target, mark, early).await;
        if !matches!(found, Finding::Cordoned(_)) || policy.dry_run {
            return found;
        }
        sleep(RECOUNTED_AFTER).await;
        if !index.newest(&node).is_some_and(|node| seat.is_late(index, &node)) {
            return found;
        }
        let key = notice.key();
        let own = |node: &Node| NodeRelease::of_notice(node, key, UndoReason::OverLimit);
        let by = by.max(Instant::now() + CALL_TIMEOUT);
        let mut all = self.release_marks_of(&node, by, own).await;
        for other in index.others(&node) {
            all &= self.release_marks_of(&other, by, own).await;
        }
        if all { Finding::Ended(NoticeOutcome::Reported) } else { found }
    }

    async fn cordon_all(&self, target: Target, mark: &Mark, early: &mut Option<EarlySeat>) -> Finding {
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
    pub(super) async fn drain(&self, target: &Target, hook: Option<&KeptHook>, early: Option<EarlySeat>) -> Finding {
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
            case.drain_one(target, hook, None, false).await
        });
        let (found, others) = Box::pin(join(self.drain_marked(target, hook, early), join_all(others))).await;
        let failed = |found: &Finding| matches!(found, Finding::Ended(outcome) if outcome.failed());
        if failed(&found) { found } else { others.into_iter().find(failed).unwrap_or(found) }
    }

    /// Drains the Node. If its cordon was forgone, tries meanwhile to set it, with the mark that carries the undo.
    async fn drain_marked(&self, target: &Target, hook: Option<&KeptHook>, early: Option<EarlySeat>) -> Finding {
        let known = self.interrupter.index.newest(&target.node);
        if self.interrupter.policy.dry_run || known.is_none_or(|node| self.has_mark(&node)) {
            return self.drain_one(target, hook, early, true).await;
        }
        let cordon = async {
            let try_cordon = || Box::pin(self.try_cordon(target, self.mark(target), Instant::now() + CALL_TIMEOUT));
            let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(10));
            match backoff.retry(None, try_cordon, |_| true).await {
                Ok(CordonOutcome::Late) => Finding::Ended(NoticeOutcome::Stale),
                // The drain itself notices that its Node is excluded or gone.
                _ => pending().await,
            }
        };
        tokio::select! {
            biased;
            found = Box::pin(self.drain_one(target, hook, early, true)) => found,
            found = cordon => found,
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
        let Self { interrupter, notice, message, .. } = self;
        interrupter.policy.mark(notice, message, target.deadline.at(), &interrupter.clock, Instant::now())
    }

    /// Returns whether the Node carries the notice's mark.
    fn has_mark(&self, node: &Node) -> bool {
        node.record.notice(self.notice.key()).is_some()
    }

    /// As [`has_had`], of the notice.
    pub(super) fn has_had_mark(&self) -> impl FnMut(&Record) -> bool + use<> {
        has_had(self.notice.key())
    }

    /// Records on the Node that this notice's hook keeps the instance until `at`, for a replica that works on another hook.
    async fn move_mark(&self, node: &Node, at: Instant) {
        let Self { interrupter, notice, .. } = self;
        let (key, at) = (notice.key(), interrupter.clock.timestamp_of(at));
        let by = (Class::Cordon, Instant::now() + LAST_CALL);
        // If the write fails, the other replica waits until the time recorded before, but only while its own hook lives.
        let _ = Box::pin(interrupter.marker.revise(node, key, by, |known, _| known.moved(at))).await;
    }

    /// Records on the Node, at its mark's deadline, that the drain continues until `at`: a restart before that is no return.
    async fn put_off_mark(&self, node: &Node, deadline: Instant, at: Instant) {
        let Self { interrupter, notice, .. } = self;
        // Most drains end earlier, and need no call.
        sleep_until(deadline).await;
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
            if let Some(marked) = marked.filter(|marked| ends > *marked + TERMINATION_GRACE) {
                Box::pin(self.put_off_mark(node, marked, ends)).await;
            }
        }
        pending().await
    }

    /// Returns the deadline of the notice's mark on the Node.
    fn marked_deadline(&self, node: &Node) -> Option<Instant> {
        let Self { interrupter, notice, .. } = self;
        let known = interrupter.index.newest(node)?;
        let marked = known.record.deadline(notice.key(), notice.start())?;
        Some(interrupter.clock.instant_of(marked))
    }

    /// Cordons the Node, with retries until the deadline. Before a hard deadline only a third of the time is spent on that: afterwards pods
    /// are evicted without a cordon, and the drain continues to try to set it.
    async fn cordon_one(&self, target: Target, mark: &Mark, early: &mut Option<EarlySeat>) -> Finding {
        let Self { interrupter, notice, .. } = self;
        let about = self.about();
        let drains = interrupter.policy.action(notice).drains();
        let give_up = target.deadline.at();
        let begun = Instant::now();
        let forgo_at = target.deadline.is_hard().then(|| begun + give_up.saturating_duration_since(begun) / 3);
        let try_until = forgo_at.filter(|_| drains).unwrap_or(give_up);
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
        let _cordoning = drains.then(|| interrupter.settling.cordoning(interrupter.policy.settle));
        if drains {
            self.join_early(&target, early);
        }
        loop {
            let error = match Box::pin(self.try_cordon(&target, mark.clone(), try_until)).await {
                Ok(CordonOutcome::Cordoned { already }) => {
                    let after = interrupter.clock.notice_instant(notice.at()).elapsed();
                    self.emit(&Fact::NodeCordoned { about, already, after });
                    return Finding::Cordoned(target);
                }
                Ok(CordonOutcome::Late) => return Finding::Ended(NoticeOutcome::Stale),
                // It starts over, and joins that work.
                Ok(CordonOutcome::OfAnother) => return Finding::Ended(NoticeOutcome::HandedOver),
                Ok(CordonOutcome::Excluded) => return Finding::Ended(NoticeOutcome::Excluded),
                Ok(CordonOutcome::NodeGone) => return Finding::NodeGone(target.node, NoticeOutcome::NothingToDrain),
                Err(error) => error,
            };
            if drains {
                self.join_early(&target, early);
            }
            self.emit(&Fact::CordonFailed { about, category: error.category, error: &error });
            let wait = error.wait(backoff.step());
            if drains && forgo_at.is_some_and(|forgo_at| Instant::now() + wait >= forgo_at) {
                self.emit(&Fact::CordonForgone { about });
                return Finding::Cordoned(target);
            }
            // The last try is made at the deadline: until then the hook keeps the instance, and its pods run.
            if Instant::now() >= give_up {
                return Finding::Ended(NoticeOutcome::Failed);
            }
            sleep_until(give_up.min(Instant::now() + wait)).await;
        }
    }

    /// Waits before the drain until no more notices come. A running drain (`runs`) does not wait.
    pub(super) async fn settle(&self, target: Target, quiet: Duration, at_most: Duration, runs: bool) -> Finding {
        if !runs {
            let interrupter = &self.interrupter;
            Box::pin(interrupter.settling.settled(quiet, at_most, || interrupter.index.marked_at())).await;
        }
        Finding::Delayed(target)
    }

    /// Joins the Node's drain, or starts it, and waits for its end or for this notice's soft deadline. When the lifecycle action is over,
    /// the instance is being terminated, and the deadline is now.
    async fn drain_one(
        &self,
        target: &Target,
        hook: Option<&KeptHook>,
        early: Option<EarlySeat>,
        leads: bool,
    ) -> Finding {
        let own = || hook.map_or(target.deadline, |hook| hook.own_deadline().at_least(Instant::now() + LAST_CALL));
        let (seat, joined) = self.join_drain(target);
        if joined {
            self.emit(&Fact::DrainJoined { about: self.about() });
        }
        let shared = seat.shared();
        let (mut known, mut absent) = (hook.map(KeptHook::with_times), KeptHook::absent(hook));
        let (mut deadline, mut plan) = (shared.add(self.notice.key(), own()), shared.plan());
        // The early seat's deadline does not move.
        drop(early);
        // Another replica's mark has an earlier end, if our soft deadline started later.
        let (mut is_over, mut marked) = (false, self.marked_deadline(&target.node).unwrap_or(target.deadline.at()));
        let end = own().at();
        if known.is_some() && end.max(marked).duration_since(end.min(marked)) > TERMINATION_GRACE {
            // The hook's times have become known since the cordon.
            self.move_mark(&target.node, end).await;
            marked = end;
        }
        loop {
            let lengthened = deadline.deadline();
            let ends = lengthened.at();
            if let Some((hook, times)) = known {
                // The drain makes room for its pods, and the hook lives until it ends. With several Nodes, the latest end counts.
                if leads || ends > hook.deadline().at() {
                    hook.set_deadline(lengthened, times);
                }
            }
            // The drain continues while another hook keeps the instance.
            let stays = known.and(plan.borrow().hooks_end()).map_or(ends, |hooks_end| hooks_end.max(ends));
            tokio::select! {
                biased;
                ended = seat.ended() => return match ended {
                    Ok(report) => {
                        self.remember(&report);
                        if report.outcome == DrainOutcome::NodeGone {
                            Finding::NodeGone(Arc::clone(&target.node), report.outcome.into())
                        } else {
                            Finding::Ended(report.outcome.into())
                        }
                    }
                    Err(TaskError::Panicked | TaskError::Cancelled) => Finding::Ended(NoticeOutcome::Crashed),
                },
                () = KeptHook::over(hook), if !is_over => {
                    // AWS waits for the other hook, or the instance has already restarted.
                    if deadline.has_other_hook() || self.restarted().is_some() {
                        self.move_mark(&target.node, Instant::now()).await;
                        deadline.outlive();
                        return Finding::Ended(shared.progress.outcome().into());
                    }
                    is_over = true;
                    deadline.set(Deadline::hard(Instant::now() + LAST_CALL));
                    if returns_by_boot(&self.notice, self.interrupter.clock.now()) {
                        // The hook may be left to its timeout, and the mark stays then.
                        self.move_mark(&target.node, Instant::now()).await;
                    }
                }
                () = KeptHook::times_changed(known) => {
                    (known, absent) = (hook.map(KeptHook::with_times), KeptHook::absent(hook));
                    deadline.set(own());
                    marked = own().at();
                    self.move_mark(&target.node, marked).await;
                }
                total = KeptHook::put_off_by_absence(hook, absent), if !is_over => {
                    deadline.put_off(total.saturating_sub(absent));
                    absent = total;
                }
                () = Box::pin(self.put_off_mark(&target.node, marked, stays)), if stays > marked + TERMINATION_GRACE => {
                    marked = stays;
                }
                Ok(()) = plan.changed() => {}
                () = deadline.out_of_patience() => {
                    deadline.outlive();
                    return Finding::Ended(shared.progress.outcome().into());
                }
            }
        }
    }

    /// Keeps the parts of the drain's report that the waits after it need.
    fn remember(&self, report: &Report) {
        if !report.addresses.is_empty() {
            let mut addresses = self.drained_addresses.lock();
            addresses.extend(report.addresses.iter().cloned());
        }
    }

    fn join_drain(&self, Target { node, deadline }: &Target) -> (DrainSeat, bool) {
        let drainer = Arc::clone(&self.interrupter.drainer);
        self.interrupter.drains.join(
            Arc::clone(&node.uid),
            || Deadlines::new(*deadline),
            // A drain that no interruption waits for is aborted, without a report.
            |deadlines, _stop| {
                let node = Arc::clone(node);
                async move { Arc::new(drainer.run(&node, &deadlines).await) }
            },
        )
    }

    /// Takes a seat in the Node's drain, if one runs. Returns whether there is a seat.
    pub(super) fn join_early(&self, target: &Target, early: &mut Option<EarlySeat>) -> bool {
        if early.is_none() {
            let seat = self.interrupter.drains.join_running(&target.node.uid);
            let entry = |seat: &DrainSeat| seat.shared().add(self.notice.key(), target.deadline);
            *early = seat.map(|seat| EarlySeat { _deadline: entry(&seat), _seat: seat });
        }
        early.is_some()
    }
}
