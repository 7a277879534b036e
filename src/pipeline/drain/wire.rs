//! A pod, trimmed to the fields that Ebbtide uses.

use crate::clients::trimmed::Trimmed;
use crate::fact::PodRef;
use k8s_openapi::api::core::v1::Pod as FullPod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{ApiResource, ListParams};
use kube::{Api, Client};
use serde::Deserialize;
use std::fmt;
use std::sync::Arc;

/// A pod on the wire. Fields that Ebbtide does not use are skipped while parsing.
pub type TrimmedPod = Trimmed<Spec, Status>;

/// Returns a client for pods of all namespaces that parses only the fields that Ebbtide uses.
#[must_use]
pub fn pod_api(client: Client) -> Api<TrimmedPod> {
    Api::all_with(client, &pod_resource())
}

/// Returns the parameters that list the pods of a node which the label `selector` selects; all pods without one.
#[must_use]
pub fn pods_of(node: &str, selector: Option<&str>) -> ListParams {
    let mut of_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
    of_node.label_selector = selector.map(str::to_owned);
    of_node
}

/// Returns the API resource of pods.
pub(super) fn pod_resource() -> ApiResource {
    ApiResource::erase::<FullPod>(&())
}

/// The used fields of a pod's spec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    #[serde(default)]
    pub(super) termination_grace_period_seconds: Option<i64>,
    #[serde(default)]
    pub(super) priority: Option<i32>,
    #[serde(default)]
    volumes: Vec<Volume>,
}

impl Spec {
    pub(super) fn has_empty_dir(&self) -> bool {
        self.volumes.iter().any(|volume| volume.empty_dir.is_some())
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Volume {
    #[serde(default)]
    empty_dir: Option<EmptyDir>,
}

#[derive(Clone, Debug, Deserialize)]
struct EmptyDir {}

/// The used fields of a pod's status.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    #[serde(default)]
    pub(super) phase: String,
    #[serde(default)]
    pub(super) start_time: Option<Time>,
}

/// The identity of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodId {
    /// Namespace.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
    /// UID. A pod that replaces another of the same name has another UID.
    pub uid: Arc<str>,
}

impl PodId {
    /// Returns the pod's identity for facts.
    #[must_use]
    pub fn named(&self) -> PodRef<'_> {
        PodRef { namespace: &self.namespace, name: &self.name, uid: &self.uid }
    }
}

impl fmt::Display for PodId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.named().fmt(f)
    }
}
