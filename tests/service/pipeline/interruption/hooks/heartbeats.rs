//! Lifecycle hooks: heartbeats for as long as the drain needs them, one completion, silence.

use crate::harness::{Stage, instance, s};
use ebbtide_sim::aws::{ActionState, HookSpec};
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::messages::{self, Wrapping};

const BEAT: &str = "RecordLifecycleActionHeartbeat";
const COMPLETE: &str = "CompleteLifecycleAction";

#[tokio::test(start_paused = true)]
async fn a_drain_of_ten_minutes_under_a_hook_of_one() {
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
async fn beats_at_a_set_interval_or_never() {
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
async fn ten_throttled_completions_end_in_one_success_and_silence() {
    let stage = Stage::new(1, 1);
    stage.world.faults.add(Rule::on(COMPLETE, Fault::Throttle).times(10));
    let replica = stage.start(&[]).await;
    let token = stage.terminate(0, s(30), Wrapping::Event);
    stage.until_handled(s(200)).await;
    stage.completed_once(&token);
    assert_eq!(stage.calls(COMPLETE), 11);
    assert!(stage.calls(BEAT) >= 1, "kept alive until it succeeded");
    stage.beats_apart(&token, s(13));
    let beats = stage.calls(BEAT);
    stage.rest(&[&replica]).await;
    assert_eq!((stage.calls(COMPLETE), stage.calls(BEAT)), (11, beats));
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
async fn an_action_that_is_over_is_success() {
    let stage = Stage::slow(s(50));
    let replica = stage.start(&["--heartbeat", "10s", "--drain-timeout", "5m"]).await;
    // Nobody told AWS of it: this token's action is over before we begin.
    stage.world.aws.autoscaling.add_hook("group", "hook", HookSpec::terminating(s(60)));
    let at = stage.world.clock.now();
    let token = "00000000-0000-0000-0000-000000000000";
    stage.world.aws.sqs.send(messages::lifecycle(Wrapping::Event, true, ("group", "hook", token), &instance(0), at));
    stage.until_handled(s(60)).await;
    assert_eq!(stage.calls(BEAT), 1, "AWS said that it is over");
    assert_eq!(stage.calls(COMPLETE), 1);
    let completed = replica.metric("ebbtide_completions_total{result=\"over\"}");
    assert!((completed - 1.0).abs() < f64::EPSILON, "{completed}");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn an_unknown_group_is_told_and_not_retried_for_ever() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&[]).await;
    let at = stage.world.clock.now();
    let body = messages::lifecycle(Wrapping::Event, true, ("no-such-group", "hook", "t"), &instance(0), at);
    stage.world.aws.sqs.send(body);
    stage.until_handled(s(60)).await;
    let failed = replica.metric("ebbtide_notices_total{kind=\"asg-terminate\",outcome=\"hook-failed\"}");
    assert!((failed - 1.0).abs() < f64::EPSILON);
    assert_eq!(stage.calls(COMPLETE), 1);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn without_the_permission_to_look_hooks_up_they_are_kept_alive_all_the_same() {
    let stage = Stage::slow(s(200));
    stage.world.faults.add(Rule::on("DescribeLifecycleHooks", Fault::Status(403)));
    let replica = stage.start(&[]).await;
    let token = stage.terminate(0, s(30), Wrapping::Event);
    stage.until_handled(s(220)).await;
    stage.completed_once(&token);
    stage.beats_apart(&token, s(13));
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_blocked_drain_ends_at_its_deadline_and_completes_the_hook() {
    let stage = Stage::new(1, 2);
    stage.block(0);
    let replica = stage.start(&["--drain-timeout", "200s", "--at-deadline", "leave"]).await;
    let token = stage.terminate(0, s(60), Wrapping::Event);
    // 200 s less a margin of 6.
    tokio::time::sleep(s(193)).await;
    assert_eq!(stage.calls(COMPLETE), 0);
    assert!((replica.metric("ebbtide_pods_blocked ") - 2.0).abs() < f64::EPSILON);
    stage.until_handled(s(3)).await;
    stage.completed_once(&token);
    stage.beats_apart(&token, s(27));
    assert_eq!(stage.world.kube.evictions().len(), 0, "no budget was overridden");
    let blocked = replica.metric("ebbtide_notices_total{kind=\"asg-terminate\",outcome=\"blocked\"}");
    assert!((blocked - 1.0).abs() < f64::EPSILON);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_budget_that_opens_lets_the_drain_go_on() {
    let stage = Stage::new(1, 2);
    stage.block(0);
    let replica = stage.start(&[]).await;
    let token = stage.terminate(0, s(600), Wrapping::Event);
    tokio::time::sleep(s(60)).await;
    let tries = stage.calls("create pods/eviction");
    assert!((20..=90).contains(&tries), "each pod every 1 to 5 s: {tries}");
    stage.unblock(0);
    stage.until_handled(s(10)).await;
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_short_hook_makes_the_message_come_back_sooner_after_a_kill() {
    let stage = Stage::slow(s(100));
    let replica = stage.start(&["--drain-timeout", "5m"]).await;
    let token = stage.terminate(0, s(30), Wrapping::Event);
    tokio::time::sleep(s(21)).await;
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
