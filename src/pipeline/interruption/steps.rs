//! The steps that a notice leads to, in their order. Pure: the time and the instance's Node are inputs.
//!
//! ```text
//! FindOwner ─▶ LookUpHook ─▶ Begin ─┬▶ AwaitReady ─▶ ReleaseMarks ────────────────────────────────┐
//!     │                             └▶ FindNode ─▶ AwaitNode ─▶ Admit ─▶ Cordon ─▶ Delay|Settle ─▶ Drain ┤
//!     │                                   the Node is gone ▲               │                │     │
//!     │                                                    └ AwaitSuccessor ◀───────────────┘     │
//!     └▶ MarkOutOfService ─▶ End                        End ◀─ Complete | LeaveHook ◀─── Wait ◀───┘
//! ```
//!
//! A change that is not near yet gets `Plan` in place of `Admit`; an unproven hook ends with `LeaveUnprovenHook`. Every step except the last
//! may be left out. [`Sequence::next`] takes the result of the last step, and returns the next step. The interruption executes the steps,
//! and `simulate` narrates them: all decisions about a notice are made here.

use super::NoticeOutcome;
use super::decisions::{REGISTRATION_TIME, out_of_service_mark, runs_no_more};
use super::late::{is_late, may_be_over};
use super::policy::{Action, Policy};
use super::step::{Finding, Present, Step, Target};
use super::times::HookTimes;
use crate::clients::gate::LAST_CALL;
use crate::pipeline::drain::Deadline;
use crate::pipeline::event::{Detail, Hook, Notice, WarmPool};
use crate::pipeline::node::plan;
use crate::pipeline::node::{Node, Ownership};
use crate::runtime::clock::Clock;
use jiff::Timestamp;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of Nodes that one notice is worked on for, if each is deleted and another takes its place.
const MAX_NODES: usize = 5;

/// Minimum time for AWS's answers about the instance, even if the notice's deadline is earlier.
const OWNER_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum time for which a future change waits for room or for AWS's confirmation: less than SQS's maximum visibility of 12 hours, because
/// every receive counts towards the dead-letter queue.
const MAX_ADMISSION: Duration = Duration::from_hours(11);

/// The steps of one notice, chosen one by one.
#[derive(Debug)]
pub struct Sequence<'a> {
    policy: &'a Policy,
    clock: Clock,
    notice: &'a Notice,
    message: &'a str,
    deadline: Deadline,
    /// The number of Nodes that are gone.
    gone: usize,
    /// Whether the notice may have its Node cordoned and drained.
    admitted: bool,
    /// Whether evictions wait while traffic is shifted away from another zone.
    awaits_shift: bool,
    /// Start of the waits before evictions: a deadline that moves doesn't lengthen them.
    cordoned: Option<Instant>,
    /// Whether a Node of the instance has had volumes. Its status forgets them before they are detached.
    had_volumes: bool,
    /// End of the work, and start of the waits before the completion.
    worked: Option<Instant>,
    /// The outcome, as far as the work has come.
    outcome: NoticeOutcome,
}

impl<'a> Sequence<'a> {
    /// The steps of `notice`, which came in the message with this id. The first finding is [`Finding::Received`].
    #[must_use]
    pub fn new(policy: &'a Policy, clock: Clock, notice: &'a Notice, message: &'a str) -> Self {
        let deadline = policy.deadline(notice, None, None, &clock, Instant::now());
        Self {
            policy,
            clock,
            notice,
            message,
            deadline,
            gone: 0,
            admitted: !policy.admits(notice),
            awaits_shift: false,
            cordoned: None,
            had_volumes: false,
            worked: None,
            outcome: NoticeOutcome::NothingToDrain,
        }
    }

