//! A change that a Node is drained for later.

use crate::pipeline::event::{Detail, Identity, InstanceId, Notice, NoticeTime, ScheduledChange};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The notice of a change that is not near yet.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Plan {
    pub(in crate::pipeline::node) code: String,
    /// Start of the change.
    pub start: Timestamp,
    /// AWS's time of the notice.
    pub(in crate::pipeline::node) since: Timestamp,
    /// Whether the capacity ends at the start.
    pub(in crate::pipeline::node) hard: bool,
    /// ARN of the Health event; of a change that EC2 lists, its id there.
    pub event: String,
    /// Id of the message that announced the change; the same id, if none did.
    pub message: String,
    /// Id of the message that has confirmed a notice of the Node's agent.
    #[serde(skip_serializing_if = "String::is_empty", rename = "told", default)]
    pub(in crate::pipeline::node) confirmed_by: String,
}

impl Plan {
    /// Returns the plan for a notice of a change whose start is known.
    #[must_use]
    pub fn of(notice: &Notice, message: &str) -> Option<Self> {
        let (Identity::HealthEvent { arn: id, .. } | Identity::Ec2Event { id, .. }, Detail::ScheduledChange(change)) =
            (&notice.identity, &notice.detail)
        else {
            return None;
        };
        Some(Self {
            code: change.code.clone(),
            start: change.start?,
            since: notice.at(),
            hard: change.hard,
            event: id.clone(),
            message: message.to_owned(),
            confirmed_by: String::new(),
        })
    }

    /// Returns the notice for the instance of the Node.
    #[must_use]
    pub fn notice(&self, instance: &InstanceId) -> Notice {
        let change = ScheduledChange {
            code: self.code.clone(),
            start: Some(self.start),
            hard: self.hard,
            withdrawn: false,
            is_issue: false,
        };
        let identity = Identity::of_change(self.event.clone(), instance.clone());
        let time = match identity {
            Identity::Ec2Event { .. } => NoticeTime::Seen(self.since),
            _ => NoticeTime::Announced(self.since),
        };
        Notice::new(identity, instance.clone(), time, Detail::ScheduledChange(change))
    }
}
