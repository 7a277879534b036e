//! Which calls the service would make, and how many. Pure: counted from the notice's view.

use super::reasons::span;
use super::view::{CallView, Hold, Moment, NoticeView, PodView};
use crate::cli::settings::Settings;
use crate::fact::Wait;
use crate::pipeline::interruption::{HookTimes, MAX_MARGIN, NoticeOutcome, Policy, due_beat};
use crate::pipeline::node::record::TERMINATION_GRACE;
use crate::pipeline::queue::VISIBILITY_TIMEOUT;
use crate::telemetry::kube_events::Scope;
use std::time::Duration;
use tokio::time::Instant;

/// Lookups that the service makes before it acts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lookups {
    /// Whether EC2 is asked for the instance's tags.
    pub owner: bool,
    /// Calls that ask AWS to confirm the notice.
    pub confirming: &'static [&'static str],
    /// Whether Auto Scaling is asked for the hook's times.
    pub hook: bool,
    /// Whether the Node carries marks that the notice ends.
    pub ended_marks: bool,
    /// Whether the Auto Scaling group is asked to replace the instance, if that is considered.
    pub replacement: Option<bool>,
    /// Number of notes on the Node for others that wait in its waves.
    pub wave_notes: usize,
    /// Number of notes on the Node about the end of a hook from which the instance returns.
    pub end_notes: usize,
    /// The message's visibility timeout, if it is not the usual one.
    pub visibility_timeout: Option<Duration>,
}

/// Longest grace period in seconds that puts off no mark: with the hook's margin, the drain ends while a restart does not count yet.
const USUAL_GRACE: u64 = TERMINATION_GRACE.saturating_sub(MAX_MARGIN).as_secs();

/// Returns the calls that the service would make about a notice.
pub(super) fn of(notice: &NoticeView, lookups: Lookups, settings: &Settings) -> Vec<CallView> {
    let mut calls = Calls(Vec::new());
    calls.kubernetes(notice, lookups, settings);
    calls.aws(notice, lookups, settings);
    calls.0
}

struct Calls(Vec<CallView>);

impl Calls {
    fn add(&mut self, to: &'static str, call: &str, least: usize, most: Option<usize>, when: impl Into<String>) {
        self.0.push(CallView { to, call: call.to_owned(), least, most, when: when.into() });
    }

