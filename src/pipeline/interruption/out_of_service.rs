//! An instance that is gone: its Node's taint lets its pods be moved.

use super::decisions::out_of_service_mark;
use super::{Case, Interrupter};
use crate::clients::gate::Backoff;
use crate::fact::Fact;
use crate::pipeline::node::mark::Mark;
use crate::pipeline::node::{Fate, Marked, Node};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout_at};

impl Interrupter {
    /// Taints the Node of an instance that is stopped or terminated, once EC2 says so, where the user asks for that.
    pub(super) async fn put_out_of_service(&self, case: &Case) {
        if self.policy.out_of_service_taint {
            let deadline = self.deadline(&case.notice, None).at;
            // In vain: EC2 has seen it otherwise for two minutes, or the API server does not let it be.
            let _ = timeout_at(deadline, self.taint_once_gone(case)).await;
        }
    }

    async fn taint_once_gone(&self, case: &Case) {
        let Case { notice, message, .. } = case;
        let mark = out_of_service_mark(notice, message);
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(10));
        self.index.live().await;
        loop {
            let Some(node) = self.index.get(&notice.instance) else { return };
            if is_back(&node, case) {
                return;
            }
            // Asked each time: what EC2 said before a patch that failed may be over.
            match self.owner.ask_anew(&notice.instance).await {
                Ok(Fate::Known { stopped: true, .. } | Fate::Terminated { .. })
                    if self.taint(case, &node, &mark).await =>
                {
                    return;
                }
                Ok(_) => {}
                Err(error) => {
                    let category = error.category();
                    case.tell(&Fact::OwnerUnknown { about: case.about(), category, error: &error });
                }
            }
            sleep(backoff.step()).await;
        }
    }

    /// Tells whether that is settled.
    async fn taint(&self, case: &Case, node: &Arc<Node>, mark: &Mark) -> bool {
        let deadline = self.deadline(&case.notice, None).at;
        match self.marker.cordon(node, mark, deadline).await {
            Ok(Marked::Cordoned { .. }) => case.tell(&Fact::NodeOutOfService { about: case.about() }),
            Ok(Marked::Gone) => {}
            Err(error) => {
                let category = error.category;
                case.tell(&Fact::CordonFailed { about: case.about(), category, error: &error });
                return false;
            }
        }
        true
    }
}

/// Whether the Node has become Ready since the notice.
fn is_back(node: &Node, case: &Case) -> bool {
    node.ready && node.ready_since > Some(case.notice.at)
}
