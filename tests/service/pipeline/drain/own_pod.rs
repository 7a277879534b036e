//! The service's own pod: evicted last of all, after which another replica finishes the drain.

use crate::drains::{CRITICAL, end_of, ended, left, pod};
use crate::harness::{Replica, Stage, node, s};
use ebbtide::runtime::Tasks;
use ebbtide::service::Exit;
use ebbtide_sim::kube::{By, Limit, Pod};
use ebbtide_sim::messages::Wrapping;
use std::time::Duration;
use tokio::time::sleep;

/// Returns the flags of a replica that runs in this pod.
fn runs_in(pod: &str) -> Vec<&str> {
    vec!["--pod-namespace", "default", "--pod-name", pod]
}

/// Waits until a replica has ended in order, without a signal.
async fn ended_by_itself(replica: Replica) -> Tasks {
    let ended = tokio::time::timeout(s(100), replica.ended()).await;
    let (exit, tasks) = ended.expect("it must end by itself");
    assert_eq!(exit, Exit::Clean);
    tasks
}

/// Returns a world of two nodes: the first has a pod, a DaemonSet's pod and our own pod, the second has a slow pod.
fn our_own_node() -> Stage {
    let stage = Stage::new(2, 0);
    stage.world.kube.add_pod(pod("web").stops_in(s(5)));
    stage.world.kube.add_pod(pod("agent").daemonset());
    stage.world.kube.add_pod(pod("ours").priority(CRITICAL).stops_in(s(3)));
    stage.world.kube.add_pod(Pod::on(&node(1)).named("slow").grace(s(60)).stops_in(s(40)));
    stage
}

#[tokio::test(start_paused = true)]
async fn the_own_pod_is_evicted_last_and_the_other_replica_finishes() {
    let stage = our_own_node();
    let first = stage.start(&runs_in("ours")).await;
    let tokens = [stage.terminate(0, s(300), Wrapping::Event), stage.terminate(1, s(300), Wrapping::Event)];
    sleep(s(1)).await;
    let second = stage.start(&runs_in("other")).await;
    let tasks = ended_by_itself(first).await;
    let at = end_of(&stage, "ours").at;
    assert!(
        (s(40)..s(43)).contains(&at),
        "{at:?}: when all others were gone, and the other drain of this process had ended"
    );
    assert!(stage.world.clock.elapsed() < at + s(3), "before its containers are stopped");
    tasks.gone(|_| true).await;
    stage.until_handled(s(50)).await;
    assert_eq!(left(&stage), ["agent"]);
    for token in &tokens {
        stage.completed_once(token);
    }
    let ends = ["web", "ours", "slow"].map(|name| end_of(&stage, name).by);
    assert_eq!(ends, [By::Eviction; 3], "the second replica has nothing to repeat");
    second.all_ended("asg-terminate", &[("drained", 1)]);
    stage.rest(&[&second]).await;
}

#[tokio::test(start_paused = true)]
async fn a_later_replica_finishes_the_drain() {
    let stage = our_own_node();
    let only = stage.start(&runs_in("ours")).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    let tasks = ended_by_itself(only).await;
    tasks.gone(|_| true).await;
    assert_eq!(stage.world.aws.sqs.visible(), 1, "released");
    sleep(s(60)).await;
    assert_eq!(stage.calls("CompleteLifecycleAction"), 0);
    let next = stage.start(&runs_in("new")).await;
    stage.until_handled(s(5)).await;
    stage.completed_once(&token);
    assert_eq!(stage.calls("create pods/eviction"), 2);
    next.ended_once("asg-terminate", "drained");
    stage.rest(&[&next]).await;
}

#[tokio::test(start_paused = true)]
async fn a_replica_whose_own_pod_is_blocked_goes_on_working() {
    let stage = our_own_node();
    stage.world.kube.update_pod("default", "ours", |pod| {
        pod.metadata.labels = Some([("app".to_owned(), "ebbtide".to_owned())].into());
    });
    stage.world.kube.add_budget("default", "ebbtide", [("app", "ebbtide")], Limit::MaxUnavailable(0));
    let replica = stage.start(&runs_in("ours")).await;
    let token = stage.terminate(0, s(900), Wrapping::Event);
    sleep(s(929)).await;
    assert_eq!(stage.calls("CompleteLifecycleAction"), 0);
    let tries = stage.tries_of("ours");
    assert!(tries.len() > 5 && tries[0] >= s(5), "{tries:?}");
    stage.until_handled(s(2)).await;
    stage.completed_once(&token);
    assert_eq!(left(&stage), ["agent", "ours"], "never deleted");
    replica.ended_once("asg-terminate", "blocked");
    stage.spot(1);
    stage.until_handled(s(60)).await;
    replica.ended_once("spot", "drained");
    stage.rest(&[&replica]).await;
    let (exit, took, _) = replica.stop().await;
    assert_eq!((exit, took < Duration::from_secs(3)), (Exit::Clean, true));
}

#[tokio::test(start_paused = true)]
async fn the_own_pod_leaves_before_a_hard_deadline_even_if_a_pod_is_blocked() {
    let stage = Stage::new(2, 1);
    stage.block(0);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("ebbtide-1"));
    let _replica =
        stage.start(&["--pod-namespace", "default", "--pod-name", "ebbtide-1", "--at-deadline", "leave"]).await;
    stage.spot(0);
    sleep(s(121)).await;
    assert!(ended(&stage).iter().any(|(name, ..)| name == "ebbtide-1"), "{:?}", ended(&stage));
}

#[tokio::test(start_paused = true)]
async fn the_own_pod_does_not_leave_a_more_urgent_spot_drain_unfinished() {
    let stage = Stage::new(2, 1);
    stage.block(1);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("ebbtide-1"));
    let replica = stage.start(&["--pod-namespace", "default", "--pod-name", "ebbtide-1"]).await;
    stage.spot(1);
    stage.terminate(0, s(3600), Wrapping::Event);
    sleep(s(125)).await;
    assert!(ended(&stage).iter().any(|(name, ..)| name == "web-1-0"), "{:?}", ended(&stage));
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn two_notices_for_the_own_node_complete_the_hook_once() {
    // The own pod is evicted, and the same process holds a second notice for its node.
    let stage = Stage::new(2, 1);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("ebbtide-1").stops_in(s(20)));
    let first = stage.start(&["--pod-namespace", "default", "--pod-name", "ebbtide-1"]).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    stage.spot(0);
    let (exit, _) = first.ended().await;
    println!("r29 {exit:?}");
    assert_eq!(stage.calls("CompleteLifecycleAction"), 0);
    let second = stage.start(&["--pod-namespace", "default", "--pod-name", "ebbtide-2"]).await;
    stage.until_handled(s(60)).await;
    stage.completed_once(&token);
    assert!(stage.world.kube.pods_on(&node(0)).is_empty());
    stage.rest(&[&second]).await;
}
