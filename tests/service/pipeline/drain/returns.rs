//! Pods that come back to the cordoned node, whatever evicts them (cilium#28549, calico#6136).

use crate::drains::{DELETE, pod, terminate};
use crate::harness::{Stage, node, s};
use ebbtide_sim::kube::{Interrupt, Limit, Placement};
use std::time::Duration;
use tokio::time::sleep;

const EVICT: &str = "create pods/eviction";
const STAYS: &str = "comes back to the cordoned node, and stays";

/// Returns the notes of the Events that name a pod which stays.
fn notes(stage: &Stage) -> Vec<String> {
    let notes = stage.world.kube.events().into_iter().filter_map(|event| event.message);
    notes.filter(|note| note.contains(STAYS)).collect()
}

/// Returns a world of two nodes with a pod on the first that comes back at once.
fn comes_back(placement: Placement) -> Stage {
    let stage = Stage::new(2, 0);
    stage.world.kube.replace(Duration::from_millis(5));
    stage.world.kube.add_pod(pod("operator").owner("ReplicaSet", "operator").stops_in(s(1)).placement(placement));
    stage
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_comes_back_holds_no_hook() {
    for (placement, evictions) in [(Placement::TolerateAll, 4), (Placement::ByName, 10)] {
        let stage = comes_back(placement);
        let replica = stage.start(&[]).await;
        let token = terminate(&stage, "drain", s(3600));
        stage.until_handled(s(120)).await;
        stage.completed_once(&token);
        replica.ended_once("asg-terminate", "drained");
        let evicted = stage.calls(EVICT);
        assert!((3..=evictions).contains(&evicted), "{placement:?}: {evicted} evictions\n{}", stage.story());
        assert_eq!(stage.world.kube.pods_on(&node(0)).len(), 1, "it stays");
        stage.rest(&[&replica]).await;
        let notes = notes(&stage);
        assert!(matches!(&*notes, [note] if note.contains("default/operator")), "{notes:?}");
    }
}

/// A budget holds another pod until the spot instance goes.
#[tokio::test(start_paused = true)]
async fn before_the_node_goes_it_is_told_to_stop() {
    let stage = comes_back(Placement::TolerateAll);
    stage.world.kube.add_pod(pod("held").labels([("app", "held")]));
    stage.world.kube.add_budget("default", "held", [("app", "held")], Limit::MaxUnavailable(0));
    let replica = stage.start(&[]).await;
    stage.spot(0);
    let of_operator = || stage.world.kube.evictions().iter().filter(|pod| pod.name.starts_with("operator")).count();
    // Each gap in the watch brings a list.
    for _ in 0..8 {
        sleep(s(5)).await;
        stage.world.kube.interrupt_watches(Interrupt::Break);
    }
    sleep(s(30)).await;
    assert_eq!(of_operator(), 4, "{}", stage.story());
    stage.until_handled(s(60)).await;
    assert_eq!((of_operator(), stage.calls(DELETE)), (5, 1), "{}", stage.story());
    stage.rest(&[&replica]).await;
}

/// A spot instance goes with all pods of a `ReplicaSet` that have come back.
#[tokio::test(start_paused = true)]
async fn before_the_node_goes_each_that_came_back_is_told_to_stop() {
    let stage = Stage::new(2, 0);
    stage.world.kube.replace(Duration::from_millis(5));
    for n in 0..3 {
        let agent = pod(&format!("agent-{n}")).owner("ReplicaSet", "agent").stops_in(s(1));
        stage.world.kube.add_pod(agent.placement(Placement::TolerateAll));
    }
    stage.world.kube.add_pod(pod("held").labels([("app", "held")]));
    stage.world.kube.add_budget("default", "held", [("app", "held")], Limit::MaxUnavailable(0));
    let replica = stage.start(&[]).await;
    stage.spot(0);
    let agents = || {
        let all = stage.world.kube.evictions();
        all.iter().filter(|pod| pod.name.starts_with("agent")).map(|pod| pod.at).collect::<Vec<_>>()
    };
    // Each gap in the watch brings a list.
    for _ in 0..8 {
        sleep(s(10)).await;
        stage.world.kube.interrupt_watches(Interrupt::Break);
    }
    // The three that were there, those of the first list after the cordon, and two that came back.
    assert_eq!(agents().len(), 8, "{}", stage.story());
    stage.until_handled(s(60)).await;
    let last = agents().split_off(8);
    let in_time = last.iter().all(|at| (s(86)..s(89)).contains(at));
    assert!(last.len() == 3 && in_time, "{last:?}\n{}", stage.story());
    stage.rest(&[&replica]).await;
}

/// A user has uncordoned the node for a moment, and a `ReplicaSet` has placed its pods there.
#[tokio::test(start_paused = true)]
async fn what_comes_while_a_user_has_uncordoned_the_node_is_evicted() {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_pod(pod("held").labels([("app", "held")]));
    stage.world.kube.add_budget("default", "held", [("app", "held")], Limit::MaxUnavailable(0));
    let replica = stage.start(&[]).await;
    terminate(&stage, "drain", s(600));
    stage.until("cordoned", s(10), || stage.cordoned(0)).await;
    sleep(s(20)).await;
    stage.world.kube.update_node(&node(0), |node| node.spec.get_or_insert_default().unschedulable = None);
    for n in 0..5 {
        let late = pod(&format!("late-{n}")).owner("ReplicaSet", "late").placement(Placement::TolerateAll);
        stage.world.kube.add_pod(late);
    }
    stage.until("cordoned again", s(10), || stage.cordoned(0)).await;
    sleep(s(30)).await;
    stage.world.kube.remove_budget("default", "held");
    stage.until("evicted", s(60), || stage.world.kube.pods_on(&node(0)).is_empty()).await;
    assert!(notes(&stage).is_empty());
    stage.until_handled(s(60)).await;
    stage.rest(&[&replica]).await;
}
