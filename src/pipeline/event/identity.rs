//! What makes two messages copies of one notice.

use super::InstanceId;
use crate::fact::NoticeKind;
use jiff::Timestamp;
use std::fmt;

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
    /// A Health event about a change, and one of the instances it affects; AWS sends the event again when it changes.
    Health {
        /// The event's ARN; of a change that EC2 lists, its id there.
        arn: String,
        /// The affected instance.
        instance: InstanceId,
    },
    /// The same about a fault. AWS is not asked about one: who forges it must not revise a change.
    Fault {
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
    /// What a Node says that has neither an event's id nor one of EC2's.
    Said {
        /// The kind of the notice.
        kind: NoticeKind,
        /// The time that the instance's metadata name, if they name one.
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
    /// Any other event, by EventBridge's id. Of another kind it is another: who forges one must not take the place of a real one.
    Event {
        /// The kind of the notice.
        kind: NoticeKind,
        /// The event's id.
        id: String,
    },
}

impl Identity {
    /// Returns what EC2 calls a notice that it lists, whoever told of it: the id of the change or of the reservation.
    #[must_use]
    pub fn listed_as(&self) -> Option<&str> {
        match self {
            Self::Health { arn, .. } => (!arn.starts_with("arn:")).then_some(arn),
            Self::Block { reservation, .. } => Some(reservation),
            Self::Hook { .. }
            | Self::Fault { .. }
            | Self::Said { .. }
            | Self::Condition { .. }
            | Self::Event { .. } => None,
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hook { group, hook, token } => write!(f, "{group}/{hook}/{token}"),
            Self::Health { arn, instance } => write!(f, "{arn}/{instance}"),
            Self::Fault { arn, instance } => write!(f, "fault/{arn}/{instance}"),
            Self::Block { reservation, ends: Some(ends), instance } => write!(f, "{reservation}/{ends}/{instance}"),
            Self::Block { reservation, ends: None, instance } => write!(f, "{reservation}/{instance}"),
            Self::Said { kind, at: Some(at), instance } => write!(f, "node/{kind}/{at}/{instance}"),
            Self::Said { kind, at: None, instance } => write!(f, "node/{kind}/{instance}"),
            Self::Condition { condition, instance } => write!(f, "node/condition/{condition}/{instance}"),
            // Without a slash, which all others have.
            Self::Event { kind, id } => write!(f, "{kind}:{id}"),
        }
    }
}
