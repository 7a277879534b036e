//! One pod's departure: its turn, and the surge of its Deployment; its eviction, retried until it is accepted or the deadline requires the
//! pod's deletion; and its end.
//!
//! ```text
//!   turn ──▶ evict ─┬─ accepted ─────────────────────────────▶ Terminating ──▶ gone
//!             ▲  │  ├─ refused, or failed: retry                  ▲ shortened before a hard deadline
//!             └──┼──┘                                             │
//!                └─ a hard deadline is near: delete ─ accepted ───┘
//! ```

mod request;

use super::context::Drain;
use super::deadline::Deadline;
use super::grace::{AtDeadline, Grace};
use super::pod_watch::WatchShare;
use super::report::{PodState, RemovalCause};
use super::select::{Departure, Protection};
use super::surge::surge;
use super::tier::TierOrder;
use super::wire::PodId;
use crate::clients::gate::{Backoff, Blocker, Category, Class, KubeError};
use crate::fact::{DrainStep, Fact};
use std::pin::{Pin, pin};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until};

/// Minimum wait before an eviction that was refused is retried. A budget allows it when a pod has become ready elsewhere.
const MIN_REFUSED_RETRY: Duration = Duration::from_secs(1);

/// Waits between retries of an eviction that was refused.
const REFUSED_RETRY: Backoff = Backoff::new(MIN_REFUSED_RETRY, Duration::from_secs(5));

/// Waits between retries of a call that failed.
const FAILED_RETRY: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));

/// Remedy for a budget that protects a pod which is not Ready. By default (`IfHealthyBudget`) it does so while too few others are Ready.
const UNHEALTHY_REMEDY: &str =
    "the pod is not Ready, and can be evicted with unhealthyPodEvictionPolicy: AlwaysAllow in the budget";

/// Time after the end of a pod's grace period at which a list shows why the pod is still there; then the interval between reports.
const OVERDUE_AFTER: Duration = Duration::from_secs(10);

/// The evictions of one drain.
pub(super) struct Evictions<'a> {
    pub drain: &'a Drain<'a>,
    pub watch_share: &'a WatchShare,
    pub tiers: &'a TierOrder,
    /// Notified when a pod is still there after the end of its grace period.
    pub overdue: &'a Notify,
}

/// The result of asking the API server to remove a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Removal {
    /// The pod terminates, and should be gone at `ends`.
    Terminating { ends: Instant },
    /// The API server has no pod with this UID. The next list shows whether another pod has taken its place.
    NotFound,
    /// The API server would have accepted the removal, had this not been a dry run.
    DryRunAccepted,
    /// The API server would have refused the eviction, had this not been a dry run.
    DryRunRefused,
}

/// The time at which a pod's eviction was first sent.
type FirstSent = watch::Sender<Option<Instant>>;

