//! Watches of one resource, from a version on. [`follow`] is one watch, for the index of Nodes, which decides what its end means.
//! [`RetryWatcher`] continues with the next watch, for pods and for attachments of volumes.
//!
//! kube's own watcher does not fit. It hides bookmarks and versions, which prove that a Node is absent. It notices a dead connection
//! only some time after the 290 s of a watch. And it restarts an ended watch at once, even if a faulty proxy ends every watch.

use crate::clients::gate::{Backoff, CALL_TIMEOUT, KubeError};
use crate::fact::{Fact, Facts, WatchedResource};
use futures_util::{Stream, TryStreamExt};
use kube::api::{ListParams, ObjectList, WatchEvent, WatchParams};
use kube::{Api, ResourceExt};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::pin::pin;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// Duration of one watch in seconds, after which the server ends it.
const WATCH_SECONDS: u32 = 290;

/// Minimum interval between the starts of watches.
const START_INTERVAL: Duration = Duration::from_secs(1);

/// One update from a watch.
#[derive(Debug)]
pub enum WatchUpdate<K> {
    /// The object is new or changed.
    Applied(K),
    /// The object was deleted.
    Deleted(K),
    /// The version is known, without a change.
    Bookmark,
    /// All objects that existed when the watch began have been sent.
    InitialListDone,
}

/// The reason why a watch ended early.
#[derive(Debug)]
pub enum WatchError {
    /// The version is no longer in the server's history: events were missed.
    TooOld,
    /// It could not begin, or its connection broke: events are late, but none is missed.
    Failed(KubeError),
}

/// Annotation of the bookmark after the initial objects.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// Returns the parameters of a watch, with bookmarks, which show that it lives.
#[must_use]
pub fn params() -> WatchParams {
    WatchParams::default().timeout(WATCH_SECONDS)
}

/// Follows one watch to its end. `see` is called with each event, and with the version up to which everything is known then.
///
/// # Errors
/// When the watch ended early.
pub async fn follow<K, S>(
    resource: &'static str,
    begin: impl Future<Output = kube::Result<S>>,
    mut see: impl FnMut(WatchUpdate<K>, String),
) -> Result<(), WatchError>
where
    K: ResourceExt + Clone,
    S: Stream<Item = kube::Result<WatchEvent<K>>>,
{
    let failed = |error: kube::Error| match error {
        kube::Error::Api(status) if status.code == 410 => WatchError::TooOld,
        other => WatchError::Failed(KubeError::new("watch", resource, "", &other)),
    };
    // The server answers at once, and sends events later.
    let begun = timeout(CALL_TIMEOUT, begin).await;
    let begun = begun.map_err(|_| WatchError::Failed(KubeError::timed_out("watch", resource, "", CALL_TIMEOUT)))?;
    let mut events = pin!(begun.map_err(failed)?);
    while let Some(event) = events.try_next().await.map_err(failed)? {
        let (update, version) = match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                let version = object.resource_version();
                (WatchUpdate::Applied(object), version)
            }
            WatchEvent::Deleted(object) => {
                let version = object.resource_version();
                (WatchUpdate::Deleted(object), version)
            }
            WatchEvent::Bookmark(bookmark) => {
                let all = bookmark.metadata.annotations.contains_key(INITIAL_EVENTS_END);
                (
                    if all { WatchUpdate::InitialListDone } else { WatchUpdate::Bookmark },
                    Some(bookmark.metadata.resource_version),
                )
            }
            WatchEvent::Error(status) => return Err(failed(kube::Error::Api(status))),
        };
        if let Some(version) = version {
            see(update, version);
        }
    }
    Ok(())
}

/// Lists all objects.
///
/// # Errors
/// The API server's answer, or none within `limit`.
pub async fn list<K: Clone + DeserializeOwned + Debug>(
    api: &Api<K>,
    resource: WatchedResource,
    params: &ListParams,
    limit: Duration,
) -> Result<ObjectList<K>, KubeError> {
    match timeout(limit, api.list(params)).await {
        Ok(listed) => listed.map_err(|error| KubeError::new("list", resource.as_str(), "", &error)),
        Err(_) => Err(KubeError::timed_out("list", resource.as_str(), "", limit)),
    }
}

/// Watches of one resource, one after another, each from the version that the one before has reached: no event is missed between them.
/// Failures are reported as facts, and retried.
#[derive(Debug)]
pub struct RetryWatcher<K> {
    api: Api<K>,
    resource: WatchedResource,
    facts: Facts,
    backoff: Backoff,
    pacer: StartPacer,
}

impl<K: ResourceExt + Clone + DeserializeOwned + Debug> RetryWatcher<K> {
    /// Asks nothing yet.
    #[must_use]
    pub fn new(api: Api<K>, resource: WatchedResource, facts: Facts) -> Self {
        let backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));
        Self { api, resource, facts, backoff, pacer: StartPacer::default() }
    }

    /// Lists all objects. Retries until a list succeeds; returns `None` after a failure for which `passes` returns `false`.
    pub async fn list(&mut self, limit: Duration, passes: impl Fn(&KubeError) -> bool) -> Option<ObjectList<K>> {
        loop {
            match list(&self.api, self.resource, &ListParams::default(), limit).await {
                Ok(listed) => return Some(listed),
                Err(error) if !self.retries(&error, &passes).await => return None,
                Err(_) => {}
            }
        }
    }

    /// Watches from `version` on, and calls `see` as [`follow`] does. Returns `true` when events were missed, and `false` after a failure for
    /// which `passes` returns `false`.
    pub async fn watch(
        &mut self,
        mut version: String,
        mut see: impl FnMut(WatchUpdate<K>, &str),
        mut passes: impl FnMut(&KubeError) -> bool,
    ) -> bool {
        loop {
            self.pacer.turn().await;
            let (params, from) = (params(), version.clone());
            let see = |seen, at| {
                self.backoff.reset();
                version = at;
                see(seen, &version);
            };
            match follow(self.resource.as_str(), self.api.watch(&params, &from), see).await {
                Err(WatchError::TooOld) => return true,
                Err(WatchError::Failed(error)) if !self.retries(&error, &mut passes).await => return false,
                // The server ends each watch after some minutes.
                Ok(()) | Err(WatchError::Failed(_)) => {}
            }
        }
    }

    /// Waits before the next try. The wait grows until an event arrives.
    pub async fn pause(&mut self) {
        sleep(self.backoff.step()).await;
    }

    /// Reports a failure, and pauses if `passes` returns `true` for it. Returns what `passes` returned.
    async fn retries(&mut self, error: &KubeError, passes: impl FnOnce(&KubeError) -> bool) -> bool {
        self.facts.emit(&Fact::WatchFailed { resource: self.resource, error });
        let retries = passes(error);
        if retries {
            self.pause().await;
        }
        retries
    }
}

/// Returns whether version `a` came before `b`. Versions of one resource are growing integers (KEP-5504); for others, the later arrival
/// counts.
#[must_use]
pub fn older(a: &str, b: &str) -> bool {
    matches!((a.parse::<u64>(), b.parse::<u64>()), (Ok(a), Ok(b)) if a < b)
}

/// Keeps the starts of watches apart.
#[derive(Debug, Default)]
pub struct StartPacer(Option<Instant>);

impl StartPacer {
    /// Waits until the next watch may begin.
    pub async fn turn(&mut self) {
        if let Some(last) = self.0 {
            sleep_until(last + START_INTERVAL).await;
        }
        self.0 = Some(Instant::now());
    }
}
