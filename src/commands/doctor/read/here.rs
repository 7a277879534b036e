//! What a service beside us is asked.

use super::Ask;
use bytes::Bytes;
use http::Uri;
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use tokio::time::timeout_at;

/// Its metrics are shorter; what is longer is not Ebbtide's.
const LONGEST: usize = 1024 * 1024;

/// Whether a service that is ready serves its metrics at this address: one that is, has had an answer to a receive. In a pod
/// that is the one which the pod is for.
pub async fn ready(ask: &Ask, mut address: SocketAddr) -> bool {
    if address.ip().is_unspecified() {
        address.set_ip(IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    let text = timeout_at(ask.until(), metrics(address)).await.ok().flatten();
    text.is_some_and(|text| text.lines().any(|line| line == "ebbtide_ready 1"))
}

async fn metrics(address: SocketAddr) -> Option<String> {
    let client = Client::builder(TokioExecutor::new()).build::<_, Full<Bytes>>(HttpConnector::new());
    let uri: Uri = format!("http://{address}/metrics").parse().ok()?;
    let body = client.get(uri).await.ok()?.into_body();
    let body = Limited::new(body, LONGEST).collect().await.ok()?.to_bytes();
    String::from_utf8(body.into()).ok()
}
