//! Reading and writing objects.

use super::{Bench, Pod, status, web};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, DeleteParams, GetParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Resource, ResourceExt};
use serde_json::json;
use std::time::Duration;

#[tokio::test(start_paused = true)]
async fn a_node_has_the_fields_of_a_real_one() {
    let bench = Bench::with_nodes(1);
    let node = bench.nodes().get("node-0").await.expect("the node must be there");
    let spec = node.spec.clone().expect("it must have a spec");
    assert_eq!(spec.provider_id.as_deref(), Some("aws:///eu-west-1a/i-00000000000000000"));
    let boot =
        |node: &v1::Node| node.status.as_ref().and_then(|status| status.node_info.clone()).map(|info| info.boot_id);
    let first = boot(&node);
    assert_eq!(first.as_ref().map(String::len), Some(36));
    bench.kube.reboot("node-0");
    assert_ne!(boot(&bench.kube.node("node-0").expect("the node must be there")), first);
    let missing = bench.nodes().get("node-9").await.map_err(status).expect_err("there is no such node");
    assert_eq!((missing.code, missing.message.as_str()), (404, "nodes \"node-9\" not found"));
    let calls: Vec<_> = bench.calls.all().into_iter().map(|call| (call.operation, call.subject, call.status)).collect();
    let call = |subject: &str, status| ("get nodes".to_owned(), subject.to_owned(), status);
    assert_eq!(calls, [call("node-0", 200), call("node-9", 404)]);
}

#[tokio::test(start_paused = true)]
async fn a_patch_at_an_old_version_is_a_conflict() {
    let bench = Bench::with_nodes(1);
    let read = bench.nodes().get("node-0").await.expect("the node must be there");
    let version = read.resource_version();
    let patch = json!({
        "metadata": { "resourceVersion": version, "annotations": { "a": "1", "b": "2" } },
        "spec": { "unschedulable": true, "taints": [{ "key": "ebbtide", "effect": "NoSchedule" }] },
    });
    let params = PatchParams::default();
    let written = bench.nodes().patch("node-0", &params, &Patch::Merge(&patch)).await.expect("the version is current");
    assert_ne!(written.resource_version(), version);
    let refused = bench.nodes().patch("node-0", &params, &Patch::Merge(&patch)).await.map_err(status);
    let refused = refused.expect_err("it is not current any more");
    assert_eq!((refused.code, refused.reason.as_str()), (409, "Conflict"));
    let undo =
        json!({ "metadata": { "annotations": { "a": null } }, "spec": { "unschedulable": null, "taints": null } });
    let undone = bench.nodes().patch("node-0", &params, &Patch::Merge(&undo)).await.expect("it asks for no version");
    assert_eq!(undone.annotations().keys().collect::<Vec<_>>(), ["b"]);
    let spec = undone.spec.clone().expect("it must have a spec");
    assert_eq!((spec.unschedulable, spec.taints), (None, None));
    let again = bench.nodes().patch("node-0", &params, &Patch::Merge(&undo)).await.expect("it changes nothing");
    assert_eq!(again.resource_version(), undone.resource_version());
    let other = Patch::Merge(json!({ "metadata": { "uid": "another" }, "spec": { "unschedulable": true } }));
    let refused = bench.nodes().patch("node-0", &params, &other).await.map_err(status).expect_err("it is another node");
    assert_eq!((refused.code, refused.reason.as_str()), (422, "Invalid"));
}

