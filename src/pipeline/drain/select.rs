//! Which pods of a node must leave. Pure; as `kubectl drain` selects with its usual switches (`--ignore-daemonsets`,
//! `--delete-emptydir-data`, `--force`).

use super::grace::Grace;
use super::tier::{Tier, Tiers};
use super::wire::{PodAddresses, PodId, Status, TrimmedPod};
use crate::clients::trimmed::Trimmed;
use crate::pipeline::node::IGNORE_ANNOTATION;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// Name of the annotation of a static pod's mirror. The kubelet runs a static pod regardless of the API server.
pub const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// Name of Karpenter's annotation against disruption of a pod: `true`, or since Karpenter 1.12 a duration from the pod's start, in Go's
/// format.
const KARPENTER_ANNOTATION: &str = "karpenter.sh/do-not-disrupt";

/// Name of the Cluster Autoscaler's annotation against disruption of a pod, with `false`.
const AUTOSCALER_ANNOTATION: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";

/// The Cluster Autoscaler's annotation for daemon pods of other controllers.
const DAEMON_ANNOTATION: &str = "cluster-autoscaler.kubernetes.io/daemonset-pod";

/// The departure of a pod that must leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Departure {
    /// The pod.
    pub pod: PodId,
    /// The pod's own grace period in seconds, if it has one.
    pub grace: Option<i64>,
    /// The tier in which the pod leaves.
    pub tier: Tier,
    /// Whether the pod is Ready.
    pub ready: bool,
    /// The pod's protection, if it asks not to be disturbed.
    pub protection: Option<Protection>,
    /// The time at which the pod was deleted, if it is terminating.
    pub deleted: Option<Timestamp>,
    /// The time at which the pod should be gone, if it is terminating.
    pub ends: Option<Timestamp>,
    /// Whether containers of the pod still run.
    pub runs: bool,
    /// UID of the pod's controller, if it has one.
    pub owner: Option<Arc<str>>,
    /// Name of the pod's `ReplicaSet`, if it has one and Deployments are surged.
    pub replica_set: Option<Box<str>>,
    /// Whether the scheduler may bind the pod to a cordoned Node.
    pub tolerates_cordon: bool,
}

/// The UIDs of the first pods that lists showed of a `DaemonSet`, by that of the `DaemonSet`.
pub type FirstDaemons = HashMap<Arc<str>, HashSet<Arc<str>>>;

/// A pod's request not to be disturbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protection {
    /// The annotation that asks for it.
    pub annotation: &'static str,
    /// The end of the protection, if the annotation limits it.
    pub ends: Option<Timestamp>,
}

impl Protection {
    /// Whether it holds at `now`.
    pub(super) fn holds(self, now: Timestamp) -> bool {
        self.ends.is_none_or(|ends| ends > now)
    }
}

impl Departure {
    /// Returns the pod's grace period. `wanted` is that of every pod, if the user sets one.
    #[must_use]
    pub const fn grace_with(&self, wanted: Option<Duration>) -> Grace {
        Grace { wanted, own: self.grace }
    }

    /// Returns the UID of the pod's `DaemonSet`, if it has one.
    fn daemon_set(&self) -> Option<&Arc<str>> {
        self.owner.as_ref().filter(|_| self.tier == Tier::Daemon)
    }
}

/// The reason that a pod stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StayReason {
    /// Its `DaemonSet` would replace it at once.
    DaemonSet,
    /// It is the node part of a CSI driver: without it no volume is unmounted.
    CsiDriver,
    /// It is a static pod.
    Mirror,
    /// It has data in an emptyDir volume, and the settings keep such pods.
    EmptyDir,
    /// It has no controller that would replace it, and the settings keep such pods.
    Unmanaged,
    /// Its containers have ended, and a finalizer keeps its object.
    Finished,
    /// It comes back to the cordoned Node, whenever it is evicted.
    ComesBack,
}

/// The user's rules for selecting pods. By default they select what `kubectl drain --ignore-daemonsets --delete-emptydir-data
/// --force` does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is an independent switch")]
pub struct SelectionRules {
    /// The tiers of pods by their priorities.
    pub tiers: Tiers,
    /// Whether pods of DaemonSets leave too.
    pub evict_daemonsets: bool,
    /// Whether pods with an emptyDir volume stay.
    pub keep_empty_dir: bool,
    /// Whether pods without a controller stay.
    pub keep_unmanaged: bool,
    /// Whether the annotations of Karpenter and the Cluster Autoscaler that ask not to disturb a pod count.
    pub respect_do_not_disrupt: bool,
    /// Whether Deployments are surged, in any pool.
    pub surges: bool,
    /// Namespace and name of the pod of this process.
    pub own_pod: Option<(String, String)>,
}

