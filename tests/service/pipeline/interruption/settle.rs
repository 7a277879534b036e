//! The quiet time: evictions wait for the cordons of a burst, so that no pod is moved to the next node that goes.

use crate::harness::{Stage, instance, node, s};
use ebbtide::pipeline::QUIET_TIME;
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::Pod;
use ebbtide_sim::messages::{self, Wrapping};
use std::time::Duration;
use tokio::time::sleep;

/// Interval between the messages of a burst.
const APART: Duration = Duration::from_millis(40);

/// Returns a world of nodes with pods that a controller replaces at once, and replicas with this quiet time.
fn moving(nodes: usize, pods: usize, quiet_time: Duration) -> Stage {
    let stage = Stage { quiet_time, ..Stage::new(nodes, 0) };
    stage.world.kube.replace(Duration::ZERO);
    for n in (0..nodes).flat_map(|n| std::iter::repeat_n(n, pods)) {
        stage.world.kube.add_pod(Pod::on(&node(n)).owner("ReplicaSet", "web").stops_in(s(2)));
    }
    stage
}

/// Sends spot warnings for every second node, one after the other.
async fn half(stage: &Stage, nodes: usize) {
    for n in (0..nodes).step_by(2) {
        stage.spot(n);
        sleep(APART).await;
    }
}

#[tokio::test(start_paused = true)]
async fn no_pod_is_evicted_twice_when_half_of_the_nodes_go() {
    // 20 messages take 0.8 s, 100 take 4 s, and a burst may last 5.
    for nodes in [40, 200] {
        for (quiet, twice) in [(QUIET_TIME, false), (Duration::ZERO, true)] {
            let stage = moving(nodes, 3, quiet);
            let replica = stage.start(&[]).await;
            half(&stage, nodes).await;
            stage.until_handled(s(60)).await;
            let moved_again = stage.world.kube.evictions().len() - nodes / 2 * 3;
            assert_eq!(moved_again > 0, twice, "{nodes} nodes, {quiet:?}: {moved_again} pods evicted twice");
            stage.rest(&[&replica]).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_single_notice_waits_for_the_quiet_time() {
    for (age, waits) in [(s(0), 1000..=1100), (s(110), 490..=600), (s(119), 40..=200)] {
        let stage = Stage { quiet_time: QUIET_TIME, ..Stage::new(1, 2) };
        let replica = stage.start(&[]).await;
        let begun = stage.world.clock.elapsed();
        stage.spot_of_age(0, age);
        stage.until_handled(s(10)).await;
        let waited = (stage.first_eviction(0).unwrap() - begun).as_millis();
        assert!(waits.contains(&waited), "a notice of age {age:?}: {waited} ms");
        stage.rest(&[&replica]).await;
    }
}

/// A Node that can't be cordoned, and a stream of notices, hold back nobody for long.
#[tokio::test(start_paused = true)]
async fn evictions_begin_five_seconds_after_the_first_notice_of_a_burst() {
    let stage = Stage { quiet_time: QUIET_TIME, ..Stage::new(30, 1) };
    stage.world.faults.add(Rule::on("patch nodes", Fault::Status(500)).subject(node(1)));
    let replica = stage.start(&[]).await;
    for n in 0..30 {
        stage.spot(n);
        sleep(Duration::from_millis(500)).await;
    }
    let first = stage.first_eviction(0).unwrap();
    assert!((s(5)..s(6)).contains(&first), "{first:?}");
    stage.until_handled(s(130)).await;
    stage.rest(&[&replica]).await;
}

/// The drain runs already: a second notice for its Node waits for nobody.
#[tokio::test(start_paused = true)]
async fn a_notice_that_joins_a_drain_does_not_wait() {
    let stage = Stage { quiet_time: s(5), ..crate::drains::held(s(30)) };
    let replica = stage.start(&["--on", "rebalance=drain"]).await;
    stage.world.aws.sqs.send(messages::rebalance("r", &instance(0), stage.world.clock.now()));
    sleep(s(10)).await;
    stage.spot_of_age(0, s(118));
    stage.until_handled(s(4)).await;
    replica.ended_once("spot", "drained");
    stage.rest(&[&replica]).await;
}

/// The second notice is there, but its hook's times are looked up for some seconds before its cordon.
#[tokio::test(start_paused = true)]
async fn evictions_wait_for_notices_that_are_looked_up() {
    let stage = moving(3, 3, QUIET_TIME);
    stage.world.faults.add(Rule::on("DescribeLifecycleHooks", Fault::Throttle).times(4));
    let replica = stage.start(&[]).await;
    stage.terminate(1, s(300), Wrapping::Event);
    stage.spot(0);
    stage.until_handled(s(60)).await;
    assert_eq!(stage.world.kube.evictions().len(), 6, "each pod is evicted once");
    stage.rest(&[&replica]).await;
}

/// All Nodes are released before anybody asks: the hold is over at once, and the others of the burst are not cordoned yet.
#[tokio::test(start_paused = true)]
async fn a_wait_that_is_over_at_once_leaves_the_quiet_time() {
    let nodes = 40;
    let stage = moving(nodes, 3, QUIET_TIME);
    for n in 0..nodes {
        stage.world.kube.update_node(&node(n), |node| {
            node.metadata.annotations.get_or_insert_default().insert("ebbtide/release".to_owned(), "true".to_owned());
        });
    }
    let replica = stage.start(&["--hold", "before-drain"]).await;
    half(&stage, nodes).await;
    stage.until_handled(s(60)).await;
    assert_eq!(stage.world.kube.evictions().len(), nodes / 2 * 3, "pods evicted twice");
    stage.rest(&[&replica]).await;
}
