//! Seeing pods go: one watch of pod metadata, shared by all drains, which lives only while drains run.
//!
//! The watch begins at the version of the first drain's list, so it misses nothing that happened since, and costs no list of
//! its own. A list from before that beginning proves nothing, and is made again. A pod is known by its UID alone: one of the same
//! name that replaces it is another pod. Deletions are remembered for a while, so that a drain whose list was answered from an older
//! cache learns at once what is gone already.

use super::select::pod_resource;
use crate::clients::gate::Backoff;
use crate::clients::trimmed::Bare;
use crate::clients::watch as pods;
use crate::clients::watch::{Broken, Pace, Seen};
use crate::fact::{Fact, Facts, TaskKind, WatchedResource};
use crate::runtime::task::{Handle, Tasks};
use kube::Api;
use kube::ResourceExt;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep};

/// Deletions are remembered at least so long and at most twice as long. Caches of API servers lag by seconds.
const REMEMBERED: Duration = Duration::from_mins(1);

/// A watch that died is begun again after so long.
const REVIVED_AFTER: Duration = Duration::from_secs(1);

/// While the watch is down, drains list again at most so often.
const LISTED_AGAIN: Duration = Duration::from_secs(5);

/// Tells drains which pods are gone. Clones are the same watch.
#[derive(Clone)]
pub struct Gone(Arc<Inner>);

struct Inner {
    api: Api<Bare>,
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
    /// What the watch knows; `None` until a list has told where to begin, and when that has become too old.
    known: watch::Sender<Option<Known>>,
    /// Grows when events may have been missed: drains list again. Its sender lives in the task: it closes if that dies.
    missed: watch::Receiver<u64>,
}

/// The stretch of versions that the watch knows without a gap.
#[derive(Clone, Debug)]
struct Known {
    since: String,
    until: String,
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
        Self(Arc::new(Inner { api: Api::all_with(client, &pod_resource()), tasks, facts, state: Mutex::default() }))
    }

    /// Takes a share in the watch, and starts it if this is the first.
    #[must_use]
    pub fn watch(&self) -> (Watching, Missed) {
        let mut state = self.lock();
        state.drains += 1;
        let mut news = state.running.get_or_insert_with(|| self.begin()).missed.clone();
        // What was missed before we came, our own list will show.
        news.mark_unchanged();
        (Watching(self.clone()), Missed { gone: self.clone(), news })
    }

    fn begin(&self) -> Running {
        let known = watch::Sender::new(None);
        let (told, missed) = watch::channel(0);
        let work = run(self.clone(), known.clone(), told);
        Running { _task: self.0.tasks.spawn(TaskKind::PodWatch, work), known, missed }
    }

    /// Begins again if the task died. A drain that calls this is one of those that keep the watch running.
    fn revive(&self) -> watch::Receiver<u64> {
        let mut state = self.lock();
        let alive = state.running.take().filter(|running| running.missed.has_changed().is_ok());
        state.running.insert(alive.unwrap_or_else(|| self.begin())).missed.clone()
    }

    fn saw(&self, pod: &impl ResourceExt) {
        if let Some(uid) = pod.uid() {
            self.lock().gone(&uid.into());
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watching {
    /// The version that a list must not be older than; `None` before the first.
    #[must_use]
    pub fn version(&self) -> Option<String> {
        let state = self.0.lock();
        let known = state.running.as_ref()?.known.borrow();
        known.as_ref().map(|known| known.until.clone())
    }

    /// Tells the version of a list, for the watch to begin from if it has none. `false` says that the watch began after it: what
    /// happened in between nobody has seen, and the list must be made again.
    #[must_use]
    pub fn listed_at(&self, version: &str) -> bool {
        let state = self.0.lock();
        let Some(running) = &state.running else { return true };
        let mut usable = true;
        running.known.send_if_modified(|known| {
            if let Some(known) = known {
                usable = !pods::older(version, &known.since);
                return false;
            }
            *known = Some(Known { since: version.to_owned(), until: version.to_owned() });
            true
        });
        usable
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

    /// Says that a pod is gone which a list no longer shows.
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
async fn run(gone: Gone, known: watch::Sender<Option<Known>>, missed: watch::Sender<u64>) {
    let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));
    let mut pace = Pace::default();
    let mut told_at = None::<Instant>;
    let mut begun = known.subscribe();
    loop {
        let Ok(from) = begun.wait_for(Option::is_some).await.map(|known| known.clone()) else { return };
        let Some(from) = from else { continue };
        pace.turn().await;
        let see = |seen, version| {
            backoff.reset();
            if let Seen::Gone(pod) = seen {
                gone.saw(&pod);
            }
            // Quietly: the watch itself need not hear of it.
            known.send_if_modified(|known| {
                if let Some(known) = known {
                    known.until = version;
                }
                false
            });
        };
        let params = pods::params();
        let watch = gone.0.api.watch(&params, &from.until);
        match pods::follow("pods", watch, see).await {
            // An ordinary end: it goes on from where it was.
            Ok(()) => {}
            Err(Broken::TooOld) => {
                known.send_replace(None);
                missed.send_modify(|times| *times += 1);
                sleep(backoff.step()).await;
            }
            Err(Broken::Failed(error)) => {
                gone.0.facts.emit(&Fact::WatchFailed { resource: WatchedResource::Pods, error: &error });
                // Nothing is missed, but it may take long: until then lists have to do.
                if told_at.is_none_or(|at| at.elapsed() >= LISTED_AGAIN) {
                    told_at = Some(Instant::now());
                    missed.send_modify(|times| *times += 1);
                }
                sleep(backoff.step()).await;
            }
        }
    }
}
