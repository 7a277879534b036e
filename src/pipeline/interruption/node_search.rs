//! Finds the Node of an instance.

use super::Case;
use super::known::Progress;
use super::step::{AwaitedNode, NodeSearch};
use crate::fact::Fact;
use crate::pipeline::node::Node;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Maximum time between the end of an instance's Node and its next registration.
const SUCCESSOR_TIMEOUT: Duration = Duration::from_secs(2);

impl Case {
    /// Finds the instance's Node, and waits for the one that the search awaits.
    pub(super) async fn find_node(&self, NodeSearch { awaits, by }: &NodeSearch) -> Progress {
        let (index, instance) = (&self.interrupter.index, &self.notice.instance);
        let (gone, until) = match awaits {
            AwaitedNode::None => {
                if index.get(instance).is_none() && timeout_at(*by, index.live()).await.is_err() {
                    // The time for registration does not run while the index is blind.
                    return Progress::NodesUnknown;
                }
                return index.get(instance).map_or(Progress::NoNode, Progress::Found);
            }
            AwaitedNode::Registered(until) => {
                let at_most = until.saturating_duration_since(Instant::now());
                self.emit(&Fact::NodeAwaited { about: self.about(), at_most });
                // A forged cancellation must not end what the Node had planned.
                if self.notice.is_withdrawn() && !self.policy.admission.is_verified(&self.notice) {
                    index.withdraw(&self.notice);
                }
                (None, *until)
            }
            AwaitedNode::Successor(gone) => (Some(&gone.uid), Instant::now() + SUCCESSOR_TIMEOUT),
        };
        let awaited = |node: Option<&Arc<Node>>| node.filter(|node| gone != Some(&node.uid)).map(Arc::clone);
        if let Ok(node) = timeout_at(until, index.until(instance, awaited)).await {
            return Progress::Found(node);
        }
        // The wait ends at the deadline in any case.
        let _ = timeout_at(*by, index.shows(until)).await;
        let missing = if index.is_live() { Progress::NoNodeInTime } else { Progress::NodesUnknown };
        awaited(index.get(instance).as_ref()).map_or(missing, Progress::Found)
    }
}
