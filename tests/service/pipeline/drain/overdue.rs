//! Pods that are still there after their grace period: their containers have ended and a finalizer holds them, or their kubelet is
//! silent.

use crate::drains::{left, pod};
use crate::harness::{Stage, node, s};
use ebbtide_sim::kube::Pod;
use ebbtide_sim::messages::Wrapping;
use tokio::time::{Instant, sleep};

const FINALIZER: &str = "kueue.x-k8s.io/managed";

#[tokio::test(start_paused = true)]
async fn a_finished_pod_that_a_finalizer_holds_is_not_waited_for() {
    let stage = Stage::new(1, 1);
    for phase in ["Succeeded", "Failed"] {
        let name = phase.to_lowercase();
        stage.world.kube.add_pod(pod(&name).phase(phase).finalizer(FINALIZER));
        // Its controller has deleted it before the drain.
        stage.world.kube.update_pod("default", &name, |pod| {
            pod.metadata.deletion_timestamp = pod.metadata.creation_timestamp.clone();
        });
    }
    let replica = stage.start(&[]).await;
    let token = stage.terminate(0, s(600), Wrapping::Event);
    stage.until_handled(s(5)).await;
    stage.completed_once(&token);
    replica.ended_once("asg-terminate", "drained");
    assert_eq!(left(&stage), ["failed", "succeeded"]);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn an_evicted_pod_that_a_finalizer_holds_is_waited_for_until_its_containers_have_ended() {
    let stage = Stage::new(1, 1);
    stage.world.kube.add_pod(pod("job").grace(s(60)).stops_in(s(40)).finalizer(FINALIZER));
    let replica = stage.start(&[]).await;
    let begun = Instant::now();
    let token = stage.terminate(0, s(3600), Wrapping::Event);
    sleep(s(39)).await;
    assert!(stage.results(&token).is_empty(), "its containers run");
    stage.until_handled(s(60)).await;
    stage.completed_once(&token);
    replica.ended_once("asg-terminate", "drained");
    // The watch shows no phase: a list after the grace period does.
    assert!(begun.elapsed() < s(75), "{:?}", begun.elapsed());
    assert_eq!((left(&stage), stage.calls("list pods")), (vec!["job".to_owned()], 2), "{}", stage.story());
    stage.rest(&[&replica]).await;
}

/// The watch shows its end: only a pod that is overdue is worth a list.
#[tokio::test(start_paused = true)]
async fn a_pod_that_stops_in_its_grace_period_costs_no_list() {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_pod(pod("slow").grace(s(60)).stops_in(s(58)));
    let replica = stage.start(&[]).await;
    let token = stage.terminate(0, s(3600), Wrapping::Event);
    stage.until_handled(s(65)).await;
    stage.completed_once(&token);
    assert_eq!(stage.calls("list pods"), 2, "at the begin and at the end\n{}", stage.story());
    stage.rest(&[&replica]).await;
}

/// The instance is broken, and its pods stay Terminating: nobody will report their end. A hook must not wait an hour for that.
#[tokio::test(start_paused = true)]
async fn a_dead_kubelet_ends_the_drain_once_every_grace_period_is_over() {
    let stage = Stage::new(2, 2);
    stage.world.kube.add_pod(pod("slow").grace(s(90)));
    let replica = stage.start(&[]).await;
    stage.world.kube.set_ready(&node(0), false);
    let begun = Instant::now();
    let token = stage.terminate(0, s(3600), Wrapping::Event);
    sleep(s(89)).await;
    assert!(stage.results(&token).is_empty(), "a pod may still be stopping");
    // Lists of overdue pods are up to a minute apart.
    stage.until_handled(s(75)).await;
    assert!(begun.elapsed() > s(90), "{:?}", begun.elapsed());
    stage.completed_once(&token);
    replica.ended_once("asg-terminate", "node-dead");
    assert_eq!(stage.world.kube.pods_on(&node(0)).len(), 3, "their objects are left to Kubernetes");
    assert!(stage.calls("list pods") <= 6, "{}", stage.story());
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_that_comes_back_within_a_minute_is_waited_for() {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("web").grace(s(10)));
    let replica = stage.start(&[]).await;
    sleep(s(1)).await;
    stage.world.kube.set_ready(&node(0), false);
    let token = stage.terminate(0, s(3600), Wrapping::Event);
    sleep(s(55)).await;
    assert!(stage.results(&token).is_empty() && stage.has_pod("web"), "the kubelet is silent, but not dead");
    stage.world.kube.set_ready(&node(0), true);
    stage.until_handled(s(5)).await;
    stage.completed_once(&token);
    replica.ended_once("asg-terminate", "drained");
    stage.rest(&[&replica]).await;
}

/// A budget counts no pod of such a node any more, and the node serves nobody.
#[tokio::test(start_paused = true)]
async fn a_budget_on_a_dead_node_holds_the_drain_for_three_minutes() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.start(&[]).await;
    stage.world.kube.set_ready(&node(0), false);
    let token = stage.terminate(0, s(3600), Wrapping::Event);
    sleep(s(175)).await;
    assert!(stage.results(&token).is_empty());
    stage.until_handled(s(20)).await;
    stage.completed_once(&token);
    replica.ended_once("asg-terminate", "node-dead");
    assert!(stage.ends_of("web-0-0").is_empty(), "no budget was overridden");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_failing_eviction_on_a_dead_node_is_still_a_failure() {
    let stage = Stage::new(1, 1);
    stage.world.kube.deny("create pods/eviction");
    let replica = stage.start(&["--at-deadline", "leave"]).await;
    stage.world.kube.set_ready(&node(0), false);
    let token = stage.terminate(0, s(900), Wrapping::Event);
    sleep(s(800)).await;
    assert!(stage.results(&token).is_empty());
    stage.until_handled(s(140)).await;
    replica.ended_once("asg-terminate", "failed");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_dead_kubelet_runs_no_long_grace_period() {
    // Whether the pod is deleted before the silence begins, and how long it is waited for after that.
    for (before, at_most) in [(false, 180), (true, 600)] {
        let stage = Stage::new(1, 0);
        stage.world.kube.add_pod(pod("slow").grace(s(3600)).stops_in(None));
        let replica = stage.start(&[]).await;
        let silent = || stage.world.kube.set_ready(&node(0), false);
        if !before {
            silent();
        }
        let token = stage.terminate(0, s(7200), Wrapping::Event);
        sleep(s(30)).await;
        assert_eq!(stage.ends_of("slow").len(), 1);
        if before {
            silent();
        }
        sleep(s(at_most - if before { 2 } else { 32 })).await;
        assert!(stage.results(&token).is_empty(), "{before}");
        stage.until_handled(s(10)).await;
        stage.completed_once(&token);
        replica.ended_once("asg-terminate", "node-dead");
        assert!(stage.calls("list pods") <= 4, "{}", stage.story());
        stage.rest(&[&replica]).await;
    }
}

/// It says so itself, and may be stopping its pods.
#[tokio::test(start_paused = true)]
async fn a_kubelet_that_is_not_ready_is_not_silent() {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_pod(pod("slow").grace(s(1500)).stops_in(None));
    let replica = stage.start(&[]).await;
    stage.world.kube.set_ready(&node(0), false);
    stage.world.kube.update_node(&node(0), |node| {
        let conditions = node.status.as_mut().and_then(|status| status.conditions.as_mut()).into_iter().flatten();
        for ready in conditions.filter(|condition| condition.type_ == "Ready") {
            "False".clone_into(&mut ready.status);
        }
    });
    let token = stage.terminate(0, s(7200), Wrapping::Event);
    sleep(s(1495)).await;
    assert!(stage.results(&token).is_empty());
    stage.until_handled(s(75)).await;
    replica.ended_once("asg-terminate", "node-dead");
    stage.rest(&[&replica]).await;
}
