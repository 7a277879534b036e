//! The kubelets, and everything else that happens by the clock.

use super::object::Object;
use super::pod::Pod;
use super::route::Resource;
use super::state::{Shared, State};
use super::store::Key;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// How long pods of a node that was deleted stay, before the garbage collector takes them.
const ORPHANS: Duration = Duration::from_secs(40);

/// What happens by the clock.
#[derive(Debug)]
pub(super) enum Due {
    /// A pod's containers are gone, if it is still the one with this UID.
    Stopped { key: Key, uid: String },
    /// A controller's new pod is up.
    Replaced { pod: Box<Pod> },
    /// The pods of a deleted node are taken away.
    Orphaned { node: String },
    /// The disruption controller gives up waiting for a pod that was to be evicted.
    Recount { budget: Key },
}

/// What is due, by time and then in order of arrival.
#[derive(Debug, Default)]
pub(super) struct Timers {
    next: u64,
    due: BTreeMap<(Instant, u64), Due>,
}

impl Timers {
    /// Adds one; answers whether it is now the first.
    pub fn add(&mut self, when: Instant, due: Due) -> bool {
        let at = (when, self.next);
        self.next += 1;
        self.due.insert(at, due);
        self.due.first_key_value().is_some_and(|(first, _)| *first == at)
    }

    fn first(&self) -> Option<Instant> {
        self.due.first_key_value().map(|((when, _), _)| *when)
    }

    fn pop(&mut self, now: Instant) -> Option<Due> {
        self.first().filter(|when| *when <= now).and_then(|_| self.due.pop_first()).map(|(_, due)| due)
    }
}

/// What the simulation knows of a pod beside its object.
#[derive(Debug)]
pub(super) struct Life {
    pub pod: Pod,
    /// When its containers were asked to stop, and when they will be gone.
    pub stopping: Option<(Instant, Instant)>,
    /// Whether a controller has seen to its replacement.
    pub replaced: bool,
}

impl Life {
    pub fn new(pod: Pod) -> Self {
        Self { pod, stopping: None, replaced: false }
    }
}

/// Sees to it that what is due happens, as long as there is somebody to see it. Outside a runtime it happens when
/// somebody looks.
pub(super) fn tick(shared: Weak<Shared>, alarm: Arc<Notify>) {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else {
        return;
    };
    runtime.spawn(async move {
        loop {
            let Some(first) = shared.upgrade().map(|shared| shared.lock().timers.first()) else {
                return;
            };
            match first {
                Some(first) => tokio::select! {
                    () = sleep_until(first) => {}
                    () = alarm.notified() => {}
                },
                None => alarm.notified().await,
            }
        }
    });
}

impl State {
    /// Lets happen what is due.
    pub fn catch_up(&mut self, now: Instant) {
        while let Some(due) = self.timers.pop(now) {
            match due {
                Due::Stopped { key, uid } => self.stopped(&key, &uid, now),
                Due::Replaced { pod } => self.place(*pod),
                Due::Orphaned { node } => self.remove_orphans(&node),
                Due::Recount { budget } => self.recount(&budget),
            }
        }
    }

    /// Asks a pod's containers to stop, or to hurry: they have this long.
    pub fn stop(&mut self, pod: &Object, grace: Duration) {
        let now = Instant::now();
        let key = pod.key();
        let Some(life) = self.lives.get_mut(&key) else { return };
        let since = life.stopping.map_or(now, |(since, _)| since);
        let killed = now + grace;
        let mut gone = life.pod.stops_in.map_or(killed, |after| killed.min(since + after)).max(now);
        if let Some((_, before)) = life.stopping {
            gone = gone.min(before);
        }
        life.stopping = Some((since, gone));
        self.at(gone, Due::Stopped { key, uid: pod.uid().to_owned() });
    }

    /// Removes a pod whose time is over, unless it is another one by now, or there is no kubelet to say so.
    fn stopped(&mut self, key: &Key, uid: &str, now: Instant) {
        let over = self.lives.get(key).and_then(|life| life.stopping).is_some_and(|(_, gone)| gone <= now);
        let Some(pod) = self.store.get(Resource::Pods, key).filter(|pod| over && pod.uid() == uid) else {
            return;
        };
        let node = pod.facts.node.clone().unwrap_or_default();
        let kubelet = self.store.get(Resource::Nodes, &Key::cluster(&node)).is_some_and(|node| node.facts.ready);
        if kubelet {
            self.remove(Resource::Pods, key);
        }
    }

    /// A kubelet that is back reports what ended meanwhile.
    pub fn report_stopped(&mut self, node: &str) {
        let now = Instant::now();
        let pods: Vec<_> = self.store.pods_on(node).map(|pod| (pod.key(), pod.uid().to_owned())).collect();
        for (key, uid) in pods {
            self.stopped(&key, &uid, now);
        }
    }

    /// Takes away what still stops on a node that is gone for good.
    pub fn force_terminating(&mut self, node: &str) {
        let pods: Vec<_> = self.store.pods_on(node).filter(|pod| pod.is_terminating()).map(|pod| pod.key()).collect();
        for key in pods {
            self.remove(Resource::Pods, &key);
        }
    }

    /// The garbage collector comes for a deleted node's pods after a while.
    pub fn orphan(&mut self, node: &str) {
        self.at(Instant::now() + ORPHANS, Due::Orphaned { node: node.to_owned() });
    }

    /// Removes the pods of a node that does not exist.
    pub fn remove_orphans(&mut self, node: &str) {
        if self.store.get(Resource::Nodes, &Key::cluster(node)).is_some() {
            return;
        }
        let pods: Vec<_> = self.store.pods_on(node).map(|pod| pod.key()).collect();
        for key in pods {
            self.remove(Resource::Pods, &key);
        }
    }
}
