//! The deadlines that lifecycle hooks set: they leave room for the pods, wait for each other, and follow AWS's answers.

use crate::drains::{add, deleted, ended, held, terminate};
use crate::harness::{Stage, instance, node, s};
use ebbtide_sim::aws::{HookResult, HookSpec};
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::{By, Limit, Pod};
use ebbtide_sim::messages::{self, Wrapping};
use tokio::time::sleep;

const BEAT: &str = "RecordLifecycleActionHeartbeat";
const COMPLETE: &str = "CompleteLifecycleAction";

#[tokio::test(start_paused = true)]
async fn of_two_hooks_the_latest_counts_and_both_live() {
    let stage = held(s(30));
    let replica = stage.start(&[]).await;
    let short = terminate(&stage, "short", s(60));
    let long = terminate(&stage, "long", s(1200));
    sleep(s(1190)).await;
    assert!(ended(&stage).is_empty(), "nothing is deleted in spite of the budget: {:?}", ended(&stage));
    stage.until_handled(s(45)).await;
    // 1200 s, and the pod's grace period; 2 s for its removal.
    assert_eq!(ended(&stage), [("held".to_owned(), 1198, Some(30), By::Delete)]);
    assert!(stage.world.aws.autoscaling.action(&short).is_some_and(|action| action.beats.len() >= 20));
    stage.completed_once(&short);
    stage.completed_once(&long);
    replica.all_ended("asg-terminate", &[("drained", 2)]);
    stage.rest(&[&replica]).await;
}

/// Another program completes one of two hooks: the instance waits for the other.
#[tokio::test(start_paused = true)]
async fn the_end_of_one_hook_is_not_that_of_the_other() {
    let stage = held(s(30));
    let replica = stage.start(&[]).await;
    let short = terminate(&stage, "short", s(60));
    let long = terminate(&stage, "long", s(1200));
    sleep(s(100)).await;
    stage.world.aws.autoscaling.complete(&short, HookResult::Continue);
    sleep(s(1090)).await;
    assert!(ended(&stage).is_empty(), "nothing is deleted in spite of the budget: {:?}", ended(&stage));
    stage.until_handled(s(45)).await;
    assert_eq!(ended(&stage), [("held".to_owned(), 1198, Some(30), By::Delete)]);
    stage.completed_once(&long);
    stage.rest(&[&replica]).await;
}

/// A replica takes over when only the longest grace period keeps the hook, and its first list is slow.
#[tokio::test(start_paused = true)]
async fn a_takeover_waits_for_the_first_list() {
    let stage = Stage::new(1, 0);
    add(&stage, "slow", s(1800));
    let first = stage.start(&[]).await;
    let token = stage.terminate(0, s(900), Wrapping::Event);
    sleep(s(1000)).await;
    stage.world.faults.add(Rule::on("list pods", Fault::Status(503)).times(6));
    let second = stage.start(&[]).await;
    let (exit, ..) = first.stop().await;
    assert_eq!(exit, ebbtide::service::Exit::Clean);
    sleep(s(790)).await;
    assert!(stage.has_pod("slow"));
    assert!(stage.world.aws.autoscaling.action(&token).is_some_and(|action| action.completions.is_empty()));
    stage.until_handled(s(60)).await;
    assert_eq!(stage.ends_of("slow").len(), 1, "its grace period is not shortened");
    stage.completed_once(&token);
    stage.rest(&[&second]).await;
}

