//! A notice's part in its Node's drain: runs the machine of `drain_part`, which has the states.

use super::completion::KeptHook;
use super::drain_part::{ActionEnd, DrainPart, HookView, PartEffect, PartView};
use super::known::Progress;
use super::late::returns_by_boot;
use super::step::Target;
use super::{Case, NoticeOutcome, Seat};
use crate::clients::gate::{Class, LAST_CALL};
use crate::fact::{DrainOutcome, Fact};
use crate::pipeline::drain::{DeadlineEntry, Deadlines, Report};
use crate::runtime::clock;
use crate::runtime::task::{Ending, TaskError};
use futures_util::future::{BoxFuture, FutureExt};
use std::future::pending;
use std::sync::Arc;
use tokio::time::Instant;

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

/// A Node's drain, as one of the notices that share it.
#[derive(Clone, Copy)]
pub(super) struct SharedDrain<'a> {
    /// The notice.
    pub case: &'a Case,
    /// The Node.
    pub target: &'a Target,
    /// The notice's hook.
    pub hook: Option<&'a KeptHook>,
}

impl SharedDrain<'_> {
    /// Joins the Node's drain, or starts it, and waits for its end or for the end of this notice's part in it.
    pub async fn run(self, early: Option<EarlySeat>, leads: bool) -> Progress {
        let Self { case, target, hook } = self;
        let (seat, joined) = case.join_drain(target);
        if joined {
            case.emit(&Fact::DrainJoined { about: case.about() });
        }
        let shared = seat.shared();
        let own = hook.map_or(target.deadline, |hook| hook.own_deadline().at_least(Instant::now() + LAST_CALL));
        let (mut entry, mut plan) = (shared.add(case.notice.key(), own), shared.plan());
        // The early seat's deadline does not move.
        drop(early);
        // Another replica's mark has an earlier end, if our soft deadline started later.
        let marked = case.marked_deadline(&target.node).unwrap_or(target.deadline.at());
        let (mut part, mut changes) = (DrainPart::new(marked, leads), hook.map(KeptHook::changes));
        let mut marking: BoxFuture<'_, Instant> = pending().boxed();
        loop {
            let hook_view = hook.map(|hook| self.view(hook, &entry));
            let view = PartView { deadline: entry.deadline(), plan: *plan.borrow_and_update(), hook: hook_view };
            let effects = part.handle(&view, Instant::now());
            // The hook may live no longer than it does.
            let is_done = effects.iter().all(|effect| matches!(effect, PartEffect::KeepHook(_)));
            for effect in effects {
                match effect {
                    PartEffect::SetDeadline(deadline) => entry.set(deadline),
                    PartEffect::KeepHook(deadline) => {
                        if let (Some(hook), Some(HookView { times, .. })) = (hook, hook_view) {
                            hook.set_deadline(deadline, times);
                        }
                    }
                    PartEffect::MoveMark(at) => {
                        marking = pending().boxed();
                        self.move_mark(at).await;
                    }
                    PartEffect::PutOffMark(at) => {
                        marking = case.put_off_mark(&target.node, at).map(move |()| at).boxed();
                    }
                    PartEffect::Leave => {
                        entry.outlive();
                        return Progress::Ended(shared.progress.outcome().into());
                    }
                }
            }
            if !is_done {
                continue;
            }
            tokio::select! {
                biased;
                ended = seat.ended() => return self.end(ended),
                () = KeptHook::changed(&mut changes) => {}
                Ok(()) = plan.changed() => {}
                at = &mut marking => {
                    marking = pending().boxed();
                    part.marked(at);
                }
                () = clock::until(part.wakes_at(&view)) => {}
            }
        }
    }

    fn view(&self, hook: &KeptHook, entry: &DeadlineEntry) -> HookView {
        let over = hook.has_ended().then(|| ActionEnd {
            has_other_hook: entry.has_other_hook(),
            has_restarted: self.case.restarted().is_some(),
            returns: returns_by_boot(&self.case.notice, self.case.interrupter.clock.now()),
        });
        let (own_deadline, deadline) = (hook.own_deadline(), hook.deadline());
        HookView { times: hook.times(), own_deadline, deadline, over }
    }

    /// Returns how far the work has come with the end of the drain.
    fn end(&self, ended: Result<Arc<Report>, TaskError>) -> Progress {
        // A drain that no interruption waits for has no report.
        let Ok(report) = ended else { return Progress::Ended(NoticeOutcome::Crashed) };
        if !report.addresses.is_empty() {
            // The waits after it need them.
            self.case.drained_addresses.lock().extend(report.addresses.iter().cloned());
        }
        let outcome = report.outcome.into();
        if report.outcome == DrainOutcome::NodeGone {
            Progress::Gone(Arc::clone(&self.target.node), outcome)
        } else {
            Progress::Ended(outcome)
        }
    }

    /// Records on the Node that this notice's hook keeps the instance until `at`, for a replica that works on another hook.
    async fn move_mark(&self, at: Instant) {
        let Case { interrupter, notice, .. } = self.case;
        let (key, at) = (notice.key(), interrupter.clock.timestamp_of(at));
        let by = (Class::Cordon, Instant::now() + LAST_CALL);
        // If the write fails, the other replica waits until the time recorded before, but only while its own hook lives.
        let _ = Box::pin(interrupter.marker.revise(&self.target.node, key, by, |known, _| known.moved(at))).await;
    }
}

impl Case {
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
