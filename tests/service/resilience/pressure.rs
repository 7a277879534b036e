//! Drains under pressure: an API server that throttles, hangs or fails when there is least time, deadlines that move, Nodes that are
//! replaced. Each was a fault that a hostile review found.

use crate::harness::{Replica, Stage, instance, node, s};
use ebbtide::clients::connect::kube_client;
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::{By, Evicted, Pod};
use ebbtide_sim::messages::{self, Wrapping};
use http_body_util::{BodyExt, Full};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

const EVICT: &str = "create pods/eviction";

fn ended(stage: &Stage) -> Vec<(String, u64, Option<i64>, By)> {
    stage
        .world
        .kube
        .evictions()
        .into_iter()
        .map(|Evicted { at, name, grace, by, .. }| (name, at.as_secs(), grace, by))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn throttled_eviction_with_20s_left_ends_in_a_delete() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&[]).await;
    stage.world.faults.add(Rule::on(EVICT, Fault::ThrottleFor(32)));
    stage.spot_of_age(0, s(100));
    sleep(s(40)).await;
    assert_eq!(ended(&stage).len(), 1, "{:?}\n{}", ended(&stage), stage.story());
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn one_throttled_delete_is_tried_again_in_time() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.start(&[]).await;
    stage.spot(0);
    sleep(s(80)).await;
    stage.world.faults.add(Rule::on("delete pods", Fault::ThrottleFor(32)).times(1));
    sleep(s(50)).await;
    assert_eq!(ended(&stage).len(), 1, "{:?}\n{}", ended(&stage), stage.story());
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn hanging_eviction_with_9s_left_ends_in_a_delete() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&[]).await;
    stage.world.faults.add(Rule::on(EVICT, Fault::Hang));
    stage.spot_of_age(0, s(111));
    sleep(s(40)).await;
    assert_eq!(ended(&stage).len(), 1, "{:?}\n{}", ended(&stage), stage.story());
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn urgent_deletes_do_not_wait_behind_held_places() {
    let stage = Stage::new(3, 0);
    for pod in 0..80 {
        stage.world.kube.add_pod(Pod::on(&node(0)).named(&format!("many-{pod}")));
        stage.world.faults.add(Rule::on(EVICT, Fault::ThrottleFor(60)).subject(format!("default/many-{pod}")).times(1));
    }
    stage.world.kube.add_pod(Pod::on(&node(1)).named("guarded").stops_in(s(25)));
    stage.world.kube.add_pod(Pod::on(&node(2)).named("plain").stops_in(s(2)));
    stage.block(1);
    let _replica = stage.start(&[]).await;
    stage.spot(1);
    sleep(s(80)).await;
    stage.terminate(0, s(3600), Wrapping::Event);
    sleep(s(2)).await;
    stage.spot(2);
    sleep(s(43)).await;
    let all: Vec<_> = ended(&stage).into_iter().filter(|(name, ..)| !name.starts_with("many")).collect();
    println!(
        "r04 by 125 s: {all:?}; cordon of node-2: {:?}",
        stage.world.calls.of("patch nodes").iter().map(|c| (c.subject.clone(), c.at.as_secs())).collect::<Vec<_>>()
    );
    assert!(all.iter().any(|(name, at, ..)| name == "guarded" && *at <= 92), "{all:?}");
    assert!(all.iter().any(|(name, at, ..)| name == "plain" && *at <= 92), "{all:?}");
}

#[tokio::test(start_paused = true)]
async fn a_soft_deadline_shortly_before_a_hard_one_costs_no_grace() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.start(&["--on", "rebalance=drain", "--drain-timeout", "rebalance=115s"]).await;
    stage.world.aws.sqs.send(messages::rebalance("r", &instance(0), stage.world.clock.now()));
    stage.spot(0);
    sleep(s(130)).await;
    let all = ended(&stage);
    assert!(all.len() == 1 && all[0].2.unwrap_or(30) >= 29, "{all:?}");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn slow_answers_do_not_double_the_calls() {
    let stage = Stage::new(1, 0);
    for pod in 0..5 {
        stage.world.kube.add_pod(Pod::on(&node(0)).named(&format!("long-{pod}")).grace(s(300)).stops_in(s(60)));
    }
    let _replica = stage.start(&[]).await;
    stage.world.faults.add(Rule::on(EVICT, Fault::Slow(Duration::from_millis(1600))));
    stage.spot(0);
    stage.until_handled(s(100)).await;
    assert_eq!((stage.calls(EVICT), stage.calls("delete pods")), (5, 0), "{:?}", ended(&stage));
}

