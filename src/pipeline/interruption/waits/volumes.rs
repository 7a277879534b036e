//! The volumes of a Node's drained pods. One that is still attached when the instance goes stays so for six minutes: Kubernetes does not
//! know whether the instance still writes to it. Their pods wait elsewhere meanwhile.

use super::waiting::Waiting;
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

/// Timeout of the questions which volumes pods use that stay on the node.
const TIMEOUT: Duration = Duration::from_secs(10);

impl Case {
    /// Waits until the instance's Nodes have no volumes but those of pods that stay.
    pub(super) async fn volumes_detached(&self, waiting: &Waiting<'_>) -> WaitOutcome {
        let Self { interrupter, notice, .. } = self;
        let Some(node) = interrupter.index.get(&notice.instance) else { return WaitOutcome::NotNeeded };
        let mut outcome = self.volumes_detached_from(&node, waiting).await;
        for other in interrupter.index.others(&node) {
            outcome = outcome.max(self.volumes_detached_from(&other, waiting).await);
        }
        outcome
    }

    /// Waits until the attachments are deleted whose volumes no pod uses that stays on the Node.
    async fn volumes_detached_from(&self, node: &Node, waiting: &Waiting<'_>) -> WaitOutcome {
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
        let says = |left: &[&str]| waiting.says(format!("attached: {}", left.join(", ")));
        if watch.until_none(&node.name, &used, says).await { WaitOutcome::Met } else { WaitOutcome::Denied }
    }

    /// Returns the volumes of the pods that are on the Node. Retries until they are known; `None` without the right to see them.
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
        // One that terminates does not stay, however stuck it is: another pod waits elsewhere for its volumes.
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
