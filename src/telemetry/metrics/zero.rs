//! Series that begin at 0, because alerts and the dashboard look at them: what a series' first sample counts is no
//! increase to Prometheus.

use super::All;
use prometheus::IntCounterVec;

const HEARTBEATS: [&str; 11] = [
    "sent",
    "over",
    "throttled",
    "denied",
    "not-found",
    "conflict",
    "refused",
    "invalid",
    "unavailable",
    "timed-out",
    "unreachable",
];
const COMPLETIONS: [&str; 6] = ["continue", "abandon", "over", "left", "retried", "failed"];
const MESSAGES: [&str; 5] = ["received", "deleted", "released", "lease-ended", "left"];
const MALFORMED: [&str; 4] = ["not-json", "unknown-shape", "missing-field", "bad-value"];
/// A permission that is missing may be met a few times at once, and then not again for weeks.
const AWS_CALLS: [[&str; 2]; 8] = [
    ["sqs", "ReceiveMessage"],
    ["sqs", "DeleteMessageBatch"],
    ["sqs", "ChangeMessageVisibilityBatch"],
    ["autoscaling", "DescribeAutoScalingInstances"],
    ["autoscaling", "DescribeLifecycleHooks"],
    ["autoscaling", "RecordLifecycleActionHeartbeat"],
    ["autoscaling", "CompleteLifecycleAction"],
    ["ec2", "DescribeInstances"],
];
const KUBE_CALLS: [[&str; 2]; 13] = [
    ["get", "nodes"],
    ["patch", "nodes"],
    ["patch", "nodes/status"],
    ["list", "pods"],
    ["delete", "pods"],
    ["create", "pods/eviction"],
    ["create", "events"],
    ["patch", "events"],
    ["get", "leases"],
    ["list", "leases"],
    ["create", "leases"],
    ["update", "leases"],
    ["delete", "leases"],
];
const DRAINED: [&str; 6] =
    ["asg-terminate", "spot", "rebalance", "state-change", "scheduled-change", "capacity-reservation"];
const DRAINS: [&str; 6] = ["drained", "node-gone", "blocked", "timed-out", "failed", "uncordoned"];

impl All {
    pub(super) fn begin_at_zero(&self) {
        let begin = |counters: &IntCounterVec, words: &[&str]| {
            for word in words {
                let _ = counters.with_label_values(&[word]);
            }
        };
        begin(&self.heartbeats, &HEARTBEATS);
        begin(&self.completions, &COMPLETIONS);
        begin(&self.messages, &MESSAGES);
        begin(&self.messages_malformed, &MALFORMED);
        begin(&self.watch_failures, &["nodes", "pods"]);
        begin(&self.evictions, &["evicted", "refused"]);
        begin(&self.deletions, &["deleted"]);
        for [service, operation] in AWS_CALLS {
            let _ = self.aws_calls.with_label_values(&[service, operation, "denied"]);
        }
        for [verb, resource] in KUBE_CALLS {
            let _ = self.kube_calls.with_label_values(&[verb, resource, "denied"]);
        }
        for kind in DRAINED {
            let _ = self.cordon_delay.with_label_values(&[kind]);
        }
        for receipt in ["first", "again", "often"] {
            let _ = self.message_age.with_label_values(&[receipt]);
        }
        for deadline in ["hard", "soft"] {
            let _ = self.drain_time_left.with_label_values(&[deadline]);
            for outcome in DRAINS {
                let _ = self.drain_duration.with_label_values(&[deadline, outcome]);
            }
        }
    }
}
