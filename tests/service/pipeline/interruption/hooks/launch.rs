//! Launch hooks: kept alive until the instance is a Ready Node, then completed; or left to their timeout.

use crate::harness::{Stage, instance, node, s};
use crate::nodes::TAG;
use ebbtide::service::Exit;
use ebbtide_sim::aws::{ActionState, HookSpec};
use ebbtide_sim::kube::Pod;
use ebbtide_sim::messages::{self, Wrapping};
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

const COMPLETE: &str = "CompleteLifecycleAction";

const BEAT: &str = "RecordLifecycleActionHeartbeat";
const READY: [&str; 2] = ["--on", "asg-launch=ready"];

/// Returns a world whose instance 5 has been launched, and is no Node yet. Three receives make a message a dead letter.
fn launching() -> Stage {
    let stage = Stage::new(1, 1);
    stage.world.aws.ec2.put(&instance(5), &[(TAG, "")]);
    stage.world.aws.sqs.set_dead_letter(3);
    stage
}

/// Registers the instance as a Node that is not Ready yet.
fn registers(stage: &Stage) {
    stage.world.kube.add_node(&node(5), &instance(5));
    stage.set_ready(5, false);
}

fn no_dead_letters(stage: &Stage) {
    assert_eq!(stage.world.aws.sqs.dead_letters(), Vec::<String>::new());
}

/// Returns `--on asg-launch=ready` and other flags.
fn ready<'a>(others: &[&'a str]) -> Vec<&'a str> {
    READY.iter().chain(others).copied().collect()
}

