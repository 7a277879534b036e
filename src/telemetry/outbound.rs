//! HTTP POSTs to the user's receivers of notifications and traces. Their URLs and headers are secrets, which no text that leaves this
//! module contains: errors name the host only. Redirects are not followed: they would give the secrets to another host.

mod receiver;
mod scrub;

pub use receiver::{BadReceiver, Receiver, Secret, header};
pub use scrub::Scrubber;

use crate::clients::server_date;
use crate::runtime::clock::Clock;
use aws_smithy_runtime_api::client::http::{HttpConnector, SharedHttpConnector};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_types::body::SdkBody;
use http::{HeaderName, HeaderValue, Method, Request, header};
use http_body_util::BodyExt;
use std::error::Error;
use std::pin::pin;
use std::time::Duration;
use tokio::time::timeout;

/// Maximum number of bytes of an answer that are read. A longer one is not kept alive for the rest.
const MAX_ANSWER: usize = 4096;

/// Maximum time for which the body of an answer is read.
const BODY_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum pause that a receiver can ask for. A longer one would be an unnoticed outage.
const MAX_RETRY_AFTER: Duration = Duration::from_mins(5);

/// Posts to one receiver.
#[derive(Clone, Debug)]
pub struct Outbound {
    connector: SharedHttpConnector,
    clock: Clock,
    scrubber: Scrubber,
    limit: Duration,
}

/// The answer of a receiver.
#[derive(Debug, PartialEq, Eq)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// The start of the body, without secrets.
    pub body: String,
    /// The pause that the receiver asks for.
    pub retry_after: Option<Duration>,
}

/// The reason why there is no answer.
#[derive(Debug, PartialEq, Eq)]
pub enum NoReply {
    /// No whole answer came within this time.
    TimedOut(Duration),
    /// No connection, or it broke. Without secrets.
    Unreachable(String),
}

impl Outbound {
    /// Posts through `connector`, and waits for `limit` at most. `scrubber` has the secrets.
    #[must_use]
    pub const fn new(connector: SharedHttpConnector, clock: Clock, scrubber: Scrubber, limit: Duration) -> Self {
        Self { connector, clock, scrubber, limit }
    }

    /// Posts `body`.
    ///
    /// # Errors
    /// Why there is no answer.
    pub async fn post(
        &self,
        to: &Receiver,
        headers: impl IntoIterator<Item = (HeaderName, HeaderValue)>,
        body: Vec<u8>,
    ) -> Result<Reply, NoReply> {
        let mut request = Request::new(SdkBody::from(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = to.uri().clone();
        let all = request.headers_mut();
        all.insert(header::USER_AGENT, HeaderValue::from_static(concat!("ebbtide/", env!("CARGO_PKG_VERSION"))));
        for (name, value) in headers {
            all.insert(name, value);
        }
        let unreachable = |text: &str| NoReply::Unreachable(self.scrubber.quote(text));
        let request = request.try_into().map_err(|_| unreachable("the request is none"))?;
        let answered = timeout(self.limit, self.connector.call(request)).await;
        let answer = answered.map_err(|_| NoReply::TimedOut(self.limit))?;
        let answer = answer.map_err(|error| unreachable(&reasons(&error)))?;
        let (status, retry_after) = (answer.status().as_u16(), self.retry_after(&answer));
        // The body of a redirect would be an advertisement.
        let body = if (300..400).contains(&status) { String::new() } else { self.scrubber.quote(&text(answer).await) };
        Ok(Reply { status, body, retry_after })
    }

    /// Returns the pause that the answer asks for, in seconds or until a date.
    fn retry_after(&self, answer: &HttpResponse) -> Option<Duration> {
        let header = answer.headers().get("retry-after")?.trim();
        let pause = match header.parse() {
            Ok(seconds) => Duration::from_secs(seconds),
            Err(_) => server_date::parse(header)?.duration_since(self.clock.now()).try_into().ok()?,
        };
        Some(pause.min(MAX_RETRY_AFTER))
    }
}

/// Returns an error with its causes.
fn reasons(error: &ConnectorError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// Returns the start of an answer's body. If the body breaks off or does not end, the status is enough.
async fn text(answer: HttpResponse) -> String {
    let mut body = pin!(answer.into_body());
    let mut bytes = Vec::new();
    let read = async {
        while let Some(Ok(frame)) = body.frame().await {
            if let Some(data) = frame.data_ref() {
                bytes.extend(data.iter().take(MAX_ANSWER - bytes.len()));
            }
            if bytes.len() >= MAX_ANSWER {
                break;
            }
        }
    };
    let _ = timeout(BODY_TIMEOUT, read).await;
    String::from_utf8_lossy(&bytes).into_owned()
}
