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
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

/// A budget is asked again after 1 to 5 s: what frees it is a pod becoming ready elsewhere.
const REFUSED: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));

/// What one drain's evictions share.
pub(super) struct Evictions<'a> {
    pub drainer: &'a Drainer,
    pub node: &'a Node,
    pub board: &'a Board<'a>,
    pub watching: &'a Watching,
    pub deadline: &'a watch::Receiver<Deadline>,
}

impl Evictions<'_> {
    /// Sees off every pod that goes, all at once: how many calls are in flight is the gate's business.
    pub(super) async fn all(&self, Selection { evict, going, finished, .. }: &Selection) {
        // Boxed each: a drain that waits should cost what its pods need, not what its largest future takes.
        let mut all: FuturesUnordered<BoxFuture<'_, ()>> = FuturesUnordered::new();
        all.extend(evict.iter().map(|pod| self.see_off(pod).boxed()));
        all.extend(going.iter().map(|pod| self.wait_for(pod).boxed()));
        all.extend(finished.iter().map(|pod| self.clear(pod).boxed()));
        while all.next().await.is_some() {}
    }

    /// Evicts a pod and waits until it is gone.
    async fn see_off(&self, pod: &Pod) {
        let gone = self.watching.follow(&pod.uid);
        let _forget = Forget { watching: self.watching, pod };
        tokio::select! {
            biased;
            Ok(()) = gone => {}
            () = self.evict_and_stay(pod) => {}
        }
        self.is_gone(pod);
    }

    /// Waits for a pod that is on its way already.
    async fn wait_for(&self, pod: &Pod) {
        let gone = self.watching.follow(&pod.uid);
        let _forget = Forget { watching: self.watching, pod };
        if gone.await.is_err() {
            // The watch ends with its last drain, and this is one.
            std::future::pending::<()>().await;
        }
        self.is_gone(pod);
    }

    /// Evicts a finished pod; one try, because it holds nothing up.
    async fn clear(&self, pod: &Pod) {
        let answer = self.request(pod).await;
        let result = answer.as_ref().map_or_else(|error| error.category.as_str(), |()| "evicted");
        self.tell(pod, result);
        if answer.is_ok() {
            self.is_gone(pod);
        }
    }

    /// Ends only when the pod is gone by the eviction's own answer.
    async fn evict_and_stay(&self, pod: &Pod) {
        let mut budget = Backoff::new(REFUSED.0, REFUSED.1);
        let mut trouble = Backoff::new(Duration::from_millis(200), REFUSED.1);
        loop {
            let error = match self.request(pod).await {
                Ok(()) => {
                    self.tell(pod, "evicted");
                    self.stands(pod, Standing::Going);
                    if self.drainer.dry_run {
                        return;
                    }
                    return std::future::pending().await;
                }
                Err(error) => error,
            };
            self.tell(pod, error.category.as_str());
            let wait = match error.category {
                // Gone, or replaced by another of the same name.
                Category::NotFound | Category::Conflict => return self.watching.saw_gone(&pod.uid),
                Category::Refused => {
                    self.stands(pod, Standing::Refused(error.message.as_str().into()));
                    budget.step().max(REFUSED.0)
                }
                _ => {
                    self.stands(pod, Standing::Failing(error.to_string().into()));
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

    /// Notes where a pod stands, and tells the first time it is blocked and when it no longer is.
    fn stands(&self, pod: &Pod, standing: Standing) {
        let blocked = match &standing {
            Standing::Refused(by) => Some(by.clone()),
            _ => None,
        };
        let before = self.board.set(pod, standing);
        let was_blocked = matches!(before, Some(Standing::Refused(_)));
        let node = &*self.node.name;
        match blocked {
            Some(by) if !was_blocked => {
                self.drainer.facts.emit(&Fact::PodBlocked { node, pod: &pod.to_string(), by: &by });
            }
            None if was_blocked => {
                self.drainer.facts.emit(&Fact::PodUnblocked { node, pod: &pod.to_string() });
            }
            _ => {}
        }
    }

    fn is_gone(&self, pod: &Pod) {
        self.stands(pod, Standing::Gone);
    }

    fn tell(&self, pod: &Pod, result: &'static str) {
        self.drainer.facts.emit(&Fact::Eviction { node: &self.node.name, pod: &pod.to_string(), result });
    }

    fn retried(&self, error: &KubeError) {
        let category = error.category.as_str();
        self.drainer.facts.emit(&Fact::DrainRetried { node: &self.node.name, step: "evict", category, error });
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
fn grace(wanted: Option<Duration>, own: Option<u32>, left: Duration, hard: bool) -> Option<i64> {
    let wanted = wanted.map(|wanted| wanted.as_secs().max(1));
    // A pod that names none has Kubernetes' default.
    let would_have = wanted.unwrap_or_else(|| u64::from(own.unwrap_or(30)));
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
