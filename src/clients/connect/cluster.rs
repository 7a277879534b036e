//! The client of the API server: kube's own layers, with `TCP_NODELAY`, and with a program's credentials that all clients share.
//!
//! kube's connector leaves Nagle's algorithm on. Then the first request on a new connection waits until the server acknowledges the end
//! of the TLS handshake, which Linux delays by 40 ms: for every notice that finds no open connection.

use super::program::Program;
use super::retry_after::kube_client;
use http::Uri;
use hyper::rt::{Read, Write};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::Builder;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{Connection, HttpConnector};
use hyper_util::client::proxy::matcher::Intercept;
use hyper_util::rt::TokioExecutor;
use kube::Config;
use kube::client::{ClientBuilder, ConfigExt};
use std::sync::Arc;
use tower::filter::AsyncFilterLayer;
use tower::util::{ServiceExt, option_layer};
use tower::{BoxError, Layer, Service};

/// Makes a client of `config`; the proxy and the program are separate.
///
/// # Errors
/// When a certificate, a key, a token or a header can't be used.
pub(super) fn client(
    config: Config,
    proxy: Option<&Intercept>,
    program: Option<Arc<Program>>,
) -> kube::Result<kube::Client> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    let Some(proxy) = proxy else { return with_connector(tcp, config, program) };
    // The proxy itself may need TLS.
    let mut tunnel = Tunnel::new(proxy.uri().clone(), config.rustls_https_connector_with_connector(tcp)?);
    if let Some(credentials) = proxy.basic_auth() {
        tunnel = tunnel.with_auth(credentials.clone());
    }
    with_connector(tunnel, config, program)
}

fn with_connector<C>(connector: C, config: Config, program: Option<Arc<Program>>) -> kube::Result<kube::Client>
where
    C: Service<Uri, Error: Into<BoxError>, Future: Send> + Clone + Send + Sync + 'static,
    C::Response: Connection + Read + Write + Send + Unpin + 'static,
{
    let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(connector)?);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    let calls = Builder::new(TokioExecutor::new()).build(connector).map_err(BoxError::from);
    let signed = program.map(|program| {
        AsyncFilterLayer::new(move |request| {
            let program = Arc::clone(&program);
            async move { program.sign(request).await }
        })
    });
    let calls = option_layer(signed).layer(config.extra_headers_layer()?.layer(calls));
    let calls = config.base_uri_layer().layer(option_layer(config.auth_layer()?).layer(calls));
    Ok(kube_client(ClientBuilder::new(calls, config.default_namespace)))
}
