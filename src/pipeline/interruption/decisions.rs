//! The policy's answers to single questions about a notice. Pure, but for the clock that turns AWS's times into instants.

use super::limits::DrainLimit;
use super::policy::{Action, ForLoadBalancers, Heartbeats, HookSource, OnFailed, OnUncordon, Policy, ShiftedResources};
use super::step::Waits;
use super::times;
use super::times::{HookTerms, HookTimes};
use super::{Completion, NoticeOutcome};
use crate::fact::{UndoReason, Wait};
use crate::pipeline::drain::{AtDeadline, Deadline};
use crate::pipeline::event::{
    Detail, Hook, Identity, InstanceAction, InstanceState, Notice, NoticeKind, ScheduledChange, WarmPool,
};
use crate::pipeline::node::Node;
use crate::pipeline::node::agent_notices::{taken_back_marks, withdrawn_marks};
use crate::pipeline::node::label::KeyPattern;
use crate::pipeline::node::mark::Mark;
use crate::pipeline::node::record::{HookState, Place, ReturnSign, Withdrawal};
use crate::pipeline::node::release::{NodeRelease, awaits_boot};
use crate::pipeline::node::replacement::AskedReplacement;
use crate::runtime::clock::Clock;
use crate::runtime::task::Ending;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum time between an instance's launch and its registration as a Node.
pub(super) const REGISTRATION_TIME: Duration = Duration::from_mins(15);

/// Maximum wait after a drain until no target group lists the instance: the default deregistration delay of five minutes, and the time
/// that a controller needs to notice that a node leaves.
const LOAD_BALANCER_WAIT: Duration = Duration::from_mins(6);

/// Minimum time for the waits between a drain and a hook's completion, however late its default deadline lets the drain end.
const AFTER_DRAIN: Duration = Duration::from_mins(5);

impl Policy {
    /// Returns the outcome of a notice that needs no work, whatever cluster owns its instance.
    #[must_use]
    pub fn settled(&self, notice: &Notice) -> Option<NoticeOutcome> {
        // A withdrawal is carried out, whatever the settings are now.
        if self.action(notice) == Action::Ignore && !matches!(notice.detail, Detail::TakenBack(_)) {
            return Some(NoticeOutcome::Ignored);
        }
        let others = notice.hook().is_some_and(|hook| self.ignored_hooks.contains(&hook.name));
        others.then_some(NoticeOutcome::NotOurs)
    }

