//! Seeing pods go: one watch of pod metadata, shared by all drains, which lives only while drains run.
//!
//! The watch begins at the version of the first drain's list, so it misses nothing that happened since, and costs no list of
//! its own. A pod is known by its UID alone: one of the same name that replaces it is another pod. Deletions are remembered
//! for a while, so that a drain whose list was answered from an older cache learns at once what is gone already.

use crate::fact::{Fact, Facts};
use crate::gate::{Backoff, KubeError};
use crate::task::{Handle, Kind, Tasks};
use futures_util::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod as FullPod;
use kube::Api;
use kube::api::{WatchEvent, WatchParams};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep};

/// Deletions are remembered at least so long and at most twice as long. Caches of API servers lag by seconds.
const REMEMBERED: Duration = Duration::from_mins(1);

/// A watch that died is begun again after so long.
const REVIVED_AFTER: Duration = Duration::from_secs(1);

/// How long the server serves one watch before it ends it, as kube's own watcher asks for.
const WATCH_SECONDS: u32 = 290;

/// Tells drains which pods are gone. Clones are the same watch.
#[derive(Clone)]
pub struct Gone(Arc<Inner>);

struct Inner {
    api: Api<FullPod>,
    tasks: Tasks,
    facts: Facts,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    drains: usize,
    running: Option<Running>,
    followers: HashMap<Arc<str>, Vec<oneshot::Sender<()>>>,
    recent: HashSet<Arc<str>>,
    before: HashSet<Arc<str>>,
    turned_at: Option<Instant>,
}

struct Running {
    _task: Handle<()>,
    /// The version to watch from; `None` until a list has told one, or when the last one has become too old.
    from: watch::Sender<Option<String>>,
    /// Grows when events may have been missed: drains list again. Its sender lives in the task: it closes if that dies.
    missed: watch::Receiver<u64>,
}

/// A drain's share in the watch; the last to be dropped ends it.
pub struct Watching(Gone);

/// Tells a drain that the watch may have missed something.
pub struct Missed {
    gone: Gone,
    news: watch::Receiver<u64>,
}

impl Gone {
    /// A watch that is not running yet.
    #[must_use]
    pub fn new(client: kube::Client, tasks: Tasks, facts: Facts) -> Self {
        Self(Arc::new(Inner { api: Api::all(client), tasks, facts, state: Mutex::default() }))
    }

    /// Takes a share in the watch, and starts it if this is the first.
    #[must_use]
    pub fn watch(&self) -> (Watching, Missed) {
        let mut state = self.lock();
        state.drains += 1;
        let news = state.running.get_or_insert_with(|| self.begin()).missed.clone();
        (Watching(self.clone()), Missed { gone: self.clone(), news })
    }

    fn begin(&self) -> Running {
        let from = watch::Sender::new(None);
        let (told, missed) = watch::channel(0);
        let work = run(self.clone(), from.clone(), told);
        Running { _task: self.0.tasks.spawn(Kind::PodWatch, work), from, missed }
    }

