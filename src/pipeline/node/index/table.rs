//! The Nodes that the index holds. Versions decide which state of a Node is newer.

use super::deleted::DeletedNodes;
use crate::clients::watch::older;
use crate::pipeline::event::{InstanceId, Notice, NoticeKey};
use crate::pipeline::node::Node;
use crate::pipeline::node::record::NoticeRecord;
use jiff::Timestamp;
use std::collections::{BTreeMap, HashMap};
use std::mem;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch as signal;
use tokio::time::Instant;

/// Time for which a Node counts as released: an attacker with access to the queue can cancel changes that AWS never announced, and must
/// not have one node drained after another by that.
const RELEASED_FOR: Duration = Duration::from_mins(15);

/// Nodes by name, so that each pass over all of them has the same order.
pub(super) type NodesByName = BTreeMap<Arc<str>, Arc<Node>>;

/// The Nodes, and the subscriptions to their changes.
#[derive(Debug, Default)]
pub(super) struct NodeTable {
    by_name: NodesByName,
    /// The Nodes of each instance: nearly always one. A kubelet that has changed its name leaves a second.
    by_instance: HashMap<InstanceId, Vec<Arc<Node>>>,
    /// Signals of changes, by instance ID.
    subscriptions: HashMap<InstanceId, signal::Sender<()>>,
    /// When Nodes lost their last mark of a drain without a restart.
    released: HashMap<InstanceId, Instant>,
    deleted: DeletedNodes,
}

impl NodeTable {
    /// Returns the instance's Node; of several the one that is Ready, and of these the latest.
    pub(super) fn get(&self, instance: &InstanceId) -> Option<&Arc<Node>> {
        newest(self.of(instance))
    }

    /// Returns the changes that Nodes keep, each with the Node; and those that deleted Nodes had on record as planned or cancelled and that are
    /// ahead at `now`, each with the Node that the instance has now.
    pub(super) fn kept(&mut self, now: Timestamp) -> Vec<(Arc<Node>, NoticeKey, NoticeRecord)> {
        let of = |node: &Arc<Node>| {
            let own = node.record.all().filter(|(_, known)| known.kept.is_some());
            own.map(|(key, known)| (Arc::clone(node), key, known.clone())).collect::<Vec<_>>()
        };
        let mut kept: Vec<_> = self.all().flat_map(of).collect();
        let Self { deleted, by_instance, .. } = self;
        let next = |instance: &InstanceId| newest(nodes_of(by_instance, instance)).cloned();
        let records = deleted.ahead(now);
        kept.extend(records.filter_map(|(instance, key, known)| Some((next(instance)?, key, known.clone()))));
        kept
    }

    /// Records for the instance's next Node that AWS has cancelled this notice.
    pub(super) fn withdraw(&mut self, notice: &Notice) {
        self.deleted.withdraw(notice);
    }

    /// Returns all Nodes of the instance.
    pub(super) fn of(&self, instance: &InstanceId) -> &[Arc<Node>] {
        nodes_of(&self.by_instance, instance)
    }

