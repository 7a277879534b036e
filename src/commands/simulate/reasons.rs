//! Reasons, in words. The service's own functions decide; nothing is decided here.

use crate::fact::{Action, Replacement};
use crate::pipeline::drain::{AtDeadline, Foreseen, MAX_ADDED_GRACE, PodId};
use crate::pipeline::event::{Detail, IgnoreReason, InstanceAction, InstanceState, Notice, WarmPool, ZonalShift};
use crate::pipeline::interruption::{
    Admission, DrainLimit, HookRoom, HookTimes, NoticeOutcome, Patience, PerKind, Policy, Proof, Verify,
};
use crate::pipeline::node::shift::Shift;
use crate::pipeline::node::{InstanceRecord, ManagedTag, Membership, Ownership};
use crate::runtime::clock::Clock;
use crate::runtime::duration::Words;
use std::fmt;
use std::time::Duration;
use tokio::time::Instant;

/// The kind of a message that has no notice for Ebbtide.
pub(super) const fn ignored(why: IgnoreReason) -> &'static str {
    match why {
        IgnoreReason::TestNotification => "Auto Scaling's check, sent when a hook is set up",
        IgnoreReason::SnsControl => "SNS's own traffic, such as the confirmation of a subscription",
        IgnoreReason::UnknownType => "an event of a source or a detail-type that Ebbtide does not act on",
        IgnoreReason::HarmlessState => "an instance state that does not end the instance",
        IgnoreReason::OtherFleetChange => "a fleet's launch or termination, which needs no action",
        IgnoreReason::EmptyReservation => "the end of a capacity block in which no instance runs",
        IgnoreReason::OtherShift => {
            "a zonal shift of a resource that --zonal-shift does not name, or a notification about one of AWS's"
        }
        IgnoreReason::StaleShift => "an event of a zonal shift that a newer one has overtaken",
        IgnoreReason::NotScheduledChange => {
            "a Health event of another service or category, or one that names no affected instance"
        }
        IgnoreReason::Closed => "a closed Health event that names no instance",
    }
}

/// Describes the effect of a zonal shift.
pub(super) fn shift(shift: &ZonalShift) -> String {
    let zone = &shift.away_from;
    if shift.begins {
        format!("while traffic is shifted away from {zone}, drains in other zones that have time wait")
    } else {
        format!("traffic is no longer shifted away from {zone}, and drains in other zones continue")
    }
}

/// Until when a shift counts.
pub(super) fn counts(shift: &Shift) -> String {
    let Shift { away_from, resource, until, .. } = shift;
    format!(
        "traffic of {resource} is shifted away from {away_from}; that counts until {until}, unless another event of the shift comes"
    )
}

/// Returns the condition that ends the wait for a shift.
pub(super) fn shifted_back(shift: &Shift) -> String {
    format!("traffic is no longer shifted away from {}", shift.away_from)
}

/// Why the times are later than the deadline of the hook alone.
pub(super) const fn put_off(in_wave: bool) -> &'static str {
    if in_wave {
        "the times are those of the longest wait in its wave: a hook's time for the drain begins with the node's place"
    } else {
        "the times are those of the longest wait for the end of the shift: a hook's time for the drain begins then"
    }
}

/// The content of a notice, besides its kind and its instance.
pub(super) fn summary(detail: &Detail) -> String {
    match detail {
        Detail::AsgTerminate(hook) | Detail::AsgLaunch(hook) => {
            let pool = match hook.pool {
                Some(WarmPool::To) => ", on its way to the warm pool",
                Some(WarmPool::From) => ", on its way out of the warm pool",
                None => "",
            };
            let volume = if hook.replaces_root_volume { ", to replace the root volume" } else { "" };
            let direct = if hook.direct { ", from the hook itself" } else { "" };
            format!("hook {} of group {}{pool}{volume}{direct}", hook.name, hook.group)
        }
        Detail::Spot { action } => match action {
            InstanceAction::Terminate => "EC2 reclaims and terminates the instance".to_owned(),
            InstanceAction::Stop => "EC2 reclaims and stops the instance".to_owned(),
            InstanceAction::Hibernate => "EC2 reclaims and hibernates the instance".to_owned(),
        },
        Detail::Rebalance => "the instance is at an elevated risk of interruption".to_owned(),
        Detail::AsgTermination { .. } => "its Auto Scaling group terminates the instance".to_owned(),
        Detail::Condition(condition) => format!("the Node has the condition {condition} for longer than tolerated"),
        Detail::StatusCheck(which) => format!("EC2's {which} status check of the instance fails"),
        Detail::TakenBack(_) => "the Node or EC2 no longer reports it".to_owned(),
        Detail::StateChange { state } => {
            let state = match state {
                InstanceState::Stopping => "stopping",
                InstanceState::Stopped => "stopped",
                InstanceState::ShuttingDown => "shutting-down",
                InstanceState::Terminated => "terminated",
            };
            format!("the instance is {state}")
        }
        Detail::ScheduledChange(change) => {
            let over = match (change.withdrawn, change.is_issue) {
                (true, _) => ", which is called off or over",
                (false, true) => ", a fault of the instance",
                (false, false) => "",
            };
            change.start.map_or_else(
                || format!("{}{over}", change.code),
                |start| format!("{}, from {start}{over}", change.code),
            )
        }
        Detail::CapacityReservation { .. } => "the reservation reclaims its capacity".to_owned(),
    }
}

