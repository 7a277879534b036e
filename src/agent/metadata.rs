//! The instance metadata service, version 2: a token first, and then small texts.

use crate::fact::MetadataFailure;
use http::{Method, Request, StatusCode, Uri};
use http_body_util::BodyExt;
use kube::client::Body;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Life of a token that is asked for.
const TOKEN_LIFE: Duration = Duration::from_hours(6);

/// Timeout of one answer. The service is on the machine itself.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum length of an answer in bytes.
const MAX_ANSWER: usize = 64 * 1024;

/// Header of the token.
const TOKEN: &str = "x-aws-ec2-metadata-token";

/// Header of the life of a token that is asked for, in seconds.
const TOKEN_LIFE_HEADER: &str = "x-aws-ec2-metadata-token-ttl-seconds";

/// Why there is no answer, and to what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// Nothing is answered now.
    All(MetadataFailure),
    /// This path is not answered as it should be. Something between may filter it.
    Path(MetadataFailure),
}

/// The service, through a client of plain HTTP.
pub struct Metadata {
    /// kube's client, because its parts are in the program already: it only sends requests and returns answers.
    client: kube::Client,
    /// The token, and the time at which it is half over.
    token: Option<(String, Instant)>,
}

impl Metadata {
    /// Asks through `client`, which knows the service's address.
    #[must_use]
    pub const fn new(client: kube::Client) -> Self {
        Self { client, token: None }
    }

    /// Returns the text at `path`; `None` if there is none. A token that is refused is replaced once.
    ///
    /// # Errors
    /// Why there is no answer.
    pub(super) async fn get(&mut self, path: &'static str) -> Result<Option<String>, Failure> {
        let (mut status, mut text) = self.get_once(path).await?;
        if status == StatusCode::UNAUTHORIZED {
            self.token = None;
            (status, text) = self.get_once(path).await?;
        }
        match status {
            StatusCode::OK => Ok(Some(text)),
            StatusCode::NOT_FOUND => Ok(None),
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => Err(Failure::All(failure(status))),
            status => Err(Failure::Path(failure(status))),
        }
    }

    async fn get_once(&mut self, path: &'static str) -> Result<(StatusCode, String), Failure> {
        let token = self.token().await.map_err(Failure::All)?;
        self.call(Method::GET, path, (TOKEN, token)).await.map_err(|why| match why {
            MetadataFailure::Nonsense => Failure::Path(why),
            _ => Failure::All(why),
        })
    }

    async fn token(&mut self) -> Result<String, MetadataFailure> {
        if let Some((token, _)) = self.token.as_ref().filter(|(_, half)| Instant::now() < *half) {
            return Ok(token.clone());
        }
        let life = (TOKEN_LIFE_HEADER, TOKEN_LIFE.as_secs().to_string());
        let (status, token) =
            self.call(Method::PUT, "/latest/api/token", life).await.map_err(|failure| match failure {
                // The answer to this request alone has a limit of hops.
                MetadataFailure::TimedOut => MetadataFailure::NoToken,
                other => other,
            })?;
        let is_token = !token.is_empty() && token.bytes().all(|b| b.is_ascii_graphic());
        match status {
            StatusCode::OK if is_token => {}
            StatusCode::OK => return Err(MetadataFailure::Nonsense),
            status => return Err(failure(status)),
        }
        self.token = Some((token.clone(), Instant::now() + TOKEN_LIFE / 2));
        Ok(token)
    }

    async fn call(
        &self,
        method: Method,
        path: &'static str,
        (name, value): (&'static str, String),
    ) -> Result<(StatusCode, String), MetadataFailure> {
        let request = Request::builder().method(method).uri(Uri::from_static(path)).header(name, value);
        let request = request.body(Body::empty()).map_err(|_| MetadataFailure::Nonsense)?;
        timeout(TIMEOUT, self.answer(request)).await.unwrap_or(Err(MetadataFailure::TimedOut))
    }

    async fn answer(&self, request: Request<Body>) -> Result<(StatusCode, String), MetadataFailure> {
        let answer = self.client.send(request).await.map_err(|_| MetadataFailure::Unreachable)?;
        let (head, mut body) = answer.into_parts();
        let mut text = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| MetadataFailure::Unreachable)?;
            let data = frame.data_ref().map_or(&[][..], |data| data);
            if text.len() + data.len() > MAX_ANSWER {
                return Err(MetadataFailure::Nonsense);
            }
            text.extend_from_slice(data);
        }
        String::from_utf8(text).map(|text| (head.status, text)).map_err(|_| MetadataFailure::Nonsense)
    }
}

fn failure(status: StatusCode) -> MetadataFailure {
    match status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => MetadataFailure::Throttled,
        StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED => MetadataFailure::Refused,
        StatusCode::NOT_FOUND => MetadataFailure::NotEc2,
        status if status.is_server_error() => MetadataFailure::Throttled,
        _ => MetadataFailure::Nonsense,
    }
}
