//! A small HTTP server: one request a connection, with bounded connections.

use crate::fact::TaskKind;
use crate::runtime::task::{Handle, Tasks};
use bytes::Bytes;
use http::uri::Authority;
use http::{HeaderName, Method, Request, Response, StatusCode};
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

/// Paths of probes, which show nothing. A refusal of what a kubelet or a service mesh asks would restart the pod.
const PROBES: [&str; 2] = ["/healthz", "/readyz"];

/// Ends of the names of a cluster's Services and pods. `.svc` is none in the middle: anyone can own `a.svc.example.com`.
const CLUSTER: [&str; 2] = [".svc", ".cluster.local"];

/// Name of a header that `ebbtide status` sends through the API server, which passes on its own name as the host. No page's script can set
/// a header with this prefix.
pub const NO_PAGE: HeaderName = HeaderName::from_static("sec-ebbtide-client");

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

/// A text that is no host name.
#[derive(Debug, thiserror::Error)]
#[error("\"{0}\" is no host name; write one without a port, such as ebbtide.example.com or *.example.com")]
pub struct BadHostName(String);

/// Answers requests.
pub trait Answers: Send + Sync + 'static {
    /// Returns the answer to a request of this client.
    fn answer(&self, request: &Request<Incoming>, client: SocketAddr) -> impl Future<Output = Response<Body>> + Send;
}

/// Names of a server, besides its addresses and those of the cluster: `NAME`, or `*.DOMAIN` for all names below a domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostNames(Arc<[String]>);

impl HostNames {
    /// Reads the names. Empty ones are left out, and case does not matter.
    ///
    /// # Errors
    /// When one has a port, a path, or anything else that no name has.
    pub fn read(names: &[String]) -> Result<Self, BadHostName> {
        let names = || names.iter().map(|name| name.trim()).filter(|name| !name.is_empty());
        let is_name = |name: &&str| {
            let domain = name.strip_prefix("*.").unwrap_or(name);
            !domain.is_empty() && domain.chars().all(|letter| letter.is_ascii_alphanumeric() || "-._".contains(letter))
        };
        match names().find(|name| !is_name(name)) {
            Some(wrong) => Err(BadHostName(wrong.to_owned())),
            None => Ok(Self(names().map(str::to_ascii_lowercase).collect())),
        }
    }

    /// Whether a request with this host is for this server. A foreign site whose name leads to it (DNS rebinding) would have a browser read
    /// the answer.
    fn have(&self, host: &str) -> bool {
        let host = host.trim_start_matches('[').trim_end_matches([']', '.']).to_ascii_lowercase();
        let is_cluster = !host.contains('.') || CLUSTER.iter().any(|domain| host.ends_with(domain));
        let is_named = |name: &String| match name.strip_prefix('*') {
            Some(domain) => host.ends_with(domain),
            None => host == *name,
        };
        is_cluster || host.parse::<IpAddr>().is_ok() || self.0.iter().any(is_named)
    }

    /// Returns the refusal of a request that names another host.
    fn refusal(&self, request: &Request<Incoming>) -> Option<Response<Body>> {
        if PROBES.contains(&request.uri().path()) || request.headers().contains_key(NO_PAGE) {
            return None;
        }
        // Without a host it is no browser's.
        let host = request.headers().get(http::header::HOST)?;
        let host = host.to_str().ok().and_then(|host| host.parse::<Authority>().ok());
        let is_own = host.is_some_and(|host| self.have(host.host()));
        let refused =
            "this host is not known; use an address, localhost or a name of the cluster, or add it to --allowed-host\n";
        (!is_own).then(|| plain(StatusCode::FORBIDDEN, refused))
    }
}

/// A bound address.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    names: HostNames,
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
        Ok(Self { listener, address, names: HostNames::default() })
    }

    /// Also answers requests for hosts of these names.
    #[must_use]
    pub fn named(self, names: HostNames) -> Self {
        Self { names, ..self }
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
                    connections.push_back(
                        tasks.spawn(kind, connection(stream, client, self.names.clone(), Arc::clone(&pages))),
                    );
                }
                // Usually a lack of file descriptors: some may be closed during a pause.
                Err(_) => sleep(Duration::from_millis(100)).await,
            }
        }
    }
}

async fn connection(stream: TcpStream, client: SocketAddr, names: HostNames, pages: Arc<impl Answers>) {
    // Number of parts of bodies that were asked for: the client has read what was before.
    let parts = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&parts);
    let service = service_fn(move |request| {
        let (pages, counted, refusal) = (Arc::clone(&pages), Arc::clone(&counted), names.refusal(&request));
        async move {
            let answer = match refusal {
                Some(refusal) => refusal,
                None => pages.answer(&request, client).await,
            };
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
    fn a_foreign_sites_name_is_none_of_the_servers() {
        let read = |names: &[&str]| HostNames::read(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        let names = read(&["Ebbtide.example.com", "*.k8s.example"]).unwrap();
        for own in ["localhost", "127.0.0.1", "[::1]", "workstation", "10.0.0.9", "EBBTIDE.example.com."] {
            assert!(names.have(own), "{own}");
        }
        for own in
            ["ebbtide.ops.svc", "ebbtide.ops.svc.cluster.local", "10-0-0-9.ops.pod.cluster.local", "a.svc.k8s.example"]
        {
            assert!(names.have(own), "{own}");
        }
        for foreign in [
            "rebound.example",
            "127.0.0.1.rebound.example",
            "a.svc.rebound.example",
            "k8s.example",
            "notk8s.example",
            "b.ebbtide.example.com",
            "cluster.local.rebound.example",
        ] {
            assert!(!names.have(foreign), "{foreign}");
        }
        assert!(!HostNames::default().have("ebbtide.example.com"));
        assert_eq!(read(&["", " a.example"]).unwrap(), read(&["a.example"]).unwrap());
        for wrong in ["*", "*.", "a:8080", "https://a.example", "a/b", "*a.example.*"] {
            let error = read(&["a.example", wrong]).unwrap_err().to_string();
            assert!(error.starts_with(&format!("\"{wrong}\" is no host name; write")), "{error}");
        }
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
