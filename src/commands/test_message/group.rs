//! The Auto Scaling group and the hook of an instance. The service reads them from messages; a test message needs them looked up.

use crate::clients::gate;
use crate::clients::gate::{AwsError, CALL_TIMEOUT, Operation};
use crate::fact::Facts;
use aws_sdk_autoscaling::Client;

/// A group and one of its hooks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupHook {
    /// The group's name.
    pub group: String,
    /// The hook's name.
    pub hook: String,
}

/// Returns the first hook for terminations, or for launches, of the instance's group, except `ignored` hooks. Returns `None` without a
/// group or such a hook.
///
/// # Errors
/// The error of the call.
pub async fn hook_of_instance(
    client: &Client,
    facts: &Facts,
    instance: &str,
    terminating: bool,
    ignored: &[String],
) -> Result<Option<GroupHook>, AwsError> {
    let request = client.describe_auto_scaling_instances().instance_ids(instance);
    let operation = Operation::new("autoscaling", "DescribeAutoScalingInstances");
    let answer = gate::aws(facts, operation, instance, CALL_TIMEOUT, || request.send()).await?;
    let found = answer.auto_scaling_instances.unwrap_or_default().into_iter().next();
    let Some(group) = found.and_then(|found| found.auto_scaling_group_name) else { return Ok(None) };
    let request = client.describe_lifecycle_hooks().auto_scaling_group_name(&group);
    let operation = Operation::new("autoscaling", "DescribeLifecycleHooks");
    let answer = gate::aws(facts, operation, &group, CALL_TIMEOUT, || request.send()).await?;
    let wanted =
        if terminating { "autoscaling:EC2_INSTANCE_TERMINATING" } else { "autoscaling:EC2_INSTANCE_LAUNCHING" };
    let of_kind =
        |hook: &aws_sdk_autoscaling::types::LifecycleHook| hook.lifecycle_transition.as_deref() == Some(wanted);
    let others = |hook: &aws_sdk_autoscaling::types::LifecycleHook| {
        hook.lifecycle_hook_name.as_ref().is_some_and(|name| ignored.contains(name))
    };
    let hook = answer.lifecycle_hooks.unwrap_or_default().into_iter().find(|hook| of_kind(hook) && !others(hook));
    Ok(hook.and_then(|hook| hook.lifecycle_hook_name).map(|hook| GroupHook { group, hook }))
}
