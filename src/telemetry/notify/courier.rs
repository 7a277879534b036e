//! One try to deliver a notification, and what its answer means.

use super::format::WriteError;
use super::notification::Notification;
use super::scrub::Scrubber;
use super::{NotifySettings, signature};
use crate::clients::server_date;
use crate::fact::Category;
use crate::runtime::clock::Clock;
use crate::runtime::duration::Words;
use aws_smithy_runtime_api::client::http::{HttpConnector, SharedHttpConnector};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_types::body::SdkBody;
use http::{HeaderValue, Method, Request, header};
use http_body_util::BodyExt;
use std::error::Error;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Maximum number of bytes of an answer that are read. A longer one is not kept alive for the rest.
const MAX_ANSWER: usize = 4096;

/// Maximum pause that a receiver can ask for. A longer one would be an outage that nobody sees.
const MAX_RETRY_AFTER: Duration = Duration::from_mins(5);

/// Delivers notifications to one receiver.
#[derive(Clone, Debug)]
pub struct Courier {
    settings: Arc<NotifySettings>,
    connector: SharedHttpConnector,
    clock: Clock,
    scrubber: Scrubber,
}

/// The answer of a receiver that accepts a notification.
#[derive(Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The status.
    pub status: u16,
    /// The begin of the body.
    pub body: String,
}

/// The reason why a notification was not delivered. No text has a secret or the URL.
#[derive(Debug, thiserror::Error)]
pub enum DeliveryError {
    /// The notification can't be written.
    #[error(transparent)]
    Unwritten(#[from] WriteError),
    /// No whole answer came in time.
    #[error("no answer within {}; check the receiver, or set a longer --notify-timeout", Words(*.0))]
    TimedOut(Duration),
    /// No connection, or it broke.
    #[error("no connection: {0}; check the host of --notify-url, the proxy and network policies")]
    Unreachable(String),
    /// The receiver answers with a redirect, which would take the body, and what is in the headers, to somebody else.
    #[error("answered {0}, a redirect, which is not followed; set --notify-url to the URL that it leads to")]
    Redirect(u16),
    /// The receiver does not accept the notification, or not now.
    #[error("answered {status}{}{body}; {}", if .body.is_empty() { "" } else { ": " }, advice(*.status))]
    Refused {
        /// The status.
        status: u16,
        /// The begin of the body.
        body: String,
        /// The pause that the receiver asks for.
        retry_after: Option<Duration>,
    },
}

const fn advice(status: u16) -> &'static str {
    match status {
        401 | 403 | 404 | 410 => "check --notify-url and --notify-header",
        429 | 500..=599 => "the receiver is overloaded or broken",
        _ => "check --notify-format and --notify-template",
    }
}

impl DeliveryError {
    /// Returns the class of the failure.
    #[must_use]
    pub const fn category(&self) -> Category {
        match self {
            Self::Unwritten(_) | Self::Redirect(_) => Category::Invalid,
            Self::TimedOut(_) => Category::TimedOut,
            Self::Unreachable(_) => Category::Unreachable,
            Self::Refused { status, .. } => match status {
                401 | 403 => Category::Denied,
                404 | 410 => Category::NotFound,
                429 => Category::Throttled,
                500..=599 => Category::Unavailable,
                _ => Category::Invalid,
            },
        }
    }

    /// Whether a later try may be accepted.
    #[must_use]
    pub const fn is_retried(&self) -> bool {
        matches!(
            self.category(),
            Category::TimedOut | Category::Unreachable | Category::Throttled | Category::Unavailable
        )
    }

    /// Returns the pause that the receiver asks for.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

impl Courier {
    /// A courier that sends through `connector`.
    #[must_use]
    pub fn new(settings: Arc<NotifySettings>, connector: SharedHttpConnector, clock: Clock) -> Self {
        let scrubber = Scrubber::new(&settings);
        Self { settings, connector, clock, scrubber }
    }

    /// Returns the receiver's host, the only part of its URL that may be shown.
    #[must_use]
    pub fn host(&self) -> &str {
        self.settings.receiver.host()
    }

    /// Tries once.
    ///
    /// # Errors
    /// Why the receiver has not accepted it.
    pub async fn send(&self, told: &Notification) -> Result<Accepted, DeliveryError> {
        let request = self.request(told)?;
        let limit = self.settings.timeout;
        timeout(limit, self.exchange(request)).await.unwrap_or(Err(DeliveryError::TimedOut(limit)))
    }

    fn request(&self, told: &Notification) -> Result<Request<SdkBody>, DeliveryError> {
        let NotifySettings { receiver, format, headers, signing_key, .. } = &*self.settings;
        let body = format.write(told, &self.settings)?;
        let mut request = Request::new(SdkBody::empty());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = receiver.uri().clone();
        let all = request.headers_mut();
        all.insert(header::USER_AGENT, HeaderValue::from_static(concat!("ebbtide/", env!("CARGO_PKG_VERSION"))));
        // The user's own headers replace ours.
        for (name, value) in body.headers.into_iter().chain(headers.iter().cloned()) {
            all.insert(name, value);
        }
        let now = self.clock.now().as_second();
        if let Some(signed) = signing_key.as_ref().and_then(|key| signature::sign(key, now, &body.bytes)) {
            all.insert(signature::HEADER, HeaderValue::from_str(&signed).map_err(WriteError::Header)?);
        }
        *request.body_mut() = SdkBody::from(body.bytes);
        Ok(request)
    }

    async fn exchange(&self, request: Request<SdkBody>) -> Result<Accepted, DeliveryError> {
        let unreachable = |text: &str| DeliveryError::Unreachable(self.scrubber.quote(text));
        let request = request.try_into().map_err(|_| unreachable("the request is none"))?;
        let answer = self.connector.call(request).await.map_err(|error| unreachable(&reasons(&error)))?;
        let status = answer.status().as_u16();
        if (300..400).contains(&status) {
            return Err(DeliveryError::Redirect(status));
        }
        let retry_after = self.retry_after(&answer);
        let body = self.scrubber.quote(&text(answer).await);
        if (200..300).contains(&status) {
            return Ok(Accepted { status, body });
        }
        Err(DeliveryError::Refused { status, body, retry_after })
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

/// Returns the begin of an answer's body. A body that breaks has told enough by its status.
async fn text(answer: HttpResponse) -> String {
    let mut body = pin!(answer.into_body());
    let mut bytes = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        if let Some(data) = frame.data_ref() {
            bytes.extend(data.iter().take(MAX_ANSWER - bytes.len()));
        }
        if bytes.len() >= MAX_ANSWER {
            break;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
