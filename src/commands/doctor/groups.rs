//! Auto Scaling groups that have this cluster's nodes, and their hooks: whether a drain fits into what a hook gives it. Pure.

use super::check::{Area, Check, Read, count, few};
use super::queue;
use super::read::Seen;
use crate::cli::settings::Settings;
use crate::pipeline::event::Kind;
use crate::pipeline::interruption::{Action, DEFAULT_DRAIN_TIMEOUT, Heartbeats, HookRoom, HookTimes, OnFailed, Policy};
use std::time::Duration;

/// The groups of this cluster's nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Groups {
    /// Each that was looked at.
    pub groups: Vec<Group>,
    /// How many there are beside.
    pub more: usize,
    /// Whether all of the account's groups were listed.
    pub all: bool,
}

/// A group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// Whether it replaces spot instances that are at risk.
    pub rebalances: bool,
    /// Whether an instance whose terminating hook is abandoned is kept.
    pub retains: bool,
    /// Its hooks.
    pub hooks: Read<Vec<Hook>>,
}

/// A hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    /// Its name.
    pub name: String,
    /// For instances that go, or (`false`) for those that come.
    pub terminating: bool,
    /// Its heartbeat timeout.
    pub heartbeat: Duration,
    /// Whether an action that nobody completes ends with CONTINUE.
    pub continues: bool,
    /// Whom it tells beside EventBridge.
    pub notifies: Option<String>,
}

/// A pod without a grace period of its own has this.
const GRACE: Duration = Duration::from_secs(30);

fn room(policy: &Policy, hook: &Hook) -> HookRoom {
    let kind = if hook.terminating { Kind::AsgTerminate } else { Kind::AsgLaunch };
    policy.hook_room(kind, HookTimes::of(hook.heartbeat))
}

/// How long a message may be worked on at the longest.
#[must_use]
pub fn longest_drain(settings: &Settings, seen: &Seen) -> Duration {
    let policy = &settings.policy;
    let hooks = [Kind::AsgTerminate, Kind::AsgLaunch].into_iter().flat_map(|kind| acted(settings, seen, kind));
    let hooks = hooks.map(|(_, hook)| {
        let room = room(policy, hook);
        room.wanted.min(room.limit)
    });
    // A cordon is done at once, but for an instance that has no Node yet: that one is waited for until then.
    let held = |kind: &Kind| matches!(policy.actions.of(*kind), Action::Drain | Action::Cordon);
    let soft = [Kind::Rebalance, Kind::ScheduledChange].into_iter().filter(held);
    let soft = soft.map(|kind| policy.drain_timeout.of(kind).unwrap_or(DEFAULT_DRAIN_TIMEOUT));
    hooks.chain(soft).max().unwrap_or(Duration::from_mins(2))
}

/// The hooks of a kind that are ours to complete, with their groups.
fn acted<'a>(settings: &'a Settings, seen: &'a Seen, kind: Kind) -> impl Iterator<Item = (&'a Group, &'a Hook)> {
    let acts = matches!(settings.policy.actions.of(kind), Action::Drain | Action::Ready);
    all(seen, kind).filter(move |(_, hook)| acts && !settings.policy.ignored_hooks.contains(&hook.name))
}

fn all(seen: &Seen, kind: Kind) -> impl Iterator<Item = (&Group, &Hook)> {
    let groups = seen.groups.as_ref().map(|groups| groups.groups.as_slice()).unwrap_or_default();
    let hooks = groups.iter().flat_map(|group| group.hooks.iter().flatten().map(move |hook| (group, hook)));
    hooks.filter(move |(_, hook)| hook.terminating == (kind == Kind::AsgTerminate))
}

/// Whether there is a hook of this kind.
#[must_use]
pub fn any_hook(kind: Kind, seen: &Seen) -> bool {
    all(seen, kind).next().is_some()
}

/// Whether every group and every hook is known.
#[must_use]
pub fn all_known(seen: &Seen) -> bool {
    let known =
        |groups: &Groups| groups.all && groups.more == 0 && groups.groups.iter().all(|group| group.hooks.is_ok());
    seen.groups.as_ref().is_ok_and(known)
}

/// Whether there are hooks of this kind, and all of them notify the queue.
#[must_use]
pub fn all_direct(kind: Kind, seen: &Seen) -> bool {
    let queue = seen.queue.as_ref().ok().and_then(|attributes| attributes.get("QueueArn"));
    let known = all_known(seen) && any_hook(kind, seen) && queue.is_some();
    known && all(seen, kind).all(|(_, hook)| hook.notifies.as_ref() == queue)
}

