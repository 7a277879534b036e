//! The report of a history: the JSON of `/api/status`. `docs/status.schema.json` describes it for others.
//!
//! Words of closed sets are strings here: a reader may be older or newer than the replica that writes.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of the report's shape. A change that a reader must know of raises it; a new field does not.
pub const VERSION: u32 = 1;

/// The phase of an interruption that is known from the record on its Node only, and has work left: another replica acts on it, or did before it
/// ended.
pub const ELSEWHERE: &str = "elsewhere";

/// The phase of an interruption that is known from the record on its Node only, which stays cordoned for it.
pub const MARKED: &str = "marked";

/// The present and past work of one replica, or of several together.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// [`VERSION`].
    pub version: u32,
    /// The replica's time, which all times left are measured from.
    pub time: Timestamp,
    /// The program's version.
    pub program: String,
    /// Whether this is a dry run.
    pub dry_run: bool,
    /// Is all well?
    pub health: Health,
    /// The replicas; the one that answers comes first.
    pub replicas: Vec<Replica>,
    /// Interruptions: those that run, then those that have ended, the newest first.
    pub interruptions: Vec<Interruption>,
    /// Storms, the newest first.
    pub storms: Vec<Storm>,
    /// The last day.
    pub day: Day,
    /// The pools of capacity that are interrupted most.
    pub pools: Vec<Pool>,
    /// In an update: the ids of interruptions that are no longer listed. Not read: only a browser gets updates.
    #[serde(skip_deserializing, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<String>,
}

/// The answer to "is all well?".
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Health {
    /// The worst state.
    pub state: State,
    /// Sentences for a person.
    pub text: String,
    /// The values behind them.
    #[serde(default)]
    pub basis: Basis,
}

/// The values behind the answer: numbers that add up over replicas, and the names of the worst.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Basis {
    /// Number of replicas.
    pub replicas: usize,
    /// How many of them start.
    pub starting: usize,
    /// How many of them end.
    pub stopping: usize,
    /// How many of them do not answer.
    pub silent: usize,
    /// Whether there may be others, which were not asked.
    pub unasked: bool,
    /// The category of the failure, if one of them can't read the queue.
    pub queue: Option<String>,
    /// How many of them can't watch the Nodes.
    pub unwatched: usize,
    /// Number of interruptions that are acted on.
    pub acted: usize,
    /// How many of them meet failures that are retried, or have a drain that ended badly.
    pub troubled: usize,
    /// How many of them wait because AWS denies them.
    pub denied: usize,
    /// Number of drains.
    pub draining: usize,
    /// How many of them have been held back for some seconds.
    pub blocked: usize,
    /// One that is held back.
    pub held: Option<HeldDrain>,
    /// The drains that Nodes have on record, and that none of these replicas acts on.
    pub recorded: Vec<RecordedDrain>,
    /// Number of interruptions that failed in the last hour.
    pub failed: usize,
    /// The last of these.
    pub last_failed: Option<Last>,
    /// The interruption that ended last.
    pub last_end: Option<Last>,
}

/// A drain that is held back.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HeldDrain {
    /// The name of the Node.
    pub node: String,
    /// Namespace and name of one of the pods.
    pub pod: String,
    /// The reason.
    pub by: String,
}

/// A drain that a Node has on record.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordedDrain {
    /// The name of the Node.
    pub node: String,
    /// The id of its instance.
    pub instance: String,
    /// What holds it back, by the Node's condition.
    pub blocked: Option<String>,
}

/// An interruption that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Last {
    /// The name of the Node, or the id of the instance.
    pub name: String,
    /// The outcome.
    pub outcome: String,
    /// Its end.
    pub at: Timestamp,
}

/// The states of a replica, the worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Nothing is being drained, and nothing failed lately.
    Ok,
    /// Drains make progress.
    Working,
    /// The service starts or ends, or a replica does not answer.
    Unready,
    /// An interruption failed in the last hour, or the queue can't be read.
    Failed,
    /// A drain is held back.
    Blocked,
}

/// One replica.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Replica {
    /// The name of its pod, or its address.
    pub name: String,
    /// Whether it is the one that answers.
    pub here: bool,
    /// Whether it is ready.
    pub ready: Option<bool>,
    /// The start of its process.
    pub started: Option<Timestamp>,
    /// Number of Nodes that it knows.
    pub nodes: Option<usize>,
    /// How it reads the queue.
    pub queue: Option<Queue>,
    /// Why it did not answer, if it did not.
    pub silent: Option<String>,
}

/// How a replica reads the queue.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Queue {
    /// Number of messages that it holds.
    pub held: usize,
    /// Age in seconds, at its receipt, of the oldest message that was received in the last minute.
    pub oldest_seconds: Option<f64>,
    /// The category of the failure, if the last receive failed.
    pub failing: Option<String>,
}

