//! Every Node of this cluster by instance id, kept by one watch.

use super::mark::is_marked;
use super::trimmed::{Node, NodeApi, TrimmedNode};
use crate::event::InstanceId;
use crate::fact::{Fact, Facts};
use crate::gate::{Backoff, KubeError};
use crate::watch::{self, Broken, Pace, Seen};
use kube::api::{ListParams, ObjectList, VersionMatch};
use kube::core::Selector;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::sync::watch as news;
use tokio::time::{sleep, timeout};

/// A list of many thousand Nodes takes its time.
const LIST_TIMEOUT: Duration = Duration::from_mins(1);

/// The Nodes by instance id. Clones are the same index.
#[derive(Clone, Debug, Default)]
pub struct Index(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// The Nodes that notices may be acted on for, by their labels.
    selector: Selector,
    state: Mutex<State>,
    /// Told when marks, or what a marked Node says of itself, have changed.
    marks: news::Sender<()>,
    /// Whether the watch runs: while it does not, an absent Node means nothing.
    live: news::Sender<bool>,
}

#[derive(Debug, Default)]
struct State {
    by_instance: HashMap<InstanceId, Arc<Node>>,
    /// A deletion names the Node, not the instance.
    by_name: HashMap<Arc<str>, InstanceId>,
    /// Who waits for news of an instance.
    watched: HashMap<InstanceId, news::Sender<()>>,
}

impl Index {
    /// An index of no Nodes yet, of which those that `selector` matches are to be touched.
    #[must_use]
    pub fn new(selector: Selector) -> Self {
        Self(Arc::new(Inner { selector, ..Inner::default() }))
    }

    /// Takes what is used of a Node.
    pub(super) fn read(&self, object: TrimmedNode) -> Option<Node> {
        Node::from_wire(object, &self.0.selector)
    }

    /// The Nodes that carry marks.
    #[must_use]
    pub fn marked(&self) -> Vec<Arc<Node>> {
        self.lock().by_instance.values().filter(|node| is_marked(node)).map(Arc::clone).collect()
    }

    /// News of marked Nodes.
    #[must_use]
    pub fn marks(&self) -> news::Receiver<()> {
        self.0.marks.subscribe()
    }

    /// The instance's Node, as last seen.
    #[must_use]
    pub fn get(&self, instance: &InstanceId) -> Option<Arc<Node>> {
        self.lock().by_instance.get(instance).cloned()
    }

