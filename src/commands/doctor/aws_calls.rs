//! Every call to AWS that the service makes: whether it is allowed. Pure.
//!
//! Each call is made in a form that cannot have an effect. Every answer except a missing permission means that the call is allowed.

use super::check::{Area, Check, few};
use super::readings::{CallTrial, ReadError, Readings, TrialAnswer, TrialCall};
use crate::cli::settings::Settings;
use crate::pipeline::event::NoticeKind;
use crate::pipeline::interruption::{Action, ForLoadBalancers};

impl TrialCall {
    const fn name(self) -> &'static str {
        match self {
            Self::Delete => "delete",
            Self::Extend => "extend",
            Self::Instances => "instances",
            Self::Changes => "scheduled-changes",
            Self::Reservations => "reservations",
            Self::SpotRequests => "spot-requests",
            Self::Members => "members",
            Self::Hooks => "hooks",
            Self::Heartbeat => "heartbeat",
            Self::Complete => "complete",
            Self::Groups => "groups",
            Self::Replace => "replace",
            Self::TargetHealth => "target-health",
            Self::Deregister => "deregister",
        }
    }

    /// The IAM action.
    #[must_use]
    pub const fn action(self) -> &'static str {
        match self {
            Self::Delete => "sqs:DeleteMessage",
            Self::Extend => "sqs:ChangeMessageVisibility",
            Self::Instances => "ec2:DescribeInstances",
            Self::Changes => "ec2:DescribeInstanceStatus",
            Self::Reservations => "ec2:DescribeCapacityReservations",
            Self::SpotRequests => "ec2:DescribeSpotInstanceRequests",
            Self::Members => "autoscaling:DescribeAutoScalingInstances",
            Self::Hooks => "autoscaling:DescribeLifecycleHooks",
            Self::Heartbeat => "autoscaling:RecordLifecycleActionHeartbeat",
            Self::Complete => "autoscaling:CompleteLifecycleAction",
            Self::Groups => "autoscaling:DescribeAutoScalingGroups",
            Self::Replace => "autoscaling:SetInstanceHealth",
            Self::TargetHealth => "elasticloadbalancing:DescribeTargetHealth",
            Self::Deregister => "elasticloadbalancing:DeregisterTargets",
        }
    }

    const fn without(self) -> &'static str {
        match self {
            Self::Delete => "messages come back until they expire",
            Self::Extend => "other replicas receive a message while it is being worked on",
            Self::Instances => "instances without a Node can't be distinguished from those of other clusters",
            Self::Changes => "EC2's list of scheduled changes neither finds unannounced changes nor confirms a notice",
            Self::Reservations => "EC2's list of Capacity Blocks neither finds unannounced ends nor confirms a notice",
            Self::SpotRequests => {
                "no spot warning is confirmed: beyond a quarter of the nodes it waits for 30 s, and beyond a limit of yours it leads to no drain"
            }
            Self::Members => {
                "lifecycle hooks are neither found for terminations that Nodes report (--node-hook) nor confirmed"
            }
            Self::Hooks => "every hook is treated as one with a timeout of 30 s",
            Self::Heartbeat => "hooks expire during a drain",
            Self::Complete => "instances wait for the hook's timeout after each drain",
            Self::Groups | Self::Replace => "nodes are drained without a replacement first",
            Self::TargetHealth => "hooks are completed while load balancers still send traffic",
            Self::Deregister => "instances stay registered until they are gone",
        }
    }

    /// Whether the action is granted on the queue.
    const fn on_queue(self) -> bool {
        matches!(self, Self::Delete | Self::Extend)
    }
}

/// Whether the settings lead to calls about lifecycle hooks.
#[must_use]
pub fn lifecycle(settings: &Settings) -> bool {
    let policy = &settings.policy;
    let acts = |kind| policy.actions.of(kind).drains() || policy.actions.of(kind) == Action::Ready;
    !policy.dry_run && (acts(NoticeKind::AsgTerminate) || acts(NoticeKind::AsgLaunch))
}

/// Whether the settings lead to calls for replacements.
#[must_use]
pub fn replaces(settings: &Settings) -> bool {
    !settings.policy.dry_run && settings.policy.has_any(&[Action::Replace])
}

/// Whether the settings lead to polls of EC2 about this kind.
#[must_use]
pub fn polls(settings: &Settings, kind: NoticeKind) -> bool {
    settings.ec2_poll_interval.is_some() && settings.policy.actions.of(kind) != Action::Ignore
}

/// Whether the settings lead to calls that confirm notices of this kind.
#[must_use]
pub fn confirms(settings: &Settings, kind: NoticeKind) -> bool {
    settings.policy.admission.may_ask() && settings.policy.actions.of(kind).drains()
}