#[tokio::test(start_paused = true)]
async fn a_finished_pod_holds_nothing_up() {
    let stage = Stage::new(1, 1);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("job").phase("Succeeded"));
    stage.world.kube.add_pod(Pod::on(&node(0)).named("critical").priority(2_000_000_000));
    stage.world.faults.add(Rule::on(EVICT, Fault::Hang).subject("default/job"));
    let replica = stage.start(&[]).await;
    let token = stage.terminate(0, s(600), Wrapping::Event);
    sleep(s(12)).await;
    println!("r09 {:?}", ended(&stage));
    stage.until_handled(s(120)).await;
    stage.completed_once(&token);
    let took = stage.world.calls.of("CompleteLifecycleAction")[0].at;
    let all = ended(&stage);
    assert!(all.iter().any(|(name, at, ..)| name == "critical" && *at <= 4), "{all:?}");
    assert!(took < s(8), "{took:?}\n{}", stage.story());
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_new_node_of_the_same_name_is_drained() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.start(&[]).await;
    stage.terminate(0, s(600), Wrapping::Event);
    sleep(s(30)).await;
    stage.world.faults.add(Rule::on("get nodes", Fault::Slow(s(5))).times(1));
    stage.world.kube.remove_node(&node(0));
    stage.world.kube.add_node(&node(0), &instance(1));
    stage.world.aws.ec2.put(&instance(1), &[("aws-node-termination-handler/managed", "true")]);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("new").labels([("app", "node-0")]));
    sleep(s(1)).await;
    let token = stage.terminate(1, s(600), Wrapping::Event);
    sleep(s(10)).await;
    stage.unblock(0);
    stage.until_handled(s(60)).await;
    stage.completed_once(&token);
    assert_eq!(stage.world.kube.pods_on(&node(0)).len(), 0, "completed while a pod runs\n{}", stage.story());
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn own_pod_leaves_before_a_hard_deadline_even_if_a_pod_lingers() {
    let stage = Stage::new(2, 1);
    stage.block(0);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("ebbtide-1"));
    let _replica =
        stage.start(&["--pod-namespace", "default", "--pod-name", "ebbtide-1", "--at-deadline", "leave"]).await;
    stage.spot(0);
    sleep(s(121)).await;
    assert!(ended(&stage).iter().any(|(name, ..)| name == "ebbtide-1"), "{:?}", ended(&stage));
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_new_healthy_node_of_the_same_name_are_not_evicted() {
    for get_takes in [s(0), s(5)] {
        let stage = Stage::new(1, 1);
        stage.block(0);
        let replica = stage.start(&[]).await;
        stage.terminate(0, s(600), Wrapping::Event);
        sleep(s(30)).await;
        stage.world.faults.add(Rule::on("get nodes", Fault::Slow(get_takes)).times(1));
        stage.world.kube.remove_node(&node(0));
        stage.world.kube.add_node(&node(0), &instance(1));
        stage.world.kube.add_pod(Pod::on(&node(0)).named("new"));
        sleep(s(30)).await;
        assert_eq!(ended(&stage), [], "{get_takes:?}\n{}", stage.story());
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_own_pod_leaves_while_a_spot_drain_that_is_more_urgent_runs() {
    let stage = Stage::new(2, 1);
    stage.block(1);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("ebbtide-1"));
    let replica = stage.start(&["--pod-namespace", "default", "--pod-name", "ebbtide-1"]).await;
    stage.spot(1);
    stage.terminate(0, s(3600), Wrapping::Event);
    sleep(s(125)).await;
    assert!(ended(&stage).iter().any(|(name, ..)| name == "web-1-0"), "{:?}", ended(&stage));
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_spot_warning_joins_a_running_drain_though_its_mark_fails() {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(1000)).stops_in(None));
    let replica = stage.start(&[]).await;
    stage.terminate(0, s(3600), Wrapping::Event);
    sleep(s(10)).await;
    stage.world.faults.add(Rule::on("patch nodes", Fault::Status(500)));
    stage.spot(0);
    sleep(s(125)).await;
    assert!(ended(&stage).iter().any(|(_, _, _, by)| *by == By::Delete), "never hurried: {:?}", ended(&stage));
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_throttled_mark_does_not_hold_up_anothers() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&[]).await;
    stage.world.faults.add(Rule::on("patch nodes", Fault::ThrottleFor(60)).times(1));
    stage.world.aws.sqs.send(messages::rebalance("r", &instance(0), stage.world.clock.now()));
    sleep(s(1)).await;
    stage.spot(0);
    sleep(s(40)).await;
    assert!(stage.cordoned(0), "{}", stage.story());
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_does_not_wait_for_pods_to_go() {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("going").grace(s(300)).stops_in(s(250)));
    let pods: kube::Api<k8s_openapi::api::core::v1::Pod> = kube::Api::namespaced(stage.world.kube.client(), "default");
    pods.delete("going", &kube::api::DeleteParams::default()).await.unwrap();
    let replica = stage.start(&["--dry-run"]).await;
    stage.terminate(0, s(600), Wrapping::Event);
    stage.until_handled(s(30)).await;
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_late_notice_with_a_past_soft_deadline_does_not_disturb_a_spot_drain() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.start(&["--drain-timeout", "asg-terminate=20s"]).await;
    stage.spot(0);
    sleep(s(86)).await;
    stage.world.aws.autoscaling.add_hook("group", "hook", ebbtide_sim::aws::HookSpec::terminating(s(300)));
    let token = stage.world.aws.autoscaling.begin("group", "hook", &instance(0));
    let at = stage.world.clock.now() - s(100);
    stage.world.aws.sqs.send(messages::lifecycle(Wrapping::Event, true, ("group", "hook", &token), &instance(0), at));
    sleep(s(50)).await;
    let all = ended(&stage);
    assert!(all.len() == 1 && all[0].2.unwrap_or(30) >= 29, "{all:?} lists: {}", stage.calls("list pods"));
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_hibernating_node_whose_cordon_fails_once_is_still_evicted() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&[]).await;
    stage.world.faults.add(Rule::on("patch nodes", Fault::Status(500)).times(1));
    let detail = serde_json::json!({ "instance-id": instance(0), "instance-action": "hibernate" });
    let now = stage.world.clock.now();
    stage.world.aws.sqs.send(messages::event("aws.ec2", "EC2 Spot Instance Interruption Warning", "h", now, &detail));
    sleep(s(20)).await;
    assert_eq!(ended(&stage).len(), 1, "{}", stage.story());
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_throttled_cordon_or_list_leaves_time_for_the_rest() {
    for operation in ["patch nodes", "list pods"] {
        let stage = Stage::new(1, 1);
        let replica = stage.start(&[]).await;
        stage.world.faults.add(Rule::on(operation, Fault::ThrottleFor(32)).times(1));
        stage.spot_of_age(0, s(100));
        sleep(s(40)).await;
        assert_eq!(ended(&stage).len(), 1, "{operation}\n{}", stage.story());
        stage.rest(&[&replica]).await;
    }
}

