//! One pod's way out: its turn, its eviction, tried until it is accepted or the deadline presses, and then its end.

use super::deadline::{Deadline, Plan};
use super::grace::{AtDeadline, Grace};
use super::pod_watch::Watching;
use super::report::{Board, How, Standing};
use super::select::{Leaver, Pod, TrimmedPod, pod_resource};
use super::tier::Turns;
use super::{Drainer, Node};
use crate::clients::gate::{Backoff, Call, Category, Class, KubeError};
use crate::fact::{DrainStep, Fact};
use crate::runtime::clock;
use k8s_openapi::api::policy::v1::Eviction;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta, Preconditions};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use kube::core::{Status, params};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

/// A budget is asked again after 1 to 5 s: what frees it is a pod becoming ready elsewhere.
const REFUSED: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));

/// A call that failed otherwise is made again after 0.2 to 5 s.
const TROUBLE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// What the API server says when a pod of this name is there, but not this pod. Other conflicts are none of the pod's.
const OTHER_UID: &str = "UID in the precondition";

/// What one drain's evictions share.
pub(super) struct Evictions<'a> {
    pub drainer: &'a Drainer,
    pub node: &'a Node,
    pub board: &'a Board<'a>,
    pub watching: &'a Watching,
    pub turns: &'a Turns,
    pub plan: &'a watch::Receiver<Plan>,
    /// What the drain has at the least, even if its deadline has passed.
    pub least: Instant,
}

/// What became of the wish that a pod goes.
enum Went {
    /// It is on its way, and should be gone by then.
    Going(Instant),
    /// This pod is not there: what became of it, the next list shows.
    NotThere,
}

