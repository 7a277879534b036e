//! Two Nodes with one instance, as a kubelet leaves them that has changed its name.

use crate::harness::{Stage, instance, node, s};
use crate::nodes::plan;
use ebbtide_sim::kube::Pod;
use ebbtide_sim::messages::{self, Wrapping};
use tokio::time::sleep;

/// Returns a world of two Nodes, `old` and `new`, of the same instance, with a pod each that takes some time to stop.
fn twins(old_stops: u64, new_stops: u64) -> Stage {
    let stage = Stage::new(0, 0);
    stage.world.aws.ec2.put(&instance(0), &[]);
    for (name, stops) in [("old", old_stops), ("new", new_stops)] {
        stage.world.kube.add_node(name, &instance(0));
        stage.world.kube.add_pod(Pod::on(name).named(&format!("on-{name}")).stops_in(s(stops)));
    }
    stage
}

#[tokio::test(start_paused = true)]
async fn both_nodes_are_drained_before_the_hook_is_completed_once() {
    for (old, new) in [(5, 20), (20, 5)] {
        let stage = twins(old, new);
        let replica = stage.start(&[]).await;
        let token = stage.terminate(0, s(300), Wrapping::Event);
        sleep(s(19)).await;
        assert_eq!(stage.world.kube.evictions().len(), 2, "both at once\n{}", stage.story());
        assert!(stage.results(&token).is_empty(), "a pod is left");
        stage.until_handled(s(5)).await;
        assert_eq!((stage.world.kube.pods().len(), stage.calls("patch nodes")), (0, 2));
        stage.completed_once(&token);
        replica.ended_once("asg-terminate", "drained");
        stage.rest(&[&replica]).await;
    }
}

/// A drain of one Node does not take the other for its successor.
#[tokio::test(start_paused = true)]
async fn a_drain_goes_on_when_the_other_node_changes() {
    let stage = twins(20, 20);
    let replica = stage.start(&[]).await;
    stage.spot(0);
    sleep(s(5)).await;
    stage.world.kube.set_ready("old", false);
    sleep(s(5)).await;
    stage.world.kube.set_ready("old", true);
    stage.until_handled(s(15)).await;
    assert_eq!((stage.calls("create pods/eviction"), stage.calls("get nodes")), (2, 0), "{}", stage.story());
    replica.ended_once("spot", "drained");
    stage.rest(&[&replica]).await;
}

/// The kubelet changes its name while evictions wait.
#[tokio::test(start_paused = true)]
async fn a_node_that_joins_after_the_cordon_gets_it_with_its_mark_before_its_first_eviction() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&["--delay", "asg-terminate=30s"]).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    sleep(s(20)).await;
    assert!(stage.cordoned(0));
    stage.world.kube.add_node(&node(1), &instance(0));
    stage.world.kube.add_pod(Pod::on(&node(1)).named("late").stops_in(s(2)));
    stage.until_handled(s(30)).await;
    assert!(stage.cordoned(1));
    assert_eq!((stage.notices(1).len(), stage.world.kube.evictions().len()), (1, 2), "{}", stage.story());
    let calls = stage.world.calls.all();
    let first = |operation: &str, subject: &str| {
        calls.iter().position(|call| call.operation == operation && call.subject.contains(subject))
    };
    assert!(first("patch nodes", &node(1)) < first("create pods/eviction", "late"), "{}", stage.story());
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_recommendation_is_reported_for_the_node_that_is_ready() {
    let stage = twins(5, 5);
    stage.world.kube.set_ready("old", false);
    let replica = stage.start(&[]).await;
    stage.world.aws.sqs.send(messages::rebalance("r", &instance(0), stage.world.clock.now()));
    stage.until_handled(s(5)).await;
    let cordoned = |name| stage.world.kube.node(name).and_then(|node| node.spec?.unschedulable) == Some(true);
    assert!(cordoned("new") && cordoned("old"));
    assert!(stage.world.kube.evictions().is_empty());
    stage.rest(&[&replica]).await;
}

/// A world of three nodes, and one Node more that names the instance of the first.
fn claimed() -> Stage {
    let stage = Stage::new(3, 1);
    stage.world.kube.add_node(&node(3), &instance(0));
    stage
}

/// Has the n-th Node give a notice in this way, for which its instance would be drained.
fn gives(stage: &Stage, n: usize, way: &str) {
    match way {
        "plan" => {
            let (name, value) = plan(stage.world.clock.now(), 0, "x");
            stage.annotate(n, &name, &value);
        }
        "word" => stage.says_spot(n, 120),
        _ => stage.set_condition(n, "KernelReady", "False", 0),
    }
}

const FLAGS: [&str; 2] = ["--on-condition", "KernelReady=False:1m=drain"];

/// Whoever registers a Node chooses its instance. What Nodes say of that instance is not acted on then, and what AWS says is.
#[tokio::test(start_paused = true)]
async fn of_two_ready_nodes_none_speaks_for_the_instance() {
    for way in ["plan", "word", "condition"] {
        let stage = claimed();
        let replica = stage.with_both("a", &FLAGS).await;
        gives(&stage, 3, way);
        sleep(s(300)).await;
        assert!(!stage.cordoned(0) && !stage.cordoned(3), "{way}\n{}", stage.story());
        assert!((replica.refused("two-nodes") - 1.0).abs() < f64::EPSILON, "{way}: told once");
        stage.spot(0);
        stage.until_handled(s(150)).await;
        assert!(stage.cordoned(0) && stage.cordoned(3), "{way}\n{}", stage.story());
        replica.ended_once("spot", "drained");
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_only_ready_node_speaks_for_the_instance() {
    for way in ["plan", "word", "condition"] {
        let stage = claimed();
        stage.set_ready(0, false);
        let replica = stage.with_both("a", &FLAGS).await;
        gives(&stage, 0, way);
        sleep(s(100)).await;
        assert!(!stage.cordoned(0) && !stage.cordoned(3), "{way}\n{}", stage.story());
        gives(&stage, 3, way);
        stage.until("both are cordoned", s(200), || stage.cordoned(0) && stage.cordoned(3)).await;
        drop(replica);
    }
}
