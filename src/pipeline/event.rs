//! A message's body → [`Notice`]s, or the reason why there are none.
//!
//! Pure: no clock, no I/O, nothing of tokio, AWS or Kubernetes. Wire structs end here: the rest of the program sees typed notices.

mod autoscaling;
mod ec2;
mod envelope;
mod health;
mod identity;
mod wire;
mod zonal;

pub use crate::fact::{IgnoreReason, MalformedReason, NoticeKind};
pub use identity::{Identity, NoticeKey, STATUS_CHECKS};
pub use zonal::{SHIFT_BEGINS, SHIFT_ENDS, SHIFT_SOURCE};

use crate::fact::NoticeRef;
use jiff::Timestamp;
use std::collections::VecDeque;
use std::fmt;

/// Reads one message body: an EventBridge event, an SNS notification around one, or a bare lifecycle message.
#[must_use]
pub fn parse(body: &str) -> Parsed {
    envelope::parse(body)
}

/// A message's body, parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// At least one notice.
    Notices(Notices),
    /// The end of a Capacity Block. There is a notice for each of its instances, which only EC2 knows.
    Block(CapacityBlock),
    /// Traffic is shifted away from an Availability Zone, or no longer.
    Shift(ZonalShift),
    /// A message of a known form that has no notice for Ebbtide.
    Ignored(IgnoreReason),
    /// A message that can't be read, or that lacks a required field.
    Malformed(Malformed),
}

impl Parsed {
    /// Moves a later time of the event to `latest`: an event is not later than its message, whatever clock wrote it.
    pub fn not_after(&mut self, latest: Timestamp) {
        match self {
            Self::Notices(notices) => notices.not_after(latest),
            Self::Block(block) => block.time = block.time.not_after(latest),
            Self::Shift(shift) => shift.at = shift.at.min(latest),
            Self::Ignored(_) | Self::Malformed(_) => {}
        }
    }
}

/// A change of a zonal shift.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZonalShift {
    /// Id of the Availability Zone, such as `use1-az1`.
    pub away_from: String,
    /// The resources whose traffic is shifted; at least one.
    pub resources: Vec<String>,
    /// The time of the event, by AWS's clock.
    pub at: Timestamp,
    /// Whether it starts or continues; otherwise it has ended.
    pub begins: bool,
}

/// The announced end of a Capacity Block. The event names only the reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapacityBlock {
    /// The reservation's id.
    pub reservation: String,
    /// The end of the reservation, if the event names it.
    pub ends: Option<Timestamp>,
    /// The time at which EC2 starts to terminate its instances.
    pub terminates_at: Timestamp,
    /// The time of the event.
    pub time: NoticeTime,
}

impl CapacityBlock {
    /// Returns the notices for these instances of the block.
    #[must_use]
    pub fn notices(&self, instances: Vec<InstanceId>) -> Notices {
        let first = |instance: InstanceId, _| {
            let (reservation, ends) = (self.reservation.clone(), self.ends);
            let detail = Detail::CapacityReservation { terminates_at: Some(self.terminates_at) };
            Notice::new(Identity::Block { reservation, ends, instance: instance.clone() }, instance, self.time, detail)
        };
        Notices::new(instances.into_iter().map(|instance| (instance, false)).collect(), first)
    }
}

/// The fault of a message, and its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {what}")]
pub struct Malformed {
    /// The reason as a fixed word, for metric labels.
    pub reason: MalformedReason,
    /// The path to the fault, such as `detail.instance-id`, or `body`.
    pub at: String,
    /// The value that was found, and the one that was expected.
    pub what: String,
}

/// One statement by AWS, or by the instance's Node, about one instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The notice's identity: a copy with the same one is the same notice.
    pub identity: Identity,
    /// The instance it is about.
    pub instance: InstanceId,
    /// The time of the notice.
    pub time: NoticeTime,
    /// The kind, with its details.
    pub detail: Detail,
    /// The key of `identity`.
    key: NoticeKey,
}

/// The time of a notice. It orders two copies only if AWS set both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoticeTime {
    /// The time of the event, by AWS's clock.
    Announced(Timestamp),
    /// The time at which Ebbtide read a notice without a time, from EC2's list or a Node.
    Seen(Timestamp),
}

impl NoticeTime {
    /// Returns the time itself.
    #[must_use]
    pub const fn at(self) -> Timestamp {
        let (Self::Announced(at) | Self::Seen(at)) = self;
        at
    }