/// A replica whose API server answers some requests by `other`.
async fn start_behind<F>(stage: &Stage, flags: &[&str], other: F) -> Replica
where
    F: Fn(&http::Request<kube::client::Body>) -> Option<http::Response<Full<bytes::Bytes>>>
        + Clone
        + Send
        + Sync
        + 'static,
{
    let kube = stage.world.kube.clone();
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let (kube, other) = (kube.clone(), other.clone());
        async move {
            if let Some(answer) = other(&request) {
                return Ok::<_, tower::BoxError>(
                    answer.map(|body| body.map_err(|never| match never {}).boxed_unsync()),
                );
            }
            let (head, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            Ok(kube.serve(http::Request::from_parts(head, body)).await?)
        }
    });
    let client = kube_client(kube::client::ClientBuilder::new(service, "default"));
    stage.start_with(flags, |clients| clients.kube = client).await
}

#[tokio::test(start_paused = true)]
async fn a_proxy_that_says_503_retry_after_an_hour_once() {
    let stage = Stage::new(1, 1);
    let once = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let replica = start_behind(&stage, &[], move |request| {
        let list = request.method() == http::Method::GET && request.uri().path() == "/api/v1/pods";
        (list && once.swap(false, std::sync::atomic::Ordering::SeqCst)).then(|| {
            http::Response::builder()
                .status(503)
                .header("retry-after", "3600")
                .body(Full::new("maintenance".into()))
                .unwrap()
        })
    })
    .await;
    stage.spot(0);
    sleep(s(125)).await;
    assert_eq!(ended(&stage).len(), 1, "{}", stage.story());
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn an_endless_grace_period_is_no_panic() {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("endless"));
    stage.world.kube.update_pod("default", "endless", |pod| {
        pod.spec.get_or_insert_default().termination_grace_period_seconds = Some(i64::MAX);
    });
    let _replica = start_behind(&stage, &["--on", "rebalance=drain"], move |request| {
        request.uri().path().ends_with("/eviction").then(|| {
            let said = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success","code":201}"#;
            http::Response::builder().status(201).body(Full::new(said.into())).unwrap()
        })
    })
    .await;
    stage.world.aws.sqs.send(messages::rebalance("r", &instance(0), stage.world.clock.now()));
    sleep(s(60)).await;
    assert_eq!(stage.world.aws.sqs.receive_log().len(), 1, "panicked, and was received again");
}

