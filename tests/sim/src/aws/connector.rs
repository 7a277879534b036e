//! The SDK's HTTP client, answered in memory.

use super::Aws;
use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpClient, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::body::SdkBody;
use http_body_util::BodyExt;
use std::time::Duration;

pub(super) fn http_client(aws: Aws) -> SharedHttpClient {
    SharedHttpClient::new(Connector { aws, read_timeout: None })
}

#[derive(Clone, Debug)]
struct Connector {
    aws: Aws,
    /// The connector must enforce the read timeout: the SDK only passes it on.
    read_timeout: Option<Duration>,
}

impl HttpClient for Connector {
    fn http_connector(&self, settings: &HttpConnectorSettings, _: &RuntimeComponents) -> SharedHttpConnector {
        SharedHttpConnector::new(Self { aws: self.aws.clone(), read_timeout: settings.read_timeout() })
    }
}

impl HttpConnector for Connector {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let Self { aws, read_timeout } = self.clone();
        HttpConnectorFuture::new(async move {
            let answer = exchange(aws, request);
            match read_timeout {
                Some(limit) => match tokio::time::timeout(limit, answer).await {
                    Ok(answer) => answer,
                    Err(elapsed) => Err(ConnectorError::timeout(elapsed.into())),
                },
                None => answer.await,
            }
        })
    }
}

async fn exchange(aws: Aws, request: HttpRequest) -> Result<HttpResponse, ConnectorError> {
    let request = request.try_into_http1x().map_err(|error| ConnectorError::user(error.into()))?;
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(ConnectorError::user)?.to_bytes();
    let response = aws
        .serve(http::Request::from_parts(parts, body))
        .await
        .map_err(|disconnected| ConnectorError::io(disconnected.into()))?;
    HttpResponse::try_from(response.map(SdkBody::from)).map_err(|error| ConnectorError::other(error.into(), None))
}
