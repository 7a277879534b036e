//! The next step for a notice. It follows from what is known, so work that starts again repeats nothing. Pure: time and knowledge are inputs.
//!
//! ```text
//! FindOwner ─▶ Begin ─┬▶ AwaitReady ─▶ ReleaseMarks ──────────────────────────┐
//!     │               └▶ FindNode ─▶ AskHook ─▶ Admit ─▶ Cordon ─▶ Delay ─▶ Drain ┤
//!     │                    the Node is gone ▲                       │         │
//!     │                                     └── FindNode ◀──────────┴─────────┘
//!     └▶ MarkOutOfService ─▶ End                      End ◀─ EndHook ◀─ Wait ◀─ EndWork
//!                                                      ▲ a repair: Remedy ◀───────┘
//! ```
//!
//! A change that is not near yet gets `Plan` in place of `Admit`. Every step except the last may be left out. The interruption executes the
//! steps, and `simulate` narrates them: all decisions about a notice are made here.

use super::NoticeOutcome;
use super::decisions::{REGISTRATION_TIME, out_of_service_mark, runs_no_more};
use super::known::{Known, Owner, Progress};
use super::late::{is_late, may_be_over};
use super::policy::{Action, Policy};
use super::remedy::remedy;
use super::step::{AwaitedNode, HookEnding, NodeSearch, QuietTime, Step, Target};
use super::times::WARNING_TIME;
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

/// Chooses the steps of one notice.
#[derive(Clone, Copy, Debug)]
pub struct Steps<'a> {
    /// The user's decisions.
    pub policy: &'a Policy,
    /// Wall time.
    pub clock: Clock,
    /// The notice.
    pub notice: &'a Notice,
    /// The id of the message that brought it.
    pub message: &'a str,
}