    /// Returns the hook that the notice's action keeps alive and completes.
    #[must_use]
    pub fn touched_hook<'a>(&self, notice: &'a Notice) -> Option<&'a Hook> {
        let action = self.action(notice);
        notice.hook().filter(|_| action.drains() || action == Action::Ready)
    }

    /// Whether heartbeats may be sent: not in a dry run.
    #[must_use]
    pub fn sends_heartbeats(&self) -> bool {
        !self.dry_run && self.heartbeats != Heartbeats::Off
    }

    /// Whether a notice may have to wait before its Node is cordoned and drained.
    #[must_use]
    pub fn admits(&self, notice: &Notice) -> bool {
        let is_limited = self.admission.limit != DrainLimit::None;
        self.action(notice).drains() && (is_limited || self.admission.is_verified(notice))
    }

    /// Returns the deadline of the work on a notice; `times` are those of its hook, and `node` is the instance's, if it is known.
    #[must_use]
    pub fn deadline(
        &self,
        notice: &Notice,
        node: Option<&Node>,
        times: Option<HookTimes>,
        clock: &Clock,
        now: Instant,
    ) -> Deadline {
        if let Some(times) = times {
            return hook_terms(self, notice, node, clock).deadline(times);
        }
        let at = clock.notice_instant(notice.at());
        let timeout = self.drain_timeout.of(notice.kind());
        // If work on the change starts soon, the drain has its whole time from then on.
        let wait = timeout.unwrap_or(times::DEFAULT_DRAIN_TIMEOUT);
        let from = self.acts_from(notice).filter(|_| !notice.is_withdrawn()).map(|from| clock.instant_of(from));
        let begin = from.filter(|from| (now..now + wait).contains(from)).unwrap_or(now);
        let deadline = times::deadline(&notice.detail, at, begin, timeout, |time| clock.instant_of(time));
        match deadline {
            // The user ends the time of the pods, too; but a pool may leave its pods in any case.
            Deadline::Patience { ends, .. }
                if [self.at_timeout.of(notice.kind()), self.drain.at_deadline] == [AtDeadline::Delete; 2] =>
            {
                Deadline::hard(ends)
            }
            others => others,
        }
    }

    /// Returns the end of the wait for an instance's Node; `None` if the instance can't register, or a Node would not matter.
    #[must_use]
    pub fn awaits_node_until(
        &self,
        notice: &Notice,
        deadline: Instant,
        clock: &Clock,
        now: Instant,
    ) -> Option<Instant> {
        match &notice.detail {
            // An instance that is terminated inside the pool has no Node, and an unhealthy Node that is missing is gone.
            Detail::AsgTerminate(Hook { pool: Some(WarmPool::From), .. })
            | Detail::Condition(_)
            | Detail::StatusCheck(_)
            | Detail::TakenBack(_) => None,
            Detail::AsgTerminate(_) => Some(deadline.min(now + self.registration_grace)),
            Detail::ScheduledChange(ScheduledChange { withdrawn: true, start, .. }) => {
                let begin = start.map(|start| clock.instant_of(start)).filter(|begin| *begin > now)?;
                Some(begin.min(now + REGISTRATION_TIME))
            }
            _ => Some(deadline),
        }
    }

    /// Returns the mark of a notice on its Node; `deadline` is that of the drain, if the notice leads to one.
    #[must_use]
    pub fn mark(&self, notice: &Notice, message: &str, deadline: Instant, clock: &Clock, now: Instant) -> Mark {
        let drains = self.action(notice).drains();
        let deadline = drains.then_some(deadline);
        let stands = self.stands(notice.kind(), self.action(notice));
        let over = stands.map(|stands| deadline.unwrap_or(now) + stands);
        let (start, hard) = match &notice.detail {
            Detail::ScheduledChange(change) => (change.start, change.hard),
            _ => (None, false),
        };
        let is_hint = matches!(notice.detail, Detail::AsgTermination { .. });
        let hook = if is_hint { HookState::None } else { HookState::Waits };
        Mark::new(notice.key(), notice.kind().as_str(), notice.at(), message)
            .with_deadline(deadline.map(|at| clock.timestamp_of(at)))
            .with_expiry(over.map(|at| clock.timestamp_of(at)))
            .with_return_sign(comes_back(&notice.detail))
            .with_start(start, hard)
            .naming(notice.named_time())
            .with_hook(hook)
            .in_pool(self.pool.as_deref())
    }

    /// Returns the waits before evictions; `begin` is their start. They end after half of the time to the deadline at the latest, but the
    /// waits for a wave or a zonal shift under a hook may last as long as heartbeats can put the hook's end off.
    #[must_use]
    pub fn waits_before(
        &self,
        notice: &Notice,
        node: &Node,
        clock: &Clock,
        begin: Instant,
        deadline: Deadline,
        awaits_shift: bool,
    ) -> Waits {
        let mut waits = Waits::default();
        let half = begin + deadline.at().saturating_duration_since(begin) / 2;
        let mut add = |wait, until: Instant| {
            if until.min(half) > begin {
                waits.add(wait, until.min(half));
            }
        };
        if let Some(delay) = self.waits.delay.of(notice.kind()) {
            add(Wait::Delay, started_at(notice, Some(node), clock) + delay);
        }
        if self.awaits_replacement(notice, node) {
            add(Wait::Replacement, half);
        }
        if self.waits.hold.of(notice.kind()).before_drain && !self.dry_run {
            add(Wait::HoldBeforeDrain, half);
        }
        // The drain's time under a hook starts after these waits, because heartbeats keep the hook alive.
        let latest = match deadline {
            Deadline::Hook(end) => {
                let room = end.ends.saturating_duration_since(clock.notice_instant(notice.at()));
                end.latest.checked_sub(room).unwrap_or(half).max(half)
            }
            _ => half,
        };
        if awaits_shift && latest > begin {
            waits.add(Wait::ZonalShift, latest);
        }
        if self.awaits_place(notice, node) && latest > begin {
            waits.add(Wait::Wave, latest);
        }
        waits
    }

    /// Whether the drains of such notices have time to wait for others.
    fn has_time_to_wait(&self, notice: &Notice) -> bool {
        // Without a hook message or a configured timeout, the group's hook may expire at any time.
        let is_announced = self.hooks == HookSource::Messages || self.drain_timeout.of(notice.kind()).is_some();
        let has_time = is_announced || notice.detail != Detail::AsgTermination { sought: false };
        !self.dry_run && has_time && notice.kind().waits_in_waves() && self.action(notice).drains()
    }

    /// Whether evictions wait for the end of a zonal shift: not if they started before it, here or in another replica. If they have already
    /// waited for one, the wait is over at once, and the drain's time counts from the end of that wait.
    #[must_use]
    pub fn awaits_shift(&self, notice: &Notice, node: &Node, shifted: bool) -> bool {
        let key = notice.key();
        let stands = node.record.notice(key).is_some_and(|known| known.stands(&node.boot));
        let awaits = match node.record.notice(key).and_then(|known| known.place).filter(|_| stands) {
            // A place in a wave has the same value.
            Some(Place::Evicts(_)) => {
                self.waits.zonal_shift != ShiftedResources::None && !self.awaits_place(notice, node)
            }
            Some(Place::Waits) => shifted,
            Some(Place::Over) => shifted && notice.hook().is_none(),
            None => shifted && !stands,
        };
        awaits && self.has_time_to_wait(notice)
    }

    /// Whether evictions wait for a place in the waves of the Node. A dry run leaves no mark that would take one.
    #[must_use]
    pub fn awaits_place(&self, notice: &Notice, node: &Node) -> bool {
        let has_label = || self.waits.waves.iter().any(|wave| node.labels.contains_key(&*wave.label));
        self.has_time_to_wait(notice) && has_label()
    }

    /// Whether the Node is replaced first: by the settings, or because its group was asked for a replacement and terminates the Node now.
    fn awaits_replacement(&self, notice: &Notice, node: &Node) -> bool {
        let asked = AskedReplacement::of(node);
        let is_awaited = asked.as_ref().is_none_or(|asked| !asked.late);
        match &notice.detail {
            // The instance enters a warm pool, or returns with another root volume: the group launches nothing.
            Detail::AsgTerminate(Hook { pool: Some(_), .. } | Hook { replaces_root_volume: true, .. }) => false,
            Detail::AsgTerminate(_) if asked.is_some() => is_awaited,
            _ => self.action(notice) == Action::Replace && is_awaited,
        }
    }

    /// Returns the waits between the end of the work, with this outcome at `end`, and the completion of its hook, within the deadline.
    #[must_use]
    pub fn waits_after(
        &self,
        notice: &Notice,
        outcome: NoticeOutcome,
        had_volumes: bool,
        end: Instant,
        deadline: Deadline,
    ) -> Waits {
        let mut waits = Waits::default();
        let left = deadline.at().saturating_duration_since(end);
        // A drain that was lengthened for its pods ends when they are gone. Heartbeats keep the hook alive during the waits.
        let longest = deadline.latest_end().filter(|_| deadline.has_room());
        let longest = longest.map_or(Duration::ZERO, |latest| latest.saturating_duration_since(end));
        let bound = left.max(AFTER_DRAIN.min(longest));
        let mut add = |wait, at_most: Duration| {
            if !at_most.min(bound).is_zero() {
                waits.add(wait, end + at_most.min(bound));
            }
        };
        match outcome {
            NoticeOutcome::Drained => {
                add(Wait::CompleteAfter, self.waits.complete_after);
                // An instance whose root volume is replaced stays in its target groups.
                let stays = notice.hook().is_some_and(|hook| hook.replaces_root_volume);
                add(Wait::LoadBalancers, if stays { Duration::ZERO } else { self.awaits_load_balancers() });
                add(Wait::Volumes, if had_volumes && !self.dry_run { self.waits.volumes } else { Duration::ZERO });
            }
            // The kubelet may still unmount them.
            NoticeOutcome::Stuck => {
                add(Wait::Volumes, if had_volumes && !self.dry_run { self.waits.volumes } else { Duration::ZERO });
            }
            NoticeOutcome::Uncordoned => add(Wait::CompleteAfter, left),
            _ => {}
        }
        // A failed drain is held as well, while there is time.
        let worked = matches!(
            outcome,
            NoticeOutcome::Drained
                | NoticeOutcome::NodeDead
                | NoticeOutcome::Blocked
                | NoticeOutcome::TimedOut
                | NoticeOutcome::Stuck
                | NoticeOutcome::Failed
        );
        if worked && self.waits.hold.of(notice.kind()).before_completion && !self.dry_run {
            add(Wait::HoldBeforeCompletion, bound);
        }
        waits
    }

    /// Returns the maximum wait after a drain until no target group lists the instance.
    #[must_use]
    pub const fn awaits_load_balancers(&self) -> Duration {
        match self.waits.load_balancers {
            ForLoadBalancers::Wait | ForLoadBalancers::Deregister if !self.dry_run => LOAD_BALANCER_WAIT,
            _ => Duration::ZERO,
        }
    }

    /// Whether the instance is deregistered from its target groups when its drain starts: only if it is terminated. An instance that comes
    /// back would not be registered again.
    #[must_use]
    pub fn deregisters(&self, notice: &Notice) -> bool {
        self.waits.load_balancers == ForLoadBalancers::Deregister
            && !self.dry_run
            && self.action(notice).drains()
            && !notice.kind().is_repair()
            && comes_back(&notice.detail).is_none()
    }

    /// Returns the completion of a hook after this outcome; `None` leaves the hook to its own timeout. `excluded`: whether the Node is
    /// excluded now.
    #[must_use]
    pub fn completion(&self, outcome: NoticeOutcome, detail: &Detail, excluded: bool) -> Option<Completion> {
        let chosen = match (outcome, detail) {
            // The Node's owner completes it; or nothing was done, and the capacity may stay.
            (NoticeOutcome::Excluded | NoticeOutcome::NotAdmitted, _) => OnFailed::Leave,
            // A user keeps the node: a completion now would end it at once.
            (NoticeOutcome::Uncordoned, _) if excluded || self.on_uncordon == OnUncordon::Leave => OnFailed::Leave,
            // An instance that enters a warm pool need not become a Node.
            (NoticeOutcome::NotReady, Detail::AsgLaunch(Hook { pool: Some(WarmPool::To), .. })) => OnFailed::Continue,
            (NoticeOutcome::NotReady, _) => self.on_failed_launch,
            (failed, _) if failed.failed() => self.on_failed_drain,
            _ => OnFailed::Continue,
        };
        match chosen {
            OnFailed::Continue => Some(Completion::Continue),
            OnFailed::Abandon => Some(Completion::Abandon),
            OnFailed::Leave => None,
        }
    }

    /// Whether a launched instance's Node is ready for its hook's completion. After the replacement of a root volume the boot ID must differ
    /// from the drain's: the Node looks Ready until the kubelet's silence is noticed.
    #[must_use]
    pub fn in_service(&self, notice: &Notice, node: &Node) -> bool {
        let reboots = notice.hook().is_some_and(|hook| hook.replaces_root_volume)
            && awaits_boot(node, NoticeKind::AsgTerminate.as_str());
        has_started(node, &self.startup_taints) && !reboots
    }
}

