//! A lifecycle hook that waits for this interruption: kept alive by a heartbeat, and completed in the end.

use super::decisions::{comes_back, life_begin};
use super::hook::{Heartbeat, HeartbeatTask, HookState};
use super::hook::HookReply;
use super::late::may_be_over;
use super::{Case, Completion, HookTimes, MessageLink};
use crate::clients::gate::{Absence, AwsError, Backoff, CALL_TIMEOUT, Category, Class, KubeError, LAST_CALL};
use crate::fact::{CompletionResult, Fact, HeartbeatResult};
use crate::pipeline::drain::Deadline;
use crate::pipeline::event::Hook;
use crate::pipeline::node::Node;
use crate::pipeline::node::mark::Mark;
use crate::pipeline::node::record::NoticeRecord;
use jiff::Timestamp;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Retry interval of denied calls about a lifecycle action: the permission may be granted later.
pub(super) const DENIED_RETRY: Duration = Duration::from_mins(1);

/// Maximum time to ask whether the lifecycle action is over, and to note that it is.
const NOTE_TIMEOUT: Duration = Duration::from_secs(10);

/// Minimum time from the completion until an instance that returns has restarted.
const AWAY: Duration = Duration::from_secs(20);

/// A hook and its heartbeat.
pub(super) struct KeptHook {
    hook: Hook,
    state: Arc<watch::Sender<HookState>>,
    heartbeat: Option<Heartbeat>,
    /// The start of the lifecycle action, as far as it is known.
    begun: Instant,
    link: Arc<MessageLink>,
    /// The API server's absences.
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
        let task = HeartbeatTask {
            case: case.clone(),
            hook: hook.clone(),
            link: Arc::clone(link),
            state: Arc::clone(&state),
            begun,
            over: CancellationToken::new(),
        };
        let heartbeat = (!interrupter.policy.dry_run).then(|| Heartbeat::start(&interrupter.tasks, task));
        let absence = interrupter.drainer.gate.absence().clone();
        Self { hook: hook.clone(), state, heartbeat, begun, link: Arc::clone(link), absence, ends: None }
    }

    /// Returns the deadline of the work, by the hook's times and the pods known now.
    pub(super) fn deadline(&self) -> Deadline {
        self.state.borrow().deadline
    }

    /// Returns the deadline of the work before a drain has made room for its pods.
    pub(super) fn own_deadline(&self) -> Deadline {
        self.state.borrow().own_deadline
    }

    /// Moves the deadline of work that has waited, unless the hook's times have changed since `from`.
    pub(super) fn set_own_deadline(&self, deadline: Deadline, from: HookTimes) {
        self.change(from, |state| (state.own_deadline, state.deadline) = (deadline, deadline));
    }

    /// Moves the deadline of the work to make room for its pods, unless the hook's times have changed since `from`.
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

    /// Notes that the work is admitted: from now on the hook's expiry may override a budget.
    pub(super) fn admit(&self) {
        self.state.send_if_modified(|state| !std::mem::replace(&mut state.admitted, true));
    }

    /// Returns the hook with its current times.
    pub(super) fn with_times(&self) -> (&Self, HookTimes) {
        (self, self.state.borrow().times)
    }

    /// Waits until the hook's times are no longer the known ones; without a hook, forever.
    pub(super) async fn times_changed(known: Option<(&Self, HookTimes)>) {
        let Some((hook, known)) = known else { return std::future::pending().await };
        // The sender is here.
        let _ = hook.state.subscribe().wait_for(|state| state.times != known).await;
    }

    /// Returns the sum of the API server's absences that the deadline counts; 0 without a hook.
    pub(super) fn absent(hook: Option<&Self>) -> Duration {
        hook.map_or(Duration::ZERO, |hook| hook.state.borrow().absent.counted)
    }

    /// Waits until the API server's absences exceed `known`, puts the deadline off by the difference, and returns the sum. Called in a loop,
    /// it returns about once a second while the API server is unreachable. Without a hook, waits forever.
    pub(super) async fn put_off_by_absence(hook: Option<&Self>, known: Duration) -> Duration {
        let Some(hook) = hook else { return std::future::pending().await };
        hook.absence.grown(known).await;
        let total = hook.absence.total();
        hook.state.send_modify(|state| state.put_off(total));
        total
    }

    /// Returns the end of the hook's life, until which it can be completed.
    fn ends(&self) -> Instant {
        self.ends.unwrap_or_else(|| self.begun + self.state.borrow().times.life())
    }

    /// Cancelled when AWS reports that the lifecycle action is over.
    pub(super) fn over(&self) -> CancellationToken {
        self.heartbeat.as_ref().map(Heartbeat::over).unwrap_or_default()
    }

    /// Sends a heartbeat to find out whether the action is over. Without an answer it counts as waiting.
    pub(super) async fn is_over(&self, case: &Case) -> bool {
        let backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(2));
        if case.ask_hook(&self.hook, backoff, Instant::now() + NOTE_TIMEOUT).await == Some(HookReply::Over) {
            self.over().cancel();
        }
        // The heartbeat task may have found out first.
        self.over().is_cancelled()
    }

    /// Stops the heartbeat, and returns when no more beats can be sent.
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
            case.emit(&Fact::DryRun { about: case.about(), instead });
            return true;
        }
        self.link.completes.store(true, Ordering::Release);
        let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));
        let returns = comes_back(&case.notice.detail).is_some();
        // An action that was over before was not completed by this call.
        let (was_over, mut unanswered) = (self.over().is_cancelled(), None::<Instant>);
        loop {
            let Case { interrupter, notice, .. } = case;
            let call = interrupter.hooks.complete(&self.hook, notice.instance.as_str(), completion, self.ends());
            let error = match Box::pin(call).await {
                Ok(answer) => {
                    let result = if answer == HookReply::Done { done } else { CompletionResult::Over };
                    case.emit(&Fact::HookCompleted { about: case.about(), result });
                    if let Some(node) = case.node.as_ref().filter(|_| returns) {
                        self.stop_heartbeat().await;
                        // An action that is over may have been completed by our own earlier call, if the instance was there.
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
                // A retry doesn't create a group or hook, or make a request valid.
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
            case.emit(&Fact::CompletionRetried { about: case.about(), category, error: &error });
            // Until the completion, a Node that can come back has not left.
            let ends = Some(self.ends()).filter(|_| returns && !was_over);
            let _ = timeout(wait, Box::pin(case.keep_marked(ends))).await;
        }
    }

    /// Leaves the hook to its own timeout: a missing permission must not keep an instance alive for two days.
    async fn stop_heartbeat(&mut self) {
        if let Some(heartbeat) = self.heartbeat.take() {
            heartbeat.stop().await;
            self.ends = Some(self.ends().min(Instant::now() + self.state.borrow().times.heartbeat));
        }
    }
}

impl Case {
    /// Returns the Node if it has restarted since this notice's mark and its instance can return. Whether it has returned is not known yet.
    pub(super) fn restarted(&self) -> Option<Arc<Node>> {
        let known = self.interrupter.index.newest(self.node.as_ref()?)?;
        known.may_be_back(self.notice.key()).then_some(known)
    }

    /// Returns when AWS last accepted a heartbeat of this process for the notice's hook: the instance waited at that time.
    pub(super) fn waited(&self) -> Option<Timestamp> {
        let at = self.interrupter.hooks.last_beat(self.notice.hook()?)?;
        Some(self.interrupter.clock.timestamp_of(at))
    }

    /// Whether the instance may have come back from the lifecycle action that is still to be completed.
    pub(super) fn is_in_doubt(&self, node: &Node) -> bool {
        let touched = self.interrupter.policy.touched_hook(&self.notice).is_some();
        touched && may_be_over(&self.notice, node, self.waited())
    }

    /// Whether the mark records that the Node may have come back before it was written.
    fn is_of_unknown_boot(&self) -> bool {
        let known = self.node.as_ref().and_then(|node| self.interrupter.index.newest(node));
        known.is_some_and(|node| node.record.notice(self.notice.key()).is_some_and(NoticeRecord::is_of_unknown_boot))
    }

    /// Returns the mark to write on the Node, with a record of that doubt.
    pub(super) fn doubted(&self, mark: Mark, node: &Node) -> Mark {
        if self.is_in_doubt(node) { mark.of_unknown_boot() } else { mark }
    }

    /// Sends one heartbeat. If AWS accepts it for a Node that restarted before, records on the Node that the hook still waits.
    pub(super) async fn beat(&self, hook: &Hook, by: Instant) -> Result<HookReply, AwsError> {
        let Self { interrupter, notice, .. } = self;
        let restarted = self.restarted();
        let reply = interrupter.hooks.beat(hook, notice.instance.as_str(), by).await?;
        if let Some(node) = restarted.filter(|_| reply == HookReply::Done) {
            let by = (Class::List, Instant::now() + LAST_CALL);
            // If the write fails, the next heartbeat repeats it.
            let waits = |known: &NoticeRecord, current: &Node| {
                let waited = known.has_hook() && known.is_before_boot(&node.boot) && current.boot == node.boot;
                waited.then(|| known.in_boot(&node.boot))
            };
            let _ = interrupter.marker.revise(&node, notice.key(), by, waits).await;
        }
        Ok(reply)
    }

    /// Sends heartbeats to find out whether the lifecycle action waits or is over. `None` without an answer in time.
    pub(super) async fn ask_hook(&self, hook: &Hook, mut backoff: Backoff, by: Instant) -> Option<HookReply> {
        loop {
            let error = match self.beat(hook, by).await {
                Ok(reply) => return Some(reply),
                Err(error) => error,
            };
            let about = self.about();
            self.emit(&Fact::Heartbeat { about, result: HeartbeatResult::Failed(error.category), error: Some(&error) });
            let wait = if error.category == Category::Denied { DENIED_RETRY } else { backoff.step() };
            match error.category {
                Category::Invalid | Category::NotFound => return None,
                _ if Instant::now() + wait >= by => return None,
                _ => sleep(wait).await,
            }
        }
    }
}

/// Records on the Node of an instance that returns that its lifecycle action is over. If every write fails, a restart counts as the return
/// once the hook would have expired.
async fn note_end(case: &Case, node: &Node, is_ours: bool) {
    let (marker, clock) = (&case.interrupter.marker, &case.interrupter.clock);
    let (key, at) = (case.notice.key(), clock.now());
    let by = Instant::now() + NOTE_TIMEOUT;
    let note = async || {
        let within = (Class::Cordon, by.min(Instant::now() + CALL_TIMEOUT));
        let over = |known: &NoticeRecord, current: &Node| {
            // Another actor may have completed it, and whether a restart came before that is unknown.
            if is_ours { Some(known.completed(at, &current.boot)) } else { known.moved(at) }
        };
        marker.revise(node, key, within, over).await
    };
    let failed = |error: &KubeError| {
        case.emit(&Fact::ReleaseFailed { on: node.named(), category: error.category, error });
        true
    };
    // Failures are reported above.
    let _ = Backoff::new(Duration::from_millis(200), Duration::from_secs(2)).retry(Some(by), note, failed).await;
}

fn give_up(case: &Case, error: &AwsError) -> bool {
    case.emit(&Fact::CompletionFailed { about: case.about(), error });
    false
}
