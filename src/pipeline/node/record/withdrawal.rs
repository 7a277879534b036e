//! AWS's cancellation of a notice.

use super::notice::{NoticeRecord, Work};
use super::whole_seconds;
use crate::fact::NoticeKind;
use crate::pipeline::event::Notice;
use jiff::Timestamp;

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

    /// Returns the cancellation that is recorded, if one is.
    #[must_use]
    pub(in crate::pipeline) fn recorded(notice: &NoticeRecord) -> Option<Self> {
        let is_withdrawn = notice.work == Work::Withdrawn;
        Some(Self { at: notice.since.filter(|_| is_withdrawn)?, start: notice.start })
    }

    /// Returns the record of the cancellation of a notice that is `known`, or whose other copies have not come. Only changes are cancelled so.
    pub(in crate::pipeline::node) fn record(self, known: Option<&NoticeRecord>) -> NoticeRecord {
        let kind = NoticeKind::ScheduledChange.as_str().to_owned();
        let record = known.map_or_else(|| NoticeRecord::new(kind, self.at, String::new()), NoticeRecord::remembered);
        let since = Some(whole_seconds(self.at));
        NoticeRecord { work: Work::Withdrawn, since, start: self.start.or(record.start), ..record }
    }

    /// Whether it ends what EC2's answer of that time listed with this start: AWS has cancelled the change since.
    #[must_use]
    pub fn ends(&self, start: Option<Timestamp>, asked: Timestamp) -> bool {
        self.start.is_some() && self.start == start && self.at >= whole_seconds(asked)
    }
}
