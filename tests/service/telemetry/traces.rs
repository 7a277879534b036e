//! Traces of the service: what a collector gets, and one that does not answer.

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
use tokio::time::sleep;

/// A collector behind a connector, which answers as it is told.
#[derive(Clone, Debug, Default)]
struct Collector {
    got: Arc<Mutex<Vec<Value>>>,
    /// The next answers; without one, 200.
    answers: Arc<Mutex<VecDeque<u16>>>,
    silent: bool,
}

impl HttpConnector for Collector {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        assert_eq!((request.method(), request.uri()), ("POST", "http://collector.example:4318/v1/traces"));
        assert_eq!(request.headers().get("x-team"), Some("t0ken"));
        assert_eq!(request.headers().get("content-type"), Some("application/json"));
        let body = serde_json::from_slice(request.body().bytes().expect("a body must be there")).expect("JSON");
        if self.silent {
            return HttpConnectorFuture::new(std::future::pending());
        }
        let status = self.answers.lock().pop_front().unwrap_or(200);
        if status == 200 {
            self.got.lock().push(body);
        }
        let response = http::Response::builder().status(status).body(SdkBody::from("{}")).unwrap();
        HttpConnectorFuture::ready(Ok(HttpResponse::try_from(response).unwrap()))
    }
}

/// A span, as the collector got it.
#[derive(Clone, Debug)]
struct Span(Value);

impl Span {
    fn text(&self, field: &str) -> &str {
        self.0[field].as_str().unwrap_or_default()
    }

    fn time(&self, field: &str) -> u64 {
        self.text(field).parse().unwrap()
    }

    fn attribute(&self, name: &str) -> &str {
        let all = self.0["attributes"].as_array().unwrap();
        let found = all.iter().find(|attribute| attribute["key"] == name);
        found.map_or("", |attribute| attribute["value"]["stringValue"].as_str().unwrap())
    }

    fn events(&self) -> Vec<&str> {
        self.0["events"].as_array().unwrap().iter().map(|event| event["name"].as_str().unwrap()).collect()
    }
}

impl Collector {
    async fn replica(&self, stage: &Stage, flags: &[&str]) -> Replica {
        let mut all = vec!["--otlp-endpoint", "http://collector.example:4318", "--otlp-header", "x-team=t0ken"];
        all.extend(flags);
        let collector = SharedHttpConnector::new(self.clone());
        stage.start_with(&all, |clients| clients.collector = Some(collector)).await
    }

    fn spans(&self) -> Vec<Span> {
        let scopes = |body: &Value| body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap().clone();
        self.got.lock().iter().flat_map(scopes).map(Span).collect()
    }

    /// Returns the whole of each trace.
    fn roots(&self) -> Vec<Span> {
        self.spans().into_iter().filter(|span| span.text("name") == "interruption").collect()
    }

    /// Returns the names of the root's parts, in the order of their begins.
    fn parts(&self, root: &Span) -> Vec<String> {
        let mut parts = self.spans();
        parts.retain(|span| span.text("parentSpanId") == root.text("spanId"));
        for part in &parts {
            assert_eq!(part.text("traceId"), root.text("traceId"));
            let (begin, end) = (part.time("startTimeUnixNano"), part.time("endTimeUnixNano"));
            let whole = root.time("startTimeUnixNano")..=root.time("endTimeUnixNano");
            assert!(begin <= end && whole.contains(&begin) && whole.contains(&end), "{part:?} is not within {root:?}");
        }
        parts.sort_by_key(|part| (part.time("startTimeUnixNano"), part.time("endTimeUnixNano")));
        parts.iter().map(|part| part.text("name").to_owned()).collect()
    }

    async fn until(&self, stage: &Stage, roots: usize) {
        stage.until("the traces", s(180), || self.roots().len() >= roots).await;
    }
}

fn counted(replica: &Replica, result: &str) -> f64 {
    replica.metric(&format!("ebbtide_traces_total{{result=\"{result}\"}}"))
}

#[tokio::test(start_paused = true)]
async fn an_interruption_is_one_trace_with_its_parts() {
    let (stage, collector) = (Stage::new(1, 2), Collector::default());
    stage.block(0);
    let replica = collector.replica(&stage, &["--hold", "before-completion", "--cluster-name", "blue"]).await;
    let token = stage.terminate(0, s(60), Wrapping::Event);
    sleep(s(45)).await;
    assert!(collector.roots().is_empty(), "it goes on");
    stage.unblock(0);
    stage.until("held", s(60), || held(&stage)).await;
    stage.world.kube.update_node(&node(0), |node| {
        let release = ("ebbtide/release".to_owned(), "before-completion".to_owned());
        node.metadata.annotations.get_or_insert_default().extend([release]);
    });
    stage.until_handled(s(120)).await;
    stage.completed_once(&token);
    collector.until(&stage, 1).await;
    stage.rest(&[&replica]).await;

    let root = &collector.roots()[0];
    let parts = collector.parts(root);
    let expected = ["receive", "resolve", "cordon", "evict", "hold-before-completion", "complete hook", "delete"];
    assert_eq!(parts, expected);
    assert_eq!((root.0["kind"].as_i64(), root.0["status"]["code"].as_i64()), (Some(5), Some(1)));
    assert_eq!((root.text("traceId").len(), root.text("spanId").len()), (32, 16));
    let i = instance(0);
    for (name, value) in [("host.id", i.as_str()), ("ebbtide.kind", "asg-terminate"), ("ebbtide.outcome", "drained")] {
        assert_eq!(root.attribute(name), value, "{name}");
    }
    assert_eq!((root.attribute("k8s.node.name"), root.attribute("ebbtide.action")), ("node-0", "drain"));
    assert!(root.events().contains(&"pod blocked") && root.events().contains(&"heartbeat"), "{:?}", root.events());
    let resource = collector.got.lock()[0]["resourceSpans"][0]["resource"].to_string();
    assert!(resource.contains("\"ebbtide\"") && resource.contains("\"blue\""), "{resource}");
    assert_eq!((counted(&replica, "sent"), counted(&replica, "lost")), (1.0, 0.0));
}

