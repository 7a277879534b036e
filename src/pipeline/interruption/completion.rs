//! A lifecycle hook that waits for this interruption: kept alive by a heartbeat, and completed in the end.

use super::decisions::{comes_back, life_begin};
use super::heartbeat::{Beating, Heartbeat, HookState};
use super::hook::HookReply;
use super::late::may_be_over;
use super::{Case, Completion, HookTimes, MessageLink};
use crate::clients::gate::{Absence, AwsError, Backoff, CALL_TIMEOUT, Category, KubeError, LAST_CALL};
use crate::fact::{CompletionResult, Fact, HeartbeatResult};
use crate::pipeline::drain::Deadline;
use crate::pipeline::event::Hook;
use crate::pipeline::node::Node;
use crate::pipeline::node::mark::{Mark, is_of_unknown_boot, may_be_back};
use jiff::Timestamp;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Interval between calls about a lifecycle action that are not permitted: rights may come late, and seldom do.
pub(super) const DENIED_RETRY: Duration = Duration::from_mins(1);

/// Maximum time for the question whether the lifecycle action is over, and for the note that it is.
const NOTE_TIMEOUT: Duration = Duration::from_secs(10);

/// Minimum time from the completion until an instance that returns has restarted.
const AWAY: Duration = Duration::from_secs(20);

/// A hook and its heartbeat.
pub(super) struct KeptHook {
    hook: Hook,
    state: Arc<watch::Sender<HookState>>,
    heartbeat: Option<Heartbeat>,
    /// The begin of the lifecycle action, as far as it is known.
    begun: Instant,
    link: Arc<MessageLink>,
    /// How long the API server was away.
    absence: Absence,
    /// The end of the hook's life, once its heartbeats have been stopped.
    ends: Option<Instant>,
}

impl KeptHook {
    /// Starts the heartbeat of a hook; a dry run has none.
    pub(super) fn keep(case: &Case, link: &Arc<MessageLink>, hook: &Hook, state: HookState) -> Self {
        let interrupter = &case.interrupter;
        let node = interrupter.index.get(&case.notice.instance);
        let begun = life_begin(&case.notice, node.as_deref(), state.times, &interrupter.clock);
        let state = Arc::new(watch::Sender::new(state));
        let beating = Beating {
            case: case.clone(),
            hook: hook.clone(),
            link: Arc::clone(link),
            state: Arc::clone(&state),
            begun,
            over: CancellationToken::new(),
        };
        let heartbeat = (!interrupter.policy.dry_run).then(|| Heartbeat::start(&interrupter.tasks, beating));
        let absence = interrupter.drainer.gate.absence().clone();
        Self { hook: hook.clone(), state, heartbeat, begun, link: Arc::clone(link), absence, ends: None }
    }

    /// Returns the deadline of the work, as far as the hook's times and the pods are known now.
    pub(super) fn deadline(&self) -> Deadline {
        self.state.borrow().deadline
    }

    /// Returns the deadline of the work before a drain has made room for its pods.
    pub(super) fn own_deadline(&self) -> Deadline {
        self.state.borrow().own_deadline
    }

    /// Moves the deadline of the work, which has waited, unless the hook's own times have just replaced those that it comes from.
    pub(super) fn set_own_deadline(&self, deadline: Deadline, from: HookTimes) {
        self.change(from, |state| (state.own_deadline, state.deadline) = (deadline, deadline));
    }

    /// Moves the deadline of the work for its pods, unless as above.
    pub(super) fn set_deadline(&self, deadline: Deadline, from: HookTimes) {
        self.change(from, |state| state.deadline = deadline);
    }

    fn change(&self, from: HookTimes, change: impl FnOnce(&mut HookState)) {
        self.state.send_if_modified(|state| {
            let before = state.deadline;
            if state.times == from {
                change(state);
            }
            state.deadline != before
        });
    }

    /// Says that the work goes on: from now on the hook's end may override a budget.
    pub(super) fn admit(&self) {
        self.state.send_if_modified(|state| !std::mem::replace(&mut state.admitted, true));
    }

    /// Returns the hook with its present times.
    pub(super) fn with_times(&self) -> (&Self, HookTimes) {
        (self, self.state.borrow().times)
    }

    /// Waits until the hook's times are no longer the known ones; without a hook, forever.
    pub(super) async fn times_changed(known: Option<(&Self, HookTimes)>) {
        let Some((hook, known)) = known else { return std::future::pending().await };
        // The sender is here.
        let _ = hook.state.subscribe().wait_for(|state| state.times != known).await;
    }

