use super::*;
use crate::fact::{Action, NoticeKind, NoticeRef, NotificationPhase, Subscriber};
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
}

impl Subscriber for Counts {
    fn note(&self, fact: &Fact<'_>) {
        match fact {
            Fact::NotificationFailed { repeated, host, result, .. } => {
                assert_eq!((*host, *result), ("hooks.example", NotificationResult::Failed));
                *self.failed.lock() += 1;
                *self.reported.lock() += usize::from(!repeated);
            }
            Fact::NotificationsDropped { count } => self.dropped.lock().push(*count),
            _ => {}
        }
    }
}

#[tokio::test(start_paused = true)]
#[allow(clippy::disallowed_methods, reason = "the task ends with the test")]
async fn the_oldest_are_dropped_and_counted_and_a_dead_receiver_is_told_seldom() {
    const NODES: usize = 600;
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
        sleep(Duration::from_secs(4)).await;
    }
    let minutes = usize::try_from(begun.elapsed().as_secs() / 60).unwrap();
    stop.cancel();
    tokio::time::timeout(Duration::from_millis(500), &mut running).await.unwrap_err();
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
    let (failed, reported) = (*counts.failed.lock(), *counts.reported.lock());
    let dropped = counts.dropped.lock().clone();
    assert!(failed > 3 && failed < 15, "{failed}");
    assert!(reported >= 3 && reported <= minutes / 10 + 1, "{reported} in {minutes} minutes");
    assert!(dropped.len() <= minutes + 2, "once a minute: {dropped:?}");
    assert_eq!(failed + dropped.iter().sum::<usize>(), NODES, "each is accounted for: {dropped:?}");
    let left = *dropped.last().unwrap();
    assert!((MAX_QUEUED..=MAX_QUEUED + 20).contains(&left), "{left} were left at the end");
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
