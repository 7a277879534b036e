//! The pages of the agent: `/metrics`, `/healthz` and `/readyz`. Its few numbers have no library: the service's metrics would take a megabyte.

use crate::fact::{AgentNoticeKind, Fact, Facts, MetadataFailure, Subscriber, TaskKind};
use crate::runtime::task::Tasks;
use crate::telemetry::http::{Answers, Body, HostNames, ListenError, Server, only_get, plain};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use std::convert::Infallible;
use std::fmt::Write;
use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// The numbers that the agent shows.
#[derive(Debug, Default)]
pub struct AgentMetrics {
    failures: [AtomicU64; MetadataFailure::ALL.len()],
    refused: AtomicU64,
    is_noticed: [AtomicBool; AgentNoticeKind::ALL.len()],
    /// The last failure of the metadata, as 1 and its number; 0 if they could be read.
    failing: AtomicU8,
    /// The result of the last patch: one of the constants below, or 0 if there was none.
    written: AtomicU8,
}

/// [`AgentMetrics::written`] if the Node was patched.
const WRITTEN: u8 = 1;

/// [`AgentMetrics::written`] if the patch failed.
const REFUSED: u8 = 2;

impl AgentMetrics {
    /// Returns whether the agent can do its work, and in a line for people why.
    ///
    /// It reads no Node, so it does not know whether its node is an EC2 instance. Where nothing answers as EC2's service does, it counts as none:
    /// there is nothing to announce, and a rollout must not wait for that. The log and the metrics show it.
    ///
    /// # Errors
    /// The reason why it can't.
    pub fn ready(&self) -> Result<String, String> {
        let failing = self.failing.load(Ordering::Relaxed).checked_sub(1);
        match failing.and_then(|number| MetadataFailure::ALL.get(usize::from(number))) {
            Some(why) if why.is_absence() => Ok(format!("ok: nothing to do without EC2's metadata service ({why})\n")),
            Some(why) => Err(format!("the instance's metadata can't be read: {why}; {}\n", why.remedy())),
            // The first patch comes after the first readings.
            None => match self.written.load(Ordering::Relaxed) {
                WRITTEN => Ok("ok\n".to_owned()),
                REFUSED => Err("the Node can't be patched; see the log\n".to_owned()),
                _ => Err("the agent starts\n".to_owned()),
            },
        }
    }

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
        for kind in AgentNoticeKind::ALL {
            let is_noticed = u8::from(self.is_noticed[kind as usize].load(Ordering::Relaxed));
            let _ = writeln!(text, "ebbtide_agent_says{{kind=\"{kind}\"}} {is_noticed}");
        }
        text
    }
}

impl Subscriber for AgentMetrics {
    fn note(&self, fact: &Fact<'_>) {
        match fact {
            Fact::MetadataFailed { why, .. } => {
                self.failures[*why as usize].fetch_add(1, Ordering::Relaxed);
                self.failing.store(*why as u8 + 1, Ordering::Relaxed);
            }
            Fact::MetadataAnswer => self.failing.store(0, Ordering::Relaxed),
            Fact::KubeCall { result, .. } => {
                self.refused.fetch_add(u64::from(result.is_err()), Ordering::Relaxed);
                self.written.store(if result.is_ok() { WRITTEN } else { REFUSED }, Ordering::Relaxed);
            }
            Fact::AgentWrote { kind, text, .. } => {
                self.is_noticed[*kind as usize].store(!text.is_empty(), Ordering::Relaxed);
            }
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
        names: HostNames,
        metrics: Arc<AgentMetrics>,
        facts: Facts,
    ) -> Result<Infallible, ListenError> {
        if let Some(address) = address {
            let server = Server::bind("--agent-address", address).await?.named(names);
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
            "/readyz" => match self.0.ready() {
                Ok(text) => plain(StatusCode::OK, text),
                Err(why) => plain(StatusCode::SERVICE_UNAVAILABLE, why),
            },
            "/metrics" => plain(StatusCode::OK, self.0.text()),
            _ => plain(StatusCode::NOT_FOUND, "not found; try /metrics, /healthz, /readyz\n"),
        }
    }
}
