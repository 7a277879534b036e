//! Notifications of the service: what is told when, and a receiver that does not answer.

use crate::harness::{Replica, Stage, instance, node, s};
use aws_smithy_runtime_api::client::http::{HttpConnector, HttpConnectorFuture, SharedHttpConnector};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_types::body::SdkBody;
use ebbtide::fact::TaskKind;
use ebbtide_sim::messages::Wrapping;
use parking_lot::Mutex;
use serde_json::Value;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

const URL: &str = "https://hooks.example/services/s3cret";

/// A receiver behind a connector, which answers as it is told.
#[derive(Clone, Debug, Default)]
struct Receiver {
    /// When each request came, and its body.
    got: Arc<Mutex<Vec<(Instant, Value)>>>,
    /// The next answers; without one, 200.
    answers: Arc<Mutex<VecDeque<Answer>>>,
    /// Whether no request is ever answered.
    silent: bool,
}

#[derive(Clone, Debug)]
struct Answer {
    status: u16,
    retry_after: Option<&'static str>,
    body: String,
}

impl HttpConnector for Receiver {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        assert_eq!((request.method(), request.uri()), ("POST", URL));
        let body = serde_json::from_slice(request.body().bytes().expect("a body must be there")).expect("JSON");
        self.got.lock().push((Instant::now(), body));
        if self.silent {
            return HttpConnectorFuture::new(std::future::pending());
        }
        let answer = self.answers.lock().pop_front();
        let Answer { status, retry_after, body } =
            answer.unwrap_or(Answer { status: 200, retry_after: None, body: "ok".to_owned() });
        let mut response = http::Response::builder().status(status);
        if let Some(retry_after) = retry_after {
            response = response.header("retry-after", retry_after);
        }
        let response = response.body(SdkBody::from(body)).unwrap();
        HttpConnectorFuture::ready(Ok(HttpResponse::try_from(response).unwrap()))
    }
}

impl Receiver {
    /// Starts a replica that tells this receiver of these phases.
    async fn replica(&self, stage: &Stage, phases: &str, flags: &[&str]) -> Replica {
        let mut all = vec!["--notify-url", URL, "--notify", phases];
        all.extend(flags);
        let webhook = SharedHttpConnector::new(self.clone());
        stage.start_with(&all, |clients| clients.webhook = Some(webhook)).await
    }

    fn bodies(&self) -> Vec<Value> {
        self.got.lock().iter().map(|(_, body)| body.clone()).collect()
    }

    fn ids(&self) -> Vec<String> {
        self.bodies().iter().map(|body| body["id"].as_str().unwrap().to_owned()).collect()
    }

    /// Returns the phase and the node of each body.
    fn told(&self) -> Vec<String> {
        let word = |body: &Value, field: &str| body[field].as_str().unwrap_or("storm").to_owned();
        self.bodies().iter().map(|body| format!("{} {}", word(body, "phase"), word(body, "node"))).collect()
    }

    async fn until(&self, stage: &Stage, number: usize) {
        stage.until("the notifications", s(180), || self.got.lock().len() >= number).await;
    }
}

fn counted(replica: &Replica, result: &str) -> u32 {
    let count = replica.metric(&format!("ebbtide_notifications_total{{result=\"{result}\"}}"));
    format!("{count}").parse().expect("a whole number")
}

