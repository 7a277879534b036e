//! Series that begin at 0, because alerts and the dashboard use them: for Prometheus, the first sample of a series is no increase.

use super::All;
use crate::fact::{
    Category, CompletionResult, DeadlineType, DrainOutcome, HeartbeatResult, HookFailure, MalformedReason,
    MessageCount, NoticeKind, NotificationResult, ReceiveOrder, Unusual, WatchedResource, label,
};
use prometheus::IntCounterVec;

/// Calls that may be denied. A missing permission may be met a few times at once, and then not again for weeks.
const AWS_CALLS: [[&str; 2]; 18] = [
    ["sqs", "ReceiveMessage"],
    ["sqs", "DeleteMessageBatch"],
    ["sqs", "ChangeMessageVisibilityBatch"],
    ["autoscaling", "DescribeAutoScalingInstances"],
    ["autoscaling", "DescribeAutoScalingGroups"],
    ["autoscaling", "DescribeLifecycleHooks"],
    ["autoscaling", "SetInstanceHealth"],
    ["autoscaling", "RecordLifecycleActionHeartbeat"],
    ["autoscaling", "CompleteLifecycleAction"],
    ["ec2", "DescribeInstances"],
    ["ec2", "DescribeInstanceStatus"],
    ["ec2", "DescribeSpotInstanceRequests"],
    ["ec2", "DescribeCapacityReservations"],
    ["ec2", "RebootInstances"],
    ["elasticloadbalancing", "DescribeTargetGroups"],
    ["elasticloadbalancing", "DescribeTags"],
    ["elasticloadbalancing", "DescribeTargetHealth"],
    ["elasticloadbalancing", "DeregisterTargets"],
];
const KUBE_CALLS: [[&str; 2]; 20] = [
    ["get", "nodes"],
    ["patch", "nodes"],
    ["patch", "nodes/status"],
    ["delete", "nodes"],
    ["list", "pods"],
    ["delete", "pods"],
    ["patch", "pods/status"],
    ["create", "pods/eviction"],
    ["get", "persistentvolumeclaims"],
    ["list", "targetgroupbindings"],
    ["get", "replicasets"],
    ["get", "deployments"],
    ["patch", "deployments"],
    ["create", "events"],
    ["patch", "events"],
    ["get", "leases"],
    ["list", "leases"],
    ["create", "leases"],
    ["update", "leases"],
    ["delete", "leases"],
];

impl All {
    pub(super) fn begin_at_zero(&self) {
        begin(&self.heartbeats, HeartbeatResult::labels());
        begin(&self.completions, CompletionResult::ALL.map(CompletionResult::as_str));
        begin(&self.completions, HookFailure::ALL.map(HookFailure::as_str));
        begin(&self.messages, MessageCount::ALL.map(MessageCount::as_str));
        begin(&self.messages_malformed, MalformedReason::ALL.map(MalformedReason::as_str));
        begin(&self.watch_failures, WatchedResource::ALL.map(WatchedResource::as_str));
        begin(&self.evictions, [Ok(()), Err(Category::Refused)].map(|result| label(result, "evicted")));
        begin(&self.notifications, NotificationResult::ALL.map(NotificationResult::as_str));
        begin(&self.unusual, Unusual::ALL.map(Unusual::as_str));
        begin(&self.traces, ["sent", "lost"]);
        begin(&self.deletions, [label(Ok(()), "deleted")]);
        for [service, operation] in AWS_CALLS {
            let _ = self.aws_calls.with_label_values(&[service, operation, Category::Denied.as_str()]);
        }
        for [verb, resource] in KUBE_CALLS {
            let _ = self.kube_calls.with_label_values(&[verb, resource, Category::Denied.as_str()]);
        }
        for kind in NoticeKind::ALL.into_iter().filter(|kind| *kind != NoticeKind::AsgLaunch) {
            let _ = self.cordon_delay.with_label_values(&[kind.as_str()]);
        }
        for receive in ReceiveOrder::ALL {
            let _ = self.message_age.with_label_values(&[receive.as_str()]);
        }
        for deadline in DeadlineType::ALL.map(DeadlineType::as_str) {
            let _ = self.drain_time_left.with_label_values(&[deadline]);
            for outcome in DrainOutcome::ALL {
                let _ = self.drain_duration.with_label_values(&[deadline, outcome.as_str()]);
            }
        }
    }
}

fn begin(counters: &IntCounterVec, values: impl IntoIterator<Item = &'static str>) {
    for value in values {
        let _ = counters.with_label_values(&[value]);
    }
}
