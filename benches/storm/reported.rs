//! The cost of all that reports a storm: the status page, notifications, traces and Events.

use crate::harness::{Stage, s};
use crate::meter;
use crate::mix;
use aws_smithy_runtime_api::client::http::{HttpConnector, HttpConnectorFuture, SharedHttpConnector};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_types::body::SdkBody;

const ON: [&str; 8] = [
    "--status-address",
    "127.0.0.1:0",
    "--notify-url",
    "http://receiver.example",
    "--notify",
    "all",
    "--otlp-endpoint",
    "http://collector.example",
];
const OFF: [&str; 2] = ["--events", "none"];

/// Cost of a storm.
#[derive(Clone, Copy, Debug)]
pub struct Reported {
    /// Calls to AWS and the API server.
    pub calls: usize,
    /// The most bytes on the heap, beyond those at the start.
    pub peak: usize,
}

/// A receiver that accepts everything.
#[derive(Debug)]
struct Receiver;

impl HttpConnector for Receiver {
    fn call(&self, _: HttpRequest) -> HttpConnectorFuture {
        let response = http::Response::builder().status(200).body(SdkBody::empty()).expect("a response");
        HttpConnectorFuture::ready(Ok(HttpResponse::try_from(response).expect("a response")))
    }
}

/// Runs the storm of `mix` over `nodes` nodes, with all that reports on or off.
pub async fn run(nodes: usize, is_on: bool) -> Reported {
    let stage = Stage { has_history: false, ..mix::stage(nodes) };
    let connect = |clients: &mut ebbtide::clients::connect::Clients| {
        let receiver = SharedHttpConnector::new(Receiver);
        (clients.webhook, clients.collector) = (Some(receiver.clone()), Some(receiver));
    };
    let replica = if is_on { stage.start_with(&ON, connect).await } else { stage.start_with(&OFF, |_| {}).await };
    stage.until("the first receive", s(60), || stage.calls("ReceiveMessage") > 0).await;
    meter::reset_peak();
    let before = meter::heap();
    let sent = mix::send(&stage, nodes);
    stage.until_handled(s(100)).await;
    let peak = meter::peak().saturating_sub(before);
    assert_eq!(stage.world.aws.sqs.deleted().len(), sent.len(), "each message is deleted, once");
    let calls = stage.world.calls.tally().values().sum();
    stage.rest(&[&replica]).await;
    Reported { calls, peak }
}
