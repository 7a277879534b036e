//! Refusals by disruption budgets, and their duration.

use super::super::Limit;
use super::{Bench, Pod, cause, just_after, just_before, seconds, web};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Api, ListParams};
use serde_json::json;

const WEB: [(&str, &str); 1] = [("app", "web")];

fn three_pods(limit: Limit) -> Bench {
    let bench = Bench::with_nodes(1);
    for number in 1..=3 {
        bench.kube.add_pod(web(number).stops_in(seconds(10)));
    }
    bench.kube.add_budget("default", "web", WEB, limit);
    bench
}

#[tokio::test(start_paused = true)]
async fn an_exhausted_budget_refuses_with_the_servers_message() {
    let bench = three_pods(Limit::MinAvailable(2));
    bench.evict("web-1").await.expect("one eviction must be accepted");
    let refused = bench.evict("web-2").await.expect_err("two may not");
    assert_eq!((refused.code, refused.reason.as_str()), (429, "TooManyRequests"));
    assert_eq!(refused.message, "Cannot evict pod as it would violate the pod's disruption budget.");
    let (reason, message) = cause(&refused);
    assert_eq!(reason, "DisruptionBudget");
    assert_eq!(message, "The disruption budget web needs 2 healthy pods and has 2 currently");
    let (head, _) = bench.raw("POST", "/api/v1/namespaces/default/pods/web-2/eviction", "{}").await;
    assert_eq!((head.status.as_u16(), head.headers.get("retry-after")), (429, None));
    tokio::time::sleep(seconds(11)).await;
    assert!(!bench.is_there("web-1"));
    bench.evict("web-2").await.expect_err("that the first is gone changes nothing");
    bench.kube.add_pod(web(4));
    bench.evict("web-2").await.expect("the replacement must count");
}

#[tokio::test(start_paused = true)]
async fn the_status_follows_the_pods() {
    let bench = three_pods(Limit::MaxUnavailable(1));
    let budgets: Api<PodDisruptionBudget> = Api::all(bench.client.clone());
    let shown = || async {
        let list = budgets.list(&ListParams::default()).await.expect("the list must succeed");
        let status = list.items[0].status.clone().expect("there must be a status");
        (status.expected_pods, status.desired_healthy, status.current_healthy, status.disruptions_allowed)
    };
    assert_eq!(shown().await, (3, 2, 3, 1));
    bench.evict("web-1").await.expect("one eviction must be accepted");
    assert_eq!(shown().await, (3, 2, 2, 0));
    bench.kube.set_budget("default", "web", Limit::MaxUnavailable(2));
    assert_eq!(shown().await, (3, 1, 2, 1));
    bench.kube.add_pod(web(4).not_ready());
    assert_eq!(shown().await, (4, 2, 2, 0));
    bench.kube.remove_budget("default", "web");
    assert!(budgets.list(&ListParams::default()).await.expect("the list must succeed").items.is_empty());
    bench.evict("web-2").await.expect("without a budget it must be accepted");
}

#[tokio::test(start_paused = true)]
async fn the_budget_is_charged_before_the_uid_is_checked() {
    let bench = three_pods(Limit::MinAvailable(2));
    let wrong = || json!({ "preconditions": { "uid": "another" } });
    let refused = bench.evict_with("web-1", wrong()).await.expect_err("it must be refused");
    assert_eq!(refused.code, 409);
    // The budget recovers two minutes later if the pod did not terminate.
    just_before(seconds(120)).await;
    assert_eq!(bench.evict_with("web-1", wrong()).await.expect_err("it must be refused").code, 429);
    assert_eq!(bench.kube.disruptions_allowed("default", "web"), Some(0));
    just_after().await;
    assert_eq!(bench.kube.disruptions_allowed("default", "web"), Some(1));
}

#[tokio::test(start_paused = true)]
async fn pods_that_are_not_healthy_pass_the_budget() {
    let bench = three_pods(Limit::MinAvailable(3));
    bench.kube.add_pod(web(4).phase("Failed"));
    bench.kube.add_pod(web(5).phase("Pending"));
    bench.kube.add_pod(web(6).not_ready());
    for pod in ["web-4", "web-5", "web-6"] {
        bench.evict(pod).await.expect("it must be accepted");
    }
    bench.evict("web-1").await.expect_err("the pod is needed");
    bench.kube.set_budget("default", "web", Limit::MinAvailable(2));
    bench.evict("web-1").await.expect("one eviction must be accepted");
    bench.evict("web-1").await.expect("a terminating pod may be evicted again");
    bench.evict("web-2").await.expect_err("no other pod may be evicted");
}

#[tokio::test(start_paused = true)]
async fn several_budgets_for_one_pod_are_a_server_error() {
    let bench = three_pods(Limit::MinAvailable(0));
    bench.kube.add_budget("default", "all", [], Limit::MinAvailable(0));
    let refused = bench.evict("web-1").await.expect_err("it must be refused");
    assert_eq!(refused.code, 500);
    assert!(refused.message.starts_with("This pod has more than one PodDisruptionBudget"), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn a_budget_that_is_not_counted_yet_refuses_with_retry_after_ten_seconds() {
    let bench = three_pods(Limit::MinAvailable(1));
    bench.kube.stall_budget("default", "web", true);
    let (head, body) = bench.raw("POST", "/api/v1/namespaces/default/pods/web-1/eviction", "{}").await;
    assert_eq!(head.status, 429);
    assert_eq!(head.headers["retry-after"], "10");
    assert_eq!(body["details"]["causes"][0]["reason"], "DisruptionBudget");
    bench.kube.stall_budget("default", "web", false);
    bench.evict("web-1").await.expect("it must be accepted");
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_checks_the_budget_and_charges_nothing() {
    let bench = three_pods(Limit::MinAvailable(2));
    for _ in 0..2 {
        bench.evict_with("web-1", json!({ "dryRun": ["All"] })).await.expect("it must be accepted");
    }
    assert_eq!(bench.kube.disruptions_allowed("default", "web"), Some(1));
    bench.kube.set_budget("default", "web", Limit::MinAvailable(3));
    bench.evict_with("web-1", json!({ "dryRun": ["All"] })).await.expect_err("it must be refused");
}

#[tokio::test(start_paused = true)]
async fn a_deletion_ignores_budgets_and_is_counted() {
    let bench = three_pods(Limit::MinAvailable(3));
    bench.kube.add_pod(Pod::on("node-0").named("other"));
    bench.pods().delete("web-1", &kube::api::DeleteParams::default()).await.expect("it must be accepted");
    let refused = bench.evict("web-2").await.expect_err("it must be refused");
    assert_eq!(cause(&refused).1, "The disruption budget web needs 3 healthy pods and has 2 currently");
    bench.evict("other").await.expect("no budget selects this pod");
}
