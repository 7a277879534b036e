//! Speed with a large cluster.

use super::super::Limit;
use super::{Bench, Pod, seconds};
use futures_util::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1;
use kube::api::{Api, EvictParams, ListParams, Patch, PatchParams, WatchEvent, WatchParams};
use serde_json::json;
use std::time::Instant;

#[tokio::test(start_paused = true)]
async fn a_storm_over_a_thousand_nodes_takes_little_real_time() {
    let began = Instant::now();
    let bench = Bench::with_nodes(1000);
    for node in 0..1000 {
        for number in 0..10 {
            let pod = Pod::on(&format!("node-{node}")).named(&format!("web-{node}-{number}"));
            bench.kube.add_pod(pod.labels([("app", "web")]).stops_in(seconds(5)));
        }
    }
    bench.kube.add_budget("default", "web", [("app", "web")], Limit::MinAvailable(0));
    let built = began.elapsed();
    let all: Api<v1::Pod> = Api::all(bench.client.clone());
    let watch = all.watch_metadata(&WatchParams::default(), "0").await.expect("the watch must start");
    let gone =
        watch.filter(|event| std::future::ready(matches!(event, Ok(WatchEvent::Deleted(_))))).take(10_000).count();
    let drains = stream::iter(0..1000).for_each_concurrent(64, |node| {
        let (bench, all) = (&bench, all.clone());
        async move {
            let name = format!("node-{node}");
            let cordon = Patch::Merge(json!({ "spec": { "unschedulable": true } }));
            bench.nodes().patch(&name, &PatchParams::default(), &cordon).await.expect("the cordon must work");
            let params = ListParams::default().fields(&format!("spec.nodeName={name}")).match_any();
            for pod in all.list(&params).await.expect("the list must succeed") {
                let pod = pod.metadata.name.unwrap_or_default();
                bench.pods().evict(&pod, &EvictParams::default()).await.expect("the eviction must work");
            }
        }
    });
    let (gone, ()) = futures_util::join!(gone, async {
        tokio::time::sleep(seconds(1)).await;
        drains.await;
    });
    assert_eq!(gone, 10_000);
    assert!(bench.kube.pods().is_empty());
    println!("built in {built:?}, drained after {:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn fifteen_thousand_nodes_are_listed_and_watched() {
    let began = Instant::now();
    let bench = Bench::with_nodes(15_000);
    let built = began.elapsed();
    let params = WatchParams::default().initial_events();
    let mut nodes = Box::pin(bench.nodes().watch(&params, "0").await.expect("the watch must start"));
    let mut seen = 0;
    while let Some(WatchEvent::Added(_)) = nodes.try_next().await.expect("the watch must hold") {
        seen += 1;
    }
    assert_eq!(seen, 15_000);
    assert_eq!(bench.nodes().list(&ListParams::default()).await.expect("the list must succeed").items.len(), 15_000);
    println!("built in {built:?}, listed after {:?}", began.elapsed());
}
