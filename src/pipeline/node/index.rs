//! Every Node of this cluster by instance ID, kept current by one watch.

mod deleted;
mod table;
mod watch;

use super::agent_notices::differs;
use super::condition::ConditionRule;
use super::node_pool::NodeScope;
use super::pool::Pools;
use super::record::NoticeRecord;
use super::wire::{Node, NodeApi, TrimmedNode};
use super::work_sign::WorkSign;
use crate::fact::Facts;
use crate::pipeline::event::{InstanceId, Notice, NoticeKey};
use jiff::Timestamp;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use table::NodeTable;
use tokio::sync::oneshot;
use tokio::sync::watch as signal;
use tokio::time::{Instant, timeout};
use watch::NodeWatch;

/// The Nodes by instance ID. Clones share one index.
#[derive(Clone, Debug, Default)]
pub struct Index(Arc<IndexInner>);

#[derive(Debug, Default)]
struct IndexInner {
    /// The Nodes that Ebbtide may act on, and their pools.
    scope: NodeScope,
    /// Labels that waits read.
    labels: Vec<Box<str>>,
    /// The rules of conditions.
    rules: Arc<[ConditionRule]>,
    /// The signs that another tool works on a Node.
    signs: Arc<[WorkSign]>,
    nodes: Mutex<NodeTable>,
    pools: Mutex<Pools>,
    /// Signals that marks, or the status of a marked Node, have changed.
    marks: signal::Sender<()>,
    /// Whether the index is current. While it is not, the absence of a Node proves nothing.
    live: signal::Sender<bool>,
    /// The time up to which the index is complete, and the time for which a caller waits.
    shown: signal::Sender<Shown>,
    /// Signals that a Node's agent notices or conditions have changed.
    reports: signal::Sender<()>,
    /// Signals that a Node has become Ready or is gone, or that one of our patches was answered.
    turns: signal::Sender<()>,
    /// Signals that the marks, or the labels of waves, of a Node have changed. Never without such labels.
    places: signal::Sender<()>,
    /// When another replica last marked a Node for a drain.
    marked_at: Mutex<Option<Instant>>,
}

/// How recent the index is. A watch that has died silently counts as live until its read timeout, but shows nothing new.
#[derive(Clone, Copy, Debug, Default)]
struct Shown {
    until: Option<Instant>,
    wanted: Option<Instant>,
}

/// Maximum wait for an event of a quiet watch. Kubelets write their Node's status every five minutes, so only the watch of a small cluster
/// is quiet for longer.
const QUIET: Duration = Duration::from_secs(2);

impl Index {
    /// Returns an empty index. `scope` has the Nodes that Ebbtide may act on; `labels` are those that waits read, `rules` those of
    /// conditions, and `signs` those of other tools' work.
    #[must_use]
    pub fn new(scope: NodeScope, labels: Vec<Box<str>>, rules: Arc<[ConditionRule]>, signs: Arc<[WorkSign]>) -> Self {
        Self(Arc::new(IndexInner { scope, labels, rules, signs, ..IndexInner::default() }))
    }

    /// Watches Nodes forever, and reports on `synced` when the index first holds all of them.
    pub async fn watch(self, api: NodeApi, facts: Facts, synced: oneshot::Sender<()>) {
        NodeWatch::new(self, api, facts, synced).run().await;
    }

    /// Returns the Nodes that carry marks.
    #[must_use]
    pub fn marked(&self) -> Vec<Arc<Node>> {
        self.0.nodes.lock().all().filter(|node| node.record.is_held()).map(Arc::clone).collect()
    }

    /// Returns the Nodes for which `wanted` holds.
    #[must_use]
    pub fn all_that(&self, wanted: impl Fn(&Node) -> bool) -> Vec<Arc<Node>> {
        self.0.nodes.lock().all().filter(|node| wanted(node)).map(Arc::clone).collect()
    }

    /// Returns the instances whose Nodes have lost their last mark of a drain in the last 15 minutes, without a restart, as far as this
    /// process has seen it.
    #[must_use]
    pub fn released(&self) -> Vec<InstanceId> {
        self.0.nodes.lock().released().cloned().collect()
    }

