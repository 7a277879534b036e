//! The pages for probes and Prometheus: `/healthz`, `/readyz`, `/metrics`.

use crate::runtime::task::Tasks;
use crate::telemetry::http::{Answers, Body, plain};
use crate::telemetry::metrics::Metrics;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use std::sync::Arc;
use tokio::sync::watch;

/// Whether the service is ready: its index has synced, its queue has answered, and it is not shutting down.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<watch::Sender<bool>>);

impl Readiness {
    /// Turns readiness on or off.
    pub fn set(&self, ready: bool) {
        self.0.send_replace(ready);
    }

    /// Whether it is on.
    #[must_use]
    pub fn get(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until it is on.
    pub async fn ready(&self) {
        // The sender lives as long as `self`, so the wait can't fail.
        let _ = self.0.subscribe().wait_for(|ready| *ready).await;
    }
}

/// The pages.
#[derive(Debug)]
pub struct Admin {
    /// Answers `/readyz`.
    pub readiness: Readiness,
    /// Answers `/metrics`.
    pub metrics: Arc<Metrics>,
    /// The tasks whose counts the metrics show.
    pub tasks: Tasks,
}

impl Answers for Admin {
    async fn answer(&self, request: &Request<Incoming>) -> Response<Body> {
        match request.uri().path() {
            "/healthz" => plain(StatusCode::OK, "ok\n"),
            "/readyz" if self.readiness.get() => plain(StatusCode::OK, "ok\n"),
            "/readyz" => plain(
                StatusCode::SERVICE_UNAVAILABLE,
                "not ready: the Nodes are not listed yet, the queue has not answered yet, or shutdown has begun\n",
            ),
            "/metrics" => plain(StatusCode::OK, self.metrics.render(&self.tasks)),
            "/" => plain(StatusCode::OK, "Ebbtide. Try /metrics, /readyz, /healthz\n"),
            _ => plain(StatusCode::NOT_FOUND, "not found; try /metrics, /readyz, /healthz\n"),
        }
    }
}
