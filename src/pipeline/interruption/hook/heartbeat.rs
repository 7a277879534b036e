//! Heartbeats of one lifecycle hook, while its owner lives.
//!
//! The task lives in the [`Heartbeat`], which is stopped by [`Heartbeat::stop`] and aborted by its drop.

use super::{HookReply, HookSearch};
use crate::pipeline::interruption::times::{HookTimes, due_beat};
use crate::pipeline::interruption::{Case, MessageLink};
use crate::clients::gate::{Backoff, CALL_TIMEOUT, Category};
use crate::fact::{Fact, HeartbeatResult, HookLack, TaskKind};
use crate::pipeline::drain::Deadline;
use crate::pipeline::event::{Detail, Hook};
use crate::pipeline::node::Node;
use crate::runtime::task::{Handle, Tasks};
use crate::runtime::{clock, random};
use futures_util::future::join;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// Maximum jitter of a beat, as a share of the time to it: it is sent early, so that a storm's hooks don't beat together.
const JITTER: f64 = 0.1;

/// Maximum retry delay for the first heartbeat of a hook whose expiry is unknown.
const FIRST_RETRY: Duration = Duration::from_secs(5);

/// Divisor of a hook's timeout: a message older than that share is old.
const OLD: u32 = 4;

/// Waits between look-ups of a hook whose times are assumed.
const LOOK_UP_AGAIN: Backoff = Backoff::new(Duration::from_mins(1), Duration::from_mins(5));

/// The state of a hook that waits for the interruption.
#[derive(Clone, Copy, Debug)]
pub(in crate::pipeline::interruption) struct HookState {
    pub times: HookTimes,
    /// The deadline of the work, from the hook's times and the settings.
    pub own_deadline: Deadline,
    /// The deadline with room for the pods: the latest time at which the completion is expected.
    pub deadline: Deadline,
    /// Whether the work is admitted.
    pub admitted: bool,
    /// How long the API server was unreachable before the work, and how much of that time the deadline counts.
    pub absent: Absent,
}

/// The sums of the API server's absences, before the work and until the deadline was last put off.
#[derive(Clone, Copy, Debug)]
pub(in crate::pipeline::interruption) struct Absent {
    pub before: Duration,
    pub counted: Duration,
}

impl HookState {
    /// Sets the hook's times and their deadline, put off by the API server's absences.
    fn take(&mut self, times: HookTimes, deadline: Deadline) {
        let Absent { before, counted } = self.absent;
        let deadline = deadline.put_off(counted.saturating_sub(before));
        (self.times, self.own_deadline, self.deadline) = (times, deadline, deadline);
    }

    /// Puts the deadline off by the growth of `total`, the sum of the absences.
    pub fn put_off(&mut self, total: Duration) {
        let by = total.saturating_sub(self.absent.counted);
        (self.own_deadline, self.deadline) = (self.own_deadline.put_off(by), self.deadline.put_off(by));
        self.absent.counted = total;
    }
}

/// The task of a heartbeat.
#[derive(Clone)]
pub(in crate::pipeline::interruption) struct HeartbeatTask {
    pub case: Case,
    pub hook: Hook,
    /// Shared with the interruption, for the visibility timeout of its messages.
    pub link: Arc<MessageLink>,
    /// Shared with the interruption, which moves the deadline.
    pub state: Arc<watch::Sender<HookState>>,
    /// The start of the lifecycle action: the notice's time, or the mark's for a hook that no message announced.
    pub begun: Instant,
    /// Cancelled when AWS reports that the action is over.
    pub over: CancellationToken,
}

/// A running heartbeat. Only the interruption owns it.
#[derive(Debug)]
pub(in crate::pipeline::interruption) struct Heartbeat {
    task: Handle<()>,
    stop: CancellationToken,
    over: CancellationToken,
}

impl Heartbeat {
    /// Starts the heartbeat.
    pub(in crate::pipeline::interruption) fn start(tasks: &Tasks, work: HeartbeatTask) -> Self {
        let stop = CancellationToken::new();
        let over = work.over.clone();
        Self { task: tasks.spawn(TaskKind::Heartbeat, work.run(stop.clone())), stop, over }
    }

    /// Cancelled when AWS reports that the action is over.
    pub(in crate::pipeline::interruption) fn over(&self) -> CancellationToken {
        self.over.clone()
    }

    /// Stops, and returns when no more beats can be sent.
    pub(in crate::pipeline::interruption) async fn stop(self) {
        self.stop.cancel();
        // A beat in flight is cancelled: it may arrive, but no other follows. The task itself reports a panic.
        let _ = self.task.await;
    }
}