impl<'a> Steps<'a> {
    /// Returns the step that follows from what is known.
    #[must_use]
    pub fn next(&self, known: &Known, now: Instant) -> Step<'a> {
        let is_withdrawn = self.notice.is_withdrawn();
        let is_launch = self.action() == Action::Ready;
        match &known.progress {
            Progress::Received => self.receive(known, now),
            Progress::Begun if is_launch => Step::AwaitReady { until: self.deadline(known).at() },
            Progress::Admitted if known.worked.is_some() => self.end(known.outcome, known, now),
            Progress::Begun | Progress::Admitted => self.find_node(AwaitedNode::None, known),
            Progress::NoNode => self.await_node(known, now),
            Progress::NoNodeInTime if is_withdrawn => Step::End(NoticeOutcome::Withdrawn),
            Progress::NoNodeInTime if is_launch => Step::EndWork(NoticeOutcome::NotReady),
            Progress::NodesUnknown if is_withdrawn => Step::End(NoticeOutcome::Failed),
            // Whether there is something to drain is unknown.
            Progress::NodesUnknown if known.outcome == NoticeOutcome::NothingToDrain => {
                Step::EndWork(NoticeOutcome::Failed)
            }
            Progress::NoNodeInTime | Progress::NodesUnknown => Step::EndWork(known.outcome),
            Progress::Found(node) if node.is_excluded() => Step::EndWork(NoticeOutcome::Excluded),
            Progress::Found(node) if is_launch => self.end_launch(node, known),
            Progress::Found(node) if is_withdrawn => self.withdraw(node, known, now),
            Progress::Found(node) if self.policy.sends_heartbeats() && may_be_over(self.notice, node, known.waited) => {
                Step::AskHook(Arc::clone(node))
            }
            Progress::Found(node) | Progress::Waiting(node) => self.cordon(node, known, now),
            // The completion records the end in the mark.
            Progress::ActionOver => Step::EndWork(NoticeOutcome::Stale),
            // The launch matters more than the marks: a cordon is visible, and can be removed manually.
            Progress::Released(_) if is_launch => Step::EndWork(NoticeOutcome::Ready),
            Progress::Released(true) => Step::End(NoticeOutcome::Withdrawn),
            Progress::Released(false) => Step::End(NoticeOutcome::Failed),
            Progress::Cordoned(_) if self.action() == Action::Cordon => Step::EndWork(NoticeOutcome::Cordoned),
            Progress::Cordoned(target) => self.delay(target, known, now),
            Progress::Delayed(target) => self.drain(target, known, now),
            Progress::Gone(..) if known.gone == MAX_NODES => Step::EndWork(known.outcome),
            Progress::Gone(node, _) => self.find_node(AwaitedNode::Successor(Arc::clone(node)), known),
            Progress::Ended(outcome) => self.end(*outcome, known, now),
            Progress::Waited => Step::EndHook(self.completion(known)),
            Progress::Remedied(_) => self.end(known.outcome, known, now),
            Progress::HookEnded(outcome) => Step::End(*outcome),
        }
    }

    fn action(&self) -> Action {
        self.policy.action(self.notice)
    }

    fn deadline(&self, known: &Known) -> Deadline {
        known.hook.map_or_else(
            || self.policy.deadline(self.notice, None, None, &self.clock, known.since),
            |hook| hook.deadline,
        )
    }

    /// The first step: the end, if the policy or the notice itself needs no work.
    fn receive(&self, known: &Known, now: Instant) -> Step<'a> {
        let by = self.deadline(known).at().max(now + OWNER_TIMEOUT);
        if let Some(outcome) = self.policy.settled(self.notice) {
            return Step::End(outcome);
        }
        if self.notice.is_withdrawn() {
            // The instance's owner does not matter: only our Nodes carry the mark.
            return Step::FindNode(NodeSearch { awaits: AwaitedNode::None, by });
        }
        self.unless_ours(known, by, now).unwrap_or_else(|| self.act(known, now))
    }

    /// Returns the step about an instance that is not known to be ours.
    fn unless_ours(&self, known: &Known, by: Instant, now: Instant) -> Option<Step<'a>> {
        match known.owner {
            Owner::Unknown => Some(Step::FindOwner { by }),
            Owner::NotFound if self.notice.is_withdrawn() => Some(Step::End(NoticeOutcome::Withdrawn)),
            Owner::NotFound => Some(Step::End(NoticeOutcome::Failed)),
            Owner::Found(Ownership::Foreign) => Some(Step::End(NoticeOutcome::NotOurs)),
            Owner::Found(Ownership::Unproven { launched }) if self.is_too_old(launched, known, now) => {
                Some(Step::EndHook(HookEnding::LeaveUnproven))
            }
            Owner::Found(Ownership::Ours | Ownership::Unproven { .. }) => None,
        }
    }

    /// Whether a terminating instance without a Node or a proof that it is ours has had time to register: its Node is then probably in
    /// another cluster, and completing its hook would end it in the middle of that cluster's drain.
    fn is_too_old(&self, launched: Option<Timestamp>, known: &Known, now: Instant) -> bool {
        let age = launched.and_then(|at| Duration::try_from(self.clock.timestamp_of(now).duration_since(at)).ok());
        matches!(self.notice.detail, Detail::AsgTerminate(_))
            && known.node.is_none()
            && self.policy.touched_hook(self.notice).is_some()
            && age.is_none_or(|age| age > REGISTRATION_TIME)
    }

    /// The first step about an instance of ours.
    fn act(&self, known: &Known, now: Instant) -> Step<'a> {
        if self.action() == Action::Report {
            return Step::End(NoticeOutcome::Reported);
        }
        if known.node.as_deref().is_some_and(Node::is_excluded) {
            return Step::End(NoticeOutcome::Excluded);
        }
        if !runs_no_more(&self.notice.detail) {
            return Step::Begin(self.policy.touched_hook(self.notice));
        }
        if !self.policy.out_of_service_taint {
            return Step::End(NoticeOutcome::NothingToDrain);
        }
        let by = self.policy.deadline(self.notice, None, None, &self.clock, now).at();
        let mark = out_of_service_mark(self.notice, self.message).in_pool(self.policy.pool.as_deref());
        Step::MarkOutOfService { mark: Box::new(mark), by }
    }

    fn find_node(&self, awaits: AwaitedNode, known: &Known) -> Step<'a> {
        Step::FindNode(NodeSearch { awaits, by: self.deadline(known).at() })
    }

    fn await_node(&self, known: &Known, now: Instant) -> Step<'a> {
        let by = self.deadline(known).at();
        let until = self.policy.awaits_node_until(self.notice, by, &self.clock, now);
        let is_withdrawn = self.notice.is_withdrawn();
        let Some(until) = until else {
            return if is_withdrawn { Step::End(NoticeOutcome::Withdrawn) } else { Step::EndWork(known.outcome) };
        };
        // Another replica may wait for the Node of a withdrawn notice, to drain it.
        let asks = if is_withdrawn { self.unless_ours(known, until, now) } else { None };
        asks.unwrap_or_else(|| self.find_node(AwaitedNode::Registered(until), known))
    }

    fn end_launch(&self, node: &Arc<Node>, known: &Known) -> Step<'a> {
        if matches!(&self.notice.detail, Detail::AsgLaunch(Hook { pool: Some(WarmPool::From), .. })) {
            Step::ReleaseMarks { node: Arc::clone(node), by: self.deadline(known).at() }
        } else {
            Step::EndWork(NoticeOutcome::Ready)
        }
    }

    fn withdraw(&self, node: &Arc<Node>, known: &Known, now: Instant) -> Step<'a> {
        if !self.is_admitted(known) && self.policy.admission.is_verified(self.notice) {
            return self.admit(Some(node), known, now);
        }
        Step::ReleaseMarks { node: Arc::clone(node), by: self.deadline(known).at().max(now + OWNER_TIMEOUT) }
    }

    /// Whether the notice may have its Node cordoned and drained.
    fn is_admitted(&self, known: &Known) -> bool {
        known.is_admitted || !self.policy.admits(self.notice)
    }

    fn cordon(&self, node: &Arc<Node>, known: &Known, now: Instant) -> Step<'a> {
        let deadline = self.deadline(known);
        if is_late(self.notice, node, deadline, &self.clock, now, known.waited) {
            return Step::EndWork(NoticeOutcome::Stale);
        }
        // A Node that is already cordoned for the change stays cordoned, whatever the new start is.
        let is_marked = node.record.notice(self.notice.key()).is_some();
        let from = self.policy.acts_from(self.notice).map(|from| self.clock.instant_of(from));
        let far = from.filter(|from| *from > now && !is_marked);
        let plan = far.and_then(|from| {
            Some((from, plan::of(self.notice, self.message).filter(|record| plan::fits(record, node))?))
        });
        if let Some((from, plan)) = plan {
            // Until the plan is written, only the message holds the notice.
            return Step::Plan { node: Arc::clone(node), plan: Box::new(plan), by: from.max(now + OWNER_TIMEOUT) };
        }
        if !self.is_admitted(known) {
            return self.admit(Some(node), known, now);
        }
        let deadline = deadline.at_least(now + LAST_CALL);
        let mark = self.policy.mark(self.notice, self.message, deadline.at(), &self.clock, now);
        let waits = self.policy.awaits_shift(self.notice, node, known.is_shifted)
            || self.policy.awaits_place(self.notice, node);
        let mark = if waits { mark.in_wave() } else { mark };
        // Failed work is tried again; a hook that is found after the drain is only completed.
        let mark = if waits && self.notice.hook().is_none() { mark.again() } else { mark };
        Step::Cordon { target: Target { node: Arc::clone(node), deadline }, mark: Box::new(mark) }
    }

    fn admit(&self, node: Option<&Arc<Node>>, known: &Known, now: Instant) -> Step<'a> {
        // A future change may still be confirmed or get room after the time of a drain that started now.
        let start = self.notice.start().filter(|_| !self.notice.is_withdrawn());
        let start = start.map(|start| self.clock.instant_of(start).min(now + MAX_ADMISSION));
        let deadline = self.deadline(known);
        let until = deadline.at().max(now + OWNER_TIMEOUT);
        let until = start.map_or(until, |start| start.max(until));
        let patience = self.policy.admission.patience(
            self.notice,
            deadline,
            known.hook.map(|hook| hook.times.lives_without_heartbeats()),
            now,
        );
        // AWS may show late what it has announced late.
        let until =
            if patience.is_some_and(|patience| patience.is_late) { until.max(now + WARNING_TIME) } else { until };
        Step::Admit { node: node.cloned(), until, patience }
    }

    fn delay(&self, target: &Target, known: &Known, now: Instant) -> Step<'a> {
        let Self { policy, notice, clock, .. } = self;
        let begin = known.cordoned.unwrap_or(now);
        let shift = policy.awaits_shift(notice, &target.node, known.is_shifted);
        let waits = policy.waits_before(notice, &target.node, clock, begin, self.deadline(known), shift);
        if waits.is_empty() { self.drain(target, known, now) } else { Step::Delay { target: target.clone(), waits } }
    }

    /// The first step after the waits before evictions. Others of the same burst may not be cordoned yet if those ended at once.
    fn drain(&self, target: &Target, known: &Known, now: Instant) -> Step<'a> {
        let is_soon = |begin| now.saturating_duration_since(begin) < self.policy.settle;
        let quiet = self.policy.settles(now, self.deadline(known).at()).filter(|_| known.cordoned.is_some_and(is_soon));
        let quiet = quiet.map(|(quiet, at_most)| QuietTime { quiet, at_most });
        Step::Drain { target: target.clone(), quiet }
    }

    /// The first step after the work.
    fn end(&self, outcome: NoticeOutcome, known: &Known, now: Instant) -> Step<'a> {
        // After a crash the message's next receiver continues, and needs the hook.
        if outcome == NoticeOutcome::Crashed || self.policy.touched_hook(self.notice).is_none() {
            return self.remedy(outcome, known, now).unwrap_or(Step::End(outcome));
        }
        let end = known.worked.unwrap_or(now);
        let had_volumes = known.had_volumes || known.node.as_ref().is_some_and(|node| node.has_volumes);
        let waits = self.policy.waits_after(self.notice, outcome, had_volumes, end, self.deadline(known));
        match self.completion(known) {
            // Nothing was drained: only AWS can confirm that the instance is being terminated.
            HookEnding::Complete(_) if !self.is_admitted(known) => self.admit(None, known, now),
            HookEnding::Complete(_) if !waits.is_empty() => Step::Wait(waits),
            ending => Step::EndHook(ending),
        }
    }

    /// Returns the step that ends a repair, after those that were tried.
    fn remedy(&self, outcome: NoticeOutcome, known: &Known, now: Instant) -> Option<Step<'a>> {
        let (node, at) = (known.node.as_deref()?, self.clock.timestamp_of(now));
        let (remedy, at_most) = remedy(self.policy, self.notice, node, outcome, known.remedied, at)?;
        Some(Step::Remedy { remedy, until: now + at_most })
    }

    fn completion(&self, known: &Known) -> HookEnding {
        let is_excluded = known.node.as_deref().is_some_and(Node::is_excluded);
        let completion = self.policy.completion(known.outcome, &self.notice.detail, is_excluded);
        completion.map_or(HookEnding::Leave, HookEnding::Complete)
    }
}

#[cfg(test)]
mod tests;
