//! Lists that the API server's caches answer: old, and not to be trusted with an end.

use crate::harness::{Stage, node, s};
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::Pod;
use k8s_openapi::api::core::v1::Pod as FullPod;
use tokio::time::{Instant, sleep};

/// A pod that was bound just before the cordon is in no cache yet.
#[tokio::test(start_paused = true)]
async fn a_pod_that_the_cache_does_not_know_is_evicted() {
    let stage = Stage::new(1, 0);
    let replica = stage.start(&[]).await;
    stage.world.kube.stop_caches(true);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("new"));
    let message = stage.spot(0);
    stage.until_handled(s(60)).await;
    let left = stage.world.kube.pods_on(&node(0));
    assert!(left.is_empty(), "{left:?}\n{}", stage.story());
    assert_eq!((stage.ends_of("new").len(), stage.world.aws.sqs.deleted()), (1, vec![message]));
    stage.rest(&[&replica]).await;
}

/// The watch, which another drain has started, sees the pod's end before the slow list arrives that shows it: no later event tells of it.
#[tokio::test(start_paused = true)]
async fn a_pod_that_ended_while_it_was_listed_is_not_waited_for() {
    let stage = Stage::new(2, 0);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(100)).stops_in(s(90)));
    stage.world.kube.add_pod(Pod::on(&node(1)).named("old").grace(s(30)).stops_in(s(4)));
    let replica = stage.start(&[]).await;
    stage.spot(0);
    sleep(s(5)).await;
    let pods: kube::Api<FullPod> = kube::Api::namespaced(stage.world.kube.client(), "default");
    drop(pods.delete("old", &kube::api::DeleteParams::default()).await.expect("it must be there"));
    stage.world.faults.add(Rule::on("list pods", Fault::Slow(s(8))).times(1));
    let (begun, second) = (Instant::now(), stage.spot(1));
    stage.until("the second drained", s(60), || stage.world.aws.sqs.deleted().contains(&second)).await;
    assert!(begun.elapsed() < s(12), "{:?}\n{}", begun.elapsed(), stage.story());
    stage.until_handled(s(120)).await;
    stage.rest(&[&replica]).await;
}

/// The first list may be from before the pods of `DaemonSet`s came: those of the next one are the first.
#[tokio::test(start_paused = true)]
async fn pods_of_daemonsets_that_a_stale_list_does_not_show_are_evicted() {
    let stage = Stage::new(1, 0);
    stage.world.kube.stop_caches(true);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("agent").daemonset().stops_in(s(5)));
    let replica = stage.start(&["--evict-daemonsets"]).await;
    stage.spot(0);
    sleep(s(10)).await;
    stage.world.kube.stop_caches(false);
    stage.until_handled(s(60)).await;
    assert_eq!(stage.ends_of("agent").len(), 1, "{}", stage.story());
    replica.ended_once("spot", "drained");
    stage.rest(&[&replica]).await;
}

/// A list may be from between the pods of two `DaemonSet`s: each has its own first.
#[tokio::test(start_paused = true)]
async fn a_daemonset_that_a_stale_list_does_not_show_yet_is_evicted_beside_others() {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("logs").owner("DaemonSet", "logs").stops_in(s(5)));
    stage.world.kube.stop_caches(true);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("metrics").owner("DaemonSet", "metrics").stops_in(s(5)));
    stage.world.kube.replace(s(1));
    let replica = stage.start(&["--evict-daemonsets"]).await;
    stage.spot(0);
    sleep(s(10)).await;
    stage.world.kube.stop_caches(false);
    stage.until_handled(s(60)).await;
    let ends = ["logs", "metrics"].map(|name| stage.ends_of(name).len());
    assert_eq!((ends, stage.world.kube.evictions().len()), ([1, 1], 2), "{}", stage.story());
    replica.ended_once("spot", "drained");
    stage.rest(&[&replica]).await;
}