/// Whether pods can run on a new Node: it is Ready, and has lost its startup taints.
pub(super) fn has_started(node: &Node, startup_taints: &[KeyPattern]) -> bool {
    let starts = |key: &str| startup_taints.iter().any(|pattern| pattern.matches(key));
    node.ready && !node.taints.iter().any(|taint| starts(&taint.key))
}

/// Returns what bounds the work under the notice's hook; `node` is the instance's, if it is known.
pub(super) fn hook_terms(policy: &Policy, notice: &Notice, node: Option<&Node>, clock: &Clock) -> HookTerms {
    HookTerms {
        kind: notice.kind(),
        drain_timeout: policy.drain_timeout.of(notice.kind()),
        heartbeats: policy.heartbeats,
        found: clock.notice_instant(notice.at()),
        since: started_at(notice, node, clock),
    }
}

/// Returns the start of the announced event. An agent notice of a termination has no time; the mark's time counts then, so that a hook that
/// is found later, or a takeover, doesn't restart a delay or a hook's life.
fn started_at(notice: &Notice, node: Option<&Node>, clock: &Clock) -> Instant {
    let is_timeless = matches!(notice.identity, Identity::Agent { at: None, .. });
    let marked = node.filter(|_| is_timeless).and_then(|node| node.record.notice(notice.key())?.since);
    clock.notice_instant(marked.map_or(notice.at(), |marked| marked.min(notice.at())))
}