impl HeartbeatTask {
    async fn run(self, stop: CancellationToken) {
        let (beats, look_up) = (pin!(self.beats()), pin!(self.look_up_again()));
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            _ = join(beats, look_up) => {}
        }
    }

    /// Looks up assumed times until AWS answers. They decide when beats are sent, and when the work must end.
    async fn look_up_again(&self) {
        let mut pause = LOOK_UP_AGAIN;
        while self.state.borrow().times.assumed {
            tokio::select! {
                biased;
                () = self.over.cancelled() => return,
                () = sleep(pause.step()) => {}
            }
            if !self.case.must_be_proven(&self.link, &self.hook, self.state.borrow().times) {
                self.look_up().await;
            }
        }
    }

    /// Replaces the assumed times by the hook's own, if AWS returns them.
    async fn look_up(&self) {
        // Boxed: the call is rare, and large.
        let Ok(times) = Box::pin(self.case.interrupter.hooks.times(&self.hook)).await else { return };
        self.link.visibility_timeout.send_replace(times.visibility());
        self.take(times);
    }

    /// Treats the hook's expiry as a soft limit until AWS accepts a heartbeat.
    fn distrust(&self) {
        let times = self.state.borrow().times;
        if !times.assumed {
            self.take(HookTimes { assumed: true, ..times });
        }
    }

    /// Ends the work in time for the hook's expiry, because AWS denies heartbeats; `None` lifts that, because AWS has accepted one. Without
    /// the hook's timeout the expiry is unknown, and nothing changes.
    fn expire(&self, expires: Option<Instant>) {
        let times = self.state.borrow().times;
        if times.assumed || times.expires == expires {
            return;
        }
        self.take(HookTimes { expires, ..times });
        if expires.is_some() {
            let until = self.state.borrow().deadline.at().saturating_duration_since(Instant::now());
            self.case.emit(&Fact::HeartbeatsDenied { about: self.case.about(), until });
        }
    }

    /// Sets the hook's times and the resulting deadline.
    fn take(&self, times: HookTimes) {
        let Case { interrupter, notice, .. } = &self.case;
        let (node, now) = (interrupter.index.get(&notice.instance), Instant::now());
        let deadline = interrupter.policy.deadline(notice, node.as_deref(), Some(times), &interrupter.clock, now);
        self.state.send_modify(|state| state.take(times, deadline));
    }

    /// Notes proof that the instance waits at the hook.
    async fn is_proven(&self) {
        self.link.proven.store(true, Ordering::Release);
        if self.state.borrow().times.assumed {
            self.look_up().await;
        }
    }

    /// Sends heartbeats until AWS reports that the action is over, or until no more are due.
    async fn beats(&self) {
        let interrupter = &self.case.interrupter;
        let mut last = interrupter.hooks.last_beat(&self.hook).unwrap_or(self.begun).max(self.begun);
        let (mut state, is_wary) = (self.state.subscribe(), self.case.is_wary());
        let times = state.borrow().times;
        let must_be_proven = self.case.must_be_proven(&self.link, &self.hook, times);
        if must_be_proven || self.hook.token.is_none() && interrupter.policy.sends_heartbeats() {
            // The action's start is unknown, so it may expire at any time until a heartbeat is accepted.
            let Some(beaten) = self.beat(times, Instant::now(), !must_be_proven).await else { return };
            self.is_proven().await;
            last = beaten;
        }
        loop {
            let HookState { times, deadline, admitted, .. } = *state.borrow_and_update();
            let expires = last + times.heartbeat;
            // The first beat proves that the action exists, before its expiry overrides a budget.
            let is_shown = !is_wary || !admitted || self.link.proven.load(Ordering::Acquire);
            let finish = if is_shown { deadline.at() } else { expires.max(deadline.at()) };
            let due = due_beat(interrupter.policy.heartbeats, self.begun, expires, times, finish);
            if due.is_none() && !times.assumed {
                return;
            }
            // A beat due after the expected completion is only for a late completion.
            let floor = |due| if due >= finish { finish } else { Instant::now() };
            tokio::select! {
                biased;
                Ok(()) = state.changed() => continue,
                () = clock::until(due.map(|due| earlier(due).max(floor(due)))) => {}
            }
            let Some(beaten) = self.beat(times, expires, true).await else { return };
            if is_wary {
                self.is_proven().await;
            }
            last = beaten;
        }
    }

    /// Sends one beat, with retries. Returns the time at which it was sent; `None` when further beats are useless. Only AWS knows whether
    /// the hook has expired, because another process may have sent beats before. `is_known`: whether the action is known to exist. One
    /// that was found by its instance may belong to another hook.
    async fn beat(&self, times: HookTimes, expires: Instant, is_known: bool) -> Option<Instant> {
        let is_wary = self.case.is_wary();
        let dead_at = self.begun + times.life();
        // The time left to an unproven action is unknown.
        let mut late = Backoff::new(Duration::from_secs(1), if is_known { times.heartbeat / 2 } else { FIRST_RETRY });
        loop {
            let sent = Instant::now();
            let by = if is_known { expires } else { sent + CALL_TIMEOUT };
            // Boxed: a heartbeat mostly sleeps, and a call is ten times as large.
            let error = match Box::pin(self.case.beat(&self.hook, by)).await {
                Ok(HookReply::Done) => {
                    self.report(HeartbeatResult::Sent, None);
                    self.expire(None);
                    return Some(sent);
                }
                Ok(HookReply::Over) => {
                    self.report(HeartbeatResult::Over, None);
                    // Test messages use an action that AWS doesn't know, so "over" proves nothing. An attacker could forge a test name, though.
                    if self.hook.is_test() && !is_wary {
                        return None;
                    }
                    if is_known && !is_wary {
                        self.over.cancel();
                    } else {
                        self.denied().await;
                    }
                    return None;
                }
                Err(error) => error,
            };
            self.report(HeartbeatResult::Failed(error.category), Some(&error));
            let is_denied = error.category == Category::Denied;
            if is_denied && is_wary && self.hook.token.is_some() {
                // An attacker could name a group for which Ebbtide has no permission.
                self.distrust();
            } else if is_denied {
                if !is_known {
                    // No heartbeat will ever prove the action.
                    self.is_proven().await;
                }
                // The time of an unannounced action counts from when it was found.
                let heartbeat = self.state.borrow().times.heartbeat;
                self.expire(Some(expires.max(self.begun + heartbeat)));
            }
            let is_final = match error.category {
                Category::NotFound => true,
                // Codes other than a missing hook's may be AWS's own failures.
                Category::Invalid => is_known || error.code.as_deref() == Some("ValidationError"),
                _ => false,
            };
            if is_final && !is_known {
                self.denied().await;
            }
            if is_final || Instant::now() >= dead_at {
                return None;
            }
            let late = if Instant::now() < expires { None } else { Some(late.step()) };
            sleep(late.unwrap_or_else(|| retry_in(times, expires))).await;
        }
    }

    /// Looks up the instance in Auto Scaling, which knows no action of this hook for it. If its group no longer makes it wait, the action is
    /// over. Otherwise the instance is drained without the hook, which may be forged.
    async fn denied(&self) {
        let Case { interrupter, notice, .. } = &self.case;
        let is_back = |node: &Node| self.case.is_in_doubt(node) && !node.has_notice_since_boot(notice.key());
        let may_be_back = || interrupter.index.get(&notice.instance).is_some_and(|node| is_back(&node));
        loop {
            if self.link.completes.load(Ordering::Acquire) {
                return;
            }
            // Boxed, as above.
            match Box::pin(interrupter.hooks.search(&self.hook.name, &notice.instance)).await {
                // Its Node has restarted since the message.
                Ok(HookSearch::InService) if may_be_back() => return self.over.cancel(),
                Ok(HookSearch::Nowhere(HookLack::Over(_))) => return self.over.cancel(),
                // Its group had it when it was found.
                Ok(HookSearch::NoGroup) if self.hook.token.is_none() => return self.over.cancel(),
                Ok(HookSearch::NoGroup) => return self.disown(&HookLack::NoGroup),
                Ok(_) => return self.disown(&HookLack::Elsewhere(self.hook.group.clone())),
                Err(error) if error.category == Category::Denied && self.hook.token.is_some() => {
                    return self.disown(&HookLack::Unseen);
                }
                Err(_) => sleep(FIRST_RETRY).await,
            }
        }
    }

    fn disown(&self, why: &HookLack) {
        self.case.emit(&Fact::HookNotFound { about: self.case.about(), hook: &self.hook.name, why });
        self.link.disown_hook();
    }

    fn report(&self, result: HeartbeatResult, error: Option<&dyn std::fmt::Display>) {
        self.case.emit(&Fact::Heartbeat { about: self.case.about(), result, error });
    }
}