    /// The sum of the absences of the API server by which the deadline is put off; 0 without a hook.
    pub(super) fn absent(hook: Option<&Self>) -> Duration {
        hook.map_or(Duration::ZERO, |hook| hook.state.borrow().absent.counted)
    }

    /// Waits until the API server has been away for longer than is `known`, and puts the deadline off by that time: nothing of it was of use.
    /// Does so about each second while it is away, and returns the sum. Without a hook, waits forever.
    pub(super) async fn put_off_by_absence(hook: Option<&Self>, known: Duration) -> Duration {
        let Some(hook) = hook else { return std::future::pending().await };
        hook.absence.grown(known).await;
        let total = hook.absence.total();
        hook.state.send_modify(|state| state.put_off(total));
        total
    }

    /// Returns the time until which the hook can be completed at all.
    fn ends(&self) -> Instant {
        self.ends.unwrap_or_else(|| self.begun + self.state.borrow().times.life())
    }

    /// Cancelled when AWS has said that the lifecycle action is over.
    pub(super) fn over(&self) -> CancellationToken {
        self.heartbeat.as_ref().map(Heartbeat::over).unwrap_or_default()
    }

    /// Asks by a heartbeat whether the action is over. Without an answer it counts as one that waits.
    pub(super) async fn is_over(&self, case: &Case) -> bool {
        let backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(2));
        if case.ask_hook(&self.hook, backoff, Instant::now() + NOTE_TIMEOUT).await == Some(HookReply::Over) {
            self.over().cancel();
        }
        // Its own heartbeats may have heard so.
        self.over().is_cancelled()
    }

    /// Stops the heartbeat, and returns when no beat can go out any more.
    pub(super) async fn stop(self) {
        if let Some(heartbeat) = self.heartbeat {
            heartbeat.stop().await;
        }
    }

    /// Completes the hook, with retries within its life. Returns whether that succeeded.
    pub(super) async fn complete(&mut self, case: &Case, completion: Completion) -> bool {
        let (instead, done) = match completion {
            Completion::Continue => ("complete the lifecycle action with CONTINUE", CompletionResult::Continue),
            Completion::Abandon => ("complete the lifecycle action with ABANDON", CompletionResult::Abandon),
        };
        if case.interrupter.policy.dry_run {
            case.tell(&Fact::DryRun { about: case.about(), instead });
            return true;
        }
        self.link.completes.store(true, Ordering::Release);
        let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));
        let returns = comes_back(&case.notice.detail).is_some();
        // What others are known to have completed is not ours.
        let (was_over, mut unanswered) = (self.over().is_cancelled(), None::<Instant>);
        loop {
            let Case { interrupter, notice, .. } = case;
            let call = interrupter.hooks.complete(&self.hook, notice.instance.as_str(), completion, self.ends());
            let error = match Box::pin(call).await {
                Ok(answer) => {
                    let result = if answer == HookReply::Done { done } else { CompletionResult::Over };
                    case.tell(&Fact::HookCompleted { about: case.about(), result });
                    if let Some(node) = case.node.as_ref().filter(|_| returns) {
                        self.stop_heartbeat().await;
                        // An action that is over may have ended by our own call before, if the instance was there.
                        let was_there = || !was_over && !case.is_of_unknown_boot();
                        let is_ours = answer == HookReply::Done
                            || unanswered.is_some_and(|at| at.elapsed() < AWAY && was_there());
                        Box::pin(note_end(case, node, is_ours)).await;
                    }
                    return true;
                }
                Err(error) => error,
            };
            let wait = match error.category {
                // An unknown group or hook stays unknown, and an invalid request invalid.
                Category::Invalid | Category::NotFound => return give_up(case, &error),
                Category::Denied => {
                    self.stop_heartbeat().await;
                    DENIED_RETRY
                }
                Category::Throttled | Category::Expired => backoff.step(),
                _ => {
                    unanswered.get_or_insert_with(Instant::now);
                    backoff.step()
                }
            };
            if Instant::now() + wait >= self.ends() {
                return give_up(case, &error);
            }
            let category = error.category;
            case.tell(&Fact::CompletionRetried { about: case.about(), category, error: &error });
            // Until it is completed, a Node that can come back has not.
            let ends = Some(self.ends()).filter(|_| returns && !was_over);
            let _ = timeout(wait, Box::pin(case.keep_marked(ends))).await;
        }
    }

    /// Leaves the hook to its own timeout. A missing permission may be granted, but must not keep an instance alive for two days until
    /// then.
    async fn stop_heartbeat(&mut self) {
        if let Some(heartbeat) = self.heartbeat.take() {
            heartbeat.stop().await;
            self.ends = Some(self.ends().min(Instant::now() + self.state.borrow().times.heartbeat));
        }
    }
}

