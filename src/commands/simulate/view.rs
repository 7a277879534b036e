//! The shape of the answer: printed as JSON as it stands here, and as text by `text`. Documented in `docs/simulate.md`.

use crate::fact::{Action, NoticeKind, NoticeOutcome, Wait};
use crate::pipeline::drain::Tier;
use crate::pipeline::node::Node;
use jiff::Timestamp;
use serde::{Serialize, Serializer};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;

/// The answer.
#[derive(Debug, Serialize)]
pub struct Simulation {
    /// The time of the answer.
    pub now: Timestamp,
    /// The message.
    pub message: MessageView,
    /// Whether the settings are those of a dry run.
    pub dry_run: bool,
    /// The notices in the message.
    pub notices: Vec<NoticeView>,
    /// The reason why the answer is not complete, as on standard error.
    pub error: Option<String>,
}

/// A message, as it was read.
#[derive(Debug, Serialize)]
pub struct MessageView {
    /// The class of the message.
    pub is: MessageClass,
    /// Why it is ignored or malformed: the word in the metrics.
    pub reason: Option<&'static str>,
    /// The path to the malformed field.
    pub at: Option<String>,
    /// The meaning of `reason`.
    pub what: Option<String>,
    /// The message itself, if it was made here.
    pub made: Option<Value>,
}

impl MessageView {
    /// A message of this class, and nothing more.
    pub(super) const fn of(is: MessageClass) -> Self {
        Self { is, reason: None, at: None, what: None, made: None }
    }
}

/// The reason why a message about a zonal shift has no notices.
pub(super) const ZONAL_SHIFT: &str = "zonal-shift";

/// The classes of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MessageClass {
    /// It has notices.
    Notices,
    /// It has none for Ebbtide.
    Ignored,
    /// It can't be read.
    Malformed,
    /// The cluster could not be read.
    Unanswered,
}

/// A point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Moment {
    /// The time.
    pub at: Timestamp,
    /// Seconds from now; negative for a time that has passed.
    pub in_seconds: i64,
}

/// The work on one notice.
#[derive(Debug, Serialize)]
pub struct NoticeView {
    /// The notice's kind.
    #[serde(serialize_with = "label")]
    pub kind: NoticeKind,
    /// The notice's content, in a few words.
    #[serde(rename = "says")]
    pub summary: String,
    /// The instance.
    pub instance: String,
    /// The notice's identity: two copies with the same identity are one notice.
    pub identity: String,
    /// Whether `ebbtide send` or `ebbtide simulate` made the notice.
    pub test: bool,
    /// The time of the event, by AWS's clock.
    pub time: Option<Moment>,
    /// The instance's Node.
    pub node: Option<NodeView>,
    /// The owner of the instance.
    pub owner: Option<OwnerView>,
    /// The action for this kind.
    #[serde(serialize_with = "label")]
    pub action: Action,
    /// The setting that decides the action.
    #[serde(skip)]
    pub setting: String,
    /// The end, if it is known now.
    pub ends: Option<EndView>,
    /// The wait before anything else.
    pub waits: Option<WaitView>,
    /// The deadline of the work.
    pub deadline: Option<DeadlineView>,
    /// The lifecycle hook.
    pub hook: Option<HookView>,
    /// The marks on the Node.
    pub marks: Option<MarksView>,
    /// The start of evictions, if they wait.
    pub evictions_begin: Option<BeginView>,
    /// The pods that leave, in this order.
    pub pods: Vec<PodView>,
    /// The pods that stay.
    pub stay: Vec<StayView>,
    /// The budgets of pods that leave.
    pub budgets: Vec<BudgetView>,
    /// The waits around the drain, also those that would be left out.
    pub planned_waits: Vec<PlannedWaitView>,
    /// The target groups that may list the instance or its pods, if the settings ask for them.
    pub target_groups: Vec<TargetGroupView>,
    /// Facts that could not be found out, and other remarks.
    pub notes: Vec<String>,
}

/// A Node.
#[derive(Debug, Serialize)]
pub struct NodeView {
    /// Its name.
    pub name: String,
    /// Whether it is Ready.
    pub ready: bool,
    /// Whether it is cordoned already.
    pub cordoned: bool,
    /// The pool whose settings count, if it is in one.
    pub pool: Option<String>,
    /// The annotation or the setting that excludes it.
    pub excluded_by: Option<&'static str>,
}

impl NodeView {
    /// Returns the view of the Node.
    pub fn of(node: &Node) -> Self {
        let excluded_by = match (node.ignored, node.selected) {
            (true, _) => Some("its annotation ebbtide/ignore"),
            (_, false) => Some("--node-selector"),
            _ => None,
        };
        let pool = node.node_pool.as_deref().map(str::to_owned);
        Self { name: node.name.to_string(), ready: node.ready, cordoned: node.cordoned, pool, excluded_by }
    }
}

/// The owner of an instance.
#[derive(Debug, Serialize)]
pub struct OwnerView {
    /// Whether this cluster owns the instance; `None` if that could not be found out.
    pub ours: Option<bool>,
    /// The rule that decides.
    pub why: String,
}