/// Returns the work for load balancers; none if the settings rule it out.
#[must_use]
pub fn for_load_balancers(settings: &Settings) -> ForLoadBalancers {
    let policy = &settings.policy;
    if policy.dry_run || !policy.has_any(&[Action::Drain, Action::Replace]) {
        ForLoadBalancers::Nothing
    } else {
        policy.waits.load_balancers
    }
}

/// Judges the calls.
#[must_use]
pub fn judge(settings: &Settings, readings: &Readings) -> Vec<Check> {
    let area = Area::Calls;
    let receive = || {
        if readings.ready_here {
            area.ok("receive", "sqs:ReceiveMessage: the service on this machine is ready, so SQS has answered it")
        } else {
            let found = "sqs:ReceiveMessage is not called, because a receive counts. A ready service has had an answer; none is at --admin-address on this machine.";
            area.skipped("receive", found)
        }
    };
    let mut checks: Vec<Check> = settings.sources.queue.then(receive).into_iter().collect();
    checks.extend(readings.trials.iter().map(judge_trial));
    let is_tried = |call| readings.trials.iter().any(|trial| trial.call == call);
    if for_load_balancers(settings) == ForLoadBalancers::Deregister && !is_tried(TrialCall::Deregister) {
        checks.push(area.skipped(
            "deregister",
            "No Auto Scaling group is known with a target group, so a deregistration could not be tried. Where a TargetGroupBinding names one, its controller deregisters the instance, too.",
        ));
    }
    if lifecycle(settings) && !is_tried(TrialCall::Complete) {
        checks.push(area.skipped(
            "complete",
            "No group is known with a hook that Ebbtide completes, so lifecycle calls could not be tried.",
        ));
    }
    checks
}

fn judge_trial(CallTrial { call, answers }: &CallTrial) -> Check {
    let (area, name, action) = (Area::Calls, call.name(), call.action());
    let denied: Vec<(&str, &ReadError)> = answers
        .iter()
        .filter_map(|TrialAnswer { subject, answer }| Some((subject.as_str(), answer.as_ref().err()?)))
        .filter(|(_, error)| error.denied())
        .collect();
    if let Some((_, error)) = denied.first() {
        let subjects: Vec<&str> = denied.iter().map(|(subject, _)| *subject).collect();
        let resource = if call.on_queue() { subjects[0] } else { "*" };
        let on = if subjects[0].is_empty() { String::new() } else { format!(" on {}", few(&subjects)) };
        return area.failure(
            name,
            format!("{action} is not allowed{on}: {}. {}", call.without(), error.message),
            format!(
                "Add this statement to the role's policy. If the policy has a condition on a tag, check that the group carries the tag:\n  \
                 {{\"Effect\": \"Allow\", \"Action\": \"{action}\",\n   \"Resource\": \"{resource}\"}}"
            ),
        );
    }
    match answers.iter().find_map(|trial| trial.answer.as_ref().err().filter(|error| !error.answered())) {
        Some(error) => area.skipped(name, &error.message),
        None => area.ok(name, action),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::gate::Category;
    use crate::commands::doctor::Status;

    fn check(call: TrialCall, answers: &[(&str, Option<Category>)]) -> Check {
        let answer = |category: &Option<Category>| match category {
            None => Ok(()),
            Some(category) => Err(ReadError::new(*category, "refused")),
        };
        let answers = answers.iter();
        let answers = answers.map(|(on, category)| TrialAnswer { subject: (*on).to_owned(), answer: answer(category) });
        judge_trial(&CallTrial { call, answers: answers.collect() })
    }

    #[test]
    fn a_refusal_for_another_reason_is_a_permission() {
        for category in [None, Some(Category::Invalid), Some(Category::NotFound), Some(Category::Conflict)] {
            assert_eq!(check(TrialCall::Complete, &[("a", category)]).status, Status::Ok, "{category:?}");
        }
        for category in
            [Category::TimedOut, Category::Unreachable, Category::Throttled, Category::Unavailable, Category::Expired]
        {
            assert_eq!(check(TrialCall::Delete, &[("q", Some(category))]).status, Status::Skipped, "{category:?}");
        }
    }

    #[test]
    fn one_group_that_is_denied_is_enough() {
        let answers = [("a", Some(Category::Invalid)), ("b", Some(Category::Denied)), ("c", Some(Category::Denied))];
        let denied = check(TrialCall::Heartbeat, &answers);
        assert_eq!((denied.status, denied.name), (Status::Failure, "heartbeat"));
        assert!(denied.found.contains("not allowed on b, c: hooks expire during a drain"), "{}", denied.found);
        assert!(denied.remedy.unwrap().contains("autoscaling:RecordLifecycleActionHeartbeat"));
        let queue = check(TrialCall::Delete, &[("arn:queue", Some(Category::Denied))]);
        assert!(queue.remedy.unwrap().contains("\"Resource\": \"arn:queue\""));
    }
}