/// The setting that decides the action for a notice.
pub(super) fn setting(notice: &Notice, action: Action) -> String {
    match &notice.detail {
        Detail::ScheduledChange(change) if change.is_issue => format!("--health-issue {}={action}", change.code),
        Detail::Condition(condition) => format!("--on-condition {condition}:…={action}"),
        _ => format!("--on {}={action}", notice.kind()),
    }
}

/// Why a node is drained without a replacement first.
pub(super) const fn forgone(reason: Replacement) -> &'static str {
    match reason {
        Replacement::NoGroup => "the instance belongs to no Auto Scaling group",
        Replacement::NoHook => {
            "the group has no terminating hook that Ebbtide completes, and the instance would end undrained"
        }
        Replacement::TerminatesFirst => "the group has no instance maintenance policy that launches first",
        Replacement::Suspended => "a process of the group that replaces instances is suspended",
        Replacement::AtMaximum => "the group has its maximum size",
        Replacement::Protected => "the instance is protected from scale-in",
        Replacement::NotInService => "the instance is not in service in its group",
        Replacement::TooLate => "the deadline is too near",
        Replacement::Denied => "the permission to read the group is missing",
        Replacement::DryRun => "--dry-run asks for nothing",
        _ => "the group could not be read",
    }
}

/// The reason for the end of a notice.
pub(super) fn ended(outcome: NoticeOutcome, notice: &Notice) -> String {
    let kind = notice.kind();
    match (outcome, &notice.detail) {
        (NoticeOutcome::NotOurs, Detail::AsgTerminate(hook) | Detail::AsgLaunch(hook)) => {
            format!("another program completes the hook {} (--ignore-hook)", hook.name)
        }
        (NoticeOutcome::Ignored, Detail::ScheduledChange(change)) if change.is_issue => {
            format!("a fault that AWS reports, and there is no --health-issue {}=ACTION", change.code)
        }
        (NoticeOutcome::Reported | NoticeOutcome::Cordoned, Detail::ScheduledChange(change)) if change.is_issue => {
            format!("--health-issue {}", change.code)
        }
        (NoticeOutcome::Reported | NoticeOutcome::Cordoned, Detail::Condition(condition)) => {
            format!("--on-condition {condition}")
        }
        (NoticeOutcome::Ignored, _) => format!("--on {kind}=ignore"),
        (NoticeOutcome::Reported, _) => format!("--on {kind}=report"),
        (NoticeOutcome::Cordoned, _) if notice.kind().is_hint() => {
            format!(
                "--on {kind}=cordon: the Node takes no new pods, and none is evicted; beyond a fifth of the nodes it is only reported"
            )
        }
        (NoticeOutcome::Cordoned, _) => format!("--on {kind}=cordon: the Node takes no new pods, and none is evicted"),
        (NoticeOutcome::Stale, _) => "the Node has become Ready again since the announced event".to_owned(),
        (NoticeOutcome::Planned, _) => format!("--when {kind}: the change is not near yet"),
        (NoticeOutcome::Withdrawn, _) => {
            "AWS has cancelled the change, or reports it as completed: the mark of its notice is removed".to_owned()
        }
        (NoticeOutcome::Ready, _) => "the Node is Ready already".to_owned(),
        (NoticeOutcome::NothingToDrain, Detail::AsgTerminate(_)) => {
            "the instance is terminated in its warm pool, where it is no Node".to_owned()
        }
        (NoticeOutcome::NothingToDrain, _) => "the instance no longer runs: there is nothing to evict".to_owned(),
        // The other outcomes are those of work that has not begun.
        (outcome, _) => outcome.as_str().to_owned(),
    }
}

/// Describes the planning of a notice until its change is near.
pub(super) fn planned(notice: &Notice, policy: &Policy) -> String {
    let from = policy.acts_from(notice).unwrap_or(notice.at());
    format!("the Node keeps the notice, without a cordon, and is drained from {from}")
}

