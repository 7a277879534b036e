//! The record of a drain: the state of each pod, written by the pods' departures, and read at the drain's end or before.

use super::deadline::Plan;
use super::report::{PodState, RemovalCause, Report};
use super::select::{Selection, StayReason};
use super::wire::{PodAddresses, PodId};
use crate::fact::{DrainOutcome, Fact, Facts, HeldPod};
use crate::pipeline::node::Node;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// The progress of a drain, for interruptions that no longer wait for it.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<Mutex<Record>>);

impl Progress {
    /// Returns the outcome that the drain would have if its deadline were now.
    #[must_use]
    pub fn outcome(&self) -> DrainOutcome {
        self.0.lock().outcome()
    }
}

#[derive(Debug, Default)]
struct Record {
    pods: BTreeMap<PodId, PodState>,
    /// Number of pods that are gone.
    gone: usize,
    left_alone: usize,
    /// Of those, the ones that come back to the cordoned node.
    come_back: Vec<PodId>,
    /// The error of the latest list, if it failed.
    error: Option<Arc<str>>,
    addresses: PodAddresses,
    ended: bool,
}

impl Record {
    /// Returns the pods that are held, and by what.
    fn held(&self) -> impl Iterator<Item = (&PodId, &Arc<str>)> {
        self.pods.iter().filter_map(|(pod, state)| Some((pod, state.held_by()?)))
    }

    fn outcome(&self) -> DrainOutcome {
        let any = |wanted: fn(&PodState) -> bool| self.pods.values().any(wanted);
        if any(|state| matches!(state, PodState::Refused(_))) {
            DrainOutcome::Blocked
        } else if self.error.is_some() || any(|state| matches!(state, PodState::Failing(_) | PodState::Waiting)) {
            DrainOutcome::Failed
        } else {
            DrainOutcome::TimedOut
        }
    }
}

/// Writes the record of a drain, and emits facts about held pods. Dropping it reports all held pods as no longer held, because no drain
/// waits for them any more.
pub(super) struct Recorder<'a> {
    node: &'a Node,
    facts: &'a Facts,
    plan: watch::Receiver<Plan>,
    progress: Progress,
    /// Since when pods have been held without a break.
    held_since: watch::Sender<Option<Instant>>,
}

impl<'a> Recorder<'a> {
    pub(super) fn new(node: &'a Node, facts: &'a Facts, plan: watch::Receiver<Plan>, progress: Progress) -> Self {
        Self { node, facts, plan, progress, held_since: watch::Sender::default() }
    }

    /// Records the state of a pod. Emits a fact when the pod becomes held, when it no longer is, and when it is gone.
    pub(super) fn set(&self, pod: &PodId, state: PodState) {
        let mut record = self.progress.0.lock();
        let entry = record.pods.entry(pod.clone()).or_insert(PodState::Waiting);
        let held_by = state.held_by().cloned();
        let before = std::mem::replace(entry, state);
        let is_gone = |state: &PodState| matches!(state, PodState::Gone(_));
        let goes = is_gone(entry) && !is_gone(&before);
        record.gone += usize::from(goes);
        let (pods, gone) = (record.pods.len(), record.gone);
        match (before.held_by(), &held_by) {
            (None, Some(_)) => self.held_since.send_modify(|since| *since = since.or_else(|| Some(Instant::now()))),
            (Some(_), None) if record.held().next().is_none() => drop(self.held_since.send_replace(None)),
            _ => {}
        }
        drop(record);
        if goes {
            self.facts.emit(&Fact::DrainProgress { on: self.node.named(), pods, gone });
        }
        match (before.held_by(), held_by) {
            (None, Some(by)) => {
                let (until, hard) = self.left();
                let (on, pod) = (self.node.named(), pod.named());
                self.facts.emit(&Fact::PodBlocked { on, pod, by: &by, until, hard });
            }
            (Some(_), None) => self.unblocked(pod),
            (Some(_), Some(_)) | (None, None) => {}
        }
    }

    /// Records that an eviction failed. A pod that was held before stays held.
    pub(super) fn failed(&self, pod: &PodId, why: Arc<str>) {
        if !matches!(self.progress.0.lock().pods.get(pod), Some(PodState::Refused(_))) {
            self.set(pod, PodState::Failing(why));
        }
    }

