//! The Auto Scaling groups of this cluster's nodes: whether their hooks leave a drain enough time. Pure.

use super::arn::queue_arn;
use super::check::{Area, Check, count, few};
use super::queue_policy::{RoleRefusal, refuses};
use super::readings::{HookConfig, Readings, ScalingGroup, ScalingGroups};
use crate::cli::settings::Settings;
use crate::pipeline::drain::DEFAULT_GRACE;
use crate::pipeline::event::NoticeKind;
use crate::pipeline::interruption::{
    Action, DEFAULT_DRAIN_TIMEOUT, Heartbeats, HookRoom, HookTimes, OnFailed, Policy, WARNING_TIME,
};
use crate::runtime::duration::Words;
use std::time::Duration;

/// Returns the time that a hook leaves a drain, and the time that the settings ask for.
fn room(policy: &Policy, hook: &HookConfig) -> HookRoom {
    let kind = if hook.terminating { NoticeKind::AsgTerminate } else { NoticeKind::AsgLaunch };
    policy.hook_room(kind, HookTimes::of(hook.heartbeat))
}

/// Returns the longest time for which a message may be held.
#[must_use]
pub fn longest_drain(settings: &Settings, readings: &Readings) -> Duration {
    let policy = settings.policy();
    let kinds = [NoticeKind::AsgTerminate, NoticeKind::AsgLaunch].into_iter();
    let hooks = kinds.flat_map(|kind| handled(settings, readings, kind)).map(|(_, hook)| {
        let room = room(policy, hook);
        room.wanted.min(room.limit)
    });
    // A cordon holds its message only while the instance has no Node yet.
    let held = |kind: &NoticeKind| {
        settings.acts_on(*kind, |action| action.drains() || action == Action::Cordon)
            || *kind == NoticeKind::ScheduledChange && !policy.health_issues.is_empty()
    };
    let soft = [NoticeKind::Rebalance, NoticeKind::ScheduledChange].into_iter().filter(held);
    let soft = soft.map(|kind| policy.drain_timeout.of(kind).unwrap_or(DEFAULT_DRAIN_TIMEOUT));
    hooks.chain(soft).max().unwrap_or(WARNING_TIME)
}

/// Returns the hooks of a kind that Ebbtide completes, with their groups.
fn handled<'a>(
    settings: &'a Settings,
    readings: &'a Readings,
    kind: NoticeKind,
) -> impl Iterator<Item = (&'a ScalingGroup, &'a HookConfig)> {
    let action = settings.policy().actions.of(kind);
    let acts = action.drains() || action == Action::Ready;
    hooks(readings, kind).filter(move |(_, hook)| acts && settings.policy().completes(&hook.name))
}

fn hooks(readings: &Readings, kind: NoticeKind) -> impl Iterator<Item = (&ScalingGroup, &HookConfig)> {
    let groups = readings.groups.as_ref().map(|groups| groups.groups.as_slice()).unwrap_or_default();
    let hooks = groups.iter().flat_map(|group| group.hooks.iter().flatten().map(move |hook| (group, hook)));
    hooks.filter(move |(_, hook)| hook.terminating == (kind == NoticeKind::AsgTerminate))
}

/// Whether there is a hook of this kind.
#[must_use]
pub fn any_hook(kind: NoticeKind, readings: &Readings) -> bool {
    hooks(readings, kind).next().is_some()
}

/// Whether every group and every hook is known.
fn all_known(readings: &Readings) -> bool {
    let known = |groups: &ScalingGroups| {
        groups.complete && groups.more == 0 && groups.groups.iter().all(|group| group.hooks.is_ok())
    };
    readings.groups.as_ref().is_ok_and(known)
}

/// Whether there are hooks of this kind, and all of them notify the queue directly.
#[must_use]
pub fn all_direct(kind: NoticeKind, readings: &Readings) -> bool {
    let queue = readings.queue.as_ref().ok().and_then(|attributes| attributes.get("QueueArn"));
    let known = all_known(readings) && any_hook(kind, readings) && queue.is_some();
    known && hooks(readings, kind).all(|(_, hook)| hook.notifies.as_ref() == queue)
}