    /// How many Nodes are known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().by_instance.len()
    }

    /// Whether no Node is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits until what the index knows of `instance` satisfies `wanted`, and gives it.
    pub async fn until<T>(&self, instance: &InstanceId, mut wanted: impl FnMut(Option<&Arc<Node>>) -> Option<T>) -> T {
        let mut news = Watched::new(self, instance);
        loop {
            let found = wanted(self.lock().by_instance.get(instance));
            match found {
                Some(found) => return found,
                // The sender lives in the index as long as we watch.
                None => drop(news.receiver.changed().await),
            }
        }
    }

    /// Waits until the watch runs. Before that nobody may conclude from a Node's absence that there is none.
    pub async fn live(&self) {
        // The sender lives in the index.
        let _ = self.0.live.subscribe().wait_for(|live| *live).await;
    }

    /// Puts a newer version of a known Node in, such as a patch's answer or a fresh read, without waiting for the watch to bring it.
    pub fn put(&self, node: Node) {
        let marked = is_marked(&node);
        let mut state = self.lock();
        if state.by_instance.get(&node.instance).is_some_and(|known| known.uid == node.uid) {
            state.apply(node);
        }
        drop(state);
        self.tell_marks(marked);
    }

    /// Lists and watches Nodes for ever, and says when the first list is complete. A break is met with backoff and a list that is
    /// not older than what is known; a dead connection is noticed by the client's read timeout, which bookmarks keep from running out.
    pub async fn watch(self, api: NodeApi, facts: Facts, synced: oneshot::Sender<()>) {
        let mut synced = Some(synced);
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
        let mut pace = Pace::default();
        // From the API server's cache, as a kubelet does it; a storm must not read etcd.
        let mut params = ListParams::default().match_any();
        loop {
            let mut version = match list(&api, &params).await {
                Ok(list) => self.listed(list, &facts),
                Err(error) => {
                    self.broke(&error, &facts);
                    // A cache that can't be as new as we ask for is not asked again.
                    params = ListParams::default();
                    sleep(backoff.step()).await;
                    continue;
                }
            };
            if let Some(synced) = synced.take() {
                let _ = synced.send(());
            }
            let broken = loop {
                pace.turn().await;
                let (from, params) = (version.clone(), watch::params());
                let see = |seen, at| {
                    version = at;
                    backoff.reset();
                    self.see(seen, &facts);
                };
                // An ordinary end: it goes on from where it was.
                if let Err(broken) = watch::follow("nodes", api.watch(&params, &from), see).await {
                    break broken;
                }
            };
            params = ListParams::default().at(&version).matching(VersionMatch::NotOlderThan);
            if let Broken::Failed(error) = broken {
                self.broke(&error, &facts);
                sleep(backoff.step()).await;
            }
        }
    }

    fn listed(&self, list: ObjectList<TrimmedNode>, facts: &Facts) -> String {
        let nodes = list.items.into_iter().filter_map(|object| self.read(object));
        self.lock().replace(nodes.map(|node| (node.instance.clone(), Arc::new(node))).collect());
        facts.emit(&Fact::NodesSynced { nodes: self.len() });
        self.0.live.send_replace(true);
        self.tell_marks(true);
        list.metadata.resource_version.unwrap_or_default()
    }

    fn see(&self, seen: Seen<TrimmedNode>, facts: &Facts) {
        let mut marked = false;
        let mut state = self.lock();
        let before = state.by_instance.len();
        match seen {
            Seen::Put(object) => {
                if let Some(node) = self.read(object) {
                    marked = is_marked(&node);
                    state.apply(node);
                }
            }
            Seen::Gone(object) => {
                if let (Some(name), Some(uid)) = (object.metadata.name, object.metadata.uid) {
                    state.remove(&name, &uid);
                }
            }
            Seen::Nothing => {}
        }
        let nodes = state.by_instance.len();
        drop(state);
        self.tell_marks(marked);
        if nodes != before {
            facts.emit(&Fact::NodesKnown { nodes });
        }
    }

    fn tell_marks(&self, changed: bool) {
        if changed {
            self.0.marks.send_replace(());
        }
    }

    fn broke(&self, error: &KubeError, facts: &Facts) {
        self.0.live.send_replace(false);
        facts.emit(&Fact::WatchFailed { resource: "nodes", error });
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn list(api: &NodeApi, params: &ListParams) -> Result<ObjectList<TrimmedNode>, KubeError> {
    match timeout(LIST_TIMEOUT, api.list(params)).await {
        Ok(listed) => listed.map_err(|error| KubeError::new("list", "nodes", "", &error)),
        Err(_) => Err(KubeError::timed_out("list", "nodes", "", LIST_TIMEOUT)),
    }
}

impl State {
    fn replace(&mut self, arrived: HashMap<InstanceId, Arc<Node>>) {
        self.by_name = arrived.values().map(|node| (Arc::clone(&node.name), node.instance.clone())).collect();
        self.by_instance = arrived;
        // A list says nothing about what changed: everybody looks again.
        for news in self.watched.values() {
            news.send_replace(());
        }
    }

    fn apply(&mut self, node: Node) {
        if let Some(known) = self.by_instance.get(&node.instance)
            && known.uid == node.uid
            && watch::older(&node.resource_version, &known.resource_version)
        {
            return;
        }
        let instance = node.instance.clone();
        self.by_name.insert(Arc::clone(&node.name), instance.clone());
        self.by_instance.insert(instance.clone(), Arc::new(node));
        self.tell(&instance);
    }

    fn remove(&mut self, name: &str, uid: &str) {
        let Some(instance) = self.by_name.get(name).cloned() else { return };
        if self.by_instance.get(&instance).is_some_and(|node| *node.uid == *uid) {
            self.by_instance.remove(&instance);
            self.by_name.remove(name);
            self.tell(&instance);
        }
    }

    fn tell(&self, instance: &InstanceId) {
        if let Some(news) = self.watched.get(instance) {
            news.send_replace(());
        }
    }
}

/// Interest in one instance; the last to lose it takes its entry away.
struct Watched<'a> {
    index: &'a Index,
    instance: &'a InstanceId,
    receiver: news::Receiver<()>,
}

impl<'a> Watched<'a> {
    fn new(index: &'a Index, instance: &'a InstanceId) -> Self {
        let mut state = index.lock();
        let news = state.watched.entry(instance.clone()).or_insert_with(|| news::Sender::new(()));
        let receiver = news.subscribe();
        drop(state);
        Self { index, instance, receiver }
    }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        let mut state = self.index.lock();
        if state.watched.get(self.instance).is_some_and(|news| news.receiver_count() <= 1) {
            state.watched.remove(self.instance);
        }
    }
}
