//! The departures of a node's pods. Each is a future of its own.

use super::evict::Evictions;
use super::select::{Departure, Selection};
use super::tier::Tier;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Timeout for the evictions of finished pods at the end of a round. The drain does not depend on them.
const FINISHED_TIMEOUT: Duration = Duration::from_secs(2);

/// The departures in progress.
pub(super) struct Departures<'a> {
    evictions: &'a Evictions<'a>,
    /// Pods that the drain waits for. Each future is boxed: it takes only the memory that it needs, not that of the largest.
    leaving: FuturesUnordered<BoxFuture<'a, Arc<str>>>,
    /// Tiers of the pods in `leaving`, by UID.
    tiers: HashMap<Arc<str>, Tier>,
    /// Evictions of pods whose containers have ended.
    finished: FuturesUnordered<BoxFuture<'a, Arc<str>>>,
    /// UIDs of the pods in `finished`.
    finished_uids: HashSet<Arc<str>>,
}

impl<'a> Departures<'a> {
    pub(super) fn new(evictions: &'a Evictions<'a>) -> Self {
        Self {
            evictions,
            leaving: FuturesUnordered::new(),
            tiers: HashMap::new(),
            finished: FuturesUnordered::new(),
            finished_uids: HashSet::new(),
        }
    }

    /// Starts the departure of every pod that a list shows for the first time. All start at once: the gate limits the calls in
    /// flight. If the list is `newer` than the one before, a pod that it does not show is gone.
    pub(super) fn update(&mut self, selection: Selection, newer: bool) {
        let evictions = self.evictions;
        let Selection { evict, terminating, finished, .. } = selection;
        if newer {
            let listed: HashSet<&Arc<str>> =
                evict.iter().chain(&terminating).chain(&finished).map(|departure| &departure.pod.uid).collect();
            for gone in self.tiers.keys().filter(|uid| !listed.contains(uid)) {
                evictions.watch_share.saw_gone(gone);
            }
        }
        for departure in evict {
            self.start(departure, |departure| async move { evictions.evict_and_wait(&departure).await }.boxed());
        }
        // A dry run does not wait for pods that another controller has evicted.
        for departure in terminating.into_iter().filter(|_| !evictions.drain.drainer.dry_run) {
            self.start(departure, |departure| async move { evictions.wait_until_gone(&departure).await }.boxed());
        }
        for departure in finished {
            let uid = Arc::clone(&departure.pod.uid);
            if self.finished_uids.insert(Arc::clone(&uid)) {
                let evict = async move { evictions.evict_finished(&departure).await };
                self.finished.push(evict.map(|()| uid).boxed());
            }
        }
    }

    fn start(&mut self, departure: Departure, leave: impl FnOnce(Departure) -> BoxFuture<'a, ()>) {
        let uid = Arc::clone(&departure.pod.uid);
        if !self.tiers.contains_key(&uid) {
            self.tiers.insert(Arc::clone(&uid), departure.tier);
            self.evictions.tiers.added(departure.tier);
            self.leaving.push(leave(departure).map(|()| uid).boxed());
        }
    }

    /// Waits until all departures have ended.
    pub(super) async fn all_gone(&mut self) {
        while !self.leaving.is_empty() {
            self.next_gone().await;
        }
        let finished = async {
            while let Some(uid) = self.finished.next().await {
                self.finished_uids.remove(&uid);
            }
        };
        // After the timeout, the next list shows which finished pods are left.
        let _ = timeout(FINISHED_TIMEOUT, finished).await;
    }

    /// Drives the departures, and never returns.
    pub(super) async fn proceed(&mut self) -> Infallible {
        while !self.leaving.is_empty() || !self.finished.is_empty() {
            self.next_gone().await;
        }
        std::future::pending().await
    }

    async fn next_gone(&mut self) {
        tokio::select! {
            biased;
            Some(uid) = self.leaving.next() => {
                if let Some(tier) = self.tiers.remove(&uid) {
                    self.evictions.tiers.left(tier);
                    self.evictions.drain.deadlines.change_pods(|pods| pods.gone(&uid));
                }
            }
            Some(uid) = self.finished.next() => {
                self.finished_uids.remove(&uid);
            }
        }
    }
}
