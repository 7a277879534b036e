//! The pods that are on their way out, each seen off by a future of its own.

use super::evict::Evictions;
use super::select::{Leaver, Selection, Tier};
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Finished pods are waited for no longer than this at the end of a round: they hold nothing up.
const FINISHED: Duration = Duration::from_secs(2);

/// The pods that are on their way out.
pub(super) struct Leaving<'a> {
    evictions: &'a Evictions<'a>,
    /// Boxed each: a drain that waits should cost what its pods need, not what its largest future takes.
    all: FuturesUnordered<BoxFuture<'a, Arc<str>>>,
    tiers: HashMap<Arc<str>, Tier>,
    /// Those whose containers have ended.
    finished: FuturesUnordered<BoxFuture<'a, Arc<str>>>,
    clearing: HashSet<Arc<str>>,
}

impl<'a> Leaving<'a> {
    pub(super) fn new(evictions: &'a Evictions<'a>) -> Self {
        Self {
            evictions,
            all: FuturesUnordered::new(),
            tiers: HashMap::new(),
            finished: FuturesUnordered::new(),
            clearing: HashSet::new(),
        }
    }

    /// Follows a list: what it shows for the first time is seen off from now on, all at once, for how many calls are in flight is
    /// the gate's business; what a list that is of `now` no longer shows is gone.
    pub(super) fn settle(&mut self, selection: Selection, now: bool) {
        let evictions = self.evictions;
        let Selection { evict, going, finished, .. } = selection;
        if now {
            let shown: HashSet<&Arc<str>> =
                evict.iter().chain(&going).chain(&finished).map(|leaver| &leaver.pod.uid).collect();
            for gone in self.tiers.keys().filter(|uid| !shown.contains(uid)) {
                evictions.watching.saw_gone(gone);
            }
        }
        for leaver in evict {
            self.add(leaver, |leaver| async move { evictions.see_off(&leaver).await }.boxed());
        }
        // Asked whether it would, the API server has nothing to end.
        for leaver in going.into_iter().filter(|_| !evictions.drainer.dry_run) {
            self.add(leaver, |leaver| async move { evictions.wait_for(&leaver).await }.boxed());
        }
        for leaver in finished {
            let uid = Arc::clone(&leaver.pod.uid);
            if self.clearing.insert(Arc::clone(&uid)) {
                self.finished.push(async move { evictions.clear(&leaver).await }.map(|()| uid).boxed());
            }
        }
    }

    fn add(&mut self, leaver: Leaver, leave: impl FnOnce(Leaver) -> BoxFuture<'a, ()>) {
        let uid = Arc::clone(&leaver.pod.uid);
        if !self.tiers.contains_key(&uid) {
            self.tiers.insert(Arc::clone(&uid), leaver.tier);
            self.evictions.turns.come(leaver.tier);
            self.all.push(leave(leaver).map(|()| uid).boxed());
        }
    }

    /// Returns when all that were added have left.
    pub(super) async fn all_gone(&mut self) {
        while !self.all.is_empty() {
            self.one_gone().await;
        }
        let finished = async {
            while let Some(uid) = self.finished.next().await {
                self.clearing.remove(&uid);
            }
        };
        // In vain: the next list shows what is left.
        let _ = timeout(FINISHED, finished).await;
    }

    /// Keeps them going, and never returns.
    pub(super) async fn go_on(&mut self) -> Infallible {
        while !self.all.is_empty() || !self.finished.is_empty() {
            self.one_gone().await;
        }
        std::future::pending().await
    }

    async fn one_gone(&mut self) {
        tokio::select! {
            biased;
            Some(uid) = self.all.next() => {
                if let Some(tier) = self.tiers.remove(&uid) {
                    self.evictions.turns.gone(tier);
                }
            }
            Some(uid) = self.finished.next() => {
                self.clearing.remove(&uid);
            }
        }
    }
}
