//! What is told: the shape of the answer, in JSON as it is here and in text as `text` writes it. Documented in `docs/explain.md`.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// The answer.
#[derive(Debug, Serialize)]
pub struct Told {
    /// When it was asked.
    pub now: Timestamp,
    /// What the message turned out to be.
    pub message: MessageTold,
    /// Whether the settings are those of a dry run.
    pub dry_run: bool,
    /// One for each notice in the message.
    pub notices: Vec<NoticeTold>,
    /// Why there is no more to be told: what standard error says.
    pub error: Option<String>,
}

/// What a message turned out to be.
#[derive(Debug, Default, Serialize)]
pub struct MessageTold {
    /// `notices`, `ignored`, `malformed`, or `unexplained` where the cluster could not be read.
    pub is: &'static str,
    /// Why it is ignored or malformed: a fixed word, as in the metrics.
    pub reason: Option<&'static str>,
    /// Where it is malformed.
    pub at: Option<String>,
    /// What that means.
    pub what: Option<String>,
    /// The message itself, where it was made here.
    pub made: Option<Value>,
}

/// A moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Moment {
    /// When.
    pub at: Timestamp,
    /// In how many seconds; negative where it has passed.
    pub in_seconds: i64,
}

/// What would be done about one notice.
#[derive(Debug, Default, Serialize)]
pub struct NoticeTold {
    /// Its kind.
    pub kind: &'static str,
    /// What it says, in a few words.
    pub says: String,
    /// The instance.
    pub instance: String,
    /// What makes two copies the same notice.
    pub identity: String,
    /// Whether `ebbtide send` or `ebbtide explain` made it.
    pub test: bool,
    /// When AWS says that it happened.
    pub time: Option<Moment>,
    /// Its Node.
    pub node: Option<NodeTold>,
    /// Whose the instance is.
    pub owner: Option<OwnerTold>,
    /// What its kind leads to.
    pub action: &'static str,
    /// How it ends, where that is known now.
    pub ends: Option<EndTold>,
    /// What is waited for before anything else.
    pub waits: Option<WaitTold>,
    /// By when the work must be over.
    pub deadline: Option<DeadlineTold>,
    /// The lifecycle hook.
    pub hook: Option<HookTold>,
    /// What would be left on the Node.
    pub marks: Option<MarksTold>,
    /// When evictions begin, where not at once.
    pub evictions_begin: Option<Moment>,
    /// The pods that go, in this order.
    pub pods: Vec<PodTold>,
    /// The pods that stay.
    pub stay: Vec<StayTold>,
    /// The budgets of pods that go.
    pub budgets: Vec<BudgetTold>,
    /// The calls that would be made.
    pub calls: Vec<CallTold>,
    /// What could not be found out, and what else is worth knowing.
    pub notes: Vec<String>,
}

/// A Node.
#[derive(Debug, Serialize)]
pub struct NodeTold {
    /// Its name.
    pub name: String,
    /// Whether it is Ready.
    pub ready: bool,
    /// Whether it is cordoned already.
    pub cordoned: bool,
    /// Who says that it is to be left alone, if anybody does.
    pub excluded_by: Option<&'static str>,
}

/// Whose an instance is.
#[derive(Debug, Serialize)]
pub struct OwnerTold {
    /// Whether it is this cluster's; nothing where that could not be found out.
    pub ours: Option<bool>,
    /// By which rule.
    pub why: String,
}

/// How a notice ends.
#[derive(Debug, Serialize)]
pub struct EndTold {
    /// Its outcome, as in the metrics.
    pub outcome: &'static str,
    /// Why.
    pub why: String,
}

/// What is waited for.
#[derive(Debug, Serialize)]
pub struct WaitTold {
    /// What.
    pub what: String,
    /// Until when at the latest.
    pub until: Moment,
    /// What happens if it does not come.
    pub then: String,
}

/// By when the work must be over.
#[derive(Debug, Serialize)]
pub struct DeadlineTold {
    /// When.
    #[serde(flatten)]
    pub moment: Moment,
    /// Whether the capacity goes then, rather than only our patience ends.
    pub hard: bool,
    /// From what it was made.
    pub why: String,
}

/// A lifecycle hook.
#[derive(Debug, Serialize)]
pub struct HookTold {
    /// The Auto Scaling group.
    pub group: String,
    /// The hook.
    pub name: String,
    /// How long it waits for a heartbeat.
    pub heartbeat_timeout_seconds: u64,
    /// Why that is only assumed.
    pub assumed_because: Option<String>,
    /// How many heartbeats go out if the work takes all of its time, each when it is due at the latest.
    pub heartbeats: usize,
    /// The first of them; each may go out up to a tenth of the time to it earlier.
    pub first_heartbeats: Vec<Moment>,
    /// What it is completed with when the work has succeeded.
    pub after_success: Option<&'static str>,
    /// And when it has not, by the deadline; nothing leaves it to its own timeout.
    pub after_failure: Option<&'static str>,
    /// For so long the completion is held back after a drain.
    pub held_back_seconds: u64,
}

/// What would be left on a Node.
#[derive(Debug, Default, Serialize)]
pub struct MarksTold {
    /// Whether it would be cordoned by this.
    pub cordon: bool,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Taints, as `kubectl` writes them.
    pub taints: Vec<String>,
    /// When that is taken back, if nothing follows.
    pub taken_back: Option<Moment>,
}

/// A pod that goes.
#[derive(Debug, Serialize)]
pub struct PodTold {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// `ordinary`, `critical` or `daemon`, which go in this order; `own`, which is the service itself and goes last; `going` is on
    /// its way already, and `finished` is evicted without being waited for.
    pub tier: &'static str,
    /// Its eviction is tried at the latest then; never, where it asks for peace and nothing presses.
    pub evicted_by: Option<Moment>,
    /// The grace period that it is given.
    pub grace_seconds: u64,
    /// It is deleted then, if it could not be evicted before.
    pub deleted_at: Option<Moment>,
    /// Who would hold it back now: budgets, or an annotation of its own.
    pub held_back_by: Vec<String>,
}

/// A pod that stays.
#[derive(Debug, Serialize)]
pub struct StayTold {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Why.
    pub why: &'static str,
}

/// A budget of pods that go.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct BudgetTold {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// How many pods may go now.
    pub allows: i32,
    /// How many of its pods are to go.
    pub pods: usize,
    /// Whether it holds any of them back now.
    pub blocks: bool,
}

/// A kind of call.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct CallTold {
    /// `kubernetes` or `aws`.
    pub to: &'static str,
    /// Verb and resource, or service and operation.
    pub call: String,
    /// How many of them, where all goes as it stands now.
    pub least: usize,
    /// How many at the most, where that is known.
    pub most: Option<usize>,
    /// When.
    pub when: String,
}