    /// Returns this time, or `latest` if that is earlier.
    #[must_use]
    pub fn not_after(self, latest: Timestamp) -> Self {
        match self {
            Self::Announced(at) => Self::Announced(at.min(latest)),
            Self::Seen(at) => Self::Seen(at.min(latest)),
        }
    }
}

impl Notice {
    /// Returns a notice.
    #[must_use]
    pub fn new(identity: Identity, instance: InstanceId, time: NoticeTime, detail: Detail) -> Self {
        Self { key: identity.key(), identity, instance, time, detail }
    }

    /// Returns the time of the notice: AWS's, or the time at which it was read.
    #[must_use]
    pub const fn at(&self) -> Timestamp {
        self.time.at()
    }

    /// Returns the same notice under another identity.
    #[must_use]
    pub fn with_identity(self, identity: Identity) -> Self {
        Self::new(identity, self.instance, self.time, self.detail)
    }

    /// Returns the same notice with another time and other details.
    #[must_use]
    pub fn revised(&self, time: NoticeTime, detail: Detail) -> Self {
        Self { time, detail, ..self.clone() }
    }

    /// Returns the key under which Nodes record the notice.
    #[must_use]
    pub const fn key(&self) -> NoticeKey {
        self.key
    }

    /// Returns the kind alone.
    #[must_use]
    pub const fn kind(&self) -> NoticeKind {
        self.detail.kind()
    }

    /// Returns the notice's version.
    #[must_use]
    pub fn version(&self) -> Version {
        // A Node records whole seconds, and the notice that it keeps is the same.
        let start = self.start().and_then(|start| Timestamp::from_second(start.as_second()).ok());
        Version { identity: self.identity.clone(), start, withdrawn: self.is_withdrawn() }
    }

    /// Returns the start of the announced change, if the notice is about one and names it.
    #[must_use]
    pub const fn start(&self) -> Option<Timestamp> {
        match &self.detail {
            Detail::ScheduledChange(change) => change.start,
            _ => None,
        }
    }

    /// Returns the time that a notice names which is reported again and again: the start of the change, the end of the block, or the time in the
    /// instance's metadata. AWS may move it.
    #[must_use]
    pub const fn named_time(&self) -> Option<Timestamp> {
        match &self.identity {
            Identity::Block { ends, .. } => *ends,
            Identity::Agent { at, .. } => *at,
            _ => self.start(),
        }
    }

    /// Whether this copy of the notice `other` is newer and differs: AWS has postponed the change, or called it off. Of two ends of the same
    /// instance the earlier counts, whichever copy is newer.
    #[must_use]
    pub fn revises(&self, other: &Self) -> bool {
        match (&self.detail, &other.detail) {
            (Detail::CapacityReservation { terminates_at }, Detail::CapacityReservation { terminates_at: known }) => {
                terminates_at.zip(*known).is_some_and(|(ends, known)| ends < known)
            }
            // A Node's notice and its withdrawal are seen in their order, so their times don't matter.
            (Detail::TakenBack(_), _) | (_, Detail::TakenBack(_)) => self.version() != other.version(),
            _ => self.at() > other.at() && self.version() != other.version(),
        }
    }

    /// Whether the notice is withdrawn.
    #[must_use]
    pub const fn is_withdrawn(&self) -> bool {
        matches!(self.detail, Detail::ScheduledChange(ScheduledChange { withdrawn: true, .. }) | Detail::TakenBack(_))
    }

    /// Returns what facts name of it: with its Node's name, and the ID of its message or what stands for one.
    #[must_use]
    pub fn about<'a>(&'a self, node: Option<&'a str>, message: &'a str) -> NoticeRef<'a> {
        NoticeRef { kind: self.kind(), instance: self.instance.as_str(), node, message }
    }

    /// Whether it is a change with a known start, which EC2 lists too.
    #[must_use]
    pub const fn is_listed_by_ec2(&self) -> bool {
        matches!(self.detail, Detail::ScheduledChange(ScheduledChange { start: Some(_), is_issue: false, .. }))
    }

    /// Returns the lifecycle action that waits for us, if there is one.
    #[must_use]
    pub const fn hook(&self) -> Option<&Hook> {
        match &self.detail {
            Detail::AsgTerminate(hook) | Detail::AsgLaunch(hook) => Some(hook),
            _ => None,
        }
    }
}

