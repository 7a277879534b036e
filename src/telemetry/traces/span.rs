//! A finished trace: its spans, which are bounded in number and size.

use super::TraceId;
use crate::telemetry::bounded::bounded;
use jiff::Timestamp;
use std::fmt::Display;

/// Maximum number of spans and of events in a trace: an interruption has about ten.
const MAX_PARTS: usize = 64;

/// Maximum length of a text, in bytes.
const MAX_TEXT: usize = 256;

/// A name and its value.
pub(super) type Attribute = (&'static str, Value);

/// The value of an attribute.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Value {
    Text(Box<str>),
    Number(i64),
}

impl Value {
    pub(super) fn text(text: &dyn Display) -> Self {
        Self::Text(bounded(text, MAX_TEXT).into())
    }

    pub(super) fn number(number: usize) -> Self {
        Self::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

/// The status of a span.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Status {
    Ok,
    /// With its reason.
    Error(Box<str>),
}

impl Status {
    pub(super) fn of(is_failure: bool, reason: &dyn Display) -> Self {
        if is_failure { Self::Error(bounded(reason, MAX_TEXT).into()) } else { Self::Ok }
    }
}

/// A part of the work.
#[derive(Debug)]
pub(super) struct Span {
    pub name: &'static str,
    pub begin: Timestamp,
    pub end: Timestamp,
    pub attributes: Vec<Attribute>,
    pub status: Status,
}

/// Something that happened at one time.
#[derive(Debug)]
pub(super) struct Event {
    pub name: &'static str,
    pub at: Timestamp,
    pub attributes: Vec<Attribute>,
}

/// The trace of one interruption: the whole of it, and its parts.
#[derive(Debug)]
pub(super) struct Trace {
    pub id: TraceId,
    pub whole: Span,
    pub parts: Vec<Span>,
    pub events: Vec<Event>,
    /// The number of events that did not fit.
    pub missing_events: usize,
}

impl Trace {
    /// Adds a part that begins and ends now or before.
    pub(super) fn add(&mut self, mut span: Span) {
        // The clock follows AWS's, and may be set back.
        span.end = span.end.max(span.begin);
        self.whole.end = self.whole.end.max(span.end);
        if self.parts.len() < MAX_PARTS {
            self.parts.push(span);
        }
    }

    pub(super) fn happened(&mut self, event: Event) {
        if self.events.len() < MAX_PARTS { self.events.push(event) } else { self.missing_events += 1 }
    }
}
