//! HTTP for probes and Prometheus: `/healthz`, `/readyz`, `/metrics`.

use crate::fact::TaskKind;
use crate::runtime::task::{Group, Tasks};
use crate::telemetry::metrics::Metrics;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Timeout of a request's headers. The kubelet and Prometheus send them at once.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of connections, more than probes and scrapers need. Further ones are closed at once.
const MAX_CONNECTIONS: usize = 64;

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

/// The reason why the admin server can't listen.
#[derive(Debug, thiserror::Error)]
#[error("can't listen on --admin-address {address}: {source}; choose a free address, or end what listens there")]
pub struct ListenError {
    /// The address of the settings.
    address: SocketAddr,
    /// The system's error.
    source: std::io::Error,
}

/// The admin server.
#[derive(Debug)]
pub struct Admin {
    listener: TcpListener,
    address: SocketAddr,
    pages: Arc<Pages>,
}

#[derive(Debug)]
struct Pages {
    readiness: Readiness,
    metrics: Arc<Metrics>,
    tasks: Tasks,
}

impl Admin {
    /// Binds the address. On a system without IPv6, `[::]` becomes `0.0.0.0`.
    ///
    /// # Errors
    /// When it can't be bound.
    pub async fn bind(
        address: SocketAddr,
        readiness: Readiness,
        metrics: Arc<Metrics>,
        tasks: Tasks,
    ) -> Result<Self, ListenError> {
        let refused = |source| ListenError { address, source };
        let listener = match TcpListener::bind(address).await {
            Err(_) if address.ip() == Ipv6Addr::UNSPECIFIED && !has_ipv6().await => {
                TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
            }
            bound => bound,
        };
        let listener = listener.map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        Ok(Self { listener, address, pages: Arc::new(Pages { readiness, metrics, tasks }) })
    }

    /// Returns the bound address; its port is the real one, even if the settings say 0.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until dropped.
    pub async fn serve(self) {
        let mut connections: Group<()> = self.pages.tasks.group(TaskKind::AdminConnection);
        loop {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) if connections.len() < MAX_CONNECTIONS => {
                        connections.spawn(connection(stream, Arc::clone(&self.pages)));
                    }
                    Ok(_) => {}
                    // Usually a lack of file descriptors: some may be closed during a pause.
                    Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                },
                Some(_) = connections.next() => {}
            }
        }
    }
}

async fn connection(stream: TcpStream, pages: Arc<Pages>) {
    let service = service_fn(move |request| {
        let pages = Arc::clone(&pages);
        async move { Ok::<_, Infallible>(pages.answer(&request)) }
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    // No keep-alive: a probe or a scrape is one request, and every open connection is a task.
    http.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).keep_alive(false);
    // A client may close its connection at any time.
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}

impl Pages {
    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        if request.method() != Method::GET && request.method() != Method::HEAD {
            return text(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered here\n");
        }
        match request.uri().path() {
            "/healthz" => text(StatusCode::OK, "ok\n"),
            "/readyz" if self.readiness.get() => text(StatusCode::OK, "ok\n"),
            "/readyz" => text(
                StatusCode::SERVICE_UNAVAILABLE,
                "not ready: the Nodes are not listed yet, the queue has not answered yet, or shutdown has begun\n",
            ),
            "/metrics" => text(StatusCode::OK, self.metrics.render(&self.tasks)),
            "/" => text(StatusCode::OK, "Ebbtide. Try /metrics, /readyz, /healthz\n"),
            _ => text(StatusCode::NOT_FOUND, "not found; try /metrics, /readyz, /healthz\n"),
        }
    }
}

/// Returns whether the system has IPv6, which always has a loopback address.
async fn has_ipv6() -> bool {
    TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).await.is_ok()
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let plain = header::HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fact::Facts;

    #[tokio::test]
    async fn all_addresses_are_of_both_families() {
        let all = "[::]:0".parse().unwrap();
        let (metrics, tasks) = (Arc::new(Metrics::default()), Tasks::new(Facts::to(Vec::new())));
        let admin = Admin::bind(all, Readiness::default(), metrics, tasks).await.unwrap();
        let port = admin.address().port();
        assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.is_ok());
        assert_eq!(TcpStream::connect((Ipv6Addr::LOCALHOST, port)).await.is_ok(), has_ipv6().await);
    }
}
