//! The cluster's whole state, and the two ways in which it changes: an object is put, or removed.
//!
//! Whatever follows from a change — a budget's count, a pod that finds a node — follows within it.

use super::budget::Budget;
use super::delete::Evicted;
use super::kubelet::{self, Life, Timers};
use super::node::Rival;
use super::object::Object;
use super::pod::{Owner, Pod};
use super::route::Resource;
use super::store::{Key, Store};
use crate::clock::Clock;
use jiff::SignedDuration;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The state, and what its users share.
#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    /// Wakes the background task when the first timer changes, and when this is dropped.
    alarm: Arc<Notify>,
    ticking: AtomicBool,
}

/// All that is known. Maps are ordered, so that a run depends on its seed and nothing else.
#[derive(Debug)]
pub(super) struct State {
    pub clock: Clock,
    pub store: Store,
    pub rng: fastrand::Rng,
    pub timers: Timers,
    /// What the simulation knows of each pod beside its object.
    pub lives: BTreeMap<Key, Life>,
    pub budgets: BTreeMap<Key, Budget>,
    /// How many pods each controller is meant to have, by namespace.
    pub replicas: BTreeMap<(String, Owner), i32>,
    pub evicted: Vec<Evicted>,
    /// Whether the server's caches are behind, so that it answers no list of now.
    pub behind: bool,
    /// How long controllers take to replace a pod, where they do.
    pub replace_after: Option<Duration>,
    /// The nodes that take new pods, and the last one that did.
    pub open_nodes: BTreeSet<String>,
    pub last_placed: String,
    /// Pods that wait for a node.
    pub waiting: BTreeSet<Key>,
    /// Namespaces that are being terminated.
    pub terminating: BTreeSet<String>,
    /// What the client may not do: `list pods`, `create pods/eviction`.
    pub denied: BTreeSet<String>,
    /// How much the server's clock is ahead of the world's.
    pub ahead: SignedDuration,
    /// Whether a cordon is followed by a taint.
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
            replace_after: None,
            open_nodes: BTreeSet::new(),
            last_placed: String::new(),
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

    /// The state as it is now: what was due has happened.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.catch_up(Instant::now());
        state
    }

    /// Starts the task that takes the lock whenever something is due; once.
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
    /// Writes an object; answers it as written, or as it was if that says the same: a write without a change is no
    /// write, and nobody hears of it.
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
            _ => {}
        }
        object
    }

    /// Removes an object; answers it as it was last.
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

    /// Adds a pod; answers its name. Does nothing if that name is taken.
    pub fn create_pod(&mut self, pod: Pod) -> String {
        let (name, key) = loop {
            let name = pod.name.clone().unwrap_or_else(|| format!("{}-{}", pod.base_name(), self.suffix()));
            let key = Key::new(&pod.namespace, &name);
            match (self.store.get(Resource::Pods, &key).is_some(), &pod.name) {
                (false, _) => break (name, key),
                // A name that was asked for and is taken: it is that pod.
                (true, Some(_)) => return name,
                // One that was drawn and is taken is drawn again.
                (true, None) => {}
            }
        };
        let uid = self.uuid();
        let object = pod.object(&name, &uid, self.clock.now());
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

    /// Does something later.
    pub fn at(&mut self, when: Instant, due: kubelet::Due) {
        if self.timers.add(when, due) {
            self.alarm.notify_one();
        }
    }

    /// A UUID from the seed.
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

    /// Five characters that make a generated name unique.
    pub fn suffix(&mut self) -> String {
        const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        (0..5).map(|_| char::from(LETTERS[self.rng.usize(..LETTERS.len())])).collect()
    }
}
