//! Heartbeats of lifecycle hooks: sent while the drain needs them, and not more often.

use crate::harness::{Stage, node, s};
use ebbtide_sim::aws::ActionState;
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::Pod;
use ebbtide_sim::messages::Wrapping;
use tokio::time::sleep;

const BEAT: &str = "RecordLifecycleActionHeartbeat";

#[tokio::test(start_paused = true)]
async fn a_drain_of_ten_minutes_keeps_a_hook_of_one_minute_alive() {
    let stage = Stage::slow(s(600));
    let replica = stage.start(&["--drain-timeout", "20m"]).await;
    let token = stage.terminate(0, s(60), Wrapping::Event);
    stage.until_handled(s(620)).await;
    let beats = stage.calls(BEAT);
    assert!((19..=23).contains(&beats), "one each half-time, up to a tenth earlier: {beats}");
    stage.beats_apart(&token, s(27));
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
    assert_eq!(stage.calls(BEAT), beats, "none after the completion");
}

#[tokio::test(start_paused = true)]
async fn heartbeats_follow_the_set_interval_or_are_off() {
    for (flag, expected) in [("20s", 4..=6), ("off", 0..=0)] {
        let stage = Stage::slow(s(90));
        let replica = stage.start(&["--heartbeat", flag]).await;
        let token = stage.terminate(0, s(300), Wrapping::Bare);
        stage.until_handled(s(100)).await;
        assert!(expected.contains(&stage.calls(BEAT)), "{flag}: {}", stage.calls(BEAT));
        stage.completed_once(&token);
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_throttled_heartbeat_is_retried_before_the_hook_expires() {
    let stage = Stage::slow(s(120));
    stage.world.faults.add(Rule::on(BEAT, Fault::Throttle).times(5));
    let replica = stage.start(&["--drain-timeout", "5m"]).await;
    let token = stage.terminate(0, s(60), Wrapping::Event);
    stage.until_handled(s(140)).await;
    stage.completed_once(&token);
    assert!(replica.metric("ebbtide_heartbeats_total{result=\"throttled\"}") >= 5.0);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn without_permission_to_describe_hooks_they_are_kept_alive() {
    let stage = Stage::slow(s(200));
    stage.world.faults.add(Rule::on("DescribeLifecycleHooks", Fault::Status(403)));
    let replica = stage.start(&[]).await;
    let token = stage.terminate(0, s(30), Wrapping::Event);
    stage.until_handled(s(220)).await;
    stage.completed_once(&token);
    stage.beats_apart(&token, s(13));
    stage.rest(&[&replica]).await;
}

/// The timeout of the hook can't be read, and heartbeats fail for longer than the assumed 30 s.
#[tokio::test(start_paused = true)]
async fn failing_heartbeats_of_an_unknown_hook_are_retried() {
    let stage = Stage::slow(s(400));
    stage.world.faults.add(Rule::on("DescribeLifecycleHooks", Fault::Status(403)));
    stage.world.faults.add(Rule::on(BEAT, Fault::Status(503)));
    let replica = stage.start(&[]).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    sleep(s(60)).await;
    let beats = stage.calls(BEAT);
    stage.world.faults.clear();
    stage.until_handled(s(500)).await;
    let action = stage.world.aws.autoscaling.action(&token).unwrap();
    assert!(
        matches!(action.state, ActionState::Completed { .. }),
        "{beats} tries in a minute, {} in all {action:?}",
        stage.calls(BEAT)
    );
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn an_interval_longer_than_the_hooks_timeout_is_shortened() {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(600)).stops_in(s(200)));
    let replica = stage.start(&["--heartbeat", "2m", "--drain-timeout", "10m"]).await;
    let token = stage.terminate(0, s(60), Wrapping::Event);
    stage.until_handled(s(220)).await;
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn refused_heartbeats_are_few() {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(20_000)).stops_in(s(9_000)));
    stage.world.faults.add(Rule::on(BEAT, Fault::Status(403)));
    let replica = stage.start(&["--drain-timeout", "10h"]).await;
    stage.terminate(0, s(3600), Wrapping::Event);
    stage.until_handled(s(9_100)).await;
    assert!((5..50).contains(&stage.calls(BEAT)), "{}", stage.calls(BEAT));
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn heartbeats_with_lost_answers_are_not_repeated_at_once() {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(600)).stops_in(s(300)));
    stage.world.faults.add(Rule::on(BEAT, Fault::LostResponse).times(3));
    let replica = stage.start(&["--drain-timeout", "10m"]).await;
    let token = stage.terminate(0, s(120), Wrapping::Event);
    stage.until_handled(s(400)).await;
    stage.beats_apart(&token, s(5));
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}