impl Evictions<'_> {
    /// Evicts a pod and waits until it is gone; or ends when it finds another in its place, or none.
    pub(super) async fn see_off(&self, leaver: &Leaver) {
        let work = pin!(async {
            self.turn(leaver).await;
            // Boxed, as all calls are here: most of its life a pod is waited for, and not called about.
            match Box::pin(self.evict_or_delete(leaver)).await {
                Went::Going(ends) => self.hurry(leaver, ends).await,
                Went::NotThere => {}
            }
        });
        self.until_gone(leaver, work).await;
    }

    /// Waits for a pod that is on its way already.
    pub(super) async fn wait_for(&self, leaver: &Leaver) {
        let ends = leaver.ends.map_or_else(Instant::now, |ends| self.drainer.clock.instant_of(ends));
        let work = pin!(self.hurry(leaver, ends));
        self.until_gone(leaver, work).await;
    }

    /// Ends when the watch has seen the pod go, or with `work`; which stays where it is, for a future that is moved takes room twice.
    async fn until_gone(&self, leaver: &Leaver, work: Pin<&mut impl Future<Output = ()>>) {
        let pod = &leaver.pod;
        let gone = self.watching.follow(&pod.uid);
        let _forget = Forget { watching: self.watching, pod };
        tokio::select! {
            biased;
            // The watch ends with its last drain, and this is one.
            Ok(()) = gone => self.board.gone(pod),
            () = work => {}
        }
    }

    /// Evicts a finished pod; one try, because it holds nothing up.
    pub(super) async fn clear(&self, leaver: &Leaver) {
        if self.evict(leaver, &Tried::default(), None).await.is_ok() {
            self.board.set(&leaver.pod, Standing::Gone(How::Evicted));
        }
    }

    /// Waits for the pod's turn: its tier's, and, where it asks for peace, the last moment.
    async fn turn(&self, leaver: &Leaver) {
        self.turns.of(leaver.tier, self.plan.clone(), self.least).await;
        if let Some(annotation) = leaver.peace {
            self.board.set(&leaver.pod, Standing::Refused(format!("its annotation {annotation}").into()));
            self.reached(|deadline| self.grace(leaver).peace_until(deadline)).await;
        }
    }

    /// Evicts the pod, again and again; where a hard deadline presses, deletes it. Never before an eviction was sent: one that queues
    /// when the pod must be told to end goes before others.
    async fn evict_or_delete(&self, leaver: &Leaver) -> Went {
        let tried = Tried::default();
        let mut class = None;
        loop {
            tokio::select! {
                biased;
                went = self.evict_in_the_end(leaver, &tried, class) => return went,
                () = self.pressed(leaver, &tried, class.is_some()) => {}
            }
            if tried.borrow().is_none() {
                class = Some(Class::Urgent);
            } else if let Some(went) = self.delete(leaver).await {
                return went;
            }
        }
    }

    /// Waits until a hard deadline presses the pod: until it must be deleted, or, where its eviction has not been sent yet and is not
    /// `urgent`, until it must be told to end.
    async fn pressed(&self, leaver: &Leaver, tried: &Tried, urgent: bool) {
        let mut sent = tried.subscribe();
        let moment = |deadline| match (self.drainer.at_deadline, *tried.borrow()) {
            (AtDeadline::Leave, _) => None,
            (AtDeadline::Delete, Some(at)) => self.grace(leaver).deleted_at(deadline, at),
            (AtDeadline::Delete, None) => self.grace(leaver).told_by(deadline).filter(|_| !urgent),
        };
        loop {
            tokio::select! {
                biased;
                () = self.reached(moment) => return,
                Ok(()) = sent.changed() => {}
            }
        }
    }

    async fn evict_in_the_end(&self, leaver: &Leaver, tried: &Tried, class: Option<Class>) -> Went {
        let mut budget = Backoff::new(REFUSED.0, REFUSED.1);
        let mut trouble = Backoff::new(TROUBLE.0, TROUBLE.1);
        loop {
            let error = match self.evict(leaver, tried, class).await {
                Ok(went) => return went,
                Err(error) => error,
            };
            let wait = match error.category {
                // The API server was asked whether it would, and has said no.
                Category::Refused if self.drainer.dry_run => return Went::NotThere,
                Category::Refused => budget.step().max(REFUSED.0),
                _ => trouble.step(),
            };
            sleep(error.wait(wait)).await;
        }
    }

    /// One eviction. An error says that it is worth another try.
    async fn evict(&self, leaver: &Leaver, tried: &Tried, class: Option<Class>) -> Result<Went, KubeError> {
        let pod = &leaver.pod;
        let (on, named) = (self.node.named(), pod.named());
        let answer = Box::pin(self.request_eviction(leaver, tried, class)).await;
        let result = answer.as_ref().map(drop).map_err(|error| error.category);
        self.drainer.facts.emit(&Fact::Eviction { on, pod: named, result });
        match answer {
            Ok(_) if self.drainer.dry_run => {
                self.board.set(pod, Standing::Gone(How::Evicted));
                Ok(Went::NotThere)
            }
            Ok(ends) => {
                self.board.set(pod, Standing::Going(How::Evicted));
                Ok(Went::Going(ends))
            }
            Err(error) if is_not_there(&error) => Ok(Went::NotThere),
            Err(error) => {
                if error.category == Category::Refused {
                    self.board.set(pod, Standing::Refused(error.message.as_str().into()));
                } else {
                    self.board.failed(pod, error.to_string().into());
                    self.retried(DrainStep::Evict, &error);
                }
                Err(error)
            }
        }
    }

    /// Gives when the pod should be gone.
    async fn request_eviction(
        &self,
        leaver: &Leaver,
        tried: &Tried,
        class: Option<Class>,
    ) -> Result<Instant, KubeError> {
        let (pod, drainer, pods) = (&leaver.pod, self.drainer, self.api(&leaver.pod));
        let by = self.end().at();
        // Begun only when the gate has let it through: how long the pod has is said as late as can be.
        let request = async || {
            let (now, deadline) = (Instant::now(), self.end());
            tried.send_if_modified(|tried| tried.is_none() && tried.replace(now).is_none());
            let grace = self.grace(leaver);
            let eviction = eviction(pod, grace.to_send(now, deadline));
            let params = PostParams { dry_run: drainer.dry_run, ..PostParams::default() };
            pods.create_subresource::<_, Status>("eviction", &pod.name, &params, &eviction).await?;
            Ok(now + grace.at(now, deadline))
        };
        let name = pod.to_string();
        let call = Call { verb: "create", resource: "pods/eviction", subject: &name };
        drainer.gate.kube(call, class.unwrap_or_else(|| Class::of_eviction(by)), by, request).await
    }

    /// Deletes a pod that could not be evicted in time, again and again. It dies with its node anyway, and this way it is told. `None` when
    /// the deadline that pressed is no more.
    async fn delete(&self, leaver: &Leaver) -> Option<Went> {
        let by = self.board.held_by(&leaver.pod);
        let mut trouble = Backoff::new(TROUBLE.0, TROUBLE.1);
        while self.end().is_hard() {
            let grace = |now, deadline| self.grace(leaver).at(now, deadline);
            match Box::pin(self.request_deletion(&leaver.pod, grace)).await {
                Ok(_) if self.drainer.dry_run => {
                    self.board.set(&leaver.pod, Standing::Gone(How::Deleted(by)));
                    return Some(Went::NotThere);
                }
                Ok(ends) => {
                    self.board.set(&leaver.pod, Standing::Going(How::Deleted(by)));
                    return Some(Went::Going(ends));
                }
                Err(error) if is_not_there(&error) => return Some(Went::NotThere),
                Err(error) => {
                    self.retried(DrainStep::DeletePod, &error);
                    sleep(error.wait(trouble.step())).await;
                }
            }
        }
        None
    }

    /// Gives when the pod should be gone, with the grace period that `grace` finds at the moment of the call.
    async fn request_deletion(
        &self,
        pod: &Pod,
        grace: impl Fn(Instant, Deadline) -> Duration,
    ) -> Result<Instant, KubeError> {
        let (drainer, pods) = (self.drainer, self.api(pod));
        let sent = AtomicU64::new(0);
        let request = async || {
            let now = Instant::now();
            let grace = grace(now, self.end());
            sent.store(grace.as_secs(), Ordering::Relaxed);
            let params = DeleteParams {
                dry_run: drainer.dry_run,
                grace_period_seconds: u32::try_from(grace.as_secs()).ok(),
                preconditions: Some(params::Preconditions { uid: Some(pod.uid.to_string()), resource_version: None }),
                ..DeleteParams::default()
            };
            pods.delete(&pod.name, &params).await?;
            Ok(now + grace)
        };
        let name = pod.to_string();
        let call = Call { verb: "delete", resource: "pods", subject: &name };
        let answer = drainer.gate.kube(call, Class::Urgent, self.end().at(), request).await;
        let result = answer.as_ref().map(drop).map_err(|error| error.category);
        let grace = seconds(Duration::from_secs(sent.into_inner()));
        let (on, pod) = (self.node.named(), pod.named());
        drainer.facts.emit(&Fact::Deletion { on, pod, grace, result });
        answer
    }

    /// Sees to it that a pod which should be gone by `ends` is gone before a hard deadline, wherever that moves. Ends only when the pod
    /// is not there.
    async fn hurry(&self, leaver: &Leaver, mut ends: Instant) {
        let mut trouble = Backoff::new(TROUBLE.0, TROUBLE.1);
        let mut plan = self.plan.clone();
        loop {
            let (now, current) = (Instant::now(), plan.borrow_and_update().end());
            let shorter = match self.drainer.at_deadline {
                AtDeadline::Delete => Grace::shortened(ends, now, current),
                AtDeadline::Leave => None,
            };
            let Some(shorter) = shorter else {
                if plan.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
                continue;
            };
            let grace = |now, deadline| Grace::shortened(ends, now, deadline).unwrap_or(shorter);
            match Box::pin(self.request_deletion(&leaver.pod, grace)).await {
                Ok(sooner) => ends = sooner,
                Err(error) if is_not_there(&error) => return,
                Err(error) => {
                    self.retried(DrainStep::DeletePod, &error);
                    sleep(error.wait(trouble.step())).await;
                }
            }
        }
    }

    /// Evicts the pod that this process runs in, and then waits to be ended; or ends when it is not there.
    pub(super) async fn leave(&self, ourselves: &Leaver) {
        let mut budget = Backoff::new(REFUSED.0, REFUSED.1);
        loop {
            match self.evict(ourselves, &Tried::default(), None).await {
                Ok(Went::NotThere) => return,
                Ok(Went::Going(_)) => {
                    self.drainer.facts.emit(&Fact::LeavingNode { on: self.node.named() });
                    self.drainer.leave.cancel();
                    return std::future::pending().await;
                }
                Err(error) => sleep(error.wait(budget.step())).await,
            }
        }
    }

    /// Waits until the moment that `when` names has come, wherever the deadline moves; for ever, where it names none.
    pub(super) async fn reached(&self, when: impl Fn(Deadline) -> Option<Instant>) {
        let mut plan = self.plan.clone();
        loop {
            let at = when(plan.borrow_and_update().end());
            tokio::select! {
                biased;
                () = clock::until(at) => return,
                Ok(()) = plan.changed() => {}
            }
        }
    }

    /// When the drain is over.
    pub(super) fn end(&self) -> Deadline {
        self.plan.borrow().end()
    }

    pub(super) fn grace(&self, leaver: &Leaver) -> Grace {
        leaver.grace_with(self.drainer.pod_grace)
    }

    fn api(&self, pod: &Pod) -> Api<TrimmedPod> {
        Api::namespaced_with(self.drainer.client.clone(), &pod.namespace, &pod_resource())
    }

    fn retried(&self, step: DrainStep, error: &KubeError) {
        let category = error.category;
        self.drainer.facts.emit(&Fact::DrainRetried { on: self.node.named(), step, category, error });
    }
}

/// Not kube's `Api::evict`: it writes the delete options under a name that the API server does not read, and the UID with them.
fn eviction(pod: &Pod, grace: Option<Duration>) -> Eviction {
    Eviction {
        metadata: ObjectMeta {
            name: Some(pod.name.to_string()),
            namespace: Some(pod.namespace.to_string()),
            ..ObjectMeta::default()
        },
        delete_options: Some(DeleteOptions {
            grace_period_seconds: grace.map(seconds),
            preconditions: Some(Preconditions { uid: Some(pod.uid.to_string()), resource_version: None }),
            ..DeleteOptions::default()
        }),
    }
}

/// When a pod's eviction was first sent.
type Tried = watch::Sender<Option<Instant>>;

/// Whether the answer says that this very pod is not there.
fn is_not_there(error: &KubeError) -> bool {
    match error.category {
        Category::NotFound => true,
        Category::Conflict => error.message.contains(OTHER_UID),
        _ => false,
    }
}

fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
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
