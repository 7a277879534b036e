//! Completion of lifecycle hooks: when, with which result, and only once.

use crate::harness::{Stage, instance, node, s};
use ebbtide_sim::aws::{ActionState, HookResult, HookSpec};
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::Pod;
use ebbtide_sim::messages::{self, Wrapping};
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

const BEAT: &str = "RecordLifecycleActionHeartbeat";
const COMPLETE: &str = "CompleteLifecycleAction";

#[tokio::test(start_paused = true)]
async fn on_failed_drain_decides_the_hook_of_a_blocked_drain() {
    for (chosen, expected) in [("continue", &["CONTINUE"][..]), ("abandon", &["ABANDON"]), ("leave", &[])] {
        let stage = Stage::new(1, 1);
        stage.block(0);
        let replica = stage.start(&["--at-deadline", "leave", "--on-failed-drain", chosen]).await;
        let begun = Instant::now();
        let token = stage.terminate(0, s(60), Wrapping::Event);
        // 15 minutes, and the pod's grace period.
        sleep_until(begun + s(929)).await;
        assert_eq!((stage.calls(COMPLETE), stage.world.aws.sqs.in_flight()), (0, 1), "{chosen}");
        stage.until_handled(s(3)).await;
        assert_eq!(stage.results(&token), expected, "{chosen}");
        assert_eq!(stage.world.kube.evictions().len(), 0);
        replica.ended_as("asg-terminate", "blocked", 1);
        let beats = stage.calls(BEAT);
        sleep(s(200)).await;
        let action = stage.action(&token);
        assert_eq!((action.beats.len(), action.completions.len()), (beats, expected.len()), "{chosen}: it is over");
        assert_eq!(matches!(action.state, ActionState::Expired { .. }), chosen == "leave", "{action:?}");
        stage.rest(&[&replica]).await;
    }
}