/// A group and a hook of it with which lifecycle calls can be tried, for each group.
#[must_use]
pub fn to_try(settings: &Settings, groups: &Groups) -> Vec<(String, String)> {
    let ours = |hook: &&Hook| !settings.policy.ignored_hooks.contains(&hook.name);
    let first = |group: &Group| group.hooks.as_ref().ok()?.iter().find(ours).map(|hook| hook.name.clone());
    groups.groups.iter().filter_map(|group| Some((group.name.clone(), first(group)?))).collect()
}

/// What is found of them.
#[must_use]
pub fn judge(settings: &Settings, seen: &Seen) -> Vec<Check> {
    let area = Area::Groups;
    let groups = match &seen.groups {
        Ok(groups) => groups,
        Err(failed) => return vec![area.unread("groups", failed, "autoscaling:DescribeAutoScalingGroups")],
    };
    let mut checks = vec![listed(groups)];
    if settings.policy.actions.of(Kind::AsgTerminate) == Action::Drain {
        checks.extend(hooked(settings, groups));
        let rooms = acted(settings, seen, Kind::AsgTerminate);
        let mut found: Vec<Check> = rooms.flat_map(|(group, hook)| judge_hook(settings, seen, group, hook)).collect();
        let hooks = acted(settings, seen, Kind::AsgTerminate).count();
        found.extend(long_grace(settings, seen));
        if found.is_empty() && hooks > 0 {
            let shortest =
                acted(settings, seen, Kind::AsgTerminate).map(|(_, hook)| room(&settings.policy, hook).drain).min();
            let shortest = humantime::format_duration(shortest.unwrap_or_default());
            found.push(area.ok(
                "hooks",
                format!("{}; a drain has {shortest} at least", count(hooks, "terminating hook", "terminating hooks")),
            ));
        }
        checks.extend(found);
    }
    if settings.policy.actions.of(Kind::AsgLaunch) == Action::Ready {
        checks.extend(launching(settings, seen));
    }
    checks.extend(rebalancing(groups));
    checks
}

fn listed(groups: &Groups) -> Check {
    let area = Area::Groups;
    let looked: Vec<&str> = groups.groups.iter().map(|group| group.name.as_str()).collect();
    if looked.is_empty() && !groups.all {
        return area.skipped("groups", "The account has more groups than could be listed in time.");
    }
    if looked.is_empty() {
        return area.ok("groups", "no Auto Scaling group has a node of this cluster");
    }
    let mut beside = if groups.more > 0 { format!("; {} more were not looked at", groups.more) } else { String::new() };
    if !groups.all {
        beside += "; not all of the account's were listed";
    }
    area.ok("groups", format!("{}: {}{beside}", count(looked.len(), "group", "groups"), few(&looked)))
}

/// Groups whose instances are terminated without asking us.
fn hooked(settings: &Settings, groups: &Groups) -> Vec<Check> {
    let (area, name) = (Area::Groups, "hook");
    let mut checks = Vec::new();
    let (mut bare, mut rebalanced) = (Vec::new(), false);
    for group in &groups.groups {
        match &group.hooks {
            Err(failed) => {
                checks.push(area.unread(name, failed, "autoscaling:DescribeLifecycleHooks"));
                // One for all: they fail for one reason.
                break;
            }
            // A managed node group is drained by EKS itself.
            Ok(hooks) if hooks.iter().any(|hook| hook.terminating) => {}
            Ok(_) => {
                bare.push(group.name.as_str());
                rebalanced |= group.rebalances;
            }
        }
    }
    if !bare.is_empty() {
        let and = if rebalanced { ", and so does capacity rebalancing" } else { "" };
        let timeout = settings.policy.drain_timeout.of(Kind::AsgTerminate).unwrap_or(Duration::from_mins(10));
        checks.push(area.warning(
            name,
            format!("{} without a terminating hook: {}. Scaling in terminates their nodes undrained{and}.", count(bare.len(), "group is", "groups are"), few(&bare)),
            format!(
                "Give each a hook:\n{}",
                put_hook(bare[0], "ebbtide", &format!("--lifecycle-transition autoscaling:EC2_INSTANCE_TERMINATING \\\n    --default-result CONTINUE --heartbeat-timeout {}", timeout.as_secs().clamp(30, 7200)))
            ),
        ));
    }
    checks
}

fn put_hook(group: &str, hook: &str, change: &str) -> String {
    format!(
        "  aws autoscaling put-lifecycle-hook --auto-scaling-group-name {group} \\\n    --lifecycle-hook-name {hook} {change}"
    )
}