/// The pods of a node, by what a drain does with them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Pods to evict and wait for.
    pub evict: Vec<Departure>,
    /// Pods that are terminating, to wait for.
    pub terminating: Vec<Departure>,
    /// Pods whose containers have ended, to evict without waiting.
    pub finished: Vec<Departure>,
    /// Pods that stay.
    pub left_alone: Vec<(PodId, StayReason)>,
    /// The pod of this process, which leaves last.
    pub own_pod: Option<Box<Departure>>,
}

impl Selection {
    /// Returns whether a drain waits for no pod, except perhaps the pod of this process.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.evict.is_empty() && self.terminating.is_empty()
    }

    /// Returns the pod with the longest grace period of those that a drain waits for. `wanted` is the grace period of every pod, if the
    /// user sets one.
    #[must_use]
    pub fn longest_grace(&self, wanted: Option<Duration>) -> Option<(&PodId, Duration)> {
        let departures = self.evict.iter().chain(&self.terminating).chain(self.own_pod.as_deref());
        departures
            .map(|departure| (&departure.pod, departure.grace_with(wanted).full()))
            .max_by_key(|(_, grace)| *grace)
    }

    /// Returns the time in which all pods can stop by themselves: tier after tier, and the pod of this process last.
    #[must_use]
    pub fn grace_of_all(&self, wanted: Option<Duration>) -> Duration {
        let grace = |departure: &Departure| departure.grace_with(wanted).full();
        let mut tiers = BTreeMap::<Tier, Duration>::new();
        for departure in self.evict.iter().chain(&self.terminating) {
            let longest = tiers.entry(departure.tier).or_default();
            *longest = grace(departure).max(*longest);
        }
        tiers.into_values().sum::<Duration>() + self.own_pod.as_deref().map(grace).unwrap_or_default()
    }

    /// Leaves alone the pods of a `DaemonSet` other than its `first`, and adds the first of those that no list has shown before: a
    /// `DaemonSet` replaces an evicted pod, and one eviction is enough.
    pub fn keep_new_daemons(&mut self, first: &mut FirstDaemons) {
        let mut new = FirstDaemons::new();
        for departure in &self.evict {
            if let Some(set) = departure.daemon_set().filter(|set| !first.contains_key(*set)) {
                new.entry(Arc::clone(set)).or_default().insert(Arc::clone(&departure.pod.uid));
            }
        }
        first.extend(new);
        let is_later = |departure: &mut Departure| {
            let set = departure.daemon_set().and_then(|set| first.get(set));
            set.is_some_and(|first| !first.contains(&departure.pod.uid))
        };
        let later: Vec<_> =
            self.evict.extract_if(.., is_later).map(|later| (later.pod, StayReason::DaemonSet)).collect();
        self.left_alone.extend(later);
    }
}

/// Sorts the pods of a node.
#[must_use]
pub fn select(pods: impl IntoIterator<Item = TrimmedPod>, rules: &SelectionRules) -> Selection {
    let mut selection = Selection::default();
    for object in pods {
        let terminating = object.metadata.deletion_timestamp.is_some();
        let finished = object.is_finished();
        let own = is_own(&object, rules);
        let stays = stay_reason(&object, rules);
        // A pod without a name or a UID can't come from an API server.
        let Some(departure) = departure(object, rules) else { continue };
        match stays {
            Some(reason) => selection.left_alone.push((departure.pod, reason)),
            // This process ends with its pod, so it leaves last even if it already terminates: among the terminating pods it could be
            // deleted sooner.
            None if own && !finished => selection.own_pod = Some(Box::new(departure)),
            // Only the finalizer's controller can remove it.
            None if terminating && finished => selection.left_alone.push((departure.pod, StayReason::Finished)),
            None if terminating => selection.terminating.push(departure),
            None if finished => selection.finished.push(departure),
            None => selection.evict.push(departure),
        }
    }
    selection
}

/// Returns the addresses of the pods that must leave. An address that a staying pod shares is the node's own, and stays in use.
pub(super) fn leaving_addresses(pods: &[TrimmedPod], rules: &SelectionRules) -> PodAddresses {
    let (stay, leave): (Vec<_>, Vec<_>) = pods.iter().partition(|pod| stay_reason(pod, rules).is_some());
    let staying: HashSet<&str> = stay.into_iter().flat_map(TrimmedPod::addresses).collect();
    let of = |pod: &TrimmedPod| {
        let namespace: Arc<str> = pod.metadata.namespace.as_deref().unwrap_or_default().into();
        let addresses = pod.addresses().filter(|address| !staying.contains(address));
        addresses.map(|address| (Arc::clone(&namespace), address.into())).collect::<Vec<_>>()
    };
    leave.into_iter().flat_map(of).collect()
}