impl Case {
    /// Returns the Node if it has restarted since the mark of this notice, whose instance can return: so far nobody knows whether it has.
    pub(super) fn restarted(&self) -> Option<Arc<Node>> {
        let known = self.interrupter.index.newest(self.node.as_ref()?)?;
        may_be_back(&known, self.notice.key()).then_some(known)
    }

    /// Returns when AWS last accepted a heartbeat of this process for the notice's hook: then the instance waited.
    pub(super) fn waited(&self) -> Option<Timestamp> {
        let at = self.interrupter.hooks.last_beat(self.notice.hook()?)?;
        Some(self.interrupter.clock.timestamp_of(at))
    }

    /// Whether the instance may have come back from the lifecycle action that is to be completed, for all that AWS has said.
    pub(super) fn is_in_doubt(&self, node: &Node) -> bool {
        let touched = self.interrupter.policy.touched_hook(&self.notice).is_some();
        touched && may_be_over(&self.notice, node, self.waited())
    }

    /// Whether the mark says that the Node may have come back before it.
    fn is_of_unknown_boot(&self) -> bool {
        let known = self.node.as_ref().and_then(|node| self.interrupter.index.newest(node));
        known.is_some_and(|node| is_of_unknown_boot(&node, self.notice.key()))
    }

    /// Returns the mark to write on the Node, which says so if the instance may have come back already.
    pub(super) fn doubted(&self, mark: Mark, node: &Node) -> Mark {
        if self.is_in_doubt(node) { mark.of_unknown_boot() } else { mark }
    }

    /// Sends one heartbeat. If AWS accepts it, says on a Node that has restarted before that the hook waits still.
    pub(super) async fn beat(&self, hook: &Hook, by: Instant) -> Result<HookReply, AwsError> {
        let Self { interrupter, notice, .. } = self;
        let restarted = self.restarted();
        let reply = interrupter.hooks.beat(hook, notice.instance.as_str(), by).await?;
        if let Some(node) = restarted.filter(|_| reply == HookReply::Done) {
            let (key, by) = (notice.key(), Instant::now() + LAST_CALL);
            // If the write fails, the next heartbeat says it.
            let _ = interrupter.marker.still_waits(&node, key, by).await;
        }
        Ok(reply)
    }

    /// Asks by heartbeats whether the lifecycle action waits or is over. `None` without an answer by then.
    pub(super) async fn ask_hook(&self, hook: &Hook, mut backoff: Backoff, by: Instant) -> Option<HookReply> {
        loop {
            let error = match self.beat(hook, by).await {
                Ok(reply) => return Some(reply),
                Err(error) => error,
            };
            let about = self.about();
            self.tell(&Fact::Heartbeat { about, result: HeartbeatResult::Failed(error.category), error: Some(&error) });
            let wait = if error.category == Category::Denied { DENIED_RETRY } else { backoff.step() };
            match error.category {
                Category::Invalid | Category::NotFound => return None,
                _ if Instant::now() + wait >= by => return None,
                _ => sleep(wait).await,
            }
        }
    }
}

/// Says on the Node of an instance that returns that its lifecycle action is over. If no write comes through, a restart counts as the
/// return once the hook would have ended.
async fn note_end(case: &Case, node: &Node, is_ours: bool) {
    let (marker, clock) = (&case.interrupter.marker, &case.interrupter.clock);
    let (key, at) = (case.notice.key(), clock.now());
    let by = Instant::now() + NOTE_TIMEOUT;
    let note = async || {
        let within = by.min(Instant::now() + CALL_TIMEOUT);
        if is_ours {
            marker.complete(node, key, at, within).await
        } else {
            // Others completed it, and nobody knows whether a restart so far was before that.
            marker.end(node, key, at, within).await
        }
    };
    let failed = |error: &KubeError| {
        case.tell(&Fact::ReleaseFailed { on: node.named(), category: error.category, error });
        true
    };
    // Its failures are told.
    let _ = Backoff::new(Duration::from_millis(200), Duration::from_secs(2)).retry(Some(by), note, failed).await;
}

fn give_up(case: &Case, error: &AwsError) -> bool {
    case.tell(&Fact::CompletionFailed { about: case.about(), error });
    false
}