/// Returns the condition for the cordon and the drain, if the default limit leaves one.
pub(super) fn admitted(notice: &Notice, policy: &Policy, patience: Option<Patience>) -> Option<String> {
    let Admission { verify, limit, .. } = policy.admission;
    let proof = Proof::of(notice, verify);
    let expected = proof.as_ref().map_or("", Proof::expected);
    Some(match patience {
        Some(Patience { is_late: true, at_most }) if proof.is_some() => format!(
            "its time is nearly over: AWS is asked first whether {expected}, and waited for {} at most",
            Words(at_most)
        ),
        _ if limit == DrainLimit::Shaping => return None,
        _ if proof.is_none() => {
            "beyond --max-draining nothing is done before there is room: AWS confirms no such notice".to_owned()
        }
        _ => match verify {
            Verify::Always => format!("--verify always: nothing is done before AWS confirms that {expected}"),
            Verify::Never => "--verify never: beyond --max-draining it is reported as unusual, and drained".to_owned(),
            Verify::Unusual => {
                format!("beyond --max-draining nothing is done before AWS confirms that {expected}, or there is room")
            }
        },
    })
}

/// The owner of an instance, by EC2's answer.
pub(super) fn owner(
    record: InstanceRecord,
    owned: Ownership,
    tag: &ManagedTag,
    (has_node, require_tag): (bool, bool),
) -> String {
    let tag = match &tag.value {
        Some(value) => format!("{}={value}", tag.key),
        None => tag.key.clone(),
    };
    let without = match (has_node, require_tag) {
        (true, _) => "--require-tag is set, and",
        (false, true) => "it has no Node here, --require-tag is set, and",
        (false, false) => "it has no Node here, and",
    };
    match record {
        InstanceRecord::Known { membership: Membership::ThisCluster, .. } => format!("it carries the tag {tag}"),
        InstanceRecord::Known { membership: Membership::OtherCluster, .. } => {
            format!("{without} its tags name another cluster")
        }
        InstanceRecord::Known { membership: Membership::Unproven { .. }, .. } if owned == Ownership::Ours => {
            format!("it carries the tag {tag}, and its lifecycle hook notified the queue itself")
        }
        InstanceRecord::Known { membership: Membership::Unproven { .. }, .. } => {
            format!("it carries the tag {tag}, as instances of other clusters may, and nothing names its cluster")
        }
        InstanceRecord::Terminated { .. } if owned == Ownership::Ours => format!("it carries the tag {tag}"),
        InstanceRecord::Known { membership: Membership::NotManaged, .. } => {
            format!("{without} it does not carry the tag {tag}")
        }
        InstanceRecord::Terminated { .. } => format!("{without} EC2 reports it as terminated"),
        InstanceRecord::Unknown => format!("{without} EC2 does not know it"),
    }
}

/// Whether pods are deleted before a deadline at which the capacity does not end.
pub(super) fn is_forced(notice: &Notice, policy: &Policy, times: Option<HookTimes>, clock: &Clock) -> bool {
    let patient = Policy { at_timeout: PerKind::all(AtDeadline::Leave), ..policy.clone() };
    let is_hard = |policy: &Policy| policy.deadline(notice, None, times, clock, Instant::now()).is_hard();
    is_hard(policy) && !is_hard(&patient)
}

/// The origin of a notice's deadline; `longest_grace` is that of the node's pods, if the deadline leaves room for it.
pub(super) fn deadline(
    notice: &Notice,
    policy: &Policy,
    times: Option<HookTimes>,
    longest_grace: Option<Duration>,
    clock: &Clock,
) -> String {
    if let Some(times) = times {
        return of_hook(policy, notice, times, longest_grace);
    }
    let now = Instant::now();
    let chosen = policy.deadline(notice, None, None, clock, now).at();
    let patient = Policy { drain_timeout: PerKind::all(None), ..policy.clone() };
    let unasked = patient.deadline(notice, None, None, clock, now).at();
    // The clock takes a notice's time that lies ahead as now, which is another instant for each of the two.
    let differ = chosen.max(unasked) - chosen.min(unasked) > Duration::from_millis(500);
    if let Some(timeout) = policy.drain_timeout.of(notice.kind()).filter(|_| differ) {
        return format!("--drain-timeout {}; AWS may leave more time", span(timeout));
    }
    let named = |start| format!("the change begins then: {start}");
    match &notice.detail {
        Detail::Spot { action: InstanceAction::Hibernate } => "hibernation begins at once".to_owned(),
        Detail::Spot { .. } => "EC2 reclaims a spot instance 120 s after its warning".to_owned(),
        Detail::CapacityReservation { terminates_at: Some(_) } => "the notice names this time".to_owned(),
        Detail::CapacityReservation { .. } => "120 s after the notice, which names no time".to_owned(),
        Detail::Rebalance => "our own patience: no event announces when, or whether, the instance ends".to_owned(),
        Detail::AsgTermination { .. } | Detail::TakenBack(_) => {
            "our own patience: the metadata name no time".to_owned()
        }
        Detail::Condition(_) | Detail::StatusCheck(_) => {
            "our own patience: it is unknown when the node fails".to_owned()
        }
        Detail::StateChange { .. } => "2 minutes: EC2 names no time".to_owned(),
        Detail::ScheduledChange(change) => match change.start {
            Some(start) if clock.instant_of(start) <= chosen => named(start),
            Some(_) => "our own patience, an hour: the change begins later".to_owned(),
            None => "our own patience, an hour: the notice names no time".to_owned(),
        },
        Detail::AsgTerminate(_) | Detail::AsgLaunch(_) => "the hook is not touched".to_owned(),
    }
}

