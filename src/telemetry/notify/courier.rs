//! One try to deliver a notification, and what its answer means.

use super::format::WriteError;
use super::notification::Notification;
use super::{NotifySettings, signature};
use crate::fact::Category;
use crate::runtime::clock::Clock;
use crate::runtime::duration::Words;
use crate::telemetry::outbound::{NoReply, Outbound, Reply, Scrubber};
use aws_smithy_runtime_api::client::http::SharedHttpConnector;
use http::{HeaderName, HeaderValue};
use std::sync::Arc;
use std::time::Duration;

/// Delivers notifications to one receiver.
#[derive(Clone, Debug)]
pub struct Courier {
    settings: Arc<NotifySettings>,
    outbound: Outbound,
    clock: Clock,
}

/// The answer of a receiver that accepts a notification.
#[derive(Debug, PartialEq, Eq)]
pub struct Acceptance {
    /// The status.
    pub status: u16,
    /// The start of the body.
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
    /// The receiver answers with a redirect, which would give the body and the headers to another host.
    #[error("answered {0}, a redirect, which is not followed; set --notify-url to the URL that it leads to")]
    Redirect(u16),
    /// The receiver does not accept the notification, or not now.
    #[error("answered {status}{}{body}; {}", if .body.is_empty() { "" } else { ": " }, advice(*.status))]
    Refused {
        /// The status.
        status: u16,
        /// The start of the body.
        body: String,
        /// The pause that the receiver asks for.
        retry_after: Option<Duration>,
    },
}

const fn advice(status: u16) -> &'static str {
    match status {
        401 | 403 | 404 | 410 => "check --notify-url and --notify-header",
        429 | 500..=599 => "the receiver is overloaded or failing",
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
        self.category().is_away()
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
        let NotifySettings { receiver, headers, signing_key, routing_key, proxy, timeout, .. } = &*settings;
        let keys = [signing_key, routing_key].into_iter().flatten();
        let scrubber = Scrubber::new(receiver, headers.iter().map(|(_, value)| value), keys, proxy.as_ref());
        let outbound = Outbound::new(connector, clock, scrubber, *timeout);
        Self { settings, outbound, clock }
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
    pub async fn send(&self, notification: &Notification) -> Result<Acceptance, DeliveryError> {
        let NotifySettings { receiver, format, headers, signing_key, .. } = &*self.settings;
        let body = format.write(notification, &self.settings)?;
        // The user's own headers replace ours.
        let mut all: Vec<_> = body.headers.into_iter().chain(headers.iter().cloned()).collect();
        let now = self.clock.now().as_second();
        if let Some(signed) = signing_key.as_ref().and_then(|key| signature::sign(key, now, &body.bytes)) {
            let signed = HeaderValue::from_str(&signed).map_err(WriteError::Header)?;
            all.push((HeaderName::from_static(signature::HEADER), signed));
        }
        match self.outbound.post(receiver, all, body.bytes).await {
            Ok(Reply { status, body, .. }) if (200..300).contains(&status) => Ok(Acceptance { status, body }),
            Ok(Reply { status, .. }) if (300..400).contains(&status) => Err(DeliveryError::Redirect(status)),
            Ok(Reply { status, body, retry_after }) => Err(DeliveryError::Refused { status, body, retry_after }),
            Err(NoReply::TimedOut(limit)) => Err(DeliveryError::TimedOut(limit)),
            Err(NoReply::Unreachable(why)) => Err(DeliveryError::Unreachable(why)),
        }
    }
}
