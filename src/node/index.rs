//! Every Node of this cluster by instance id, kept by one watch.

use super::trimmed::{Node, NodeApi, TrimmedNode};
use crate::event::InstanceId;
use crate::fact::{Fact, Facts};
use crate::gate::KubeError;
use futures_util::StreamExt;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{oneshot, watch};

/// The Nodes by instance id. Clones are the same index.
#[derive(Clone, Debug, Default)]
pub struct Index(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    by_instance: HashMap<InstanceId, Arc<Node>>,
    /// A deletion names the Node, not the instance.
    by_name: HashMap<Arc<str>, InstanceId>,
    /// What a list in progress has brought so far; it replaces all when it is complete.
    arriving: Option<HashMap<InstanceId, Arc<Node>>>,
    /// Who waits for news of an instance.
    watched: HashMap<InstanceId, watch::Sender<()>>,
}

impl Index {
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

    /// Puts a newer Node in, such as a patch's answer, without waiting for the watch to bring it.
    pub fn put(&self, node: Node) {
        self.lock().apply(node);
    }

    /// Watches Nodes for ever, and says when the first list is complete. A broken watch is begun again with backoff; one whose
    /// connection has died is noticed by the client's read timeout, which the server's bookmarks keep from running out.
    pub async fn watch(self, api: NodeApi, facts: Facts, synced: oneshot::Sender<()>) {
        let mut synced = Some(synced);
        // From the API server's cache, as a kubelet does it; a storm must not read etcd.
        let config = watcher::Config::default().any_semantic();
        let mut events = std::pin::pin!(watcher::watcher(api, config).default_backoff());
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    let done = matches!(event, Event::InitDone);
                    self.lock().take(event);
                    if done {
                        facts.emit(&Fact::NodesSynced { nodes: self.len() });
                        if let Some(synced) = synced.take() {
                            let _ = synced.send(());
                        }
                    }
                }
                Err(error) => {
                    let error = named(&error);
                    facts.emit(&Fact::WatchFailed { resource: "nodes", error: &error });
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn take(&mut self, event: Event<TrimmedNode>) {
        match event {
            Event::Init => self.arriving = Some(HashMap::new()),
            Event::InitApply(object) => {
                if let (Some(arriving), Some(node)) = (&mut self.arriving, Node::from_wire(object)) {
                    arriving.insert(node.instance.clone(), Arc::new(node));
                }
            }
            Event::InitDone => {
                if let Some(arrived) = self.arriving.take() {
                    self.replace(arrived);
                }
            }
            Event::Apply(object) => {
                if let Some(node) = Node::from_wire(object) {
                    self.apply(node);
                }
            }
            Event::Delete(object) => {
                if let (Some(name), Some(uid)) = (object.metadata.name, object.metadata.uid) {
                    self.remove(&name, &uid);
                }
            }
        }
    }

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
            && older(&node.resource_version, &known.resource_version)
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

/// Whether version `a` came before `b`. Versions of one resource are integers that grow (KEP-5504); where they can't be
/// read so, the later arrival counts.
fn older(a: &str, b: &str) -> bool {
    matches!((a.parse::<u64>(), b.parse::<u64>()), (Ok(a), Ok(b)) if a < b)
}

/// A watch's error as one of ours, which says what to do.
fn named(error: &watcher::Error) -> KubeError {
    match error {
        watcher::Error::InitialListFailed(error) => KubeError::new("list", "nodes", "", error),
        watcher::Error::WatchStartFailed(error) | watcher::Error::WatchFailed(error) => {
            KubeError::new("watch", "nodes", "", error)
        }
        watcher::Error::WatchError(status) => KubeError::new("watch", "nodes", "", &kube::Error::Api(status.clone())),
        other @ watcher::Error::NoResourceVersion => {
            let unreadable = std::io::Error::other(other.to_string());
            KubeError::new("watch", "nodes", "", &kube::Error::ReadEvents(unreadable))
        }
    }
}

/// Interest in one instance; the last to lose it takes its entry away.
struct Watched<'a> {
    index: &'a Index,
    instance: &'a InstanceId,
    receiver: watch::Receiver<()>,
}

impl<'a> Watched<'a> {
    fn new(index: &'a Index, instance: &'a InstanceId) -> Self {
        let mut state = index.lock();
        let news = state.watched.entry(instance.clone()).or_insert_with(|| watch::Sender::new(()));
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
