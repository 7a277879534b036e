//! The wait for the detachment of the drained pods' volumes. A volume that is still attached when the instance is terminated stays attached
//! for six minutes, because Kubernetes does not know whether the instance still writes to it. Its pod waits on another node meanwhile.

use super::active_wait::ActiveWait;
use crate::clients::gate::{Backoff, Call, Class, KubeError};
use crate::fact::{DrainStep, WaitOutcome};
use crate::pipeline::drain::{TrimmedPod, pods_of};
use crate::pipeline::interruption::Case;
use crate::pipeline::node::Node;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::Api;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;

/// Timeout for looking up the volumes of pods that stay on the node.
const TIMEOUT: Duration = Duration::from_secs(10);

impl Case {
    /// Waits until the instance's Nodes have no volumes except those of pods that stay.
    pub(super) async fn volumes_detached(&self, waiting: &ActiveWait<'_>) -> WaitOutcome {
        let Self { interrupter, notice, .. } = self;
        let Some(node) = interrupter.index.get(&notice.instance) else { return WaitOutcome::NotNeeded };
        let mut outcome = self.volumes_detached_from(&node, waiting).await;
        for other in interrupter.index.others(&node) {
            outcome = outcome.max(self.volumes_detached_from(&other, waiting).await);
        }
        outcome
    }

    /// Waits until the attachments of all volumes are deleted, except those used by pods that stay on the Node.
    async fn volumes_detached_from(&self, node: &Node, waiting: &ActiveWait<'_>) -> WaitOutcome {
        let Some(watch) = self.interrupter.attachments.join() else { return WaitOutcome::Denied };
        let Some(attached) = watch.of(&node.name).await else { return WaitOutcome::Denied };
        if attached.is_empty() {
            return WaitOutcome::NotNeeded;
        }
        let Some(used) = self.volumes_in_use(node).await else {
            self.interrupter.attachments.deny();
            return WaitOutcome::Denied;
        };
        if attached.is_subset(&used) {
            return WaitOutcome::NotNeeded;
        }
        let set_reason = |left: &[&str]| waiting.set_reason(format!("attached: {}", left.join(", ")));
        if watch.until_none(&node.name, &used, set_reason).await { WaitOutcome::Met } else { WaitOutcome::Denied }
    }

    /// Returns the volumes of the pods that stay on the Node, with retries; `None` without the permission to read them.
    async fn volumes_in_use(&self, node: &Node) -> Option<BTreeSet<String>> {
        let used = || Box::pin(self.try_volumes_in_use(node));
        let failed = |error: &KubeError| super::retries(self, node, DrainStep::List, error);
        Backoff::new(Duration::from_millis(200), Duration::from_secs(5)).retry(None, used, failed).await.ok()
    }

    async fn try_volumes_in_use(&self, node: &Node) -> Result<BTreeSet<String>, KubeError> {
        let drainer = &self.interrupter.drainer;
        let by = Instant::now() + TIMEOUT;
        let call = Call { verb: "list", resource: "pods", subject: &node.name };
        let params = pods_of(&node.name, None);
        let pods = drainer.gate.kube(call, Class::List, by, || drainer.pods.list(&params)).await?;
        // A terminating pod does not stay, even a stuck one: another pod waits for its volumes on another node.
        let stays = |pod: &&TrimmedPod| !pod.is_finished() && pod.metadata.deletion_timestamp.is_none();
        let claims: BTreeSet<_> = pods.items.iter().filter(stays).flat_map(TrimmedPod::claims).collect();
        let mut used = BTreeSet::new();
        for (namespace, name) in claims {
            let api: Api<PersistentVolumeClaim> = Api::namespaced(drainer.client.clone(), &namespace);
            let subject = format!("{namespace}/{name}");
            let call = Call { verb: "get", resource: "persistentvolumeclaims", subject: &subject };
            let claim = drainer.gate.kube(call, Class::List, by, || api.get_opt(&name)).await?;
            used.extend(claim.and_then(|claim| claim.spec?.volume_name));
        }
        Ok(used)
    }
}