impl Evictions<'_> {
    /// Evicts a pod and waits until it is gone. Returns earlier if there is nothing to wait for.
    pub(super) async fn evict_and_wait(&self, departure: &Departure) {
        let work = pin!(async {
            self.wait_for_turn(departure).await;
            // Boxed, as all calls are here: a pod spends most of its departure waiting, not calling.
            match Box::pin(self.evict_or_delete(departure)).await {
                Removal::Terminating { ends } => self.keep_in_time(departure, ends).await,
                Removal::NotFound | Removal::DryRunAccepted | Removal::DryRunRefused => {}
            }
        });
        self.until_gone(departure, work).await;
    }

    /// Waits until a pod that is terminating already is gone.
    pub(super) async fn wait_until_gone(&self, departure: &Departure) {
        let ends = departure.ends.map_or_else(Instant::now, |ends| self.drain.drainer.clock.instant_of(ends));
        let work = pin!(self.keep_in_time(departure, ends));
        self.until_gone(departure, work).await;
    }

    /// Evicts a finished pod, without a retry: the drain does not wait for it.
    pub(super) async fn evict_finished(&self, departure: &Departure) {
        match self.evict(departure, &FirstSent::default(), None).await {
            Ok(_) => self.drain.recorder.set(&departure.pod, PodState::Gone(RemovalCause::Evicted)),
            Err(error) => self.failed(&departure.pod, &error),
        }
    }

    /// Evicts the pod of this process, and then waits for its termination. Returns only if the pod does not exist, or in a dry run.
    pub(super) async fn evict_own_pod(&self, own_pod: &Departure) {
        let mut backoff = REFUSED_RETRY;
        loop {
            match self.evict(own_pod, &FirstSent::default(), None).await {
                Ok(Removal::Terminating { .. }) => {
                    self.drain.drainer.facts.emit(&Fact::LeavingNode { on: self.drain.node.named() });
                    self.drain.drainer.leave.cancel();
                    return std::future::pending().await;
                }
                Ok(Removal::NotFound | Removal::DryRunAccepted | Removal::DryRunRefused) => return,
                Err(error) => {
                    self.not_evicted(own_pod, &error);
                    sleep(error.wait(backoff.step())).await;
                }
            }
        }
    }

    pub(super) fn grace(&self, departure: &Departure) -> Grace {
        departure.grace_with(self.drain.terms.pod_grace)
    }

    /// Waits until the watch has seen the pod's deletion, or `work` ends. The caller pins `work`, because a moved future takes memory twice.
    async fn until_gone(&self, departure: &Departure, work: Pin<&mut impl Future<Output = ()>>) {
        let pod = &departure.pod;
        let gone = self.watch_share.follow(&pod.uid);
        let _guard = FollowGuard { watch_share: self.watch_share, pod };
        tokio::select! {
            biased;
            // The watch outlives this drain, so the sender is not dropped.
            Ok(()) = gone => self.drain.recorder.gone(pod),
            () = work => {}
        }
    }

    /// Waits for the turn of the pod's tier and for its new pod, if its Deployment is restarted first; and then, if the pod asks not to be
    /// disturbed, until the deadline requires it.
    async fn wait_for_turn(&self, departure: &Departure) {
        let needed = || self.drain.deadlines.needed_from(departure.tier);
        let turn = self.tiers.turn(departure.tier, self.drain.plan.clone(), self.drain.earliest_end, needed);
        if self.drain.terms.surge.is_some() {
            tokio::join!(turn, Box::pin(surge(self.drain, departure)));
        } else {
            turn.await;
        }
        let Some(Protection { annotation, ends }) = departure.protection else { return };
        let ends = ends.map(|ends| self.drain.drainer.clock.instant_of(ends));
        if ends.is_none_or(|ends| ends > Instant::now()) {
            let by = format!("its annotation {annotation}");
            self.drain.recorder.set(&departure.pod, PodState::Refused(by.into()));
            self.drain.reached(|deadline| self.grace(departure).undisturbed_until(deadline, ends)).await;
        }
    }

    /// Evicts the pod; deletes it if a hard deadline requires that. A deletion follows only after an eviction was sent. An eviction
    /// that still waits at the gate at the latest time for the pod's termination signal becomes urgent.
    async fn evict_or_delete(&self, departure: &Departure) -> Removal {
        let first_sent = FirstSent::default();
        let mut class = None;
        loop {
            tokio::select! {
                biased;
                removal = self.evict_with_retries(departure, &first_sent, class) => return removal,
                () = self.deadline_near(departure, &first_sent, class.is_some()) => {}
            }
            if first_sent.borrow().is_none() {
                class = Some(Class::Urgent);
            } else if let Some(removal) = self.delete(departure).await {
                return removal;
            }
        }
    }

    /// Waits until a hard deadline requires the deletion of the pod. If its eviction was not sent yet and is not `urgent`, waits until the
    /// latest time for the pod's termination signal.
    async fn deadline_near(&self, departure: &Departure, first_sent: &FirstSent, urgent: bool) {
        let mut sent = first_sent.subscribe();
        let near = |deadline| match (self.drain.terms.at_deadline, *first_sent.borrow()) {
            (AtDeadline::Leave, _) => None,
            (AtDeadline::Delete, Some(at)) => self.grace(departure).deleted_at(deadline, at),
            (AtDeadline::Delete, None) => self.grace(departure).signal_by(deadline).filter(|_| !urgent),
        };
        loop {
            tokio::select! {
                biased;
                // First, so that an eviction that the gate lets through now gets its time too.
                Ok(()) = sent.changed() => {}
                () = self.drain.reached(near) => return,
            }
        }
    }

    async fn evict_with_retries(&self, departure: &Departure, first_sent: &FirstSent, class: Option<Class>) -> Removal {
        let (mut refused, mut failed) = (REFUSED_RETRY, FAILED_RETRY);
        loop {
            let error = match self.evict(departure, first_sent, class).await {
                Ok(removal) => return removal,
                Err(error) => error,
            };
            self.not_evicted(departure, &error);
            let wait = match error.category {
                Category::Refused if self.drain.drainer.dry_run => return Removal::DryRunRefused,
                Category::Refused => refused.step().max(MIN_REFUSED_RETRY),
                _ => failed.step(),
            };
            sleep(error.wait(wait)).await;
        }
    }

    /// Sends one eviction. An error is worth a retry.
    async fn evict(
        &self,
        departure: &Departure,
        first_sent: &FirstSent,
        class: Option<Class>,
    ) -> Result<Removal, KubeError> {
        let pod = &departure.pod;
        let answer = Box::pin(self.request_eviction(departure, first_sent, class)).await;
        let result = answer.as_ref().map(drop).map_err(|error| error.category);
        let on = self.drain.node.named();
        self.drain.drainer.facts.emit(&Fact::Eviction { on, pod: pod.named(), result });
        match answer {
            Ok(ends) => Ok(self.accepted(pod, ends, RemovalCause::Evicted)),
            Err(error) if request::is_not_found(&error) => Ok(Removal::NotFound),
            Err(error) => Err(error),
        }
    }

    /// Records why a pod that the drain waits for was not evicted: a budget or a webhook blocks it, or the call failed.
    fn not_evicted(&self, departure: &Departure, error: &KubeError) {
        let by = match error.blocker {
            None => return self.failed(&departure.pod, error),
            Some(Blocker::Budget) if !departure.ready => {
                format!("{}; {UNHEALTHY_REMEDY}", error.message.trim_end_matches('.')).into()
            }
            // Repeating the pod's name would leave less room for the reason.
            Some(_) => {
                let again = format!("pods \"{}\" is forbidden: ", departure.pod.name);
                error.message.strip_prefix(&again).unwrap_or(&error.message).into()
            }
        };
        self.drain.recorder.set(&departure.pod, PodState::Refused(by));
    }

    fn failed(&self, pod: &PodId, error: &KubeError) {
        self.drain.recorder.failed(pod, error.to_string().into());
        self.retried(DrainStep::Evict, error);
    }

    /// Deletes a pod that could not be evicted in time, with retries: it would be killed with its node, and a deletion lets it stop first.
    /// Returns `None` if the deadline is no longer hard.
    async fn delete(&self, departure: &Departure) -> Option<Removal> {
        let pod = &departure.pod;
        let held_by = self.drain.recorder.held_by(pod);
        if self.drain.end().is_hard() && !self.drain.drainer.dry_run {
            Box::pin(self.mark_disrupted(pod, &held_by)).await;
        }
        let cause = RemovalCause::Deleted(held_by);
        let mut backoff = FAILED_RETRY;
        while self.drain.end().is_hard() {
            let grace = |now, deadline| self.grace(departure).at(now, deadline);
            match Box::pin(self.request_deletion(pod, grace)).await {
                Ok(ends) => return Some(self.accepted(pod, ends, cause)),
                Err(error) if request::is_not_found(&error) => return Some(Removal::NotFound),
                Err(error) => {
                    self.retried(DrainStep::DeletePod, &error);
                    sleep(error.wait(backoff.step())).await;
                }
            }
        }
        None
    }

    /// Records that the API server has accepted the removal of a pod, which should be gone at `ends`.
    fn accepted(&self, pod: &PodId, ends: Instant, cause: RemovalCause) -> Removal {
        if self.drain.drainer.dry_run {
            self.drain.recorder.set(pod, PodState::Gone(cause));
            return Removal::DryRunAccepted;
        }
        self.drain.recorder.set(pod, PodState::Terminating(cause));
        self.drain.deadlines.change_pods(|pods| pods.terminates(&pod.uid, ends));
        Removal::Terminating { ends }
    }

    /// Keeps a terminating pod in time: if a hard deadline, which may move, comes before `ends`, the pod's expected end, deletes the pod with
    /// a shorter grace period. Returns only if the pod does not exist.
    async fn keep_in_time(&self, departure: &Departure, mut ends: Instant) {
        let mut backoff = FAILED_RETRY;
        let mut plan = self.drain.plan.clone();
        let mut overdue_at = ends.max(Instant::now()) + OVERDUE_AFTER;
        loop {
            let (now, deadline) = (Instant::now(), plan.borrow_and_update().end());
            let shorter = match self.drain.terms.at_deadline {
                AtDeadline::Delete => Grace::shortened(ends, now, deadline),
                AtDeadline::Leave => None,
            };
            let Some(shorter) = shorter else {
                tokio::select! {
                    biased;
                    changed = plan.changed() => if changed.is_err() {
                        std::future::pending::<()>().await;
                    },
                    () = sleep_until(overdue_at) => {
                        self.overdue.notify_one();
                        overdue_at += OVERDUE_AFTER;
                    }
                }
                continue;
            };
            let grace = |now, deadline: Deadline| Grace::shortened(ends, now, deadline).unwrap_or(shorter);
            match Box::pin(self.request_deletion(&departure.pod, grace)).await {
                Ok(sooner) => {
                    ends = sooner;
                    self.drain.deadlines.change_pods(|pods| pods.terminates(&departure.pod.uid, ends));
                    overdue_at = ends + OVERDUE_AFTER;
                }
                Err(error) if request::is_not_found(&error) => return,
                Err(error) => {
                    self.retried(DrainStep::DeletePod, &error);
                    sleep(error.wait(backoff.step())).await;
                }
            }
        }
    }

    fn retried(&self, step: DrainStep, error: &KubeError) {
        let (on, category) = (self.drain.node.named(), error.category);
        self.drain.drainer.facts.emit(&Fact::DrainRetried { on, step, category, error });
    }
}

/// Stops following a pod when its departure has ended.
struct FollowGuard<'a> {
    watch_share: &'a WatchShare,
    pod: &'a PodId,
}

impl Drop for FollowGuard<'_> {
    fn drop(&mut self) {
        self.watch_share.unfollow(&self.pod.uid);
    }
}