/// A completion terminates the instance with the pods that are left, and somebody has just said that the node stays.
#[tokio::test(start_paused = true)]
async fn on_uncordon_decides_the_hook_of_an_uncordoned_node() {
    for (chosen, completes) in [("leave", false), ("at-deadline", true)] {
        let stage = Stage::new(1, 1);
        stage.block(0);
        let replica = stage.start(&["--drain-timeout", "10m", "--on-uncordon", chosen]).await;
        let begun = Instant::now();
        let token = stage.terminate(0, s(60), Wrapping::Event);
        for _ in 0..2 {
            sleep(s(20)).await;
            stage.set_cordon(0, false);
        }
        sleep_until(begun + s(590)).await;
        assert!(stage.results(&token).is_empty(), "{chosen}: not before the deadline");
        stage.until_handled(s(10)).await;
        assert_eq!(begun.elapsed() >= s(593), completes, "{chosen}");
        replica.ended_as("asg-terminate", "uncordoned", 1);
        sleep(s(100)).await;
        let action = stage.action(&token);
        assert_eq!(matches!(action.state, ActionState::Expired { .. }), !completes, "{chosen}: {action:?}");
        assert_eq!(stage.results(&token).len(), usize::from(completes), "{chosen}");
        assert_eq!(stage.world.kube.pods().len(), 1, "{chosen}: nothing was evicted");
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_successful_drain_continues_whatever_on_failed_drain_says() {
    for chosen in ["abandon", "leave"] {
        let stage = Stage::new(1, 1);
        let replica = stage.start(&["--on-failed-drain", chosen]).await;
        let token = stage.terminate(0, s(60), Wrapping::Event);
        stage.until_handled(s(10)).await;
        stage.completed_once(&token);
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn complete_after_delays_the_completion_while_heartbeats_go_on() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&["--complete-after", "2m", "--drain-timeout", "10m"]).await;
    let token = stage.terminate(0, s(60), Wrapping::Event);
    stage.until("drained", s(10), || stage.world.kube.pods().is_empty()).await;
    let drained = Instant::now();
    sleep_until(drained + s(118)).await;
    assert_eq!((stage.calls(COMPLETE), stage.world.aws.sqs.in_flight()), (0, 1));
    assert!((3..=5).contains(&stage.calls(BEAT)), "{}", stage.calls(BEAT));
    stage.until_handled(s(4)).await;
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn complete_after_ends_at_the_deadline() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&["--complete-after", "1h"]).await;
    let begun = Instant::now();
    let token = stage.terminate(0, s(900), Wrapping::Event);
    // 900 s less the margin: the pod, which is gone, needs no more time.
    sleep_until(begun + s(869)).await;
    assert_eq!(stage.calls(COMPLETE), 0);
    stage.until_handled(s(3)).await;
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn complete_after_does_not_delay_a_failed_drain() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let flags = ["--complete-after", "2m", "--drain-timeout", "30s", "--on-failed-drain", "abandon"];
    let replica = stage.start(&flags).await;
    let token = stage.terminate(0, s(600), Wrapping::Event);
    stage.until_handled(s(32)).await;
    assert_eq!(stage.results(&token), ["ABANDON"]);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_hook_completed_by_others_is_success() {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(600)).stops_in(s(300)));
    let replica = stage.start(&["--drain-timeout", "10m"]).await;
    let token = stage.terminate(0, s(60), Wrapping::Event);
    sleep(s(100)).await;
    let beats = stage.action(&token).beats.len();
    stage.world.aws.autoscaling.complete(&token, HookResult::Abandon);
    stage.until_handled(s(210)).await;
    replica.ended_as("asg-terminate", "drained", 1);
    assert_eq!(stage.calls(COMPLETE), 1);
    assert!(stage.calls(BEAT) <= beats + 1, "the next one was told that it is over, and no more came");
    let over = replica.metric("ebbtide_completions_total{result=\"over\"}");
    assert!((over - 1.0).abs() < f64::EPSILON, "{over}");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_blocked_drain_ends_at_its_deadline_and_completes_the_hook() {
    let stage = Stage::new(1, 2);
    stage.block(0);
    let replica = stage.start(&["--drain-timeout", "200s", "--at-deadline", "leave"]).await;
    let token = stage.terminate(0, s(60), Wrapping::Event);
    // 200 s less a margin of 6.
    sleep(s(193)).await;
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

/// The pauses between tries grow to 5 s, and the hook keeps the instance until the deadline.
#[tokio::test(start_paused = true)]
async fn the_last_try_to_cordon_is_at_the_deadline() {
    for works_again in [true, false] {
        let stage = Stage::new(1, 1);
        stage.world.faults.add(Rule::on("patch nodes", Fault::Status(500)));
        let replica = stage.start(&["--drain-timeout", "200s"]).await;
        let token = stage.terminate(0, s(240), Wrapping::Event);
        // 200 s less a margin of 24.
        sleep(Duration::from_millis(175_500)).await;
        assert_eq!((stage.calls(COMPLETE), stage.world.aws.sqs.in_flight()), (0, 1), "it still tries");
        if works_again {
            stage.world.faults.clear();
        }
        stage.until_handled(s(4)).await;
        stage.completed_once(&token);
        assert_eq!(stage.world.kube.pods().is_empty(), works_again);
        replica.ended_as("asg-terminate", if works_again { "timed-out" } else { "failed" }, 1);
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_action_that_is_over_is_success() {
    let stage = Stage::slow(s(50));
    let replica = stage.start(&["--heartbeat", "10s", "--drain-timeout", "5m"]).await;
    let token = stage.terminate(0, s(60), Wrapping::Event);
    stage.world.aws.autoscaling.complete(&token, HookResult::Continue);
    stage.until_handled(s(60)).await;
    assert_eq!(stage.calls(BEAT), 1, "AWS said that it is over");
    assert_eq!(stage.calls(COMPLETE), 1);
    let completed = replica.metric("ebbtide_completions_total{result=\"over\"}");
    assert!((completed - 1.0).abs() < f64::EPSILON, "{completed}");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn ten_throttled_completions_end_in_one_success_without_later_calls() {
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
async fn an_unknown_group_is_an_error_without_retries() {
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
async fn an_unknown_hook_is_an_error_without_retries() {
    let stage = Stage::new(1, 1);
    stage.world.aws.sqs.set_dead_letter(3);
    let replica = stage.start(&[]).await;
    stage.world.aws.autoscaling.add_hook("group", "another", HookSpec::terminating(s(60)));
    let at = stage.world.clock.now();
    let body = messages::lifecycle(Wrapping::Event, true, ("group", "no-such-hook", "t"), &instance(0), at);
    stage.world.aws.sqs.send(body);
    stage.until_handled(s(60)).await;
    replica.ended_as("asg-terminate", "hook-failed", 1);
    assert_eq!((stage.calls(COMPLETE), stage.world.kube.pods().len()), (1, 0), "drained all the same");
    let failed = replica.metric("ebbtide_completions_total{result=\"failed\"}");
    assert!((failed - 1.0).abs() < f64::EPSILON, "{failed}");
    assert_eq!(stage.world.aws.sqs.receive_log().len(), 1);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_denied_completion_does_not_keep_the_instance_alive() {
    let stage = Stage::new(1, 1);
    stage.world.faults.add(Rule::on(COMPLETE, Fault::Status(403)));
    let replica = stage.start(&["--drain-timeout", "3h"]).await;
    let token = stage.terminate(0, s(3600), Wrapping::Event);
    stage.until_handled(s(2 * 3600)).await;
    assert!(stage.calls(COMPLETE) <= 62, "{} tries", stage.calls(COMPLETE));
    let failed = replica.metric("ebbtide_notices_total{kind=\"asg-terminate\",outcome=\"hook-failed\"}");
    assert!((failed - 1.0).abs() < f64::EPSILON);
    sleep(s(120)).await;
    let action = stage.world.aws.autoscaling.action(&token).unwrap();
    assert!(matches!(action.state, ActionState::Expired { .. }), "its own timeout ended it: {action:?}");
    stage.rest(&[&replica]).await;
}

/// AWS has said that it no longer waits: what is left of the drain is not an hour, but now.
#[tokio::test(start_paused = true)]
async fn an_action_that_is_over_ends_its_drain() {
    let stage = Stage::new(1, 2);
    stage.block(0);
    let replica = stage.start(&["--heartbeat", "20s", "--drain-timeout", "30m"]).await;
    let token = stage.terminate(0, s(60), Wrapping::Event);
    sleep(s(70)).await;
    assert_eq!(stage.world.kube.pods().len(), 2, "a budget holds them");
    stage.world.aws.autoscaling.complete(&token, HookResult::Continue);
    stage.until_handled(s(25)).await;
    assert_eq!(stage.world.kube.pods().len(), 0, "told to stop before the node takes them along\n{}", stage.story());
    let over = replica.metric("ebbtide_completions_total{result=\"over\"}");
    assert!((over - 1.0).abs() < f64::EPSILON, "{over}");
    stage.rest(&[&replica]).await;
}