    /// Records that a pod is gone, by the cause that made it terminate.
    pub(super) fn gone(&self, pod: &PodId) {
        let cause = match self.progress.0.lock().pods.get(pod) {
            Some(PodState::Terminating(cause) | PodState::Stuck(cause, _) | PodState::Gone(cause)) => cause.clone(),
            _ => RemovalCause::Other,
        };
        self.set(pod, PodState::Gone(cause));
    }

    /// Records that a pod that terminates is stuck.
    pub(super) fn stuck(&self, pod: &PodId, by: Arc<str>) {
        let cause = match self.progress.0.lock().pods.get(pod) {
            Some(PodState::Terminating(cause) | PodState::Stuck(cause, _)) => cause.clone(),
            _ => return,
        };
        self.set(pod, PodState::Stuck(cause, by));
    }

    /// Returns whether the pod is gone.
    pub(super) fn is_gone(&self, pod: &PodId) -> bool {
        matches!(self.progress.0.lock().pods.get(pod), Some(PodState::Gone(_)))
    }

    /// Returns what holds the pod, in a sentence.
    pub(super) fn held_by(&self, pod: &PodId) -> Arc<str> {
        match self.progress.0.lock().pods.get(pod) {
            Some(PodState::Refused(by) | PodState::Failing(by)) => Arc::clone(by),
            _ => "its eviction was not answered".into(),
        }
    }

    /// Records a list: a pod that is listed for the first time waits, a pod that terminates is terminating, a pod that is no longer
    /// listed is gone.
    pub(super) fn listed(&self, selection: &Selection) {
        let Selection { evict, terminating, finished, left_alone, own_pod } = selection;
        let pods = || evict.iter().chain(terminating).chain(finished).map(|departure| &departure.pod);
        let all: HashSet<&PodId> = pods().chain(own_pod.as_ref().map(|departure| &departure.pod)).collect();
        let mut record = self.progress.0.lock();
        record.error = None;
        record.left_alone = left_alone.len();
        let come_back = left_alone.iter().filter(|(_, why)| *why == StayReason::ComesBack);
        record.come_back = come_back.map(|(pod, _)| pod.clone()).collect();
        for departure in evict.iter().chain(finished) {
            record.pods.entry(departure.pod.clone()).or_insert(PodState::Waiting);
        }
        let gone: Vec<PodId> = record.pods.keys().filter(|pod| !all.contains(pod)).cloned().collect();
        let is_known = |state: &PodState| matches!(state, PodState::Terminating(_) | PodState::Stuck(..));
        let unknown = |pod: &&PodId| !record.pods.get(*pod).is_some_and(is_known);
        let terminating: Vec<PodId> =
            terminating.iter().map(|departure| &departure.pod).filter(unknown).cloned().collect();
        drop(record);
        for pod in &terminating {
            self.set(pod, PodState::Terminating(RemovalCause::Other));
        }
        for pod in &gone {
            self.gone(pod);
        }
    }

    /// Records the addresses of pods that must leave.
    pub(super) fn leaving_from(&self, addresses: PodAddresses) {
        self.progress.0.lock().addresses.extend(addresses);
    }

    /// Records that listing pods failed.
    pub(super) fn list_failed(&self, error: Arc<str>) {
        self.progress.0.lock().error = Some(error);
    }

    /// Returns whether the eviction of a pod fails.
    pub(super) fn is_failing(&self) -> bool {
        self.progress.0.lock().pods.values().any(|state| matches!(state, PodState::Failing(_)))
    }

    /// Returns the outcome if the drain ends at its deadline now.
    pub(super) fn outcome_at_deadline(&self) -> DrainOutcome {
        self.progress.outcome()
    }

    /// Ends the record, and returns the report.
    pub(super) fn report(&self, outcome: DrainOutcome) -> Report {
        let mut record = self.progress.0.lock();
        record.ended = true;
        let Record { pods, left_alone, come_back, error, addresses, .. } = &*record;
        let (pods, come_back, error, addresses) = (pods.clone(), come_back.clone(), error.clone(), addresses.clone());
        Report { outcome, pods, left_alone: *left_alone, come_back, error, addresses }
    }

    /// Since when pods have been held without a break; `None` without one. Follows changes.
    pub(super) fn held_since(&self) -> watch::Receiver<Option<Instant>> {
        self.held_since.subscribe()
    }

