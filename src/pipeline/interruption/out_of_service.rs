//! Taints the Node of an instance that is gone, so that its pods can be moved.

use super::Case;
use crate::clients::gate::Backoff;
use crate::fact::Fact;
use crate::pipeline::node::mark::Mark;
use crate::pipeline::node::{CordonOutcome, InstanceRecord, Node};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

impl Case {
    /// Taints the Node of an instance that is stopped or terminated, once EC2 confirms that. Gives up when EC2 has not confirmed it by
    /// the deadline, or the API server has not taken the patch.
    pub(super) async fn mark_out_of_service(&self, mark: &Mark, by: Instant) {
        let _ = timeout_at(by, self.taint_once_gone(mark, by)).await;
    }

    async fn taint_once_gone(&self, mark: &Mark, by: Instant) {
        let Self { interrupter, notice, .. } = self;
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(10));
        interrupter.index.live().await;
        loop {
            let Some(node) = interrupter.index.get(&notice.instance) else { return };
            if self.is_back(&node) {
                return;
            }
            // Asked again each time: the instance may have been restarted since a patch failed.
            match interrupter.owner.ask_anew(&notice.instance).await {
                Ok(InstanceRecord::Known { stopped: true, .. } | InstanceRecord::Terminated { .. })
                    if self.taint(&node, mark, by).await =>
                {
                    for other in interrupter.index.others(&node) {
                        self.taint(&other, mark, by).await;
                    }
                    return;
                }
                Ok(_) => {}
                Err(error) => {
                    let category = error.category;
                    self.emit(&Fact::OwnerUnknown { about: self.about(), category, error: &error });
                }
            }
            sleep(backoff.step()).await;
        }
    }

    /// Returns whether the Node carries the taint, or is gone, or admission denies the taint.
    async fn taint(&self, node: &Arc<Node>, mark: &Mark, by: Instant) -> bool {
        match self.interrupter.marker.cordon(node, mark, by, |_| false).await {
            Ok(CordonOutcome::Cordoned { denied, .. }) => {
                if let Some(denied) = &denied {
                    denied.report(node, |fact| self.emit(fact));
                }
                if !denied.is_some_and(|denied| denied.has_out_of_service()) {
                    self.emit(&Fact::NodeOutOfService { about: self.about() });
                }
            }
            Ok(_) => {}
            Err(error) => {
                let category = error.category;
                self.emit(&Fact::CordonFailed { about: self.about(), category, error: &error });
                return false;
            }
        }
        true
    }

    /// Whether the Node has become Ready since the notice.
    fn is_back(&self, node: &Node) -> bool {
        node.ready && node.ready_since > Some(self.notice.at())
    }
}
