//! A notification: the JSON that receivers get, and that templates and all other formats are made of. `docs/notification.schema.json`
//! describes it.

use crate::fact::NotificationPhase;
use crate::telemetry::history::report;
use jiff::Timestamp;
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;

/// Version of the shape. A change that a receiver must know of raises it; a new field does not.
pub const VERSION: u32 = 1;

/// The content of a notification about one node, or about a storm, in one phase.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Notification {
    /// [`VERSION`].
    pub version: u32,
    /// The same for the same occurrence, from any replica, at each attempt.
    pub id: String,
    /// The same in all phases of an interruption.
    pub key: String,
    /// The phase.
    #[serde(serialize_with = "word")]
    pub phase: NotificationPhase,
    /// Whether nothing of this is real: a test, or a message of `ebbtide send`.
    pub test: bool,
    /// When it happened.
    pub time: Timestamp,
    /// A few words.
    pub title: String,
    /// A description, in sentences.
    pub text: String,
    /// The cluster's name.
    pub cluster: Option<String>,
    /// The process that sends it.
    pub replica: String,
    /// The kind of the notice.
    pub kind: Option<&'static str>,
    /// The response to it.
    pub action: Option<&'static str>,
    /// The id of the instance.
    pub instance: Option<String>,
    /// The name of the Node.
    pub node: Option<String>,
    /// The type of the instance.
    pub instance_type: Option<String>,
    /// Its availability zone.
    pub zone: Option<String>,
    /// The group of Nodes that it belongs to.
    pub group: Option<String>,
    /// The id of the SQS message.
    pub message: Option<String>,
    /// The id of the trace, if there are traces.
    pub trace_id: Option<String>,
    /// When the work began.
    pub since: Option<Timestamp>,
    /// The latest end of the work.
    pub deadline: Option<Timestamp>,
    /// Whether the node goes at the deadline.
    pub hard: bool,
    /// The pods that are held back.
    pub blocked: Vec<BlockedPod>,
    /// The number of further ones.
    pub blocked_more: usize,
    /// How the work ended.
    pub outcome: Option<&'static str>,
    /// How long it took.
    pub seconds: Option<f64>,
    /// Which pods went and which stayed.
    pub report: Option<String>,
    /// How the waits ended.
    pub waited: Option<String>,
    /// The storm that this is about, instead of a node.
    pub storm: Option<report::Storm>,
    /// The number of notifications that were left out before this one, by phase.
    pub folded: BTreeMap<String, usize>,
}

/// A pod that can't be evicted now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BlockedPod {
    /// The Node of the pod.
    pub node: String,
    /// The pod's namespace and name.
    pub pod: String,
    /// The reason.
    pub by: String,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn word<S: Serializer>(phase: &NotificationPhase, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(phase.as_str())
}

impl Notification {
    /// Returns what is known, for formats that show a table: names and values.
    pub(super) fn rows(&self) -> Vec<(&'static str, String)> {
        let text = |text: &Option<String>| text.clone();
        let storm = self.storm.as_ref();
        let deadline = self.deadline.map(|at| {
            let what = if self.hard { "" } else { ", at which pods that are left stay" };
            format!("{}{what}", at.strftime("%Y-%m-%dT%H:%M:%SZ"))
        });
        let rows = [
            ("Kind", self.kind.map(str::to_owned)),
            ("Node", text(&self.node)),
            ("Instance", text(&self.instance)),
            ("Type, zone, group", joined(&[&self.instance_type, &self.zone, &self.group])),
            ("Deadline", deadline),
            ("Outcome", self.outcome.map(str::to_owned)),
            ("Kinds", storm.map(|storm| counts(&storm.kinds))),
            ("Waited", text(&self.waited)),
            ("Cluster", text(&self.cluster)),
            ("Message", text(&self.message)),
            ("Trace", text(&self.trace_id)),
        ];
        rows.into_iter().filter_map(|(name, value)| Some((name, value.filter(|value| !value.is_empty())?))).collect()
    }

    /// Returns the sending process, and a mark for a test.
    pub(super) fn footer(&self) -> String {
        let test = if self.test { "test, nothing of this is real; " } else { "" };
        format!("{test}Ebbtide, replica {}, {}", self.replica, self.time.strftime("%Y-%m-%dT%H:%M:%SZ"))
    }
}

/// Joins the texts that are known.
fn joined(texts: &[&Option<String>]) -> Option<String> {
    let known: Vec<&str> = texts.iter().filter_map(|text| text.as_deref()).collect();
    (!known.is_empty()).then(|| known.join(", "))
}

/// Writes numbers by their names.
pub(super) fn counts(numbers: &BTreeMap<String, usize>) -> String {
    let numbers: Vec<String> = numbers.iter().map(|(name, number)| format!("{number} {name}")).collect();
    numbers.join(", ")
}