#[tokio::test(start_paused = true)]
async fn a_delete_behind_hanging_evictions_is_one_delete() {
    let stage = Stage::new(2, 0);
    for pod in 0..80 {
        stage.world.kube.add_pod(Pod::on(&node(0)).named(&format!("many-{pod}")));
        stage.world.faults.add(Rule::on(EVICT, Fault::Hang).subject(format!("default/many-{pod}")));
    }
    stage.world.kube.add_pod(Pod::on(&node(1)).named("guarded").stops_in(s(25)));
    stage.block(1);
    let _replica = stage.start(&[]).await;
    stage.spot(1);
    sleep(s(84)).await;
    stage.terminate(0, s(3600), Wrapping::Event);
    sleep(s(41)).await;
    let all: Vec<_> = ended(&stage).into_iter().filter(|(name, ..)| !name.starts_with("many")).collect();
    assert!(all.len() == 1 && all[0].1 <= 89, "{all:?}");
}

#[tokio::test(start_paused = true)]
async fn calls_of_an_undisturbed_drain_with_daemonsets() {
    let stage = Stage::new(2, 2);
    stage.world.kube.replace(s(3));
    stage.world.kube.add_pod(Pod::on(&node(0)).named("critical").priority(2_000_000_000));
    stage.world.kube.add_pod(Pod::on(&node(0)).named("agent").daemonset().stops_in(s(5)));
    stage.world.kube.add_pod(Pod::on(&node(0)).named("job").phase("Succeeded"));
    let replica = stage.start(&["--evict-daemonsets"]).await;
    stage.spot(0);
    stage.until_handled(s(60)).await;
    let counts = ["patch nodes", "list pods", EVICT, "watch pods", "get nodes", "delete pods"];
    assert_eq!(counts.map(|operation| stage.calls(operation)), [1, 2, 5, 1, 0, 0], "{}", stage.story());
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_notice_that_is_too_late_still_deletes_in_both_tiers() {
    let stage = Stage::new(1, 1);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("critical").priority(2_000_000_000));
    stage.block(0);
    let replica = stage.start(&[]).await;
    stage.spot_of_age(0, s(130));
    sleep(s(10)).await;
    let all = ended(&stage);
    assert!(all.len() == 2 && all.iter().all(|(_, at, grace, _)| *at <= 2 && *grace == Some(1)), "{all:?}");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_delayed_spot_warning_brings_its_deadline_to_a_running_drain() {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(1000)).stops_in(None));
    let replica = stage.start(&["--delay", "spot=50s"]).await;
    stage.terminate(0, s(3600), Wrapping::Event);
    sleep(s(10)).await;
    stage.spot(0);
    sleep(s(125)).await;
    let all = ended(&stage);
    assert!(
        all.iter().any(|(_, at, grace, by)| *by == By::Delete && *at <= 12 && grace.unwrap_or(0) >= 115),
        "{all:?}"
    );
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_registers_again_is_not_a_node_that_is_gone() {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(300)).stops_in(s(200)));
    let replica = stage.start(&[]).await;
    let token = stage.terminate(0, s(600), Wrapping::Event);
    sleep(s(30)).await;
    let nodes: kube::Api<k8s_openapi::api::core::v1::Node> = kube::Api::all(stage.world.kube.client());
    nodes.delete(&node(0), &kube::api::DeleteParams::default()).await.unwrap();
    stage.world.kube.add_node(&node(0), &instance(0));
    stage.until_handled(s(300)).await;
    stage.completed_once(&token);
    let at = stage.world.calls.of("CompleteLifecycleAction")[0].at;
    assert!(at >= s(200), "completed at {at:?} while its pod runs until 200 s; cordoned: {}", stage.cordoned(0));
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn the_replica_that_evicted_itself_leaves_a_terminating_own_pod_only_once() {
    // Own pod evicted, and a second notice for the same node is held by the same process.
    let stage = Stage::new(2, 1);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("ebbtide-1").stops_in(s(20)));
    let first = stage.start(&["--pod-namespace", "default", "--pod-name", "ebbtide-1"]).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    stage.spot(0);
    let (exit, _) = first.ended().await;
    println!("r29 {exit:?}");
    assert_eq!(stage.calls("CompleteLifecycleAction"), 0);
    let second = stage.start(&["--pod-namespace", "default", "--pod-name", "ebbtide-2"]).await;
    stage.until_handled(s(60)).await;
    stage.completed_once(&token);
    assert!(stage.world.kube.pods_on(&node(0)).is_empty());
    stage.rest(&[&second]).await;
}