#[tokio::test(start_paused = true)]
async fn a_node_is_told_of_in_each_phase() {
    let (stage, receiver) = (Stage::new(1, 2), Receiver::default());
    stage.block(0);
    let replica = receiver.replica(&stage, "all", &["--cluster-name", "blue"]).await;
    let begun = stage.world.clock.now();
    let message = stage.spot(0);
    receiver.until(&stage, 2).await;
    assert_eq!(receiver.told(), ["notice node-0", "blocked node-0"]);
    stage.unblock(0);
    stage.until_handled(s(120)).await;
    receiver.until(&stage, 3).await;
    stage.rest(&[&replica]).await;
    let bodies = receiver.bodies();
    assert_eq!(receiver.told(), ["notice node-0", "blocked node-0", "done node-0"]);
    let i = instance(0);
    assert_eq!(receiver.ids(), ["notice", "blocked", "done"].map(|phase| format!("{i}/{message}/{phase}")));
    for body in &bodies {
        assert_eq!((&body["kind"], &body["cluster"], &body["test"]), (&"spot".into(), &"blue".into(), &false.into()));
        assert_eq!(body["instance"], i.as_str());
    }
    let deadline: jiff::Timestamp = bodies[0]["deadline"].as_str().unwrap().parse().unwrap();
    assert!((119..=121).contains(&deadline.duration_since(begun).as_secs()) && bodies[0]["hard"] == true);
    assert!(bodies[1]["blocked"][0]["by"].as_str().unwrap().contains("budget-0"), "{}", bodies[1]);
    assert_eq!((&bodies[2]["outcome"], &bodies[2]["report"]), (&"drained".into(), &"2 of 2 pods gone".into()));
    assert_eq!(["sent", "refused", "failed", "folded"].map(|result| counted(&replica, result)), [3, 0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_drain_is_told_with_its_reason() {
    let (stage, receiver) = (Stage::new(1, 1), Receiver::default());
    stage.block(0);
    let flags = ["--drain-timeout", "1m", "--at-deadline", "leave"];
    let replica = receiver.replica(&stage, "none,asg-terminate=failed", &flags).await;
    stage.terminate(0, s(600), Wrapping::Event);
    stage.until_handled(s(130)).await;
    receiver.until(&stage, 1).await;
    stage.rest(&[&replica]).await;
    let bodies = receiver.bodies();
    assert_eq!((receiver.told(), &bodies[0]["outcome"]), (vec!["failed node-0".to_owned()], &"blocked".into()));
    assert!(bodies[0]["report"].as_str().unwrap().contains("default/web-0-0 is held back"), "{}", bodies[0]);
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_not_chosen_is_not_told() {
    let (stage, receiver) = (Stage::new(1, 1), Receiver::default());
    let replica = receiver.replica(&stage, "none,rebalance=all", &[]).await;
    stage.spot(0);
    stage.until_handled(s(60)).await;
    stage.rest(&[&replica]).await;
    assert_eq!(receiver.told(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn another_replica_does_not_repeat_the_notice_and_gives_its_end_the_same_key() {
    let receiver = Receiver::default();
    let stage = Stage::slow(s(40));
    let first = receiver.replica(&stage, "all", &["--pod-namespace", "x", "--pod-name", "one"]).await;
    let message = stage.spot(0);
    receiver.until(&stage, 1).await;
    sleep(s(2)).await;
    let second = receiver.replica(&stage, "all", &["--pod-namespace", "x", "--pod-name", "two"]).await;
    let (exit, took, _) = first.stop().await;
    assert!(took < s(2), "{exit:?} after {took:?}");
    stage.until_handled(s(120)).await;
    receiver.until(&stage, 2).await;
    stage.rest(&[&second]).await;
    let (bodies, i) = (receiver.bodies(), instance(0));
    assert_eq!(receiver.ids(), [format!("{i}/{message}/notice"), format!("{i}/{message}/done")]);
    assert_eq!([&bodies[0]["replica"], &bodies[1]["replica"]], ["one", "two"]);
    assert_eq!(bodies[0]["key"], bodies[1]["key"]);
}

#[tokio::test(start_paused = true)]
async fn a_storm_is_two_messages() {
    let (stage, receiver) = (Stage::new(100, 1), Receiver::default());
    let replica = receiver.replica(&stage, "all", &[]).await;
    for n in 0..100 {
        stage.spot(n);
    }
    stage.until_handled(s(120)).await;
    receiver.until(&stage, 2).await;
    stage.rest(&[&replica]).await;
    assert_eq!(receiver.told(), ["notice storm", "done storm"]);
    let end = &receiver.bodies()[1]["storm"];
    assert_eq!([&end["notices"], &end["inTime"], &end["failed"], &end["kinds"]["spot"]], [100, 100, 0, 100]);
    assert!(end["slowest"]["seconds"].as_f64().unwrap() > 1.0, "{end}");
}

/// Returns the number of notifications that bodies report as left out.
fn left_out(bodies: &[Value]) -> u64 {
    bodies.iter().flat_map(|body| body["folded"].as_object().unwrap().values()).map(|n| n.as_u64().unwrap()).sum()
}

#[tokio::test(start_paused = true)]
async fn forty_nodes_at_once_are_three_messages_with_the_failed_ones_by_name() {
    let (stage, receiver) = (Stage::new(40, 1), Receiver::default());
    stage.block(3);
    stage.block(17);
    let replica = receiver.replica(&stage, "all", &["--drain-timeout", "1m", "--at-deadline", "leave"]).await;
    for n in 0..40 {
        stage.terminate(n, s(600), Wrapping::Event);
    }
    stage.until_handled(s(180)).await;
    receiver.until(&stage, 3).await;
    stage.rest(&[&replica]).await;
    assert_eq!(receiver.told(), ["notice storm", "blocked storm", "failed storm"]);
    let bodies = receiver.bodies();
    assert_eq!([&bodies[0]["storm"]["notices"], &bodies[2]["storm"]["notices"]], [40, 40]);
    let failures = bodies[2]["storm"]["failures"].as_array().unwrap();
    let mut failed: Vec<&str> = failures.iter().map(|failure| failure["node"].as_str().unwrap()).collect();
    failed.sort_unstable();
    assert_eq!((failed, left_out(&bodies)), (vec!["node-17", "node-3"], 0));
    assert_eq!(["sent", "folded", "dropped"].map(|result| counted(&replica, result)), [3, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_trickle_is_ten_messages_a_minute_at_most_and_all_are_counted() {
    let (stage, receiver) = (Stage::new(100, 1), Receiver::default());
    let replica = receiver.replica(&stage, "all", &[]).await;
    for n in 0..100 {
        stage.spot(n);
        sleep(s(3)).await;
    }
    stage.until_handled(s(120)).await;
    stage.until("the storm's end", s(180), || receiver.told().contains(&"done storm".to_owned())).await;
    stage.rest(&[&replica]).await;
    let times: Vec<Instant> = receiver.got.lock().iter().map(|(at, _)| *at).collect();
    for (n, at) in times.iter().enumerate() {
        let within = times[n..].iter().filter(|other| **other < *at + s(60)).count();
        assert!(within <= 10, "{within} in a minute: {:?}", receiver.told());
    }
    let bodies = receiver.bodies();
    let alone = bodies.iter().filter(|body| body["phase"] == "done" && body["storm"].is_null()).count() as u64;
    let in_storm = bodies.last().unwrap()["storm"]["notices"].as_u64().unwrap();
    assert_eq!((alone + in_storm, left_out(&bodies)), (100, 0), "{:?}", receiver.told());
    assert!(alone < 6, "{alone} nodes were told by themselves");
}

#[tokio::test(start_paused = true)]
async fn the_alert_of_a_storm_ends_although_the_replica_that_raised_it_has_died() {
    let (stage, receiver) = (Stage::new(10, 1), Receiver::default());
    (0..10).for_each(|n| stage.block(n));
    let flags = [
        "--notify-format",
        "pagerduty",
        "--notify-routing-key",
        "0123456789abcdef0123456789abcdef",
        "--cluster-name",
        "blue",
    ];
    let phases = "blocked+done+failed";
    let first = receiver.replica(&stage, phases, &flags).await;
    for n in 0..10 {
        stage.terminate(n, s(900), Wrapping::Event);
    }
    receiver.until(&stage, 1).await;
    let raised = receiver.bodies().remove(0);
    assert_eq!((&raised["event_action"], &raised["dedup_key"]), (&"trigger".into(), &"ebbtide/storm/blue".into()));
    first.kill().await;
    let second = receiver.replica(&stage, phases, &flags).await;
    stage.until("the second blocks", s(300), || receiver.got.lock().len() == 2).await;
    (0..10).for_each(|n| stage.unblock(n));
    stage.until_handled(s(300)).await;
    let is_end =
        |body: &Value| (&body["event_action"], &body["dedup_key"]) == (&"resolve".into(), &raised["dedup_key"]);
    stage.until("the alert is resolved", s(300), || receiver.bodies().iter().any(is_end)).await;
    stage.rest(&[&second]).await;
    let bodies = receiver.bodies();
    let triggers = bodies.iter().filter(|body| body["event_action"] == "trigger");
    assert!(triggers.clone().all(|body| body["dedup_key"] == raised["dedup_key"]), "one alert: {bodies:?}");
    let ended = bodies.iter().position(is_end).unwrap();
    assert!(bodies[ended..].iter().all(|body| body["event_action"] == "resolve"), "nothing opens it again: {bodies:?}");
}

/// What a storm costs besides: no call to AWS or the API server, and no later cordon.
#[tokio::test(start_paused = true)]
async fn a_storm_costs_no_calls_and_no_time() {
    let mut costs = Vec::new();
    for receiver in [None, Some(Receiver::default()), Some(Receiver { silent: true, ..Receiver::default() })] {
        let stage = Stage::new(200, 2);
        let replica = match &receiver {
            Some(receiver) => receiver.replica(&stage, "all", &[]).await,
            None => stage.start(&[]).await,
        };
        for n in 0..200 {
            stage.spot(n);
        }
        stage.until_handled(s(180)).await;
        let calls = ["patch nodes", "list pods", "create pods/eviction"].map(|operation| stage.calls(operation));
        let cordoned = stage.world.calls.of("patch nodes").iter().map(|call| call.at).max().unwrap();
        stage.rest(&[&replica]).await;
        costs.push((calls, cordoned));
    }
    let (calls, cordoned) = costs[0];
    assert!(calls[2] >= 400, "{costs:?}");
    for (with, later) in &costs[1..] {
        assert!(
            with.iter().zip(&calls).all(|(with, without)| *with * 20 <= without * 21),
            "5 % more at most: {costs:?}"
        );
        assert!(*later <= cordoned + Duration::from_millis(100), "{costs:?}");
    }
}

/// Drains one node, and returns when the message was deleted.
async fn drained(receiver: Option<&Receiver>) -> (Duration, Stage, Replica) {
    let stage = Stage::new(1, 3);
    let replica = match receiver {
        Some(receiver) => receiver.replica(&stage, "all", &[]).await,
        None => stage.start(&[]).await,
    };
    let begun = Instant::now();
    stage.spot(0);
    stage.until_handled(s(60)).await;
    (begun.elapsed(), stage, replica)
}

#[tokio::test(start_paused = true)]
async fn a_silent_receiver_delays_nothing_and_is_told_once() {
    let receiver = Receiver { silent: true, ..Receiver::default() };
    let (alone, stage, replica) = drained(None).await;
    stage.rest(&[&replica]).await;
    assert_eq!(replica.tasks.started(TaskKind::Notifier), 0, "no task without a receiver");
    let (told, stage, replica) = drained(Some(&receiver)).await;
    assert!(told < alone + Duration::from_millis(50), "{told:?} instead of {alone:?}");
    stage.until("given up", s(600), || counted(&replica, "failed") == 2).await;
    assert_eq!(receiver.got.lock().len(), 10, "five tries each");
    assert!((7.0..9.0).contains(&replica.metric("ebbtide_retries_total{category=\"timed-out\",step=\"notify\"}")));
    stage.rest(&[&replica]).await;
    let (_, took, _) = replica.stop().await;
    assert!(took < s(3), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_receiver_in_trouble_is_asked_again_when_it_wants() {
    let (stage, receiver) = (Stage::new(2, 1), Receiver::default());
    let answer = |status, retry_after| Answer { status, retry_after, body: "no".to_owned() };
    receiver.answers.lock().extend([answer(503, None), answer(429, Some("40")), answer(200, None)]);
    let replica = receiver.replica(&stage, "done", &[]).await;
    stage.spot(0);
    receiver.until(&stage, 3).await;
    let times: Vec<Instant> = receiver.got.lock().iter().map(|(at, _)| *at).collect();
    let pauses = [times[1] - times[0], times[2] - times[1]];
    assert!(pauses[0] >= Duration::from_millis(500) && pauses[0] <= s(1), "{pauses:?}");
    assert!(pauses[1] >= s(40) && pauses[1] <= s(41), "{pauses:?}");
    assert_eq!([counted(&replica, "sent"), counted(&replica, "failed")], [1, 0]);

    // What is not accepted is not sent again.
    receiver.answers.lock().extend([answer(400, Some("1"))]);
    stage.spot(1);
    stage.until("refused", s(60), || counted(&replica, "refused") == 1).await;
    stage.rest(&[&replica]).await;
    assert_eq!(receiver.got.lock().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn what_happened_just_before_the_end_of_the_process_is_told() {
    let (stage, receiver) = (Stage::slow(s(60)), Receiver::default());
    let replica = receiver.replica(&stage, "all", &[]).await;
    stage.spot(0);
    stage.until("cordoned", s(10), || stage.cordoned(0)).await;
    let (_, took, _) = replica.stop().await;
    assert!(took < s(3), "{took:?}");
    assert_eq!(receiver.told(), [format!("notice {}", node(0))]);
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_tells_nobody() {
    let (stage, receiver) = (Stage::new(1, 1), Receiver::default());
    let replica = receiver.replica(&stage, "all", &["--dry-run"]).await;
    stage.spot(0);
    stage.until_handled(s(60)).await;
    stage.rest(&[&replica]).await;
    assert_eq!((receiver.told(), replica.tasks.started(TaskKind::Notifier)), (Vec::new(), 0));
}
