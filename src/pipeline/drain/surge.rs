//! Surges: a Deployment all of whose ready pods are on nodes that are being drained is restarted, and its pods leave when new ones are
//! Ready. So a single replica leaves no gap.
//!
//! ```text
//!   a pod of a ReplicaSet ─▶ Idle ──┬─ a ready pod is elsewhere ─────────────────▶ evicted at once
//!                                   ├─ the strategy has no room, or a call is refused ▶ Ended: evicted at once
//!                                   ├─ a new pod is on its way ──▶ Waiting ──┐
//!                                   ├─ the Deployment is restarted ▶ Waiting ┼─ the new pods are Ready ─▶ Ended: evicted
//!                                   └─ too many others are ─▶ Queued ────▲   └─ the time is over ───────▶ evicted
//! ```
//!
//! Without a restart the new pods are of the same `ReplicaSet`, and the surge begins anew when they are Ready.
//!
//! All pods of a `ReplicaSet` share one state, and one reading of the Deployment. The rollout itself removes old pods, so that most are gone
//! when their wait ends. The resource version, which guards the restart, and the rollout in progress keep replicas of Ebbtide from
//! restarting a Deployment twice.

mod deployment;
mod read;

use super::context::Drain;
use super::report::PodState;
use super::select::{Departure, SelectionRules};
use super::{Deadline, DrainTerms, Drainer};
use crate::clients::gate::{Category, KubeError};
use crate::fact::{Fact, SurgeOutcome, WorkloadRef};
use deployment::{Deployment, RESTART_ANNOTATION, ReadyPod, ReadyPods, Step};
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use parking_lot::Mutex;
use read::Unread;
use serde_json::json;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

pub use read::{DeploymentReader, Foreseen};

/// Maximum number of Deployments that are rolled out at a time because this process has restarted them. Others wait.
const MAX_RESTARTS: usize = 20;

/// Minimum time for which a pod can wait, or nothing is restarted: a new pod takes seconds to be scheduled, pulled and started.
const MIN_TIME: Duration = Duration::from_secs(15);

/// Interval between two readings of a Deployment whose pods wait.
const READ_INTERVAL: Duration = Duration::from_secs(2);

/// Time for which the state of a Deployment is kept after its last reading, if no pod needs it: in a storm its pods are listed seconds apart.
const KEPT_FOR: Duration = Duration::from_secs(10);

/// The surges of all drains, by the UID of the `ReplicaSet`.
#[derive(Debug, Default)]
pub struct Surges(Mutex<HashMap<Arc<str>, Arc<Surge>>>);

/// What the pods of a `ReplicaSet` share.
#[derive(Debug, Default)]
struct Surge {
    /// Held by the pod that takes the next step for all.
    turn: tokio::sync::Mutex<()>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    phase: Phase,
    known: Option<Known>,
    /// Whether the outcome was reported.
    is_reported: bool,
}

/// A Deployment as it was read.
#[derive(Clone, Debug)]
struct Known {
    at: Instant,
    /// Whether it was changed since.
    is_old: bool,
    deployment: Arc<Deployment>,
    /// Its ready pods, if they were listed.
    pods: Option<Arc<[ReadyPod]>>,
}

/// How far a surge is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// No pod waits yet.
    #[default]
    Idle,
    /// Pods wait until fewer other Deployments are rolled out.
    Queued { since: Instant },
    /// Pods wait for new ones, because the Deployment was `restarted`, or because a new one is on its way anyway.
    Waiting { since: Instant, restarted: bool },
    /// No pod waits any more.
    Ended,
}

impl Phase {
    const fn is_waiting(self) -> bool {
        matches!(self, Self::Queued { .. } | Self::Waiting { .. })
    }

    /// Returns since when pods wait; now, if none does.
    fn since(self) -> Instant {
        match self {
            Self::Queued { since } | Self::Waiting { since, .. } => since,
            Self::Idle | Self::Ended => Instant::now(),
        }
    }

    const fn is_restarted(self) -> bool {
        matches!(self, Self::Waiting { restarted: true, .. })
    }
}