    fn kubernetes(&mut self, notice: &NoticeView, lookups: Lookups, settings: &Settings) {
        let to = "kubernetes";
        if let Some(marks) = &notice.marks {
            let needed = usize::from(!marks.annotations.is_empty());
            let when = match needed {
                0 => "the Node carries the marks already",
                _ => "cordon and all marks in one; again if another client writes the Node meanwhile",
            };
            let most = needed + usize::from(marks.taken_back.is_some());
            let (needed, most, when) = match lookups.replacement {
                // The notes before and after the call on the Node, and that on the new one.
                Some(true) => {
                    (needed + 1, most + 3, format!("{when}; two for notes of the replacement, and one on the new Node"))
                }
                _ => (needed, most, when.to_owned()),
            };
            // A start and an end each.
            let holds = [Wait::HoldBeforeDrain, Wait::HoldBeforeCompletion].into_iter();
            let holds = holds.filter(|hold| is_made(notice, *hold)).count();
            let when = if holds > 0 { format!("{when}; two for each hold") } else { when };
            let outlasts = notice.hook.is_some() && notice.pods.iter().any(|pod| pod.grace_seconds > USUAL_GRACE);
            let outlasted = "; one if the drain outlasts the hook's own timeout";
            let when = if outlasts { when + outlasted } else { when };
            let in_wave = is_made(notice, Wait::Wave);
            let when = match (in_wave, lookups.wave_notes > 0) {
                (true, _) => when + "; two for its place in the wave, and more if other replicas take it first",
                (false, true) => when + "; one for the end of the drain, for the nodes that wait in its wave",
                (false, false) => when,
            };
            let is_put_off = notice.hook.is_some() && is_made(notice, Wait::ZonalShift);
            let when = if is_put_off { when + "; more if the shift outlasts the hook's own timeout" } else { when };
            let when = if lookups.end_notes > 0 { when + "; one when the hook is completed" } else { when };
            let most = most + 2 * holds + usize::from(outlasts) + lookups.wave_notes + lookups.end_notes;
            self.add(to, "patch nodes", needed, (!in_wave && !is_put_off).then_some(most), when);
        }
        if notice.ends.as_ref().is_some_and(|end| end.outcome == NoticeOutcome::Planned) {
            self.add(to, "patch nodes", 1, Some(2), "keeps the notice on the Node; removed after the drain");
        }
        if lookups.ended_marks {
            self.add(to, "patch nodes", 0, Some(1), "removes the marks that the notice ends");
        }
        let drains = notice.action.drains() && notice.ends.is_none() && notice.node.is_some();
        if !drains {
            return;
        }
        self.add(to, "list pods", 2, None, "at the beginning and at the end; more if pods come meanwhile");
        self.add(to, "watch pods", 0, Some(1), "one for all drains together");
        let evicted: Vec<&PodView> = notice.pods.iter().filter(|pod| pod.evicted_by.is_some()).collect();
        let refused: Vec<&&PodView> = evicted.iter().filter(|pod| by_budgets(pod) > 0).collect();
        let when = if refused.is_empty() {
            "one for each pod that is evicted".to_owned()
        } else {
            format!("one for each pod that is evicted; {} refused now, and tried again every 1 to 5 s", refused.len())
        };
        self.add(to, "create pods/eviction", evicted.len(), evictions(notice, &evicted), when);
        let pressed = evicted.iter().filter(|pod| pod.deleted_at.is_some() && !pod.held_back_by.is_empty()).count();
        if pressed > 0 {
            if !settings.policy.dry_run {
                self.add(
                    to,
                    "patch pods/status",
                    0,
                    Some(pressed),
                    "before each deletion: the condition DisruptionTarget",
                );
            }
            self.add(to, "delete pods", 0, Some(pressed), "pods still held back when their grace period just fits");
        }
        let made = |wait| is_made(notice, wait);
        let before = [Wait::Delay, Wait::Replacement, Wait::ZonalShift, Wait::Wave, Wait::HoldBeforeDrain];
        if before.into_iter().any(made) {
            self.add(to, "list pods", 0, Some(1), "before a hard deadline: the grace periods that are kept free");
        }
        if made(Wait::Volumes) {
            self.add(to, "list volumeattachments", 1, None, "after the drain; one for all waits together");
            self.add(
                to,
                "watch volumeattachments",
                0,
                Some(1),
                "while volumes are attached; one for all waits together",
            );
            self.add(to, "list pods", 0, Some(1), "which volumes the pods use that stay");
            self.add(to, "get persistentvolumeclaims", 0, None, "one for each volume of those pods");
        }
        if !notice.target_groups.is_empty() {
            self.add(to, "list targetgroupbindings", 0, Some(1), "the answer is kept for 5 minutes");
        }
        let ways = [
            ("--events", settings.reported.events, &["create events", "patch events"][..]),
            ("--node-condition", settings.reported.condition, &["patch nodes/status"]),
        ];
        for (flag, scope, calls) in ways.into_iter().filter(|_| !settings.policy.dry_run) {
            let (when, word) = match scope {
                Some(Scope::All) => ("for each drain", "all"),
                Some(Scope::Lifecycle) => ("for each drain", "lifecycle"),
                Some(Scope::Blocked) => ("if the drain is held back, or waits, for 5 s", "blocked"),
                None => continue,
            };
            for call in calls {
                self.add(to, call, 0, None, format!("{when} ({flag} {word})"));
            }
        }
    }

