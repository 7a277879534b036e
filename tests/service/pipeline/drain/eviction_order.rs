//! Order of evictions: ordinary pods, critical pods, pods of DaemonSets; or the tiers that the user has set.

use crate::drains::{CRITICAL, end_of, ended, left, pod};
use crate::harness::{Stage, node, s};
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::{By, Limit, Pod};
use ebbtide_sim::messages::Wrapping;
use std::time::Duration;
use tokio::time::sleep;

const EVICT: &str = "create pods/eviction";

#[tokio::test(start_paused = true)]
async fn critical_pods_go_when_ordinary_ones_are_gone() {
    let stage = Stage::new(1, 0);
    for (name, priority, takes) in
        [("web", 0, 10), ("job", CRITICAL - 1, 20), ("dns", CRITICAL, 2), ("csi", i32::MAX, 2)]
    {
        stage.world.kube.add_pod(pod(name).priority(priority).stops_in(s(takes)));
    }
    let replica = stage.start(&[]).await;
    stage.spot(0);
    stage.until_handled(s(30)).await;
    for name in ["web", "job"] {
        assert!(end_of(&stage, name).at < s(1));
    }
    for name in ["dns", "csi"] {
        let at = end_of(&stage, name).at;
        assert!((s(20)..s(21)).contains(&at), "{name} at {at:?}: when the last ordinary one was gone");
        assert_eq!(stage.tries_of(name).len(), 1);
    }
    replica.ended_once("spot", "drained");
    stage.rest(&[&replica]).await;
}

/// Adds an ordinary pod whose budget allows no eviction.
fn add_held(stage: &Stage, name: &str) {
    stage.world.kube.add_pod(pod(name).labels([("app", name)]).stops_in(s(1)));
    stage.world.kube.add_budget("default", name, [("app", name)], Limit::MaxUnavailable(0));
}

#[tokio::test(start_paused = true)]
async fn a_blocked_tier_leaves_half_of_the_time_to_the_next() {
    let stage = Stage::new(1, 0);
    add_held(&stage, "web");
    stage.world.kube.add_pod(pod("dns").priority(CRITICAL));
    let replica = stage.start(&[]).await;
    stage.spot(0);
    sleep(s(59)).await;
    assert_eq!(stage.tries_of("dns").len(), 0);
    stage.until_handled(s(61)).await;
    let at = end_of(&stage, "dns").at;
    assert!((s(60)..s(61)).contains(&at), "{at:?}");
    assert_eq!(end_of(&stage, "dns").by, By::Eviction);
    assert_eq!(end_of(&stage, "web").by, By::Delete);
    replica.ended_once("spot", "drained");
    stage.rest(&[&replica]).await;
}

/// Tiers of the user: batch jobs leave by themselves, the web is blocked, and the database behind it has its share of what was left when
/// the web's turn began.
#[tokio::test(start_paused = true)]
async fn a_blocked_tier_of_the_user_leaves_the_next_its_share() {
    let stage = Stage::new(1, 0);
    for (name, priority) in [("late", -1), ("batch", 9999), ("web", 10_000), ("db", 1_000_000), ("dns", CRITICAL)] {
        let held = (name == "web").then_some(("app", "web"));
        stage.world.kube.add_pod(pod(name).priority(priority).labels(held).stops_in(s(10)));
    }
    stage.world.kube.add_budget("default", "web", [("app", "web")], Limit::MaxUnavailable(0));
    let replica = stage.start(&["--priority-tier", "0,1000000", "--priority-tier", "10000"]).await;
    stage.spot(0);
    stage.until_handled(s(121)).await;
    for (name, begins) in [("late", 0), ("batch", 0), ("db", 65), ("dns", 65)] {
        let end = end_of(&stage, name);
        assert_eq!((end.by, end.at.as_secs()), (By::Eviction, begins), "{name}: half of 110 s after the jobs' 10 s");
    }
    assert_eq!(stage.tries_of("web").first().map(Duration::as_secs), Some(10));
    assert_eq!((end_of(&stage, "web").by, stage.tries_of("db").len()), (By::Delete, 1));
    replica.ended_once("spot", "drained");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn pods_of_daemonsets_go_last_and_once() {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_pod(pod("web").stops_in(s(5)));
    stage.world.kube.add_pod(pod("dns").priority(CRITICAL).stops_in(s(5)));
    for (name, takes) in [("agent-a", 2), ("agent-b", 8)] {
        stage.world.kube.add_pod(pod(name).daemonset().priority(i32::MAX).stops_in(s(takes)));
    }
    stage.world.kube.replace(s(1));
    let replica = stage.start(&["--evict-daemonsets"]).await;
    stage.spot(0);
    stage.until_handled(s(30)).await;
    let at = ["web", "dns", "agent-a", "agent-b"].map(|name| end_of(&stage, name).at.as_secs());
    assert_eq!(at, [0, 5, 10, 10]);
    assert_eq!(stage.world.kube.evictions().len(), 4, "what the DaemonSet puts back is left\n{}", stage.story());
    assert_eq!(stage.calls("create pods/eviction"), 4);
    replica.ended_once("spot", "drained");
    stage.rest(&[&replica]).await;
    assert_eq!((left(&stage).len(), stage.world.kube.evictions().len()), (2, 4), "{:?}", left(&stage));
}

#[tokio::test(start_paused = true)]
async fn an_undisturbed_drain_with_all_tiers_makes_few_calls() {
    for tiers in ["0,2000000000", "0,1,2,2000000000"] {
        let stage = Stage::new(2, 2);
        stage.world.kube.replace(s(3));
        stage.world.kube.add_pod(Pod::on(&node(0)).named("critical").priority(2_000_000_000));
        stage.world.kube.add_pod(Pod::on(&node(0)).named("agent").daemonset().stops_in(s(5)));
        stage.world.kube.add_pod(Pod::on(&node(0)).named("job").phase("Succeeded"));
        let replica = stage.start(&["--evict-daemonsets", "--priority-tier", tiers]).await;
        stage.spot(0);
        stage.until_handled(s(60)).await;
        let counts = ["patch nodes", "list pods", EVICT, "watch pods", "get nodes", "delete pods"];
        assert_eq!(counts.map(|operation| stage.calls(operation)), [1, 2, 5, 1, 0, 0], "{tiers}: {}", stage.story());
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_finished_pod_does_not_delay_the_next_tier() {
    let stage = Stage::new(1, 1);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("job").phase("Succeeded"));
    stage.world.kube.add_pod(Pod::on(&node(0)).named("critical").priority(2_000_000_000));
    stage.world.faults.add(Rule::on(EVICT, Fault::Hang).subject("default/job"));
    let replica = stage.start(&[]).await;
    let token = stage.terminate(0, s(600), Wrapping::Event);
    sleep(s(12)).await;
    stage.until_handled(s(120)).await;
    stage.completed_once(&token);
    let took = stage.world.calls.of("CompleteLifecycleAction")[0].at;
    let all = ended(&stage);
    assert!(all.iter().any(|(name, at, ..)| name == "critical" && *at <= 4), "{all:?}");
    assert!(took < s(8), "{took:?}\n{}", stage.story());
    stage.rest(&[&replica]).await;
}