    /// Counts the Nodes that Ebbtide may act on, except those whose instance has a newer Node.
    pub fn count_ours<T>(&self, count: impl FnOnce(&mut dyn Iterator<Item = &Arc<Node>>) -> T) -> T {
        let nodes = self.0.nodes.lock();
        let is_current = |node: &&Arc<Node>| nodes.get(&node.instance).is_some_and(|current| current.uid == node.uid);
        count(&mut nodes.all().filter(|node| !node.is_excluded()).filter(is_current))
    }

    /// Returns a receiver that is signalled when a Node becomes Ready or is deleted, or when one of our own patches was answered.
    #[must_use]
    pub fn turns(&self) -> signal::Receiver<()> {
        self.0.turns.subscribe()
    }

    /// Returns the changes that Nodes keep on which Ebbtide may act; and the planned and the cancelled ones that are ahead at `now` and that deleted
    /// Nodes of their instances had on record, as far as this process has seen it.
    #[must_use]
    pub fn kept(&self, now: Timestamp) -> Vec<(Arc<Node>, NoticeKey, NoticeRecord)> {
        let mut kept = self.0.nodes.lock().kept(now);
        kept.retain(|(node, ..)| !node.is_excluded());
        kept
    }

    /// Records for the instance's next Node that AWS has cancelled this notice: the present one was deleted.
    pub fn withdraw(&self, notice: &Notice) {
        self.0.nodes.lock().withdraw(notice);
    }

    /// Returns when the watch last showed a new mark of a drain that this process did not write.
    #[must_use]
    pub fn marked_at(&self) -> Option<Instant> {
        *self.0.marked_at.lock()
    }

    /// Records a new mark of another replica.
    fn marked_elsewhere(&self) {
        *self.0.marked_at.lock() = Some(Instant::now());
    }

    /// Returns a receiver that is signalled when a marked Node changes.
    #[must_use]
    pub fn marks(&self) -> signal::Receiver<()> {
        self.0.marks.subscribe()
    }

    /// Returns a receiver that is signalled when the place of a Node in its waves may have changed.
    #[must_use]
    pub fn places(&self) -> signal::Receiver<()> {
        self.0.places.subscribe()
    }

    /// Returns a receiver that is signalled when a Node's agent notices or conditions change.
    #[must_use]
    pub fn reports(&self) -> signal::Receiver<()> {
        self.0.reports.subscribe()
    }

    /// Returns the instance's Node, as last seen; of several the one that is Ready.
    #[must_use]
    pub fn get(&self, instance: &InstanceId) -> Option<Arc<Node>> {
        self.0.nodes.lock().get(instance).cloned()
    }

    /// Returns the other Nodes of this Node's instance.
    #[must_use]
    pub fn others(&self, node: &Node) -> Vec<Arc<Node>> {
        let nodes = self.0.nodes.lock();
        nodes.of(&node.instance).iter().filter(|other| other.uid != node.uid).map(Arc::clone).collect()
    }

    /// Returns this Node as last seen; `None` if it is gone, or another has taken its place.
    #[must_use]
    pub fn newest(&self, node: &Node) -> Option<Arc<Node>> {
        self.0.nodes.lock().named(&node.name).filter(|known| known.uid == node.uid).map(Arc::clone)
    }

    /// Returns whether another Node has taken this Node's name.
    #[must_use]
    pub fn has_another(&self, node: &Node) -> bool {
        self.0.nodes.lock().named(&node.name).is_some_and(|known| known.uid != node.uid)
    }

    /// Returns the instance of some Node.
    #[must_use]
    pub fn any_instance(&self) -> Option<InstanceId> {
        self.0.nodes.lock().all().next().map(|node| node.instance.clone())
    }

