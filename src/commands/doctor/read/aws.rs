//! Reads from AWS.

use super::super::check::few;
use super::super::event_pattern::CommonPattern;
use super::super::readings::{
    CallerIdentity, EventRule, EventRules, HookConfig, MetadataOptions, NodeInstance, QueueAttributes, Reading,
    ScalingGroup, ScalingGroups, SentEvent,
};
use super::{Probe, page_in_time};
use crate::clients::gate::Operation;
use crate::pipeline::event::InstanceId;
use crate::pipeline::interruption::read_group;
use crate::pipeline::node::{ManagedTag, by_id, clusters_in, instances_in};
use aws_sdk_autoscaling::types::{AutoScalingGroup, LifecycleHook, RetentionAction};
use aws_sdk_ec2::types::{HttpTokensState, InstanceMetadataEndpointState, InstanceMetadataOptionsResponse};
use aws_sdk_eventbridge::types::RuleState;
use aws_sdk_sqs::types::QueueAttributeName;
use futures_util::StreamExt;
use futures_util::stream;
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// Maximum number of simultaneous calls: all calls of the account share a rate limit.
const MAX_CONCURRENT: usize = 5;

/// Makes a call for each item, several at once. The answers have the order of the items.
pub fn each<'a, I, T, F: Future<Output = T>>(
    items: &'a [I],
    call: impl FnMut(&'a I) -> F,
) -> impl Future<Output = Vec<T>> {
    let calls: Vec<F> = items.iter().map(call).collect();
    stream::iter(calls).buffered(MAX_CONCURRENT).collect()
}

pub async fn identity(probe: &Probe) -> Reading<CallerIdentity> {
    let request = probe.clients()?.sts.get_caller_identity();
    let answer = probe.aws(Operation::new("sts", "GetCallerIdentity"), "the caller", || request.send()).await?;
    Ok(CallerIdentity { account: answer.account.unwrap_or_default(), arn: answer.arn.unwrap_or_default() })
}

pub async fn attributes(probe: &Probe, url: &str) -> Reading<QueueAttributes> {
    let request = probe.clients()?.sqs.get_queue_attributes().queue_url(url).attribute_names(QueueAttributeName::All);
    let answer = probe.aws(Operation::new("sqs", "GetQueueAttributes"), url, || request.send()).await?;
    let attributes = answer.attributes.unwrap_or_default().into_iter();
    Ok(attributes.map(|(name, value)| (name.as_str().to_owned(), value)).collect())
}

/// Maximum number of instances in one call: of the values of a filter.
const MAX_DESCRIBED: usize = 200;

/// Returns EC2's descriptions of these instances, in their order; an empty one of an instance that EC2 does not know.
pub async fn described(probe: &Probe, instances: &[InstanceId]) -> Reading<Vec<NodeInstance>> {
    let parts: Vec<&[InstanceId]> = instances.chunks(MAX_DESCRIBED).collect();
    let mut found = HashMap::new();
    for part in each(&parts, |part| describe(probe, part)).await {
        found.extend(part?.into_iter().map(|instance| (instance.id.clone(), instance)));
    }
    let ids = instances.iter().map(ToString::to_string);
    Ok(ids.map(|id| found.remove(&id).unwrap_or(NodeInstance { id, ..NodeInstance::default() })).collect())
}

async fn describe(probe: &Probe, instances: &[InstanceId]) -> Reading<Vec<NodeInstance>> {
    let ids: Vec<String> = instances.iter().map(ToString::to_string).collect();
    let subject = few(&ids);
    let request = probe.clients()?.ec2.describe_instances().filters(by_id(ids));
    let answer = probe.aws(Operation::new("ec2", "DescribeInstances"), &subject, || request.send()).await?;
    let found = instances_in(answer).map(|found| NodeInstance {
        id: found.instance_id().unwrap_or_default().to_owned(),
        clusters: clusters_in(found.tags()),
        metadata: found.metadata_options().and_then(metadata_options),
    });
    Ok(found.collect())
}

/// Returns the reach of the metadata service's answers, if EC2 reports all of it.
fn metadata_options(options: &InstanceMetadataOptionsResponse) -> Option<MetadataOptions> {
    Some(MetadataOptions {
        on: *options.http_endpoint()? == InstanceMetadataEndpointState::Enabled,
        without_token: *options.http_tokens()? == HttpTokensState::Optional,
        hop_limit: options.http_put_response_hop_limit()?,
    })
}

/// Reads the rules whose target is the queue, on the default bus, which gets the events of AWS services, and tries each on these events.
pub async fn rules(probe: &Probe, arn: &str, events: &[Value]) -> Reading<EventRules> {
    let mut names = Vec::new();
    let mut next = None;
    let mut complete = false;
    for page in 0.. {
        let request = probe.clients()?.eventbridge.list_rule_names_by_target().target_arn(arn).set_next_token(next);
        let answer = probe.aws(Operation::new("events", "ListRuleNamesByTarget"), arn, || request.send()).await;
        let Some(answer) = page_in_time(page, answer)? else { break };
        names.extend(answer.rule_names.unwrap_or_default());
        next = answer.next_token;
        complete = next.is_none() && names.len() <= probe.extent.rules;
        if next.is_none() || names.len() > probe.extent.rules {
            break;
        }
    }
    names.truncate(probe.extent.rules);
    let (mut rules, mut unread) = (Vec::new(), None);
    for described in each(&names, |name| rule(probe, name, events)).await {
        match described {
            Ok(rule) => rules.push(rule),
            // A rule that was deleted meanwhile, or that our IAM policy excludes, does not affect the others.
            Err(error) => unread = unread.or(Some(error)),
        }
    }
    let unread = unread.or_else(|| rules.iter().find_map(|rule| rule.sends.clone().err()));
    Ok(EventRules { complete: complete && unread.is_none(), rules, unread })
}

