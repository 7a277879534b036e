//! Which pods of a node go. Pure; as `kubectl drain` selects with its usual switches (`--ignore-daemonsets`,
//! `--delete-emptydir-data`, `--force`).

use super::grace::Grace;
use crate::clients::trimmed::Trimmed;
use crate::fact::OnPod;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod as FullPod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ApiResource, ListParams};
use kube::{Api, Client};
use serde::Deserialize;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The annotation of a static pod's mirror: the kubelet runs the pod whatever the API says.
pub const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// The priority of `system-cluster-critical`, the lower of the two built-in classes.
const CRITICAL: i32 = 2_000_000_000;

/// Annotations by which a pod asks not to be disturbed: ours always counts, the others where the user says so.
const PEACE: [(&str, &str); 3] = [
    ("ebbtide/ignore", "true"),
    ("karpenter.sh/do-not-disrupt", "true"),
    ("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"),
];

/// What is read of a Pod on the wire; all else is skipped while parsing.
pub type TrimmedPod = Trimmed<Spec, Status>;

/// A client for pods of all namespaces that reads only what is used.
#[must_use]
pub fn pod_api(client: Client) -> Api<TrimmedPod> {
    Api::all_with(client, &pod_resource())
}

/// Asks for the pods of a node that `selector` chooses: all, without one.
#[must_use]
pub fn pods_of(node: &str, selector: Option<&str>) -> ListParams {
    let mut of_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
    of_node.label_selector = selector.map(str::to_owned);
    of_node
}

/// What kube needs to know about pods.
#[must_use]
pub(super) fn pod_resource() -> ApiResource {
    ApiResource::erase::<FullPod>(&())
}

/// The part of a pod's spec that is used.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    #[serde(default)]
    termination_grace_period_seconds: Option<i64>,
    #[serde(default)]
    priority: Option<i32>,
    #[serde(default)]
    volumes: Vec<Volume>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Volume {
    #[serde(default)]
    empty_dir: Option<EmptyDir>,
}

#[derive(Clone, Debug, Deserialize)]
struct EmptyDir {}

/// The part of a pod's status that is used.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Status {
    #[serde(default)]
    phase: String,
}

/// A pod's identity.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pod {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// Its UID: a pod of the same name that replaces it is another one.
    pub uid: Arc<str>,
}

impl Pod {
    /// As facts name it.
    #[must_use]
    pub fn named(&self) -> OnPod<'_> {
        OnPod { namespace: &self.namespace, name: &self.name, uid: &self.uid }
    }
}

impl fmt::Display for Pod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.named().fmt(f)
    }
}

/// Pods go in this order; a tier waits for those before it, but no longer than its share of the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// Most pods.
    Ordinary,
    /// Pods that others stand on: with the priority of `system-cluster-critical` or above.
    Critical,
    /// Pods of DaemonSets, which serve all the others: logs, networks, volumes.
    Daemon,
}

impl Tier {
    /// Every tier, in order.
    pub const ALL: [Self; 3] = [Self::Ordinary, Self::Critical, Self::Daemon];

    /// A fixed word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ordinary => "ordinary",
            Self::Critical => "critical",
            Self::Daemon => "daemon",
        }
    }
}

/// A pod that goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaver {
    /// Which.
    pub pod: Pod,
    /// Its own grace period in seconds, where it has one.
    pub grace: Option<i64>,
    /// When its turn is.
    pub tier: Tier,
    /// The annotation that asks not to disturb it.
    pub peace: Option<&'static str>,
    /// When its end is due, where it is on its way.
    pub ends: Option<Timestamp>,
}

impl Leaver {
    /// How long its end takes, where every pod is given `wanted` if that is something.
    #[must_use]
    pub const fn grace_with(&self, wanted: Option<Duration>) -> Grace {
        Grace { wanted, own: self.grace }
    }
}