/// The end of a notice.
#[derive(Debug, Serialize)]
pub struct EndView {
    /// The outcome: the word in the metrics.
    #[serde(serialize_with = "label")]
    pub outcome: NoticeOutcome,
    /// The reason.
    pub why: String,
}

/// A wait.
#[derive(Debug, Serialize)]
pub struct WaitView {
    /// The condition that ends it.
    pub what: String,
    /// The end of the wait at the latest.
    pub until: Moment,
    /// The next step otherwise.
    pub then: String,
}

/// The start of evictions.
#[derive(Debug, Serialize)]
pub struct BeginView {
    /// The time.
    #[serde(flatten)]
    pub moment: Moment,
    /// What they wait for.
    pub why: &'static str,
}

/// The deadline of the work.
#[derive(Debug, Serialize)]
pub struct DeadlineView {
    /// The time.
    #[serde(flatten)]
    pub moment: Moment,
    /// Whether the capacity ends then, rather than only our patience.
    pub hard: bool,
    /// The origin of the deadline.
    pub why: String,
}

/// A lifecycle hook.
#[derive(Debug, Serialize)]
pub struct HookView {
    /// The Auto Scaling group.
    pub group: String,
    /// The hook.
    pub name: String,
    /// The heartbeat timeout.
    pub heartbeat_timeout_seconds: u64,
    /// The reason why the timeout is only assumed.
    pub assumed_because: Option<String>,
    /// Number of heartbeats, if the work takes all of its time and each heartbeat goes out when it is due at the latest.
    pub heartbeats: usize,
    /// The first heartbeats; each may go out earlier, by up to a tenth of the time to it.
    pub first_heartbeats: Vec<Moment>,
    /// The completion after work that succeeded.
    pub after_success: Option<&'static str>,
    /// The completion after work that failed; `None` leaves the hook to its own timeout.
    pub after_failure: Option<&'static str>,
    /// Wait between a drain and the completion.
    pub held_back_seconds: u64,
}

/// A target group.
#[derive(Debug, Serialize)]
pub struct TargetGroupView {
    /// Its name.
    pub name: String,
    /// The way in which it was found.
    pub from: String,
    /// Whether the instance is deregistered from it.
    pub deregistered: bool,
    /// Whether the hook's completion waits for it.
    pub awaited: bool,
}

/// The place of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// Before evictions begin.
    BeforeEvictions,
    /// Between the drain and the hook's completion.
    BeforeCompletion,
    /// After the drain, as the end of a repair.
    AfterDrain,
}

/// A wait that would be made, or would not although it is set.
#[derive(Debug, Serialize)]
pub struct PlannedWaitView {
    /// When.
    pub place: Place,
    /// The wait, by its word in the metrics.
    #[serde(serialize_with = "label")]
    pub wait: Wait,
    /// The condition that ends it.
    pub until: String,
    /// The setting that asks for it.
    pub setting: &'static str,
    /// Maximum wait; `None` if it is not made.
    pub at_most_seconds: Option<u64>,
    /// Why it is not made.
    pub not_because: Option<String>,
}

/// The marks on a Node.
#[derive(Debug, Default, Serialize)]
pub struct MarksView {
    /// Whether the marks cordon the Node.
    pub cordon: bool,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Taints, as `kubectl` writes them.
    pub taints: Vec<String>,
    /// The removal of the marks, if nothing follows.
    pub taken_back: Option<Moment>,
}

/// A pod that leaves.
#[derive(Debug, Serialize)]
pub struct PodView {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its turn.
    #[serde(serialize_with = "label")]
    pub tier: Turn,
    /// The first eviction, at the latest; `None` for a pod that asks for peace without a hard deadline.
    pub evicted_by: Option<Moment>,
    /// Its grace period.
    pub grace_seconds: u64,
    /// Its deletion, if no eviction succeeds before.
    pub deleted_at: Option<Moment>,
    /// Everything that holds it back now.
    pub held_back_by: Vec<Hold>,
}

/// When a pod goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// With the other pods of its tier.
    Tier(Tier),
    /// Last: the service itself runs in it.
    Own,
    /// It is on its way already.
    Going,
    /// It has finished, and is evicted without being waited for.
    Finished,
}

impl fmt::Display for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tier(tier) => tier.fmt(f),
            Self::Own => f.write_str("own"),
            Self::Going => f.write_str("going"),
            Self::Finished => f.write_str("finished"),
        }
    }
}

/// Something that holds a pod back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hold {
    /// An annotation of its own.
    Annotation(&'static str),
    /// The disruption budget of this name.
    Budget(String),
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Annotation(name) => write!(f, "annotation {name}"),
            Self::Budget(name) => write!(f, "budget {name}"),
        }
    }
}

impl Serialize for Hold {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A pod that stays.
#[derive(Debug, Serialize)]
pub struct StayView {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The reason.
    pub why: &'static str,
}

/// A budget of pods that leave.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct BudgetView {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Number of pods that may go now.
    pub allows: i32,
    /// Number of its pods that have to go.
    pub pods: usize,
    /// Whether it holds any of them back now.
    pub blocks: bool,
}

fn label<T: fmt::Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}
