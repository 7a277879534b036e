use super::*;
use crate::fact::{
    Action, HeldPod, NodeRef, NoticeKind, NoticeOutcome, NoticeRef, NotificationPhase, PodRef, Subscriber,
};
use crate::telemetry::notify::{Format, PhaseChoice, Phases, notify_subscriber};
use crate::telemetry::outbound::Receiver;
use aws_smithy_runtime_api::client::http::{HttpConnector, HttpConnectorFuture};
use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use parking_lot::Mutex;
use tokio::time::sleep;

/// A receiver that never answers.
#[derive(Debug)]
struct Silence;

impl HttpConnector for Silence {
    fn call(&self, _: HttpRequest) -> HttpConnectorFuture {
        HttpConnectorFuture::new(std::future::pending())
    }
}

/// Counts what becomes of notifications, and the failures that are reported.
#[derive(Debug, Default)]
struct Counts {
    failed: Mutex<usize>,
    reported: Mutex<usize>,
    dropped: Mutex<Vec<usize>>,
    folded: Mutex<usize>,
    sent: Mutex<usize>,
}

impl Subscriber for Counts {
    fn note(&self, fact: &Fact<'_>) {
        match fact {
            Fact::NotificationFailed { repeated, host, result, .. } => {
                assert_eq!(*host, "hooks.example");
                assert!(matches!(result, NotificationResult::Failed | NotificationResult::Refused), "{result}");
                *self.failed.lock() += 1;
                *self.reported.lock() += usize::from(!repeated);
            }
            Fact::NotificationFolded { .. } => *self.folded.lock() += 1,
            Fact::NotificationSent { .. } => *self.sent.lock() += 1,
            Fact::NotificationsDropped { count } => self.dropped.lock().push(*count),
            _ => {}
        }
    }
}

#[tokio::test(start_paused = true)]
#[allow(clippy::disallowed_methods, reason = "the task ends with the test")]
async fn the_oldest_are_folded_and_counted_and_a_dead_receiver_is_told_seldom() {
    const NODES: usize = 200;
    let Ok(url) = "https://hooks.example/word".parse();
    let settings = NotifySettings {
        receiver: Receiver::parse(&url).unwrap(),
        format: Format::Json,
        template: None,
        headers: Vec::new(),
        timeout: Duration::from_secs(5),
        signing_key: None,
        traces: false,
        routing_key: None,
        proxy: None,
        phases: PhaseChoice::all(Phases::of(&[NotificationPhase::Notice])),
        cluster: None,
        replica: "ebbtide".to_owned(),
    };
    let counts = Arc::new(Counts::default());
    let facts = Facts::to(vec![Arc::clone(&counts) as _]);
    let (subscriber, backlog) = notify_subscriber();
    let clock = Clock::showing("2026-11-23T12:00:00Z".parse().unwrap());
    let notifier = Notifier::new(Arc::new(settings), backlog, SharedHttpConnector::new(Silence), clock, facts);
    let stop = CancellationToken::new();
    let mut running = tokio::spawn(notifier.run(stop.clone()));
    let begun = Instant::now();
    for n in 0..NODES {
        let (instance, message) = (format!("i-{n}"), format!("m-{n}"));
        let about = NoticeRef { kind: NoticeKind::Spot, instance: &instance, node: None, message: &message };
        subscriber.note(&Fact::NoticeBegun {
            about,
            action: Action::Drain,
            until: None,
            hard: false,
            again: false,
            pool: None,
        });
        // Slowly enough to be no storm.
        sleep(Duration::from_secs(13)).await;
    }
    let minutes = usize::try_from(begun.elapsed().as_secs() / 60).unwrap();
    stop.cancel();
    tokio::time::timeout(Duration::from_millis(500), &mut running).await.unwrap_err();
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
    let (failed, reported) = (*counts.failed.lock(), *counts.reported.lock());
    let (dropped, folded) = (counts.dropped.lock().clone(), *counts.folded.lock());
    assert!(failed > 3 && failed < 15, "{failed}");
    assert!(reported >= 3 && reported <= minutes / 10 + 1, "{reported} in {minutes} minutes");
    assert_eq!(failed + folded + dropped.iter().sum::<usize>(), NODES, "each is accounted for: {folded}, {dropped:?}");
    assert!(
        matches!(dropped[..], [10 | 11]),
        "those that wait, and the one that is tried, were left at the end: {dropped:?}"
    );
}