/// The notices of one message, each created on demand: a message of 1 MiB names tens of thousands of instances, and a notice takes some
/// hundred bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notices {
    next: Option<Box<Notice>>,
    /// The instances after the next notice's, and whether the notice is withdrawn for each. Their notices are otherwise the same.
    others: VecDeque<(InstanceId, bool)>,
    /// The fault of an unreadable instance, which gets no notice.
    unreadable: Option<Box<Malformed>>,
}

impl Notices {
    /// The notices about these instances; `first` is the first one's.
    fn new(instances: Vec<(InstanceId, bool)>, first: impl FnOnce(InstanceId, bool) -> Notice) -> Self {
        let mut others = VecDeque::from(instances);
        let next = others.pop_front().map(|(instance, withdrawn)| Box::new(first(instance, withdrawn)));
        Self { next, others, unreadable: None }
    }

    /// Takes the fault of an unreadable instance in a message whose other instances are readable.
    pub fn take_unreadable(&mut self) -> Option<Box<Malformed>> {
        self.unreadable.take()
    }

    /// Notes that the message was not sent by the hook itself.
    pub fn relayed(&mut self) {
        if let Some(Detail::AsgTerminate(hook) | Detail::AsgLaunch(hook)) =
            self.next.as_mut().map(|next| &mut next.detail)
        {
            hook.direct = false;
        }
    }

    /// Moves a later time of the event to `latest`.
    pub fn not_after(&mut self, latest: Timestamp) {
        if let Some(next) = &mut self.next {
            next.time = next.time.not_after(latest);
        }
    }
}

impl From<Notice> for Notices {
    fn from(notice: Notice) -> Self {
        Self { next: Some(Box::new(notice)), others: VecDeque::new(), unreadable: None }
    }
}

impl Iterator for Notices {
    type Item = Notice;

    fn next(&mut self) -> Option<Notice> {
        let notice = self.next.take()?;
        self.next = self.others.pop_front().map(|(instance, withdrawn)| {
            let mut next = notice.clone();
            next.identity.set_instance(&instance);
            next.key = next.identity.key();
            if let Detail::ScheduledChange(change) = &mut next.detail {
                change.withdrawn = withdrawn;
            }
            next.instance = instance;
            next
        });
        Some(*notice)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::from(self.next.is_some()) + self.others.len();
        (left, Some(left))
    }
}

/// An EC2 instance id: `i-` and 8 or 17 lower-case hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstanceId(Box<str>);

impl InstanceId {
    /// Returns the ID, if `text` has the form of one.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let digits = text.strip_prefix("i-")?;
        let hex = digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        (hex && matches!(digits.len(), 8 | 17)).then(|| Self(text.into()))
    }

    /// Returns the id as AWS writes it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A notice's kind, with the details that hooks and deadlines need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Detail {
    /// A group terminates the instance and waits for the hook.
    AsgTerminate(Hook),
    /// A group terminates the instance. The instance metadata name neither the hook nor the action's token.
    AsgTermination {
        /// Whether its hook is being searched, and may still be found.
        sought: bool,
    },
    /// A group launched the instance and waits for the hook.
    AsgLaunch(Hook),
    /// A spot instance is interrupted.
    Spot {
        /// EC2's action on the instance.
        action: InstanceAction,
    },
    /// A spot instance has an elevated risk of interruption.
    Rebalance,
    /// The instance leaves, or has left, the state `running`.
    StateChange {
        /// Its new state.
        state: InstanceState,
    },
    /// Maintenance, a reboot, a stop or a retirement at a set time.
    ScheduledChange(ScheduledChange),
    /// A capacity reservation is interrupted or ends.
    CapacityReservation {
        /// The end of the instance, if the event names it.
        terminates_at: Option<Timestamp>,
    },
    /// The Node has had this condition, `TYPE=STATUS`, for too long.
    Condition(String),
    /// This EC2 status check fails: `system`, `instance`, `attached-ebs`.
    StatusCheck(&'static str),
    /// The Node or EC2 no longer reports its notice of this kind.
    TakenBack(NoticeKind),
}