#[tokio::test(start_paused = true)]
async fn a_rival_writes_between_a_read_and_a_patch_a_set_number_of_times() {
    let bench = Bench::with_nodes(1);
    bench.kube.rival_taints(2);
    let params = PatchParams::default();
    for status_of_patch in [409, 409, 200] {
        let version = bench.nodes().get("node-0").await.expect("the node must be there").resource_version();
        let patch = json!({ "metadata": { "resourceVersion": version }, "spec": { "unschedulable": true } });
        let patched = bench.nodes().patch("node-0", &params, &Patch::Merge(&patch)).await.map_err(status);
        assert_eq!(patched.map_or_else(|refused| refused.code, |_| 200), status_of_patch);
    }
    let spec = bench.kube.node("node-0").and_then(|node| node.spec).expect("it must have a spec");
    let taints: Vec<_> = spec.taints.unwrap_or_default().into_iter().map(|taint| taint.key).collect();
    assert_eq!((taints, spec.unschedulable), (vec!["rival-0".to_owned(), "rival-1".to_owned()], Some(true)));
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_returns_the_result_and_stores_nothing() {
    let bench = Bench::with_nodes(1);
    let patch = Patch::Merge(json!({ "spec": { "unschedulable": true } }));
    let shown = bench.nodes().patch("node-0", &PatchParams::default().dry_run(), &patch).await.expect("it must work");
    assert_eq!(shown.spec.and_then(|spec| spec.unschedulable), Some(true));
    let kept = bench.kube.node("node-0").and_then(|node| node.spec).and_then(|spec| spec.unschedulable);
    assert_eq!(kept, None);
}

#[tokio::test(start_paused = true)]
async fn status_and_spec_are_written_under_separate_paths() {
    let bench = Bench::with_nodes(1);
    let both = json!({
        "spec": { "unschedulable": true },
        "status": { "conditions": [{ "type": "Draining", "status": "True" }] },
    });
    let params = PatchParams::default();
    let conditions = |node: &v1::Node| -> Vec<String> {
        let conditions = node.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
        conditions.into_iter().map(|condition| condition.type_).collect()
    };
    let node = bench.nodes().patch_status("node-0", &params, &Patch::Strategic(&both)).await.expect("it must work");
    assert_eq!(conditions(&node), ["Ready", "Draining"]);
    assert_eq!(node.spec.and_then(|spec| spec.unschedulable), None);
    let both = json!({ "spec": { "unschedulable": true }, "status": { "conditions": [] } });
    let node = bench.nodes().patch("node-0", &params, &Patch::Merge(&both)).await.expect("it must work");
    assert_eq!(conditions(&node), ["Ready", "Draining"]);
    assert_eq!(node.spec.and_then(|spec| spec.unschedulable), Some(true));
    assert_eq!(bench.calls.count("patch nodes/status"), 1);
}

#[tokio::test(start_paused = true)]
async fn lists_select_by_node_by_name_and_by_label() {
    let bench = Bench::with_nodes(2);
    bench.kube.add_pod(web(1));
    bench.kube.add_pod(Pod::on("node-1").named("db-0").labels([("app", "db"), ("tier", "back")]));
    bench.kube.add_pod(Pod::on("node-1").named("dns").namespace("kube-system"));
    let all: Api<v1::Pod> = Api::all(bench.client.clone());
    let names = |params: ListParams| {
        let all = all.clone();
        async move { all.list(&params).await.expect("the list must succeed").iter().map(ResourceExt::name_any).collect() }
    };
    let list = ListParams::default;
    let found: Vec<String> = names(list().fields("spec.nodeName=node-1").match_any()).await;
    assert_eq!(found, ["db-0", "dns"]);
    let found: Vec<String> = names(list().fields("spec.nodeName=node-1,metadata.namespace!=kube-system")).await;
    assert_eq!(found, ["db-0"]);
    for (selector, expected) in [
        ("app=web", vec!["web-1"]),
        ("app in (web, db),tier", vec!["db-0"]),
        ("app notin (web)", vec!["db-0", "dns"]),
        ("!app", vec!["dns"]),
        ("app!=db", vec!["web-1", "dns"]),
    ] {
        let found: Vec<String> = names(list().labels(selector)).await;
        assert_eq!(found, expected, "{selector}");
    }
    let found: Vec<String> = names(list().fields("metadata.name=dns")).await;
    assert_eq!(found, ["dns"]);
    let refused = all.list(&list().fields("spec.color=red")).await.map_err(status).expect_err("there is no such field");
    assert_eq!(refused.code, 400);
    assert_eq!(bench.calls.of("list pods")[0].subject, "node-1");
}

#[tokio::test(start_paused = true)]
async fn all_pages_show_one_state() {
    let bench = Bench::with_nodes(5);
    let params = ListParams::default().limit(2);
    let first = bench.nodes().list(&params).await.expect("the list must succeed");
    assert_eq!((first.items.len(), first.metadata.remaining_item_count), (2, Some(3)));
    bench.kube.remove_node("node-3");
    let token = first.metadata.continue_.clone().expect("there must be more");
    let second = bench.nodes().list(&params.clone().continue_token(&token)).await.expect("the list must succeed");
    assert_eq!(second.items.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["node-2", "node-3"]);
    assert_eq!(second.metadata.resource_version, first.metadata.resource_version);
    bench.kube.compact();
    let token = second.metadata.continue_.clone().expect("there must be more");
    let refused = bench.nodes().list(&params.continue_token(&token)).await.map_err(status);
    assert_eq!(refused.expect_err("it must be forgotten").code, 410);
}

#[tokio::test(start_paused = true)]
async fn a_metadata_request_returns_only_metadata() {
    let bench = Bench::with_nodes(1);
    bench.kube.add_pod(web(1));
    let list = bench.pods().list_metadata(&ListParams::default()).await.expect("the list must succeed");
    assert_eq!(list.items[0].types.as_ref().map(|types| types.kind.as_str()), Some("PartialObjectMetadata"));
    assert_eq!(list.items[0].metadata.labels.as_ref().map(|labels| labels["app"].as_str()), Some("web"));
    let one = bench.pods().get_metadata_with("web-1", &GetParams::any()).await.expect("the pod must be there");
    assert_eq!(one.metadata.uid, list.items[0].metadata.uid);
    let request = http::Request::get("/api/v1/pods/").header("accept", "application/json;as=PartialObjectMetadataList");
    let answer = bench.client.request_text(request.body(Vec::new()).expect("the request must be valid")).await;
    assert!(!answer.expect("the list must succeed").contains("containers"));
}

#[tokio::test(start_paused = true)]
async fn an_event_is_accepted_and_counted_as_a_series() {
    let bench = Bench::with_nodes(1);
    let node = bench.nodes().get("node-0").await.expect("the node must be there");
    let now = MicroTime(jiff::Timestamp::UNIX_EPOCH);
    let events: Api<Event> = Api::namespaced(bench.client.clone(), "default");
    let event = Event {
        metadata: ObjectMeta { name: Some("node-0.draining".to_owned()), ..ObjectMeta::default() },
        type_: Some("Normal".to_owned()),
        reason: Some("Draining".to_owned()),
        note: Some("because".to_owned()),
        action: Some("Drain".to_owned()),
        event_time: Some(now.clone()),
        regarding: Some(node.object_ref(&())),
        reporting_controller: Some("ebbtide".to_owned()),
        reporting_instance: Some("ebbtide-0".to_owned()),
        ..Event::default()
    };
    events.create(&PostParams::default(), &event).await.expect("the event must be accepted");
    let series = Some(EventSeries { count: 2, last_observed_time: now });
    let again = Patch::Merge(Event { series, ..event.clone() });
    events.patch("node-0.draining", &PatchParams::default(), &again).await.expect("the series must be accepted");
    let kept = bench.kube.events();
    assert_eq!(kept.len(), 1);
    assert_eq!(kept[0].involved_object.name.as_deref(), Some("node-0"));
    assert_eq!(kept[0].message.as_deref(), Some("because"));
    assert_eq!(kept[0].series.as_ref().and_then(|series| series.count), Some(2));
    let metadata = ObjectMeta { name: Some("node-0.other".to_owned()), ..ObjectMeta::default() };
    let long = Event { metadata, note: Some("x".repeat(1025)), ..event };
    events.create(&PostParams::default(), &long).await.expect_err("a note has a limit");
    assert_eq!(bench.calls.count("create events"), 2);
    bench.kube.forget_before(Duration::ZERO);
    assert_eq!(bench.kube.events().len(), 1);
    tokio::time::sleep(Duration::from_secs(2)).await;
    bench.kube.forget_before(Duration::from_secs(1));
    assert!(bench.kube.events().is_empty());
}

#[tokio::test(start_paused = true)]
async fn leases_are_created_updated_and_deleted() {
    let bench = Bench::new();
    let leases: Api<Lease> = Api::namespaced(bench.client.clone(), "kube-node-lease");
    let metadata = ObjectMeta { name: Some("node-0".to_owned()), ..ObjectMeta::default() };
    let lease = Lease { metadata, ..Lease::default() };
    let mut first = leases.create(&PostParams::default(), &lease).await.expect("it must work");
    leases.create(&PostParams::default(), &lease).await.expect_err("it is there already");
    first.spec.get_or_insert_default().holder_identity = Some("me".to_owned());
    let second = leases.replace("node-0", &PostParams::default(), &first).await.expect("the version is current");
    let refused = leases.replace("node-0", &PostParams::default(), &first).await.map_err(status);
    assert_eq!(refused.expect_err("it is not current any more").code, 409);
    assert_ne!(second.resource_version(), first.resource_version());
    let other = DeleteParams::default()
        .preconditions(kube::api::Preconditions { uid: Some("another".to_owned()), resource_version: None });
    leases.delete("node-0", &other).await.expect_err("it is another one");
    leases.delete("node-0", &DeleteParams::default()).await.expect("it must work");
    assert!(leases.get_opt("node-0").await.expect("the call must succeed").is_none());
}

#[tokio::test(start_paused = true)]
async fn other_paths_answer_like_a_real_server() {
    let bench = Bench::new();
    assert_eq!(bench.client.apiserver_version().await.expect("it must answer").minor, "33");
    let (head, _) = bench.raw("GET", "/readyz", "").await;
    assert_eq!(head.status, 200);
    for path in ["/api/v1/pods/web-1", "/api/v1/namespaces/x/nodes", "/apis/apps/v1/statefulsets", "/nowhere"] {
        let (head, body) = bench.raw("GET", path, "").await;
        assert_eq!((head.status.as_u16(), &body["reason"]), (404, &json!("NotFound")), "{path}");
    }
    let (head, _) = bench.raw("DELETE", "/api/v1/nodes", "").await;
    assert_eq!(head.status, 405);
    let (_, review) = bench.raw("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "{}").await;
    assert_eq!(review["status"]["allowed"], true);
}
