//! A change that a Node keeps until it is near, and until the work on it has ended: any replica makes the notice of it again.

use super::{NoticeRecord, whole_seconds};
use crate::pipeline::event::{Detail, Identity, InstanceId, Notice, NoticeTime, ScheduledChange};
use serde::{Deserialize, Serialize};

/// What a record has besides its other fields to make the notice of a scheduled change again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct KeptChange {
    /// The change's code.
    pub(in crate::pipeline::node) code: String,
    /// ARN of the Health event; of a change that EC2 lists, its id there.
    pub(in crate::pipeline::node) event: String,
}

impl NoticeRecord {
    /// Returns the record that keeps a notice until its change is near; `None` if it has no known start.
    #[must_use]
    pub fn plan_of(notice: &Notice, message: &str) -> Option<Self> {
        let (Identity::HealthEvent { arn: id, .. } | Identity::Ec2Event { id, .. }, Detail::ScheduledChange(change)) =
            (&notice.identity, &notice.detail)
        else {
            return None;
        };
        Some(Self {
            kind: notice.kind().as_str().to_owned(),
            since: Some(notice.at()),
            start: Some(change.start?),
            hard: change.hard,
            message: message.to_owned(),
            planned: true,
            kept: Some(Box::new(KeptChange { code: change.code.clone(), event: id.clone() })),
            ..Self::default()
        })
    }

    /// Returns the notice that the record keeps for the instance of the Node; `None` if it keeps none.
    #[must_use]
    pub fn notice(&self, instance: &InstanceId) -> Option<Notice> {
        let (kept, since) = (self.kept.as_ref()?, self.since?);
        let change = ScheduledChange {
            code: kept.code.clone(),
            start: Some(self.start?),
            hard: self.hard,
            withdrawn: false,
            is_issue: false,
        };
        let identity = Identity::of_change(kept.event.clone(), instance.clone());
        let time = match identity {
            Identity::Ec2Event { .. } => NoticeTime::Seen(since),
            _ => NoticeTime::Announced(since),
        };
        Some(Notice::new(identity, instance.clone(), time, Detail::ScheduledChange(change)))
    }

    /// Returns EC2's id of the change that the record keeps, if EC2 lists it.
    pub(in crate::pipeline::node) fn kept_id(&self) -> Option<&str> {
        self.kept.as_ref().map(|kept| &*kept.event)
    }

    /// Whether the other record keeps the change with the same start: the work on it may have gone on meanwhile.
    pub(in crate::pipeline::node) fn keeps_the_same(&self, other: &Self) -> bool {
        self.kept == other.kept && self.start.map(whole_seconds) == other.start.map(whole_seconds)
    }
}