fn judge_hook(settings: &Settings, seen: &Seen, group: &Group, hook: &Hook) -> Vec<Check> {
    let area = Area::Groups;
    let named = format!("Hook {} of group {}", hook.name, group.name);
    let mut checks = Vec::new();
    let policy = &settings.policy;
    let HookRoom { wanted, limit: life, drain, .. } = room(policy, hook);
    let [shown_wanted, shown_life, shown_drain] = [wanted, life, drain].map(humantime::format_duration);
    let longer = |seconds: u64| {
        put_hook(&group.name, &hook.name, &format!("\\\n    --heartbeat-timeout {}", seconds.clamp(30, 7200)))
    };
    let grace = settings.pod_grace.unwrap_or(GRACE);
    if wanted > life {
        let why = if policy.heartbeats == Heartbeats::Off {
            "--heartbeat is off, so its timeout is all there is"
        } else {
            "no heartbeat keeps it for longer than 48 h or 100 of its timeouts"
        };
        checks.push(area.failure(
            "hook",
            format!("{named} ends after {shown_life}, and --drain-timeout says {shown_wanted}: {why}."),
            format!(
                "Set a longer timeout, or a shorter --drain-timeout:\n{}",
                longer(if policy.heartbeats == Heartbeats::Off {
                    wanted.as_secs()
                } else {
                    wanted.as_secs() / 100 + 1
                })
            ),
        ));
    } else if drain < grace {
        checks.push(area.failure(
            "hook",
            format!("{named} leaves a drain {shown_drain}: pods that use their grace period of {} s do not fit.", grace.as_secs()),
            format!("Set --drain-timeout asg-terminate=10m, for which heartbeats keep the hook alive, or a longer timeout:\n{}", longer(600)),
        ));
    }
    if !hook.continues && group.retains {
        checks.push(area.warning(
            "default-result",
            format!("{named} ends with ABANDON when nobody completes it, and the group's instance lifecycle policy then keeps the instance."),
            format!("If the instance is to go in any case, set CONTINUE:\n{}", put_hook(&group.name, &hook.name, "--default-result CONTINUE")),
        ));
    }
    if group.retains && policy.on_failed_drain == OnFailed::Abandon {
        checks.push(area.warning(
            "retention",
            format!("Group {} keeps instances whose hook is abandoned, and --on-failed-drain abandon abandons them: they run on, and cost.", group.name),
            "Set --on-failed-drain continue, unless somebody looks after them.",
        ));
    }
    let arn = queue::arn(seen.queue.as_ref().ok(), &settings.queue_url);
    if let (Some(target), Some(arn)) = (&hook.notifies, arn)
        && *target != arn
        && !seen.rules.as_ref().is_ok_and(|rules| !rules.rules.is_empty())
    {
        checks.push(area.warning(
            "target",
            format!("{named} notifies {target}, which is not the queue that is read here."),
            "Its actions reach this queue only by an EventBridge rule; see the check of rules for asg-terminate.",
        ));
    }
    checks
}

/// Hooks that leave a drain less than a pod may take: one finding for all, because one pod is enough for all of them.
fn long_grace(settings: &Settings, seen: &Seen) -> Option<Check> {
    let (pod, most) = seen.workloads.as_ref().ok()?.longest_grace.as_ref().filter(|_| settings.pod_grace.is_none())?;
    let rooms = acted(settings, seen, Kind::AsgTerminate)
        .map(|(group, hook)| (format!("{}/{}", group.name, hook.name), room(&settings.policy, hook)));
    let tight: Vec<_> =
        rooms.filter(|(_, room)| room.wanted <= room.limit && (GRACE..*most).contains(&room.drain)).collect();
    let shortest = humantime::format_duration(tight.iter().map(|(_, room)| room.drain).min()?);
    let names: Vec<&str> = tight.iter().map(|(name, _)| name.as_str()).collect();
    let hooks = count(names.len(), "hook leaves", "hooks leave");
    let grace = humantime::format_duration(*most);
    Some(Area::Groups.warning(
        "hook",
        format!("{hooks} a drain {shortest}, and {pod} has a grace period of {grace}: {}.", few(&names)),
        format!(
            "Set --drain-timeout asg-terminate={}s, for which heartbeats keep a hook alive, or a longer heartbeat timeout of \
             each, or a shorter grace period.",
            most.as_secs() + 60
        ),
    ))
}

fn launching(settings: &Settings, seen: &Seen) -> Vec<Check> {
    let hooks = acted(settings, seen, Kind::AsgLaunch).filter(|(_, hook)| hook.continues);
    hooks
        .map(|(group, hook)| {
            Area::Groups.warning(
                "default-result",
                format!("Launch hook {} of group {} ends with CONTINUE when nobody completes it: nodes that are not Ready come into service.", hook.name, group.name),
                format!("Set ABANDON, if they should not:\n{}", put_hook(&group.name, &hook.name, "--default-result ABANDON")),
            )
        })
        .collect()
}

fn rebalancing(groups: &Groups) -> Option<Check> {
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
