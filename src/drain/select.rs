//! Which pods of a node go. Pure; as `kubectl drain` selects with its usual switches (`--ignore-daemonsets`,
//! `--delete-emptydir-data`, `--force`).

use k8s_openapi::api::core::v1::Pod as FullPod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ApiResource, Object};
use kube::{Api, Client};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// The annotation of a static pod's mirror: the kubelet runs the pod whatever the API says.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// What is read of a Pod on the wire; all else is skipped while parsing.
pub type TrimmedPod = Object<Spec, Status>;

/// A client for pods of all namespaces that reads only what is used.
#[must_use]
pub fn pod_api(client: Client) -> Api<TrimmedPod> {
    Api::all_with(client, &ApiResource::erase::<FullPod>(&()))
}

/// The part of a pod's spec that is used.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    #[serde(default)]
    termination_grace_period_seconds: Option<i64>,
}

/// The part of a pod's status that is used.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Status {
    #[serde(default)]
    phase: String,
}

/// A pod that goes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pod {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// Its UID: a pod of the same name that replaces it is another one.
    pub uid: Arc<str>,
    /// Its grace period in seconds, where it has one of its own.
    pub grace: Option<i64>,
}

impl fmt::Display for Pod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Why a pod stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stays {
    /// A DaemonSet would put it back at once.
    DaemonSet,
    /// It is a static pod.
    Mirror,
    /// It is Ebbtide itself, which goes last: with it, this drain would go.
    Ourselves,
}

/// What becomes of the pods of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// To be evicted, and waited for.
    pub evict: Vec<Pod>,
    /// On their way already: to be waited for.
    pub going: Vec<Pod>,
    /// To be evicted without waiting: their containers have ended.
    pub finished: Vec<Pod>,
    /// Left alone.
    pub stay: Vec<(Pod, Stays)>,
}

impl Selection {
    /// Whether nothing is left that a drain waits for.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.evict.is_empty() && self.going.is_empty()
    }
}

/// Sorts a node's pods. `own` is the namespace and name of the pod that this process runs in.
#[must_use]
pub fn select(pods: impl IntoIterator<Item = TrimmedPod>, own: Option<&(String, String)>) -> Selection {
    let mut selection = Selection::default();
    for object in pods {
        let going = object.metadata.deletion_timestamp.is_some();
        let finished = matches!(object.status.as_ref().map(|s| s.phase.as_str()), Some("Succeeded" | "Failed"));
        let stays = stays(&object, own);
        // A pod without a name or a UID can't come from an API server.
        let Some(pod) = pod(object) else { continue };
        match stays {
            Some(why) => selection.stay.push((pod, why)),
            None if going => selection.going.push(pod),
            None if finished => selection.finished.push(pod),
            None => selection.evict.push(pod),
        }
    }
    selection
}

fn stays(object: &TrimmedPod, own: Option<&(String, String)>) -> Option<Stays> {
    let meta = &object.metadata;
    let controller = |owner: &&OwnerReference| owner.controller == Some(true);
    let owner = meta.owner_references.iter().flatten().find(controller);
    if meta.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(MIRROR)) {
        return Some(Stays::Mirror);
    }
    // The reference is enough: a DaemonSet that was deleted without its pods is an orphanage, which a drain need not judge.
    if owner.is_some_and(|owner| owner.kind == "DaemonSet" && owner.api_version.starts_with("apps/")) {
        return Some(Stays::DaemonSet);
    }
    let named = own.is_some_and(|(namespace, name)| {
        meta.namespace.as_deref() == Some(namespace) && meta.name.as_deref() == Some(name)
    });
    named.then_some(Stays::Ourselves)
}

fn pod(object: TrimmedPod) -> Option<Pod> {
    Some(Pod {
        namespace: object.metadata.namespace?.into(),
        name: object.metadata.name?.into(),
        uid: object.metadata.uid?.into(),
        grace: object.spec.termination_grace_period_seconds,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn names(pods: &[Pod]) -> Vec<&str> {
        pods.iter().map(|pod| &*pod.name).collect()
    }

    fn object(name: &str, metadata: Value, phase: &str) -> TrimmedPod {
        let mut all = json!({ "namespace": "default", "name": name, "uid": format!("uid-{name}") });
        let Value::Object(metadata) = metadata else { panic!("metadata is an object") };
        all.as_object_mut().unwrap().extend(metadata);
        let spec = json!({ "terminationGracePeriodSeconds": 30, "containers": [] });
        serde_json::from_value(json!({ "metadata": all, "spec": spec, "status": { "phase": phase } })).unwrap()
    }

    fn owned(kind: &str, api: &str) -> Value {
        json!({ "ownerReferences": [{ "apiVersion": api, "kind": kind, "name": "x", "uid": "o", "controller": true }] })
    }

    #[test]
    fn each_sort_of_pod_has_its_place() {
        let own = ("default".to_owned(), "ebbtide-1".to_owned());
        let pods = [
            object("web", owned("ReplicaSet", "apps/v1"), "Running"),
            object("bare", json!({}), "Pending"),
            object("agent", owned("DaemonSet", "apps/v1"), "Running"),
            object("custom", owned("DaemonSet", "example.com/v1"), "Running"),
            object("static", json!({ "annotations": { MIRROR: "hash" } }), "Running"),
            object("leaving", json!({ "deletionTimestamp": "2026-11-21T12:00:00Z" }), "Running"),
            object("job", owned("Job", "batch/v1"), "Succeeded"),
            object("crashed", json!({}), "Failed"),
            object("ebbtide-1", json!({}), "Running"),
        ];
        let selection = select(pods, Some(&own));
        assert_eq!(names(&selection.evict), ["web", "bare", "custom"]);
        assert_eq!(names(&selection.going), ["leaving"]);
        assert_eq!(names(&selection.finished), ["job", "crashed"]);
        let stay: Vec<_> = selection.stay.iter().map(|(pod, why)| (&*pod.name, *why)).collect();
        assert_eq!(stay, [("agent", Stays::DaemonSet), ("static", Stays::Mirror), ("ebbtide-1", Stays::Ourselves)]);
        assert_eq!(selection.evict[0].grace, Some(30));
        assert!(!selection.is_drained());
    }

    #[test]
    fn what_only_stays_or_has_finished_is_drained() {
        let pods = [object("agent", owned("DaemonSet", "apps/v1"), "Running"), object("job", json!({}), "Succeeded")];
        assert!(select(pods, None).is_drained());
    }
}
