//! The body of a notification in each format, and the headers that belong to it. Pure.

mod cloud_events;
mod pager_duty;
mod slack;
mod teams;

use super::NotifySettings;
use super::notification::Notification;
use super::template::{RenderError, Template};
use clap::ValueEnum;
use http::header::{self, InvalidHeaderValue};
use http::{HeaderName, HeaderValue};

/// The address of `PagerDuty`'s events.
pub const PAGER_DUTY_URL: &str = "https://events.pagerduty.com/v2/enqueue";

/// The formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// The notification as it is.
    Json,
    /// A message for an incoming webhook of Slack.
    Slack,
    /// An Adaptive Card for a workflow of Microsoft Teams.
    Teams,
    /// An event of `PagerDuty`'s Events API v2.
    #[value(name = "pagerduty")]
    PagerDuty,
    /// The notification, with the headers of `CloudEvents` 1.0 in binary mode.
    #[value(name = "cloudevents")]
    CloudEvents,
}

/// The body of the request, with its headers.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Body {
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub bytes: Vec<u8>,
}

/// The reason why a notification can't be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The user's template fails.
    #[error("the template of --notify-template fails: {0}")]
    Template(#[from] RenderError),
    /// The notification is no JSON.
    #[error("the notification is no JSON: {0}; this is a bug, please report it")]
    Json(#[from] serde_json::Error),
    /// A value is no header's.
    #[error("a header has a value that HTTP does not allow: {0}; this is a bug, please report it")]
    Header(#[from] InvalidHeaderValue),
}

impl Format {
    /// Writes a notification.
    pub(super) fn write(self, notification: &Notification, settings: &NotifySettings) -> Result<Body, WriteError> {
        let mut headers = vec![(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
        if self == Self::CloudEvents {
            headers.extend(cloud_events::headers(notification)?);
        }
        let bytes = match &settings.template {
            Some(template) => self.render(template, notification)?,
            None => match self {
                Self::Json | Self::CloudEvents => serde_json::to_vec(notification)?,
                Self::Slack => serde_json::to_vec(&slack::message(notification))?,
                Self::Teams => serde_json::to_vec(&teams::message(notification))?,
                Self::PagerDuty => {
                    let key = settings.routing_key.as_ref().map_or("", |key| key.reveal());
                    serde_json::to_vec(&pager_duty::event(notification, key)?)?
                }
            },
        };
        Ok(Body { headers, bytes })
    }

    /// Writes a notification with the user's template. Slack's control characters are escaped in all values.
    pub(super) fn render(self, template: &Template, notification: &Notification) -> Result<Vec<u8>, RenderError> {
        template.render(notification, if self == Self::Slack { slack::escape } else { str::to_owned })
    }
}