/// Why a pod stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stays {
    /// A DaemonSet would put it back at once.
    DaemonSet,
    /// It is a static pod.
    Mirror,
    /// It has data in an emptyDir, and the settings say to keep those.
    EmptyDir,
    /// It has no controller that would make another, and the settings say to keep those.
    Unmanaged,
}

/// Which pods go, as the user decided: by default what `kubectl drain --ignore-daemonsets --delete-emptydir-data --force` evicts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct Choice {
    /// Pods of DaemonSets go, too, last.
    pub evict_daemonsets: bool,
    /// Pods with an emptyDir stay.
    pub keep_empty_dir: bool,
    /// Pods without a controller stay.
    pub keep_unmanaged: bool,
    /// The annotations of Karpenter and the Cluster Autoscaler that ask not to disturb a pod are heeded.
    pub respect_do_not_disrupt: bool,
    /// Namespace and name of the pod that this process runs in.
    pub own_pod: Option<(String, String)>,
}

/// What becomes of the pods of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// To be evicted, and waited for.
    pub evict: Vec<Leaver>,
    /// On their way already: to be waited for.
    pub going: Vec<Leaver>,
    /// To be evicted without waiting: their containers have ended.
    pub finished: Vec<Leaver>,
    /// Left alone.
    pub stay: Vec<(Pod, Stays)>,
    /// The pod that this process runs in, which goes when all others have gone.
    pub ourselves: Option<Leaver>,
}

impl Selection {
    /// Whether nothing is left that a drain waits for, but perhaps ourselves.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.evict.is_empty() && self.going.is_empty()
    }

    /// Leaves alone the pods of DaemonSets that are not `known`: a DaemonSet puts back what is evicted, and that once is enough.
    pub fn keep_new_daemons(&mut self, known: &HashSet<Arc<str>>) {
        let new = |leaver: &mut Leaver| leaver.tier == Tier::Daemon && !known.contains(&leaver.pod.uid);
        let new: Vec<_> = self.evict.extract_if(.., new).map(|leaver| (leaver.pod, Stays::DaemonSet)).collect();
        self.stay.extend(new);
    }
}

/// Sorts a node's pods.
#[must_use]
pub fn select(pods: impl IntoIterator<Item = TrimmedPod>, choice: &Choice) -> Selection {
    let mut selection = Selection::default();
    for object in pods {
        let going = object.metadata.deletion_timestamp.is_some();
        let finished = finished(&object);
        let ourselves = is_ours(&object, choice);
        let stays = stays(&object, choice);
        // A pod without a name or a UID can't come from an API server.
        let Some(leaver) = leaver(object, choice) else { continue };
        match stays {
            Some(why) => selection.stay.push((leaver.pod, why)),
            None if going => selection.going.push(leaver),
            None if finished => selection.finished.push(leaver),
            None if ourselves => selection.ourselves = Some(leaver),
            None => selection.evict.push(leaver),
        }
    }
    selection
}

/// The filters of `kubectl drain`, in its order.
fn stays(object: &TrimmedPod, choice: &Choice) -> Option<Stays> {
    let meta = &object.metadata;
    let finished = finished(object);
    if is_daemon(object) && !finished && !choice.evict_daemonsets {
        return Some(Stays::DaemonSet);
    }
    if meta.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(MIRROR_ANNOTATION)) {
        return Some(Stays::Mirror);
    }
    if choice.keep_empty_dir && !finished && object.spec.volumes.iter().any(|volume| volume.empty_dir.is_some()) {
        return Some(Stays::EmptyDir);
    }
    (choice.keep_unmanaged && !finished && controller(object).is_none()).then_some(Stays::Unmanaged)
}

fn finished(object: &TrimmedPod) -> bool {
    matches!(object.status.phase.as_str(), "Succeeded" | "Failed")
}

