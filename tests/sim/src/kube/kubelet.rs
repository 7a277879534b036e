//! The kubelets, and everything else that timers do.

use super::object::Object;
use super::pod::Pod;
use super::route::Resource;
use super::state::{Shared, State};
use super::store::Key;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// Time until the garbage collector removes the pods of a deleted node.
const ORPHANS: Duration = Duration::from_secs(40);

/// Timers.
#[derive(Debug)]
pub(super) enum Due {
    /// The containers of the pod with this UID are gone.
    Stopped { key: Key, uid: String },
    /// A controller's new pod becomes Ready.
    Replaced { pod: Box<Pod> },
    /// The garbage collector removes the pods of a deleted node.
    Orphaned { node: String },
    /// The attach-detach controller detaches a volume, unless another pod uses it by now.
    Detached { volume: String, node: String },
    /// The controller of a Deployment acts.
    RolledOut { deployment: Key },
    /// A pod of a Deployment becomes Ready.
    Started { key: Key },
    /// The disruption controller stops waiting for a pod that was to be evicted.
    Recount { budget: Key },
}

/// Pending timers, by time and then in order of arrival.
#[derive(Debug, Default)]
pub(super) struct Timers {
    next: u64,
    due: BTreeMap<(Instant, u64), Due>,
}

impl Timers {
    /// Adds a timer; returns whether it is now the first.
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

/// Data of a pod besides its object.
#[derive(Debug)]
pub(super) struct Life {
    pub pod: Pod,
    /// Time at which its containers were asked to stop, and time at which they will be gone.
    pub stopping: Option<(Instant, Instant)>,
    /// Whether a controller has already replaced it.
    pub replaced: bool,
}

impl Life {
    pub fn new(pod: Pod) -> Self {
        Self { pod, stopping: None, replaced: false }
    }
}

/// Runs timers when they are due, as long as the state is in use. Outside a runtime timers run at the next look at the
/// state.
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
    /// Runs all due timers.
    pub fn catch_up(&mut self, now: Instant) {
        while let Some(due) = self.timers.pop(now) {
            match due {
                Due::Stopped { key, uid } => self.stopped(&key, &uid, now),
                Due::Replaced { pod } => self.place(*pod),
                Due::Orphaned { node } => self.remove_orphans(&node),
                Due::Detached { volume, node } => self.detach(&volume, &node),
                Due::RolledOut { deployment } => self.roll_out(&deployment),
                Due::Started { key } => self.started(&key),
                Due::Recount { budget } => self.recount(&budget),
            }
        }
    }

    /// Asks a pod's containers to stop, or to hurry, within this time.
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

    /// Removes a pod whose containers are gone, unless another pod has its name by now, or its kubelet is silent.
    fn stopped(&mut self, key: &Key, uid: &str, now: Instant) {
        let life = self.lives.get(key).filter(|life| !life.pod.hangs);
        let over = life.and_then(|life| life.stopping).is_some_and(|(_, gone)| gone <= now);
        let Some(pod) = self.store.get(Resource::Pods, key).filter(|pod| over && pod.uid() == uid) else {
            return;
        };
        let node = pod.facts.node.clone().unwrap_or_default();
        let kubelet = self.store.get(Resource::Nodes, &Key::cluster(&node)).is_some_and(|node| node.facts.ready);
        if kubelet {
            self.finish(&pod.clone(), key);
        }
    }

    /// Removes a pod whose containers have ended; one with a finalizer stays, terminating, in its last phase.
    pub fn finish(&mut self, pod: &Object, key: &Key) {
        if pod.meta.finalizers.as_ref().is_none_or(Vec::is_empty) {
            self.remove(Resource::Pods, key);
            return;
        }
        let now = Time(self.clock.now());
        let mut ended = pod.with_meta(|meta| {
            meta.deletion_timestamp.get_or_insert(now);
        });
        if !pod.is_finished() {
            let mut value = ended.value(Resource::Pods);
            value["status"]["phase"] = "Failed".into();
            ended = Object::from_value(Resource::Pods, value).expect("a pod with another phase must be a pod");
        }
        self.put(Resource::Pods, ended);
    }

    /// Removes the pods that ended while their kubelet was silent.
    pub fn report_stopped(&mut self, node: &str) {
        let now = Instant::now();
        let pods: Vec<_> = self.store.pods_on(node).map(|pod| (pod.key(), pod.uid().to_owned())).collect();
        for (key, uid) in pods {
            self.stopped(&key, &uid, now);
        }
    }

    /// Removes the terminating pods of a node with the out-of-service taint.
    pub fn force_terminating(&mut self, node: &str) {
        let pods: Vec<_> = self.store.pods_on(node).filter(|pod| pod.is_terminating()).map(|pod| pod.key()).collect();
        for key in pods {
            self.remove(Resource::Pods, &key);
        }
    }

    /// Schedules the garbage collector for a deleted node's pods.
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