#[tokio::test(start_paused = true)]
async fn a_launch_is_completed_within_a_second_of_ready() {
    for wrapping in [Wrapping::Event, Wrapping::Sns, Wrapping::Bare] {
        let stage = launching();
        let replica = stage.start(&READY).await;
        let token = stage.launch(5, s(300), wrapping);
        sleep(s(40)).await;
        registers(&stage);
        sleep(s(40)).await;
        assert_eq!((stage.results(&token), stage.world.aws.sqs.in_flight()), (Vec::new(), 1), "held");
        stage.set_ready(5, true);
        stage.until("completed", s(1), || !stage.results(&token).is_empty()).await;
        stage.completed_once(&token);
        stage.until_handled(s(2)).await;
        assert_eq!(stage.world.aws.sqs.receive_log().len(), 1, "by the watch's word, not by a redelivery");
        assert_eq!((stage.calls("patch nodes"), stage.calls("list pods"), stage.cordoned(5)), (0, 0, false));
        replica.ended_as("asg-launch", "ready", 1);
        no_dead_letters(&stage);
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_startup_taint_is_waited_for() {
    let stage = launching();
    let taints = ["--startup-taint", "cni.example/not-ready", "--startup-taint", "csi.example/not-ready"];
    let replica = stage.start(&ready(&taints)).await;
    let token = stage.launch(5, s(300), Wrapping::Event);
    registers(&stage);
    stage.taint(5, "cni.example/not-ready", "", "NoExecute");
    stage.taint(5, "csi.example/not-ready", "true", "NoSchedule");
    stage.taint(5, "team", "blue", "NoSchedule");
    stage.set_ready(5, true);
    sleep(s(30)).await;
    stage.untaint(5, "csi.example/not-ready");
    sleep(s(30)).await;
    assert_eq!(stage.results(&token), Vec::<String>::new());
    stage.untaint(5, "cni.example/not-ready");
    stage.until("completed", s(1), || !stage.results(&token).is_empty()).await;
    stage.completed_once(&token);
    stage.until_handled(s(2)).await;
    stage.rest(&[&replica]).await;
}

/// Components that come and go set taints below one domain. One that is set late counts, too.
#[tokio::test(start_paused = true)]
async fn every_startup_taint_with_the_prefix_is_waited_for() {
    let stage = launching();
    let replica = stage.start(&ready(&["--startup-taint", "readiness.k8s.io/*"])).await;
    let token = stage.launch(5, s(300), Wrapping::Event);
    registers(&stage);
    stage.taint(5, "readiness.k8s.io/network", "pending", "NoSchedule");
    stage.taint(5, "readiness.k8s.io.example/network", "", "NoSchedule");
    stage.set_ready(5, true);
    sleep(s(30)).await;
    stage.taint(5, "readiness.k8s.io/storage", "pending", "NoSchedule");
    stage.untaint(5, "readiness.k8s.io/network");
    sleep(s(30)).await;
    assert_eq!(stage.results(&token), Vec::<String>::new());
    stage.untaint(5, "readiness.k8s.io/storage");
    stage.until("completed", s(1), || !stage.results(&token).is_empty()).await;
    stage.completed_once(&token);
    stage.until_handled(s(2)).await;
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_launch_that_outlasts_its_hook_is_kept_alive() {
    let stage = launching();
    let replica = stage.start(&ready(&["--drain-timeout", "asg-launch=20m"])).await;
    let token = stage.launch(5, s(60), Wrapping::Event);
    sleep(s(300)).await;
    registers(&stage);
    sleep(s(300)).await;
    let beats = stage.calls(BEAT);
    assert!((19..=23).contains(&beats), "one each half-time, up to a tenth earlier: {beats}");
    stage.set_ready(5, true);
    stage.until_handled(s(2)).await;
    stage.completed_once(&token);
    assert_eq!(stage.world.aws.sqs.receive_log().len(), 1);
    no_dead_letters(&stage);
    stage.rest(&[&replica]).await;
    assert_eq!(stage.calls(BEAT), beats, "none after the completion");
}

#[tokio::test(start_paused = true)]
async fn on_failed_launch_decides_the_hook_of_an_instance_that_is_not_ready_in_time() {
    let (chosen, to_group, to_pool) = ("--on-failed-launch", ("EC2", "AutoScalingGroup"), ("EC2", "WarmPool"));
    let table = [
        (vec![], to_group, vec![]),
        (vec![chosen, "leave"], ("WarmPool", "AutoScalingGroup"), vec![]),
        (vec![chosen, "abandon"], to_group, vec!["ABANDON"]),
        // An instance need not become a Node to wait in a warm pool.
        (vec![chosen, "abandon"], to_pool, vec!["CONTINUE"]),
    ];
    for (flags, way, expected) in table {
        let stage = launching();
        let replica = stage.start(&ready(&flags)).await;
        let begun = Instant::now();
        let token = stage.launch_between(5, s(300), Wrapping::Event, way);
        sleep(s(30)).await;
        registers(&stage);
        // 300 s less a margin of 30.
        sleep_until(begun + s(269)).await;
        assert_eq!((stage.calls("CompleteLifecycleAction"), stage.world.aws.sqs.in_flight()), (0, 1), "{flags:?}");
        stage.until_handled(s(3)).await;
        assert_eq!(stage.results(&token), expected, "{flags:?} {way:?}");
        replica.ended_as("asg-launch", "not-ready", 1);
        let beats = stage.calls(BEAT);
        stage.set_ready(5, true);
        sleep(s(700)).await;
        assert_eq!((stage.calls(BEAT), stage.results(&token).len()), (beats, expected.len()), "it is over");
        if expected.is_empty() {
            let ActionState::Expired { at } = stage.action(&token).state else { panic!("it was left") };
            assert!(at < s(600), "its own timeout ended it: {at:?}");
        }
        no_dead_letters(&stage);
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_is_ready_on_its_way_into_the_warm_pool_completes_its_hook() {
    let stage = launching();
    let replica = stage.start(&READY).await;
    let token = stage.launch_between(5, s(300), Wrapping::Bare, ("EC2", "WarmPool"));
    sleep(s(30)).await;
    registers(&stage);
    stage.set_ready(5, true);
    stage.until_handled(s(2)).await;
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn another_replica_goes_on_after_a_shutdown_and_after_a_kill() {
    for killed in [false, true] {
        let stage = launching();
        let flags = ready(&["--drain-timeout", "asg-launch=20m"]);
        let first = stage.start(&flags).await;
        let token = stage.launch(5, s(60), Wrapping::Event);
        sleep(s(100)).await;
        registers(&stage);
        let tasks = if killed {
            first.kill().await
        } else {
            let (exit, _, tasks) = first.stop().await;
            assert_eq!(exit, Exit::Clean);
            tasks
        };
        tasks.gone(|_| true).await;
        let second = stage.start(&flags).await;
        sleep(s(200)).await;
        assert!(matches!(stage.action(&token).state, ActionState::Waiting { .. }), "killed: {killed}");
        stage.set_ready(5, true);
        stage.until("completed", s(1), || !stage.results(&token).is_empty()).await;
        stage.until_handled(s(2)).await;
        stage.completed_once(&token);
        assert_eq!(stage.world.aws.sqs.receive_log().len(), 2);
        no_dead_letters(&stage);
        stage.rest(&[&second]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_ready_before_the_start_completes_its_hook() {
    let stage = launching();
    registers(&stage);
    stage.set_ready(5, true);
    let token = stage.launch(5, s(300), Wrapping::Event);
    let replica = stage.start(&READY).await;
    stage.until("completed", s(1), || !stage.results(&token).is_empty()).await;
    stage.completed_once(&token);
    stage.until_handled(s(2)).await;
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn another_clusters_launch_is_not_ours() {
    let stage = Stage::new(1, 0);
    stage.world.aws.ec2.put(&instance(7), &[("kubernetes.io/cluster/other", "owned")]);
    let replica = stage.start(&READY).await;
    let token = stage.launch(7, s(60), Wrapping::Event);
    stage.until_handled(s(5)).await;
    replica.ended_as("asg-launch", "not-ours", 1);
    let action = stage.action(&token);
    assert_eq!((action.beats.len(), action.completions.len()), (0, 0));
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn the_hook_of_an_excluded_node_is_left_alone() {
    for flags in [&[][..], &["--node-selector", "pool=blue"]] {
        let stage = launching();
        let replica = stage.start(&ready(flags)).await;
        let token = stage.launch(5, s(60), Wrapping::Event);
        sleep(s(10)).await;
        registers(&stage);
        if flags.is_empty() {
            stage.annotate(5, "ebbtide/ignore", "true");
        }
        stage.until_handled(Duration::from_secs(2)).await;
        replica.ended_as("asg-launch", "excluded", 1);
        stage.set_ready(5, true);
        sleep(s(120)).await;
        assert_eq!(stage.results(&token), Vec::<String>::new());
        stage.rest(&[&replica]).await;
    }
}

/// An action that is over, because the instance died, does not hold its message until the deadline.
#[tokio::test(start_paused = true)]
async fn a_launch_whose_action_is_over_ends() {
    let stage = Stage::new(1, 0);
    stage.world.aws.ec2.put(&instance(5), &[("aws-node-termination-handler/managed", "true")]);
    let replica = stage.start(&["--on", "asg-launch=ready", "--drain-timeout", "asg-launch=4h"]).await;
    stage.world.aws.autoscaling.add_hook("group", "launch", HookSpec::launching(s(300)));
    let token = "00000000-0000-0000-0000-000000000000";
    let body =
        messages::lifecycle(Wrapping::Event, false, ("group", "launch", token), &instance(5), stage.world.clock.now());
    stage.world.aws.sqs.send(body);
    sleep(s(600)).await;
    let held = stage.world.aws.sqs.in_flight();
    assert_eq!(
        (stage.calls(BEAT) >= 1, held),
        (true, 0),
        "AWS said that it is over at the first beat; {}",
        stage.calls(COMPLETE)
    );
    stage.rest(&[&replica]).await;
}

/// With limits an old message about a termination is doubted. A launch ends no pods, and is none.
#[tokio::test(start_paused = true)]
async fn an_old_launch_is_no_termination() {
    for flags in [&["--max-draining", "1"], &["--verify", "always"]] {
        let stage = launching();
        let replica = stage.start(&ready(flags)).await;
        registers(&stage);
        stage.world.kube.add_pod(Pod::on(&node(5)).named("new"));
        stage.world.aws.autoscaling.join("group", &instance(5));
        stage.world.aws.autoscaling.add_hook("group", "launch", HookSpec::launching(s(300)));
        let names = ("group", "launch", "00000000-0000-4000-8000-000000000000");
        let at = stage.world.clock.now() - s(200);
        stage.world.aws.sqs.send(messages::lifecycle(Wrapping::Event, false, names, &instance(5), at));
        stage.until_handled(s(600)).await;
        sleep(s(60)).await;
        assert!(stage.has_pod("new") && !stage.cordoned(5), "{}", stage.story());
        stage.rest(&[&replica]).await;
    }
}
