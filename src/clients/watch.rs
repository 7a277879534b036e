//! One watch of one resource, from a version on. The loops around it, for Nodes and for pods, decide what a break means.
//!
//! Not kube's own watcher: it swallows bookmarks, so that nobody can tell a watch that is quiet from one that is down, and it begins
//! an ended watch again at once, however often a broken proxy ends it.

use crate::clients::gate::{CALL_TIMEOUT, KubeError};
use futures_util::{Stream, TryStreamExt};
use kube::ResourceExt;
use kube::api::{WatchEvent, WatchParams};
use std::pin::pin;
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout};

/// How long the server serves one watch before it ends it.
const WATCH_SECONDS: u32 = 290;

/// Watches begin at least so far apart, whatever ends them.
const APART: Duration = Duration::from_secs(1);

/// What a watch tells.
#[derive(Debug)]
pub enum Seen<K> {
    /// The object is new or changed.
    Put(K),
    /// The object is gone.
    Gone(K),
    /// Nothing happened up to here.
    Nothing,
    /// Everything that was there when the watch began has been told.
    All,
}

/// Why a watch ended before its time.
#[derive(Debug)]
pub enum Broken {
    /// The version is no longer in the server's history: events were missed.
    TooOld,
    /// It could not begin, or its connection broke: events are late, but none is missed.
    Failed(KubeError),
}

/// What a bookmark carries that ends what was there at the beginning.
const ALL: &str = "k8s.io/initial-events-end";

/// How a watch is asked for: with bookmarks, which tell that it lives.
#[must_use]
pub fn params() -> WatchParams {
    WatchParams::default().timeout(WATCH_SECONDS)
}

/// Follows one watch to its end. `see` is told each event, and the version up to which everything is known then.
///
/// # Errors
/// Why it ended before its time.
pub async fn follow<K, S>(
    resource: &'static str,
    begin: impl Future<Output = kube::Result<S>>,
    mut see: impl FnMut(Seen<K>, String),
) -> Result<(), Broken>
where
    K: ResourceExt + Clone,
    S: Stream<Item = kube::Result<WatchEvent<K>>>,
{
    let broken = |error: kube::Error| match error {
        kube::Error::Api(status) if status.code == 410 => Broken::TooOld,
        other => Broken::Failed(KubeError::new("watch", resource, "", &other)),
    };
    // The server answers at once, though what it tells takes its time.
    let begun = timeout(CALL_TIMEOUT, begin).await;
    let begun = begun.map_err(|_| Broken::Failed(KubeError::timed_out("watch", resource, "", CALL_TIMEOUT)))?;
    let mut events = pin!(begun.map_err(broken)?);
    while let Some(event) = events.try_next().await.map_err(broken)? {
        let (seen, version) = match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                let version = object.resource_version();
                (Seen::Put(object), version)
            }
            WatchEvent::Deleted(object) => {
                let version = object.resource_version();
                (Seen::Gone(object), version)
            }
            WatchEvent::Bookmark(bookmark) => {
                let all = bookmark.metadata.annotations.contains_key(ALL);
                (if all { Seen::All } else { Seen::Nothing }, Some(bookmark.metadata.resource_version))
            }
            WatchEvent::Error(status) => return Err(broken(kube::Error::Api(status))),
        };
        if let Some(version) = version {
            see(seen, version);
        }
    }
    Ok(())
}

/// Whether version `a` came before `b`. Versions of one resource are integers that grow (KEP-5504); where they can't be read so,
/// the later arrival counts.
#[must_use]
pub fn older(a: &str, b: &str) -> bool {
    matches!((a.parse::<u64>(), b.parse::<u64>()), (Ok(a), Ok(b)) if a < b)
}

/// Keeps watches apart.
#[derive(Debug, Default)]
pub struct Pace(Option<Instant>);

impl Pace {
    /// Waits until the next watch may begin.
    pub async fn turn(&mut self) {
        if let Some(last) = self.0 {
            sleep_until(last + APART).await;
        }
        self.0 = Some(Instant::now());
    }
}