    /// Returns the step that follows from `finding`, the result of the step before.
    pub fn next(&mut self, finding: Finding, present: Present<'_>) -> Step<'a> {
        self.deadline = present.deadline.unwrap_or(self.deadline);
        match finding {
            Finding::Received => self.settle(present),
            Finding::Owner(None) | Finding::NoNodeInTime if self.notice.is_withdrawn() => {
                Step::End(NoticeOutcome::Withdrawn)
            }
            Finding::Owner(None) => Step::End(NoticeOutcome::Failed),
            Finding::Owner(Some(Ownership::Foreign)) => Step::End(NoticeOutcome::NotOurs),
            Finding::Owner(Some(Ownership::Unproven { launched })) if self.is_too_old(launched, present) => {
                self.outcome = NoticeOutcome::NotOurs;
                Step::LeaveUnprovenHook
            }
            Finding::Owner(Some(Ownership::Ours | Ownership::Unproven { .. })) => self.act(present),
            Finding::OutOfService => Step::End(NoticeOutcome::NothingToDrain),
            Finding::HookTimes(times) => self.begin(Some(times), present),
            Finding::Begun if self.action() == Action::Ready => Step::AwaitReady { until: self.deadline.at() },
            Finding::Begun => Step::FindNode { by: self.deadline.at() },
            Finding::Launched(node) => self.launched(node, present),
            Finding::MarksReleased(released) => self.marks_released(released, present),
            Finding::Node(node) => self.cordon(node, present),
            Finding::NoNode if self.notice.is_withdrawn() => match self.awaited_until(present) {
                // Another replica may wait for the Node, to drain it.
                Some(by) => Step::FindOwner { by },
                None => Step::End(NoticeOutcome::Withdrawn),
            },
            Finding::NoNode => self.await_node(present),
            Finding::NodesUnknown if self.notice.is_withdrawn() => Step::End(NoticeOutcome::Failed),
            // Whether there is something to drain is unknown.
            Finding::NodesUnknown if self.outcome == NoticeOutcome::NothingToDrain => {
                self.finish(NoticeOutcome::Failed, present)
            }
            Finding::NoNodeInTime | Finding::NodesUnknown | Finding::DeadlineMoved => {
                self.finish(self.outcome, present)
            }
            Finding::HookAsked(_, true) => {
                // Completing an action that is over ends nothing. It records the end in the mark.
                self.admitted = true;
                self.finish(NoticeOutcome::Stale, present)
            }
            Finding::HookAsked(node, false) => self.cordon_in_time(node, present),
            Finding::Planned(true) => Step::End(NoticeOutcome::Planned),
            // The change is near by now, or there is no room.
            Finding::Planned(false) => self.begin(None, present),
            Finding::Admitted => {
                self.admitted = true;
                if self.policy.touched_hook(self.notice).is_none() {
                    // The wait for room takes time from AWS's deadline only, not from the drain's own.
                    self.deadline = self.policy.deadline(self.notice, None, None, &self.clock, present.now);
                }
                match self.worked {
                    None => Step::FindNode { by: self.deadline.at() },
                    Some(_) => self.finish(self.outcome, present),
                }
            }
            Finding::NotAdmitted => self.finish(NoticeOutcome::NotAdmitted, present),
            Finding::Cordoned(target) => self.delay(target, present),
            Finding::Delayed(target) => self.delayed(target, present),
            Finding::NodeGone(node, outcome) => self.node_gone(node, outcome, present),
            Finding::Ended(outcome) => self.finish(outcome, present),
            Finding::Waited => self.complete(present),
            Finding::Completed(true) | Finding::HookLeft => Step::End(self.outcome),
            Finding::Completed(false) => Step::End(NoticeOutcome::HookFailed),
        }
    }

    /// Whether a terminating instance without a Node or a proof that it is ours has had time to register: its Node is then probably in
    /// another cluster, and completing its hook would end it in the middle of that cluster's drain.
    fn is_too_old(&self, launched: Option<Timestamp>, present: Present<'_>) -> bool {
        let terminating = matches!(self.notice.detail, Detail::AsgTerminate(_));
        let age =
            launched.and_then(|at| Duration::try_from(self.clock.timestamp_of(present.now).duration_since(at)).ok());
        terminating
            && present.node.is_none()
            && self.policy.touched_hook(self.notice).is_some()
            && age.is_none_or(|age| age > REGISTRATION_TIME)
    }

    fn action(&self) -> Action {
        self.policy.action(self.notice)
    }

    /// The first step: the end, if the policy or the notice itself needs no work.
    fn settle(&self, present: Present<'_>) -> Step<'a> {
        let by = self.deadline.at().max(present.now + OWNER_TIMEOUT);
        match self.policy.settled(self.notice) {
            Some(outcome) => Step::End(outcome),
            // The instance's owner does not matter: only our Nodes carry the mark.
            None if self.notice.is_withdrawn() => Step::FindNode { by },
            None => Step::FindOwner { by },
        }
    }

    /// The first step about an instance of ours.
    fn act(&mut self, present: Present<'_>) -> Step<'a> {
        if self.notice.is_withdrawn() {
            return self.await_node(present);
        }
        if self.action() == Action::Report {
            return Step::End(NoticeOutcome::Reported);
        }
        if present.node.is_some_and(Node::is_excluded) {
            return Step::End(NoticeOutcome::Excluded);
        }
        if runs_no_more(&self.notice.detail) {
            if !self.policy.out_of_service_taint {
                return Step::End(NoticeOutcome::NothingToDrain);
            }
            let by = self.policy.deadline(self.notice, None, None, &self.clock, present.now).at();
            return Step::MarkOutOfService { mark: out_of_service_mark(self.notice, self.message), by };
        }
        match self.policy.touched_hook(self.notice) {
            Some(hook) => Step::LookUpHook(hook),
            None => self.begin(None, present),
        }
    }

    fn begin(&mut self, times: Option<HookTimes>, present: Present<'_>) -> Step<'a> {
        self.deadline = self.policy.deadline(self.notice, present.node, times, &self.clock, present.now);
        Step::Begin { deadline: self.deadline, times }
    }

    fn launched(&mut self, node: Option<Arc<Node>>, present: Present<'_>) -> Step<'a> {
        let from_pool = matches!(&self.notice.detail, Detail::AsgLaunch(Hook { pool: Some(WarmPool::From), .. }));
        match node {
            None => self.finish(NoticeOutcome::NotReady, present),
            Some(node) if node.is_excluded() => self.finish(NoticeOutcome::Excluded, present),
            Some(node) if from_pool => Step::ReleaseMarks { node, by: self.deadline.at() },
            Some(_) => self.finish(NoticeOutcome::Ready, present),
        }
    }

    fn marks_released(&mut self, released: bool, present: Present<'_>) -> Step<'a> {
        if self.action() == Action::Ready {
            // The launch matters more than the marks: a cordon is visible, and can be removed manually.
            return self.finish(NoticeOutcome::Ready, present);
        }
        Step::End(if released { NoticeOutcome::Withdrawn } else { NoticeOutcome::Failed })
    }

    fn awaited_until(&self, present: Present<'_>) -> Option<Instant> {
        self.policy.awaits_node_until(self.notice, self.deadline.at(), &self.clock, present.now)
    }

    fn await_node(&mut self, present: Present<'_>) -> Step<'a> {
        match self.awaited_until(present) {
            Some(until) => Step::AwaitNode { until, by: self.deadline.at() },
            None => self.finish(self.outcome, present),
        }
    }

    fn cordon(&mut self, node: Arc<Node>, present: Present<'_>) -> Step<'a> {
        self.had_volumes |= node.has_volumes;
        if node.is_excluded() {
            return self.finish(NoticeOutcome::Excluded, present);
        }
        if self.notice.is_withdrawn() && !self.admitted && self.policy.is_verified(self.notice) {
            return self.admit(Some(node), present);
        }
        if self.notice.is_withdrawn() {
            return Step::ReleaseMarks { node, by: self.deadline.at().max(present.now + OWNER_TIMEOUT) };
        }
        if self.policy.sends_heartbeats() && may_be_over(self.notice, &node, present.waited) {
            return Step::AskHook(node);
        }
        self.cordon_in_time(node, present)
    }

    fn cordon_in_time(&mut self, node: Arc<Node>, present: Present<'_>) -> Step<'a> {
        if is_late(self.notice, &node, self.deadline, &self.clock, present.now, present.waited) {
            return self.finish(NoticeOutcome::Stale, present);
        }
        // A Node that is already cordoned for the change stays cordoned, whatever the new start is.
        let is_marked = node.record.notice(self.notice.key()).is_some();
        let from = self.policy.acts_from(self.notice).map(|from| self.clock.instant_of(from));
        let far = from.filter(|from| *from > present.now && !is_marked);
        let plan = far.and_then(|from| {
            Some((from, plan::of(self.notice, self.message).filter(|record| plan::fits(record, &node))?))
        });
        if let Some((from, plan)) = plan {
            // Until the plan is written, only the message holds the notice.
            return Step::Plan { node, plan, by: from.max(present.now + OWNER_TIMEOUT) };
        }
        if !self.admitted {
            return self.admit(Some(node), present);
        }
        let deadline = self.deadline.at_least(present.now + LAST_CALL);
        let mark = self.policy.mark(self.notice, self.message, deadline.at(), &self.clock, present.now);
        self.awaits_shift = self.policy.awaits_shift(self.notice, &node, present.shifted);
        let waits = self.awaits_shift || self.policy.awaits_place(self.notice, &node);
        let mark = if waits { mark.in_wave() } else { mark };
        // Failed work is tried again; a hook that is found after the drain is only completed.
        let mark = if waits && self.notice.hook().is_none() { mark.again() } else { mark };
        Step::Cordon { target: Target { node, deadline }, mark }
    }

    fn admit(&self, node: Option<Arc<Node>>, present: Present<'_>) -> Step<'a> {
        // A future change may still be confirmed or get room after the time of a drain that started now.
        let start = self.notice.start().filter(|_| !self.notice.is_withdrawn());
        let start = start.map(|start| self.clock.instant_of(start).min(present.now + MAX_ADMISSION));
        let until = self.deadline.at().max(present.now + OWNER_TIMEOUT);
        Step::Admit { node, until: start.map_or(until, |start| start.max(until)) }
    }

    fn delay(&mut self, target: Target, present: Present<'_>) -> Step<'a> {
        if self.action() == Action::Cordon {
            return self.finish(NoticeOutcome::Cordoned, present);
        }
        let begin = *self.cordoned.get_or_insert(present.now);
        let shift = self.awaits_shift;
        let waits = self.policy.waits_before(self.notice, &target.node, &self.clock, begin, self.deadline, shift);
        if waits.is_empty() { self.delayed(target, present) } else { Step::Delay { target, waits } }
    }

    /// The first step after the waits before evictions. Others of the same burst may not be cordoned yet if those ended at once.
    fn delayed(&mut self, target: Target, present: Present<'_>) -> Step<'a> {
        let is_soon = |begin| present.now.saturating_duration_since(begin) < self.policy.settle;
        let settles = self.cordoned.take().is_some_and(is_soon);
        match self.policy.settles(present.now, self.deadline.at()).filter(|_| settles) {
            Some((quiet, at_most)) => Step::Settle { target, quiet, at_most },
            None => Step::Drain(target),
        }
    }

    fn node_gone(&mut self, node: Arc<Node>, outcome: NoticeOutcome, present: Present<'_>) -> Step<'a> {
        self.gone += 1;
        self.outcome = outcome;
        let by = self.deadline.at();
        if self.gone == MAX_NODES { self.finish(outcome, present) } else { Step::AwaitSuccessor(node, by) }
    }

    /// The first step after the work.
    fn finish(&mut self, outcome: NoticeOutcome, present: Present<'_>) -> Step<'a> {
        self.outcome = outcome;
        // After a crash the message's next receiver continues, and needs the hook.
        if outcome == NoticeOutcome::Crashed || self.policy.touched_hook(self.notice).is_none() {
            return Step::End(outcome);
        }
        let end = *self.worked.get_or_insert(present.now);
        let had_volumes = self.had_volumes || present.node.is_some_and(|node| node.has_volumes);
        let waits = self.policy.waits_after(self.notice, outcome, had_volumes, end, self.deadline);
        match self.complete(present) {
            // Nothing was drained: only AWS can confirm that the instance is being terminated.
            Step::Complete(_) if !self.admitted => self.admit(None, present),
            Step::Complete(_) if !waits.is_empty() => Step::Wait(waits, outcome),
            step => step,
        }
    }

    fn complete(&self, present: Present<'_>) -> Step<'a> {
        let excluded = present.node.is_some_and(Node::is_excluded);
        self.policy.completion(self.outcome, &self.notice.detail, excluded).map_or(Step::LeaveHook, Step::Complete)
    }
}

#[cfg(test)]
mod tests;