/// Returns the name of a hook of the group on which lifecycle calls can be tried.
#[must_use]
pub fn trial_hook<'a>(settings: &Settings, group: &'a ScalingGroup) -> Option<&'a str> {
    let mut hooks = group.hooks.iter().flatten();
    hooks.find(|hook| settings.policy().completes(&hook.name)).map(|hook| &*hook.name)
}

/// Judges the groups and their hooks.
#[must_use]
pub fn judge(settings: &Settings, readings: &Readings) -> Vec<Check> {
    let area = Area::Groups;
    let groups = match &readings.groups {
        Ok(groups) => groups,
        Err(error) => return vec![area.unread("groups", error, "autoscaling:DescribeAutoScalingGroups")],
    };
    let mut checks = vec![listed(groups)];
    if settings.acts_on(NoticeKind::AsgTerminate, Action::drains) {
        checks.extend(without_hook(settings, groups));
        let terminating = || handled(settings, readings, NoticeKind::AsgTerminate);
        let judged = terminating().flat_map(|(group, hook)| judge_hook(settings, readings, group, hook));
        let mut found: Vec<Check> = judged.collect();
        found.extend(long_grace(settings, readings));
        let shortest = terminating().map(|(_, hook)| room(settings.policy(), hook).drain).min();
        if let Some(shortest) = shortest.filter(|_| found.is_empty()) {
            let hooks = count(terminating().count(), "terminating hook", "terminating hooks");
            found.push(area.ok("hooks", format!("{hooks}; a drain has at least {}", Words(shortest))));
        }
        checks.extend(found);
    }
    if settings.acts_on(NoticeKind::AsgLaunch, |action| action == Action::Ready) {
        checks.extend(launching(settings, readings));
    }
    checks.extend(rebalancing(groups));
    checks
}

fn listed(groups: &ScalingGroups) -> Check {
    let area = Area::Groups;
    let names: Vec<&str> = groups.groups.iter().map(|group| group.name.as_str()).collect();
    if names.is_empty() && !groups.complete {
        return area.skipped("groups", "The account has more groups than could be listed in time.");
    }
    if names.is_empty() {
        return area.ok("groups", "no Auto Scaling group has a node of this cluster");
    }
    let mut rest = if groups.more > 0 { format!("; {} more were not read", groups.more) } else { String::new() };
    if !groups.complete {
        rest += "; not all groups of the account were listed";
    }
    area.ok("groups", format!("{}: {}{rest}", count(names.len(), "group", "groups"), few(&names)))
}

/// Reports groups that terminate instances without waiting for a drain.
fn without_hook(settings: &Settings, groups: &ScalingGroups) -> Vec<Check> {
    let (area, name) = (Area::Groups, "hook");
    let mut checks = Vec::new();
    let (mut bare, mut rebalanced) = (Vec::new(), false);
    let named = settings.policy().node_hook();
    // Those that complete an ignored hook drain its group: EKS a managed node group.
    let is_others = |hook: &HookConfig| settings.policy().ignored_hooks.contains(&hook.name);
    let drains =
        |hook: &HookConfig| hook.terminating && (named.is_none_or(|name| name == hook.name) || is_others(hook));
    for group in &groups.groups {
        match &group.hooks {
            Err(error) => {
                checks.push(area.unread(name, error, "autoscaling:DescribeLifecycleHooks"));
                // The other groups fail for the same reason.
                break;
            }
            Ok(hooks) if hooks.iter().any(drains) => {}
            Ok(_) => {
                bare.push(group.name.as_str());
                rebalanced |= group.rebalances;
            }
        }
    }
    if !bare.is_empty() {
        let and = if rebalanced { ", and so does capacity rebalancing" } else { "" };
        let timeout = settings.policy().drain_timeout.of(NoticeKind::AsgTerminate).unwrap_or(Duration::from_mins(10));
        let hook = format!(
            "--lifecycle-transition autoscaling:EC2_INSTANCE_TERMINATING \\\n    --default-result CONTINUE --heartbeat-timeout {}",
            timeout.as_secs().clamp(30, 7200)
        );
        checks.push(area.warning(
            name,
            format!(
                "{} without a terminating hook{}: {}. Scaling in terminates their nodes undrained{and}.",
                count(bare.len(), "group is", "groups are"),
                named.map_or_else(String::new, |name| format!(" {name} (--node-hook)")),
                few(&bare)
            ),
            format!("Give each a hook:\n{}", put_hook(bare[0], named.unwrap_or("ebbtide"), &hook)),
        ));
    }
    checks
}

