//! Replacement of pods.

use super::super::{Limit, Placement};
use super::{Bench, Pod, just_after, just_before, seconds, web};
use k8s_openapi::api::core::v1;
use kube::api::{Patch, PatchParams};
use serde_json::json;

fn cordon(bench: &Bench, node: &str, cordoned: bool) {
    bench.kube.update_node(node, |node| node.spec.get_or_insert_default().unschedulable = Some(cordoned));
}

fn names_on(bench: &Bench, node: &str) -> Vec<String> {
    bench.kube.pods_on(node).into_iter().filter_map(|pod| pod.metadata.name).collect()
}

#[tokio::test(start_paused = true)]
async fn a_replicaset_replaces_a_pod_as_soon_as_it_ends() {
    let bench = Bench::with_nodes(2);
    bench.kube.replace(seconds(5));
    bench.kube.add_pod(web(1).stops_in(None));
    bench.kube.add_budget("default", "web", [("app", "web")], Limit::MinAvailable(1));
    cordon(&bench, "node-0", true);
    bench.kube.add_pod(web(2).stops_in(None));
    bench.evict("web-1").await.expect("one eviction must be accepted");
    bench.evict("web-2").await.expect_err("two may not");
    just_before(seconds(5)).await;
    assert!(names_on(&bench, "node-1").is_empty());
    just_after().await;
    assert_eq!(names_on(&bench, "node-1").len(), 1);
    bench.evict("web-2").await.expect("the replacement must be ready");
    tokio::time::sleep(seconds(30)).await;
    assert_eq!((names_on(&bench, "node-0").len(), names_on(&bench, "node-1").len()), (0, 2));
}

#[tokio::test(start_paused = true)]
async fn a_statefulset_waits_until_its_pod_is_gone_and_uses_the_name_again() {
    let bench = Bench::with_nodes(2);
    bench.kube.replace(seconds(5));
    bench.kube.add_pod(Pod::on("node-0").statefulset("db").named("db-0").stops_in(None));
    let first = bench.kube.pod("default", "db-0").and_then(|pod| pod.metadata.uid);
    cordon(&bench, "node-0", true);
    bench.evict("db-0").await.expect("it must be accepted");
    just_before(seconds(35)).await;
    assert!(!bench.is_there("db-0"));
    just_after().await;
    let pod = bench.kube.pod("default", "db-0").expect("the pod must be replaced");
    assert_eq!(pod.spec.and_then(|spec| spec.node_name).as_deref(), Some("node-1"));
    assert_ne!(pod.metadata.uid, first);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_no_node_accepts_waits_for_one() {
    let bench = Bench::with_nodes(1);
    bench.kube.replace(seconds(1));
    bench.kube.add_pod(web(1));
    cordon(&bench, "node-0", true);
    bench.evict("web-1").await.expect("it must be accepted");
    tokio::time::sleep(seconds(60)).await;
    let waiting = bench.kube.pods();
    assert_eq!(waiting.len(), 1);
    assert_eq!(waiting[0].spec.as_ref().and_then(|spec| spec.node_name.clone()), None);
    bench.kube.add_node("node-1", "i-1");
    assert_eq!(names_on(&bench, "node-1"), [waiting[0].metadata.name.clone().unwrap_or_default()]);
    let phase = bench.kube.pods()[0].status.clone().and_then(|status| status.phase);
    assert_eq!(phase.as_deref(), Some("Running"));
}

#[tokio::test(start_paused = true)]
async fn pods_of_daemonsets_and_mirrors_return_to_their_node() {
    let bench = Bench::with_nodes(2);
    bench.kube.replace(seconds(1));
    bench.kube.add_pod(Pod::on("node-0").daemonset().named("agent-1"));
    bench.kube.add_pod(Pod::on("node-0").mirror().named("proxy-node-0"));
    let bare = bench.kube.add_pod(Pod::on("node-0").bare());
    for pod in ["agent-1", "proxy-node-0", &bare] {
        bench.evict(pod).await.expect("it must be accepted");
    }
    assert_eq!(names_on(&bench, "node-0"), ["proxy-node-0"]);
    tokio::time::sleep(seconds(2)).await;
    assert_eq!(names_on(&bench, "node-0").len(), 2);
    assert!(bench.kube.pods_on("node-1").is_empty());
}

#[tokio::test(start_paused = true)]
async fn one_pod_alone_may_come_back_to_its_node_until_that_is_gone() {
    let bench = Bench::with_nodes(2);
    bench.kube.add_pod(web(1));
    bench.kube.add_pod(web(2).owner("ReplicaSet", "op").placement(Placement::ByName).replaced_after(seconds(1)));
    cordon(&bench, "node-0", true);
    for n in [1, 2] {
        bench.evict(&format!("web-{n}")).await.expect("it must be accepted");
    }
    tokio::time::sleep(seconds(2)).await;
    let names = names_on(&bench, "node-0");
    assert!(matches!(&*names, [name] if name.starts_with("op-")), "{names:?}");
    bench.evict(&names[0]).await.expect("it must be accepted");
    tokio::time::sleep(seconds(2)).await;
    assert!(names_on(&bench, "node-0").len() == 1 && names_on(&bench, "node-0") != names, "its successor, too");
    bench.kube.remove_node("node-0");
    tokio::time::sleep(seconds(2)).await;
    assert!(bench.kube.pods().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_lost_node_is_replaced_and_so_are_its_pods() {
    let bench = Bench::with_nodes(2);
    bench.kube.replace(seconds(1));
    bench.kube.add_pod(web(1));
    bench.kube.add_pod(Pod::on("node-0").daemonset());
    bench.kube.remove_node("node-0");
    tokio::time::sleep(seconds(2)).await;
    assert_eq!(bench.kube.pods().len(), 1);
    assert_eq!(names_on(&bench, "node-1").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_taint_of_a_cordon_is_a_write_of_another_client() {
    let bench = Bench::with_nodes(1);
    bench.kube.taint_cordoned();
    let patch = |unschedulable| Patch::Merge(json!({ "spec": { "unschedulable": unschedulable } }));
    let cordoned = bench.nodes().patch("node-0", &PatchParams::default(), &patch(true)).await.expect("it must work");
    let taints = || bench.kube.node("node-0").and_then(|node| node.spec).and_then(|spec| spec.taints);
    assert_eq!(taints().expect("there must be a taint")[0].key, "node.kubernetes.io/unschedulable");
    let newer = bench.kube.node("node-0").and_then(|node| node.metadata.resource_version);
    assert_ne!(newer, cordoned.metadata.resource_version);
    let _: v1::Node =
        bench.nodes().patch("node-0", &PatchParams::default(), &patch(false)).await.expect("it must work");
    assert_eq!(taints(), None);
}
