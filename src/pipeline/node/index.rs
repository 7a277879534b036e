//! Every Node of this cluster by instance ID, kept current by one watch.

mod table;
mod watch;

use super::mark::is_marked;
use super::plan::Plan;
use super::wire::{Node, NodeApi, TrimmedNode};
use crate::fact::Facts;
use crate::pipeline::event::InstanceId;
use kube::core::Selector;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use table::NodeTable;
use tokio::sync::oneshot;
use tokio::sync::watch as signal;
use watch::NodeWatch;

/// The Nodes by instance ID. Clones share one index.
#[derive(Clone, Debug, Default)]
pub struct Index(Arc<IndexInner>);

#[derive(Debug, Default)]
struct IndexInner {
    /// Selects, by label, the Nodes that Ebbtide may act on.
    selector: Selector,
    nodes: Mutex<NodeTable>,
    /// Signals that marks, or the status of a marked Node, have changed.
    marks: signal::Sender<()>,
    /// Whether the index is current. While it is not, the absence of a Node proves nothing.
    live: signal::Sender<bool>,
}

impl Index {
    /// Returns an empty index. `selector` selects the Nodes that Ebbtide may act on.
    #[must_use]
    pub fn new(selector: Selector) -> Self {
        Self(Arc::new(IndexInner { selector, ..IndexInner::default() }))
    }

    /// Watches Nodes forever, and reports on `synced` when the index first holds all of them.
    pub async fn watch(self, api: NodeApi, facts: Facts, synced: oneshot::Sender<()>) {
        NodeWatch::new(self, api, facts, synced).run().await;
    }

    /// Returns the Nodes that carry marks.
    #[must_use]
    pub fn marked(&self) -> Vec<Arc<Node>> {
        self.lock().all().filter(|node| is_marked(node)).map(Arc::clone).collect()
    }

    /// Returns the plans on Nodes that Ebbtide may act on.
    #[must_use]
    pub fn plans(&self) -> Vec<(Arc<Node>, Plan)> {
        let nodes = self.lock();
        let planned = nodes.all().filter(|node| !node.is_excluded());
        planned.flat_map(|node| Plan::all(node).map(|plan| (Arc::clone(node), plan))).collect()
    }

    /// Returns a receiver that is signalled when a marked Node changes.
    #[must_use]
    pub fn marks(&self) -> signal::Receiver<()> {
        self.0.marks.subscribe()
    }

    /// Returns the instance's Node, as last seen.
    #[must_use]
    pub fn get(&self, instance: &InstanceId) -> Option<Arc<Node>> {
        self.lock().get(instance).cloned()
    }

    /// Returns the instance of some Node.
    #[must_use]
    pub fn any_instance(&self) -> Option<InstanceId> {
        self.lock().all().next().map(|node| node.instance.clone())
    }

    /// Returns the number of Nodes known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Returns whether no Node is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits until `wanted` returns a value for the instance's Node, and returns that value.
    pub async fn until<T>(&self, instance: &InstanceId, mut wanted: impl FnMut(Option<&Arc<Node>>) -> Option<T>) -> T {
        let mut subscription = Subscription::new(self, instance);
        loop {
            let found = wanted(self.lock().get(instance));
            match found {
                Some(found) => return found,
                // The index keeps the sender for as long as the subscription lives.
                None => drop(subscription.changes.changed().await),
            }
        }
    }

    /// Waits until the index is current. Before that, the absence of a Node proves nothing.
    pub async fn live(&self) {
        // The sender lives in the index.
        let _ = self.0.live.subscribe().wait_for(|live| *live).await;
    }

    /// Stores a newer version of a known Node, such as the answer to a patch or a fresh read, before the watch delivers it.
    pub fn put(&self, node: Node) {
        let marked = is_marked(&node);
        let mut nodes = self.lock();
        if nodes.get(&node.instance).is_some_and(|known| known.uid == node.uid) {
            nodes.apply(node);
        }
        drop(nodes);
        self.signal_marks(marked);
    }

    /// Returns the trimmed Node; `None` if the Node is not an EC2 instance.
    pub(super) fn read(&self, object: TrimmedNode) -> Option<Node> {
        Node::from_wire(object, &self.0.selector)
    }

    fn set_live(&self, live: bool) {
        self.0.live.send_replace(live);
    }

    fn signal_marks(&self, changed: bool) {
        if changed {
            self.0.marks.send_replace(());
        }
    }

    fn lock(&self) -> MutexGuard<'_, NodeTable> {
        self.0.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A subscription to the changes of one instance's Node. The last subscription to be dropped removes the table's entry.
struct Subscription<'a> {
    index: &'a Index,
    instance: &'a InstanceId,
    changes: signal::Receiver<()>,
}

impl<'a> Subscription<'a> {
    fn new(index: &'a Index, instance: &'a InstanceId) -> Self {
        let changes = index.lock().subscribe(instance);
        Self { index, instance, changes }
    }
}

impl Drop for Subscription<'_> {
    fn drop(&mut self) {
        self.index.lock().unsubscribe(self.instance);
    }
}

#[cfg(test)]
mod tests;