/// Applies the filters of `kubectl drain`, in its order.
fn stay_reason(object: &TrimmedPod, rules: &SelectionRules) -> Option<StayReason> {
    let meta = &object.metadata;
    let finished = object.is_finished();
    if is_daemon(object) && !finished {
        if !rules.evict_daemonsets {
            return Some(StayReason::DaemonSet);
        }
        if object.spec.registers_plugins() {
            return Some(StayReason::CsiDriver);
        }
    }
    if meta.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(MIRROR_ANNOTATION)) {
        return Some(StayReason::Mirror);
    }
    if rules.keep_empty_dir && !finished && object.spec.has_empty_dir() {
        return Some(StayReason::EmptyDir);
    }
    (rules.keep_unmanaged && !finished && controller(object).is_none()).then_some(StayReason::Unmanaged)
}

fn controller(object: &TrimmedPod) -> Option<&OwnerReference> {
    object.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

/// The owner reference decides, even if the `DaemonSet` itself was deleted without its pods. A `DaemonSet` of another API group, such as
/// `OpenKruise`'s, replaces its pods on the same node as well.
fn is_daemon(object: &TrimmedPod) -> bool {
    let is_marked = |annotations: &BTreeMap<String, String>| {
        annotations.get(DAEMON_ANNOTATION).is_some_and(|value| value == "true")
    };
    controller(object).is_some_and(|owner| owner.kind == "DaemonSet")
        || object.metadata.annotations.as_ref().is_some_and(is_marked)
}

fn is_own(object: &TrimmedPod, rules: &SelectionRules) -> bool {
    rules.own_pod.as_ref().is_some_and(|(namespace, name)| {
        object.metadata.namespace.as_ref() == Some(namespace) && object.metadata.name.as_ref() == Some(name)
    })
}

fn departure(object: TrimmedPod, rules: &SelectionRules) -> Option<Departure> {
    let priority = object.spec.priority.unwrap_or_default();
    let tier = if is_daemon(&object) { Tier::Daemon } else { rules.tiers.of(priority) };
    let protection = protection(&object, rules);
    let owner = controller(&object).map(|owner| owner.uid.as_str().into());
    let is_replica =
        |owner: &&OwnerReference| rules.surges && owner.kind == "ReplicaSet" && owner.api_version.starts_with("apps/");
    let replica_set = controller(&object).filter(is_replica).map(|owner| owner.name.as_str().into());
    let tolerates_cordon = object.spec.tolerates_cordon();
    let pod = PodId {
        namespace: object.metadata.namespace?.into(),
        name: object.metadata.name?.into(),
        uid: object.metadata.uid?.into(),
    };
    let ends = object.metadata.deletion_timestamp.map(|at| at.0);
    let (grace, ready) = (object.spec.termination_grace_period_seconds, object.status.ready);
    let runs = object.status.has_running_containers();
    let given = SignedDuration::from_secs(object.metadata.deletion_grace_period_seconds.unwrap_or_default());
    let deleted = ends.map(|ends| ends.checked_sub(given).unwrap_or(ends));
    Some(Departure { pod, grace, tier, ready, protection, deleted, ends, runs, owner, replica_set, tolerates_cordon })
}

/// Returns the pod's protection, if it asks not to be disturbed.
pub(super) fn protection<P>(object: &Trimmed<P, Status>, rules: &SelectionRules) -> Option<Protection> {
    let annotations = object.metadata.annotations.as_ref()?;
    let is = |key: &str, wanted: &str| annotations.get(key).is_some_and(|value| value == wanted);
    let unlimited = |annotation| Some(Protection { annotation, ends: None });
    if is(IGNORE_ANNOTATION, "true") {
        return unlimited(IGNORE_ANNOTATION);
    }
    if !rules.respect_do_not_disrupt {
        return None;
    }
    if is(KARPENTER_ANNOTATION, "true") {
        return unlimited(KARPENTER_ANNOTATION);
    }
    if is(AUTOSCALER_ANNOTATION, "false") {
        return unlimited(AUTOSCALER_ANNOTATION);
    }
    let length = humantime::parse_duration(annotations.get(KARPENTER_ANNOTATION)?).ok()?;
    // Without a start time, the pod's protection has not started.
    let ends = object.status.start_time.as_ref().and_then(|start| start.0.checked_add(length).ok());
    Some(Protection { annotation: KARPENTER_ANNOTATION, ends })
}

#[cfg(test)]
mod tests;
