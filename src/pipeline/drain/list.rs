//! The list of a node's pods, and how new it must be.

use super::evict::Evictions;
use super::select::{Selection, leaving_addresses, select};
use super::wire::{TrimmedPod, pods_of};
use super::{Deadline, Drainer, Grace, Remaining};
use crate::clients::gate::{Backoff, Call, Class, KubeError};
use crate::clients::watch::older;
use crate::fact::{DrainStep, Fact};
use crate::pipeline::node::Node;
use kube::api::{ObjectList, VersionMatch};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How new a list of pods must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Freshness {
    /// As new as the API server's cache, and not older than the watch.
    Cached,
    /// Not older than this version, which the watch has reported since the drain's last list. The API server's cache holds it, or
    /// the watch could not have reported it, so that etcd is not read. A cache that is behind in a storm would make etcd read the
    /// pods of all nodes for each list.
    NotOlderThan(String),
    /// The newest state. Kubernetes 1.31 and newer answer from the cache, too, once it has caught up.
    Newest,
}

impl Freshness {
    /// Returns the freshness of the list that follows a list of version `listed`.
    ///
    /// The version that the watch has reported since is new enough only if it is also newer than the Node's cordon. The watch and
    /// the lists may come from one cache that is behind and does not know of a pod that was bound just before the cordon. Versions
    /// of Nodes and pods are one sequence if one etcd stores both; versions that are not numbers are never newer.
    pub(super) fn next(listed: &str, watched: Option<String>, cordoned: Option<&str>) -> Self {
        let newer =
            |watched: &String| older(listed, watched) && cordoned.is_some_and(|cordoned| older(cordoned, watched));
        watched.filter(newer).map_or(Self::Newest, Self::NotOlderThan)
    }
}

impl Drainer {
    /// Returns the time that the Node's pods need to stop by themselves; `None` if no pod must leave.
    ///
    /// # Errors
    /// The API server's answer to the list of the pods, or none by `by`.
    pub async fn room(&self, node: &Node, by: Instant) -> Result<Option<Room>, KubeError> {
        let params = pods_of(&node.name, self.pod_selector.as_deref()).match_any();
        let call = Call { verb: "list", resource: "pods", subject: &node.name };
        let pods = self.gate.kube(call, Class::List, by, || self.pods.list(&params)).await?;
        let selection = select(pods.items, &self.rules);
        let grace = self.terms_of(node).pod_grace;
        let longest = selection.longest_grace(grace).map(|(_, longest)| longest);
        Ok(longest.map(|longest| Room { longest, all: selection.grace_of_all(grace) }))
    }
}

/// The time that the pods of a Node need to stop by themselves.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// The longest grace period.
    longest: Duration,
    /// The grace periods of all, tier after tier.
    all: Duration,
}

impl Room {
    /// Returns the latest time at which a drain begins that leaves each pod its grace period before this deadline; `None` if the deadline
    /// is soft.
    #[must_use]
    pub fn before(self, end: Deadline) -> Option<Instant> {
        Grace { wanted: Some(self.all), own: None }.undisturbed_until(end.lengthened(Remaining::of(self.longest)), None)
    }
}

impl Evictions<'_> {
    /// Lists the node's pods, reports the version to the watch, and returns the selection and the version. Retries until a list
    /// succeeds.
    pub(super) async fn list(&self, mut freshness: Freshness) -> (Selection, String) {
        let drain = self.drain;
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
        loop {
            let by = drain.end().at();
            let error = match self.try_list(&freshness, by).await {
                Ok(pods) => {
                    let version = pods.metadata.resource_version.unwrap_or_default();
                    // A list from before the watch began is not used: the next one asks for the watch's version.
                    if self.watch_share.listed_at(&version) {
                        if drain.drainer.notes_addresses {
                            drain.recorder.leaving_from(leaving_addresses(&pods.items, &drain.drainer.rules));
                        }
                        return (select(pods.items, &drain.drainer.rules), version);
                    }
                    continue;
                }
                Err(error) => error,
            };
            // A cache may stay behind; etcd does not.
            freshness = Freshness::Newest;
            drain.recorder.list_failed(error.to_string().into());
            let (on, category) = (drain.node.named(), error.category);
            drain.drainer.facts.emit(&Fact::DrainRetried { on, step: DrainStep::List, category, error: &error });
            sleep(error.wait(backoff.step())).await;
        }
    }

    async fn try_list(&self, freshness: &Freshness, by: Instant) -> Result<ObjectList<TrimmedPod>, KubeError> {
        let (drainer, node) = (self.drain.drainer, self.drain.node);
        let of_node = pods_of(&node.name, drainer.pod_selector.as_deref());
        let watched = self.watch_share.version();
        let params = match (freshness, &watched) {
            (Freshness::Newest, _) => of_node,
            (Freshness::NotOlderThan(version), _) | (Freshness::Cached, Some(version)) => {
                of_node.at(version).matching(VersionMatch::NotOlderThan)
            }
            (Freshness::Cached, None) => of_node.match_any(),
        };
        let call = Call { verb: "list", resource: "pods", subject: &node.name };
        drainer.gate.kube(call, Class::List, by, || drainer.pods.list(&params)).await
    }
}

#[cfg(test)]
mod tests {
    use super::super::HookEnd;
    use super::*;

    #[test]
    fn what_waits_before_the_evictions_has_time_though_a_grace_period_takes_a_week() {
        let (now, week) = (Instant::now(), Duration::from_hours(7 * 24));
        let room = Room { longest: week, all: week };
        let minutes = |count| now + Duration::from_mins(count);
        let (ends, latest) = (minutes(14), minutes(2880));
        let by_default = HookEnd { ends, latest, grace_from: Some(minutes(15)), assumed: false };
        let before = |end| room.before(Deadline::Hook(end)).unwrap();
        assert!((minutes(14)..minutes(15)).contains(&before(by_default)));
        assert!(before(HookEnd { grace_from: None, ..by_default }) <= ends, "the user has chosen the end");
    }

    #[test]
    fn a_list_is_the_newest_unless_the_watch_is_newer_than_the_cordon() {
        let watched_at = |version: &str| Freshness::NotOlderThan(version.to_owned());
        for (listed, watched, cordoned, expected) in [
            ("7", Some("9"), Some("8"), watched_at("9")),
            ("7", Some("10"), Some("9"), watched_at("10")),
            ("7", Some("9"), Some("9"), Freshness::Newest),
            ("7", Some("9"), Some("10"), Freshness::Newest),
            ("9", Some("9"), Some("8"), Freshness::Newest),
            ("7", Some("9"), None, Freshness::Newest),
            ("7", None, Some("8"), Freshness::Newest),
            ("7", Some("x"), Some("8"), Freshness::Newest),
            ("7", Some("9"), Some("x"), Freshness::Newest),
        ] {
            let freshness = Freshness::next(listed, watched.map(str::to_owned), cordoned);
            assert_eq!(freshness, expected, "{listed} {watched:?} {cordoned:?}");
        }
    }
}