fn controller(object: &TrimmedPod) -> Option<&OwnerReference> {
    object.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

/// The reference is enough: a DaemonSet that was deleted without its pods is an orphanage, which a drain need not judge.
fn is_daemon(object: &TrimmedPod) -> bool {
    controller(object).is_some_and(|owner| owner.kind == "DaemonSet" && owner.api_version.starts_with("apps/"))
}

fn is_ours(object: &TrimmedPod, choice: &Choice) -> bool {
    choice.own_pod.as_ref().is_some_and(|(namespace, name)| {
        object.metadata.namespace.as_ref() == Some(namespace) && object.metadata.name.as_ref() == Some(name)
    })
}

fn leaver(object: TrimmedPod, choice: &Choice) -> Option<Leaver> {
    let tier = match object.spec.priority {
        _ if is_daemon(&object) => Tier::Daemon,
        Some(priority) if priority >= CRITICAL => Tier::Critical,
        _ => Tier::Ordinary,
    };
    let peace = peace(&object, choice);
    let pod = Pod {
        namespace: object.metadata.namespace?.into(),
        name: object.metadata.name?.into(),
        uid: object.metadata.uid?.into(),
    };
    let ends = object.metadata.deletion_timestamp.map(|at| at.0);
    Some(Leaver { pod, grace: object.spec.termination_grace_period_seconds, tier, peace, ends })
}

fn peace(object: &TrimmedPod, choice: &Choice) -> Option<&'static str> {
    let annotations = object.metadata.annotations.as_ref()?;
    let heeded = if choice.respect_do_not_disrupt { &PEACE[..] } else { &PEACE[..1] };
    let asks = |(key, value): &&(&'static str, &str)| annotations.get(*key).is_some_and(|found| found == value);
    heeded.iter().find(asks).map(|(key, _)| *key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn names(pods: &[Leaver]) -> Vec<&str> {
        pods.iter().map(|leaver| &*leaver.pod.name).collect()
    }

    fn stay(selection: &Selection) -> Vec<(&str, Stays)> {
        selection.stay.iter().map(|(pod, why)| (&*pod.name, *why)).collect()
    }

    fn object(name: &str, metadata: Value, phase: &str) -> TrimmedPod {
        with(name, metadata, phase, json!({}))
    }

    fn with(name: &str, metadata: Value, phase: &str, spec: Value) -> TrimmedPod {
        let mut all = json!({ "namespace": "default", "name": name, "uid": format!("uid-{name}") });
        let Value::Object(metadata) = metadata else { panic!("metadata is an object") };
        all.as_object_mut().unwrap().extend(metadata);
        let mut full = json!({ "terminationGracePeriodSeconds": 30, "containers": [] });
        let Value::Object(spec) = spec else { panic!("a spec is an object") };
        full.as_object_mut().unwrap().extend(spec);
        serde_json::from_value(json!({ "metadata": all, "spec": full, "status": { "phase": phase } })).unwrap()
    }

    fn owned(kind: &str, api: &str) -> Value {
        json!({ "ownerReferences": [{ "apiVersion": api, "kind": kind, "name": "x", "uid": "o", "controller": true }] })
    }

    fn all_sorts() -> Vec<TrimmedPod> {
        let scratch = json!({ "volumes": [{ "name": "config", "configMap": {} }, { "name": "tmp", "emptyDir": {} }] });
        vec![
            object("web", owned("ReplicaSet", "apps/v1"), "Running"),
            object("bare", json!({}), "Pending"),
            with("scratch", owned("StatefulSet", "apps/v1"), "Running", scratch.clone()),
            object("agent", owned("DaemonSet", "apps/v1"), "Running"),
            object("agent-crashed", owned("DaemonSet", "apps/v1"), "Failed"),
            object("custom", owned("DaemonSet", "example.com/v1"), "Running"),
            object("static", json!({ "annotations": { MIRROR_ANNOTATION: "hash" } }), "Running"),
            object("leaving", json!({ "deletionTimestamp": "2026-11-21T12:00:00Z" }), "Running"),
            object("job", owned("Job", "batch/v1"), "Succeeded"),
            with("crashed", json!({}), "Failed", scratch),
            object("ebbtide-1", json!({}), "Running"),
        ]
    }

    #[test]
    fn each_sort_of_pod_has_its_place() {
        let own_pod = Some(("default".to_owned(), "ebbtide-1".to_owned()));
        let selection = select(all_sorts(), &Choice { own_pod, ..Choice::default() });
        assert_eq!(names(&selection.evict), ["web", "bare", "scratch", "custom"]);
        assert_eq!(names(&selection.going), ["leaving"]);
        assert_eq!(names(&selection.finished), ["agent-crashed", "job", "crashed"]);
        assert_eq!(stay(&selection), [("agent", Stays::DaemonSet), ("static", Stays::Mirror)]);
        assert_eq!(selection.ourselves.as_ref().map(|leaver| &*leaver.pod.name), Some("ebbtide-1"));
        assert_eq!(selection.evict[0].grace, Some(30));
        assert_eq!(selection.going[0].ends, "2026-11-21T12:00:00Z".parse().ok());
        assert!(!selection.is_drained());
    }

    #[test]
    fn what_is_to_be_kept_stays() {
        let keep = Choice { keep_empty_dir: true, keep_unmanaged: true, ..Choice::default() };
        let selection = select(all_sorts(), &keep);
        assert_eq!(names(&selection.evict), ["web", "custom"]);
        assert_eq!(names(&selection.finished), ["agent-crashed", "job", "crashed"]);
        let expected = [
            ("bare", Stays::Unmanaged),
            ("scratch", Stays::EmptyDir),
            ("agent", Stays::DaemonSet),
            ("static", Stays::Mirror),
            ("leaving", Stays::Unmanaged),
            ("ebbtide-1", Stays::Unmanaged),
        ];
        assert_eq!(stay(&selection), expected);
    }

    #[test]
    fn tiers_by_priority_and_daemonsets_last_and_once() {
        let pods = [
            with("dns", json!({}), "Running", json!({ "priority": 2_000_000_000 })),
            with("proxy", owned("DaemonSet", "apps/v1"), "Running", json!({ "priority": 2_000_001_000 })),
            with("web", json!({}), "Running", json!({ "priority": 1_999_999_999 })),
        ];
        let mut selection = select(pods, &Choice { evict_daemonsets: true, ..Choice::default() });
        let tiers: Vec<_> = selection.evict.iter().map(|leaver| (&*leaver.pod.name, leaver.tier)).collect();
        assert_eq!(tiers, [("dns", Tier::Critical), ("proxy", Tier::Daemon), ("web", Tier::Ordinary)]);
        selection.keep_new_daemons(&HashSet::from(["uid-proxy".into()]));
        assert_eq!(selection.evict.len(), 3);
        selection.keep_new_daemons(&HashSet::new());
        assert_eq!(stay(&selection), [("proxy", Stays::DaemonSet)]);
    }

    #[test]
    fn annotations_ask_for_peace() {
        let annotated =
            |name, key: &str, value: &str| object(name, json!({ "annotations": { key: value } }), "Running");
        let pods = || {
            [
                annotated("ours", "ebbtide/ignore", "true"),
                annotated("not", "ebbtide/ignore", "false"),
                annotated("karpenter", "karpenter.sh/do-not-disrupt", "true"),
                annotated("autoscaler", "cluster-autoscaler.kubernetes.io/safe-to-evict", "false"),
            ]
        };
        let peace = |respect_do_not_disrupt| {
            let selection = select(pods(), &Choice { respect_do_not_disrupt, ..Choice::default() });
            selection.evict.iter().map(|leaver| leaver.peace.is_some()).collect::<Vec<_>>()
        };
        assert_eq!(peace(false), [true, false, false, false]);
        assert_eq!(peace(true), [true, false, true, true]);
    }

    #[test]
    fn what_only_stays_or_has_finished_is_drained() {
        let pods = [object("agent", owned("DaemonSet", "apps/v1"), "Running"), object("job", json!({}), "Succeeded")];
        assert!(select(pods, &Choice::default()).is_drained());
    }
}
