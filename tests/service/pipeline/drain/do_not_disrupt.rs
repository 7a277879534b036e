//! Pods that ask not to be disrupted: evicted only just before a hard deadline.

use crate::drains::{end_of, left, pod};
use crate::harness::{Stage, instance, s};
use ebbtide_sim::kube::{By, Limit};
use ebbtide_sim::messages;
use tokio::time::sleep;

/// Adds pods that ask not to be disrupted, each by another annotation.
fn add_peaceful(stage: &Stage) {
    for (name, key, value) in [
        ("ours", "ebbtide/ignore", "true"),
        ("karpenters", "karpenter.sh/do-not-disrupt", "true"),
        ("autoscalers", "cluster-autoscaler.kubernetes.io/safe-to-evict", "false"),
    ] {
        stage.world.kube.add_pod(pod(name).annotations([(key, value)]).grace(s(30)).stops_in(s(25)));
    }
    // The values of these annotations allow a disruption.
    for (name, key, value) in [
        ("not-ours", "ebbtide/ignore", "false"),
        ("not-autoscalers", "cluster-autoscaler.kubernetes.io/safe-to-evict", "true"),
    ] {
        stage.world.kube.add_pod(pod(name).annotations([(key, value)]));
    }
}

#[tokio::test(start_paused = true)]
async fn do_not_disrupt_pods_are_evicted_just_in_time() {
    let stage = Stage::new(1, 0);
    add_peaceful(&stage);
    let replica = stage.start(&["--respect-do-not-disrupt"]).await;
    stage.spot(0);
    // 120 s less a grace period of 30 s, and 12 s for the eviction and the deletion.
    sleep(s(77)).await;
    assert_eq!(left(&stage), ["autoscalers", "karpenters", "ours"]);
    assert!((replica.metric("ebbtide_pods_blocked ") - 3.0).abs() < f64::EPSILON);
    stage.until_handled(s(42)).await;
    for name in ["ours", "karpenters", "autoscalers"] {
        let end = end_of(&stage, name);
        assert_eq!((end.by, end.grace, stage.tries_of(name).len()), (By::Eviction, None, 1));
        assert!((s(78)..s(79)).contains(&end.at), "{end:?}");
    }
    replica.ended_once("spot", "drained");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn annotations_of_other_tools_count_only_with_the_flag() {
    let stage = Stage::new(1, 0);
    add_peaceful(&stage);
    let replica = stage.start(&[]).await;
    stage.spot(0);
    sleep(s(27)).await;
    assert_eq!(left(&stage), ["ours"]);
    stage.until_handled(s(92)).await;
    replica.ended_once("spot", "drained");
    stage.rest(&[&replica]).await;
}

/// Karpenter's annotation may limit the protection to a duration from the pod's start.
#[tokio::test(start_paused = true)]
async fn a_protection_with_a_duration_ends_with_it() {
    let stage = Stage::new(1, 0);
    for (name, value) in [("short", "10s"), ("long", "1h30m"), ("over", "2s"), ("nonsense", "soon")] {
        stage.world.kube.add_pod(pod(name).annotations([("karpenter.sh/do-not-disrupt", value)]).grace(s(30)));
    }
    let replica = stage.start(&["--respect-do-not-disrupt"]).await;
    sleep(s(5)).await;
    stage.spot(0);
    sleep(s(4)).await;
    assert_eq!(left(&stage), ["long", "short"]);
    sleep(s(2)).await;
    assert_eq!(left(&stage), ["long"]);
    stage.until_handled(s(110)).await;
    // 120 s less a grace period of 30 s, and 12 s for the eviction and the deletion; the notice came after 5 s.
    assert!((s(83)..s(84)).contains(&end_of(&stage, "long").at), "{:?}", end_of(&stage, "long"));
    replica.ended_once("spot", "drained");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_do_not_disrupt_pod_with_a_blocking_budget_is_deleted_in_time() {
    let stage = Stage::new(1, 0);
    stage
        .world
        .kube
        .add_pod(pod("both").annotations([("ebbtide/ignore", "true")]).labels([("app", "both")]).stops_in(s(25)));
    stage.world.kube.add_budget("default", "both", [("app", "both")], Limit::MaxUnavailable(0));
    let replica = stage.start(&[]).await;
    stage.spot(0);
    stage.until_handled(s(120)).await;
    let end = end_of(&stage, "both");
    assert!(end.by == By::Delete && matches!(end.grace, Some(29..=30)), "{end:?}");
    assert!(stage.tries_of("both").len() > 1, "an eviction was tried");
    replica.ended_once("spot", "drained");
    stage.rest(&[&replica]).await;
}

fn rebalance(stage: &Stage) {
    stage.world.aws.sqs.send(messages::rebalance("rebalance", &instance(0), stage.world.clock.now()));
}

#[tokio::test(start_paused = true)]
async fn a_soft_deadline_leaves_do_not_disrupt_pods() {
    for flags in [&["--drain-timeout", "60s"][..], &["--drain-timeout", "60s", "--respect-do-not-disrupt"]] {
        let stage = Stage::new(1, 0);
        add_peaceful(&stage);
        let replica = stage.start(&[&["--on", "rebalance=drain"], flags].concat()).await;
        rebalance(&stage);
        sleep(s(59)).await;
        let peaceful: &[&str] = if flags.len() > 2 { &["autoscalers", "karpenters", "ours"] } else { &["ours"] };
        assert_eq!(left(&stage), peaceful);
        assert!((replica.metric("ebbtide_pods_blocked ") - peaceful.len() as f64).abs() < f64::EPSILON);
        stage.until_handled(s(2)).await;
        replica.ended_once("rebalance", "blocked");
        stage.rest(&[&replica]).await;
        assert_eq!(left(&stage), peaceful);
        assert_eq!(stage.tries_of("ours").len(), 0);
    }
}