/// One interruption: a notice, and what was done about it.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Interruption {
    /// Its id: unique among all replicas, and stable.
    pub id: String,
    /// The replica that acts on it, or that has read it from its Node.
    pub replica: String,
    /// The id of its message.
    pub message: String,
    /// The kind of its notice.
    pub kind: String,
    /// The configured action for the kind.
    pub action: Option<String>,
    /// The id of the instance.
    pub instance: String,
    /// The name of the instance's Node.
    pub node: Option<String>,
    /// Number of further copies of the notice.
    pub copies: u32,
    /// Its start.
    pub since: Timestamp,
    /// Its deadline.
    pub deadline: Option<Timestamp>,
    /// Whether the capacity ends at the deadline. Otherwise patience does.
    pub hard: bool,
    /// `received`, `waiting`, `draining`, `completing`, `ended`; or known from its Node's record only, [`ELSEWHERE`] or [`MARKED`].
    pub phase: String,
    /// The drains of the instance's Nodes, usually one.
    pub drains: Vec<Drain>,
    /// The current waits.
    pub waits: Vec<Wait>,
    /// The heartbeats of its lifecycle hook.
    pub heartbeats: Option<Heartbeats>,
    /// Its lifecycle hook: `open`, `continue`, `abandon`, `over`, `left` or `failed`.
    pub hook: Option<String>,
    /// The newest failure that is retried; of a recorded one the message of the Node's condition, if it is blocked.
    pub problem: Option<String>,
    /// Its end.
    pub ended: Option<End>,
}

/// The drain of a Node.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Drain {
    /// The name of the Node.
    pub node: String,
    /// Its start.
    pub since: Timestamp,
    /// Its deadline.
    pub deadline: Timestamp,
    /// Whether the capacity ends at the deadline.
    pub hard: bool,
    /// Number of pods that must leave.
    pub pods: usize,
    /// How many of them are gone.
    pub gone: usize,
    /// Number of pods that are left alone.
    pub left_alone: usize,
    /// Pods that are held back.
    pub blocked: Vec<BlockedPod>,
    /// Number of further pods that are held back.
    pub blocked_more: usize,
    /// How it ended.
    pub outcome: Option<String>,
}

/// A pod that is held back.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BlockedPod {
    /// Namespace and name.
    pub pod: String,
    /// The reason.
    pub by: String,
    /// Since when.
    pub since: Timestamp,
    /// Advice for the user.
    pub advice: String,
}

/// A wait.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Wait {
    /// The kind of wait.
    pub wait: String,
    /// The details.
    pub reason: String,
    /// Its start.
    pub since: Timestamp,
    /// The end of its time.
    pub until: Timestamp,
}

/// The heartbeats of a lifecycle hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Heartbeats {
    /// Number of those that AWS accepted.
    pub sent: u32,
    /// Number of those that failed.
    pub failed: u32,
    /// The last that AWS accepted.
    pub last: Option<Timestamp>,
}

/// The end of an interruption.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct End {
    /// Its time.
    pub at: Timestamp,
    /// The outcome.
    pub outcome: String,
    /// Whether that is a failure.
    pub failed: bool,
    /// Which pods went and which stayed.
    pub report: String,
    /// How its waits ended.
    pub waited: String,
}

/// Many notices in a short time, as one entry.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Storm {
    /// Its id: unique among all replicas, and stable.
    pub id: String,
    /// The replica that saw it.
    pub replica: String,
    /// Its first notice.
    pub since: Timestamp,
    /// The end of its last interruption, once all have ended.
    pub until: Option<Timestamp>,
    /// Number of notices.
    pub notices: usize,
    /// How many of them are being acted on.
    pub running: usize,
    /// How many have ended.
    pub ended: usize,
    /// How many of these ended as they should, in time.
    pub in_time: usize,
    /// How many of these failed.
    pub failed: usize,
    /// Number of notices of each kind.
    pub kinds: BTreeMap<String, usize>,
    /// The slowest interruption.
    pub slowest: Option<Slowest>,
    /// Those that failed.
    pub failures: Vec<Failure>,
    /// Number of further failures.
    pub failures_more: usize,
}

/// The slowest interruption of a storm.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Slowest {
    /// The name of the Node, or the id of the instance.
    pub node: String,
    /// Its duration.
    pub seconds: f64,
}

/// A failed interruption of a storm.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// The name of the Node, or the id of the instance.
    pub node: String,
    /// The kind of its notice.
    pub kind: String,
    /// The outcome.
    pub outcome: String,
}

/// The last day, in slots. The last slot is now.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Day {
    /// The start of the first slot.
    pub since: Timestamp,
    /// Minutes of a slot.
    pub minutes_per_slot: u32,
    /// Number of interruptions that began in each slot.
    pub notices: Vec<u32>,
    /// Number of interruptions that failed in each slot.
    pub failed: Vec<u32>,
}

/// Interruptions of a pool of capacity.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Pool {
    /// The kind of notice.
    pub kind: String,
    /// The instance type, or `other`.
    pub instance_type: String,
    /// The zone.
    pub zone: String,
    /// The group of Nodes.
    pub group: String,
    /// Number of interruptions since the start of the process.
    pub interruptions: u64,
}
