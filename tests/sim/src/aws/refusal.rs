//! Error answers: one type for all services, and the translation of planned faults into each service's errors.

use crate::fault::Fault;
use std::borrow::Cow;

/// An error answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub status: u16,
    /// Error code as the query protocols spell it.
    pub code: Cow<'static, str>,
    pub message: String,
}

impl Refusal {
    /// Returns an error of the caller: HTTP 400.
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { status: 400, code: Cow::Borrowed(code), message: message.into() }
    }

    /// Returns whose fault the answer says it is.
    pub fn sender_fault(&self) -> bool {
        self.status < 500
    }

    /// Returns a planned fault as a service's error answer; `None` if the fault is not an answer.
    pub fn planned(fault: Fault, words: &Words) -> Option<Self> {
        let (status, code, message) = match fault {
            Fault::Throttle | Fault::ThrottleFor(_) | Fault::Status(429) => {
                (words.throttled_status, words.throttled, "Rate exceeded")
            }
            Fault::Expired => {
                (words.expired.0, words.expired.1, "The security token included in the request is expired")
            }
            Fault::Status(403) => (403, words.denied, "User: ebbtide is not authorized to perform this operation"),
            Fault::Status(503) => (503, words.unavailable, "The service is unavailable. Please try again shortly."),
            // Of the caller, and not of what the call asks.
            Fault::Status(408) => (408, "RequestExpired", "Request has expired"),
            Fault::Status(status @ 500..) => (status, words.internal, "An internal error has occurred"),
            Fault::Status(status) => (status, words.invalid, "The request is refused, as planned"),
            _ => return None,
        };
        Some(Self { status, code: Cow::Borrowed(code), message: message.to_owned() })
    }
}

/// Names that a service gives to the errors of any call.
#[derive(Debug)]
pub(super) struct Words {
    pub throttled_status: u16,
    pub throttled: &'static str,
    pub denied: &'static str,
    /// Status and code for credentials that have expired.
    pub expired: (u16, &'static str),
    pub invalid: &'static str,
    pub internal: &'static str,
    pub unavailable: &'static str,
}