fn of_hook(policy: &Policy, notice: &Notice, times: HookTimes, longest_grace: Option<Duration>) -> String {
    let margin = span(times.margin());
    let HookRoom { wanted, limit, grace_from, .. } = policy.hook_room(notice.kind(), times);
    let of_default = |wanted| {
        if wanted > times.heartbeat {
            format!(
                "{} after the notice: the hook's heartbeat timeout is less, {}",
                span(wanted),
                span(times.heartbeat)
            )
        } else {
            format!("the hook's heartbeat timeout of {} after the notice", span(wanted))
        }
    };
    if let Some((from, grace)) = grace_from.zip(longest_grace) {
        let grace = span(grace.min(MAX_ADDED_GRACE));
        return format!("{}, and the longest grace period of a pod, {grace}", of_default(from));
    }
    if wanted > limit {
        return format!("the hook allows at most {}, less a margin of {margin}", span(limit));
    }
    let begin = if policy.drain_timeout.of(notice.kind()).is_some() {
        format!("--drain-timeout {} after the notice", span(wanted))
    } else if times.assumed {
        format!("{} after the notice", span(wanted))
    } else {
        of_default(wanted)
    };
    format!("{begin}, less a margin of {margin}")
}

/// The reason why a pod may stay.
pub(super) fn held_for_good(hard: bool) -> String {
    let why = if hard { "--at-deadline leave" } else { "a soft deadline deletes nothing" };
    format!("pods still held back at the deadline stay ({why}), and the drain ends as blocked")
}

/// What happens before the eviction of a pod that may be the last ready one of its Deployment. It may wait for `time`.
pub(super) fn surge(
    pod: &PodId,
    foreseen: Result<Option<Foreseen>, impl fmt::Display>,
    time: Duration,
) -> Option<String> {
    let only = "all ready pods of the Deployment are on nodes that are drained";
    Some(match foreseen {
        Ok(None) => return None,
        Ok(Some(Foreseen::Restart(name))) => format!(
            "the Deployment {name} would be restarted first, and {pod} wait for its new pod for up to {} (--surge): {only}",
            span(time)
        ),
        Ok(Some(Foreseen::Wait(name))) => format!(
            "{pod} would wait for a new pod of the Deployment {name} for up to {} (--surge): {only}, and one is on its way",
            span(time)
        ),
        Ok(Some(Foreseen::NoRoom(name, why))) => {
            format!(
                "{pod} is the only ready pod of the Deployment {name}, which would not be restarted first (--surge): {why}"
            )
        }
        Err(error) => format!("whether the Deployment of {pod} would be restarted first (--surge) is unknown: {error}"),
    })
}

/// A length of time: `1m 52s`.
pub(super) fn span(length: Duration) -> String {
    let seconds = length.as_secs();
    let parts = [(seconds / 86_400, "d"), (seconds / 3600 % 24, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s")];
    // Two parts are exact enough.
    let shown = parts.iter().skip_while(|(count, _)| *count == 0).take(2).filter(|(count, _)| *count > 0);
    let shown: Vec<_> = shown.map(|(count, unit)| format!("{count}{unit}")).collect();
    if shown.is_empty() { "0s".to_owned() } else { shown.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_of_time_has_two_parts() {
        for (seconds, shown) in
            [(0, "0s"), (59, "59s"), (60, "1m"), (112, "1m 52s"), (3601, "1h"), (7260, "2h 1m"), (1_209_599, "13d 23h")]
        {
            assert_eq!(span(Duration::from_secs(seconds)), shown);
        }
    }
}