impl Case {
    /// Whether an attacker who can write to the queue may have forged the message to end an instance's pods. A launch ends none.
    fn is_wary(&self) -> bool {
        self.interrupter.policy.is_wary() && matches!(self.notice.detail, Detail::AsgTerminate(_))
    }

    /// Whether AWS must accept a heartbeat before the hook's expiry counts as the instance's end. True if no message announced the hook, or
    /// if the message is old and could be forged.
    pub(in crate::pipeline::interruption) fn must_be_proven(&self, link: &MessageLink, hook: &Hook, times: HookTimes) -> bool {
        let (policy, clock) = (&self.interrupter.policy, &self.interrupter.clock);
        let is_old = || clock.notice_instant(self.notice.at()) + times.heartbeat / OLD < Instant::now();
        let is_doubted = hook.token.is_none() || self.is_wary() && is_old();
        policy.sends_heartbeats() && is_doubted && !link.proven.load(Ordering::Acquire)
    }
}

/// Returns the wait before a retry: a few tries in the time left, because the whole account shares the rate limit of these calls.
fn retry_in(times: HookTimes, expires: Instant) -> Duration {
    let left = expires.saturating_duration_since(Instant::now() + times.margin());
    let least = (times.margin() / 4).max(Duration::from_secs(1));
    random::jittered((left / 4).max(least), 0.75..1.0)
}

/// Returns `due`, or a time earlier by up to a tenth of the time to it.
fn earlier(due: Instant) -> Instant {
    let wait = due.saturating_duration_since(Instant::now());
    due.checked_sub(random::jittered(wait, 0.0..JITTER)).unwrap_or(due)
}
