//! A message on its whole way: a drained Node, a completed hook, a deleted message.

use crate::harness::{Stage, instance, node, s};
use ebbtide::fact::TaskKind;
use ebbtide_sim::kube::Pod;
use ebbtide_sim::messages::{self, Wrapping};
use tokio::time::sleep;

#[tokio::test(start_paused = true)]
async fn a_spot_warning_drains_its_node_with_few_calls() {
    let stage = Stage::new(2, 3);
    let replica = stage.start(&[]).await;
    let message = stage.spot(0);
    stage.until_handled(s(30)).await;
    assert!(stage.cordoned(0) && !stage.cordoned(1));
    assert_eq!(stage.world.kube.pods_on(&node(0)).len(), 0);
    assert_eq!(stage.world.kube.pods_on(&node(1)).len(), 3);
    assert_eq!(stage.world.aws.sqs.deleted(), [message]);
    // One patch, one list, one eviction a pod, one closing list, and one watch.
    let counts = ["patch nodes", "list pods", "create pods/eviction", "watch pods", "get nodes", "delete pods"];
    assert_eq!(counts.map(|operation| stage.calls(operation)), [1, 2, 3, 1, 0, 0], "{}", stage.story());
    assert_eq!(stage.calls("DescribeInstances"), 0, "it has a Node");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_lifecycle_hook_is_completed_in_each_wrapping() {
    for wrapping in [Wrapping::Event, Wrapping::Sns, Wrapping::Bare] {
        let stage = Stage::new(1, 2);
        let replica = stage.start(&[]).await;
        let token = stage.terminate(0, s(300), wrapping);
        stage.until_handled(s(60)).await;
        stage.completed_once(&token);
        assert_eq!(stage.world.kube.pods_on(&node(0)).len(), 0, "{wrapping:?}");
        assert_eq!(stage.calls("RecordLifecycleActionHeartbeat"), 0, "the drain did not outlast the hook");
        assert_eq!(stage.calls("DescribeLifecycleHooks"), 1);
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_hook_is_completed_only_when_the_pods_are_gone() {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(120)).stops_in(s(100)));
    let replica = stage.start(&[]).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    sleep(s(99)).await;
    assert_eq!(stage.calls("CompleteLifecycleAction"), 0);
    stage.until_handled(s(5)).await;
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_message_delivered_twice_is_one_interruption() {
    let stage = Stage::slow(s(60));
    let replica = stage.start(&[]).await;
    let body = messages::spot("same", &instance(0), stage.world.clock.now());
    for _ in 0..5 {
        stage.world.aws.sqs.send(body.clone());
    }
    stage.until_handled(s(70)).await;
    assert_eq!(replica.tasks.started(TaskKind::Interruption), 1);
    assert_eq!(stage.calls("create pods/eviction"), 1);
    assert_eq!(stage.world.aws.sqs.deleted().len(), 5);
    stage.rest(&[&replica]).await;
}
