//! The way to the API server: kube's own layers, but for small packets, and with a program's credentials that all clients share.
//!
//! kube's connector leaves Nagle's algorithm on. The first request on a new connection then waits until the server has acknowledged
//! the end of the TLS handshake, which takes its time about it: 40 ms, the delayed acknowledgement of Linux, for every notice
//! that finds no connection open.

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

/// A client that heeds all of `config` but its proxy and its program, which are given.
///
/// # Errors
/// When a certificate, a key, a token or a header in it can't be used.
pub(super) fn client(
    config: Config,
    proxy: Option<&Intercept>,
    program: Option<Arc<Program>>,
) -> kube::Result<kube::Client> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    let Some(proxy) = proxy else { return over(tcp, config, program) };
    // The proxy itself may want TLS.
    let mut tunnel = Tunnel::new(proxy.uri().clone(), config.rustls_https_connector_with_connector(tcp)?);
    if let Some(word) = proxy.basic_auth() {
        tunnel = tunnel.with_auth(word.clone());
    }
    over(tunnel, config, program)
}

fn over<C>(connector: C, config: Config, program: Option<Arc<Program>>) -> kube::Result<kube::Client>
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
