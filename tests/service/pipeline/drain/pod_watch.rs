//! The watch of pods during a drain: breaks, expiry, and caches that lag behind.

use crate::harness::{Stage, node, s};
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::{Interrupt, Pod};
use ebbtide_sim::messages::Wrapping;
use k8s_openapi::api::core::v1::Pod as FullPod;
use kube::api::DeleteParams;
use std::time::Duration;
use tokio::time::sleep;

#[tokio::test(start_paused = true)]
async fn a_broken_watch_does_not_disturb_a_drain() {
    for how in [Interrupt::Close, Interrupt::Break] {
        let stage = Stage::new(1, 0);
        stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(100)).stops_in(s(20)));
        let replica = stage.start(&[]).await;
        stage.spot(0);
        sleep(s(10)).await;
        stage.world.kube.interrupt_watches(how);
        stage.until_handled(s(15)).await;
        assert_eq!(stage.calls("create pods/eviction"), 1);
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn deletions_missed_by_an_expired_watch_are_found_by_a_list() {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(100)).stops_in(s(20)));
    let replica = stage.start(&[]).await;
    stage.spot(0);
    sleep(s(10)).await;
    stage.world.faults.add(Rule::on("watch pods", Fault::Disconnect).times(4));
    stage.world.kube.interrupt_watches(Interrupt::Break);
    sleep(s(5)).await;
    stage.world.kube.compact();
    stage.until_handled(s(40)).await;
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_list_from_before_the_watch_began_is_made_again() {
    let stage = Stage::new(2, 0);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("going").stops_in(s(2)));
    stage.world.kube.add_pod(Pod::on(&node(1)).named("other").grace(s(300)).stops_in(s(60)));
    let replica = stage.start(&[]).await;
    sleep(s(1)).await;
    let pods: kube::Api<FullPod> = kube::Api::namespaced(stage.world.kube.client(), "default");
    pods.delete("going", &DeleteParams::default()).await.unwrap();
    // This list is answered late; meanwhile another drain begins the watch, at a newer version.
    stage.world.faults.add(Rule::on("list pods", Fault::Slow(s(5))).times(1));
    let first = stage.spot(0);
    sleep(s(3)).await;
    stage.spot(1);
    stage.until("the first drained", s(10), || stage.world.aws.sqs.deleted().contains(&first)).await;
    stage.until_handled(s(70)).await;
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn without_permission_to_watch_pods_lists_suffice() {
    let stage = Stage::new(1, 2);
    stage.world.faults.add(Rule::on("watch pods", Fault::Status(403)));
    let replica = stage.start(&[]).await;
    let token = stage.terminate(0, s(600), Wrapping::Event);
    stage.until_handled(s(30)).await;
    stage.completed_once(&token);
    assert_eq!(stage.calls("create pods/eviction"), 2, "a new list does not begin the evictions anew");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_expires_for_ever_costs_few_lists() {
    let stage = Stage::new(20, 0);
    for n in 0..20 {
        stage.world.kube.add_pod(Pod::on(&node(n)).named(&format!("slow-{n}")).grace(s(300)).stops_in(s(60)));
    }
    stage.world.faults.add(Rule::on("watch pods", Fault::ExpireWatch));
    let replica = stage.start(&[]).await;
    for n in 0..20 {
        stage.spot(n);
    }
    stage.until_handled(s(100)).await;
    let lists = stage.calls("list pods");
    assert!(lists < 20 * 20, "{lists} lists by 20 drains in a minute");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn after_an_expired_watch_a_new_drain_costs_no_more_calls() {
    let stage = Stage::new(4, 3);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(300)).stops_in(s(100)));
    let replica = stage.start(&[]).await;
    stage.spot(0);
    sleep(s(5)).await;
    stage.world.faults.add(Rule::on("watch pods", Fault::ExpireWatch).times(1));
    stage.world.kube.interrupt_watches(Interrupt::Close);
    sleep(s(5)).await;
    let before = (stage.calls("list pods"), stage.calls("create pods/eviction"));
    for n in 1..4 {
        stage.spot(n);
    }
    sleep(s(20)).await;
    let made = (stage.calls("list pods") - before.0, stage.calls("create pods/eviction") - before.1);
    assert_eq!(made, (6, 9));
    stage.until_handled(s(120)).await;
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn blocked_pods_that_a_list_finds_gone_are_no_longer_counted() {
    let stage = Stage::new(1, 2);
    stage.block(0);
    let replica = stage.start(&[]).await;
    stage.spot(0);
    sleep(s(10)).await;
    stage.world.faults.add(Rule::on("watch pods", Fault::Disconnect).times(4));
    stage.world.faults.add(Rule::on("create pods/eviction", Fault::Hang));
    stage.world.kube.interrupt_watches(Interrupt::Break);
    sleep(Duration::from_millis(100)).await;
    stage.world.kube.remove_pod("default", "web-0-0");
    stage.world.kube.remove_pod("default", "web-0-1");
    stage.world.kube.compact();
    stage.until_handled(s(130)).await;
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn lists_from_lagging_caches_do_not_prolong_a_drain() {
    let stage = Stage::new(1, 3);
    let replica = stage.start(&[]).await;
    stage.world.kube.fall_behind(true);
    let message = stage.spot(0);
    stage.until_handled(s(30)).await;
    assert_eq!(stage.world.kube.pods_on(&node(0)).len(), 0);
    assert_eq!(stage.world.aws.sqs.deleted(), [message]);
    assert_eq!(stage.calls("list pods"), 2, "what the watch has told, a cache must know: {}", stage.story());
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_drain_behind_a_lagging_cache_ends() {
    let stage = Stage::new(2, 1);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(300)).stops_in(s(60)));
    let replica = stage.start(&[]).await;
    stage.spot(0);
    sleep(s(2)).await;
    stage.world.faults.add(Rule::on("list pods", Fault::Status(504)).times(1));
    let second = stage.spot(1);
    stage.until("the second drained", s(10), || stage.world.aws.sqs.deleted().contains(&second)).await;
    stage.until_handled(s(70)).await;
    stage.rest(&[&replica]).await;
}
