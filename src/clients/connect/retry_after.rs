//! Keeps the `Retry-After` of an overloaded API server, which kube's client drops with all headers.
//!
//! The server's overload filter, and proxies in front of it, answer in plain text. kube makes a `Status` without details of such an
//! answer. Here it becomes the `Status` that the API itself would have written, with the time in its details.

use bytes::Bytes;
use http::{Response, StatusCode, header};
use http_body_util::{BodyExt, Either, Full};
use kube::client::{Body, ClientBuilder};
use kube::core::Status;
use kube::core::response::{StatusDetails, StatusSummary};
use serde::Deserialize;
use tower::util::AndThen;
use tower::{BoxError, Service};

/// Makes a client whose errors keep `Retry-After`.
pub fn kube_client<S, B>(builder: ClientBuilder<S>) -> kube::Client
where
    S: Service<http::Request<Body>, Response = Response<B>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: hyper::body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    builder.with_layer(&AndThen::<S, _>::layer(keep_retry_after::<B>)).build()
}

/// Writes the header into the body of an overloaded server's answer.
async fn keep_retry_after<B>(response: Response<B>) -> Result<Response<Either<B, Full<Bytes>>>, BoxError>
where
    B: hyper::body::Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let Some(seconds) = retry_after(&response) else { return Ok(response.map(Either::Left)) };
    let (mut head, body) = response.into_parts();
    let mut body = body.collect().await.map_err(Into::into)?.to_bytes();
    if !is_status(&body) {
        body = status(head.status, &String::from_utf8_lossy(&body), seconds)?.into();
        head.headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
        head.headers.insert(header::CONTENT_LENGTH, body.len().into());
    }
    Ok(Response::from_parts(head, Either::Right(Full::new(body))))
}

/// Returns the seconds for which an overloaded server asks. A date, which only proxies write, is ignored.
fn retry_after<B>(response: &Response<B>) -> Option<u32> {
    let overloaded = matches!(response.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
    let header = response.headers().get(header::RETRY_AFTER).filter(|_| overloaded)?;
    header.to_str().ok()?.trim().parse().ok()
}

/// Whether the API itself wrote this body: then it contains the time. kube takes any JSON object for a `Status`.
fn is_status(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Object {
        kind: String,
    }
    serde_json::from_slice::<Object>(body).is_ok_and(|object| object.kind == "Status")
}

fn status(code: StatusCode, message: &str, seconds: u32) -> Result<Vec<u8>, serde_json::Error> {
    let reason = if code == StatusCode::TOO_MANY_REQUESTS { "TooManyRequests" } else { "ServiceUnavailable" };
    serde_json::to_vec(&Status {
        status: Some(StatusSummary::Failure),
        code: code.as_u16(),
        message: message.trim().to_owned(),
        reason: reason.to_owned(),
        details: Some(StatusDetails {
            retry_after_seconds: seconds,
            name: String::new(),
            group: String::new(),
            kind: String::new(),
            uid: String::new(),
            causes: Vec::new(),
        }),
        metadata: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the error that a call makes of this answer.
    async fn said(code: u16, headers: &[(&str, &str)], body: &'static str) -> Status {
        let mut answer = Response::builder().status(code);
        for (name, value) in headers {
            answer = answer.header(*name, *value);
        }
        let mut answer = Some(answer.body(Full::new(Bytes::from_static(body.as_bytes()))).unwrap());
        let service = tower::service_fn(move |_| {
            let answer = answer.take().expect("one call is made");
            async move { Ok::<_, BoxError>(answer) }
        });
        let client = kube_client(ClientBuilder::new(service, "default"));
        match client.request::<Status>(http::Request::get("/").body(Vec::new()).unwrap()).await {
            Err(kube::Error::Api(status)) => *status,
            other => panic!("{other:?}"),
        }
    }

    fn seconds(status: &Status) -> Option<u32> {
        status.details.as_ref().map(|details| details.retry_after_seconds)
    }

    #[tokio::test]
    async fn what_an_overloaded_server_asks_for_is_in_the_error() {
        let text = "Too many requests, please try again later.\n";
        let overloaded = said(429, &[("retry-after", "7"), ("content-length", "43")], text).await;
        assert_eq!((overloaded.code, overloaded.message.as_str()), (429, text.trim()));
        assert_eq!(seconds(&overloaded), Some(7));
        let starting = said(503, &[("Retry-After", " 3 ")], "<html>starting</html>").await;
        assert_eq!((starting.code, seconds(&starting)), (503, Some(3)));
        let foreign = said(429, &[("Retry-After", "2")], r#"{"error":"slow down"}"#).await;
        assert_eq!((foreign.code, seconds(&foreign)), (429, Some(2)));
    }

    #[tokio::test]
    async fn every_other_answer_is_left_as_it_is() {
        let own = r#"{"kind":"Status","code":429,"message":"no","details":{"retryAfterSeconds":10}}"#;
        let own = said(429, &[("Retry-After", "4")], own).await;
        assert_eq!((own.message.as_str(), seconds(&own)), ("no", Some(10)));
        for (code, headers) in
            [(429, &[][..]), (500, &[("Retry-After", "4")]), (429, &[("Retry-After", "Wed, 21 Oct 2026 07:28:00 GMT")])]
        {
            let other = said(code, headers, "text").await;
            assert_eq!((other.code, other.message.as_str(), seconds(&other)), (code, "text", None));
        }
    }
}