/// What a drain had on its way when its Node vanished must not keep places in the gate that others need.
#[tokio::test(start_paused = true)]
async fn a_drain_whose_node_vanished_holds_no_places() {
    let stage = Stage::new(2, 0);
    for n in 0..70 {
        stage.world.kube.add_pod(Pod::on(&node(0)).named(&format!("many-{n}")));
    }
    stage.world.kube.add_pod(Pod::on(&node(1)).named("other").stops_in(s(1)));
    let replica = stage.start(&[]).await;
    stage.world.faults.add(Rule::on(EVICT, Fault::Hang).times(64));
    stage.terminate(0, s(3600), Wrapping::Event);
    stage.until("they are on their way", s(5), || stage.calls(EVICT) >= 64).await;
    stage.world.kube.remove_node(&node(0));
    sleep(s(1)).await;
    stage.spot(1);
    stage.until("the other is evicted", s(20), || ended(&stage).iter().any(|(name, ..)| name == "other")).await;
    stage.until_handled(s(20)).await;
    stage.rest(&[&replica]).await;
}

/// Patience with a spot notice ends before its instance goes; where a hook is more patient, pods are still told in time.
#[tokio::test(start_paused = true)]
async fn what_an_impatient_notice_knew_of_the_capacity_outlives_it() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.start(&["--drain-timeout", "spot=60s"]).await;
    let token = stage.terminate(0, s(3600), Wrapping::Event);
    stage.spot(0);
    stage.until_handled(s(130)).await;
    assert_eq!(ended(&stage), [("web-0-0".to_owned(), 88, Some(30), By::Delete)]);
    replica.ended_once("spot", "blocked");
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

/// A notice whose time is up does not cut off the deletion that it has just brought about in a drain that runs.
#[tokio::test(start_paused = true)]
async fn a_late_notice_leaves_a_running_drain_its_moment() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.start(&[]).await;
    let token = stage.terminate(0, s(3600), Wrapping::Event);
    sleep(s(60)).await;
    stage.spot_of_age(0, s(125));
    stage.until_handled(s(5)).await;
    assert_eq!(ended(&stage).last().map(|(_, _, grace, by)| (*grace, *by)), Some((Some(1), By::Delete)));
    let drains = replica.metric("ebbtide_drain_duration_seconds_count{deadline=\"hard\",outcome=\"drained\"}");
    assert!((drains - 1.0).abs() < f64::EPSILON, "one drain: {drains}");
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}
