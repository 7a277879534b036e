//! The drain of a Node: list its pods, evict those that must leave, wait until they are gone, list again.
//!
//! A drain never fails early. It retries every failure until its deadline, and its [`Report`] lists the pods that have left and those
//! that stayed. It does not know its interruptions, which may move the deadline while it runs.
//!
//! ```text
//! deadlines   those of the interruptions that share the drain; deadline: one of them, and their combination
//! context     the shared state of one drain, and its end
//! work        one drain: its outcome, and when it restarts
//! rounds      list by list, until a list shows no pod that must leave
//! list        the list of a node's pods, as new as it needs to be
//! select      which pods must leave, and in which order
//! pod_times   the times of the pods that are left; remaining: the time that they need, which puts off a hook's end
//! returns     pods that come back to the cordoned node
//! departures  the departures of all pods; evict: of one; tier: its tier, and the turn of that
//! surge       the restart of a Deployment before its last ready pods leave
//! own_pod     the pod of this process, which leaves last
//! pod_watch   the watch that sees pods leave
//! node_checks whether the Node still exists and is still cordoned; silence: how long to wait for a silent kubelet's pods
//! stuck       pods that stay although their grace period is long over
//! recorder    the state of each pod; report: the same at the end
//! ```

mod context;
mod deadline;
mod deadlines;
mod departures;
mod evict;
mod grace;
mod list;
mod node_checks;
mod outlook;
mod own_pod;
mod pod_times;
mod pod_watch;
mod recorder;
mod remaining;
mod report;
mod returns;
mod rounds;
mod select;
mod silence;
mod stuck;
mod surge;
mod tier;
mod wire;
mod work;

pub use deadline::{Deadline, HookEnd, Plan};
pub use deadlines::{DeadlineEntry, Deadlines};
pub use grace::{AtDeadline, DEFAULT_GRACE, Grace};
pub use list::Room;
pub use outlook::outlook;
pub use pod_watch::PodWatch;
pub use remaining::{MAX_ADDED_GRACE, Remaining};
pub use report::Report;
pub use returns::MAX_OF_OWNER;
pub use select::{Departure, MIRROR_ANNOTATION, Selection, SelectionRules, StayReason, select};
pub use stuck::{GIVEN_UP_AFTER, RUNNING_GIVEN_UP_AFTER};
pub use surge::{DeploymentReader, Foreseen, Surges};
pub use tier::{Tier, Tiers};
pub use wire::{PodAddresses, PodId, TrimmedPod, pod_api, pods_of};

use crate::clients::gate::{Gate, LAST_CALL};
use crate::fact::{Fact, Facts};
use crate::pipeline::node::{Index, Marker, Node, NodeApi, PerPool};
use crate::runtime::clock::Clock;
use context::Drain;
use kube::{Api, Client};
use recorder::Recorder;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Maximum time between the end of a drain and the end of its capacity for which the report measures the time left to the capacity's end.
/// A drain that ends days before is measured by its own deadline.
const CAPACITY_END_MARGIN: Duration = Duration::from_mins(5);

/// The settings of a drain that a pool of Nodes may have for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainTerms {
    /// The treatment of pods that are left before a hard deadline.
    pub at_deadline: AtDeadline,
    /// The grace period of every pod, instead of its own.
    pub pod_grace: Option<Duration>,
    /// Maximum time for which a pod waits for its new pod, if its Deployment is restarted before its last ready pods leave; `None` if it is
    /// not.
    pub surge: Option<Duration>,
}

/// Drains nodes.
pub struct Drainer {
    /// Client of the API server.
    pub client: Client,
    /// Trimmed pods of all namespaces.
    pub pods: Api<TrimmedPod>,
    /// Trimmed Nodes.
    pub nodes: NodeApi,
    /// Limits calls to the API server.
    pub gate: Gate,
    /// Receives facts.
    pub facts: Facts,
    /// Sees pods leave.
    pub pod_watch: PodWatch,
    /// The Nodes.
    pub index: Index,
    /// Restores a removed cordon.
    pub marker: Marker,
    /// Wall time: the API server states the end of a terminating pod in it.
    pub clock: Clock,
    /// Which pods must leave.
    pub rules: SelectionRules,
    /// Label selector of the pods that a drain touches, as `kubectl drain --pod-selector`.
    pub pod_selector: Option<String>,
    /// What differs between pools of Nodes.
    pub terms: PerPool<DrainTerms>,
    /// The Deployments that are restarted, or that may be.
    pub surges: Surges,
    /// Whether reports have the addresses of the evicted pods.
    pub notes_addresses: bool,
    /// Whether the API server only checks evictions.
    pub dry_run: bool,
    /// Cancelled when the pod of this process has been evicted, so that the process shuts down.
    pub leave: CancellationToken,
    /// Number of running drains.
    pub running: watch::Sender<usize>,
    /// Held by the interruption that probes an API server that is, or may be, unreachable.
    pub probing: tokio::sync::Mutex<()>,
}

impl Drainer {
    /// Drains `node` until no pod that must leave is left, the end of the deadlines' plan has passed, or the Node is gone. The plan may
    /// change meanwhile. A plan whose end has passed still leaves time for one call.
    pub async fn run(&self, node: &Node, deadlines: &Deadlines) -> Report {
        let begun = Instant::now();
        let _running = RunningDrain::new(&self.running);
        let plan = deadlines.plan();
        let recorder = Recorder::new(node, &self.facts, plan.clone(), deadlines.progress.clone());
        let (terms, earliest_end) = (self.terms_of(node), begun + LAST_CALL);
        let drain = Drain { drainer: self, node, terms, recorder, deadlines, plan, begun, earliest_end };
        let outcome = tokio::select! {
            biased;
            never = drain.follow_marks() => match never {},
            never = drain.follow_blocks() => match never {},
            outcome = drain.work() => outcome,
            () = drain.ended() => drain.recorder.outcome_at_deadline(),
        };
        let report = drain.recorder.report(outcome);
        let end = drain.end();
        let capacity_ends = end.capacity_ends().filter(|ends| *ends <= end.at() + CAPACITY_END_MARGIN);
        self.facts.emit(&Fact::DrainEnded {
            on: node.named(),
            outcome,
            gone: report.gone(),
            took: begun.elapsed(),
            left: capacity_ends.unwrap_or(end.at()).saturating_duration_since(Instant::now()),
            hard: capacity_ends.is_some(),
            report: &report,
            come_back: report.come_back.len(),
            has_condition: self.index.newest(node).is_some_and(|node| node.draining.is_some()),
        });
        report
    }

    fn terms_of(&self, node: &Node) -> DrainTerms {
        *self.terms.of_node(Some(node))
    }
}

/// Counts a drain while it runs.
struct RunningDrain<'a>(&'a watch::Sender<usize>);

impl<'a> RunningDrain<'a> {
    fn new(running: &'a watch::Sender<usize>) -> Self {
        running.send_modify(|running| *running += 1);
        Self(running)
    }
}

impl Drop for RunningDrain<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|running| *running -= 1);
    }
}
