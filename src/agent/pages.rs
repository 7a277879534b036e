//! The pages of the agent: `/metrics` and `/healthz`. A few numbers, written by hand: the service's metrics would take a megabyte.

use crate::fact::{Fact, Facts, MetadataFailure, SaidKind, Subscriber, TaskKind};
use crate::runtime::task::Tasks;
use crate::telemetry::http::{Answers, Body, ListenError, Server, only_get, plain};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use std::convert::Infallible;
use std::fmt::Write;
use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The numbers that the agent shows.
#[derive(Debug, Default)]
pub struct AgentMetrics {
    failures: [AtomicU64; MetadataFailure::ALL.len()],
    refused: AtomicU64,
    says: [AtomicBool; SaidKind::ALL.len()],
}

impl AgentMetrics {
    /// Returns the numbers in Prometheus' text format.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::from("# TYPE ebbtide_agent_metadata_failures_total counter\n");
        for why in MetadataFailure::ALL {
            let count = self.failures[why as usize].load(Ordering::Relaxed);
            // Writing to a String can't fail.
            let _ = writeln!(text, "ebbtide_agent_metadata_failures_total{{reason=\"{why}\"}} {count}");
        }
        text.push_str("# TYPE ebbtide_agent_write_failures_total counter\n");
        let _ = writeln!(text, "ebbtide_agent_write_failures_total {}", self.refused.load(Ordering::Relaxed));
        text.push_str("# TYPE ebbtide_agent_says gauge\n");
        for kind in SaidKind::ALL {
            let says = u8::from(self.says[kind as usize].load(Ordering::Relaxed));
            let _ = writeln!(text, "ebbtide_agent_says{{kind=\"{kind}\"}} {says}");
        }
        text
    }
}

impl Subscriber for AgentMetrics {
    fn note(&self, fact: &Fact<'_>) {
        match fact {
            Fact::MetadataFailed { why, .. } => drop(self.failures[*why as usize].fetch_add(1, Ordering::Relaxed)),
            Fact::KubeCall { result: Err(_), .. } => drop(self.refused.fetch_add(1, Ordering::Relaxed)),
            Fact::AgentSays { kind, text, .. } => self.says[*kind as usize].store(!text.is_empty(), Ordering::Relaxed),
            _ => {}
        }
    }
}

/// Answers with an agent's numbers.
#[derive(Debug)]
pub struct AgentPages(Arc<AgentMetrics>);

impl AgentPages {
    /// Serves the pages until dropped; without an address never ends.
    ///
    /// # Errors
    /// When the address can't be bound.
    pub async fn serve(
        address: Option<SocketAddr>,
        metrics: Arc<AgentMetrics>,
        facts: Facts,
    ) -> Result<Infallible, ListenError> {
        if let Some(address) = address {
            let server = Server::bind("--agent-address", address).await?;
            let tasks = Tasks::new(facts);
            server.serve(&tasks, TaskKind::AdminConnection, Arc::new(Self(metrics))).await;
        }
        pending().await
    }
}

impl Answers for AgentPages {
    async fn answer(&self, request: &Request<Incoming>, _: SocketAddr) -> Response<Body> {
        if let Some(refused) = only_get(request.method()) {
            return refused;
        }
        match request.uri().path() {
            "/healthz" => plain(StatusCode::OK, "ok\n"),
            "/metrics" => plain(StatusCode::OK, self.0.text()),
            _ => plain(StatusCode::NOT_FOUND, "not found; try /metrics, /healthz\n"),
        }
    }
}
