//! Reads of a pod's Deployment, and of its ready pods.

use super::deployment::{Deployment, ReadyPod, ReadyPods, Step, deployment_resource};
use crate::clients::gate::{Call, Category, Class, Gate, KubeError};
use crate::clients::trimmed::Trimmed;
use crate::pipeline::drain::select::{Departure, SelectionRules, protection};
use crate::pipeline::drain::wire::{Status, pod_resource};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::ReplicaSet as FullReplicaSet;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ApiResource, ListParams};
use kube::core::Selector;
use kube::{Api, Client};
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::time::Instant;

/// A `ReplicaSet` on the wire: only its metadata are used.
type ReplicaSet = Trimmed<IgnoredAny, IgnoredAny>;

/// A pod on the wire, with its node.
type PlacedPod = Trimmed<Placement, Status>;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Placement {
    #[serde(default)]
    node_name: Box<str>,
}

/// The reason why there is no Deployment to read.
#[derive(Debug)]
pub(super) enum Unread {
    /// The `ReplicaSet` has none, or one of them is gone.
    None,
    /// A call failed.
    Failed(KubeError),
}

impl From<KubeError> for Unread {
    fn from(error: KubeError) -> Self {
        if error.category == Category::NotFound { Self::None } else { Self::Failed(error) }
    }
}

/// Reads the Deployment of one pod.
pub struct DeploymentReader<'a> {
    /// Client of the API server.
    pub client: &'a Client,
    /// Limits calls to the API server.
    pub gate: &'a Gate,
    /// The pod.
    pub departure: &'a Departure,
    /// Which pods ask not to be disturbed.
    pub rules: &'a SelectionRules,
    /// Deadline of a call.
    pub by: Instant,
}

/// What would be done for a pod before its eviction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Foreseen {
    /// Its Deployment, with this name, would be restarted.
    Restart(String),
    /// A new pod of this Deployment is on its way, and would be waited for.
    Wait(String),
    /// It is the only ready pod of this Deployment, which has no room for a new one; why.
    NoRoom(String, &'static str),
}

impl DeploymentReader<'_> {
    /// Returns what would be done for the pod before its eviction at `now`, if anything. `is_drained`: whether the node with this name is being
    /// drained.
    ///
    /// # Errors
    /// The API server's answer, or none.
    pub async fn foresee(
        &self,
        is_drained: impl Fn(&str) -> bool,
        now: Timestamp,
    ) -> Result<Option<Foreseen>, KubeError> {
        let foresee = async {
            let deployment = self.deployment(None).await?;
            let pods = if deployment.needs_list(false) {
                ReadyPods::of(&self.ready_pods(&deployment).await?, is_drained, now)
            } else {
                ReadyPods::Unlisted
            };
            let name = deployment.metadata.name.clone().unwrap_or_default();
            Ok(match deployment.next(pods, false, false, now) {
                Step::Restart => Some(Foreseen::Restart(name)),
                Step::Wait => Some(Foreseen::Wait(name)),
                Step::Impossible(why) => Some(Foreseen::NoRoom(name, why)),
                Step::NotNeeded | Step::Ready => None,
            })
        };
        match foresee.await {
            Ok(foreseen) => Ok(foreseen),
            Err(Unread::None) => Ok(None),
            Err(Unread::Failed(error)) => Err(error),
        }
    }

    /// Reads the Deployment: again, if it is `known`, and otherwise the one that owns the pod's `ReplicaSet`.
    pub(super) async fn deployment(&self, known: Option<&Deployment>) -> Result<Deployment, Unread> {
        let owner = if let Some(known) = known {
            known.metadata.name.clone().zip(known.metadata.uid.clone())
        } else {
            let name = self.departure.replica_set.as_deref().ok_or(Unread::None)?;
            let resource = ApiResource::erase::<FullReplicaSet>(&());
            let api: Api<ReplicaSet> = Api::namespaced_with(self.client.clone(), self.namespace(), &resource);
            let found = self.call("get", "replicasets", name, || api.get(name)).await?;
            let is_this = found.metadata.uid.as_deref() == self.departure.owner.as_deref();
            deployment_of(found.metadata.owner_references.as_deref()).filter(|_| is_this)
        };
        let (name, uid) = owner.ok_or(Unread::None)?;
        let api = self.api();
        let found = self.call("get", "deployments", &name, || api.get(&name)).await?;
        if found.metadata.uid.as_ref() == Some(&uid) { Ok(found) } else { Err(Unread::None) }
    }

    /// Returns the Deployment's ready pods.
    pub(super) async fn ready_pods(&self, deployment: &Deployment) -> Result<Vec<ReadyPod>, Unread> {
        let selector = Selector::try_from(deployment.spec.selector.clone()).map_err(|_| Unread::None)?;
        let api: Api<PlacedPod> = Api::namespaced_with(self.client.clone(), self.namespace(), &pod_resource());
        let params = ListParams::default().labels_from(&selector).match_any();
        let pods = self.call("list", "pods", self.namespace(), || api.list(&params)).await?;
        let counts = |pod: &PlacedPod| {
            let owners = pod.metadata.owner_references.as_deref().unwrap_or_default();
            pod.status.ready
                && pod.metadata.deletion_timestamp.is_none()
                && owners.iter().any(|owner| owner.controller == Some(true) && owner.kind == "ReplicaSet")
        };
        let ready = |pod: PlacedPod| {
            let protection = protection(&pod, self.rules);
            ReadyPod { node: pod.spec.node_name, protection }
        };
        Ok(pods.items.into_iter().filter(counts).map(ready).collect())
    }

    pub(super) fn api(&self) -> Api<Deployment> {
        Api::namespaced_with(self.client.clone(), self.namespace(), &deployment_resource())
    }

    pub(super) fn namespace(&self) -> &str {
        &self.departure.pod.namespace
    }

    /// Makes a call, in the order of evictions: after cordons, so that new pods do not start on the next node.
    pub(super) async fn call<T, F>(
        &self,
        verb: &'static str,
        resource: &'static str,
        subject: &str,
        request: impl FnOnce() -> F,
    ) -> Result<T, KubeError>
    where
        F: Future<Output = Result<T, kube::Error>>,
    {
        self.gate.kube(Call { verb, resource, subject }, Class::Evict, self.by, request).await
    }
}

/// Returns name and UID of the Deployment among the owners of a `ReplicaSet`.
fn deployment_of(owners: Option<&[OwnerReference]>) -> Option<(String, String)> {
    let is_it = |owner: &&OwnerReference| {
        owner.controller == Some(true) && owner.kind == "Deployment" && owner.api_version.starts_with("apps/")
    };
    owners.unwrap_or_default().iter().find(is_it).map(|owner| (owner.name.clone(), owner.uid.clone()))
}