impl Surges {
    /// Returns the surge of a `ReplicaSet`, and forgets those that no pod needs.
    fn join(&self, replica_set: &Arc<str>) -> Arc<Surge> {
        let mut all = self.0.lock();
        all.retain(|_, surge| Arc::strong_count(surge) > 1 || surge.was_read_lately());
        Arc::clone(all.entry(Arc::clone(replica_set)).or_default())
    }

    /// Reserves a restart, if there is room for it. Returns whether there is.
    fn reserve(&self, surge: &Surge) -> bool {
        let all = self.0.lock();
        let (has_room, since) = (has_room(&all), surge.phase().since());
        surge.set(if has_room { Phase::Waiting { since, restarted: true } } else { Phase::Queued { since } });
        has_room
    }

    fn has_room(&self) -> bool {
        has_room(&self.0.lock())
    }
}

/// Whether another Deployment may be restarted.
fn has_room(all: &HashMap<Arc<str>, Arc<Surge>>) -> bool {
    // A drain that ends leaves a surge for which no pod waits.
    let runs = |surge: &&Arc<Surge>| Arc::strong_count(surge) > 1 && surge.phase().is_restarted();
    all.values().filter(runs).count() < MAX_RESTARTS
}

impl Surge {
    fn was_read_lately(&self) -> bool {
        self.state.lock().known.as_ref().is_some_and(|known| known.at.elapsed() < KEPT_FOR)
    }

    fn phase(&self) -> Phase {
        self.state.lock().phase
    }

    fn set(&self, phase: Phase) {
        self.state.lock().phase = phase;
    }

    /// Ends the wait for a new pod of the same `ReplicaSet`: the node of that one may be interrupted next.
    fn begin_anew(&self) {
        let mut state = self.state.lock();
        (state.phase, state.is_reported) = (Phase::Idle, false);
    }

    /// Notes that pods wait, and whether a restart is the reason.
    fn wait(&self, restarted: bool) {
        self.set(Phase::Waiting { since: self.phase().since(), restarted });
    }
}

impl Departure {
    /// Returns the latest time until which the pod waits for its new pod, in a drain from `begun` to `end`; `None` if it does not wait.
    fn waits_until(&self, begun: Instant, end: Deadline, terms: DrainTerms) -> Option<Instant> {
        // A pod that tolerates the cordon may have its new pod on the same node, and a rollout would end one that asks not to be disturbed.
        let can_wait = self.replica_set.is_some() && self.ready && !self.tolerates_cordon && self.protection.is_none();
        let at_most = terms.surge.filter(|_| can_wait)?;
        Some(self.grace_with(terms.pod_grace).surge_until(end)?.min(begun + at_most))
    }

    /// Returns the time for which the pod may wait for its new pod, in a drain from `begun` to `end`; `None` if it does not, or too little is left.
    #[must_use]
    pub fn surge_time(&self, begun: Instant, end: Deadline, terms: DrainTerms) -> Option<Duration> {
        let time = self.waits_until(begun, end, terms)?.saturating_duration_since(begun);
        (time >= MIN_TIME).then_some(time)
    }
}

/// Waits until the new pods of the pod's Deployment are Ready, if all its ready pods are on nodes that are being drained; only while
/// the settings and the deadline allow that.
pub(super) async fn surge(drain: &Drain<'_>, departure: &Departure) {
    let Drain { drainer, terms, recorder, .. } = drain;
    let begun = Instant::now();
    let latest = |end| departure.waits_until(begun, end, *terms).unwrap_or(begun);
    let is_late = || latest(drain.end()) < Instant::now() + MIN_TIME;
    let Some(replica_set) = departure.owner.as_ref().filter(|_| !is_late() && !is_of_own(departure, &drainer.rules))
    else {
        return;
    };
    let surge = drainer.surges.join(replica_set);
    let part = Part { drain, departure, surge, is_late: &is_late };
    let has_waited = tokio::select! {
        biased;
        has_waited = part.wait() => has_waited,
        () = drain.reached(|end| Some(latest(end))) => {
            part.give_up();
            true
        }
    };
    if has_waited {
        recorder.set(&departure.pod, PodState::Waiting);
    }
}

