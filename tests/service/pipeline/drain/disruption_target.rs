//! The condition `DisruptionTarget` of a pod that is deleted past its budget: a Job does not count its end as a failure.

use crate::drains::{DELETE, add, deleted_in_time, end_of, held, rebalance};
use crate::harness::{Replica, Stage, metric, s};
use ebbtide_sim::fault::{Fault, Rule};
use k8s_openapi::api::core::v1::PodCondition;
use tokio::time::sleep;

const MARK: &str = "patch pods/status";

/// Returns the conditions of a pod.
fn conditions(stage: &Stage, name: &str) -> Vec<PodCondition> {
    stage.world.kube.pod("default", name).and_then(|pod| pod.status?.conditions).unwrap_or_default()
}

fn marks(replica: &Replica, outcome: &str) -> f64 {
    let series = "ebbtide_kube_calls_total{outcome=\"OUTCOME\",resource=\"pods/status\",verb=\"patch\"}";
    metric(&replica.metrics.render(&replica.tasks), &series.replace("OUTCOME", outcome))
}

#[tokio::test(start_paused = true)]
async fn a_pod_deleted_past_its_budget_is_marked_first() {
    let stage = held(s(30));
    let before = conditions(&stage, "held").len();
    let replica = stage.start(&[]).await;
    stage.spot(0);
    sleep(s(95)).await;
    let found = conditions(&stage, "held");
    assert_eq!(found.len(), before + 1, "the others stay: {found:?}");
    let mark = found.iter().find(|condition| condition.type_ == "DisruptionTarget").expect("the pod must be marked");
    assert_eq!((&*mark.status, mark.reason.as_deref()), ("True", Some("DeletionByEbbtide")));
    assert!(mark.message.as_ref().is_some_and(|said| said.contains("disruption budget budget-0")), "{mark:?}");
    let (marked, deleted) = (stage.world.calls.of(MARK), stage.world.calls.of(DELETE));
    assert!(marked.len() == 1 && deleted.len() == 1 && marked[0].at <= deleted[0].at, "{}", stage.story());
    stage.until_handled(s(30)).await;
    assert_eq!(deleted_in_time(&stage, "held", s(120)), 30);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_mark_that_fails_is_counted_and_delays_nothing() {
    for (fault, outcome) in [
        (Fault::Status(403), "denied"),
        (Fault::Status(503), "unavailable"),
        (Fault::ThrottleFor(8), "throttled"),
        (Fault::Hang, "timed-out"),
    ] {
        let stage = held(s(30));
        stage.world.faults.add(Rule::on(MARK, fault));
        let replica = stage.start(&[]).await;
        stage.spot(0);
        stage.until_handled(s(130)).await;
        let grace = deleted_in_time(&stage, "held", s(120));
        assert!(grace >= 29, "{fault:?}: {grace}");
        assert!(end_of(&stage, "held").at < s(91), "{fault:?} {}", stage.story());
        assert_eq!(stage.calls(MARK), 1, "{fault:?}");
        assert!(marks(&replica, outcome) >= 1.0, "{fault:?}");
        replica.ended_once("spot", "drained");
        stage.rest(&[&replica]).await;
    }
}

/// The eviction has marked it.
#[tokio::test(start_paused = true)]
async fn an_evicted_pod_is_not_marked_again() {
    let stage = Stage::new(1, 0);
    add(&stage, "slow", s(600));
    let replica = stage.start(&["--on", "rebalance=drain"]).await;
    rebalance(&stage, 0);
    sleep(s(10)).await;
    stage.spot(0);
    stage.until_handled(s(150)).await;
    assert_eq!((stage.calls(DELETE), stage.calls(MARK)), (1, 0), "{}", stage.story());
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_marks_nothing() {
    let stage = held(s(30));
    let replica = stage.start(&["--dry-run"]).await;
    stage.spot(0);
    stage.until_handled(s(150)).await;
    assert_eq!(stage.calls(MARK), 0);
    stage.rest(&[&replica]).await;
}
