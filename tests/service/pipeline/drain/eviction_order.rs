//! Who goes first, who goes last, and who stays.

use crate::harness::{Replica, Stage, instance, node, s};
use ebbtide::runtime::Tasks;
use ebbtide::service::Exit;
use ebbtide_sim::kube::{By, Evicted, Limit, Pod};
use ebbtide_sim::messages::{self, Wrapping};
use std::time::Duration;
use tokio::time::sleep;

const CRITICAL: i32 = 2_000_000_000;

/// The flags of a replica that runs in this pod.
fn runs_in(pod: &str) -> Vec<&str> {
    vec!["--pod-namespace", "default", "--pod-name", pod]
}

fn pod(name: &str) -> Pod {
    Pod::on(&node(0)).named(name)
}

/// Adds an ordinary pod that no budget lets go.
fn add_held(stage: &Stage, name: &str) {
    stage.world.kube.add_pod(pod(name).labels([("app", name)]).stops_in(s(1)));
    stage.world.kube.add_budget("default", name, [("app", name)], Limit::MaxUnavailable(0));
}

fn rebalance(stage: &Stage) {
    stage.world.aws.sqs.send(messages::rebalance("rebalance", &instance(0), stage.world.clock.now()));
}

/// The one eviction, or deletion, of a pod.
fn end_of(stage: &Stage, name: &str) -> Evicted {
    let mut ends = stage.ends_of(name);
    assert_eq!(ends.len(), 1, "{name}: {ends:?}\n{}", stage.story());
    ends.remove(0)
}

/// The names of the pods on the first node.
fn left(stage: &Stage) -> Vec<String> {
    let pods = stage.world.kube.pods_on(&node(0)).into_iter();
    let mut names: Vec<_> = pods.filter_map(|pod| pod.metadata.name).collect();
    names.sort();
    names
}

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
async fn pods_of_daemonsets_stay_unless_asked_for() {
    let stage = Stage::new(1, 1);
    stage.world.kube.add_pod(pod("agent").daemonset().priority(CRITICAL));
    let replica = stage.start(&[]).await;
    stage.spot(0);
    stage.until_handled(s(10)).await;
    assert_eq!(left(&stage), ["agent"]);
    stage.rest(&[&replica]).await;
}

/// Pods that ask for peace, each in another way.
fn add_peaceful(stage: &Stage) {
    for (name, key, value) in [
        ("ours", "ebbtide/ignore", "true"),
        ("karpenters", "karpenter.sh/do-not-disrupt", "true"),
        ("autoscalers", "cluster-autoscaler.kubernetes.io/safe-to-evict", "false"),
    ] {
        stage.world.kube.add_pod(pod(name).annotations([(key, value)]).grace(s(30)).stops_in(s(25)));
    }
    // These ask for nothing.
    for (name, key, value) in [
        ("not-ours", "ebbtide/ignore", "false"),
        ("not-autoscalers", "cluster-autoscaler.kubernetes.io/safe-to-evict", "true"),
    ] {
        stage.world.kube.add_pod(pod(name).annotations([(key, value)]));
    }
}

#[tokio::test(start_paused = true)]
async fn pods_that_ask_for_peace_have_it_until_the_last_moment() {
    let stage = Stage::new(1, 0);
    add_peaceful(&stage);
    let replica = stage.start(&["--respect-do-not-disrupt"]).await;
    stage.spot(0);
    // 120 s less 30 of grace and 12 for the eviction and the deletion.
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
async fn the_annotations_of_others_count_only_where_the_user_says_so() {
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

#[tokio::test(start_paused = true)]
async fn a_pod_that_asks_for_peace_and_is_held_too_is_deleted_in_time() {
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

#[tokio::test(start_paused = true)]
async fn a_soft_deadline_leaves_pods_in_peace() {
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

#[tokio::test(start_paused = true)]
async fn kubectls_switches_choose_the_pods() {
    let table: [(&[&str], &[&str]); 4] = [
        (&[], &[]),
        (&["--pod-selector", "app=web"], &["bare", "plain", "scratch", "scratch-done"]),
        (&["--keep-empty-dir"], &["scratch"]),
        (&["--keep-unmanaged"], &["bare"]),
    ];
    for (flags, stay) in table {
        let stage = Stage::new(1, 0);
        let kube = &stage.world.kube;
        kube.add_pod(pod("plain"));
        kube.add_pod(pod("web").labels([("app", "web")]));
        kube.add_pod(pod("scratch").emptydir());
        kube.add_pod(pod("bare").bare());
        kube.add_pod(pod("scratch-done").emptydir().phase("Succeeded"));
        kube.add_pod(pod("bare-done").bare().phase("Failed").labels([("app", "web")]));
        let replica = stage.start(flags).await;
        stage.spot(0);
        stage.until_handled(s(20)).await;
        assert_eq!(left(&stage), stay, "{flags:?}");
        replica.ended_once("spot", "drained");
        stage.rest(&[&replica]).await;
    }
}

/// Waits until a replica has ended in order, told by nobody.
async fn ended_by_itself(replica: Replica) -> Tasks {
    let ended = tokio::time::timeout(s(100), replica.ended()).await;
    let (exit, tasks) = ended.expect("it must end by itself");
    assert_eq!(exit, Exit::Clean);
    tasks
}

/// A node with a pod, with another of a DaemonSet, and with a replica of ours; and a second node with a pod that is slow to go.
fn our_own_node() -> Stage {
    let stage = Stage::new(2, 0);
    stage.world.kube.add_pod(pod("web").stops_in(s(5)));
    stage.world.kube.add_pod(pod("agent").daemonset());
    stage.world.kube.add_pod(pod("ours").priority(CRITICAL).stops_in(s(3)));
    stage.world.kube.add_pod(Pod::on(&node(1)).named("slow").grace(s(60)).stops_in(s(40)));
    stage
}

#[tokio::test(start_paused = true)]
async fn our_own_pod_goes_last_of_all_and_the_other_replica_finishes() {
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
async fn a_replica_that_starts_later_finishes_what_the_only_one_left() {
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
async fn our_own_pod_held_by_a_budget_stays_at_work() {
    let stage = our_own_node();
    stage.world.kube.update_pod("default", "ours", |pod| {
        pod.metadata.labels = Some([("app".to_owned(), "ebbtide".to_owned())].into());
    });
    stage.world.kube.add_budget("default", "ebbtide", [("app", "ebbtide")], Limit::MaxUnavailable(0));
    let replica = stage.start(&runs_in("ours")).await;
    let token = stage.terminate(0, s(60), Wrapping::Event);
    sleep(s(53)).await;
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
