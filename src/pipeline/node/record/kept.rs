//! A change that a Node keeps until it is near, and until the work on it has ended: any replica makes the notice of it again.

use crate::pipeline::event::{Detail, Identity, Notice};
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

impl KeptChange {
    /// Returns what makes this notice again; `None` if it is not of a scheduled change.
    pub(in crate::pipeline::node) fn of(notice: &Notice) -> Option<Self> {
        match (&notice.identity, &notice.detail) {
            (
                Identity::HealthEvent { arn: id, .. } | Identity::Ec2Event { id, .. },
                Detail::ScheduledChange(change),
            ) => Some(Self { code: change.code.clone(), event: id.clone() }),
            _ => None,
        }
    }
}