/// A receiver that accepts everything with 200 at once, and never ends its body.
#[derive(Clone, Debug, Default)]
struct Endless(Arc<Mutex<usize>>, u16);

impl HttpConnector for Endless {
    fn call(&self, _: HttpRequest) -> HttpConnectorFuture {
        *self.0.lock() += 1;
        let body = http_body_util::StreamBody::new(futures_util::stream::pending::<
            Result<hyper::body::Frame<bytes::Bytes>, std::convert::Infallible>,
        >());
        let body = aws_smithy_types::body::SdkBody::from_body_1_x(body);
        let response = http::Response::builder().status(self.1).body(body).unwrap();
        HttpConnectorFuture::ready(Ok(response.try_into().unwrap()))
    }
}

fn endless_settings() -> NotifySettings {
    let Ok(url) = "https://hooks.example/word".parse();
    NotifySettings {
        receiver: Receiver::parse(&url).unwrap(),
        format: Format::Json,
        template: None,
        headers: Vec::new(),
        timeout: Duration::from_secs(5),
        signing_key: None,
        routing_key: None,
        traces: false,
        proxy: None,
        phases: PhaseChoice::all(Phases::of(&[NotificationPhase::Notice])),
        cluster: None,
        replica: "ebbtide".to_owned(),
    }
}

#[tokio::test(start_paused = true)]
#[allow(clippy::disallowed_methods, reason = "the task ends with the test")]
async fn an_accepted_notification_is_not_sent_again_because_its_answer_has_no_end() {
    let endless = Endless(Arc::default(), 200);
    let (subscriber, backlog) = notify_subscriber();
    let clock = Clock::showing("2026-11-23T12:00:00Z".parse().unwrap());
    let notifier = Notifier::new(
        Arc::new(endless_settings()),
        backlog,
        SharedHttpConnector::new(endless.clone()),
        clock,
        Facts::to(Vec::new()),
    );
    let _running = tokio::spawn(notifier.run(CancellationToken::new()));
    let about = NoticeRef { kind: NoticeKind::Spot, instance: "i-1", node: Some("node-1"), message: "m" };
    let until = Some(Duration::from_mins(2));
    subscriber.note(&Fact::NoticeBegun { about, action: Action::Drain, until, hard: true, again: false, pool: None });
    sleep(Duration::from_mins(10)).await;
    assert_eq!(*endless.0.lock(), 1, "number of POSTs of one notification that was answered 200 at once");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_whose_body_has_no_end_is_a_refusal() {
    let told = crate::telemetry::notify::sample::all().remove(0);
    let clock = Clock::showing("2026-11-23T12:00:00Z".parse().unwrap());
    let endless = SharedHttpConnector::new(Endless(Arc::default(), 404));
    let error = Courier::new(Arc::new(endless_settings()), endless, clock).send(&told).await.unwrap_err();
    assert!(!error.is_retried(), "404 is retried: {error}");
}

/// A receiver that notes what it accepts, fails now and then, and refuses a few.
#[derive(Clone, Debug, Default)]
struct Recorder {
    requests: Arc<Mutex<Vec<Instant>>>,
    accepted: Arc<Mutex<Vec<serde_json::Value>>>,
}

impl HttpConnector for Recorder {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let mut requests = self.requests.lock();
        requests.push(Instant::now());
        let status = match requests.len() {
            n if n % 19 == 0 => 400,
            n if n % 7 == 0 => 503,
            _ => 200,
        };
        if status == 200 {
            self.accepted.lock().push(serde_json::from_slice(request.body().bytes().unwrap()).unwrap());
        }
        let response = http::Response::builder().status(status).body(aws_smithy_types::body::SdkBody::empty()).unwrap();
        HttpConnectorFuture::ready(Ok(response.try_into().unwrap()))
    }
}

