//! What AWS is asked, and how.

use super::super::check::Read;
use super::super::credentials::Identity;
use super::super::groups::{Group, Groups, Hook};
use super::super::queue::Attributes;
use super::super::rules::{Rule, Rules};
use super::{Ask, so_far};
use crate::clients::gate::Category;
use crate::pipeline::node::ManagedTag;
use aws_sdk_autoscaling::types::{AutoScalingGroup, LifecycleHook, RetentionAction};
use aws_sdk_eventbridge::types::RuleState;
use aws_sdk_sqs::types::{
    ChangeMessageVisibilityBatchRequestEntry, DeleteMessageBatchRequestEntry, QueueAttributeName,
};
use futures_util::StreamExt;
use futures_util::stream;
use std::collections::HashSet;
use std::time::Duration;

/// So many calls at once: all of the account's calls share a rate.
const AT_ONCE: usize = 5;

/// A lifecycle action token, and a receipt handle, that were never given out.
const NONE: &str = "00000000-0000-0000-0000-000000000000";

/// Asks for each, some at once; the answers come in the order of the questions.
pub fn each<'a, I, T, F: Future<Output = T>>(of: &'a [I], ask: impl FnMut(&'a I) -> F) -> impl Future<Output = Vec<T>> {
    let asked: Vec<F> = of.iter().map(ask).collect();
    stream::iter(asked).buffered(AT_ONCE).collect()
}

pub async fn identity(ask: &Ask) -> Read<Identity> {
    let request = ask.clients()?.sts.get_caller_identity();
    let answer = ask.aws(("sts", "GetCallerIdentity"), "the caller", || request.send()).await?;
    Ok(Identity { account: answer.account.unwrap_or_default(), arn: answer.arn.unwrap_or_default() })
}

pub async fn attributes(ask: &Ask, url: &str) -> Read<Attributes> {
    let request = ask.clients()?.sqs.get_queue_attributes().queue_url(url).attribute_names(QueueAttributeName::All);
    let answer = ask.aws(("sqs", "GetQueueAttributes"), url, || request.send()).await?;
    let attributes = answer.attributes.unwrap_or_default().into_iter();
    Ok(attributes.map(|(name, value)| (name.as_str().to_owned(), value)).collect())
}

/// A batch answers for each entry: that ours fails is what is meant. An entry that has all it needs can't be refused by its builder.
pub async fn delete(ask: &Ask, url: &str) -> Read<()> {
    let entry = DeleteMessageBatchRequestEntry::builder().id("none").receipt_handle(NONE).build().ok();
    let request = ask.clients()?.sqs.delete_message_batch().queue_url(url).set_entries(entry.map(|entry| vec![entry]));
    ask.aws(("sqs", "DeleteMessage"), url, || request.send()).await.map(drop)
}

pub async fn extend(ask: &Ask, url: &str) -> Read<()> {
    let entry =
        ChangeMessageVisibilityBatchRequestEntry::builder().id("none").receipt_handle(NONE).visibility_timeout(30);
    let entries = entry.build().ok().map(|entry| vec![entry]);
    let request = ask.clients()?.sqs.change_message_visibility_batch().queue_url(url).set_entries(entries);
    ask.aws(("sqs", "ChangeMessageVisibility"), url, || request.send()).await.map(drop)
}

pub async fn instances(ask: &Ask) -> Read<()> {
    let request = ask.clients()?.ec2.describe_instances().dry_run(true);
    ask.aws(("ec2", "DescribeInstances"), "any instance", || request.send()).await.map(drop)
}

/// The rules whose target the queue is. Services send their events to the default bus.
pub async fn rules(ask: &Ask, arn: &str) -> Read<Rules> {
    let mut names = Vec::new();
    let mut next = None;
    let mut all = false;
    for page in 0.. {
        let request = ask.clients()?.eventbridge.list_rule_names_by_target().target_arn(arn).set_next_token(next);
        let asked = ask.aws(("events", "ListRuleNamesByTarget"), arn, || request.send()).await;
        let Some(answer) = so_far(page, asked)? else { break };
        names.extend(answer.rule_names.unwrap_or_default());
        next = answer.next_token;
        all = next.is_none() && names.len() <= ask.extent.rules;
        if next.is_none() || names.len() > ask.extent.rules {
            break;
        }
    }
    names.truncate(ask.extent.rules);
    let (mut rules, mut unread) = (Vec::new(), None);
    for described in each(&names, |name| rule(ask, name)).await {
        match described {
            Ok(rule) => rules.push(rule),
            // One that was taken away meanwhile, or that our policy leaves out, says nothing of the others.
            Err(failed) => unread = unread.or(Some(failed)),
        }
    }
    match unread {
        Some(failed) if rules.is_empty() => Err(failed),
        unread => Ok(Rules { all: all && unread.is_none(), rules, unread }),
    }
}

