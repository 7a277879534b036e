//! Tests the simulated cluster with the real kube client on a paused clock, just before and just after each boundary.

mod budgets;
mod controllers;
mod evictions;
mod faults;
mod objects;
mod scale;
mod watches;
mod workers;

use super::{Kube, Pod};
use crate::calls::Calls;
use crate::clock::Clock;
use crate::fault::{Edge, Faults};
use http::Request;
use http_body_util::BodyExt;
use k8s_openapi::api::core::v1;
use kube::api::{Api, EvictParams};
use kube::core::response::Status;
use serde_json::{Value, json};
use std::time::Duration;

/// One cluster and its client.
struct Bench {
    kube: Kube,
    faults: Faults,
    calls: Calls,
    client: kube::Client,
}

impl Bench {
    fn new() -> Self {
        let clock = Clock::new();
        let (calls, faults) = (Calls::new(clock), Faults::new(1));
        let kube = Kube::new(clock, Edge::new(calls.clone(), faults.clone()), 1);
        let client = kube.client();
        Self { kube, faults, calls, client }
    }

    /// With nodes `node-0`, `node-1`, …
    fn with_nodes(count: usize) -> Self {
        let bench = Self::new();
        for number in 0..count {
            bench.kube.add_node(&format!("node-{number}"), &format!("i-{number:017x}"));
        }
        bench
    }

    fn nodes(&self) -> Api<v1::Node> {
        Api::all(self.client.clone())
    }

    fn pods(&self) -> Api<v1::Pod> {
        Api::default_namespaced(self.client.clone())
    }

    async fn evict(&self, name: &str) -> Result<Status, Box<Status>> {
        self.pods().evict(name, &EvictParams::default()).await.map_err(status)
    }

    /// Sends an eviction with `deleteOptions` under its right name: kube's own call sends `delete_options`, which a server
    /// ignores.
    async fn evict_with(&self, name: &str, options: Value) -> Result<Status, Box<Status>> {
        let body = json!({
            "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": name }, "deleteOptions": options,
        });
        let request = Request::post(format!("/api/v1/namespaces/default/pods/{name}/eviction"))
            .body(body.to_string().into_bytes())
            .expect("the request must be valid");
        self.client.request(request).await.map_err(status)
    }

    /// Returns an answer as it is on the wire.
    async fn raw(&self, method: &str, path: &str, body: &str) -> (http::response::Parts, Value) {
        let request = Request::builder().method(method).uri(path).body(body.to_owned().into());
        let answer = self.kube.serve(request.expect("the request must be valid")).await;
        let (head, body) = answer.expect("the connection must hold").into_parts();
        let body = body.collect().await.expect("the body must be complete").to_bytes();
        (head, serde_json::from_slice(&body).unwrap_or_default())
    }

    fn is_there(&self, name: &str) -> bool {
        self.kube.pod("default", name).is_some()
    }
}

fn status(error: kube::Error) -> Box<Status> {
    match error {
        kube::Error::Api(status) => status,
        other => panic!("the answer must be a Status, not {other:?}"),
    }
}

/// Returns a pod `web-NUMBER` on `node-0` with the label `app=web`.
fn web(number: usize) -> Pod {
    Pod::on("node-0").named(&format!("web-{number}")).labels([("app", "web")])
}

fn cause(status: &Status) -> (String, String) {
    let causes = status.details.as_ref().map(|details| details.causes.as_slice()).unwrap_or_default();
    causes.first().map(|cause| (cause.reason.clone(), cause.message.clone())).unwrap_or_default()
}

/// Returns the time just before a boundary; the millisecond is tokio's own precision.
async fn just_before(boundary: Duration) {
    tokio::time::sleep(boundary - Duration::from_millis(1)).await;
}

async fn just_after() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

const fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}
