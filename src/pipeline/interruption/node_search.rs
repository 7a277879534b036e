//! Finds the Node of an instance.

use super::Case;
use super::step::Finding;
use crate::fact::Fact;
use crate::pipeline::node::{Index, Node};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Maximum time between the end of an instance's Node and its next registration.
const SUCCESSOR_TIMEOUT: Duration = Duration::from_secs(2);

impl Case {
    /// Finds the instance's Node.
    pub(super) async fn find_node(&self, by: Instant) -> Finding {
        let index = &self.interrupter.index;
        if let Some(node) = index.get(&self.notice.instance) {
            return Finding::Node(node);
        }
        // The time for registration does not run while the index is blind.
        if timeout_at(by, index.live()).await.is_err() {
            return Finding::NodesUnknown;
        }
        index.get(&self.notice.instance).map_or(Finding::NoNode, Finding::Node)
    }

    /// Waits until the instance registers as a Node, or until `until`. While the watch of Nodes is silent, waits until `by` at most.
    pub(super) async fn await_node(&self, until: Instant, by: Instant) -> Finding {
        let at_most = until.saturating_duration_since(Instant::now());
        self.emit(&Fact::NodeAwaited { about: self.about(), at_most });
        let index = &self.interrupter.index;
        // A forged cancellation must not end what the Node had planned.
        if self.notice.is_withdrawn() && !self.interrupter.policy.is_verified(&self.notice) {
            index.withdraw(&self.notice);
        }
        let registered = index.until(&self.notice.instance, |node| node.map(Arc::clone));
        if let Ok(node) = timeout_at(until, registered).await {
            return Finding::Node(node);
        }
        // The wait ends at the deadline in any case.
        let _ = timeout_at(by, index.shows(until)).await;
        index.get(&self.notice.instance).map_or_else(|| none_in_time(index), Finding::Node)
    }

    /// Waits until another Node has replaced this one. While the watch of Nodes is silent, waits until `by` at most.
    pub(super) async fn await_successor(&self, node: &Node, by: Instant) -> Finding {
        let index = &self.interrupter.index;
        let other = |known: Option<&Arc<Node>>| known.filter(|known| known.uid != node.uid).map(Arc::clone);
        let until = Instant::now() + SUCCESSOR_TIMEOUT;
        if let Ok(node) = timeout_at(until, index.until(&self.notice.instance, other)).await {
            return Finding::Node(node);
        }
        // As above.
        let _ = timeout_at(by, index.shows(until)).await;
        other(index.get(&self.notice.instance).as_ref()).map_or_else(|| none_in_time(index), Finding::Node)
    }
}

/// Returns the finding that there is no Node in time, if the index is current.
fn none_in_time(index: &Index) -> Finding {
    if index.is_live() { Finding::NoNodeInTime } else { Finding::NodesUnknown }
}
