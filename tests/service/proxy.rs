//! Helper for answers that the simulation does not give: a proxy in front of the API server.

use crate::harness::{Replica, Stage};
use ebbtide::clients::connect::kube_client;
use http_body_util::{BodyExt, Full};

/// Starts a replica that gets the answers of `other`, if it gives any, instead of the API server's.
pub async fn start_behind<F>(stage: &Stage, flags: &[&str], other: F) -> Replica
where
    F: Fn(&http::Request<kube::client::Body>) -> Option<http::Response<Full<bytes::Bytes>>>
        + Clone
        + Send
        + Sync
        + 'static,
{
    let kube = stage.world.kube.clone();
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let (kube, other) = (kube.clone(), other.clone());
        async move {
            if let Some(answer) = other(&request) {
                return Ok::<_, tower::BoxError>(
                    answer.map(|body| body.map_err(|never| match never {}).boxed_unsync()),
                );
            }
            let (head, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            Ok(kube.serve(http::Request::from_parts(head, body)).await?)
        }
    });
    let client = kube_client(kube::client::ClientBuilder::new(service, "default"));
    stage.start_with(flags, |clients| clients.kube = client).await
}
