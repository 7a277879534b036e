//! Facts as notifications: one HTTP POST to a receiver of the user's for each node and phase.
//!
//! ```text
//!  facts ─▶ NotifySubscriber ─bounded─▶ Notifier: tracker ─Notification─▶ queue ─▶ courier ─▶ POST
//!           returns at once             nodes and storms      limit     format · signature · retries
//! ```
//!
//! The phases are notice, blocked, done and failed. A node gets one notification for each, however many notices it has; a storm gets
//! its own, and a receiver gets ten requests a minute at most. No drain ever waits for a receiver, and no text that leaves this module
//! contains a secret: errors name the host only.

mod courier;
mod episode;
mod event;
mod format;
mod notification;
mod notifier;
mod phases;
mod queue;
pub mod sample;
mod signature;
mod storm;
mod template;
mod tracker;
mod words;

pub use courier::{Acceptance, Courier, DeliveryError};
pub use event::{Backlog, NotifySubscriber, notify_subscriber};
pub use format::{Format, PAGER_DUTY_URL};
pub use notification::{BlockedPod, Notification};
pub use notifier::Notifier;
pub use phases::{PhaseChoice, Phases};
pub use template::{BadTemplate, Template};

use crate::clients::connect;
use crate::telemetry::outbound::{Receiver, Secret};
use http::{HeaderName, HeaderValue};
use std::time::Duration;

impl NotifySettings {
    /// Returns the URL of the proxy, which may have a password.
    #[must_use]
    pub fn proxy(&self) -> Option<&str> {
        self.proxy.as_ref().map(Secret::reveal)
    }
}

/// Whether this text names a proxy.
#[must_use]
pub fn is_proxy(url: &Secret) -> bool {
    connect::is_proxy(url.reveal())
}

/// The settings of notifications.
#[derive(Clone, Debug)]
pub struct NotifySettings {
    /// The receiver.
    pub receiver: Receiver,
    /// The format of the body.
    pub format: Format,
    /// The user's own body.
    pub template: Option<Template>,
    /// The user's own headers.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Timeout of one try.
    pub timeout: Duration,
    /// The key of the signature.
    pub signing_key: Option<Secret>,
    /// The integration key of a service in `PagerDuty`.
    pub routing_key: Option<Secret>,
    /// The proxy, instead of the environment's.
    pub proxy: Option<Secret>,
    /// The phases that are sent, by kind.
    pub phases: PhaseChoice,
    /// Whether notifications name the trace.
    pub traces: bool,
    /// The cluster's name, if the settings have it.
    pub cluster: Option<String>,
    /// The name of this process.
    pub replica: String,
}
