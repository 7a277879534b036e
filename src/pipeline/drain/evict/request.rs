//! The API requests of a departure: eviction and deletion.

use super::{Evictions, FirstSent};
use crate::clients::gate::{Call, Category, Class, KubeError};
use crate::fact::Fact;
use crate::pipeline::drain::Drainer;
use crate::pipeline::drain::deadline::Deadline;
use crate::pipeline::drain::select::Departure;
use crate::pipeline::drain::wire::{PodId, TrimmedPod, pod_resource};
use k8s_openapi::api::policy::v1::Eviction;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta, Preconditions, Time};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::core::{Status, params};
use serde_json::json;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Timeout of the patch that marks a pod as disrupted: the pod's deletion comes after it, and is due.
const MARK_TIMEOUT: Duration = Duration::from_secs(1);

/// Part of the API server's message if another pod has the name. Other conflicts have nothing to do with the pod.
const OTHER_UID: &str = "UID in the precondition";

impl Evictions<'_> {
    /// Requests the eviction of a pod. Returns the time at which the pod should be gone.
    pub(super) async fn request_eviction(
        &self,
        departure: &Departure,
        first_sent: &FirstSent,
        class: Option<Class>,
    ) -> Result<Instant, KubeError> {
        let (drain, pod) = (self.drain, &departure.pod);
        let pods = api(drain.drainer, pod);
        let by = drain.end().at();
        // Runs only when the gate has let the call through, so that the grace period is computed as late as possible.
        let request = async || {
            let (now, deadline) = (Instant::now(), drain.end());
            first_sent.send_if_modified(|sent| sent.is_none() && sent.replace(now).is_none());
            let grace = self.grace(departure);
            let eviction = eviction(pod, grace.to_send(now, deadline));
            let params = PostParams { dry_run: drain.drainer.dry_run, ..PostParams::default() };
            pods.create_subresource::<_, Status>("eviction", &pod.name, &params, &eviction).await?;
            Ok(now + grace.at(now, deadline))
        };
        let name = pod.to_string();
        let call = Call { verb: "create", resource: "pods/eviction", subject: &name };
        drain.drainer.gate.kube(call, class.unwrap_or_else(|| Class::of_eviction(by)), by, request).await
    }

    /// Requests the deletion of a pod. `grace` returns the grace period when the call is made. Returns the time at which the pod
    /// should be gone.
    pub(super) async fn request_deletion(
        &self,
        pod: &PodId,
        grace: impl Fn(Instant, Deadline) -> Duration,
    ) -> Result<Instant, KubeError> {
        let (drain, pods) = (self.drain, api(self.drain.drainer, pod));
        let sent = AtomicU64::new(0);
        let request = async || {
            let now = Instant::now();
            let grace = grace(now, drain.end());
            sent.store(grace.as_secs(), Ordering::Relaxed);
            let params = DeleteParams {
                dry_run: drain.drainer.dry_run,
                grace_period_seconds: u32::try_from(grace.as_secs()).ok(),
                preconditions: Some(params::Preconditions { uid: Some(pod.uid.to_string()), resource_version: None }),
                ..DeleteParams::default()
            };
            pods.delete(&pod.name, &params).await?;
            Ok(now + grace)
        };
        let name = pod.to_string();
        let call = Call { verb: "delete", resource: "pods", subject: &name };
        let answer = drain.drainer.gate.kube(call, Class::Urgent, drain.end().at(), request).await;
        let result = answer.as_ref().map(drop).map_err(|error| error.category);
        let grace = seconds(Duration::from_secs(sent.into_inner()));
        let (on, pod) = (drain.node.named(), pod.named());
        drain.drainer.facts.emit(&Fact::Deletion { on, pod, grace, result });
        answer
    }

    /// Marks a pod that is about to be deleted as disrupted, with the condition that an eviction sets, so that a Job's `podFailurePolicy`
    /// counts no failure. Tries it once, because the deletion does not wait for it.
    pub(super) async fn mark_disrupted(&self, pod: &PodId, held_by: &str) {
        let drainer = self.drain.drainer;
        let pods = api(drainer, pod);
        let condition = json!({
            "type": "DisruptionTarget", "status": "True", "reason": "DeletionByEbbtide",
            "message": format!("Ebbtide: deleting the pod before its node goes; its eviction was blocked: {held_by}"),
            "lastTransitionTime": Time(drainer.clock.now()),
        });
        // With its UID: a new pod of the same name refuses the patch.
        let patch =
            Patch::Strategic(json!({ "metadata": { "uid": &*pod.uid }, "status": { "conditions": [condition] } }));
        let params = PatchParams::default();
        let name = pod.to_string();
        let call = Call { verb: "patch", resource: "pods/status", subject: &name };
        let begun = Instant::now();
        let request = || pods.patch_status(&pod.name, &params, &patch);
        let marked = drainer.gate.kube(call, Class::Urgent, begun + MARK_TIMEOUT, request);
        if timeout(MARK_TIMEOUT, marked).await.is_err() {
            let Call { verb, resource, .. } = call;
            let result = Err(Category::TimedOut);
            drainer.facts.emit(&Fact::KubeCall { verb, resource, result, took: begun.elapsed() });
        }
    }
}

fn api(drainer: &Drainer, pod: &PodId) -> Api<TrimmedPod> {
    Api::namespaced_with(drainer.client.clone(), &pod.namespace, &pod_resource())
}

/// Returns whether the answer means that the pod with this UID does not exist.
pub(super) fn is_not_found(error: &KubeError) -> bool {
    match error.category {
        Category::NotFound => true,
        Category::Conflict => error.message.contains(OTHER_UID),
        _ => false,
    }
}

/// Returns the body of an eviction. kube's `Api::evict` is of no use: it writes the delete options, and with them the UID, under a
/// name that the API server does not read.
fn eviction(pod: &PodId, grace: Option<Duration>) -> Eviction {
    Eviction {
        metadata: ObjectMeta {
            name: Some(pod.name.to_string()),
            namespace: Some(pod.namespace.to_string()),
            ..ObjectMeta::default()
        },
        delete_options: Some(DeleteOptions {
            grace_period_seconds: grace.map(seconds),
            preconditions: Some(Preconditions { uid: Some(pod.uid.to_string()), resource_version: None }),
            ..DeleteOptions::default()
        }),
    }
}

fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}
