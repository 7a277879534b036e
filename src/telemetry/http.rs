//! A small HTTP server: one request a connection, with bounded connections.

use crate::fact::TaskKind;
use crate::runtime::task::{Handle, Tasks};
use bytes::Bytes;
use http::uri::Authority;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body as _, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

/// Timeout of a request's headers. Every client sends them at once.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// Time after which a connection whose client reads nothing is closed.
const STALL_TIMEOUT: Duration = Duration::from_secs(45);

/// Maximum number of connections, more than probes, scrapers and viewers need. A further one closes the oldest: a client with many
/// connections keeps no probe out, because a probe's connection is always new.
const MAX_CONNECTIONS: usize = 64;

/// The body of an answer.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// The reason why a server can't listen.
#[derive(Debug, thiserror::Error)]
#[error("can't listen on {flag} {address}: {source}; choose a free address, or end what listens there")]
pub struct ListenError {
    /// The flag that sets the address.
    flag: &'static str,
    /// The address of the settings.
    address: SocketAddr,
    /// The system's error.
    source: std::io::Error,
}

/// Answers requests.
pub trait Answers: Send + Sync + 'static {
    /// Returns the answer to a request of this client.
    fn answer(&self, request: &Request<Incoming>, client: SocketAddr) -> impl Future<Output = Response<Body>> + Send;
}

/// A bound address.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
}

impl Server {
    /// Binds the address that `flag` sets. On a system without IPv6, `[::]` becomes `0.0.0.0`.
    ///
    /// # Errors
    /// When it can't be bound.
    pub async fn bind(flag: &'static str, address: SocketAddr) -> Result<Self, ListenError> {
        let refused = |source| ListenError { flag, address, source };
        let listener = match TcpListener::bind(address).await {
            Err(_) if address.ip() == Ipv6Addr::UNSPECIFIED && !has_ipv6().await => {
                TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
            }
            bound => bound,
        };
        let listener = listener.map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        Ok(Self { listener, address })
    }

    /// Returns the bound address, with the real port if the settings have port 0.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until dropped. Connections are tasks of this kind.
    pub async fn serve(self, tasks: &Tasks, kind: TaskKind, pages: Arc<impl Answers>) {
        let mut connections: VecDeque<Handle<()>> = VecDeque::new();
        loop {
            match self.listener.accept().await {
                Ok((stream, client)) => {
                    connections.retain(|connection| !connection.is_finished());
                    if connections.len() >= MAX_CONNECTIONS {
                        connections.pop_front();
                    }
                    connections.push_back(tasks.spawn(kind, connection(stream, client, Arc::clone(&pages))));
                }
                // Usually a lack of file descriptors: some may be closed during a pause.
                Err(_) => sleep(Duration::from_millis(100)).await,
            }
        }
    }
}

async fn connection(stream: TcpStream, client: SocketAddr, pages: Arc<impl Answers>) {
    // Number of parts of bodies that were asked for: the client has read what was before.
    let parts = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&parts);
    let service = service_fn(move |request| {
        let (pages, counted) = (Arc::clone(&pages), Arc::clone(&counted));
        async move {
            let answer = pages.answer(&request, client).await;
            let count = move |part| {
                counted.fetch_add(1, Ordering::Relaxed);
                part
            };
            // A body of known length is one part.
            let is_stream = answer.body().size_hint().exact().is_none();
            Ok::<_, Infallible>(if is_stream {
                answer.map(|body| body.map_frame(count).boxed_unsync())
            } else {
                answer
            })
        }
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    // No keep-alive: every open connection is a task.
    http.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).keep_alive(false);
    let serving = pin!(http.serve_connection(TokioIo::new(stream), service));
    let stalled = async {
        let mut known = 0;
        loop {
            sleep(STALL_TIMEOUT).await;
            let now = parts.load(Ordering::Relaxed);
            if now == known {
                return;
            }
            known = now;
        }
    };
    tokio::select! {
        biased;
        // A client may close its connection at any time.
        _ = serving => {}
        () = stalled => {}
    }
}

/// Whether a request comes from this machine: a shell in the pod, or `kubectl port-forward`. A service mesh's proxy uses other addresses
/// of loopback for what comes from elsewhere.
pub fn is_local(client: SocketAddr) -> bool {
    let ip = client.ip().to_canonical();
    ip == Ipv4Addr::LOCALHOST || ip == Ipv6Addr::LOCALHOST
}

/// Whether a foreign site led a browser to this machine (DNS rebinding): the request is local, but names the site. Users name
/// addresses, `localhost`, or a name without a dot.
pub fn is_foreign(request: &Request<Incoming>, client: SocketAddr) -> bool {
    let host = request.headers().get(http::header::HOST).map(|host| host.to_str().unwrap_or("."));
    let name =
        host.map(|host| host.parse::<Authority>().map_or_else(|_| ".".to_owned(), |host| host.host().to_owned()));
    is_local(client) && name.is_some_and(|name| !is_own_name(&name))
}

fn is_own_name(name: &str) -> bool {
    let name = name.trim_start_matches('[').trim_end_matches(']');
    !name.contains('.') || name.parse::<IpAddr>().is_ok()
}

/// Returns the refusal of a request that is neither GET nor HEAD.
pub fn only_get(method: &Method) -> Option<Response<Body>> {
    let refused = || plain(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered here\n");
    (method != Method::GET && method != Method::HEAD).then(refused)
}

/// Returns an answer of plain text.
pub fn plain(status: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    answer(status, "text/plain; version=0.0.4; charset=utf-8", text.into())
}

/// Returns an answer of this content type.
pub fn answer(status: StatusCode, content_type: &'static str, body: Bytes) -> Response<Body> {
    let mut response = Response::new(Full::new(body).boxed_unsync());
    *response.status_mut() = status;
    response.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static(content_type));
    response
}

/// Returns whether the system has IPv6, which always has a loopback address.
async fn has_ipv6() -> bool {
    TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).await.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_foreign_sites_have_a_dot() {
        for own in ["localhost", "127.0.0.1", "[::1]", "workstation", "10.0.0.9"] {
            assert!(is_own_name(own), "{own}");
        }
        assert!(!is_own_name("rebound.example") && !is_own_name(".") && !is_own_name("127.0.0.1.rebound.example"));
    }

    #[test]
    fn a_proxy_of_the_pod_is_not_local() {
        let local = |client: &str| is_local(client.parse().unwrap());
        assert!(local("127.0.0.1:1") && local("[::1]:1") && local("[::ffff:127.0.0.1]:1"));
        assert!(!local("127.0.0.6:1") && !local("10.0.0.9:1"));
    }

    #[tokio::test]
    async fn all_addresses_are_of_both_families() {
        let server = Server::bind("--admin-address", "[::]:0".parse().unwrap()).await.unwrap();
        let port = server.address().port();
        assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.is_ok());
        assert_eq!(TcpStream::connect((Ipv6Addr::LOCALHOST, port)).await.is_ok(), has_ipv6().await);
    }
}
