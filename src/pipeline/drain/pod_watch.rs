//! The watch that sees pods leave: one watch of pod metadata, shared by all drains, which runs only while a drain runs.
//!
//! The watch begins at the version of the first drain's list, so it misses nothing since and costs no list of its own. A list from
//! before that beginning is not used, and is repeated. A pod is identified by its UID alone: a pod that replaces it under the same
//! name is another pod. Deletions are remembered for a while, so that a drain whose list came from an older cache learns at once
//! which of its pods are gone.

use super::wire::pod_resource;
use crate::clients::gate::KubeError;
use crate::clients::trimmed::Bare;
use crate::clients::watch::{RetryWatcher, WatchUpdate, older};
use crate::fact::{Facts, TaskKind, WatchedResource};
use crate::runtime::task::{Handle, Tasks};
use kube::Api;
use kube::ResourceExt;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep};

/// Minimum time for which a deletion is remembered; the maximum is twice as long. Caches of API servers lag by seconds.
const MIN_DELETION_MEMORY: Duration = Duration::from_mins(1);

/// Wait before a watch whose task died is restarted.
const RESTART_DELAY: Duration = Duration::from_secs(1);

/// Minimum interval between the lists that drains make while the watch is down.
const MIN_RELIST_INTERVAL: Duration = Duration::from_secs(5);

/// The watch of pods. Clones share one watch.
#[derive(Clone)]
pub struct PodWatch(Arc<PodWatchInner>);

struct PodWatchInner {
    api: Api<Bare>,
    tasks: Tasks,
    facts: Facts,
    state: Mutex<PodWatchState>,
}

#[derive(Default)]
struct PodWatchState {
    /// Number of shares.
    drains: usize,
    task: Option<WatchTask>,
    /// Departures that wait for a pod's end, by the pod's UID.
    followers: HashMap<Arc<str>, Vec<oneshot::Sender<()>>>,
    deletions: RecentDeletions,
}

struct WatchTask {
    _handle: Handle<()>,
    /// The versions that the watch has seen; `None` until a list has reported where to begin, and after that has become too old.
    range: watch::Sender<Option<VersionRange>>,
    /// Number of times that events may have been missed. The sender lives in the task, so the channel closes if the task dies.
    gaps: watch::Receiver<u64>,
}

/// A range of versions without a gap.
#[derive(Clone, Debug)]
struct VersionRange {
    since: String,
    until: String,
}

/// A drain's share in the watch. Dropping the last share ends the watch.
pub(super) struct WatchShare(PodWatch);

/// The gaps of the watch, as one drain sees them.
pub(super) struct WatchGaps {
    pod_watch: PodWatch,
    gaps: watch::Receiver<u64>,
}

impl PodWatch {
    /// Returns a watch that does not run yet.
    #[must_use]
    pub fn new(client: kube::Client, tasks: Tasks, facts: Facts) -> Self {
        let api = Api::all_with(client, &pod_resource());
        Self(Arc::new(PodWatchInner { api, tasks, facts, state: Mutex::default() }))
    }

    /// Returns a share in the watch, and starts the watch for the first.
    pub(super) fn join(&self) -> (WatchShare, WatchGaps) {
        let mut state = self.0.state.lock();
        state.drains += 1;
        let mut gaps = state.task.get_or_insert_with(|| self.start()).gaps.clone();
        // The drain's own list shows what earlier gaps have missed.
        gaps.mark_unchanged();
        (WatchShare(self.clone()), WatchGaps { pod_watch: self.clone(), gaps })
    }

    fn start(&self) -> WatchTask {
        let range = watch::Sender::new(None);
        let (gap_sender, gaps) = watch::channel(0);
        let work = run(self.clone(), range.clone(), gap_sender);
        WatchTask { _handle: self.0.tasks.spawn(TaskKind::PodWatch, work), range, gaps }
    }

    /// Restarts the watch if its task died. The caller has a share, so the watch must run.
    fn restart(&self) -> watch::Receiver<u64> {
        let mut state = self.0.state.lock();
        let alive = state.task.take().filter(|task| task.gaps.has_changed().is_ok());
        state.task.insert(alive.unwrap_or_else(|| self.start())).gaps.clone()
    }

    fn saw_gone(&self, pod: &impl ResourceExt) {
        if let Some(uid) = pod.uid() {
            self.0.state.lock().gone(&uid.into());
        }
    }
}

impl WatchShare {
    /// Returns the version that a list must not be older than; `None` before the first list.
    pub(super) fn version(&self) -> Option<String> {
        let state = self.0.0.state.lock();
        let range = state.task.as_ref()?.range.borrow();
        range.as_ref().map(|range| range.until.clone())
    }