fn put_hook(group: &str, hook: &str, change: &str) -> String {
    format!(
        "  aws autoscaling put-lifecycle-hook --auto-scaling-group-name {group} \\\n    --lifecycle-hook-name {hook} {change}"
    )
}

fn judge_hook(settings: &Settings, readings: &Readings, group: &ScalingGroup, hook: &HookConfig) -> Vec<Check> {
    let named = format!("Hook {} of group {}", hook.name, group.name);
    let retained = kept_instances(settings, group, hook, &named);
    let timeout = judge_timeout(settings, group, hook, &named);
    timeout.into_iter().chain(retained).chain(judge_target(settings, readings, hook, &named)).collect()
}

/// Judges whether the drain timeout and a pod's grace period fit into the hook.
fn judge_timeout(settings: &Settings, group: &ScalingGroup, hook: &HookConfig, named: &str) -> Option<Check> {
    let area = Area::Groups;
    let heartbeats_off = settings.policy().heartbeats == Heartbeats::Off;
    let room = room(settings.policy(), hook);
    let HookRoom { wanted, limit: hook_life, .. } = room;
    let longer = |seconds: u64| {
        put_hook(&group.name, &hook.name, &format!("\\\n    --heartbeat-timeout {}", seconds.clamp(30, 7200)))
    };
    let grace = settings.policy().drain.pod_grace.unwrap_or(DEFAULT_GRACE);
    if wanted > hook_life {
        let why = if heartbeats_off {
            "--heartbeat is off, so the hook ends after its timeout"
        } else {
            "heartbeats keep a hook for 48 h or 100 of its timeouts at most"
        };
        let timeout = if heartbeats_off { wanted.as_secs() } else { wanted.as_secs() / 100 + 1 };
        return Some(area.failure(
            "hook",
            format!("{named} ends after {}, and --drain-timeout is {}: {why}.", Words(hook_life), Words(wanted)),
            format!("Set a longer timeout, or a shorter --drain-timeout:\n{}", longer(timeout)),
        ));
    }
    let left = room.drain_for(grace);
    (left < grace).then(|| {
        let change = if heartbeats_off {
            format!("Set --heartbeat auto, which keeps the hook alive, or a longer timeout:\n{}", longer(600))
        } else {
            "Set --drain-timeout asg-terminate=10m, for which heartbeats keep the hook alive.".to_owned()
        };
        area.failure(
            "hook",
            format!(
                "{named} leaves a drain {}: pods that use their grace period of {} s do not fit.",
                Words(left),
                grace.as_secs()
            ),
            change,
        )
    })
}

/// Reports instances that the group keeps after an abandoned hook.
fn kept_instances(settings: &Settings, group: &ScalingGroup, hook: &HookConfig, named: &str) -> Vec<Check> {
    let area = Area::Groups;
    let mut checks = Vec::new();
    if !hook.continues && group.retains {
        checks.push(area.warning(
            "default-result",
            format!("{named} ends with ABANDON if it is not completed, and the group's instance lifecycle policy then keeps the instance."),
            format!("If the instance should always terminate, set CONTINUE:\n{}", put_hook(&group.name, &hook.name, "--default-result CONTINUE")),
        ));
    }
    if group.retains && settings.policy().on_failed_drain == OnFailed::Abandon {
        checks.push(area.warning(
            "retention",
            format!("Group {} keeps instances whose hook is abandoned, and --on-failed-drain abandon abandons hooks: such instances keep running, and cost money.", group.name),
            "Set --on-failed-drain continue, unless you remove such instances yourself.",
        ));
    }
    checks
}

