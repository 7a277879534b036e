//! Helpers for drains: pods to add, and the ends of pods.

use crate::harness::{Replica, Stage, instance, node, s};
use ebbtide_sim::aws::HookSpec;
use ebbtide_sim::kube::{By, Evicted, Pod};
use ebbtide_sim::messages::{self, Wrapping};
use std::time::Duration;

pub const CRITICAL: i32 = 2_000_000_000;

pub const DELETE: &str = "delete pods";

pub fn pod(name: &str) -> Pod {
    Pod::on(&node(0)).named(name)
}

/// Returns the names of the pods on the first node.
pub fn left(stage: &Stage) -> Vec<String> {
    let pods = stage.world.kube.pods_on(&node(0)).into_iter();
    let mut names: Vec<_> = pods.filter_map(|pod| pod.metadata.name).collect();
    names.sort();
    names
}

/// Returns the only eviction or deletion of a pod.
pub fn end_of(stage: &Stage, name: &str) -> Evicted {
    let mut ends = stage.ends_of(name);
    assert_eq!(ends.len(), 1, "{name}: {ends:?}\n{}", stage.story());
    ends.remove(0)
}

/// Adds a pod to the first node that uses up the whole grace period that it is given.
pub fn add(stage: &Stage, name: &str, grace: Duration) {
    stage.world.kube.add_pod(Pod::on(&node(0)).named(name).grace(grace).stops_in(None::<Duration>));
}

/// Returns a world of one node with such a pod, `held`, whose budget allows no eviction.
pub fn held(grace: Duration) -> Stage {
    let stage = Stage::new(1, 0);
    add(&stage, "held", grace);
    stage.block(0);
    stage
}

/// Begins to terminate the first node's instance under this hook, and sends the notice. Returns the token.
pub fn terminate(stage: &Stage, hook: &str, timeout: Duration) -> String {
    stage.world.aws.autoscaling.add_hook("group", hook, HookSpec::terminating(timeout));
    let token = stage.world.aws.autoscaling.begin("group", hook, &instance(0));
    let at = stage.world.clock.now();
    let body = messages::lifecycle(Wrapping::Event, true, ("group", hook, &token), &instance(0), at);
    stage.world.aws.sqs.send(body);
    token
}

pub fn rebalance(stage: &Stage, n: usize) -> String {
    let body = messages::rebalance(&format!("rebalance-{n}"), &instance(n), stage.world.clock.now());
    stage.world.aws.sqs.send(body)
}

pub fn deleted(stage: &Stage, message: &str) -> bool {
    stage.world.aws.sqs.deleted().iter().any(|deleted| deleted == message)
}

/// Asserts that a pod was deleted once, after tries to evict it, and that its grace period ended before `deadline`.
/// Returns the grace period.
pub fn deleted_in_time(stage: &Stage, pod: &str, deadline: Duration) -> i64 {
    let (ends, tries) = (stage.ends_of(pod), stage.tries_of(pod));
    let [end] = ends.as_slice() else { panic!("{ends:?}\n{}", stage.story()) };
    let grace = end.grace.expect("a deletion must say how long the pod has");
    assert_eq!(end.by, By::Delete, "{end:?}");
    assert!(tries.first().is_some_and(|first| *first <= end.at), "nobody tried to evict it: {tries:?} {end:?}");
    assert!(grace > 0 && end.at + s(grace.unsigned_abs()) < deadline, "{end:?} for {deadline:?}");
    assert!(!stage.has_pod(pod));
    grace
}

pub fn blocked_pods(replica: &Replica) -> u64 {
    let text = replica.metrics.render(&replica.tasks);
    let value =
        text.lines().find_map(|line| line.strip_prefix("ebbtide_pods_blocked ")).expect("the gauge must be there");
    value.parse().expect("the gauge must be a whole number")
}

pub fn ended(stage: &Stage) -> Vec<(String, u64, Option<i64>, By)> {
    stage
        .world
        .kube
        .evictions()
        .into_iter()
        .map(|Evicted { at, name, grace, by, .. }| (name, at.as_secs(), grace, by))
        .collect()
}