/// Reads a rule, and tries it on these events.
async fn rule(probe: &Probe, name: &str, events: &[Value]) -> Reading<EventRule> {
    let request = probe.clients()?.eventbridge.describe_rule().name(name);
    let answer = probe.aws(Operation::new("events", "DescribeRule"), name, || request.send()).await?;
    Ok(EventRule {
        name: name.to_owned(),
        arn: answer.arn.unwrap_or_default(),
        enabled: answer.state != Some(RuleState::Disabled),
        // A schedule has no pattern.
        sends: sent(probe, name, answer.event_pattern.as_deref().unwrap_or_default(), events).await,
    })
}

/// Returns those of the events that the rule's pattern matches. The calls are made one by one, until one fails.
async fn sent(probe: &Probe, rule: &str, pattern: &str, events: &[Value]) -> Reading<Vec<SentEvent>> {
    let mut sent = Vec::new();
    for event in events {
        let Some(CommonPattern { pattern, narrows }) = CommonPattern::of(pattern, event) else { continue };
        if matches(probe, rule, event, &pattern).await? {
            sent.push(SentEvent { event: event.clone(), narrows });
        }
    }
    Ok(sent)
}

/// Asks EventBridge whether the pattern of a rule matches an event.
async fn matches(probe: &Probe, rule: &str, event: &Value, pattern: &Value) -> Reading<bool> {
    // EventBridge demands these fields. The pattern has no condition on them.
    let mut event = event.clone();
    for (field, value) in
        [("id", "0"), ("account", "000000000000"), ("time", "1970-01-01T00:00:00Z"), ("region", "us-east-1")]
    {
        event[field] = value.into();
    }
    event["resources"] = Value::Array(Vec::new());
    let request = probe.clients()?.eventbridge.test_event_pattern();
    let request = request.event_pattern(pattern.to_string()).event(event.to_string());
    let answer = probe.aws(Operation::new("events", "TestEventPattern"), rule, || request.send()).await?;
    Ok(answer.result)
}

/// Reads the groups that have one of these instances, or that carry the managed tag.
pub async fn groups(probe: &Probe, tag: &ManagedTag, instances: &HashSet<&str>) -> Reading<ScalingGroups> {
    let mut found = Vec::new();
    let (mut next, mut complete) = (None, true);
    for page in 0.. {
        if page == probe.extent.pages {
            complete = false;
            break;
        }
        let request = probe.clients()?.autoscaling.describe_auto_scaling_groups().max_records(100).set_next_token(next);
        let answer = probe
            .aws(Operation::new("autoscaling", "DescribeAutoScalingGroups"), "all groups", || request.send())
            .await;
        let Some(answer) = page_in_time(page, answer)? else {
            complete = false;
            break;
        };
        let groups = answer.auto_scaling_groups.unwrap_or_default();
        found.extend(groups.into_iter().filter(|group| is_ours(group, tag, instances)));
        next = answer.next_token.filter(|token| !token.is_empty());
        if next.is_none() {
            break;
        }
    }
    let more = found.len().saturating_sub(probe.extent.groups);
    found.truncate(probe.extent.groups);
    let names: Vec<String> =
        found.iter().map(|group| group.auto_scaling_group_name.clone().unwrap_or_default()).collect();
    let hooks = each(&names, |name| hooks(probe, name)).await;
    let groups = found.iter().zip(names.iter().cloned()).zip(hooks);
    let groups = groups.map(|((group, name), hooks)| ScalingGroup {
        name,
        rebalances: group.capacity_rebalance.unwrap_or_default(),
        retains: retains(group),
        state: read_group(group),
        target_groups: group.target_group_arns().to_vec(),
        hooks,
    });
    Ok(ScalingGroups { groups: groups.collect(), more, complete })
}

fn is_ours(group: &AutoScalingGroup, tag: &ManagedTag, instances: &HashSet<&str>) -> bool {
    let has = group.instances().iter().filter_map(|instance| instance.instance_id());
    // Only a tag with a value distinguishes clusters. It also finds groups without instances.
    let tagged = tag.value.is_some()
        && group.tags().iter().any(|found| found.key() == Some(&tag.key) && found.value() == tag.value.as_deref());
    tagged || has.into_iter().any(|id| instances.contains(id))
}

fn retains(group: &AutoScalingGroup) -> bool {
    let triggers = group.instance_lifecycle_policy().and_then(|policy| policy.retention_triggers());
    triggers.and_then(|triggers| triggers.terminate_hook_abandon()) == Some(&RetentionAction::Retain)
}

async fn hooks(probe: &Probe, group: &str) -> Reading<Vec<HookConfig>> {
    let request = probe.clients()?.autoscaling.describe_lifecycle_hooks().auto_scaling_group_name(group);
    let answer = probe.aws(Operation::new("autoscaling", "DescribeLifecycleHooks"), group, || request.send()).await?;
    Ok(answer.lifecycle_hooks.unwrap_or_default().into_iter().map(hook).collect())
}

fn hook(hook: LifecycleHook) -> HookConfig {
    // One hour is AWS's default.
    let heartbeat = hook.heartbeat_timeout.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or(3600);
    HookConfig {
        name: hook.lifecycle_hook_name.unwrap_or_default(),
        terminating: hook.lifecycle_transition.as_deref() == Some("autoscaling:EC2_INSTANCE_TERMINATING"),
        heartbeat: Duration::from_secs(heartbeat),
        continues: hook.default_result.as_deref() == Some("CONTINUE"),
        notifies: hook.notification_target_arn.filter(|arn| !arn.is_empty()),
        notifying_role: hook.role_arn.filter(|arn| !arn.is_empty()),
    }
}
