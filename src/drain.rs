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
use crate::gate::{Backoff, CALL_TIMEOUT, Call, Class, Gate, KubeError, LAST_CALL};
use crate::node::{Index, Node, NodeApi};
use evict::{Evictions, Leaving};
use kube::api::{ListParams, ObjectList, VersionMatch};
use kube::{Api, Client};
use report::Board;
use std::sync::Arc;
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
    /// Nodes, trimmed.
    pub nodes: NodeApi,
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
        let board = Board::new(node, &self.facts);
        let outcome = tokio::select! {
            biased;
            () = self.node_is_gone(node) => Outcome::NodeGone,
            () = self.rounds(node, &board, &deadline) => Outcome::Drained,
            () = passed(deadline.clone(), begun + LAST_CALL) => board.outcome_at_deadline(),
        };
        let report = board.report(outcome);
        self.facts.emit(&Fact::DrainEnded {
            node: &node.name,
            instance: node.instance.as_str(),
            outcome: outcome.as_str(),
            evicted: report.gone(),
            took: begun.elapsed(),
            report: &report,
        });
        report
    }

    /// Ends when a list shows that nothing is left, and that list is no cache's memory.
    async fn rounds(&self, node: &Node, board: &Board<'_>, deadline: &watch::Receiver<Deadline>) {
        let (watching, mut missed) = self.gone.watch();
        let evictions = Evictions { drainer: self, node, board, watching: &watching, deadline };
        let mut going = Leaving::new(&evictions);
        let mut age = Age::Cached;
        for round in 0_u32.. {
            let selection = tokio::select! {
                biased;
                // What is on its way goes on meanwhile: it holds places in the gate that the list may need.
                never = going.go_on() => match never {},
                selection = self.list(&evictions, age) => selection,
            };
            if round == 0 {
                self.tell_begun(node, &selection, *deadline.borrow());
            }
            let drained = selection.is_drained() && age == Age::Now;
            going.settle(selection);
            let settled = tokio::select! {
                biased;
                () = going.all_gone() => true,
                () = missed.anything() => false,
            };
            if settled && (drained || self.dry_run) {
                return;
            }
            if settled && round > 1 {
                sleep(ROUND).await;
            }
            // The list that says that nothing is left must know what was bound here a moment ago.
            age = if settled { Age::Now } else { Age::Cached };
        }
    }

    fn tell_begun(&self, node: &Node, selection: &Selection, Deadline { at, hard }: Deadline) {
        self.facts.emit(&Fact::DrainBegun {
            node: &node.name,
            instance: node.instance.as_str(),
            pods: selection.evict.len() + selection.going.len() + selection.finished.len(),
            left_alone: selection.stay.len(),
            until: at.saturating_duration_since(Instant::now()),
            hard,
        });
    }

    /// Lists the node's pods, and tells the board and the watch. Tried until it works.
    async fn list(&self, evictions: &Evictions<'_>, mut age: Age) -> Selection {
        let Evictions { node, board, watching, deadline, .. } = *evictions;
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
        loop {
            let by = deadline.borrow().at;
            let error = match self.try_list(node, watching.version(), age, by).await {
                // A list from before the watch's beginning proves nothing: the next one asks for a newer.
                Ok(pods) if !watching.listed_at(pods.metadata.resource_version.as_deref().unwrap_or_default()) => {
                    continue;
                }
                Ok(pods) => {
                    let selection = select(pods.items, self.own_pod.as_ref());
                    board.shown(&selection);
                    return selection;
                }
                Err(error) => error,
            };
            // A cache that is behind may stay behind; etcd is not.
            age = Age::Now;
            board.failing(Some(error.to_string().into()));
            let category = error.category.as_str();
            let instance = node.instance.as_str();
            self.facts.emit(&Fact::DrainRetried { node: &node.name, instance, step: "list", category, error: &error });
            let wait = backoff.step();
            sleep(error.retry_after.map_or(wait, |asked| asked.max(wait))).await;
        }
    }

    async fn try_list(
        &self,
        node: &Node,
        known: Option<String>,
        age: Age,
        by: Instant,
    ) -> Result<ObjectList<TrimmedPod>, KubeError> {
        let of_node = ListParams::default().fields(&format!("spec.nodeName={}", node.name));
        let params = match (age, known) {
            (Age::Now, _) => of_node,
            (Age::Cached, Some(version)) => of_node.at(&version).matching(VersionMatch::NotOlderThan),
            (Age::Cached, None) => of_node.match_any(),
        };
        let call = Call { verb: "list", resource: "pods", subject: &node.name };
        self.gate.kube(call, Class::List, by, self.pods.list(&params)).await
    }

    /// Returns when the Node is gone, or another one of its name has come: by the watch's word, and the API server's.
    async fn node_is_gone(&self, node: &Node) {
        loop {
            let another = |known: Option<&Arc<Node>>| known.is_none_or(|known| known.uid != node.uid).then_some(());
            self.index.until(&node.instance, another).await;
            let call = Call { verb: "get", resource: "nodes", subject: &node.name };
            let by = Instant::now() + CALL_TIMEOUT;
            let found = self.gate.kube(call, Class::List, by, self.nodes.get_opt(&node.name)).await;
            if found.is_ok_and(|found| found.and_then(|found| found.metadata.uid).as_deref() != Some(&*node.uid)) {
                return;
            }
            sleep(ROUND).await;
        }
    }
}

/// How old a list of pods may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Age {
    /// As old as the API server's cache, but not older than what the watch has told.
    Cached,
    /// Of now. Kubernetes 1.31 and newer answers that from its cache, too, once that has caught up.
    Now,
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