async fn rule(ask: &Ask, name: &str) -> Read<Rule> {
    let request = ask.clients()?.eventbridge.describe_rule().name(name);
    let answer = ask.aws(("events", "DescribeRule"), name, || request.send()).await?;
    Ok(Rule {
        name: name.to_owned(),
        arn: answer.arn.unwrap_or_default(),
        enabled: answer.state != Some(RuleState::Disabled),
        pattern: answer.event_pattern,
    })
}

/// The groups that have one of these instances, or whose instances carry the managed tag.
pub async fn groups(ask: &Ask, tag: &ManagedTag, instances: &HashSet<&str>) -> Read<Groups> {
    let mut found = Vec::new();
    let (mut next, mut all) = (None, true);
    for page in 0.. {
        if page == ask.extent.pages {
            all = false;
            break;
        }
        let request = ask.clients()?.autoscaling.describe_auto_scaling_groups().max_records(100).set_next_token(next);
        let asked = ask.aws(("autoscaling", "DescribeAutoScalingGroups"), "all groups", || request.send()).await;
        let Some(answer) = so_far(page, asked)? else {
            all = false;
            break;
        };
        let groups = answer.auto_scaling_groups.unwrap_or_default();
        found.extend(groups.into_iter().filter(|group| is_ours(group, tag, instances)));
        next = answer.next_token.filter(|token| !token.is_empty());
        if next.is_none() {
            break;
        }
    }
    let more = found.len().saturating_sub(ask.extent.groups);
    found.truncate(ask.extent.groups);
    let names: Vec<String> =
        found.iter().map(|group| group.auto_scaling_group_name.clone().unwrap_or_default()).collect();
    let hooks = each(&names, |name| hooks(ask, name)).await;
    let groups = found.iter().zip(names.iter().cloned()).zip(hooks);
    let groups = groups.map(|((group, name), hooks)| Group {
        name,
        rebalances: group.capacity_rebalance.unwrap_or_default(),
        retains: retains(group),
        hooks,
    });
    Ok(Groups { groups: groups.collect(), more, all })
}

fn is_ours(group: &AutoScalingGroup, tag: &ManagedTag, instances: &HashSet<&str>) -> bool {
    let has = group.instances().iter().filter_map(|instance| instance.instance_id());
    // A tag without a value of this cluster's own says nothing of which cluster's it is; one with says it of an empty group, too.
    let tagged = tag.value.is_some()
        && group.tags().iter().any(|found| found.key() == Some(&tag.key) && found.value() == tag.value.as_deref());
    tagged || has.into_iter().any(|id| instances.contains(id))
}

fn retains(group: &AutoScalingGroup) -> bool {
    let triggers = group.instance_lifecycle_policy().and_then(|policy| policy.retention_triggers());
    triggers.and_then(|triggers| triggers.terminate_hook_abandon()) == Some(&RetentionAction::Retain)
}

async fn hooks(ask: &Ask, group: &str) -> Read<Vec<Hook>> {
    let request = ask.clients()?.autoscaling.describe_lifecycle_hooks().auto_scaling_group_name(group);
    let answer = ask.aws(("autoscaling", "DescribeLifecycleHooks"), group, || request.send()).await?;
    Ok(answer.lifecycle_hooks.unwrap_or_default().into_iter().map(hook).collect())
}

fn hook(hook: LifecycleHook) -> Hook {
    // AWS's default, where it says none.
    let heartbeat = hook.heartbeat_timeout.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or(3600);
    Hook {
        name: hook.lifecycle_hook_name.unwrap_or_default(),
        terminating: hook.lifecycle_transition.as_deref() == Some("autoscaling:EC2_INSTANCE_TERMINATING"),
        heartbeat: Duration::from_secs(heartbeat),
        continues: hook.default_result.as_deref() == Some("CONTINUE"),
        notifies: hook.notification_target_arn.filter(|arn| !arn.is_empty()),
    }
}

pub async fn heartbeat(ask: &Ask, group: &str, hook: &str) -> Read<()> {
    let request = ask.clients()?.autoscaling.record_lifecycle_action_heartbeat();
    let request = request.auto_scaling_group_name(group).lifecycle_hook_name(hook).lifecycle_action_token(NONE);
    refused(ask.aws(("autoscaling", "RecordLifecycleActionHeartbeat"), group, || request.send()).await)
}

pub async fn complete(ask: &Ask, group: &str, hook: &str) -> Read<()> {
    let request = ask.clients()?.autoscaling.complete_lifecycle_action();
    let request = request.auto_scaling_group_name(group).lifecycle_hook_name(hook).lifecycle_action_token(NONE);
    let request = request.lifecycle_action_result("CONTINUE");
    refused(ask.aws(("autoscaling", "CompleteLifecycleAction"), group, || request.send()).await)
}

/// That there is no such action is the answer that is meant.
fn refused<T>(answer: Read<T>) -> Read<()> {
    match answer {
        Err(failed) if failed.category != Category::Invalid => Err(failed),
        _ => Ok(()),
    }
}
