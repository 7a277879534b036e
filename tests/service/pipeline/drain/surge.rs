//! `--surge`: a Deployment all of whose ready pods are on nodes that are being drained is restarted first.

use crate::drains::{blocked_pods, end_of};
use crate::harness::{Replica, Stage, node, s};
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::{By, Deployment, Limit, Pod};
use ebbtide_sim::messages::Wrapping;
use serde_json::json;
use std::time::Duration;
use tokio::time::sleep;

const RESTART: &str = "patch deployments";

/// Adds the Deployment `web`, with a pod on each of these nodes. Returns the pods' names.
fn add(stage: &Stage, nodes: &[usize], change: impl FnOnce(Deployment) -> Deployment) -> Vec<String> {
    add_named(stage, "web", nodes, change)
}

fn add_named(stage: &Stage, name: &str, nodes: &[usize], change: impl FnOnce(Deployment) -> Deployment) -> Vec<String> {
    let nodes: Vec<String> = nodes.iter().map(|n| node(*n)).collect();
    let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
    stage.world.kube.add_deployment(change(Deployment::of(name, Pod::on("").stops_in(s(2)))), &nodes)
}

/// Returns the nodes of the Ready pods of the namespace that don't terminate.
fn nodes_of_ready(stage: &Stage) -> Vec<String> {
    let is_ready = |pod: &k8s_openapi::api::core::v1::Pod| {
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        pod.metadata.deletion_timestamp.is_none()
            && conditions.iter().any(|found| found.type_ == "Ready" && found.status == "True")
    };
    let pods = stage.world.kube.pods().into_iter().filter(is_ready);
    pods.filter_map(|pod| pod.spec?.node_name).collect()
}

/// Returns the number of Ready pods of the namespace that don't terminate.
fn ready(stage: &Stage) -> usize {
    nodes_of_ready(stage).len()
}

/// Returns the annotation that restarts the Deployment.
fn restarted_at(stage: &Stage) -> Option<String> {
    let template = stage.world.kube.deployment("default", "web")?.spec?.template.metadata?;
    template.annotations?.get("kubectl.kubernetes.io/restartedAt").cloned()
}

/// Runs until the messages are handled, and returns the least number of Ready pods meanwhile.
async fn least_ready(stage: &Stage, within: Duration) -> usize {
    let mut least = ready(stage);
    stage
        .until("the messages must be handled", within, || {
            least = least.min(ready(stage));
            stage.world.aws.sqs.is_empty()
        })
        .await;
    least
}

