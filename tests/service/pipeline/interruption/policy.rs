//! What users choose for a kind or for a node, and what becomes of hooks whose drain could not end well.

use crate::harness::{Stage, instance, node, s};
use crate::nodes::TAG;
use ebbtide_sim::aws::{ActionState, HookResult, HookSpec};
use ebbtide_sim::kube::Pod;
use ebbtide_sim::messages::{self, Wrapping};
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

const BEAT: &str = "RecordLifecycleActionHeartbeat";
const COMPLETE: &str = "CompleteLifecycleAction";

#[tokio::test(start_paused = true)]
async fn what_becomes_of_a_hook_whose_drain_was_blocked() {
    for (chosen, expected) in [("continue", &["CONTINUE"][..]), ("abandon", &["ABANDON"]), ("leave", &[])] {
        let stage = Stage::new(1, 1);
        stage.block(0);
        let replica = stage.start(&["--at-deadline", "leave", "--on-failed-drain", chosen]).await;
        let begun = Instant::now();
        let token = stage.terminate(0, s(60), Wrapping::Event);
        // 60 s less a margin of 6.
        sleep_until(begun + s(53)).await;
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

#[tokio::test(start_paused = true)]
async fn a_drain_that_ends_well_is_continued_whatever_was_chosen() {
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
async fn a_completion_is_held_back_while_heartbeats_go_on() {
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
async fn a_completion_is_held_back_no_longer_than_the_deadline() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&["--complete-after", "1h"]).await;
    let begun = Instant::now();
    let token = stage.terminate(0, s(60), Wrapping::Event);
    sleep_until(begun + s(53)).await;
    assert_eq!(stage.calls(COMPLETE), 0);
    stage.until_handled(s(3)).await;
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_drain_is_not_held_back() {
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
async fn a_delay_cordons_at_once_and_evicts_later() {
    // At most half of the time to the deadline is spent so.
    for (delay, first) in [("spot=20s", 20), ("spot=10m", 60)] {
        let stage = Stage::new(1, 2);
        let replica = stage.start(&["--delay", delay]).await;
        let begun = stage.world.clock.elapsed();
        stage.spot(0);
        stage.until("cordoned", s(1), || stage.cordoned(0)).await;
        stage.until_handled(s(100)).await;
        let after = stage.first_eviction(0).unwrap().saturating_sub(begun);
        assert!(after >= s(first) && after < s(first + 1), "{delay}: {after:?}");
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_notice_without_a_delay_does_not_wait_for_one_with() {
    let stage = Stage::new(1, 2);
    let replica = stage.start(&["--on", "rebalance=drain", "--delay", "rebalance=10m"]).await;
    stage.rebalance(0);
    sleep(s(60)).await;
    assert_eq!((stage.cordoned(0), stage.world.kube.evictions().len()), (true, 0));
    stage.spot(0);
    // The drain is for both.
    stage.until_handled(s(10)).await;
    assert_eq!(stage.world.kube.pods().len(), 0);
    assert_eq!(stage.world.kube.evictions().len(), 2);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_delay_that_has_passed_on_arrival_delays_nothing() {
    let stage = Stage::new(1, 1);
    let at = stage.world.clock.now();
    stage.world.aws.sqs.send(messages::spot("old", &instance(0), at));
    sleep(s(60)).await;
    let replica = stage.start(&["--delay", "spot=30s"]).await;
    stage.until_handled(s(5)).await;
    assert_eq!(stage.world.kube.pods().len(), 0);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn only_selected_nodes_are_touched() {
    let stage = Stage::new(3, 1);
    stage.label(0, "pool", "blue");
    stage.label(1, "pool", "green");
    let replica = stage.start(&["--node-selector", "pool in (blue, red)"]).await;
    let tokens: Vec<_> = (0..3).map(|n| stage.terminate(n, s(60), Wrapping::Event)).collect();
    for n in 0..3 {
        stage.rebalance(n);
    }
    stage.until_handled(s(10)).await;
    let left: Vec<_> = (0..3).map(|n| (stage.cordoned(n), stage.world.kube.pods_on(&node(n)).len())).collect();
    assert_eq!(left, [(true, 0), (false, 1), (false, 1)]);
    replica.ended_as("asg-terminate", "excluded", 2);
    replica.ended_as("rebalance", "excluded", 2);
    sleep(s(120)).await;
    stage.completed_once(&tokens[0]);
    for (n, token) in tokens.iter().enumerate().skip(1) {
        stage.no_trace(n);
        let action = stage.action(token);
        assert_eq!((action.beats.len(), action.completions.len()), (0, 0), "left alone");
    }
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_to_be_ignored_is_left_alone() {
    let stage = Stage::new(2, 1);
    stage.annotate(0, "ebbtide/ignore", "true");
    stage.annotate(1, "ebbtide/ignore", "false");
    let replica = stage.start(&[]).await;
    let tokens: Vec<_> = (0..2).map(|n| stage.terminate(n, s(60), Wrapping::Bare)).collect();
    stage.spot(0);
    stage.until_handled(s(10)).await;
    assert_eq!((stage.cordoned(0), stage.cordoned(1)), (false, true));
    assert_eq!(stage.world.kube.pods().len(), 1);
    replica.ended_as("asg-terminate", "excluded", 1);
    replica.ended_as("spot", "excluded", 1);
    sleep(s(120)).await;
    let action = stage.action(&tokens[0]);
    assert_eq!((action.beats.len(), action.completions.len()), (0, 0));
    stage.completed_once(&tokens[1]);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_registers_late_is_asked_whether_it_is_to_be_left_alone() {
    let stage = Stage::new(1, 0);
    stage.world.aws.ec2.put(&instance(5), &[(TAG, "")]);
    let replica = stage.start(&["--node-selector", "pool=blue"]).await;
    let token = stage.terminate(5, s(60), Wrapping::Event);
    sleep(s(10)).await;
    stage.world.kube.add_node(&node(5), &instance(5));
    stage.world.kube.add_pod(Pod::on(&node(5)).named("early"));
    stage.until_handled(s(5)).await;
    replica.ended_as("asg-terminate", "excluded", 1);
    stage.no_trace(5);
    assert_eq!((stage.results(&token), stage.world.kube.pods().len()), (Vec::new(), 1));
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_somebody_else_completed_is_success() {
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
async fn an_unknown_hook_is_one_error() {
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
async fn what_is_terminated_in_the_pool_is_not_waited_for() {
    let stage = Stage::new(1, 0);
    stage.world.aws.ec2.put(&instance(5), &[(TAG, "")]);
    let replica = stage.start(&[]).await;
    let token = stage.terminate_between(5, s(300), Wrapping::Event, ("WarmPool", "EC2"));
    stage.until_handled(s(2)).await;
    stage.completed_once(&token);
    replica.ended_as("asg-terminate", "nothing-to-drain", 1);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn each_kind_has_its_own_timeout() {
    let stage = Stage::new(2, 1);
    stage.block(0);
    stage.block(1);
    let timeouts = ["--drain-timeout", "30s", "--drain-timeout", "asg-terminate=10m", "--at-deadline", "leave"];
    let replica = stage.start(&timeouts).await;
    let begun = Instant::now();
    let token = stage.terminate(0, s(60), Wrapping::Event);
    let spot = stage.spot(1);
    sleep_until(begun + s(29)).await;
    assert_eq!(stage.world.aws.sqs.deleted(), Vec::<String>::new());
    stage.until("the general one", s(3), || stage.world.aws.sqs.deleted() == [spot.clone()]).await;
    // 600 s less a margin of 6.
    sleep_until(begun + s(593)).await;
    assert_eq!(stage.calls(COMPLETE), 0);
    stage.until_handled(s(3)).await;
    stage.completed_once(&token);
    stage.beats_apart(&token, Duration::from_secs(27));
    replica.ended_as("spot", "blocked", 1);
    stage.rest(&[&replica]).await;
}
