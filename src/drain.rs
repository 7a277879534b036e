//! The work on one Node: list its pods, evict those that go, wait until they are gone, list once more.
//!
//! A drain never fails early: whatever goes wrong is retried until its deadline, and its [`Report`] says what went and what
//! stayed. It does not know why it runs; that is its interruptions' business, which may move the deadline nearer meanwhile.

mod deadline;
mod evict;
mod gone;
mod report;
mod select;

pub use deadline::Deadline;
pub use gone::Gone;
pub use report::{Outcome, Report, Standing};
pub use select::{Pod, Selection, Stays, TrimmedPod, pod_api, select};

use crate::fact::{Fact, Facts};
use crate::gate::{Backoff, Call, Class, Gate, KubeError, LAST_CALL};
use crate::node::{Index, Node};
use evict::Evictions;
use gone::Watching;
use kube::api::{ListParams, ObjectList, VersionMatch};
use kube::{Api, Client};
use report::Board;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

/// Pods that come back onto a cordoned node, because they tolerate it, are evicted again, but not in a tight loop.
const ROUND: Duration = Duration::from_secs(1);

/// Drains nodes.
pub struct Drainer {
    /// The API server.
    pub client: Client,
    /// Pods of all namespaces, trimmed.
    pub pods: Api<TrimmedPod>,
    /// Where calls go through.
    pub gate: Gate,
    /// Where facts go.
    pub facts: Facts,
    /// Tells which pods are gone.
    pub gone: Gone,
    /// Tells whether the Node is still there.
    pub index: Index,
    /// Namespace and name of the pod that this process runs in.
    pub own_pod: Option<(String, String)>,
    /// The grace period for every pod, instead of its own.
    pub pod_grace: Option<Duration>,
    /// The API server checks evictions and does none.
    pub dry_run: bool,
}

impl Drainer {
    /// Drains `node` until nothing is left that has to go, or the deadline has passed, or the Node is gone. The deadline may move
    /// while it runs. One that has passed already still leaves a moment for what is most useful.
    pub async fn run(&self, node: &Node, deadline: watch::Receiver<Deadline>) -> Report {
        let begun = Instant::now();
        let board = Board::new(&node.name, &self.facts);
        let outcome = tokio::select! {
            biased;
            () = self.node_is_gone(node) => Outcome::NodeGone,
            () = self.rounds(node, &board, &deadline) => Outcome::Drained,
            () = passed(deadline.clone(), begun + LAST_CALL) => board.outcome_at_deadline(),
        };
        let report = board.report(outcome);
        self.facts.emit(&Fact::DrainEnded {
            node: &node.name,
            outcome: outcome.as_str(),
            evicted: report.gone(),
            took: begun.elapsed(),
            report: &report,
        });
        report
    }

    /// Ends when a list shows that nothing is left.
    async fn rounds(&self, node: &Node, board: &Board<'_>, deadline: &watch::Receiver<Deadline>) {
        let (watching, mut missed) = self.gone.watch();
        for round in 0_u32.. {
            let selection = self.list(node, board, &watching, deadline).await;
            if round == 0 {
                self.tell_begun(node, &selection, *deadline.borrow());
            }
            let evictions = Evictions { drainer: self, node, board, watching: &watching, deadline };
            let settled = tokio::select! {
                biased;
                () = evictions.all(&selection) => true,
                () = missed.anything() => false,
            };
            if settled && (selection.is_drained() || self.dry_run) {
                return;
            }
            if round > 1 {
                sleep(ROUND).await;
            }
        }
    }

    fn tell_begun(&self, node: &Node, selection: &Selection, Deadline { at, hard }: Deadline) {
        self.facts.emit(&Fact::DrainBegun {
            node: &node.name,
            pods: selection.evict.len() + selection.going.len() + selection.finished.len(),
            left_alone: selection.stay.len(),
            until: at.saturating_duration_since(Instant::now()),
            hard,
        });
    }

    /// Lists the node's pods from the API server's cache, but not as they were before what the watch has told already. Tried until
    /// it works.
    async fn list(
        &self,
        node: &Node,
        board: &Board<'_>,
        watching: &Watching,
        deadline: &watch::Receiver<Deadline>,
    ) -> Selection {
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
        loop {
            let by = deadline.borrow().at;
            match self.try_list(node, watching, by).await {
                Ok(pods) => {
                    watching.listed_at(pods.metadata.resource_version.as_deref());
                    let selection = select(pods.items, self.own_pod.as_ref());
                    note(&selection, board);
                    return selection;
                }
                Err(error) => {
                    board.failing(Some(error.to_string().into()));
                    let category = error.category.as_str();
                    self.facts.emit(&Fact::DrainRetried { node: &node.name, step: "list", category, error: &error });
                    let wait = backoff.step();
                    sleep(error.retry_after.map_or(wait, |asked| asked.max(wait))).await;
                }
            }
        }
    }

    async fn try_list(
        &self,
        node: &Node,
        watching: &Watching,
        by: Instant,
    ) -> Result<ObjectList<TrimmedPod>, KubeError> {
        let of_node = ListParams::default().fields(&format!("spec.nodeName={}", node.name));
        let params = match watching.version() {
            Some(version) => of_node.at(&version).matching(VersionMatch::NotOlderThan),
            None => of_node.match_any(),
        };
        let call = Call { verb: "list", resource: "pods", subject: &node.name };
        self.gate.kube(call, Class::List, by, self.pods.list(&params)).await
    }

    async fn node_is_gone(&self, node: &Node) {
        self.index.until(&node.instance, |known| known.is_none_or(|known| known.uid != node.uid).then_some(())).await;
    }
}

/// Notes what a list shows.
fn note(selection: &Selection, board: &Board<'_>) {
    board.failing(None);
    board.left_alone(selection.stay.len());
    for pod in selection.evict.iter().chain(&selection.finished) {
        board.listed(pod, Standing::Waiting);
    }
    for pod in &selection.going {
        board.listed(pod, Standing::Going);
    }
    let listed =
        |pod: &Pod| [&selection.evict, &selection.going, &selection.finished].iter().any(|pods| pods.contains(pod));
    board.keep(listed);
}

/// Returns when the deadline, wherever it has moved, has passed, and not before `least`.
async fn passed(mut deadline: watch::Receiver<Deadline>, least: Instant) {
    loop {
        let at = deadline.borrow_and_update().at.max(least);
        tokio::select! {
            biased;
            changed = deadline.changed() => if changed.is_err() {
                return sleep_until(at).await;
            },
            () = sleep_until(at) => return,
        }
    }
}