impl Replica {
    /// Asserts that Deployments were surged with these outcomes, and no others.
    fn surged(&self, outcomes: &[(&str, u32)]) {
        for outcome in ["ready", "timed-out", "no-room", "failed"] {
            let times = outcomes.iter().find(|(name, _)| *name == outcome).map_or(0, |(_, times)| *times);
            let found = self.metric(&format!("ebbtide_surges_total{{outcome=\"{outcome}\"}}"));
            assert!((found - f64::from(times)).abs() < 0.1, "{outcome}: {found}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_single_replica_leaves_no_gap() {
    let stage = Stage::new(2, 0);
    add(&stage, &[0], |web| web);
    let replica = stage.start(&["--surge", "5m"]).await;
    stage.spot(0);
    assert_eq!(least_ready(&stage, s(60)).await, 1, "{}", stage.story());
    let calls = ["get replicasets", RESTART, "list pods"].map(|operation| stage.calls(operation));
    assert_eq!(calls, [1, 1, 3], "the node's pods twice, and the Deployment's once: {}", stage.story());
    assert!(stage.calls("get deployments") <= 5, "{}", stage.story());
    assert_eq!(restarted_at(&stage).map(|at| at.len()), Some("2026-11-30T00:00:00Z".len()));
    replica.surged(&[("ready", 1)]);
    replica.ended_once("spot", "drained");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn without_the_setting_no_deployment_is_read() {
    let stage = Stage::new(2, 0);
    add(&stage, &[0], |web| web);
    let replica = stage.start(&[]).await;
    stage.spot(0);
    assert_eq!(least_ready(&stage, s(60)).await, 0);
    let calls = ["get replicasets", "get deployments", RESTART].map(|operation| stage.calls(operation));
    assert_eq!(calls, [0, 0, 0]);
    replica.surged(&[]);
    stage.rest(&[&replica]).await;
}

/// The budget that would hold the only pod until its deletion.
#[tokio::test(start_paused = true)]
async fn a_budget_that_needs_one_of_one_no_longer_blocks() {
    let stage = Stage::new(2, 0);
    let pods = add(&stage, &[0], |web| web);
    stage.world.kube.add_budget("default", "web", [("app", "web")], Limit::MinAvailable(1));
    let replica = stage.start(&["--surge", "5m"]).await;
    stage.spot(0);
    assert_eq!(least_ready(&stage, s(60)).await, 1, "{}", stage.story());
    assert!(stage.ends_of(&pods[0]).iter().all(|end| end.by == By::Eviction), "{}", stage.story());
    replica.surged(&[("ready", 1)]);
    replica.ended_once("spot", "drained");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn two_pods_on_two_draining_nodes_are_one_restart() {
    let stage = Stage { quiet_time: s(1), ..Stage::new(4, 0) };
    add(&stage, &[0, 1], |web| web);
    let replica = stage.start(&["--surge", "5m"]).await;
    for n in 0..2 {
        stage.spot(n);
    }
    assert_eq!(least_ready(&stage, s(90)).await, 2, "the rollout itself removes the old ones: {}", stage.story());
    assert_eq!(stage.calls(RESTART), 1, "{}", stage.story());
    replica.surged(&[("ready", 1)]);
    replica.all_ended("spot", &[("drained", 2)]);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn two_replicas_restart_a_deployment_once() {
    let stage = Stage { quiet_time: s(1), ..Stage::new(4, 0) };
    add(&stage, &[0, 1], |web| web);
    let replicas = [stage.start(&["--surge", "5m"]).await, stage.start(&["--surge", "5m"]).await];
    for n in 0..2 {
        stage.spot(n);
    }
    assert!(least_ready(&stage, s(90)).await >= 1, "{}", stage.story());
    let generation = stage.world.kube.deployment("default", "web").and_then(|web| web.metadata.generation);
    assert_eq!(generation, Some(2), "{}", stage.story());
    let [one, other] = &replicas;
    stage.rest(&[one, other]).await;
}

#[tokio::test(start_paused = true)]
async fn a_deployment_with_a_ready_pod_elsewhere_is_left_alone() {
    let stage = Stage::new(3, 0);
    add(&stage, &[0, 1], |web| web);
    let replica = stage.start(&["--surge", "5m"]).await;
    stage.spot(0);
    stage.until_handled(s(30)).await;
    assert_eq!(["get deployments", RESTART].map(|operation| stage.calls(operation)), [1, 0], "{}", stage.story());
    replica.surged(&[]);
    stage.rest(&[&replica]).await;
}

/// The pod of the node that was interrupted first has its replacement on the way: the other waits for that.
#[tokio::test(start_paused = true)]
async fn a_replacement_that_is_on_its_way_is_waited_for_without_a_restart() {
    let stage = Stage::new(4, 0);
    let pods = add(&stage, &[0, 1], |web| web.starts_in(s(20)));
    let replica = stage.start(&["--surge", "5m"]).await;
    stage.spot(0);
    sleep(s(8)).await;
    stage.spot(1);
    assert_eq!(least_ready(&stage, s(60)).await, 1, "{}", stage.story());
    assert_eq!(stage.calls(RESTART), 0, "{}", stage.story());
    assert!(end_of(&stage, &pods[1]).at >= s(20));
    replica.surged(&[("ready", 1)]);
    stage.rest(&[&replica]).await;
}

/// The node of a replacement is interrupted as soon as the pod is Ready.
#[tokio::test(start_paused = true)]
async fn a_replacement_whose_node_is_next_waits_for_its_own() {
    let stage = Stage::new(6, 0);
    let pods = add(&stage, &[0, 1], |web| web.starts_in(s(20)));
    let replica = stage.start(&["--surge", "5m"]).await;
    stage.spot(0);
    sleep(s(8)).await;
    stage.spot(1);
    stage.until("the other leaves", s(60), || !stage.ends_of(&pods[1]).is_empty()).await;
    let nodes = nodes_of_ready(&stage);
    let [replacement] = nodes.as_slice() else { panic!("{nodes:?}\n{}", stage.story()) };
    let n = (0..6).find(|n| node(*n) == *replacement).expect("it is one of them");
    stage.spot(n);
    assert_eq!(least_ready(&stage, s(90)).await, 1, "{}", stage.story());
    replica.surged(&[("ready", 2)]);
    replica.all_ended("spot", &[("drained", 3)]);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_new_pod_that_is_not_ready_in_time_delays_no_drain() {
    for (flag, expected) in [("5m", 78), ("30s", 30)] {
        let stage = Stage::new(2, 0);
        let pods = add(&stage, &[0], |web| web.starts_in(None::<Duration>));
        let replica = stage.start(&["--surge", flag]).await;
        stage.spot(0);
        sleep(s(10)).await;
        assert_eq!(blocked_pods(&replica), 1);
        stage.until_handled(s(121)).await;
        let end = end_of(&stage, &pods[0]);
        // The grace period, its margin, and the time for an eviction fit before the end.
        let at = end.at.as_secs();
        assert!((expected..expected + 3).contains(&at), "--surge {flag}: {at}\n{}", stage.story());
        assert_eq!(end.by, By::Eviction);
        replica.surged(&[("timed-out", 1)]);
        replica.ended_once("spot", "drained");
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_blocks_is_reported() {
    let stage = Stage::new(2, 0);
    add(&stage, &[0], |web| web.starts_in(s(30)));
    let replica = stage.start(&["--surge", "5m"]).await;
    stage.spot(0);
    sleep(s(15)).await;
    let condition = stage.condition_text(0);
    assert!(condition.contains("waits for its new pod: the Deployment web is rolled out (--surge)"), "{condition}");
    stage.until_handled(s(60)).await;
    stage.rest(&[&replica]).await;
}

/// A spot warning that comes late, or a grace period that leaves no time.
#[tokio::test(start_paused = true)]
async fn in_the_last_seconds_nothing_is_restarted() {
    for (age, grace) in [(70, 30), (0, 100)] {
        let stage = Stage::new(2, 0);
        let nodes = [node(0)];
        let pod = Pod::on("").grace(s(grace)).stops_in(s(2));
        let pods = stage.world.kube.add_deployment(Deployment::of("web", pod), &[nodes[0].as_str()]);
        let replica = stage.start(&["--surge", "5m"]).await;
        stage.spot_of_age(0, s(age));
        stage.until_handled(s(60)).await;
        assert_eq!(stage.calls("get deployments"), 0, "{age} {grace}: {}", stage.story());
        assert!(end_of(&stage, &pods[0]).at < s(10));
        replica.surged(&[]);
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn where_the_strategy_has_no_room_pods_are_evicted_at_once() {
    let rolling = |surge: i32, unavailable: i32| json!({ "type": "RollingUpdate", "rollingUpdate": { "maxSurge": surge, "maxUnavailable": unavailable } });
    for strategy in [json!({ "type": "Recreate" }), rolling(0, 1), rolling(1, 1)] {
        let stage = Stage::new(2, 0);
        let pods = add(&stage, &[0], |web| web.strategy(strategy.clone()));
        let replica = stage.start(&["--surge", "5m"]).await;
        stage.spot(0);
        stage.until_handled(s(30)).await;
        assert_eq!(stage.calls(RESTART), 0, "{strategy}");
        assert!(end_of(&stage, &pods[0]).at < s(3), "{strategy}");
        replica.surged(&[("no-room", 1)]);
        stage.rest(&[&replica]).await;
    }
}

/// Another controller's pods, a `StatefulSet`'s, and pods that ask not to be disturbed.
#[tokio::test(start_paused = true)]
async fn other_pods_are_left_alone() {
    let stage = Stage::new(2, 0);
    stage.world.kube.add_pod(Pod::on(&node(0)).statefulset("db").named("db-0"));
    stage.world.kube.add_pod(Pod::on(&node(0)).named("of-a-rollout"));
    let quiet = Pod::on("").annotations([("karpenter.sh/do-not-disrupt", "true")]);
    stage.world.kube.add_deployment(Deployment::of("quiet", quiet), &[&node(0)]);
    let replica = stage.start(&["--surge", "5m", "--respect-do-not-disrupt"]).await;
    stage.spot(0);
    stage.until_handled(s(121)).await;
    let calls = ["get replicasets", "get deployments"].map(|operation| stage.calls(operation));
    assert_eq!(calls, [1, 0], "the ReplicaSet of another controller does not exist here: {}", stage.story());
    replica.surged(&[]);
    stage.rest(&[&replica]).await;
}

/// A rollout would end it while it works.
#[tokio::test(start_paused = true)]
async fn a_pod_that_asks_not_to_be_disturbed_is_not_ended_by_a_restart_for_another() {
    let stage = Stage { quiet_time: s(1), ..Stage::new(4, 0) };
    let pods = add(&stage, &[0, 1], |web| web);
    stage.world.kube.update_pod("default", &pods[1], |pod| {
        pod.metadata.annotations.get_or_insert_default().insert("ebbtide/ignore".to_owned(), "true".to_owned());
    });
    let replica = stage.start(&["--surge", "5m"]).await;
    for n in 0..2 {
        stage.spot(n);
    }
    stage.until_handled(s(121)).await;
    assert_eq!(stage.calls(RESTART), 0, "{}", stage.story());
    let ends = [&pods[0], &pods[1]].map(|pod| end_of(&stage, pod).at);
    assert!(ends[0] < s(10) && ends[1] > s(70), "{ends:?}\n{}", stage.story());
    replica.surged(&[]);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_restart_delays_no_drain() {
    for operation in ["get replicasets", "get deployments", RESTART] {
        let stage = Stage::new(2, 0);
        let pods = add(&stage, &[0], |web| web);
        stage.world.kube.deny(operation);
        let replica = stage.start(&["--surge", "5m"]).await;
        stage.spot(0);
        stage.until_handled(s(30)).await;
        assert!(end_of(&stage, &pods[0]).at < s(5), "{operation}: {}", stage.story());
        replica.surged(&[("failed", 1)]);
        replica.ended_once("spot", "drained");
        stage.rest(&[&replica]).await;
    }
}

/// In a storm the API server may be too busy for one call.
#[tokio::test(start_paused = true)]
async fn a_call_that_fails_once_leaves_no_gap() {
    for operation in ["get replicasets", "get deployments", RESTART] {
        for fault in [Fault::Throttle, Fault::Status(503), Fault::Disconnect, Fault::LostResponse] {
            let stage = Stage::new(2, 0);
            add(&stage, &[0], |web| web);
            stage.world.faults.add(Rule::on(operation, fault).times(1));
            let replica = stage.start(&["--surge", "5m"]).await;
            stage.spot(0);
            assert_eq!(least_ready(&stage, s(60)).await, 1, "{operation} {fault:?}: {}", stage.story());
            replica.ended_once("spot", "drained");
            stage.rest(&[&replica]).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_webhook_that_fails_delays_no_drain() {
    let stage = Stage::new(2, 0);
    let pods = add(&stage, &[0], |web| web);
    let message = "Internal error occurred: failed calling webhook \"a.svc\": context deadline exceeded";
    stage.world.faults.add(Rule::on(RESTART, Fault::Refuse(500, message)));
    let replica = stage.start(&["--surge", "5m"]).await;
    stage.spot(0);
    stage.until_handled(s(30)).await;
    assert!(end_of(&stage, &pods[0]).at < s(5), "{}", stage.story());
    replica.surged(&[("failed", 1)]);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_was_faster_is_not_overridden() {
    let stage = Stage::new(2, 0);
    add(&stage, &[0], |web| web);
    stage.world.faults.add(Rule::on(RESTART, Fault::Status(409)).times(1));
    let replica = stage.start(&["--surge", "5m"]).await;
    stage.spot(0);
    assert_eq!(least_ready(&stage, s(60)).await, 1, "{}", stage.story());
    assert_eq!(stage.calls(RESTART), 2, "nobody else has restarted it: {}", stage.story());
    replica.surged(&[("ready", 1)]);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_restarts_nothing() {
    let stage = Stage::new(2, 0);
    add(&stage, &[0], |web| web);
    let replica = stage.start(&["--surge", "5m", "--dry-run"]).await;
    stage.spot(0);
    stage.until_handled(s(30)).await;
    assert_eq!((stage.calls(RESTART), restarted_at(&stage)), (1, None), "{}", stage.story());
    replica.surged(&[]);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn twenty_deployments_are_restarted_at_a_time() {
    let stage = Stage::new(3, 0);
    for n in 0..25 {
        add_named(&stage, &format!("web{n}"), &[0], |web| web.starts_in(s(20)));
    }
    let replica = stage.start(&["--surge", "5m"]).await;
    stage.spot(0);
    sleep(s(15)).await;
    assert_eq!(stage.calls(RESTART), 20, "{}", stage.story());
    assert_eq!(least_ready(&stage, s(100)).await, 25, "{}", stage.story());
    assert_eq!(stage.calls(RESTART), 25);
    replica.surged(&[("ready", 25)]);
    stage.rest(&[&replica]).await;
}

/// Under a hook there is more time, and a pool may have its own.
#[tokio::test(start_paused = true)]
async fn a_pool_has_its_own_surge() {
    let stage = Stage::new(3, 0);
    stage.label(0, "pool", "web");
    for (n, name) in [(0, "one"), (1, "other")] {
        add_named(&stage, name, &[n], |web| web.starts_in(s(100)));
    }
    let replica = stage.start(&["--pool=web;node-selector=pool=web;surge=10m"]).await;
    let tokens = [0, 1].map(|n| stage.terminate(n, s(300), Wrapping::Event));
    stage.until_handled(s(300)).await;
    assert_eq!(stage.calls(RESTART), 1, "{}", stage.story());
    replica.surged(&[("ready", 1)]);
    for token in &tokens {
        stage.completed_once(token);
    }
    stage.rest(&[&replica]).await;
}