/// Reports a notification target that is not the queue, or that refuses the hook's role.
fn judge_target(settings: &Settings, readings: &Readings, hook: &HookConfig, named: &str) -> Option<Check> {
    let (target, arn) = (hook.notifies.as_ref()?, queue_arn(readings.queue.as_ref().ok(), &settings.queue_url)?);
    let by_rule = readings.rules.as_ref().is_ok_and(|rules| !rules.rules.is_empty());
    let policy = readings.queue.as_ref().ok().and_then(|attributes| attributes.get("Policy"));
    if let (Some(policy), Some(role)) = (policy, &hook.notifying_role)
        && *target == arn
        && refuses(policy, role, &arn) == RoleRefusal::Refused
    {
        return Some(Area::Groups.failure(
            "target",
            format!("{named} notifies this queue as {role}, which a Deny statement of the queue's policy refuses."),
            format!("Add the role to \"aws:PrincipalArn\" in that statement's ArnNotEquals, or to SenderArns of the stack:\n  {role}"),
        ));
    }
    (*target != arn && !by_rule).then(|| {
        Area::Groups.warning(
            "target",
            format!("{named} notifies {target}, which is not this queue."),
            "Its actions reach this queue only by an EventBridge rule; see the check of rules for asg-terminate.",
        )
    })
}

/// Reports hooks that leave a drain less than the longest grace period of a pod, in one finding for all hooks.
fn long_grace(settings: &Settings, readings: &Readings) -> Option<Check> {
    let longest = readings
        .workloads
        .as_ref()
        .ok()?
        .longest_grace
        .as_ref()
        .filter(|_| settings.policy().drain.pod_grace.is_none())?;
    let rooms = handled(settings, readings, NoticeKind::AsgTerminate)
        .map(|(group, hook)| (format!("{}/{}", group.name, hook.name), room(settings.policy(), hook)));
    let left = |room: &HookRoom| room.drain_for(longest.period);
    let tight = |room: &HookRoom| room.wanted <= room.limit && (DEFAULT_GRACE..longest.period).contains(&left(room));
    let tight: Vec<(String, HookRoom)> = rooms.filter(|(_, room)| tight(room)).collect();
    let shortest = tight.iter().map(|(_, room)| left(room)).min()?;
    let names: Vec<&str> = tight.iter().map(|(name, _)| name.as_str()).collect();
    let hooks = count(names.len(), "hook leaves", "hooks leave");
    Some(Area::Groups.warning(
        "hook",
        format!(
            "{hooks} a drain {}, and {} has a grace period of {}: {}.",
            Words(shortest),
            longest.pod,
            Words(longest.period),
            few(&names)
        ),
        if settings.policy().heartbeats == Heartbeats::Off {
            "Set --heartbeat auto, or a longer heartbeat timeout of each, or a shorter grace period.".to_owned()
        } else {
            format!(
                "Set --drain-timeout asg-terminate={}s, for which heartbeats keep a hook alive, or a shorter grace period.",
                longest.period.as_secs() + 60
            )
        },
    ))
}

fn launching(settings: &Settings, readings: &Readings) -> Vec<Check> {
    let hooks = handled(settings, readings, NoticeKind::AsgLaunch).filter(|(_, hook)| hook.continues);
    hooks
        .map(|(group, hook)| {
            Area::Groups.warning(
                "default-result",
                format!("Launch hook {} of group {} ends with CONTINUE if it is not completed: nodes that are not Ready come into service.", hook.name, group.name),
                format!("If they should not, set ABANDON:\n{}", put_hook(&group.name, &hook.name, "--default-result ABANDON")),
            )
        })
        .collect()
}

fn rebalancing(groups: &ScalingGroups) -> Option<Check> {
    let on: Vec<&str> =
        groups.groups.iter().filter(|group| group.rebalances).map(|group| group.name.as_str()).collect();
    let found = if on.is_empty() {
        "off".to_owned()
    } else {
        format!("on for {}: a replacement is launched before the hook begins", few(&on))
    };
    (!groups.groups.is_empty()).then(|| Area::Groups.ok("rebalancing", found))
}

#[cfg(test)]
mod tests;