impl Detail {
    /// Returns the kind alone.
    #[must_use]
    pub const fn kind(&self) -> NoticeKind {
        match self {
            Self::AsgTerminate(_) | Self::AsgTermination { .. } => NoticeKind::AsgTerminate,
            Self::AsgLaunch(_) => NoticeKind::AsgLaunch,
            Self::Spot { .. } => NoticeKind::Spot,
            Self::Rebalance => NoticeKind::Rebalance,
            Self::StateChange { .. } => NoticeKind::StateChange,
            Self::ScheduledChange(_) => NoticeKind::ScheduledChange,
            Self::CapacityReservation { .. } => NoticeKind::CapacityReservation,
            Self::Condition(_) => NoticeKind::NodeCondition,
            Self::StatusCheck(_) => NoticeKind::StatusCheck,
            Self::TakenBack(kind) => *kind,
        }
    }
}

/// A lifecycle action that waits for us.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hook {
    /// The Auto Scaling group's name.
    pub group: String,
    /// The lifecycle hook's name.
    pub name: String,
    /// The lifecycle action's token, a UUID; `None` for an action found after an agent notice: calls name it by the instance.
    pub token: Option<String>,
    /// Whether the instance leaves a warm pool, or enters one.
    pub pool: Option<WarmPool>,
    /// Whether an instance refresh replaces the instance's root volume: instance and Node stay, and come back after a reboot. The launch
    /// action that follows has this too.
    pub replaces_root_volume: bool,
    /// Whether the hook seems to have notified this queue itself, neither through EventBridge nor in SNS's envelope. The message's sender
    /// confirms that.
    pub direct: bool,
}

/// The side of a lifecycle action on which the group's warm pool is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WarmPool {
    /// The instance leaves it.
    From,
    /// The instance enters it: it is kept, stopped or running, until the group needs it.
    To,
}

/// EC2's action on an interrupted spot instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InstanceAction {
    /// It is terminated.
    Terminate,
    /// It is stopped.
    Stop,
    /// It is hibernated, which starts at once.
    Hibernate,
}

/// The instance states that take a node away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InstanceState {
    /// On its way to `stopped`.
    Stopping,
    /// Stopped.
    Stopped,
    /// On its way to `terminated`.
    ShuttingDown,
    /// Gone.
    Terminated,
}

/// AWS Health's announcement for one affected instance, or a fault of the instance that it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduledChange {
    /// Health's code, such as `AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED`.
    pub code: String,
    /// The start of the change, if the event names it.
    pub start: Option<Timestamp>,
    /// Whether the capacity ends at `start` (a stop or a retirement, by its code), so that the deadline is hard; a reboot or
    /// maintenance gives the node back.
    pub hard: bool,
    /// Whether AWS has called off the change for this instance, or reports it as over: the notice's mark is removed.
    pub withdrawn: bool,
    /// Whether this is a fault (the category `issue`) and not a planned change. Its code alone decides the action.
    pub is_issue: bool,
}

/// A notice's identity with the details that AWS may change later: two copies of the same version are equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Version {
    identity: Identity,
    start: Option<Timestamp>,
    withdrawn: bool,
}

impl Version {
    /// Returns the identity.
    #[must_use]
    pub const fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Returns the identity, if the notice is about a condition of a Node.
    #[must_use]
    pub const fn of_condition(&self) -> Option<&Identity> {
        if matches!(self.identity, Identity::Condition { .. }) { Some(&self.identity) } else { None }
    }

    /// Whether this is a version of the notice with this identity.
    #[must_use]
    pub fn is_of(&self, identity: &Identity) -> bool {
        self.identity == *identity
    }
}

/// Prefix of the identity of a test message, which distinguishes it from AWS's own.
pub const TEST: &str = "ebbtide-test-";

impl Hook {
    /// Whether the token was made for a test, so that AWS does not know it.
    #[must_use]
    pub fn is_test(&self) -> bool {
        self.token.as_deref().is_some_and(|token| token.starts_with(TEST))
    }
}

impl Notice {
    /// Whether the message was made for a test.
    #[must_use]
    pub fn is_test(&self) -> bool {
        match &self.identity {
            Identity::Hook { token, .. } => token.starts_with(TEST),
            Identity::HealthEvent { arn: id, .. }
            | Identity::HealthIssue { arn: id, .. }
            | Identity::Ec2Event { id, .. } => id.rsplit('/').next().is_some_and(|last| last.contains(TEST)),
            Identity::Block { .. }
            | Identity::StatusCheck { .. }
            | Identity::Agent { .. }
            | Identity::Condition { .. } => false,
            Identity::Event { id, .. } => id.starts_with(TEST),
        }
    }
}

#[cfg(test)]
mod tests;
