//! The way to the API server: kube's own, but for small packets.
//!
//! kube's connector leaves Nagle's algorithm on. The first request on a new connection then waits until the server has acknowledged
//! the end of the TLS handshake, which takes its time about it: 40 ms, the delayed acknowledgement of Linux, for every notice
//! that finds no connection open.

use super::retry_after::kube_client;
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::Builder;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::Config;
use kube::client::{ClientBuilder, ConfigExt};
use tower::util::{ServiceExt, option_layer};
use tower::{BoxError, Layer};

/// A client that heeds all of `config`.
///
/// # Errors
/// When a certificate, a key, a token or a header in it can't be used.
pub(super) fn client(config: Config) -> kube::Result<kube::Client> {
    // A proxy's tunnel is kube's business, and so is when a certificate expires that a program has given out.
    let asks_a_program = config.auth_info.exec.is_some();
    if config.proxy_url.is_some() || asks_a_program {
        return ClientBuilder::try_from(config).map(kube_client);
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(tcp)?);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    let calls = Builder::new(TokioExecutor::new()).build(connector).map_err(BoxError::from);
    let calls = config.extra_headers_layer()?.layer(calls);
    let calls = config.base_uri_layer().layer(option_layer(config.auth_layer()?).layer(calls));
    Ok(kube_client(ClientBuilder::new(calls, config.default_namespace)))
}