    /// Returns the number of Nodes known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.nodes.lock().len()
    }

    /// Returns whether no Node is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits until `wanted` returns a value for the instance's Node, and returns that value.
    pub async fn until<T>(&self, instance: &InstanceId, mut wanted: impl FnMut(Option<&Arc<Node>>) -> Option<T>) -> T {
        self.until_table(instance, |nodes| wanted(nodes.get(instance))).await
    }

    /// Waits until `wanted` returns a value for this Node, and returns that value.
    pub async fn until_node<T>(&self, node: &Node, mut wanted: impl FnMut(Option<&Arc<Node>>) -> Option<T>) -> T {
        let known = |nodes: &NodeTable| wanted(nodes.named(&node.name).filter(|known| known.uid == node.uid));
        self.until_table(&node.instance, known).await
    }

    async fn until_table<T>(&self, instance: &InstanceId, mut wanted: impl FnMut(&NodeTable) -> Option<T>) -> T {
        let mut subscription = Subscription::new(self, instance);
        loop {
            let found = wanted(&self.0.nodes.lock());
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

    /// Whether the index is current.
    #[must_use]
    pub fn is_live(&self) -> bool {
        *self.0.live.borrow()
    }

    /// Waits until the index shows all Nodes that existed at `time`: until its watch delivers an event, or has restarted because it was
    /// quiet. Before that, the absence of a Node proves nothing. All callers share one new watch.
    pub async fn shows(&self, time: Instant) {
        let mut shown = self.0.shown.subscribe();
        let reached = |shown: &Shown| shown.until >= Some(time);
        // The sender lives in the index.
        if timeout(QUIET, shown.wait_for(reached)).await.is_err() {
            self.0.shown.send_modify(|shown| shown.wanted = shown.wanted.max(Some(time)));
            let _ = shown.wait_for(reached).await;
        }
    }

    /// Waits until a caller needs a newer state than that of the watch, which is `synced`.
    async fn is_behind(&self, synced: impl Fn() -> bool) {
        let behind = |shown: &Shown| shown.wanted > shown.until && synced();
        let _ = self.0.shown.subscribe().wait_for(behind).await;
    }

    /// Records that the index shows all Nodes that existed at `time`.
    fn showed(&self, time: Instant) {
        self.0.shown.send_modify(|shown| shown.until = shown.until.max(Some(time)));
    }

    /// Stores a newer version of a known Node, such as the answer to a patch or a fresh read, before the watch delivers it.
    pub fn put(&self, node: Node) {
        let (marked, mut reports, is_live) = (node.record.is_held(), false, self.is_live());
        let mut nodes = self.0.nodes.lock();
        let known = nodes.named(&node.name).filter(|known| known.uid == node.uid);
        let moved = known.is_some() && self.moves_places(known, &node);
        if let Some(known) = known {
            reports = differs(Some(known), &node);
            nodes.apply(node, is_live);
        }
        drop(nodes);
        self.0.places.send_if_modified(|()| moved);
        self.0.marks.send_if_modified(|()| marked);
        self.0.reports.send_if_modified(|()| reports);
        self.0.turns.send_replace(());
    }

    /// Returns the trimmed Node; `None` if the Node is not an EC2 instance.
    pub(super) fn read(&self, object: TrimmedNode) -> Option<Node> {
        let is_used = |key: &str| self.0.labels.iter().any(|label| **label == *key);
        let node = Node::from_wire(object, &self.0.scope, is_used, &self.0.rules, &self.0.signs)?;
        let pool = self.0.pools.lock().share(Arc::clone(&node.pool));
        Some(Node { pool, ..node })
    }

    fn set_live(&self, live: bool) {
        self.0.live.send_replace(live);
    }

    /// Whether the Node's place in its waves may differ from that of the known version.
    fn moves_places(&self, known: Option<&Arc<Node>>, node: &Node) -> bool {
        let is_same = |known: &Arc<Node>| {
            known.record == node.record
                && known.labels == node.labels
                && known.node_pool == node.node_pool
                && known.ignored == node.ignored
        };
        !self.0.labels.is_empty() && !known.is_some_and(is_same)
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
        let changes = index.0.nodes.lock().subscribe(instance);
        Self { index, instance, changes }
    }
}

impl Drop for Subscription<'_> {
    fn drop(&mut self) {
        let mut table = self.index.0.nodes.lock();
        let (_, other) = signal::channel(());
        table.unsubscribe(self.instance, std::mem::replace(&mut self.changes, other));
    }
}

#[cfg(test)]
impl Index {
    /// Returns an index that shows these Nodes, for waves of these labels.
    pub(crate) fn for_tests(labels: &[&str], nodes: impl IntoIterator<Item = Node>) -> Self {
        let index = Self::new(
            NodeScope::default(),
            labels.iter().map(|label| (*label).into()).collect(),
            Arc::default(),
            Arc::default(),
        );
        nodes.into_iter().for_each(|node| index.0.nodes.lock().apply(node, true));
        index
    }
}

#[cfg(test)]
mod tests;
