//! The identity of a notice: messages with the same identity are copies of one notice.

use super::InstanceId;
use crate::fact::NoticeKind;
use jiff::Timestamp;
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::fmt;

/// The status checks of EC2, as its filters name them.
pub const STATUS_CHECKS: [&str; 3] = ["system", "instance", "attached-ebs"];

/// Start of the id of a failing status check: `status-check/<check>/<since>`.
const CHECK_PREFIX: &str = "status-check/";

/// The key of a notice: a hash of its identity, under which a Node records the notice. An annotation's name has at most 63 characters, and
/// an ARN has more. Each replica and each copy of the notice computes the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NoticeKey(u64);

impl NoticeKey {
    /// Returns the key of the notice with this identity.
    #[must_use]
    pub fn of(identity: &str) -> Self {
        let mut key = [0; 8];
        key.copy_from_slice(&Sha256::digest(identity.as_bytes())[..8]);
        Self(u64::from_be_bytes(key))
    }

    /// Reads a key as it is written; `None` if the text is none.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let key = Self(u64::from_str_radix(text, 16).ok()?);
        (key.to_string() == text).then_some(key)
    }
}

impl fmt::Display for NoticeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The identity of a notice: a second copy with the same one joins the first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Identity {
    /// A lifecycle action. EventBridge and a direct notification may both announce it.
    Hook {
        /// The Auto Scaling group's name.
        group: String,
        /// The lifecycle hook's name.
        hook: String,
        /// The lifecycle action's token.
        token: String,
    },
    /// An AWS Health event about a scheduled change, for one affected instance. AWS sends the event again when it changes.
    HealthEvent {
        /// The event's ARN.
        arn: String,
        /// The affected instance.
        instance: InstanceId,
    },
    /// An AWS Health event about a fault (`issue`). EC2 can't confirm one: a forged fault must not revise a scheduled change.
    HealthIssue {
        /// The event's ARN.
        arn: String,
        /// The affected instance.
        instance: InstanceId,
    },
    /// The end of a Capacity Block for one of its instances.
    Block {
        /// The reservation's id.
        reservation: String,
        /// The end of the reservation, if it is known: a block that was extended has another one.
        ends: Option<Timestamp>,
        /// The instance.
        instance: InstanceId,
    },
    /// A scheduled change by EC2's own ID, which EC2's list and the instance metadata have.
    Ec2Event {
        /// The change's id, such as `instance-event-0d59937288b749b32`.
        id: String,
        /// The affected instance.
        instance: InstanceId,
    },
    /// A failing status check.
    StatusCheck {
        /// The check: `system`, `instance` or `attached-ebs`.
        check: &'static str,
        /// Start of the failure, if EC2 names it.
        since: Option<Timestamp>,
        /// The instance.
        instance: InstanceId,
    },
    /// An agent notice without an ID.
    Agent {
        /// The kind of the notice.
        kind: NoticeKind,
        /// The time in the instance metadata, if there is one.
        at: Option<Timestamp>,
        /// The instance.
        instance: InstanceId,
    },
    /// A condition of a Node, `TYPE=STATUS`, for as long as the Node has it.
    Condition {
        /// The condition.
        condition: String,
        /// The instance.
        instance: InstanceId,
    },
    /// Any other event, by EventBridge's ID. The kind is part of the identity: a forged event must not replace a genuine one of another kind.
    Event {
        /// The kind of the notice.
        kind: NoticeKind,
        /// The event's id.
        id: String,
    },
}

impl Identity {
    /// Returns the id under which EC2 lists the notice: that of the change, of the reservation, or of the failing check. It stands for
    /// a message id where no message announced the notice.
    #[must_use]
    pub fn ec2_id(&self) -> Option<Cow<'_, str>> {
        match self {
            Self::Ec2Event { id, .. } => Some(id.into()),
            Self::Block { reservation, .. } => Some(reservation.into()),
            Self::StatusCheck { check, since: Some(since), .. } => {
                Some(format!("{CHECK_PREFIX}{check}/{since}").into())
            }
            Self::StatusCheck { check, since: None, .. } => Some(format!("{CHECK_PREFIX}{check}/").into()),
            Self::Hook { .. }
            | Self::HealthEvent { .. }
            | Self::HealthIssue { .. }
            | Self::Agent { .. }
            | Self::Condition { .. }
            | Self::Event { .. } => None,
        }
    }

    /// Returns the identity of the status check that [`Identity::ec2_id`] names; `None` if `id` names none.
    #[must_use]
    pub fn of_check(id: &str, instance: &InstanceId) -> Option<Self> {
        let (named, since) = id.strip_prefix(CHECK_PREFIX)?.split_once('/')?;
        let check = STATUS_CHECKS.into_iter().find(|check| *check == named)?;
        let since = if since.is_empty() { None } else { Some(since.parse().ok()?) };
        Some(Self::StatusCheck { check, since, instance: instance.clone() })
    }

    /// Returns the identity of the scheduled change with this id, which Health names by an ARN and EC2 does not.
    #[must_use]
    pub fn of_change(id: String, instance: InstanceId) -> Self {
        if id.starts_with("arn:") { Self::HealthEvent { arn: id, instance } } else { Self::Ec2Event { id, instance } }
    }

    /// Returns the key of the notice with this identity. A [`super::Notice`] has it already.
    #[must_use]
    pub fn key(&self) -> NoticeKey {
        NoticeKey::of(&self.to_string())
    }

    /// Replaces the instance, if the identity names one.
    pub(super) fn set_instance(&mut self, new: &InstanceId) {
        match self {
            Self::HealthEvent { instance, .. }
            | Self::HealthIssue { instance, .. }
            | Self::Block { instance, .. }
            | Self::Ec2Event { instance, .. }
            | Self::StatusCheck { instance, .. }
            | Self::Agent { instance, .. }
            | Self::Condition { instance, .. } => instance.clone_from(new),
            Self::Hook { .. } | Self::Event { .. } => {}
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hook { group, hook, token } => write!(f, "{group}/{hook}/{token}"),
            Self::HealthEvent { arn: id, instance } | Self::Ec2Event { id, instance } => write!(f, "{id}/{instance}"),
            Self::HealthIssue { arn, instance } => write!(f, "fault/{arn}/{instance}"),
            Self::Block { reservation, ends: Some(ends), instance } => write!(f, "{reservation}/{ends}/{instance}"),
            Self::Block { reservation, ends: None, instance } => write!(f, "{reservation}/{instance}"),
            Self::StatusCheck { instance, .. } => write!(f, "{}/{instance}", self.ec2_id().unwrap_or_default()),
            Self::Agent { kind, at: Some(at), instance } => write!(f, "node/{kind}/{at}/{instance}"),
            Self::Agent { kind, at: None, instance } => write!(f, "node/{kind}/{instance}"),
            Self::Condition { condition, instance } => write!(f, "node/condition/{condition}/{instance}"),
            // Without a slash, which all others have.
            Self::Event { kind, id } => write!(f, "{kind}:{id}"),
        }
    }
}