/// Whether the instance no longer runs, so that no pod can be evicted.
#[must_use]
pub fn runs_no_more(detail: &Detail) -> bool {
    matches!(detail, Detail::StateChange { state: InstanceState::Stopped | InstanceState::Terminated })
}

/// Returns the mark for the Node of an instance that is gone: it lets the pods be moved.
#[must_use]
pub fn out_of_service_mark(notice: &Notice, message: &str) -> Mark {
    Mark::new(notice.key(), notice.kind().as_str(), notice.at(), message)
        .naming(notice.named_time())
        .with_return_sign(comes_back(&notice.detail))
        .with_out_of_service_taint()
}

/// Returns the sign that the instance has come back from the announced event, if it can come back.
#[must_use]
pub fn comes_back(detail: &Detail) -> Option<ReturnSign> {
    match detail {
        Detail::Spot { action: InstanceAction::Stop }
        | Detail::AsgTerminate(Hook { pool: Some(WarmPool::To), .. } | Hook { replaces_root_volume: true, .. })
        | Detail::Rebalance
        | Detail::ScheduledChange(_) => Some(ReturnSign::Boot),
        Detail::Spot { action: InstanceAction::Hibernate }
        | Detail::StateChange { state: InstanceState::Stopping | InstanceState::Stopped } => Some(ReturnSign::Ready),
        // The instance is terminated, even if it restarts before.
        _ => None,
    }
}

/// Returns the marks that the notice ends: when an instance leaves the warm pool, those from before it entered the pool; after a withdrawal,
/// the mark of the withdrawn notice.
#[must_use]
pub fn ended_marks(notice: &Notice, node: &Node) -> Option<NodeRelease> {
    match &notice.detail {
        Detail::AsgLaunch(Hook { pool: Some(WarmPool::From), .. }) => {
            NodeRelease::of_kind(node, NoticeKind::AsgTerminate.as_str(), notice.at(), UndoReason::FromWarmPool)
        }
        // EC2 reports status checks, and agents don't.
        Detail::TakenBack(NoticeKind::StatusCheck) => {
            NodeRelease::of_withdrawn(node, notice.key(), Withdrawal::of(notice), false)
        }
        Detail::TakenBack(_) => taken_back_marks(node, &notice.identity),
        _ if notice.is_withdrawn() => withdrawn_marks(node, notice),
        _ => None,
    }
}
