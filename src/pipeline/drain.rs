//! The work on one Node: list its pods, evict those that go, wait until they are gone, list once more.
//!
//! A drain never fails early: whatever goes wrong is retried until its deadline, and its [`Report`] says what went and what
//! stayed. It does not know why it runs; that is its interruptions' business, which may move the deadline nearer meanwhile.

mod age;
mod deadline;
mod departures;
mod evict;
mod grace;
mod outlook;
mod own_pod;
mod pod_watch;
mod report;
mod select;
mod tier;

pub use deadline::{Deadline, Plan};
pub use grace::{AtDeadline, Grace};
pub use outlook::outlook;
pub use pod_watch::{Gone, Missed};
pub use report::{Outcome, Progress, Report};
pub use select::{Choice, Leaver, MIRROR_ANNOTATION, Selection, Stays, Tier, TrimmedPod, pod_api, pods_of, select};

use crate::clients::gate::{Backoff, CALL_TIMEOUT, Call, Class, Gate, KubeError, LAST_CALL};
use crate::fact::{DrainStep, Fact, Facts};
use crate::pipeline::node::{Index, Marker, Node, NodeApi};
use crate::runtime::clock::Clock;
use age::Age;
use departures::Leaving;
use evict::Evictions;
use kube::api::{ObjectList, VersionMatch};
use kube::{Api, Client};
use own_pod::Own;
use report::Board;
use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tier::Turns;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

/// Pods that come back onto a cordoned node, because they tolerate it, are evicted again, but not in a tight loop.
const ROUND: Duration = Duration::from_secs(1);

/// A drain that was to end so shortly before AWS takes the node is one for which that counts; one that is given an hour, days before,
/// is not.
const SHORTLY: Duration = Duration::from_mins(5);

/// While a budget keeps the pod that this process runs in, the node is listed so often.
const OWN_LISTED: Duration = Duration::from_secs(5);

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
    /// Sets a cordon again that somebody took away.
    pub marker: Marker,
    /// Wall time, in which the API server says when a pod's end is due.
    pub clock: Clock,
    /// Which pods go.
    pub choice: Choice,
    /// A label selector for the pods that go, as `kubectl drain --pod-selector`.
    pub pod_selector: Option<String>,
    /// What becomes of pods that a hard deadline finds.
    pub at_deadline: AtDeadline,
    /// The grace period for every pod, instead of its own.
    pub pod_grace: Option<Duration>,
    /// The API server checks evictions and does none.
    pub dry_run: bool,
    /// Cancelled when the pod that this process runs in was evicted: the process is to end in order.
    pub leave: CancellationToken,
    /// How many drains run.
    pub running: watch::Sender<usize>,
}

impl Drainer {
    /// Drains `node` until nothing is left that has to go, or the deadlines of `plan` have passed, or the Node is gone. The plan may
    /// change while it runs. One that has passed already still leaves a moment for what is most useful. `progress` is told how far
    /// the drain has come.
    pub async fn run(&self, node: &Node, plan: watch::Receiver<Plan>, progress: Progress) -> Report {
        let begun = Instant::now();
        let least = begun + LAST_CALL;
        let _running = Running::new(&self.running);
        let board = Board::new(node, &self.facts, plan.clone(), progress);
        let outcome = tokio::select! {
            biased;
            outcome = self.work(node, &board, &plan, least) => outcome,
            () = passed(plan.clone(), least) => board.outcome_at_deadline(),
        };
        let report = board.report(outcome);
        let end = plan.borrow().end();
        let goes = end.capacity_ends().filter(|goes| *goes <= end.at() + SHORTLY);
        self.facts.emit(&Fact::DrainEnded {
            on: node.named(),
            outcome,
            gone: report.gone(),
            took: begun.elapsed(),
            left: goes.unwrap_or(end.at()).saturating_duration_since(Instant::now()),
            hard: goes.is_some(),
            report: &report,
            has_condition: self.index.get(&node.instance).is_some_and(|node| node.draining),
        });
        report
    }

