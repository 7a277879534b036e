//! Pods that stay Terminating on a Ready node: a volume, the runtime or the network hangs.

use crate::drains::{blocked_pods, left, pod};
use crate::harness::{Replica, Stage, node, s};
use ebbtide_sim::kube::Pod;
use ebbtide_sim::messages::Wrapping;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStatus};
use std::time::Duration;
use tokio::time::sleep;

/// Returns a world with a pod that never goes, whose grace period is 30 s and whose containers still run, or have ended.
fn stuck(pod: Pod, runs: bool) -> Stage {
    let stage = Stage::new(1, 1);
    add(&stage, pod, runs);
    stage
}

fn add(stage: &Stage, pod: Pod, runs: bool) {
    stage.world.kube.add_pod(pod.grace(s(30)).hangs());
    let running = ContainerState { running: Some(ContainerStateRunning::default()), ..ContainerState::default() };
    let ended = ContainerState { terminated: Some(ContainerStateTerminated::default()), ..ContainerState::default() };
    stage.world.kube.update_pod("default", "stuck", |pod| {
        let state = Some(if runs { running } else { ended });
        let container = ContainerStatus { state, ..ContainerStatus::default() };
        pod.status.get_or_insert_default().container_statuses = Some(vec![container]);
    });
}

async fn drained_until(stage: &Stage, flags: &[&str], at_least: Duration) -> (Replica, String) {
    let replica = stage.start(flags).await;
    let token = stage.terminate(0, s(3600), Wrapping::Event);
    sleep(s(30) + at_least - s(5)).await;
    assert!(stage.results(&token).is_empty() && stage.calls("CompleteLifecycleAction") == 0, "{at_least:?}");
    stage.until_handled(s(15)).await;
    replica.ended_once("asg-terminate", "stuck");
    assert_eq!(left(stage), ["stuck"]);
    (replica, token)
}

#[tokio::test(start_paused = true)]
async fn a_hook_waits_for_a_stuck_pod_for_some_minutes() {
    for (runs, minutes) in [(false, 5), (true, 15)] {
        let stage = stuck(pod("stuck"), runs);
        let (replica, token) = drained_until(&stage, &[], s(60 * minutes)).await;
        stage.completed_once(&token);
        assert!(stage.calls("list pods") < 30, "{}", stage.story());
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_stuck_pod_is_a_failed_drain() {
    let stage = stuck(pod("stuck"), false);
    let (replica, token) = drained_until(&stage, &["--on-failed-drain", "leave"], s(300)).await;
    assert!(stage.results(&token).is_empty(), "the hook is left");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_stuck_pod_is_reported_a_minute_after_its_period() {
    let stage = stuck(pod("stuck"), true);
    let replica = stage.start(&[]).await;
    stage.terminate(0, s(3600), Wrapping::Event);
    sleep(s(85)).await;
    assert_eq!((blocked_pods(&replica), stage.world.kube.events().len()), (0, 0));
    sleep(s(15)).await;
    assert_eq!(blocked_pods(&replica), 1);
    let said: Vec<_> = stage.world.kube.events().into_iter().filter_map(|event| event.message).collect();
    assert_eq!(said.len(), 2, "{said:?}");
    for text in &said {
        assert!(text.contains("its termination, which was due at ") && text.contains("still run"), "{text}");
    }
    let condition = stage.condition(0).expect("the Node must have the condition");
    assert_eq!((&*condition.status, condition.reason.as_deref()), ("True", Some("Blocked")));
    assert!(condition.message.unwrap_or_default().contains("default/stuck is held back by: its termination"));
    stage.world.kube.remove_pod("default", "stuck");
    stage.until_handled(s(10)).await;
    replica.ended_once("asg-terminate", "drained");
    stage.rest(&[&replica]).await;
}

/// Nothing is gained by an early end: the node stays until the deadline in any case.
#[tokio::test(start_paused = true)]
async fn without_a_hook_a_stuck_pod_is_waited_for_until_the_deadline() {
    let stage = stuck(pod("stuck"), false);
    let replica = stage.start(&["--on", "rebalance=drain", "--drain-timeout", "rebalance=20m"]).await;
    crate::drains::rebalance(&stage, 0);
    sleep(s(1195)).await;
    assert_eq!(blocked_pods(&replica), 1);
    stage.until_handled(s(10)).await;
    replica.ended_once("rebalance", "timed-out");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn the_next_of_a_wave_waits_until_a_stuck_pod_is_given_up() {
    let stage = Stage::new(2, 1);
    add(&stage, pod("stuck"), false);
    for n in 0..2 {
        stage.label(n, "zone", "a");
    }
    let replica = stage.start(&["--wave", "zone=1"]).await;
    stage.terminate(0, s(3600), Wrapping::Event);
    sleep(s(10)).await;
    stage.terminate(1, s(3600), Wrapping::Event);
    sleep(s(315)).await;
    assert_eq!(stage.first_eviction(1), None, "{}", stage.story());
    stage.until_handled(s(30)).await;
    assert!(stage.first_eviction(1).is_some_and(|at| at > s(330)), "{}", stage.story());
    replica.all_ended("asg-terminate", &[("drained", 1), ("stuck", 1)]);
    stage.rest(&[&replica]).await;
}

/// Its volume does not stay, and a pod elsewhere waits for it.
#[tokio::test(start_paused = true)]
async fn the_volume_of_a_stuck_pod_is_waited_for() {
    let stage = stuck(pod("stuck").claim("data"), false);
    let replica = stage.start(&["--wait-for-volumes", "5m"]).await;
    let token = stage.terminate(0, s(3600), Wrapping::Event);
    sleep(s(335)).await;
    assert!(stage.results(&token).is_empty(), "the volume is attached");
    let attachment = stage.world.kube.attachments().remove(0);
    stage.world.kube.remove_attachment(&attachment);
    stage.until_handled(s(5)).await;
    stage.completed_once(&token);
    replica.ended_once("asg-terminate", "stuck");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_stuck_for_less_than_a_minute_is_not_reported() {
    let stage = stuck(pod("stuck"), true);
    let replica = stage.start(&[]).await;
    let token = stage.terminate(0, s(3600), Wrapping::Event);
    sleep(s(80)).await;
    stage.world.kube.remove_pod("default", "stuck");
    stage.until_handled(s(10)).await;
    stage.completed_once(&token);
    assert_eq!(stage.world.kube.events().len(), 0);
    assert!(stage.world.kube.pods_on(&node(0)).is_empty());
    stage.rest(&[&replica]).await;
}
