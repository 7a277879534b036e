//! One pod's way out: its eviction, tried until it is accepted, and then its end.

use super::deadline::Deadline;
use super::gone::Watching;
use super::report::{Board, Standing};
use super::select::{Pod, Selection};
use super::{Drainer, Node};
use crate::fact::Fact;
use crate::gate::{Backoff, Call, Category, Class, KubeError};
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use k8s_openapi::api::policy::v1::Eviction;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta, Preconditions};
use kube::Api;
use kube::api::PostParams;
use kube::core::Status;
use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

/// A budget is asked again after 1 to 5 s: what frees it is a pod becoming ready elsewhere.
const REFUSED: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));

/// What the API server says when a pod of this name is there, but not this pod. Other conflicts are none of the pod's.
const OTHER_UID: &str = "UID in the precondition";

/// What one drain's evictions share.
pub(super) struct Evictions<'a> {
    pub drainer: &'a Drainer,
    pub node: &'a Node,
    pub board: &'a Board<'a>,
    pub watching: &'a Watching,
    pub deadline: &'a watch::Receiver<Deadline>,
}

/// The pods that are on their way out, each seen off by a future of its own.
pub(super) struct Leaving<'a> {
    evictions: &'a Evictions<'a>,
    /// Boxed each: a drain that waits should cost what its pods need, not what its largest future takes.
    all: FuturesUnordered<BoxFuture<'a, Arc<str>>>,
    uids: HashSet<Arc<str>>,
}

impl<'a> Leaving<'a> {
    pub(super) fn new(evictions: &'a Evictions<'a>) -> Self {
        Self { evictions, all: FuturesUnordered::new(), uids: HashSet::new() }
    }

    /// Follows a list: what it shows for the first time is seen off from now on, all at once, for how many calls are in flight is
    /// the gate's business; what it no longer shows is gone.
    pub(super) fn settle(&mut self, selection: Selection) {
        let evictions = self.evictions;
        let Selection { evict, going, finished, .. } = selection;
        let shown: HashSet<Arc<str>> =
            evict.iter().chain(&going).chain(&finished).map(|pod| Arc::clone(&pod.uid)).collect();
        for gone in self.uids.difference(&shown) {
            evictions.watching.saw_gone(gone);
        }
        for pod in evict {
            self.add(pod, |pod| async move { evictions.see_off(&pod).await }.boxed());
        }
        for pod in going {
            self.add(pod, |pod| async move { evictions.wait_for(&pod).await }.boxed());
        }
        for pod in finished {
            self.add(pod, |pod| async move { evictions.clear(&pod).await }.boxed());
        }
    }

    fn add(&mut self, pod: Pod, leave: impl FnOnce(Pod) -> BoxFuture<'a, ()>) {
        let uid = Arc::clone(&pod.uid);
        if self.uids.insert(Arc::clone(&uid)) {
            self.all.push(leave(pod).map(|()| uid).boxed());
        }
    }

    /// Returns when all that were added have left.
    pub(super) async fn all_gone(&mut self) {
        while let Some(uid) = self.all.next().await {
            self.uids.remove(&uid);
        }
    }

    /// Keeps them going, and never returns.
    pub(super) async fn go_on(&mut self) -> Infallible {
        self.all_gone().await;
        std::future::pending().await
    }
}

