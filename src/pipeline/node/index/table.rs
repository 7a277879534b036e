//! The Nodes that the index holds. Versions decide which state of a Node is newer.

use crate::clients::watch::older;
use crate::pipeline::event::InstanceId;
use crate::pipeline::node::Node;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::watch as signal;

/// Nodes by instance ID.
pub(super) type NodesByInstance = HashMap<InstanceId, Arc<Node>>;

/// The Nodes, and the subscriptions to their changes.
#[derive(Debug, Default)]
pub(super) struct NodeTable {
    by_instance: NodesByInstance,
    /// Instance IDs by Node name: a deletion names the Node only.
    by_name: HashMap<Arc<str>, InstanceId>,
    /// Signals of changes, by instance ID.
    subscriptions: HashMap<InstanceId, signal::Sender<()>>,
}

impl NodeTable {
    pub(super) fn get(&self, instance: &InstanceId) -> Option<&Arc<Node>> {
        self.by_instance.get(instance)
    }

    pub(super) fn len(&self) -> usize {
        self.by_instance.len()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.by_instance.values()
    }

    /// Replaces all Nodes, except those that are known in a newer version.
    pub(super) fn replace_all(&mut self, mut nodes: NodesByInstance) {
        for (instance, node) in &mut nodes {
            // A patch's answer may have arrived while an older list was read.
            if let Some(known) = self.by_instance.get(instance)
                && is_older(node, known)
            {
                *node = Arc::clone(known);
            }
        }
        self.by_name = nodes.values().map(|node| (Arc::clone(&node.name), node.instance.clone())).collect();
        self.by_instance = nodes;
        // A list does not tell which Nodes changed: every subscriber looks again.
        for changes in self.subscriptions.values() {
            changes.send_replace(());
        }
    }

    /// Stores a Node, unless a newer version of it is known.
    pub(super) fn apply(&mut self, node: Node) {
        if self.by_instance.get(&node.instance).is_some_and(|known| is_older(&node, known)) {
            return;
        }
        let instance = node.instance.clone();
        self.by_name.insert(Arc::clone(&node.name), instance.clone());
        self.by_instance.insert(instance.clone(), Arc::new(node));
        self.signal(&instance);
    }

    /// Removes the Node with this name and UID.
    pub(super) fn remove(&mut self, name: &str, uid: &str) {
        let Some(instance) = self.by_name.get(name).cloned() else { return };
        if remove_if(&mut self.by_instance, &instance, uid).is_some() {
            self.by_name.remove(name);
            self.signal(&instance);
        }
    }

    pub(super) fn subscribe(&mut self, instance: &InstanceId) -> signal::Receiver<()> {
        self.subscriptions.entry(instance.clone()).or_insert_with(|| signal::Sender::new(())).subscribe()
    }

    /// Removes the entry of a subscription that is about to be dropped, if it is the last for its instance.
    pub(super) fn unsubscribe(&mut self, instance: &InstanceId) {
        if self.subscriptions.get(instance).is_some_and(|changes| changes.receiver_count() <= 1) {
            self.subscriptions.remove(instance);
        }
    }

    fn signal(&self, instance: &InstanceId) {
        if let Some(changes) = self.subscriptions.get(instance) {
            changes.send_replace(());
        }
    }
}

/// Returns a Node's entry for [`NodesByInstance`].
pub(super) fn keyed(node: Node) -> (InstanceId, Arc<Node>) {
    (node.instance.clone(), Arc::new(node))
}

/// Removes the instance's Node if it has this UID. Another Node may have taken its place.
pub(super) fn remove_if(nodes: &mut NodesByInstance, instance: &InstanceId, uid: &str) -> Option<Arc<Node>> {
    nodes.get(instance).is_some_and(|node| *node.uid == *uid).then(|| nodes.remove(instance))?
}

/// Returns whether `node` is an older version of the Node `known`.
fn is_older(node: &Node, known: &Node) -> bool {
    known.uid == node.uid && older(&node.resource_version, &known.resource_version)
}
