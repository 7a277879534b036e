//! The state of the service on this machine.

use super::Probe;
use bytes::Bytes;
use http::Uri;
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use tokio::time::timeout_at;

/// Maximum size of the metrics in bytes. Ebbtide's are shorter.
const MAX_BYTES: usize = 1024 * 1024;

/// Whether a ready service serves its metrics at this address. A ready service has had an answer to a receive.
pub async fn ready(probe: &Probe, mut address: SocketAddr) -> bool {
    if address.ip().is_unspecified() {
        address.set_ip(IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    let text = timeout_at(probe.call_deadline(), metrics(address)).await.ok().flatten();
    text.is_some_and(|text| text.lines().any(|line| line == "ebbtide_ready 1"))
}

async fn metrics(address: SocketAddr) -> Option<String> {
    let client = Client::builder(TokioExecutor::new()).build::<_, Full<Bytes>>(HttpConnector::new());
    let uri: Uri = format!("http://{address}/metrics").parse().ok()?;
    let body = client.get(uri).await.ok()?.into_body();
    let body = Limited::new(body, MAX_BYTES).collect().await.ok()?.to_bytes();
    String::from_utf8(body.into()).ok()
}