/// Lets the drain of a node begin, be blocked for ten seconds, and end.
async fn interrupted(subscriber: &impl Subscriber, n: usize, outcome: NoticeOutcome) {
    let (instance, message, node) = (format!("i-{n}"), format!("m-{n}"), format!("node-{n}"));
    let about = NoticeRef { kind: NoticeKind::Spot, instance: &instance, node: Some(&node), message: &message };
    let on = NodeRef { node: &node, uid: "u", instance: &instance };
    let pod = HeldPod { pod: PodRef { namespace: "x", name: "db", uid: "p" }, by: "a budget" };
    let until = Duration::from_mins(2);
    subscriber.note(&Fact::NoticeBegun {
        about,
        action: Action::Drain,
        until: Some(until),
        hard: true,
        again: false,
        pool: None,
    });
    sleep(Duration::from_secs(5)).await;
    subscriber.note(&Fact::DrainBlocked { on, pods: &[pod], until, hard: true });
    sleep(Duration::from_secs(5)).await;
    subscriber.note(&Fact::NoticeEnded { about, outcome, took: until, waited: "" });
    sleep(Duration::from_secs(3)).await;
}

#[tokio::test(start_paused = true)]
#[allow(clippy::disallowed_methods, reason = "the task ends with the test")]
async fn a_receiver_gets_ten_requests_a_minute_and_what_is_left_out_is_counted() {
    const NODES: usize = 100;
    let (recorder, counts) = (Recorder::default(), Arc::new(Counts::default()));
    let phases = PhaseChoice::all(Phases::of(&NotificationPhase::ALL));
    let settings = NotifySettings { phases, ..endless_settings() };
    let (subscriber, backlog) = notify_subscriber();
    let clock = Clock::showing("2026-11-23T12:00:00Z".parse().unwrap());
    let (connector, facts) = (SharedHttpConnector::new(recorder.clone()), Facts::to(vec![Arc::clone(&counts) as _]));
    let _running =
        tokio::spawn(Notifier::new(Arc::new(settings), backlog, connector, clock, facts).run(CancellationToken::new()));
    for n in 0..NODES {
        let outcome = if n % 5 == 0 { NoticeOutcome::TimedOut } else { NoticeOutcome::Drained };
        interrupted(&subscriber, n, outcome).await;
    }
    sleep(Duration::from_mins(5)).await;

    let requests = recorder.requests.lock().clone();
    for (n, at) in requests.iter().enumerate() {
        let within = requests[n..].iter().filter(|other| **other < *at + Duration::from_mins(1)).count();
        assert!(within <= 10, "{within} requests in a minute");
    }
    let accepted = recorder.accepted.lock().clone();
    let left_out = |body: &serde_json::Value| {
        body["folded"]
            .as_object()
            .unwrap()
            .values()
            .map(|number| usize::try_from(number.as_u64().unwrap()).unwrap())
            .sum::<usize>()
    };
    let (sent, folded, failed) = (*counts.sent.lock(), *counts.folded.lock(), *counts.failed.lock());
    assert_eq!(sent + folded + failed, 3 * NODES, "each is accounted for");
    assert_eq!((accepted.len(), accepted.iter().map(left_out).sum::<usize>()), (sent, folded), "the receiver knows");
    assert!(folded > 50 && failed > 3 && counts.dropped.lock().is_empty(), "{folded} folded, {failed} failed");
    let of = |phase: &str| accepted.iter().filter(|body| body["phase"] == *phase).count();
    assert!(of("failed") >= NODES / 5 - failed, "no failure is folded");
    assert!(of("blocked") > 4 * of("notice").max(of("done")) / 3, "blocked drains matter more than routine");
    // No node's phases are told in another order.
    let order = ["notice", "blocked", "done", "failed"];
    let place = |body: &serde_json::Value| order.iter().position(|phase| body["phase"] == **phase).unwrap();
    for node in (0..NODES).map(|n| format!("node-{n}")) {
        let places: Vec<usize> = accepted.iter().filter(|body| body["node"] == *node).map(place).collect();
        assert!(places.is_sorted(), "{node}: {places:?}");
    }
}