#[tokio::test(start_paused = true)]
async fn a_failed_drain_is_an_error() {
    let (stage, collector) = (Stage::new(1, 1), Collector::default());
    stage.block(0);
    let replica = collector.replica(&stage, &["--drain-timeout", "1m", "--at-deadline", "leave"]).await;
    stage.terminate(0, s(600), Wrapping::Event);
    stage.until_handled(s(130)).await;
    collector.until(&stage, 1).await;
    stage.rest(&[&replica]).await;
    let status = &collector.roots()[0].0["status"];
    assert_eq!((status["code"].as_i64(), status["message"].as_str()), (Some(2), Some("blocked")));
}

/// The trace's id follows from the interruption, and the first part says why it is not whole.
#[tokio::test(start_paused = true)]
async fn a_takeover_continues_the_trace() {
    let (stage, collector) = (Stage::new(1, 1), Collector::default());
    stage.block(0);
    let first = collector.replica(&stage, &[]).await;
    stage.terminate(0, s(600), Wrapping::Event);
    stage.until("a refused eviction", s(5), || stage.calls("create pods/eviction") > 0).await;
    first.stop().await;
    assert_eq!(collector.roots().len(), 1, "sent before the end of the process");
    let second = collector.replica(&stage, &[]).await;
    sleep(s(5)).await;
    stage.unblock(0);
    stage.until_handled(s(120)).await;
    collector.until(&stage, 2).await;
    stage.rest(&[&second]).await;
    let roots = collector.roots();
    assert_eq!(roots[0].text("traceId"), roots[1].text("traceId"));
    assert_ne!(roots[0].text("spanId"), roots[1].text("spanId"));
    assert!(collector.parts(&roots[0]).contains(&"release".to_owned()), "{:?}", collector.parts(&roots[0]));
    assert!(collector.parts(&roots[1]).contains(&"delete".to_owned()), "{:?}", collector.parts(&roots[1]));
}

#[tokio::test(start_paused = true)]
async fn an_overloaded_collector_is_asked_again_and_a_refusal_is_not() {
    let (stage, collector) = (Stage::new(2, 1), Collector::default());
    collector.answers.lock().extend([503, 429, 200, 400]);
    let replica = collector.replica(&stage, &[]).await;
    stage.spot(0);
    stage.until_handled(s(60)).await;
    collector.until(&stage, 1).await;
    assert_eq!((counted(&replica, "sent"), counted(&replica, "lost")), (1.0, 0.0));
    stage.spot(1);
    stage.until_handled(s(60)).await;
    stage.until("the refusal", s(30), || counted(&replica, "lost") > 0.0).await;
    stage.rest(&[&replica]).await;
    assert_eq!(collector.roots().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_silent_collector_delays_no_drain_and_loses_a_bounded_number() {
    const NODES: usize = 1300;
    let stage = Stage::new(NODES, 0);
    let collector = Collector { silent: true, ..Collector::default() };
    let replica = collector.replica(&stage, &[]).await;
    (0..NODES).for_each(|n| drop(stage.spot(n)));
    stage.until_handled(s(60)).await;
    // What waits is bounded: the batch that is tried, and the queue behind it.
    stage.until("all the others are lost", s(600), || counted(&replica, "lost") >= 150.0).await;
    assert!(replica.tasks.alive(TaskKind::Tracer) == 1);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn notifications_name_the_trace() {
    #[derive(Clone, Debug, Default)]
    struct Webhook(Arc<Mutex<Vec<Value>>>);
    impl HttpConnector for Webhook {
        fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
            let body = serde_json::from_slice(request.body().bytes().unwrap()).unwrap();
            self.0.lock().push(body);
            let response = http::Response::builder().status(200).body(SdkBody::empty()).unwrap();
            HttpConnectorFuture::ready(Ok(HttpResponse::try_from(response).unwrap()))
        }
    }
    let (stage, collector, webhook) = (Stage::new(1, 1), Collector::default(), Webhook::default());
    let (traces, told) = (SharedHttpConnector::new(collector.clone()), SharedHttpConnector::new(webhook.clone()));
    let flags = [
        ["--otlp-endpoint", "http://collector.example:4318"],
        ["--otlp-header", "x-team=t0ken"],
        ["--notify-url", "https://hooks.example/"],
        ["--notify", "all"],
    ];
    let connect = |clients: &mut ebbtide::clients::connect::Clients| {
        (clients.collector, clients.webhook) = (Some(traces), Some(told));
    };
    let replica = stage.start_with(flags.as_flattened(), connect).await;
    stage.spot(0);
    stage.until_handled(s(60)).await;
    collector.until(&stage, 1).await;
    stage.rest(&[&replica]).await;
    let told = webhook.0.lock();
    let ids: Vec<_> = told.iter().map(|body| body["traceId"].as_str().unwrap()).collect();
    assert_eq!(ids, [collector.roots()[0].text("traceId"); 2]);
}

fn held(stage: &Stage) -> bool {
    let annotations = stage.world.kube.node(&node(0)).unwrap().metadata.annotations.unwrap_or_default();
    annotations.contains_key("ebbtide/hold")
}