    /// Emits that the drain is blocked.
    pub(super) fn drain_blocked(&self) {
        let held: Vec<_> = self.progress.0.lock().held().map(|(pod, by)| (pod.clone(), Arc::clone(by))).collect();
        let pods: Vec<_> = held.iter().map(|(pod, by)| HeldPod { pod: pod.named(), by }).collect();
        let (until, hard) = self.left();
        self.facts.emit(&Fact::DrainBlocked { on: self.node.named(), pods: &pods, until, hard });
    }

    /// Emits that the drain no longer is.
    pub(super) fn drain_unblocked(&self) {
        self.facts.emit(&Fact::DrainUnblocked { on: self.node.named() });
    }

    /// Returns the time that is left until the deadline, and whether that is hard.
    fn left(&self) -> (Duration, bool) {
        let end = self.plan.borrow().end();
        (end.at().saturating_duration_since(Instant::now()), end.is_hard())
    }

    fn unblocked(&self, pod: &PodId) {
        self.facts.emit(&Fact::PodUnblocked { on: self.node.named(), pod: pod.named() });
    }
}

impl Drop for Recorder<'_> {
    fn drop(&mut self) {
        let record = self.progress.0.lock();
        record.held().for_each(|(pod, _)| self.unblocked(pod));
        if !record.ended {
            self.facts.emit(&Fact::DrainAbandoned { on: self.node.named() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::deadline::Deadline;
    use super::*;

    fn pod(name: &str) -> PodId {
        PodId { namespace: "default".into(), name: name.into(), uid: name.into() }
    }

    fn recorder<'a>(node: &'a Node, facts: &'a Facts) -> Recorder<'a> {
        Recorder::new(node, facts, watch::channel(Deadline::hard(Instant::now()).into()).1, Progress::default())
    }

    #[test]
    fn the_report_names_what_blocked() {
        let facts = Facts::to(Vec::new());
        let node = Node::for_tests("node-1");
        let recorder = recorder(&node, &facts);
        recorder.gone(&pod("a"));
        recorder.set(&pod("b"), PodState::Refused("The disruption budget web needs 2 healthy pods".into()));
        recorder.set(&pod("c"), PodState::Terminating(RemovalCause::Evicted));
        assert_eq!(recorder.outcome_at_deadline(), DrainOutcome::Blocked);
        recorder.set(&pod("d"), PodState::Terminating(RemovalCause::Deleted("The disruption budget db".into())));
        recorder.gone(&pod("d"));
        assert_eq!(
            recorder.report(DrainOutcome::Blocked).to_string(),
            "2 of 4 pods gone; default/b is held back: The disruption budget web needs 2 healthy pods; \
             default/c is still terminating; default/d was deleted before the deadline: The disruption budget db"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_is_held_without_a_break_from_its_first_pod_until_none_is_held() {
        let facts = Facts::to(Vec::new());
        let node = Node::for_tests("node-1");
        let recorder = recorder(&node, &facts);
        let (since, start) = (recorder.held_since(), Instant::now());
        let leaves = |name| recorder.set(&pod(name), PodState::Terminating(RemovalCause::Evicted));
        let held = |name| recorder.set(&pod(name), PodState::Refused("budget".into()));
        held("a");
        tokio::time::advance(Duration::from_secs(3)).await;
        held("b");
        leaves("a");
        assert_eq!(*since.borrow(), Some(start), "b is still held");
        leaves("b");
        assert_eq!(*since.borrow(), None);
        held("c");
        assert_eq!(*since.borrow(), Some(start + Duration::from_secs(3)), "the time starts over");
    }

    #[test]
    fn at_the_deadline_the_worst_state_decides() {
        let facts = Facts::to(Vec::new());
        let node = Node::for_tests("node-1");
        let recorder = recorder(&node, &facts);
        assert_eq!(recorder.outcome_at_deadline(), DrainOutcome::TimedOut);
        recorder.set(&pod("a"), PodState::Terminating(RemovalCause::Evicted));
        assert_eq!(recorder.outcome_at_deadline(), DrainOutcome::TimedOut);
        recorder.set(&pod("b"), PodState::Failing("denied".into()));
        assert_eq!(recorder.outcome_at_deadline(), DrainOutcome::Failed);
        recorder.set(&pod("c"), PodState::Refused("budget".into()));
        assert_eq!(recorder.outcome_at_deadline(), DrainOutcome::Blocked);
    }
}