    /// The rounds, for as long as the Node is there, and cordoned.
    async fn work(&self, node: &Node, board: &Board<'_>, plan: &watch::Receiver<Plan>, least: Instant) -> Outcome {
        let begun = Instant::now();
        let mut uncordoned = pin!(self.uncordoned(node));
        let mut rounds = pin!(self.rounds(node, board, plan, (begun, least)));
        let mut look_at = Instant::now();
        loop {
            let missing = async {
                sleep_until(look_at).await;
                self.missing(node).await;
            };
            tokio::select! {
                biased;
                // Until it is known nothing is evicted: what is listed by the Node's name may be another's. What was on its way is
                // given up, rather than kept without being polled, which would hold places in the gate.
                () = missing => {
                    uncordoned.set(self.uncordoned(node));
                    rounds.set(self.rounds(node, board, plan, (begun, least)));
                    if Box::pin(self.is_gone(node)).await {
                        return Outcome::NodeGone;
                    }
                    look_at = Instant::now() + ROUND;
                }
                () = &mut uncordoned => return Outcome::Uncordoned,
                () = &mut rounds => {
                    let blocked = self.dry_run && board.outcome_at_deadline() == Outcome::Blocked;
                    return if blocked { Outcome::Blocked } else { Outcome::Drained };
                }
            }
        }
    }

    /// Ends when a list shows that nothing is left. Meanwhile, when its turn has come, the pod that this process runs in is evicted.
    async fn rounds(
        &self,
        node: &Node,
        board: &Board<'_>,
        plan: &watch::Receiver<Plan>,
        (begun, least): (Instant, Instant),
    ) {
        let (watching, missed) = self.gone.watch();
        let turns = Turns::new(begun);
        let evictions = Evictions { drainer: self, node, board, watching: &watching, turns: &turns, plan, least };
        let own = watch::Sender::new(Own::default());
        tokio::select! {
            biased;
            () = self.lists(&evictions, missed, &own) => {}
            never = self.leave_last(&evictions, own.subscribe()) => match never {},
        }
    }

    /// Ends when a list shows that nothing is left, and that list is newer than the first.
    async fn lists(&self, evictions: &Evictions<'_>, mut missed: Missed, own: &watch::Sender<Own>) {
        let Evictions { node, board, watching, .. } = *evictions;
        let mut going = Leaving::new(evictions);
        let mut daemons: Option<HashSet<Arc<str>>> = None;
        let mut age = Age::Cached;
        for round in 0_u32.. {
            let newer = age != Age::Cached;
            let (mut selection, version) = tokio::select! {
                biased;
                // What is on its way goes on meanwhile: it holds places in the gate that the list may need.
                never = going.go_on() => match never {},
                listed = Box::pin(self.list(evictions, age)) => listed,
            };
            let daemons = daemons.get_or_insert_with(|| daemons_of(&selection));
            selection.keep_new_daemons(daemons);
            board.shown(&selection);
            if round == 0 {
                self.tell_begun(node, &selection, evictions.end());
            }
            let drained = selection.is_drained() && newer;
            let ourselves = selection.ourselves.take();
            let alone = ourselves.is_none() || self.dry_run;
            own.send_modify(|own| {
                own.pod = ourselves;
                own.turn &= drained;
            });
            going.settle(selection, newer);
            let settled = tokio::select! {
                biased;
                () = going.all_gone() => true,
                () = missed.anything() => false,
            };
            if settled && (drained && alone || self.dry_run) {
                return;
            }
            if settled && drained {
                own.send_modify(|own| own.turn = true);
            }
            let pause = match (settled, drained) {
                (true, true) => OWN_LISTED,
                (true, false) if round > 1 => ROUND,
                _ => Duration::ZERO,
            };
            tokio::select! {
                biased;
                never = going.go_on() => match never {},
                () = sleep(pause) => {}
            }
            // The list that says that nothing is left must know what was bound here a moment ago; and what a list does not show is gone
            // only if it is not older than the one that did.
            let cordoned = self.index.get(&node.instance).filter(|known| known.cordoned);
            age = Age::next(&version, watching.version(), cordoned.as_ref().map(|known| &*known.resource_version));
        }
    }

    fn tell_begun(&self, node: &Node, selection: &Selection, end: Deadline) {
        self.facts.emit(&Fact::DrainBegun {
            on: node.named(),
            pods: selection.evict.len() + selection.going.len() + selection.finished.len(),
            left_alone: selection.stay.len(),
            until: end.at().saturating_duration_since(Instant::now()),
            hard: end.is_hard(),
        });
    }

    /// Lists the node's pods, and tells the watch. Tried until it works. Gives the list's version, too.
    async fn list(&self, evictions: &Evictions<'_>, mut age: Age) -> (Selection, String) {
        let Evictions { node, board, watching, .. } = *evictions;
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
        loop {
            let by = evictions.end().at();
            let error = match self.try_list(node, watching.version(), &age, by).await {
                Ok(pods) => {
                    let version = pods.metadata.resource_version.unwrap_or_default();
                    // A list from before the watch's beginning proves nothing: the next one asks for a newer.
                    if watching.listed_at(&version) {
                        return (select(pods.items, &self.choice), version);
                    }
                    continue;
                }
                Err(error) => error,
            };
            // A cache that is behind may stay behind; etcd is not.
            age = Age::Now;
            board.failing(Some(error.to_string().into()));
            let category = error.category;
            self.facts.emit(&Fact::DrainRetried { on: node.named(), step: DrainStep::List, category, error: &error });
            sleep(error.wait(backoff.step())).await;
        }
    }

