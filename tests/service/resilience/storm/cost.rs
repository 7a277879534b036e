//! Calls that a storm of notices costs.

use crate::harness::{Stage, instance, node, s};
use crate::resilience::storm::busy::{
    EVICT, LIST, PATCH, RECEIVE, all_evicted_once, batched, busy, calls_to, ms, share,
};
use ebbtide::fact::TaskKind;
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::Pod;
use ebbtide_sim::messages::{self, Wrapping};
use std::collections::{BTreeMap, BTreeSet};
use tokio::time::sleep;

#[tokio::test(start_paused = true)]
async fn every_spot_notice_costs_no_more_than_alone() {
    // The promise is for several hundred; 300 suffice.
    let (nodes, pods) = (300, 2);
    let stage = busy(nodes, pods);
    let replica = stage.start(&[]).await;
    sleep(s(1)).await;
    let (before, begun) = (calls_to(&stage, "kube"), stage.world.clock.elapsed());
    for n in 0..nodes {
        stage.spot(n);
    }
    stage.until_handled(s(60)).await;
    assert_eq!(calls_to(&stage, "kube") - before, nodes * (pods + 3), "{}", stage.story());
    let asked = calls_to(&stage, "ec2") + calls_to(&stage, "autoscaling");
    assert!(asked <= 8, "{asked} calls confirm what is beyond a quarter of the nodes");
    batched(&stage, nodes, begun);
    replica.all_ended("spot", &[("drained", nodes)]);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn drains_that_end_one_by_one_are_acknowledged_in_batches() {
    let nodes = 300;
    let stage = busy(nodes, 0);
    for n in 0..nodes {
        let takes = ms(200 * n as u64);
        stage.world.kube.add_pod(Pod::on(&node(n)).named(&format!("web-{n}-0")).grace(s(90)).stops_in(takes));
    }
    let replica = stage.start(&[]).await;
    let begun = stage.world.clock.elapsed();
    for n in 0..nodes {
        stage.spot(n);
    }
    stage.until_handled(s(110)).await;
    batched(&stage, nodes, begun);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_lifecycle_notice_costs_one_completion_more() {
    let (nodes, pods) = (250, 1);
    let stage = busy(nodes, 0);
    for n in 0..nodes {
        stage.world.kube.add_pod(Pod::on(&node(n)).named(&format!("web-{n}-0")).grace(s(90)).stops_in(s(45)));
    }
    let replica = stage.start(&[]).await;
    sleep(s(1)).await;
    let (before, begun) = (calls_to(&stage, "kube"), stage.world.clock.elapsed());
    for n in 0..nodes {
        stage.terminate(n, s(300), Wrapping::Event);
    }
    stage.until_handled(s(100)).await;
    assert_eq!(calls_to(&stage, "kube") - before, nodes * (pods + 3), "{}", stage.story());
    let calls =
        ["DescribeLifecycleHooks", "CompleteLifecycleAction", "RecordLifecycleActionHeartbeat", "DescribeInstances"];
    assert_eq!(calls.map(|operation| stage.calls(operation)), [1, nodes, 0, 0]);
    batched(&stage, nodes, begun);
    stage.rest(&[&replica]).await;
}

/// Returns the number of calls of an operation for each subject.
fn of_each(stage: &Stage, operation: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for call in stage.world.calls.of(operation) {
        *counts.entry(call.subject).or_default() += 1;
    }
    counts
}

/// The other drains are blocked by budgets, under hooks with heartbeats, for instances of other clusters, or copies.
#[tokio::test(start_paused = true)]
async fn an_undisturbed_drain_costs_the_same_whatever_else_goes_on() {
    let (nodes, pods) = (120, 3);
    let stage = busy(nodes, pods);
    let blocked = (0..nodes).filter(|n| n % 4 == 1);
    blocked.for_each(|n| stage.block(n));
    let replica = stage.start(&[]).await;
    for n in 0..nodes {
        match n % 4 {
            0 | 1 => drop(stage.spot(n)),
            2 => drop(stage.terminate(n, s(60), Wrapping::Event)),
            _ => {
                stage.world.aws.sqs.send("{}");
                // An instance of no cluster.
                stage.spot(nodes + n);
                // A node that another notice drains.
                let at = stage.world.clock.now();
                stage.world.aws.sqs.send(messages::state_change(
                    &format!("state-{n}"),
                    &instance(n - 1),
                    "shutting-down",
                    at,
                ));
            }
        }
    }
    stage.until_handled(s(130)).await;
    let [patches, lists, evictions] = [PATCH, LIST, EVICT].map(|operation| of_each(&stage, operation));
    for n in (0..nodes).step_by(4) {
        let evictions = (0..pods).map(|pod| evictions[&format!("default/web-{n}-{pod}")]);
        assert_eq!((patches[&node(n)], lists[&node(n)], evictions.collect::<Vec<_>>()), (1, 2, vec![1; pods]), "{n}");
    }
    assert_eq!(["get nodes", "get pods"].map(|operation| stage.calls(operation)), [0, 0]);
    stage.rest(&[&replica]).await;
}

/// Runs a storm of lifecycle notices, `copies` of each, of which some are delivered more than once. Returns the numbers of calls
/// to the API server, Auto Scaling and SQS, and the number of deliveries.
async fn with_copies(nodes: usize, copies: usize, redelivered: f64) -> [usize; 4] {
    let stage = busy(nodes, 2);
    stage.world.aws.sqs.duplicate_chance(redelivered);
    let replica = stage.start(&[]).await;
    let tokens: Vec<_> = (0..nodes).map(|n| stage.terminate(n, s(300), Wrapping::Event)).collect();
    for _ in 1..copies {
        for (n, token) in tokens.iter().enumerate() {
            stage.send_terminate(n, token, Wrapping::Event);
        }
    }
    stage.until_handled(s(60)).await;
    for token in &tokens {
        stage.completed_once(token);
    }
    all_evicted_once(&stage, nodes, 2);
    assert_eq!(replica.tasks.started(TaskKind::Interruption), nodes as u64);
    let received = stage.world.aws.sqs.receive_log().len();
    let counts = ["kube", "autoscaling", "sqs"].map(|service| calls_to(&stage, service));
    stage.rest(&[&replica]).await;
    [counts[0], counts[1], counts[2], received]
}

#[tokio::test(start_paused = true)]
async fn copies_cost_only_their_receipts() {
    let nodes = 80;
    let [kube, autoscaling, sqs, _] = with_copies(nodes, 1, 0.0).await;
    let [kube_10, autoscaling_10, sqs_10, received] = with_copies(nodes, 10, 0.2).await;
    assert!(received > nodes * 11, "some came twice: {received}");
    assert_eq!((kube_10, autoscaling_10), (kube, autoscaling));
    assert!(sqs_10 <= share(received, 25), "{sqs_10} calls for {received} deliveries");
    assert!(autoscaling_10 + sqs_10 < 10 * (autoscaling + sqs) / 2, "{autoscaling_10} {sqs_10} {autoscaling} {sqs}");
}

#[tokio::test(start_paused = true)]
async fn two_replicas_share_a_storm() {
    let (nodes, pods) = (200, 2);
    let stage = busy(nodes, pods);
    // The latency of SQS: without it, one replica would receive all messages.
    stage.world.faults.add(Rule::on(RECEIVE, Fault::Slow(ms(15))));
    let (first, second) = (stage.start(&[]).await, stage.start(&[]).await);
    for n in 0..nodes {
        stage.spot(n);
    }
    stage.until_handled(s(60)).await;
    let received: Vec<_> = stage.world.aws.sqs.receive_log().into_iter().map(|received| received.id).collect();
    assert_eq!((received.len(), received.iter().collect::<BTreeSet<_>>().len()), (nodes, nodes));
    all_evicted_once(&stage, nodes, pods);
    assert_eq!([PATCH, LIST, EVICT].map(|operation| stage.calls(operation)), [nodes, 2 * nodes, pods * nodes]);
    let shares = [&first, &second].map(|replica| replica.tasks.started(TaskKind::Interruption));
    assert!(shares.iter().all(|share| *share >= nodes as u64 / 4), "{shares:?}");
    stage.rest(&[&first, &second]).await;
}