    /// Reports the version of a list. The watch starts from it if it has not started yet. Returns whether the list is usable: events between
    /// an older list and the watch's start were not seen.
    pub(super) fn listed_at(&self, version: &str) -> bool {
        let state = self.0.0.state.lock();
        let Some(task) = &state.task else { return true };
        let mut usable = true;
        task.range.send_if_modified(|range| {
            if let Some(range) = range {
                usable = !older(version, &range.since);
                return false;
            }
            *range = Some(VersionRange { since: version.to_owned(), until: version.to_owned() });
            true
        });
        usable
    }

    /// Returns a receiver that resolves when the pod with this UID is gone; at once if its deletion is remembered.
    pub(super) fn follow(&self, uid: &Arc<str>) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.0.0.state.lock();
        if state.deletions.contains(uid) {
            let _ = sender.send(());
        } else {
            let followers = state.followers.entry(Arc::clone(uid)).or_default();
            followers.retain(|follower| !follower.is_closed());
            followers.push(sender);
        }
        receiver
    }

    /// Reports a pod that a list no longer shows.
    pub(super) fn saw_gone(&self, uid: &Arc<str>) {
        self.0.0.state.lock().gone(uid);
    }

    /// Forgets the followers of a pod that have been dropped.
    pub(super) fn unfollow(&self, uid: &Arc<str>) {
        let mut state = self.0.0.state.lock();
        if let Some(followers) = state.followers.get_mut(uid) {
            followers.retain(|follower| !follower.is_closed());
            if followers.is_empty() {
                state.followers.remove(uid);
            }
        }
    }
}

impl Drop for WatchShare {
    fn drop(&mut self) {
        let mut state = self.0.0.state.lock();
        state.drains -= 1;
        if state.drains == 0 {
            *state = PodWatchState::default();
        }
    }
}

impl WatchGaps {
    /// Waits until the watch may have missed events, so that a new list is due.
    pub(super) async fn next(&mut self) {
        if self.gaps.changed().await.is_err() {
            // The task panicked, and may panic again: no tight loop.
            sleep(RESTART_DELAY).await;
            self.gaps = self.pod_watch.restart();
        }
    }
}

impl PodWatchState {
    fn gone(&mut self, uid: &Arc<str>) {
        self.deletions.insert(Arc::clone(uid), Instant::now());
        for follower in self.followers.remove(uid).into_iter().flatten() {
            let _ = follower.send(());
        }
    }
}

/// The UIDs of pods that were deleted lately, in two generations.
#[derive(Default)]
struct RecentDeletions {
    current: HashSet<Arc<str>>,
    previous: HashSet<Arc<str>>,
    /// Beginning of the current generation.
    current_since: Option<Instant>,
}

impl RecentDeletions {
    fn contains(&self, uid: &Arc<str>) -> bool {
        self.current.contains(uid) || self.previous.contains(uid)
    }

    fn insert(&mut self, uid: Arc<str>, now: Instant) {
        if self.current_since.is_none_or(|since| now - since >= MIN_DELETION_MEMORY) {
            self.previous = std::mem::take(&mut self.current);
            self.current_since = Some(now);
        }
        self.current.insert(uid);
    }
}

/// Watches until aborted.
async fn run(pod_watch: PodWatch, range: watch::Sender<Option<VersionRange>>, gaps: watch::Sender<u64>) {
    let PodWatchInner { api, facts, .. } = &*pod_watch.0;
    let mut watcher = RetryWatcher::new(api.clone(), WatchedResource::Pods, facts.clone());
    let mut last_gap = None::<Instant>;
    let mut begun = range.subscribe();
    loop {
        let Ok(from) = begun.wait_for(Option::is_some).await.map(|range| range.clone()) else { return };
        let Some(VersionRange { until, .. }) = from else { continue };
        let see = |seen, version: &str| {
            if let WatchUpdate::Deleted(pod) = seen {
                pod_watch.saw_gone(&pod);
            }
            // Without a notification: only this task waits for one, and needs none.
            range.send_if_modified(|range| {
                if let Some(range) = range {
                    version.clone_into(&mut range.until);
                }
                false
            });
        };
        let failed = |_: &KubeError| {
            // No event is lost, but events may be late for long: meanwhile drains list.
            if last_gap.is_none_or(|at| at.elapsed() >= MIN_RELIST_INTERVAL) {
                last_gap = Some(Instant::now());
                gaps.send_modify(|gaps| *gaps += 1);
            }
            true
        };
        watcher.watch(until, see, failed).await;
        range.send_replace(None);
        gaps.send_modify(|gaps| *gaps += 1);
        watcher.pause().await;
    }
}