    async fn try_list(
        &self,
        node: &Node,
        known: Option<String>,
        age: &Age,
        by: Instant,
    ) -> Result<ObjectList<TrimmedPod>, KubeError> {
        let of_node = pods_of(&node.name, self.pod_selector.as_deref());
        let params = match (age, &known) {
            (Age::Now, _) => of_node,
            (Age::Seen(version), _) | (Age::Cached, Some(version)) => {
                of_node.at(version).matching(VersionMatch::NotOlderThan)
            }
            (Age::Cached, None) => of_node.match_any(),
        };
        let call = Call { verb: "list", resource: "pods", subject: &node.name };
        self.gate.kube(call, Class::List, by, || self.pods.list(&params)).await
    }

    /// Returns when somebody has uncordoned the Node and means it: it says so by an annotation, or did it twice, or the node was rebooted
    /// meanwhile. The first time another controller is taken to know no better, and the cordon is set again.
    pub async fn uncordoned(&self, node: &Node) {
        if self.dry_run {
            std::future::pending::<()>().await;
        }
        let mut again = false;
        loop {
            let touched = |known: Option<&Arc<Node>>| {
                known.filter(|known| known.uid == node.uid && (!known.cordoned || known.ignored)).map(Arc::clone)
            };
            let known = self.index.until(&node.instance, touched).await;
            if known.ignored || again || known.boot != node.boot {
                return;
            }
            match Box::pin(self.marker.recordon(&known, Instant::now() + CALL_TIMEOUT)).await {
                Ok(true) => {
                    again = true;
                    self.facts.emit(&Fact::NodeRecordoned { on: node.named() });
                }
                // It was cordoned all the time, or is gone.
                Ok(false) => sleep(ROUND).await,
                Err(error) => {
                    let category = error.category;
                    self.facts.emit(&Fact::DrainRetried {
                        on: node.named(),
                        step: DrainStep::Cordon,
                        category,
                        error: &error,
                    });
                    sleep(ROUND).await;
                }
            }
        }
    }

    /// Returns when the watch does not show the Node any more, or shows another in its place.
    pub async fn missing(&self, node: &Node) {
        let another = |known: Option<&Arc<Node>>| known.is_none_or(|known| known.uid != node.uid).then_some(());
        self.index.until(&node.instance, another).await;
    }

    /// Whether the Node is gone: another has its instance, or the API server says so, too. Asked until it answers.
    async fn is_gone(&self, node: &Node) -> bool {
        if self.index.get(&node.instance).is_some_and(|known| known.uid != node.uid) {
            return true;
        }
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(2));
        loop {
            let call = Call { verb: "get", resource: "nodes", subject: &node.name };
            let by = Instant::now() + CALL_TIMEOUT;
            match self.gate.kube(call, Class::List, by, || self.nodes.get_opt(&node.name)).await {
                Ok(found) => return found.and_then(|found| found.metadata.uid).as_deref() != Some(&*node.uid),
                Err(_) => sleep(backoff.step()).await,
            }
        }
    }
}

/// Counts a drain for as long as it runs.
struct Running<'a>(&'a watch::Sender<usize>);

impl<'a> Running<'a> {
    fn new(running: &'a watch::Sender<usize>) -> Self {
        running.send_modify(|running| *running += 1);
        Self(running)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|running| *running -= 1);
    }
}

/// The pods of DaemonSets that are to be evicted: those there are at the beginning.
fn daemons_of(selection: &Selection) -> HashSet<Arc<str>> {
    let daemons = selection.evict.iter().filter(|leaver| leaver.tier == Tier::Daemon);
    daemons.map(|leaver| Arc::clone(&leaver.pod.uid)).collect()
}

/// Returns when the plan's end, wherever it has moved, has passed, and not before `least`.
async fn passed(mut plan: watch::Receiver<Plan>, least: Instant) {
    loop {
        let at = plan.borrow_and_update().end().at().max(least);
        tokio::select! {
            biased;
            changed = plan.changed() => if changed.is_err() {
                return sleep_until(at).await;
            },
            () = sleep_until(at) => return,
        }
    }
}