    /// Returns the Node with this name.
    pub(super) fn named(&self, name: &str) -> Option<&Arc<Node>> {
        self.by_name.get(name)
    }

    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.by_name.values()
    }

    /// Replaces all Nodes, except those that are known in a newer version.
    pub(super) fn replace_all(&mut self, mut nodes: NodesByName) {
        for (name, node) in &mut nodes {
            let Some(known) = self.by_name.get(name).filter(|known| known.uid == node.uid) else { continue };
            // A patch's answer may have arrived while an older list was read.
            if is_older(node, known) {
                *node = Arc::clone(known);
                continue;
            }
            remember_released(&mut self.released, known, node);
            if !node.conditions.is_empty() {
                Arc::make_mut(node).remember_conditions(known, false);
            }
        }
        let before = mem::replace(&mut self.by_name, nodes);
        self.by_instance.clear();
        for node in self.by_name.values() {
            place(&mut self.by_instance, node);
            self.deleted.settle(node);
        }
        let is_gone = |node: &&Arc<Node>| self.by_name.get(&node.name).is_none_or(|known| known.uid != node.uid);
        for gone in before.values().filter(is_gone) {
            self.deleted.remember(gone, nodes_of(&self.by_instance, &gone.instance));
        }
        // A list does not show which Nodes changed: every subscriber checks again.
        for changes in self.subscriptions.values() {
            changes.send_replace(());
        }
    }

    /// Stores a Node, unless a newer version of it is known. `is_watched`: no change of it was missed since the known version.
    pub(super) fn apply(&mut self, mut node: Node, is_watched: bool) {
        if let Some(known) = self.by_name.get(&node.name).filter(|known| known.uid == node.uid) {
            if is_older(&node, known) {
                return;
            }
            node.remember_conditions(known, is_watched);
            remember_released(&mut self.released, known, &node);
        }
        let node = Arc::new(node);
        let before = self.by_name.insert(Arc::clone(&node.name), Arc::clone(&node));
        let before = before.filter(|before| before.uid != node.uid);
        if let Some(before) = before.as_ref().filter(|before| before.instance != node.instance) {
            self.forget(before);
        }
        place(&mut self.by_instance, &node);
        self.deleted.settle(&node);
        if let Some(before) = before {
            self.deleted.remember(&before, nodes_of(&self.by_instance, &before.instance));
        }
        self.signal(&node.instance);
    }

    /// Returns the instances whose Nodes have lost their last mark of a drain in the last 15 minutes, without a restart.
    pub(super) fn released(&self) -> impl Iterator<Item = &InstanceId> {
        self.released.iter().filter(|(_, at)| at.elapsed() < RELEASED_FOR).map(|(instance, _)| instance)
    }

    /// Removes the Node with this name and UID.
    pub(super) fn remove(&mut self, name: &str, uid: &str) {
        if let Some(gone) = remove_if(&mut self.by_name, name, uid) {
            self.released.remove(&gone.instance);
            self.forget(&gone);
            self.deleted.remember(&gone, nodes_of(&self.by_instance, &gone.instance));
        }
    }

    /// Removes a Node from those of its instance.
    fn forget(&mut self, gone: &Node) {
        if let Some(nodes) = self.by_instance.get_mut(&gone.instance) {
            nodes.retain(|node| node.name != gone.name);
            if nodes.is_empty() {
                self.by_instance.remove(&gone.instance);
            }
        }
        self.signal(&gone.instance);
    }

    pub(super) fn subscribe(&mut self, instance: &InstanceId) -> signal::Receiver<()> {
        self.subscriptions.entry(instance.clone()).or_insert_with(|| signal::Sender::new(())).subscribe()
    }

    /// Ends a subscription, and removes its entry if it is the last for its instance. It is dropped here, under the lock: of two that end
    /// at the same time, the other would still be counted.
    pub(super) fn unsubscribe(&mut self, instance: &InstanceId, changes: signal::Receiver<()>) {
        drop(changes);
        if self.subscriptions.get(instance).is_some_and(|changes| changes.receiver_count() == 0) {
            self.subscriptions.remove(instance);
        }
    }

    fn signal(&self, instance: &InstanceId) {
        if let Some(changes) = self.subscriptions.get(instance) {
            changes.send_replace(());
        }
    }
}

/// Returns a Node's entry for [`NodesByName`].
pub(super) fn keyed(node: Node) -> (Arc<str>, Arc<Node>) {
    (Arc::clone(&node.name), Arc::new(node))
}

/// Removes the Node with this name if it has this UID. Another Node may have taken its place.
pub(super) fn remove_if(nodes: &mut NodesByName, name: &str, uid: &str) -> Option<Arc<Node>> {
    nodes.get(name).is_some_and(|node| *node.uid == *uid).then(|| nodes.remove(name))?
}

/// Returns all Nodes of the instance.
fn nodes_of<'a>(by_instance: &'a HashMap<InstanceId, Vec<Arc<Node>>>, instance: &InstanceId) -> &'a [Arc<Node>] {
    by_instance.get(instance).map_or(&[], Vec::as_slice)
}

/// Returns the Node that counts for its instance: the one that is Ready, and of these the latest.
fn newest(nodes: &[Arc<Node>]) -> Option<&Arc<Node>> {
    nodes.iter().max_by_key(|node| (node.ready, node.ready_since))
}

/// Puts a Node among those of its instance, in place of the one with its name.
fn place(by_instance: &mut HashMap<InstanceId, Vec<Arc<Node>>>, node: &Arc<Node>) {
    let nodes = by_instance.entry(node.instance.clone()).or_insert_with(|| Vec::with_capacity(1));
    match nodes.iter_mut().find(|known| known.name == node.name) {
        Some(known) => *known = Arc::clone(node),
        None => nodes.push(Arc::clone(node)),
    }
}

/// Remembers that the Node's last mark of a drain was removed without a restart.
fn remember_released(released: &mut HashMap<InstanceId, Instant>, known: &Node, node: &Node) {
    let is_since =
        |notice: &NoticeRecord| notice.boot.is_empty() || notice.boot.is_unknown() || notice.boot.is(&node.boot);
    let was_drained = known.record.notices().any(|(_, notice)| notice.is_drain() && is_since(notice));
    if was_drained && !node.record.is_drained() {
        let now = Instant::now();
        released.retain(|_, at| now < *at + RELEASED_FOR);
        released.insert(node.instance.clone(), now);
    }
}

/// Returns whether `node` is an older version of the Node `known`.
fn is_older(node: &Node, known: &Node) -> bool {
    known.uid == node.uid && older(&node.resource_version, &known.resource_version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_subscription_leaves_no_entry_behind() {
        let (mut table, instance) = (NodeTable::default(), InstanceId::new("i-0123456789abcdef0").unwrap());
        let (first, second) = (table.subscribe(&instance), table.subscribe(&instance));
        table.unsubscribe(&instance, first);
        assert_eq!(table.subscriptions.len(), 1, "another waits still");
        table.unsubscribe(&instance, second);
        assert_eq!(table.subscriptions.len(), 0);
    }
}
