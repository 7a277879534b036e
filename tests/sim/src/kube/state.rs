//! The cluster's whole state, and the two ways to change it: putting an object, and removing an object.
//!
//! The consequences of a change, such as a budget's count or a pod's binding to a node, happen within the change.

use super::budget::Budget;
use super::delete::Evicted;
use super::deployment::Rollout;
use super::kubelet::{self, Life, Timers};
use super::node::Rival;
use super::object::Object;
use super::pod::{Owner, Pod};
use super::route::Resource;
use super::store::{Key, Store};
use crate::clock::Clock;
use jiff::SignedDuration;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The state, shared by its users.
#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    /// Wakes the background task when the first timer changes, and when this is dropped.
    alarm: Arc<Notify>,
    ticking: AtomicBool,
}

/// The state. Maps are ordered, so that a run depends on its seed and nothing else.
#[derive(Debug)]
pub(super) struct State {
    pub clock: Clock,
    pub store: Store,
    pub rng: fastrand::Rng,
    pub timers: Timers,
    /// Data of each pod besides its object.
    pub lives: BTreeMap<Key, Life>,
    pub budgets: BTreeMap<Key, Budget>,
    /// Number of pods that each controller should have, by namespace.
    pub replicas: BTreeMap<(String, Owner), i32>,
    pub evicted: Vec<Evicted>,
    /// Whether the server's caches lag, so that it refuses lists without a resourceVersion.
    pub behind: bool,
    /// The version that the server's caches show, if they have stopped.
    pub cache: Option<u64>,
    /// Time that controllers take to replace a pod, if they do.
    pub replace_after: Option<Duration>,
    /// Time from the end of the last pod that uses a volume to the removal of its attachment; `None` leaks it.
    pub detach_after: Option<Duration>,
    /// Nodes that accept new pods, and the last node that got one.
    pub open_nodes: BTreeSet<String>,
    pub last_placed: String,
    /// The Deployments, as their controller knows them.
    pub rollouts: BTreeMap<Key, Rollout>,
    /// Pods that wait for a node.
    pub waiting: BTreeSet<Key>,
    /// Namespaces that are being terminated.
    pub terminating: BTreeSet<String>,
    /// What the client may not do: `list pods`, `create pods/eviction`.
    pub denied: BTreeSet<String>,
    /// Time by which the server's clock is ahead of the world's.
    pub ahead: SignedDuration,
    /// Whether a controller taints cordoned nodes.
    pub taint_cordoned: bool,
    /// Another writer of nodes.
    pub rival: Rival,
    alarm: Arc<Notify>,
}

impl Shared {
    pub fn new(clock: Clock, seed: u64) -> Self {
        let alarm = Arc::new(Notify::new());
        let state = State {
            clock,
            store: Store::new(),
            rng: fastrand::Rng::with_seed(seed),
            timers: Timers::default(),
            lives: BTreeMap::new(),
            budgets: BTreeMap::new(),
            replicas: BTreeMap::new(),
            evicted: Vec::new(),
            behind: false,
            cache: None,
            replace_after: None,
            detach_after: Some(Duration::from_secs(2)),
            open_nodes: BTreeSet::new(),
            last_placed: String::new(),
            rollouts: BTreeMap::new(),
            waiting: BTreeSet::new(),
            terminating: BTreeSet::new(),
            denied: BTreeSet::new(),
            ahead: SignedDuration::ZERO,
            taint_cordoned: false,
            rival: Rival::default(),
            alarm: Arc::clone(&alarm),
        };
        Self { state: Mutex::new(state), alarm, ticking: AtomicBool::new(false) }
    }

    /// Locks the state, after running all due timers.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        state.catch_up(Instant::now());
        state
    }

    /// Starts, once, the task that takes the lock whenever a timer is due.
    pub fn tick(self: &Arc<Self>) {
        if !self.ticking.swap(true, Ordering::Relaxed) {
            kubelet::tick(Arc::downgrade(self), Arc::clone(&self.alarm));
        }
    }

    pub fn watches(&self) -> usize {
        self.lock().store.receivers()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.alarm.notify_one();
    }
}

impl State {
    /// Writes an object; returns it as written. A write without a change returns the old object, and watches do not
    /// see it.
    pub fn put(&mut self, resource: Resource, object: Object) -> Arc<Object> {
        if let Some(old) = self.store.get(resource, &object.key())
            && old.says_the_same_as(&object)
        {
            return Arc::clone(old);
        }
        let (object, before) = self.store.put(resource, object);
        match resource {
            Resource::Pods => self.pod_changed(before.as_deref(), Some(&object)),
            Resource::Nodes => self.node_changed(&object),
            Resource::Deployments => self.deployment_changed(&object),
            _ => {}
        }
        object
    }

    /// Removes an object; returns its last version.
    pub fn remove(&mut self, resource: Resource, key: &Key) -> Option<Arc<Object>> {
        let before = self.store.remove(resource, key)?;
        match resource {
            Resource::Pods => {
                self.pod_changed(Some(&before), None);
                self.pod_gone(key, &before);
            }
            Resource::Nodes => {
                self.open_nodes.remove(&key.name);
            }
            _ => {}
        }
        Some(before)
    }

    /// Adds a pod; returns its name. Does nothing if that name is taken.
    pub fn create_pod(&mut self, pod: Pod) -> String {
        let (name, key) = loop {
            let name = pod.name.clone().unwrap_or_else(|| format!("{}-{}", pod.base_name(), self.suffix()));
            let key = Key::new(&pod.namespace, &name);
            match (self.store.get(Resource::Pods, &key).is_some(), &pod.name) {
                (false, _) => break (name, key),
                // A requested name that is taken belongs to that pod.
                (true, Some(_)) => return name,
                // A generated name that is taken is generated again.
                (true, None) => {}
            }
        };
        let uid = self.uuid();
        let object = pod.object(&name, &uid, self.clock.now());
        self.attach(&pod);
        self.lives.insert(key, Life::new(pod));
        self.put(Resource::Pods, object);
        name
    }

    /// Removes a pod at once.
    pub fn remove_pod(&mut self, key: &Key) {
        self.remove(Resource::Pods, key);
    }

    /// Removes a node and its pods at once.
    pub fn remove_node(&mut self, name: &str) {
        self.remove(Resource::Nodes, &Key::cluster(name));
        self.remove_orphans(name);
    }

    /// Schedules a timer.
    pub fn at(&mut self, when: Instant, due: kubelet::Due) {
        if self.timers.add(when, due) {
            self.alarm.notify_one();
        }
    }

    /// Returns a UUID from the seed.
    pub fn uuid(&mut self) -> String {
        let (high, low) = (self.rng.u64(..), self.rng.u64(..));
        format!(
            "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
            high >> 32,
            (high >> 16) & 0xffff,
            high & 0xfff,
            0x8000 | (low >> 48 & 0x3fff),
            low & 0xffff_ffff_ffff
        )
    }

    /// Returns five characters that make a generated name unique.
    pub fn suffix(&mut self) -> String {
        const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        (0..5).map(|_| char::from(LETTERS[self.rng.usize(..LETTERS.len())])).collect()
    }
}