    fn aws(&mut self, notice: &NoticeView, lookups: Lookups, settings: &Settings) {
        let to = "aws";
        for call in lookups.confirming {
            self.add(to, call, 1, None, "until AWS confirms the notice; one for all that wait");
        }
        if lookups.owner
            || lookups.replacement.is_some()
            || (notice.marks.is_some()
                && notice.ends.as_ref().is_some_and(|end| end.outcome == NoticeOutcome::NothingToDrain))
        {
            self.add(
                to,
                "ec2:DescribeInstances",
                0,
                None,
                "the instance's tags and state; answers are kept for minutes",
            );
        }
        if lookups.hook {
            let most = lookups.replacement.is_none().then_some(1);
            self.add(to, "autoscaling:DescribeLifecycleHooks", 0, most, "the answer is kept for 10 minutes");
        }
        if let Some(asks) = lookups.replacement {
            let when = "again every minute while a replacement is waited for; one for all nodes of the group";
            self.add(to, "autoscaling:DescribeAutoScalingGroups", 0, None, when);
            if !lookups.hook {
                self.add(to, "autoscaling:DescribeLifecycleHooks", 0, None, "the group's, with it");
            }
            if asks {
                self.add(to, "autoscaling:SetInstanceHealth", 1, Some(3), "once; again only if it was lost");
            }
        }
        if let Some(hook) = notice.hook.as_ref().filter(|_| !settings.policy.dry_run) {
            // Each comes up to a tenth earlier, which leaves room for more; and one may go out as the work ends.
            let beats = hook.heartbeats + hook.heartbeats / 9 + 1;
            self.add(to, "autoscaling:RecordLifecycleActionHeartbeat", 0, Some(beats), "during the work");
            let least = usize::from(hook.after_failure.is_some());
            self.add(to, "autoscaling:CompleteLifecycleAction", least, Some(1), "when the work has ended");
        }
        if !notice.target_groups.is_empty() {
            let kept = "the answer is kept for 5 minutes";
            if notice.hook.is_none() {
                self.add(to, "autoscaling:DescribeAutoScalingInstances", 0, Some(1), "with other instances");
            }
            self.add(to, "autoscaling:DescribeAutoScalingGroups", 0, Some(1), kept);
            let when = "every 5 to 15 s for each target group; one for all waits together";
            self.add(to, "elasticloadbalancing:DescribeTargetHealth", 0, None, when);
            let deregistered = notice.target_groups.iter().filter(|group| group.deregistered).count();
            if deregistered > 0 {
                let when = "where the instance is registered; with other instances";
                self.add(to, "elasticloadbalancing:DeregisterTargets", 0, Some(deregistered), when);
            }
        }
        if !settings.sources.queue || notice.kind.is_repair() {
            return;
        }
        let last =
            [notice.deadline.as_ref().map(|deadline| deadline.moment), notice.waits.as_ref().map(|waits| waits.until)];
        let held = last.into_iter().flatten().map(seconds).max().filter(|_| notice.ends.is_none());
        if let Some(held) = held {
            let every = lookups.visibility_timeout.unwrap_or(VISIBILITY_TIMEOUT) * 2 / 3;
            let most = usize::try_from(held / every.as_secs().max(1)).ok();
            let when = format!("every {} while the message is held", span(every));
            self.add(to, "sqs:ChangeMessageVisibility", 0, most, when);
        }
        self.add(to, "sqs:DeleteMessage", 1, Some(1), "when every notice in the message has ended");
    }
}

/// Returns the maximum number of evictions. It is not known if a budget lets only some of its pods go, or if two budgets hold one pod.
fn evictions(notice: &NoticeView, evicted: &[&PodView]) -> Option<usize> {
    if notice
        .budgets
        .iter()
        .any(|budget| !budget.blocks && usize::try_from(budget.allows).is_ok_and(|n| n < budget.pods))
    {
        return None;
    }
    let end = notice.deadline.as_ref().map(|deadline| seconds(deadline.moment))?;
    let tries = |pod: &&PodView| match by_budgets(pod) {
        0 => Some(1),
        1 => {
            let until = pod.deleted_at.map_or(end, seconds);
            // Evictions of one pod are at least a second apart; both ends are rounded.
            usize::try_from(until.saturating_sub(pod.evicted_by.map_or(0, seconds)) + 2).ok()
        }
        _ => None,
    };
    evicted.iter().map(tries).sum()
}

/// Returns the number of budgets that hold the pod back.
fn by_budgets(pod: &PodView) -> usize {
    pod.held_back_by.iter().filter(|hold| matches!(hold, Hold::Budget(_))).count()
}

fn seconds(moment: Moment) -> u64 {
    u64::try_from(moment.in_seconds).unwrap_or(0)
}

/// Returns the heartbeats of a hook whose action began at `begun`, if the work takes until `finish`.
pub(super) fn beats(policy: &Policy, begun: Instant, times: HookTimes, finish: Instant) -> Vec<Instant> {
    let mut expires = begun + times.heartbeat;
    let now = Instant::now();
    let next = || {
        let due = due_beat(policy.heartbeats, begun, expires, times, finish)?.max(now);
        expires = due + times.heartbeat;
        (due < finish).then_some(due)
    };
    std::iter::from_fn(next).collect()
}

/// Whether this is waited for.
fn is_made(notice: &NoticeView, wait: Wait) -> bool {
    notice.planned_waits.iter().any(|view| view.wait == wait && view.not_because.is_none())
}
