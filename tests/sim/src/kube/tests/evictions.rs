//! Terminations of pods.

use super::super::{By, Evicted};
use super::{Bench, Pod, cause, just_after, just_before, seconds, web};
use kube::api::{DeleteParams, EvictParams, Preconditions};
use serde_json::json;
use std::time::Duration;

#[tokio::test(start_paused = true)]
async fn an_evicted_pod_ends_at_the_end_of_its_grace_period_at_the_latest() {
    let bench = Bench::with_nodes(1);
    bench.kube.add_pod(web(1).stops_in(None));
    let answer = bench.evict("web-1").await.expect("the eviction must be accepted");
    assert!(answer.is_success() && answer.code == 201, "{answer:?}");
    just_before(seconds(30)).await;
    let pod = bench.kube.pod("default", "web-1").expect("the pod must still stop");
    assert_eq!(pod.metadata.deletion_grace_period_seconds, Some(30));
    let ends = pod.metadata.deletion_timestamp.expect("it must have an end").0;
    assert_eq!(ends, bench.kube.shared.lock().clock.now() + Duration::from_millis(1));
    let conditions = pod.status.and_then(|status| status.conditions).unwrap_or_default();
    assert!(conditions.iter().any(|condition| condition.type_ == "DisruptionTarget"));
    just_after().await;
    assert!(!bench.is_there("web-1"));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_stops_sooner_is_gone_sooner() {
    let bench = Bench::with_nodes(1);
    bench.kube.add_pod(web(1).stops_in(seconds(7)));
    bench.kube.add_pod(web(2));
    bench.evict("web-1").await.expect("the eviction must be accepted");
    bench.evict("web-2").await.expect("the eviction must be accepted");
    just_before(seconds(7)).await;
    assert!(bench.is_there("web-1") && !bench.is_there("web-2"));
    just_after().await;
    assert!(!bench.is_there("web-1"));
}

#[tokio::test(start_paused = true)]
async fn the_requested_grace_period_replaces_the_pods_own() {
    let bench = Bench::with_nodes(1);
    bench.kube.add_pod(web(1).stops_in(None));
    bench.evict_with("web-1", json!({ "gracePeriodSeconds": 90 })).await.expect("the eviction must be accepted");
    just_before(seconds(90)).await;
    assert!(bench.is_there("web-1"));
    just_after().await;
    assert!(!bench.is_there("web-1"));
    let uid = bench.kube.evictions()[0].uid.clone();
    let (namespace, name, node) = ("default".to_owned(), "web-1".to_owned(), "node-0".to_owned());
    let at = Duration::ZERO;
    let expected = Evicted { at, namespace, name, uid, node, grace: Some(90), by: By::Eviction };
    assert_eq!(bench.kube.evictions(), [expected]);
    bench.kube.forget_before(seconds(1));
    assert_eq!(bench.kube.evictions(), []);
}

#[tokio::test(start_paused = true)]
async fn kubes_own_eviction_call_loses_its_delete_options() {
    let bench = Bench::with_nodes(1);
    bench.kube.add_pod(web(1));
    let options = DeleteParams { dry_run: true, ..DeleteParams::default() }.grace_period(5);
    let params = EvictParams { delete_options: Some(options), ..EvictParams::default() };
    bench.pods().evict("web-1", &params).await.expect("the eviction must be accepted");
    assert!(!bench.is_there("web-1"), "the dry run was not seen");
    assert_eq!(bench.kube.evictions()[0].grace, None);
}

#[tokio::test(start_paused = true)]
async fn a_second_deletion_can_only_shorten_the_grace_period() {
    let bench = Bench::with_nodes(1);
    bench.kube.add_pod(web(1).grace(seconds(600)).stops_in(None));
    bench.evict("web-1").await.expect("the eviction must be accepted");
    tokio::time::sleep(seconds(100)).await;
    let delete = |grace| {
        let (pods, params) = (bench.pods(), DeleteParams::default().grace_period(grace));
        async move { pods.delete("web-1", &params).await.expect("the deletion must be accepted") }
    };
    let period = || bench.kube.pod("default", "web-1").and_then(|pod| pod.metadata.deletion_grace_period_seconds);
    delete(700).await;
    assert_eq!(period(), Some(600));
    delete(20).await;
    assert_eq!(period(), Some(20));
    just_before(seconds(20)).await;
    assert!(bench.is_there("web-1"));
    just_after().await;
    assert!(!bench.is_there("web-1"));
}

#[tokio::test(start_paused = true)]
async fn a_grace_period_of_zero_and_a_finished_pod_are_gone_at_once() {
    let bench = Bench::with_nodes(1);
    bench.kube.add_pod(web(1).stops_in(None));
    bench.kube.add_pod(web(2).stops_in(None).phase("Succeeded"));
    let now = DeleteParams::default().grace_period(0);
    bench.pods().delete("web-1", &now).await.expect("the deletion must be accepted");
    bench.evict("web-2").await.expect("the eviction must be accepted");
    assert!(bench.kube.pods().is_empty());
    assert_eq!(bench.evict("web-1").await.expect_err("it must be gone").code, 404);
}

#[tokio::test(start_paused = true)]
async fn a_precondition_protects_a_replacement_with_the_same_name() {
    let bench = Bench::with_nodes(1);
    bench.kube.add_pod(web(1));
    let wrong = json!({ "preconditions": { "uid": "another" } });
    let refused = bench.evict_with("web-1", wrong).await.expect_err("it must be refused");
    assert!(refused.is_conflict() && refused.code == 409, "{refused:?}");
    let preconditions = Some(Preconditions { uid: Some("another".to_owned()), resource_version: None });
    let params = DeleteParams { preconditions, ..DeleteParams::default() };
    let refused = bench.pods().delete("web-1", &params).await.map_err(super::status).expect_err("it must be refused");
    assert!(refused.is_conflict(), "{refused:?}");
    assert!(bench.kube.evictions().is_empty());
    let uid = bench.kube.pod("default", "web-1").and_then(|pod| pod.metadata.uid);
    let right = json!({ "preconditions": { "uid": uid } });
    bench.evict_with("web-1", right).await.expect("the eviction must be accepted");
    assert!(!bench.is_there("web-1"));
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_ends_nothing() {
    let bench = Bench::with_nodes(1);
    bench.kube.add_pod(web(1));
    bench.evict_with("web-1", json!({ "dryRun": ["All"] })).await.expect("it must be accepted");
    let params = DeleteParams { dry_run: true, ..DeleteParams::default() };
    bench.pods().delete("web-1", &params).await.expect("it must be accepted");
    let (head, _) = bench.raw("POST", "/api/v1/namespaces/default/pods/web-1/eviction?dryRun=All", "{}").await;
    assert_eq!(head.status, 201);
    assert!(bench.is_there("web-1") && bench.kube.evictions().is_empty());
}

#[tokio::test(start_paused = true)]
async fn pods_on_a_node_that_is_not_ready_do_not_stop() {
    let bench = Bench::with_nodes(1);
    bench.kube.add_pod(web(1));
    bench.kube.add_pod(web(2));
    bench.kube.set_ready("node-0", false);
    bench.evict("web-1").await.expect("the eviction must be accepted");
    tokio::time::sleep(seconds(3600)).await;
    assert!(bench.is_there("web-1"));
    bench.kube.set_ready("node-0", true);
    assert!(!bench.is_there("web-1") && bench.is_there("web-2"));
}

#[tokio::test(start_paused = true)]
async fn the_out_of_service_taint_removes_terminating_pods_of_a_dead_node() {
    let bench = Bench::with_nodes(1);
    bench.kube.add_pod(web(1));
    bench.kube.add_pod(web(2));
    bench.kube.set_ready("node-0", false);
    bench.evict("web-1").await.expect("the eviction must be accepted");
    bench.kube.update_node("node-0", |node| {
        let (key, effect) = ("node.kubernetes.io/out-of-service".to_owned(), "NoExecute".to_owned());
        let taint = k8s_openapi::api::core::v1::Taint { key, effect, ..Default::default() };
        node.spec.get_or_insert_default().taints = Some(vec![taint]);
    });
    assert!(!bench.is_there("web-1") && bench.is_there("web-2"));
}

#[tokio::test(start_paused = true)]
async fn a_terminating_namespace_refuses_evictions() {
    let bench = Bench::with_nodes(1);
    bench.kube.add_pod(web(1));
    bench.kube.terminate_namespace("default");
    let refused = bench.evict("web-1").await.expect_err("it must be refused");
    assert!(refused.is_forbidden() && cause(&refused).0 == "NamespaceTerminating", "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_removed_node_go_at_once_and_of_a_deleted_node_later() {
    let bench = Bench::with_nodes(2);
    bench.kube.add_pod(web(1));
    bench.kube.add_pod(Pod::on("node-1").named("db-0"));
    bench.kube.remove_node("node-0");
    assert!(!bench.is_there("web-1"));
    bench.nodes().delete("node-1", &DeleteParams::default()).await.expect("it must be accepted");
    just_before(seconds(40)).await;
    assert!(bench.is_there("db-0"));
    just_after().await;
    assert!(!bench.is_there("db-0"));
}