#[tokio::test(start_paused = true)]
async fn two_hooks_wait_for_each_other_no_longer_than_either_can_live() {
    let stage = held(s(30));
    let replica = stage.start(&[]).await;
    let short = terminate(&stage, "short", s(30));
    let long = terminate(&stage, "long", s(7200));
    stage.until_handled(s(3001)).await;
    // 100 timeouts less the margin, the grace period, and 2 s for the removal.
    assert_eq!(ended(&stage), [("held".to_owned(), 3000 - 3 - 30 - 2, Some(30), By::Delete)]);
    stage.completed_once(&short);
    stage.completed_once(&long);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_hook_s_default_leaves_a_budget_the_hook_s_timeout() {
    for (flags, deleted_after) in [(&[][..], Some(s(898))), (&["--heartbeat", "off"], None)] {
        let stage = held(s(1800));
        let replica = stage.start(flags).await;
        let token = stage.terminate(0, s(900), Wrapping::Event);
        sleep(s(450)).await;
        assert_eq!(ended(&stage).is_empty(), deleted_after.is_some(), "{flags:?}: {:?}", ended(&stage));
        stage.until_handled(s(2251)).await;
        let deletion = stage.ends_of("held").remove(0);
        if let Some(after) = deleted_after {
            assert_eq!((deletion.at, deletion.grace), (after, Some(1800)));
        }
        stage.completed_once(&token);
        stage.rest(&[&replica]).await;
    }
}

/// The role may send no heartbeats: the hook lives only for its timeout, until the right is granted.
#[tokio::test(start_paused = true)]
async fn while_heartbeats_are_denied_a_drain_has_the_hook_s_own_timeout() {
    for (granted, deleted_at) in [(false, 300 - 30 - 30 - 2), (true, 898)] {
        let stage = held(s(30));
        stage.world.faults.add(Rule::on(BEAT, Fault::Status(403)));
        let replica = stage.start(&[]).await;
        let token = terminate(&stage, "hook", s(300));
        sleep(s(190)).await;
        if granted {
            stage.world.faults.clear();
        }
        stage.until_handled(s(deleted_at - 150)).await;
        assert_eq!(ended(&stage), [("held".to_owned(), deleted_at, Some(30), By::Delete)]);
        stage.completed_once(&token);
        replica.ended_once("asg-terminate", "drained");
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_drain_timeout_stays_whatever_the_grace_period() {
    let stage = held(s(600));
    let replica = stage.start(&["--drain-timeout", "asg-terminate=5m"]).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    stage.until_handled(s(271)).await;
    let deletion = stage.ends_of("held").remove(0);
    assert!(deletion.at <= s(11) && deletion.grace < Some(270), "{deletion:?}");
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

/// A pod with a longer grace period comes to the node while it is drained.
#[tokio::test(start_paused = true)]
async fn room_is_made_for_a_pod_that_comes_later() {
    let stage = held(s(30));
    let replica = stage.start(&[]).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    sleep(s(60)).await;
    add(&stage, "late", s(900));
    stage.unblock(0);
    stage.until_handled(s(1000)).await;
    let late = stage.ends_of("late");
    assert_eq!((late.len(), late[0].by, late[0].grace), (1, By::Eviction, None), "{late:?}");
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_look_up_is_repeated_while_the_drain_goes_on() {
    let stage = held(s(30));
    stage.world.faults.add(Rule::on("DescribeLifecycleHooks", Fault::Throttle));
    let replica = stage.start(&[]).await;
    let token = stage.terminate(0, s(900), Wrapping::Event);
    sleep(s(100)).await;
    assert!(stage.calls(BEAT) >= 5, "it may expire after 30 s: {}", stage.calls(BEAT));
    stage.world.faults.clear();
    sleep(s(600)).await;
    let beats = stage.calls(BEAT);
    sleep(s(190)).await;
    assert!(stage.calls(BEAT) <= beats + 1, "the hook's own timeout counts: {beats} {}", stage.calls(BEAT));
    stage.until_handled(s(45)).await;
    assert_eq!(ended(&stage), [("held".to_owned(), 898, Some(30), By::Delete)]);
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

/// Of two hooks one is short, and the other's times can't be read for some minutes.
#[tokio::test(start_paused = true)]
async fn a_hook_of_unknown_times_may_be_the_latest() {
    let stage = held(s(30));
    let replica = stage.start(&[]).await;
    let short = terminate(&stage, "short", s(30));
    sleep(s(5)).await;
    stage.world.faults.add(Rule::on("DescribeLifecycleHooks", Fault::Throttle));
    let long = terminate(&stage, "long", s(1200));
    sleep(s(200)).await;
    stage.world.faults.clear();
    stage.until_handled(s(1040)).await;
    assert_eq!(ended(&stage), [("held".to_owned(), 1203, Some(30), By::Delete)]);
    stage.completed_once(&short);
    stage.completed_once(&long);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn an_assumed_deadline_overrides_no_budget() {
    let stage = held(s(30));
    stage.world.faults.add(Rule::on("DescribeLifecycleHooks", Fault::Status(403)));
    let replica = stage.start(&[]).await;
    let token = stage.terminate(0, s(3600), Wrapping::Event);
    stage.until_handled(s(3000)).await;
    assert!(ended(&stage).is_empty(), "{:?}", ended(&stage));
    replica.ended_once("asg-terminate", "blocked");
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_launch_is_awaited_for_the_hook_s_own_time_once_that_is_known() {
    let stage = Stage::new(1, 0);
    stage.world.kube.set_ready(&node(0), false);
    stage.world.faults.add(Rule::on("DescribeLifecycleHooks", Fault::Status(500)));
    let replica = stage.start(&["--on", "asg-launch=ready", "--on-failed-launch", "abandon"]).await;
    stage.world.aws.autoscaling.add_hook("group", "hook", HookSpec::launching(s(300)));
    let token = stage.world.aws.autoscaling.begin("group", "hook", &instance(0));
    let at = stage.world.clock.now();
    let body = messages::lifecycle(Wrapping::Event, false, ("group", "hook", &token), &instance(0), at);
    let message = stage.world.aws.sqs.send(body);
    sleep(s(20)).await;
    stage.world.faults.clear();
    sleep(s(245)).await;
    assert!(!deleted(&stage, &message));
    stage.until_handled(s(7)).await;
    assert_eq!(stage.calls(COMPLETE), 1);
    replica.ended_once("asg-launch", "not-ready");
    stage.rest(&[&replica]).await;
}

/// The longer of two hooks is over; the other, which came later, keeps the instance.
#[tokio::test(start_paused = true)]
async fn the_end_of_the_longer_hook_is_not_that_of_one_that_came_later() {
    let stage = held(s(30));
    let replica = stage.start(&[]).await;
    let long = terminate(&stage, "long", s(1500));
    sleep(s(50)).await;
    let short = terminate(&stage, "short", s(1200));
    sleep(s(50)).await;
    stage.world.aws.autoscaling.complete(&long, HookResult::Continue);
    sleep(s(1000)).await;
    assert!(ended(&stage).is_empty(), "{:?}", ended(&stage));
    stage.unblock(0);
    stage.until_handled(s(60)).await;
    stage.completed_once(&short);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn pods_are_told_to_stop_when_both_hooks_are_over() {
    for timeouts in [(600, 600), (600, 700)] {
        let stage = held(s(30));
        let replica = stage.start(&[]).await;
        let (a, b) = (terminate(&stage, "a", s(timeouts.0)), terminate(&stage, "b", s(timeouts.1)));
        sleep(s(100)).await;
        stage.world.aws.autoscaling.complete(&a, HookResult::Continue);
        stage.world.aws.autoscaling.complete(&b, HookResult::Continue);
        sleep(s(450)).await;
        assert!(!ended(&stage).is_empty(), "{timeouts:?}\n{}", stage.story());
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_action_ends_the_delay() {
    let stage = held(s(30));
    let replica = stage.start(&["--delay", "asg-terminate=20m", "--drain-timeout", "asg-terminate=1h"]).await;
    let token = terminate(&stage, "hook", s(120));
    sleep(s(30)).await;
    stage.world.aws.autoscaling.complete(&token, HookResult::Continue);
    stage.until_handled(s(150)).await;
    assert_eq!(ended(&stage).len(), 1, "{}", stage.story());
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_action_reaches_all_nodes_of_the_instance() {
    let stage = Stage::new(0, 0);
    stage.world.aws.ec2.put(&instance(0), &[]);
    for name in ["old", "new"] {
        stage.world.kube.add_node(name, &instance(0));
        stage.world.kube.add_pod(Pod::on(name).named(&format!("on-{name}")).labels([("app", "x")]));
    }
    stage.world.kube.add_budget("default", "b", [("app", "x")], Limit::MaxUnavailable(0));
    let replica = stage.start(&[]).await;
    let token = terminate(&stage, "hook", s(300));
    sleep(s(60)).await;
    stage.world.aws.autoscaling.complete(&token, HookResult::Continue);
    stage.until_handled(s(180)).await;
    assert_eq!(ended(&stage).len(), 2, "{:?}\n{}", ended(&stage), stage.story());
    stage.rest(&[&replica]).await;
}