    /// Begins again if the task died. A drain that calls this is one of those that keep the watch running.
    fn revive(&self) -> watch::Receiver<u64> {
        let mut state = self.lock();
        let alive = state.running.take().filter(|running| running.missed.has_changed().is_ok());
        state.running.insert(alive.unwrap_or_else(|| self.begin())).missed.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watching {
    /// The version that a list must not be older than; `None` before the first.
    #[must_use]
    pub fn version(&self) -> Option<String> {
        self.0.lock().running.as_ref().and_then(|running| running.from.borrow().clone())
    }

    /// Tells the version of a list, for the watch to begin from if it has none.
    pub fn listed_at(&self, version: Option<&str>) {
        let Some(version) = version.filter(|version| !version.is_empty()) else { return };
        if let Some(running) = &self.0.lock().running {
            running.from.send_if_modified(|from| {
                let unset = from.is_none();
                if unset {
                    *from = Some(version.to_owned());
                }
                unset
            });
        }
    }

    /// Resolves when the pod with this UID is gone; at once, if it was seen to go lately.
    #[must_use]
    pub fn follow(&self, uid: &Arc<str>) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.0.lock();
        if state.recent.contains(uid) || state.before.contains(uid) {
            let _ = sender.send(());
        } else {
            let followers = state.followers.entry(Arc::clone(uid)).or_default();
            followers.retain(|follower| !follower.is_closed());
            followers.push(sender);
        }
        receiver
    }

    /// Says that a pod is gone which a list, or an eviction's answer, no longer found.
    pub fn saw_gone(&self, uid: &Arc<str>) {
        self.0.lock().gone(uid);
    }

    /// Forgets a pod that nobody waits for any more.
    pub fn unfollow(&self, uid: &Arc<str>) {
        let mut state = self.0.lock();
        if let Some(followers) = state.followers.get_mut(uid) {
            followers.retain(|follower| !follower.is_closed());
            if followers.is_empty() {
                state.followers.remove(uid);
            }
        }
    }
}

impl Missed {
    /// Waits until events may have been missed, so that a new list is due.
    pub async fn anything(&mut self) {
        if self.news.changed().await.is_err() {
            // It panicked, which is told. Whatever made it panic may be there still: not in a tight loop.
            sleep(REVIVED_AFTER).await;
            self.news = self.gone.revive();
        }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.drains -= 1;
        if state.drains == 0 {
            *state = State::default();
        }
    }
}

impl State {
    fn gone(&mut self, uid: &Arc<str>) {
        let now = Instant::now();
        if self.turned_at.is_none_or(|at| now - at >= REMEMBERED) {
            self.before = std::mem::take(&mut self.recent);
            self.turned_at = Some(now);
        }
        self.recent.insert(Arc::clone(uid));
        for follower in self.followers.remove(uid).into_iter().flatten() {
            let _ = follower.send(());
        }
    }
}

/// Watches until aborted.
async fn run(gone: Gone, from: watch::Sender<Option<String>>, missed: watch::Sender<u64>) {
    let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));
    let mut version = from.subscribe();
    loop {
        let Ok(start) = version.wait_for(Option::is_some).await.map(|version| version.clone()) else { return };
        let Some(start) = start else { continue };
        match follow(&gone, &start, &from, &mut backoff).await {
            // An ordinary end; but a server that ends every watch at once must not be asked in a tight loop.
            Ok(told) if told > 0 => {}
            Ok(_) => sleep(backoff.step()).await,
            Err(Broken::TooOld) => {
                from.send_replace(None);
                missed.send_modify(|times| *times += 1);
            }
            Err(Broken::Other(error)) => {
                let error = KubeError::new("watch", "pods", "", &error);
                gone.0.facts.emit(&Fact::WatchFailed { resource: "pods", error: &error });
                sleep(backoff.step()).await;
            }
        }
    }
}

enum Broken {
    /// The version is no longer in the server's history.
    TooOld,
    Other(kube::Error),
}

impl From<kube::Error> for Broken {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.code == 410 => Self::TooOld,
            other => Self::Other(other),
        }
    }
}

/// One watch from `start` to its end, which may be an ordinary one. Says how many events it told.
async fn follow(
    gone: &Gone,
    start: &str,
    from: &watch::Sender<Option<String>>,
    backoff: &mut Backoff,
) -> Result<u64, Broken> {
    let mut told = 0;
    let params = WatchParams::default().timeout(WATCH_SECONDS);
    let mut events = gone.0.api.watch_metadata(&params, start).await?.boxed();
    while let Some(event) = events.try_next().await? {
        backoff.reset();
        told += 1;
        let version = match event {
            WatchEvent::Added(pod) | WatchEvent::Modified(pod) => pod.metadata.resource_version,
            WatchEvent::Deleted(pod) => {
                if let Some(uid) = pod.metadata.uid {
                    gone.lock().gone(&uid.into());
                }
                pod.metadata.resource_version
            }
            WatchEvent::Bookmark(bookmark) => Some(bookmark.metadata.resource_version),
            WatchEvent::Error(status) => return Err(kube::Error::Api(status).into()),
        };
        // Quietly: the watch itself need not hear of it.
        from.send_if_modified(|from| {
            *from = version.or_else(|| from.take());
            false
        });
    }
    Ok(told)
}
