//! Answers to evictions: blocking budgets, conflicts, and new pods of the same name.

use crate::drains::DELETE;
use crate::harness::{Stage, node, s};
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::{Limit, Pod};
use ebbtide_sim::messages::Wrapping;
use std::time::Duration;
use tokio::time::sleep;

#[tokio::test(start_paused = true)]
async fn a_budget_that_opens_lets_the_drain_go_on() {
    let stage = Stage::new(1, 2);
    stage.block(0);
    let replica = stage.start(&[]).await;
    let token = stage.terminate(0, s(600), Wrapping::Event);
    sleep(s(60)).await;
    let tries = stage.calls("create pods/eviction");
    assert!((20..=90).contains(&tries), "each pod every 1 to 5 s: {tries}");
    stage.unblock(0);
    stage.until_handled(s(10)).await;
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_of_the_budget_controller_is_respected() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    stage.world.kube.stall_budget("default", "budget-0", true);
    let replica = stage.start(&[]).await;
    stage.spot(0);
    sleep(s(29)).await;
    let tries = stage.calls("create pods/eviction");
    assert!((2..=3).contains(&tries), "one in ten seconds: {tries}");
    stage.unblock(0);
    stage.until_handled(s(20)).await;
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_conflict_does_not_mean_that_the_pod_is_gone() {
    let stage = Stage::new(1, 2);
    stage.world.faults.add(Rule::on("create pods/eviction", Fault::Status(409)).times(1));
    let replica = stage.start(&[]).await;
    stage.spot(0);
    stage.until_handled(s(30)).await;
    assert_eq!(stage.world.kube.pods_on(&node(0)).len(), 0);
    assert!(stage.calls("list pods") <= 4, "{}", stage.story());
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_replacement_of_the_same_name_is_another_pod() {
    let stage = Stage::new(2, 0);
    let db = |n: usize| Pod::on(&node(n)).named("db-0").statefulset("db").stops_in(s(5));
    stage.world.kube.add_pod(db(0));
    let replica = stage.start(&[]).await;
    // The answer of the list is so late that its pod has been replaced on another node meanwhile.
    stage.world.faults.add(Rule::on("list pods", Fault::Slow(s(8))).times(1));
    stage.spot(0);
    sleep(s(2)).await;
    stage.world.kube.remove_pod("default", "db-0");
    stage.world.kube.add_pod(db(1));
    stage.until_handled(s(30)).await;
    assert_eq!(stage.world.kube.evictions().len(), 0, "the replacement is not the pod that was listed");
    assert_eq!(stage.calls("create pods/eviction"), 1);
    assert_eq!(stage.world.kube.pods_on(&node(1)).len(), 1);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_statefulsets_new_pod_of_the_same_name_is_never_ended() {
    for (operation, room) in [("create pods/eviction", 1), (DELETE, 0)] {
        let stage = Stage::new(2, 0);
        let db = Pod::on(&node(0)).named("db-0").statefulset("db").labels([("app", "db")]);
        stage.world.kube.add_pod(db);
        stage.world.kube.add_budget("default", "db", [("app", "db")], Limit::MaxUnavailable(room));
        stage.world.kube.replace(Duration::ZERO);
        // The call succeeds, but neither its answer nor the watch arrives: it is retried.
        stage.world.faults.add(Rule::on(operation, Fault::LostResponse).times(1));
        stage.world.faults.add(Rule::on("watch pods", Fault::Hang));
        let old = stage.world.kube.pod("default", "db-0").and_then(|pod| pod.metadata.uid).unwrap();
        let replica = stage.start(&[]).await;
        stage.spot_of_age(0, s(100));
        stage.until_handled(s(21)).await;
        let new = stage.world.kube.pod("default", "db-0").unwrap();
        assert_eq!(new.spec.and_then(|spec| spec.node_name).as_deref(), Some("node-1"));
        assert_eq!(new.metadata.deletion_timestamp, None);
        let ended: Vec<_> = stage.ends_of("db-0").into_iter().map(|end| end.uid).collect();
        assert_eq!(ended, [old], "{operation}");
        let refused = stage.world.calls.of(operation).into_iter().filter(|call| call.status == 409);
        assert_eq!(refused.count(), 1, "the second try meant the old pod\n{}", stage.story());
        replica.ended_once("spot", "drained");
        stage.rest(&[&replica]).await;
    }
}
