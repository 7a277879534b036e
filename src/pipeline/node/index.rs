//! Every Node of this cluster by instance id, kept by one watch.

use super::mark::is_marked;
use super::wire::{Node, NodeApi, TrimmedNode};
use crate::clients::gate::{Backoff, Category, KubeError};
use crate::clients::watch;
use crate::clients::watch::{Broken, Pace, Seen};
use crate::fact::{Fact, Facts, WatchedResource};
use crate::pipeline::event::InstanceId;
use kube::api::{ListParams, ObjectList, VersionMatch};
use kube::core::Selector;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::sync::watch as news;
use tokio::time::{sleep, timeout};

/// A list of many thousand Nodes takes its time.
const LIST_TIMEOUT: Duration = Duration::from_mins(1);

/// As a version: whatever is newest when it is asked for, which no cache may answer that is behind.
const NOW: &str = "";

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

    /// Watches Nodes for ever, and says when all are known. The watch begins with all that there are, one by one, so that fifteen
    /// thousand Nodes take no more memory than one while they arrive; a server that can't do that (before Kubernetes 1.34 it is not
    /// always on) is asked for a list. A break is met with backoff and a new beginning that is not older than what is known; a dead
    /// connection is noticed by the client's read timeout, which bookmarks keep from running out.
    pub async fn watch(self, api: NodeApi, facts: Facts, synced: oneshot::Sender<()>) {
        let mut synced = Some(synced);
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
        let mut pace = Pace::default();
        let mut streams = Streams::default();
        // Up to where everything is known; `None` until it is.
        let mut known = None::<String>;
        // What a new beginning must not be older than: at first whatever the API server's cache holds, as a kubelet does it; a storm
        // must not read etcd.
        let mut oldest = "0".to_owned();
        loop {
            if known.is_none() && !streams.worth_trying() {
                match list(&api, &oldest).await {
                    Ok(list) => {
                        let nodes = list.items.into_iter().filter_map(|object| self.read(object)).map(keyed);
                        self.arrived(nodes.collect(), &facts);
                        known = list.metadata.resource_version;
                        tell(&mut synced);
                    }
                    Err(error) => {
                        self.broke(&error, &facts);
                        NOW.clone_into(&mut oldest);
                        sleep(backoff.step()).await;
                        continue;
                    }
                }
            }
            pace.turn().await;
            let (params, from) = match &known {
                Some(version) => (watch::params(), version.clone()),
                None => (watch::params().initial_events(), oldest.clone()),
            };
            let all = AtomicBool::new(known.is_some());
            let mut arriving = HashMap::new();
            let see = |seen, version| match seen {
                seen if all.load(Ordering::Relaxed) => {
                    known = Some(version);
                    backoff.reset();
                    self.see(seen, &facts);
                }
                Seen::Put(object) => arriving.extend(self.read(object).map(keyed)),
                Seen::Gone(object) => {
                    let gone = self.read(object);
                    drop(gone.and_then(|gone| remove_if(&mut arriving, &gone.instance, &gone.uid)));
                }
                Seen::Nothing => {}
                Seen::All => {
                    self.arrived(std::mem::take(&mut arriving), &facts);
                    tell(&mut synced);
                    streams = Streams::default();
                    known = Some(version);
                    all.store(true, Ordering::Relaxed);
                }
            };
            let late = async {
                sleep(LIST_TIMEOUT).await;
                if all.load(Ordering::Relaxed) {
                    std::future::pending::<()>().await;
                }
            };
            let ended = tokio::select! {
                biased;
                ended = watch::follow("nodes", api.watch(&params, &from), see) => ended,
                () = late => Err(Broken::Failed(KubeError::timed_out("watch", "nodes", "", LIST_TIMEOUT))),
            };
            let (error, cut) = match ended {
                // An ordinary end: it goes on from where it was.
                Ok(()) if all.into_inner() => continue,
                Ok(()) => (KubeError::cut_short("watch", "nodes"), true),
                Err(Broken::TooOld) => {
                    // It is not told, because it is nobody's fault; but until all have arrived anew a Node may be missing.
                    self.0.live.send_replace(false);
                    oldest = known.take().unwrap_or_else(|| NOW.to_owned());
                    continue;
                }
                Err(Broken::Failed(error)) => {
                    let cut = !arriving.is_empty() || error.category == Category::TimedOut;
                    (error, cut)
                }
            };
            if known.is_none() && streams.failed(&error, cut) {
                facts.emit(&Fact::ListsNotStreamed { resource: WatchedResource::Nodes, error: &error });
                continue;
            }
            self.broke(&error, &facts);
            // A cache that can't be as new as we ask for is not asked again.
            oldest = known.take().unwrap_or_else(|| NOW.to_owned());
            sleep(backoff.step()).await;
        }
    }

    /// Puts what there is in the place of what was known.
    fn arrived(&self, nodes: HashMap<InstanceId, Arc<Node>>, facts: &Facts) {
        self.lock().replace(nodes);
        facts.emit(&Fact::NodesSynced { nodes: self.len() });
        self.0.live.send_replace(true);
        self.tell_marks(true);
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
            Seen::Nothing | Seen::All => {}
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
        facts.emit(&Fact::WatchFailed { resource: WatchedResource::Nodes, error });
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn keyed(node: Node) -> (InstanceId, Arc<Node>) {
    (node.instance.clone(), Arc::new(node))
}

/// Takes a Node away, if it is this one and no other that has its instance.
fn remove_if(nodes: &mut HashMap<InstanceId, Arc<Node>>, instance: &InstanceId, uid: &str) -> Option<Arc<Node>> {
    nodes.get(instance).is_some_and(|node| *node.uid == *uid).then(|| nodes.remove(instance))?
}

fn tell(synced: &mut Option<oneshot::Sender<()>>) {
    if let Some(synced) = synced.take() {
        let _ = synced.send(());
    }
}

async fn list(api: &NodeApi, oldest: &str) -> Result<ObjectList<TrimmedNode>, KubeError> {
    let params = match oldest {
        NOW => ListParams::default(),
        version => ListParams::default().at(version).matching(VersionMatch::NotOlderThan),
    };
    match timeout(LIST_TIMEOUT, api.list(&params)).await {
        Ok(listed) => listed.map_err(|error| KubeError::new("list", "nodes", "", &error)),
        Err(_) => Err(KubeError::timed_out("list", "nodes", "", LIST_TIMEOUT)),
    }
}

impl State {
    fn replace(&mut self, mut arrived: HashMap<InstanceId, Arc<Node>>) {
        // What was put in while they arrived is newer than what was there at their beginning.
        for (instance, node) in &mut arrived {
            if let Some(known) = self.by_instance.get(instance)
                && known.uid == node.uid
                && watch::older(&node.resource_version, &known.resource_version)
            {
                *node = Arc::clone(known);
            }
        }
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
        if remove_if(&mut self.by_instance, &instance, uid).is_some() {
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

/// Whether a watch that begins with all that there is is worth trying.
#[derive(Debug, Default)]
struct Streams {
    refused: bool,
    cuts: u32,
}

impl Streams {
    /// So often it may break off in the middle: what stands between may let no long answer through, and a list is shorter.
    const CUTS: u32 = 3;

    const fn worth_trying(&self) -> bool {
        !self.refused && self.cuts < Self::CUTS
    }

    /// Learns that it did not come to its end, perhaps because it was `cut`; tells whether that is no failure, but how this server is.
    fn failed(&mut self, error: &KubeError, cut: bool) -> bool {
        // The feature is off, or not known.
        self.refused = matches!(error.status, 400 | 422);
        self.cuts += u32::from(cut);
        self.refused
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

#[cfg(test)]
mod tests;
