//! AWS's cancellation of a notice.

use super::whole_seconds;
use crate::pipeline::event::Notice;
use jiff::Timestamp;
use std::fmt;

/// AWS's cancellation of a notice, after which older copies may still come, by message or in EC2's last answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Withdrawal {
    /// AWS's time of the cancellation.
    pub at: Timestamp,
    /// Start of the cancelled change, which EC2's list and Health's event have in common.
    pub start: Option<Timestamp>,
}

impl Withdrawal {
    /// Returns the cancellation that this notice announces.
    #[must_use]
    pub fn of(notice: &Notice) -> Self {
        Self { at: notice.at(), start: notice.start().map(whole_seconds) }
    }

    /// Whether it ends what EC2's answer of that time listed with this start: AWS has cancelled the change since.
    #[must_use]
    pub fn ends(&self, start: Option<Timestamp>, asked: Timestamp) -> bool {
        self.start.is_some() && self.start == start && self.at >= whole_seconds(asked)
    }

    /// Reads the value of an annotation: the time, and after a space the start.
    pub(super) fn read(text: &str) -> Option<Self> {
        let (at, start) = text.split_once(' ').map_or((text, None), |(at, start)| (at, Some(start)));
        Some(Self { at: at.parse().ok()?, start: start.and_then(|start| start.parse().ok()) })
    }
}

impl fmt::Display for Withdrawal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.start {
            Some(start) => write!(f, "{} {start}", whole_seconds(self.at)),
            None => write!(f, "{}", whole_seconds(self.at)),
        }
    }
}