/// Whether the pod is of the Deployment of this process, which a rollout would end in the middle of its drains.
fn is_of_own(departure: &Departure, rules: &SelectionRules) -> bool {
    let own = rules.own_pod.as_ref().filter(|(namespace, _)| **namespace == *departure.pod.namespace);
    let replica_set = own.and_then(|(_, name)| name.rsplit_once('-')).map(|(replica_set, _)| replica_set);
    replica_set.is_some() && replica_set == departure.replica_set.as_deref()
}

/// Whether the API server is away or too busy, so that a later call may be answered otherwise. With 500 it also reports a webhook that fails,
/// and that may do so for ever.
const fn is_away(error: &KubeError) -> bool {
    error.category.is_away() && error.status != 500
}

/// The part of one pod in a surge.
struct Part<'a> {
    drain: &'a Drain<'a>,
    departure: &'a Departure,
    surge: Arc<Surge>,
    /// Whether too little time is left for a restart.
    is_late: &'a (dyn Fn() -> bool + Sync),
}

impl Part<'_> {
    /// Waits until there is nothing to wait for. Returns whether there was something.
    async fn wait(&self) -> bool {
        let mut has_waited = false;
        while Box::pin(self.advance()).await {
            has_waited = true;
            sleep(READ_INTERVAL).await;
        }
        has_waited
    }

    /// Takes the next step for all pods. Returns whether they wait.
    async fn advance(&self) -> bool {
        let _turn = self.surge.turn.lock().await;
        let before = self.surge.phase();
        match before {
            Phase::Ended => return false,
            Phase::Queued { .. } if !self.drain.drainer.surges.has_room() => return true,
            Phase::Idle | Phase::Queued { .. } | Phase::Waiting { .. } => {}
        }
        let known = match self.read(before.is_waiting()).await {
            Ok(known) => known,
            Err(Unread::None) => return false,
            // No eviction would be answered either.
            Err(Unread::Failed(error)) if is_away(&error) => return true,
            Err(Unread::Failed(error)) if before.is_waiting() && error.category != Category::Denied => return true,
            Err(Unread::Failed(error)) => return self.end(None, SurgeOutcome::Failed, &error.to_string()),
        };
        let (Drain { drainer, node, .. }, deployment) = (self.drain, &known.deployment);
        let now = drainer.clock.now();
        let pods = match known.pods.as_deref() {
            None => ReadyPods::Unlisted,
            Some(pods) => {
                // Other nodes may have been marked since the pods were listed.
                let drained = drainer.index.all_that(|node| node.record.is_drained());
                let drained: HashSet<&str> = drained.iter().map(|node| &*node.name).chain([&*node.name]).collect();
                ReadyPods::of(pods, |name| drained.contains(name), now)
            }
        };
        let waits = match deployment.next(pods, before.is_waiting(), before.is_restarted(), now) {
            Step::NotNeeded => false,
            Step::Impossible(why) => self.end(Some(deployment), SurgeOutcome::NoRoom, why),
            Step::Ready if before.is_restarted() => self.end(Some(deployment), SurgeOutcome::Ready, ""),
            Step::Ready => {
                self.report(Some(deployment), SurgeOutcome::Ready, "");
                self.surge.begin_anew();
                false
            }
            Step::Wait => {
                self.surge.wait(before.is_restarted());
                true
            }
            Step::Restart if (self.is_late)() => before.is_waiting(),
            Step::Restart if drainer.surges.reserve(&self.surge) => self.restart(deployment, now).await,
            Step::Restart => true,
        };
        if waits {
            let name = deployment.metadata.name.as_deref().unwrap_or_default();
            let why = match self.surge.phase() {
                Phase::Queued { .. } => "waits until fewer others are restarted",
                _ => "is rolled out",
            };
            let by = format!("it waits for its new pod: the Deployment {name} {why} (--surge)");
            self.drain.recorder.set(&self.departure.pod, PodState::Refused(by.into()));
        }
        waits
    }

    /// Returns the Deployment, and its ready pods as far as they matter. A recent reading is used again.
    async fn read(&self, waits: bool) -> Result<Known, Unread> {
        let reader = self.reader();
        let before = self.surge.state.lock().known.clone();
        let mut known = match before {
            Some(known) if !known.is_old && known.at.elapsed() < READ_INTERVAL => known,
            before => {
                let deployment = reader.deployment(before.as_ref().map(|known| &*known.deployment)).await?;
                Known { at: Instant::now(), is_old: false, deployment: Arc::new(deployment), pods: None }
            }
        };
        if known.pods.is_none() && known.deployment.needs_list(waits) {
            known.pods = Some(reader.ready_pods(&known.deployment).await?.into());
        }
        self.surge.state.lock().known = Some(known.clone());
        Ok(known)
    }

    /// Restarts the Deployment, for which a place is reserved. Returns whether its pods wait.
    async fn restart(&self, deployment: &Deployment, now: Timestamp) -> bool {
        let Drain { drainer, node, .. } = self.drain;
        let meta = &deployment.metadata;
        let name = meta.name.as_deref().unwrap_or_default();
        // As `kubectl rollout restart`, but guarded by the version that was read.
        let at = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let patch = Patch::Merge(json!({
            "metadata": { "uid": meta.uid, "resourceVersion": meta.resource_version },
            "spec": { "template": { "metadata": { "annotations": { RESTART_ANNOTATION: at } } } },
        }));
        let params = PatchParams { dry_run: drainer.dry_run, ..PatchParams::default() };
        let (reader, dry_run) = (self.reader(), drainer.dry_run);
        let api = reader.api();
        let answer = reader.call("patch", "deployments", name, || api.patch(name, &params, &patch)).await;
        // What was read is old now.
        if let Some(known) = &mut self.surge.state.lock().known {
            known.is_old = true;
        }
        match answer {
            Ok(_) => {
                let (on, deployment) = (node.named(), self.named(name));
                drainer.facts.emit(&Fact::DeploymentRestarted { on, deployment, dry_run });
                if dry_run {
                    self.surge.set(Phase::Ended);
                }
                !dry_run
            }
            // Another writer was first, or the answer was lost: the next reading shows what there is to wait for.
            Err(error) if matches!(error.category, Category::Conflict | Category::NotFound) || is_away(&error) => {
                self.surge.wait(false);
                true
            }
            Err(error) => self.end(Some(deployment), SurgeOutcome::Failed, &error.to_string()),
        }
    }

    /// Ends the surge, so that no pod waits, and reports its outcome.
    fn end(&self, deployment: Option<&Deployment>, outcome: SurgeOutcome, why: &str) -> bool {
        self.report(deployment, outcome, why);
        self.surge.set(Phase::Ended);
        false
    }

    /// Ends the wait of this pod. Others may have more time.
    fn give_up(&self) {
        if self.surge.phase().is_waiting() {
            self.report(self.known().as_deref(), SurgeOutcome::TimedOut, "");
        }
    }

    fn report(&self, deployment: Option<&Deployment>, outcome: SurgeOutcome, why: &str) {
        let took = {
            let mut state = self.surge.state.lock();
            if std::mem::replace(&mut state.is_reported, true) {
                return;
            }
            state.phase.since().elapsed()
        };
        let name = deployment.and_then(|deployment| deployment.metadata.name.as_deref());
        let deployment = self.named(name.or(self.departure.replica_set.as_deref()).unwrap_or_default());
        let on = self.drain.node.named();
        self.drain.drainer.facts.emit(&Fact::SurgeEnded { on, deployment, outcome, took, why });
    }

    fn known(&self) -> Option<Arc<Deployment>> {
        self.surge.state.lock().known.as_ref().map(|known| Arc::clone(&known.deployment))
    }

    fn named<'n>(&'n self, name: &'n str) -> WorkloadRef<'n> {
        WorkloadRef { namespace: &self.departure.pod.namespace, name }
    }

    fn reader(&self) -> DeploymentReader<'_> {
        let Drain { drainer, .. } = self.drain;
        let Drainer { client, gate, rules, .. } = drainer;
        DeploymentReader { client, gate, departure: self.departure, rules, by: self.drain.end().at() }
    }
}

impl Drop for Part<'_> {
    /// Reports the surge as ready if the rollout has removed its last old pod, which it does when new ones are Ready.
    fn drop(&mut self) {
        let is_last = Arc::strong_count(&self.surge) == 2;
        if is_last && self.surge.phase().is_restarted() && self.drain.recorder.is_gone(&self.departure.pod) {
            self.end(self.known().as_deref(), SurgeOutcome::Ready, "");
        }
    }
}
