//! Evictions that somebody blocks, whatever the status code of the answer: webhooks, policies, several budgets.

use crate::drains::{blocked_pods, deleted_in_time, pod};
use crate::harness::{Replica, Stage, metric, s};
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::Limit;
use ebbtide_sim::messages::Wrapping;
use tokio::time::sleep;

const EVICT: &str = "create pods/eviction";
const WEBHOOK: &str = "admission webhook \"drainer.strimzi.io\" denied the request: the pod will be rolled";
const POLICY: &str =
    "pods \"web-0-0\" is forbidden: ValidatingAdmissionPolicy 'keep' with binding 'all' denied request: no";
const BROKEN: &str = "Internal error occurred: failed calling webhook \"kyverno.svc\": failed to call webhook: EOF";

fn counted(replica: &Replica, line: &str) -> f64 {
    metric(&replica.metrics.render(&replica.tasks), line)
}

/// Returns what the Events about the pod and the Node say.
fn said(stage: &Stage) -> Vec<String> {
    stage.world.kube.events().into_iter().filter_map(|event| event.message).collect()
}

/// Drains a node under a hook until its end, and asserts that `by` is reported as what blocks the drain.
async fn blocks(stage: &Stage, by: &str) -> Replica {
    let replica = stage.start(&["--at-deadline", "leave"]).await;
    let token = stage.terminate(0, s(900), Wrapping::Event);
    sleep(s(20)).await;
    assert_eq!(blocked_pods(&replica), 1, "{by}");
    let condition = stage.condition(0).expect("the Node must have the condition");
    assert_eq!((&*condition.status, condition.reason.as_deref()), ("True", Some("Blocked")), "{by}");
    let message = condition.message.unwrap_or_default();
    assert!(message.contains(by) && !message.contains("is forbidden"), "{by}: {message}");
    let said = said(stage);
    assert!(said.len() == 2 && said.iter().all(|text| text.contains(by)), "{by}: {said:?}");
    assert!(stage.tries_of("web-0-0").len() > 3, "it is tried again");
    stage.until_handled(s(960)).await;
    stage.completed_once(&token);
    replica.ended_once("asg-terminate", "blocked");
    replica
}

#[tokio::test(start_paused = true)]
async fn webhooks_and_policies_block_an_eviction_whatever_their_code() {
    for (code, message, by) in [
        (400, WEBHOOK, "drainer.strimzi.io"),
        (403, WEBHOOK, "drainer.strimzi.io"),
        (429, WEBHOOK, "drainer.strimzi.io"),
        (500, WEBHOOK, "drainer.strimzi.io"),
        (422, POLICY, "ValidatingAdmissionPolicy 'keep'"),
        (403, POLICY, "ValidatingAdmissionPolicy 'keep'"),
    ] {
        let stage = Stage::new(1, 1);
        stage.world.faults.add(Rule::on(EVICT, Fault::Refuse(code, message)));
        let replica = blocks(&stage, by).await;
        assert!(counted(&replica, "ebbtide_evictions_total{result=\"refused\"}") > 3.0, "{code} {message}");
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn two_budgets_of_one_pod_block_its_eviction() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    stage.world.kube.add_budget("default", "second", [("app", "node-0")], Limit::MaxUnavailable(1));
    let replica = blocks(&stage, "more than one PodDisruptionBudget").await;
    stage.rest(&[&replica]).await;
}

/// The API server can't ask the webhook: a failure for retries and the gate, but the webhook is who must be repaired.
#[tokio::test(start_paused = true)]
async fn a_webhook_that_does_not_answer_is_named() {
    let stage = Stage::new(1, 1);
    stage.world.faults.add(Rule::on(EVICT, Fault::Refuse(500, BROKEN)));
    let replica = blocks(&stage, "failed calling webhook \"kyverno.svc\"").await;
    assert!(counted(&replica, "ebbtide_evictions_total{result=\"unavailable\"}") > 3.0);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_missing_right_blocks_nothing() {
    let stage = Stage::new(1, 1);
    stage.world.kube.deny(EVICT);
    let replica = stage.start(&["--at-deadline", "leave"]).await;
    stage.terminate(0, s(900), Wrapping::Event);
    sleep(s(20)).await;
    assert_eq!((blocked_pods(&replica), said(&stage).len()), (0, 0));
    stage.until_handled(s(960)).await;
    replica.ended_once("asg-terminate", "failed");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_hard_deadline_overrides_a_webhook() {
    for (code, message) in [(403, WEBHOOK), (422, POLICY), (500, BROKEN)] {
        let stage = Stage::new(1, 1);
        stage.world.faults.add(Rule::on(EVICT, Fault::Refuse(code, message)));
        let replica = stage.start(&[]).await;
        stage.spot(0);
        stage.until_handled(s(130)).await;
        deleted_in_time(&stage, "web-0-0", s(120));
        replica.ended_once("spot", "drained");
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_budget_that_protects_an_unhealthy_pod_is_told_with_its_remedy() {
    for (ready, wanted) in [(false, true), (true, false)] {
        let stage = Stage::new(1, 0);
        let labels = [("app", "db")];
        let held = pod("held").labels(labels);
        stage.world.kube.add_pod(if ready { held } else { held.not_ready() });
        stage.world.kube.add_budget("default", "db", labels, Limit::MinAvailable(1));
        let replica = stage.start(&["--at-deadline", "leave"]).await;
        stage.terminate(0, s(900), Wrapping::Event);
        sleep(s(20)).await;
        let said = said(&stage);
        assert_eq!(said.len(), 2, "{said:?}");
        for text in said {
            assert_eq!(text.contains("unhealthyPodEvictionPolicy: AlwaysAllow"), wanted, "{text}");
            assert!(text.contains("The disruption budget db needs 1 healthy pods"), "{text}");
        }
        stage.until_handled(s(960)).await;
        replica.ended_once("asg-terminate", "blocked");
        stage.rest(&[&replica]).await;
    }
}
