//! The pages for probes and Prometheus, `/healthz`, `/readyz` and `/metrics`; and `/log`, the filter of the log.

use crate::fact::{Fact, Facts};
use crate::runtime::task::Tasks;
use crate::telemetry::http::{Answers, Body, is_local, only_get, plain};
use crate::telemetry::log_filter::LogFilter;
use crate::telemetry::metrics::Metrics;
use http::{Method, Request, Response, StatusCode};
use hyper::body::{Body as _, Incoming};
use std::net::SocketAddr;
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
    /// Answers `/log`.
    pub log_filter: Option<LogFilter>,
    /// Receives the fact of a change.
    pub facts: Facts,
}

impl Admin {
    /// Answers `PUT /log?FILTER`, which only loopback may ask: `kubectl port-forward`, or a shell in the pod.
    fn change_log(&self, request: &Request<Incoming>, client: SocketAddr) -> Response<Body> {
        let Some(filter) = &self.log_filter else {
            return plain(StatusCode::NOT_FOUND, "this process has no log of its own\n");
        };
        if !is_local(client) {
            return plain(StatusCode::FORBIDDEN, "only from inside the pod: use kubectl port-forward\n");
        }
        if request.body().size_hint().exact() != Some(0) {
            return plain(StatusCode::BAD_REQUEST, "the filter stands behind a ?, as in PUT /log?info,ebbtide=debug\n");
        }
        match filter.change(request.uri().query().unwrap_or_default()) {
            Ok(now) => {
                self.facts.emit(&Fact::LogFilterChanged { filter: &now });
                plain(StatusCode::OK, format!("the log's filter is now {now}\n"))
            }
            Err(error) => plain(StatusCode::BAD_REQUEST, format!("{error}\n")),
        }
    }
}

impl Answers for Admin {
    async fn answer(&self, request: &Request<Incoming>, client: SocketAddr) -> Response<Body> {
        let path = request.uri().path();
        if path == "/log" && request.method() == Method::PUT {
            return self.change_log(request, client);
        }
        if let Some(refused) = only_get(request.method()) {
            return refused;
        }
        match (path, &self.log_filter) {
            ("/healthz", _) => plain(StatusCode::OK, "ok\n"),
            ("/readyz", _) if self.readiness.get() => plain(StatusCode::OK, "ok\n"),
            ("/readyz", _) => plain(
                StatusCode::SERVICE_UNAVAILABLE,
                "not ready: the Nodes are not listed yet, the queue has not answered yet, or shutdown has begun\n",
            ),
            ("/metrics", _) => plain(StatusCode::OK, self.metrics.render(&self.tasks)),
            ("/log", Some(filter)) => plain(StatusCode::OK, format!("{}\n", filter.now())),
            ("/", _) => plain(StatusCode::OK, "Ebbtide. Try /metrics, /readyz, /healthz, /log\n"),
            _ => plain(StatusCode::NOT_FOUND, "not found; try /metrics, /readyz, /healthz, /log\n"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fact::TaskKind;
    use crate::telemetry::http::Server;
    use parking_lot::Mutex;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tracing_subscriber::filter::Targets;

    #[tokio::test]
    async fn the_log_filter_is_changed_from_loopback_and_set_back() {
        let (facts, applied) = (Facts::to(Vec::new()), Arc::new(Mutex::new(Vec::new())));
        let first: Targets = "info".parse().unwrap();
        let applies = Arc::clone(&applied);
        let filter = LogFilter::new(&first, move |filter| {
            applies.lock().push(filter.to_string());
            true
        });
        let tasks = Tasks::new(facts.clone());
        let pages = Admin {
            readiness: Readiness::default(),
            metrics: Arc::default(),
            tasks: tasks.clone(),
            log_filter: Some(filter),
            facts,
        };
        let server = Server::bind("--admin-address", "127.0.0.1:0".parse().unwrap()).await.unwrap();
        let (address, counted) = (server.address(), tasks.clone());
        let _serving = tasks.spawn(TaskKind::Admin, async move {
            server.serve(&counted, TaskKind::AdminConnection, Arc::new(pages)).await;
        });
        let ask_as = async |host: &str, line: &str| {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(format!("{line} HTTP/1.1\r\nhost: {host}\r\n\r\n").as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answer
        };
        let ask = async |line: &str| ask_as("localhost:8080", line).await;
        for foreign in ["PUT /log?off", "GET /metrics", "GET /"] {
            assert!(ask_as("rebound.example:8080", foreign).await.starts_with("HTTP/1.1 403"), "{foreign}");
        }
        let through_api_server = "GET /metrics HTTP/1.1\r\nsec-ebbtide-client: status\r\nx-y: z";
        assert!(ask_as("api.example", through_api_server).await.starts_with("HTTP/1.1 200"));
        // Prometheus asks a pod's address, and a probe may be asked by any name.
        for (host, own) in [("10.0.0.9:8080", "GET /metrics"), ("mesh.example", "GET /healthz")] {
            assert!(ask_as(host, own).await.starts_with("HTTP/1.1 200"), "{host} {own}");
        }
        assert!(ask("GET /log").await.ends_with("\r\n\r\ninfo\n"));
        assert!(ask("PUT /log?warn,ebbtide=debug").await.starts_with("HTTP/1.1 200"));
        assert!(ask("GET /log").await.contains("ebbtide=debug"));
        let refused = ask("PUT /log?ebbtide=loud").await;
        assert!(refused.starts_with("HTTP/1.1 400") && refused.contains("is not a filter"), "{refused}");
        for silent in ["inof", "filter=debug", "info,ebbtide%3Ddebug"] {
            let refused = ask(&format!("PUT /log?{silent}")).await;
            assert!(refused.contains("sets no level for Ebbtide"), "{refused}");
        }
        let with_body = ask("PUT /log HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\n\r\ninfo").await;
        assert!(with_body.starts_with("HTTP/1.1 400"), "{with_body}");
        assert!(ask("PUT /log").await.contains("now info"));
        assert!(ask("POST /log?info").await.starts_with("HTTP/1.1 405"));
        assert_eq!(applied.lock().len(), 2);
    }

    /// Any pod may reach the port of the probes. One that holds many connections open must not restart the service.
    #[tokio::test]
    async fn idle_connections_keep_no_probe_out() {
        let facts = Facts::to(Vec::new());
        let tasks = Tasks::new(facts.clone());
        let (readiness, metrics) = (Readiness::default(), Arc::default());
        let pages = Admin { readiness, metrics, tasks: tasks.clone(), log_filter: None, facts };
        let server = Server::bind("--admin-address", "127.0.0.1:0".parse().unwrap()).await.unwrap();
        let (address, counted) = (server.address(), tasks.clone());
        let _serving = tasks.spawn(TaskKind::Admin, async move {
            server.serve(&counted, TaskKind::AdminConnection, Arc::new(pages)).await;
        });
        let mut idle = Vec::new();
        for _ in 0..200 {
            idle.push(TcpStream::connect(address).await.unwrap());
        }
        let mut probe = TcpStream::connect(address).await.unwrap();
        probe.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        probe.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(tasks.alive(TaskKind::AdminConnection) <= 64, "the number stays bounded");
    }
}
