//! Takeover of the work of a replica that was killed or shut down.

use crate::harness::{Stage, node, s};
use ebbtide::service::Exit;
use ebbtide_sim::aws::ActionState;
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::Pod;
use ebbtide_sim::messages::Wrapping;
use tokio::time::sleep;

const BEAT: &str = "RecordLifecycleActionHeartbeat";

#[tokio::test(start_paused = true)]
async fn the_takeover_after_a_kill_repeats_nothing() {
    let stage = Stage::new(1, 0);
    for pod in ["a", "b", "c"] {
        stage.world.kube.add_pod(Pod::on(&node(0)).named(pod).grace(s(600)).stops_in(s(100)));
    }
    let first = stage.start(&["--drain-timeout", "10m"]).await;
    let token = stage.terminate(0, s(60), Wrapping::Event);
    sleep(s(40)).await;
    let killed = first.kill().await;
    killed.gone(|_| true).await;
    let second = stage.start(&["--drain-timeout", "10m"]).await;
    stage.until_handled(s(120)).await;
    assert_eq!(stage.world.kube.evictions().len(), 3, "no pod was evicted twice");
    assert_eq!(stage.calls("create pods/eviction"), 3);
    assert_eq!(stage.calls("patch nodes"), 1, "the mark was there already");
    stage.completed_once(&token);
    stage.rest(&[&second]).await;
}

#[tokio::test(start_paused = true)]
async fn an_ordered_shutdown_hands_its_messages_over_at_once() {
    let stage = Stage::slow(s(100));
    let first = stage.start(&["--heartbeat", "10s", "--drain-timeout", "5m"]).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    sleep(s(25)).await;
    let (exit, took, tasks) = first.stop().await;
    assert_eq!(exit, Exit::Clean);
    assert!(took < s(3), "a long poll in flight is given 2 s: {took:?}");
    assert_eq!(stage.world.aws.sqs.visible(), 1, "another replica has it at once");
    tasks.gone(|_| true).await;
    let beats = stage.calls("RecordLifecycleActionHeartbeat");
    sleep(s(60)).await;
    assert_eq!(stage.calls("RecordLifecycleActionHeartbeat"), beats, "nobody beats in between");
    let second = stage.start(&["--heartbeat", "10s", "--drain-timeout", "5m"]).await;
    stage.until_handled(s(100)).await;
    stage.completed_once(&token);
    stage.rest(&[&second]).await;
}

#[tokio::test(start_paused = true)]
async fn a_message_under_a_short_hook_comes_back_sooner_after_a_kill() {
    let stage = Stage::slow(s(100));
    let replica = stage.start(&["--drain-timeout", "5m"]).await;
    let token = stage.terminate(0, s(30), Wrapping::Event);
    sleep(s(21)).await;
    let killed = replica.kill().await;
    assert_eq!(stage.world.aws.sqs.in_flight(), 1);
    let second = stage.start(&["--drain-timeout", "5m"]).await;
    let id = stage.world.aws.sqs.receive_log()[0].id.clone();
    stage.until("taken over", s(11), || stage.world.aws.sqs.receives(&id) == 2).await;
    stage.until_handled(s(100)).await;
    let action = stage.world.aws.autoscaling.action(&token).unwrap();
    assert!(matches!(action.state, ActionState::Completed { .. }), "the hook did not expire: {action:?}");
    stage.completed_once(&token);
    killed.gone(|_| true).await;
    stage.rest(&[&second]).await;
}

/// The hook is kept, whether the first heartbeat after a takeover fails or not.
#[tokio::test(start_paused = true)]
async fn a_takeover_survives_one_failed_heartbeat() {
    for fault in [None, Some(Fault::Throttle), Some(Fault::Status(500)), Some(Fault::Disconnect)] {
        let stage = Stage::slow(s(300));
        let flags = ["--drain-timeout", "10m"];
        let replica = stage.start(&flags).await;
        let token = stage.terminate(0, s(60), Wrapping::Event);
        sleep(s(150)).await;
        replica.kill().await;
        if let Some(fault) = fault {
            stage.world.faults.add(Rule::on(BEAT, fault).times(1));
        }
        let second = stage.start(&flags).await;
        stage.until_handled(s(400)).await;
        let action = stage.action(&token);
        assert!(matches!(action.state, ActionState::Completed { .. }), "{fault:?} {action:?}");
        stage.completed_once(&token);
        stage.rest(&[&second]).await;
    }
}

/// The hook is kept after an ordered shutdown, too.
#[tokio::test(start_paused = true)]
async fn an_ordered_takeover_survives_one_throttled_heartbeat() {
    let stage = Stage::slow(s(300));
    let flags = ["--drain-timeout", "10m"];
    let replica = stage.start(&flags).await;
    let token = stage.terminate(0, s(60), Wrapping::Event);
    sleep(s(150)).await;
    replica.stop().await;
    stage.world.faults.add(Rule::on(BEAT, Fault::Throttle).times(1));
    let second = stage.start(&flags).await;
    stage.until_handled(s(400)).await;
    let action = stage.world.aws.autoscaling.action(&token).unwrap();
    assert!(matches!(action.state, ActionState::Completed { .. }), "{action:?}");
    stage.rest(&[&second]).await;
}