impl Evictions<'_> {
    /// Evicts a pod and waits until it is gone; or ends when its eviction finds another in its place, or none: what became of it,
    /// the next list shows.
    async fn see_off(&self, pod: &Pod) {
        let gone = self.watching.follow(&pod.uid);
        let _forget = Forget { watching: self.watching, pod };
        tokio::select! {
            biased;
            Ok(()) = gone => self.board.set(pod, Standing::Gone),
            () = self.evict_and_stay(pod) => {}
        }
    }

    /// Waits for a pod that is on its way already.
    async fn wait_for(&self, pod: &Pod) {
        let gone = self.watching.follow(&pod.uid);
        let _forget = Forget { watching: self.watching, pod };
        if gone.await.is_err() {
            // The watch ends with its last drain, and this is one.
            std::future::pending::<()>().await;
        }
        self.board.set(pod, Standing::Gone);
    }

    /// Evicts a finished pod; one try, because it holds nothing up.
    async fn clear(&self, pod: &Pod) {
        let answer = self.request(pod).await;
        let result = answer.as_ref().map_or_else(|error| error.category.as_str(), |()| "evicted");
        self.tell(pod, result);
        if answer.is_ok() {
            self.board.set(pod, Standing::Gone);
        }
    }

    /// Ends only when the eviction's own answer says that this pod is not there, or in a dry run.
    async fn evict_and_stay(&self, pod: &Pod) {
        let mut budget = Backoff::new(REFUSED.0, REFUSED.1);
        let mut trouble = Backoff::new(Duration::from_millis(200), REFUSED.1);
        loop {
            let error = match self.request(pod).await {
                Ok(()) => {
                    self.tell(pod, "evicted");
                    if self.drainer.dry_run {
                        return self.board.set(pod, Standing::Gone);
                    }
                    self.board.set(pod, Standing::Going);
                    return std::future::pending().await;
                }
                Err(error) => error,
            };
            self.tell(pod, error.category.as_str());
            let wait = match error.category {
                Category::NotFound => return,
                Category::Conflict if error.message.contains(OTHER_UID) => return,
                Category::Refused => {
                    self.board.set(pod, Standing::Refused(error.message.as_str().into()));
                    budget.step().max(REFUSED.0)
                }
                _ => {
                    self.board.set(pod, Standing::Failing(error.to_string().into()));
                    self.retried(&error);
                    trouble.step()
                }
            };
            sleep(error.retry_after.map_or(wait, |asked| asked.max(wait))).await;
        }
    }

    async fn request(&self, pod: &Pod) -> Result<(), KubeError> {
        let drainer = self.drainer;
        let deadline = *self.deadline.borrow();
        let left = deadline.at.saturating_duration_since(Instant::now());
        // Not kube's `Api::evict`: it writes the delete options under a name that the API server does not read, and the UID
        // with them.
        let eviction = Eviction {
            metadata: ObjectMeta {
                name: Some(pod.name.to_string()),
                namespace: Some(pod.namespace.to_string()),
                ..ObjectMeta::default()
            },
            delete_options: Some(DeleteOptions {
                grace_period_seconds: grace(drainer.pod_grace, pod.grace, left, deadline.hard),
                preconditions: Some(Preconditions { uid: Some(pod.uid.to_string()), resource_version: None }),
                ..DeleteOptions::default()
            }),
        };
        let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(drainer.client.clone(), &pod.namespace);
        let params = PostParams { dry_run: drainer.dry_run, ..PostParams::default() };
        let name = pod.to_string();
        let call = Call { verb: "create", resource: "pods/eviction", subject: &name };
        let request = pods.create_subresource::<_, Status>("eviction", &pod.name, &params, &eviction);
        drainer.gate.kube(call, Class::of_eviction(deadline.at), deadline.at, request).await.map(drop)
    }

    fn tell(&self, pod: &Pod, result: &'static str) {
        self.drainer.facts.emit(&Fact::Eviction { node: &self.node.name, pod: &pod.to_string(), result });
    }

    fn retried(&self, error: &KubeError) {
        let category = error.category.as_str();
        let Node { name: node, instance, .. } = self.node;
        let instance = instance.as_str();
        self.drainer.facts.emit(&Fact::DrainRetried { node, instance, step: "evict", category, error });
    }
}

/// Takes a pod off the watch's list when nobody waits for it any more.
struct Forget<'a> {
    watching: &'a Watching,
    pod: &'a Pod,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.watching.unfollow(&self.pod.uid);
    }
}

/// The grace period to send, in seconds; `None` leaves the pod its own. Never 0, which would take the pod from the API while
/// its containers run, and before a hard deadline never longer than the time left.
fn grace(wanted: Option<Duration>, own: Option<i64>, left: Duration, hard: bool) -> Option<i64> {
    let wanted = wanted.map(|wanted| wanted.as_secs().max(1));
    // A pod that names none has Kubernetes' default.
    let would_have = wanted.unwrap_or_else(|| own.map_or(30, |own| u64::try_from(own).unwrap_or(1)));
    let send = if hard && would_have > left.as_secs() { Some(left.as_secs().max(1)) } else { wanted };
    send.map(|seconds| i64::try_from(seconds).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_grace_sent() {
        let table = [
            // wanted, own, left, hard → sent
            (None, Some(30), s(120), true, None),
            (None, Some(300), s(120), true, Some(120)),
            (None, None, s(20), true, Some(20)),
            (None, Some(300), s(120), false, None),
            (Some(s(10)), Some(30), s(120), true, Some(10)),
            (Some(s(200)), Some(30), s(120), true, Some(120)),
            (Some(s(0)), Some(30), s(120), false, Some(1)),
            (None, Some(30), s(0), true, Some(1)),
            (None, Some(0), s(0), true, None),
        ];
        for (wanted, own, left, hard, sent) in table {
            assert_eq!(grace(wanted, own, left, hard), sent, "{wanted:?} {own:?} {left:?} {hard}");
        }
    }
}
