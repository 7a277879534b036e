//! A pod, trimmed to the fields that Ebbtide uses.

use crate::clients::trimmed::Trimmed;
use crate::fact::PodRef;
use k8s_openapi::api::core::v1::Pod as FullPod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{ApiResource, ListParams};
use kube::{Api, Client};
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// The taint that follows a cordon. The scheduler treats both alike.
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

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
    tolerations: Vec<Toleration>,
    #[serde(default)]
    volumes: Vec<Volume>,
}

#[derive(Clone, Debug, Deserialize)]
struct Toleration {
    /// None tolerates every key.
    #[serde(default)]
    key: Option<Box<str>>,
    /// None tolerates every effect.
    #[serde(default)]
    effect: Option<Box<str>>,
}

impl Toleration {
    /// Whether it tolerates the taint of a cordon, which has no value.
    fn is_of_cordon(&self) -> bool {
        self.key.as_deref().is_none_or(|key| key.is_empty() || key == UNSCHEDULABLE)
            && self.effect.as_deref().is_none_or(|effect| effect.is_empty() || effect == "NoSchedule")
    }
}

impl Spec {
    /// Returns the names of the claims that the pod `name` uses. A volume that is made for the pod has a claim named after both.
    fn claims(&self, name: &str) -> impl Iterator<Item = String> {
        self.volumes.iter().filter_map(move |volume| {
            let claim = volume.persistent_volume_claim.as_ref().map(|claim| claim.claim_name.clone());
            claim.or_else(|| volume.ephemeral.as_ref().map(|_| format!("{name}-{}", volume.name)))
        })
    }

    /// Whether the pod registers plugins with the kubelet, as the node part of a CSI driver does.
    pub(super) fn registers_plugins(&self) -> bool {
        let paths = self.volumes.iter().filter_map(|volume| volume.host_path.as_ref());
        paths.map(|host| host.path.trim_end_matches('/')).any(|path| path.ends_with("/plugins_registry"))
    }

    /// Whether the scheduler may bind the pod to a cordoned Node.
    pub(super) fn tolerates_cordon(&self) -> bool {
        self.tolerations.iter().any(Toleration::is_of_cordon)
    }

    pub(super) fn has_empty_dir(&self) -> bool {
        self.volumes.iter().any(|volume| volume.empty_dir.is_some())
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Volume {
    #[serde(default)]
    name: String,
    #[serde(default)]
    empty_dir: Option<Present>,
    #[serde(default)]
    persistent_volume_claim: Option<Claim>,
    #[serde(default)]
    ephemeral: Option<Present>,
    #[serde(default)]
    host_path: Option<HostPath>,
}

#[derive(Clone, Debug, Deserialize)]
struct HostPath {
    path: String,
}

/// An object whose fields are not used.
#[derive(Clone, Debug, Deserialize)]
struct Present {}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Claim {
    claim_name: String,
}

impl TrimmedPod {
    /// Returns namespace and name of the claims that the pod uses.
    #[must_use]
    pub fn claims(&self) -> Vec<(String, String)> {
        let (Some(namespace), Some(name)) = (&self.metadata.namespace, &self.metadata.name) else { return Vec::new() };
        self.spec.claims(name).map(|claim| (namespace.clone(), claim)).collect()
    }

    /// Returns the pod's addresses.
    pub(super) fn addresses(&self) -> impl Iterator<Item = &str> {
        self.status.pod_ips.iter().map(|address| &*address.ip)
    }

    /// Returns whether the pod's containers have ended for good.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }
}

/// The used fields of a pod's status.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    #[serde(default)]
    pub(super) phase: String,
    #[serde(default)]
    pub(super) start_time: Option<Time>,
    /// Whether the pod's condition Ready is true.
    #[serde(default, rename = "conditions", deserialize_with = "is_ready")]
    pub(super) ready: bool,
    /// One of each family.
    #[serde(default, rename = "podIPs")]
    pod_ips: Vec<PodAddress>,
    #[serde(default)]
    container_statuses: Vec<ContainerStatus>,
    #[serde(default)]
    init_container_statuses: Vec<ContainerStatus>,
}

impl Status {
    /// Returns whether containers still run, as far as the kubelet has reported it.
    pub(super) fn has_running_containers(&self) -> bool {
        let mut reported = self.container_statuses.iter().chain(&self.init_container_statuses).peekable();
        if reported.peek().is_none() {
            self.phase == "Running"
        } else {
            reported.any(|container| container.state.running)
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
struct ContainerStatus {
    #[serde(default)]
    state: ContainerState,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct ContainerState {
    /// Whether the container runs.
    #[serde(default, deserialize_with = "is_present")]
    running: bool,
}

fn is_present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(Option::<IgnoredAny>::deserialize(deserializer)?.is_some())
}

#[derive(Deserialize)]
struct Condition {
    r#type: String,
    status: String,
}

fn is_ready<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    let conditions = Option::<Vec<Condition>>::deserialize(deserializer)?.unwrap_or_default();
    Ok(conditions.iter().any(|found| found.r#type == "Ready" && found.status == "True"))
}

#[derive(Clone, Debug, Deserialize)]
struct PodAddress {
    #[serde(default)]
    ip: Box<str>,
}

/// Addresses of pods, with the namespace of each.
pub type PodAddresses = BTreeSet<(Arc<str>, Box<str>)>;

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
