//! A Deployment, and what a surge does next for its pods. Pure.

use crate::clients::trimmed::Trimmed;
use crate::pipeline::drain::select::Protection;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::Deployment as FullDeployment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::ApiResource;
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::collections::BTreeMap;

/// The annotation of a pod template that restarts its Deployment, as `kubectl rollout restart` sets it: the time, in whole seconds.
pub(super) const RESTART_ANNOTATION: &str = "kubectl.kubernetes.io/restartedAt";

/// Maximum number of ready pods of a Deployment that is surged. More are seldom all on nodes that are being drained, and their list costs more.
const MAX_PODS: i32 = 10;

/// Minimum time between two restarts of a Deployment, also by others.
const MIN_INTERVAL: SignedDuration = SignedDuration::from_secs(30);

/// A Deployment on the wire. Fields that a surge does not use are skipped while parsing.
pub(super) type Deployment = Trimmed<Spec, Status>;

/// Returns the API resource of Deployments.
pub(super) fn deployment_resource() -> ApiResource {
    ApiResource::erase::<FullDeployment>(&())
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    #[serde(default)]
    replicas: Option<i32>,
    #[serde(default)]
    paused: bool,
    #[serde(default)]
    strategy: Strategy,
    /// Selects its pods.
    #[serde(default)]
    pub(super) selector: LabelSelector,
    #[serde(default)]
    template: Template,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Strategy {
    #[serde(default)]
    r#type: Option<Box<str>>,
    #[serde(default)]
    rolling_update: RollingUpdate,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RollingUpdate {
    #[serde(default)]
    max_surge: Option<IntOrString>,
    #[serde(default)]
    max_unavailable: Option<IntOrString>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Template {
    #[serde(default)]
    metadata: TemplateMetadata,
    #[serde(default)]
    spec: PodSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct PodSpec {
    #[serde(default)]
    volumes: Vec<Volume>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Volume {
    #[serde(default)]
    persistent_volume_claim: Option<IgnoredAny>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct TemplateMetadata {
    #[serde(default)]
    annotations: Option<BTreeMap<Box<str>, Box<str>>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    #[serde(default)]
    observed_generation: i64,
    /// Number of pods that don't terminate.
    #[serde(default)]
    replicas: i32,
    /// Of those, the number of pods of the current template.
    #[serde(default)]
    updated_replicas: i32,
    #[serde(default)]
    ready_replicas: i32,
    /// Number of pods that have been Ready for the Deployment's `minReadySeconds`.
    #[serde(default)]
    available_replicas: i32,
}

/// A ready pod of a Deployment.
#[derive(Clone, Debug)]
pub(super) struct ReadyPod {
    /// The name of its node.
    pub node: Box<str>,
    /// Its protection, if it asks not to be disturbed.
    pub protection: Option<Protection>,
}

/// Whether a Deployment's ready pods leave, as far as a surge must know that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadyPods {
    /// Not listed, because the Deployment's status shows enough.
    Unlisted,
    /// All leave nodes that are being drained.
    Draining,
    /// Some are elsewhere, or stay until the end of their nodes is near, or there are none.
    Elsewhere,
}

impl ReadyPods {
    /// Returns whether these ready pods leave at `now`. A restart would end one that asks not to be disturbed.
    pub(super) fn of(pods: &[ReadyPod], is_drained: impl Fn(&str) -> bool, now: Timestamp) -> Self {
        let leaves =
            |pod: &ReadyPod| is_drained(&pod.node) && !pod.protection.is_some_and(|protection| protection.holds(now));
        if !pods.is_empty() && pods.iter().all(leaves) { Self::Draining } else { Self::Elsewhere }
    }
}

/// The next step for the pods of a Deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// There is nothing to wait for: a ready pod is elsewhere, or none is ready.
    NotNeeded,
    /// The Deployment can't have a new pod next to its present ones; why.
    Impossible(&'static str),
    /// The Deployment is restarted.
    Restart,
    /// A new pod is on its way.
    Wait,
    /// The new pods are Ready.
    Ready,
}

impl Deployment {
    /// Returns the number of pods that it should have.
    fn desired(&self) -> i32 {
        self.spec.replicas.unwrap_or(1)
    }

    /// Returns why a restart would not add a new pod before it removes an old one; `None` if it does.
    fn no_room(&self) -> Option<&'static str> {
        let Spec { paused, strategy: Strategy { r#type, rolling_update }, .. } = &self.spec;
        let desired = self.desired();
        let surge = count(rolling_update.max_surge.as_ref(), desired, true);
        let unavailable = count(rolling_update.max_unavailable.as_ref(), desired, false);
        let is_rolled = r#type.as_deref().is_none_or(|kind| kind == "RollingUpdate");
        let obstacles = [
            (self.metadata.deletion_timestamp.is_some(), "it is being deleted"),
            (*paused, "it is paused"),
            (!is_rolled, "its strategy is Recreate"),
            (surge < 1, "its maxSurge is 0"),
            (unavailable >= desired, "its maxUnavailable allows a gap"),
            // Most can be attached to one node only, and the old pod's time would pass. Several pods share theirs.
            (desired == 1 && self.has_claims(), "its volume may be attached to one node only"),
        ];
        obstacles.into_iter().find_map(|(stands, why)| stands.then_some(why))
    }

    /// Whether its pods use volumes by claims that they share: not by those that are made for each pod.
    fn has_claims(&self) -> bool {
        self.spec.template.spec.volumes.iter().any(|volume| volume.persistent_volume_claim.is_some())
    }

    /// Whether its controller has not finished what the spec asks for: a rollout, or another number of pods.
    fn is_rolling(&self) -> bool {
        let Status { observed_generation, replicas, updated_replicas, .. } = self.status;
        observed_generation < self.metadata.generation.unwrap_or_default()
            || replicas != self.desired()
            || updated_replicas != replicas
    }

    /// Whether as many pods of the current template are available as there should be. All others that are available count as old.
    fn has_new_pods(&self) -> bool {
        let Status { observed_generation, replicas, updated_replicas, available_replicas, .. } = self.status;
        observed_generation >= self.metadata.generation.unwrap_or_default()
            && available_replicas - (replicas - updated_replicas) >= self.desired()
    }

    fn was_restarted_after(&self, time: Timestamp) -> bool {
        let annotations = self.spec.template.metadata.annotations.as_ref();
        let restarted = annotations.and_then(|annotations| annotations.get(RESTART_ANNOTATION));
        restarted.and_then(|at| at.parse::<Timestamp>().ok()).is_some_and(|at| at > time)
    }

    /// Whether the list of its pods shows what the status does not. `waits`: its pods wait already.
    pub(super) fn needs_list(&self, waits: bool) -> bool {
        let ready = self.status.ready_replicas;
        if waits {
            self.has_new_pods() || !self.is_rolling() && ready > 1
        } else {
            // The only ready pod is the one that asks.
            (2..=MAX_PODS).contains(&ready) && self.no_room().is_none()
        }
    }

    /// Returns the next step for its pods. One of them asks, and is ready on a node that is being drained. `waits`: they wait already;
    /// `restarted`: because this process has restarted it.
    pub(super) fn next(&self, pods: ReadyPods, waits: bool, restarted: bool, now: Timestamp) -> Step {
        let Status { ready_replicas: ready, available_replicas: available, .. } = self.status;
        if !waits {
            match (self.no_room(), pods) {
                (_, ReadyPods::Elsewhere) => return Step::NotNeeded,
                (Some(why), _) if ready == 1 => return Step::Impossible(why),
                (Some(_), _) => return Step::NotNeeded,
                (None, ReadyPods::Unlisted) if ready != 1 => return Step::NotNeeded,
                (None, _) => {}
            }
        } else if pods == ReadyPods::Elsewhere && (self.has_new_pods() || !self.is_rolling()) {
            return Step::Ready;
        }
        let recently = now.checked_sub(MIN_INTERVAL).unwrap_or(now);
        let must_wait = restarted || self.is_rolling() || available < self.desired();
        if must_wait || self.no_room().is_some() || self.was_restarted_after(recently) {
            Step::Wait
        } else {
            Step::Restart
        }
    }
}

/// Returns a number of pods, which may be a percentage of `desired`; 25% by default, as in Kubernetes.
fn count(of: Option<&IntOrString>, desired: i32, round_up: bool) -> i32 {
    let percent = match of {
        Some(IntOrString::Int(count)) => return *count,
        Some(IntOrString::String(text)) => text.trim_end_matches('%').parse().unwrap_or(0),
        None => 25,
    };
    let hundredths = i64::from(desired) * percent;
    let count = if round_up { (hundredths + 99) / 100 } else { hundredths / 100 };
    i32::try_from(count).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests;
