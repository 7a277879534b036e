//! A lifecycle hook that waits for this interruption: kept alive by a heartbeat, and completed in the end.

use super::decisions::{comes_back, hook_terms};
use super::hook::{DENIED_RETRY, Heartbeat, HookEvent, HookMachine, HookReply, LifecycleAction, Trust, restarted};
use super::known::KnownHook;
use super::late::may_be_over;
use super::{Case, Completion, HookTimes, MessageLink};
use crate::clients::gate::{AbsenceSince, AwsError, Backoff, CALL_TIMEOUT, Category, Class, KubeError};
use crate::fact::{CompletionResult, Fact, HookLack};
use crate::pipeline::drain::Deadline;
use crate::pipeline::event::{Detail, Hook};
use crate::pipeline::node::mark::Mark;
use crate::pipeline::node::record::NoticeRecord;
use crate::pipeline::node::{Node, TEST_ANNOTATION};
use jiff::Timestamp;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

/// Maximum time to ask whether the lifecycle action is over, and to note that it is.
const NOTE_TIMEOUT: Duration = Duration::from_secs(10);

/// Divisor of a hook's timeout: a message older than that share is old.
const OLD: u32 = 4;

/// Minimum time from the completion until an instance that returns has restarted.
const AWAY: Duration = Duration::from_secs(20);

/// A hook and its heartbeat.
pub(super) struct KeptHook {
    action: Arc<LifecycleAction>,
    machine: watch::Sender<HookMachine>,
    heartbeat: Option<Heartbeat>,
}

impl KeptHook {
    /// Starts the heartbeat of a hook with these times; a dry run has none. `before` is the same hook before the steps started again, and
    /// `absence` has the API server's absences since the start of the work.
    pub(super) fn keep(
        case: &Case,
        link: &MessageLink,
        (hook, times): (&Hook, HookTimes),
        before: Option<&Self>,
        absence: &AbsenceSince,
    ) -> Self {
        let Case { interrupter, policy, notice, .. } = case;
        let (clock, now) = (&interrupter.clock, Instant::now());
        let node = interrupter.index.get(&notice.instance);
        let terms = hook_terms(policy, notice, node.as_deref(), clock);
        let (trust, last) = (case.trust(hook, times, before), interrupter.hooks.last_beat(hook));
        let action = Arc::new(case.action(Arc::new(hook.clone())));
        let mut machine = HookMachine::new(Arc::clone(&action.hook), terms, times, trust, last, now);
        machine.handle(HookEvent::Absent(absence.total()), now);
        let machine = watch::Sender::new(machine);
        let start = || {
            let visibility = link.visibility_timeout.clone();
            Heartbeat::start(&interrupter.tasks, Arc::clone(&action), machine.clone(), visibility, absence.clone())
        };
        let heartbeat = (!policy.dry_run).then(start);
        Self { action, machine, heartbeat }
    }

    fn handle(&self, event: HookEvent) {
        self.machine.send_modify(|machine| machine.handle(event, Instant::now()));
    }

    /// Returns the deadline of the work, by the hook's times and the pods known now.
    pub(super) fn deadline(&self) -> Deadline {
        self.machine.borrow().deadline()
    }

    /// Returns what the next step may follow from.
    pub(super) fn known(&self) -> KnownHook {
        let machine = self.machine.borrow();
        KnownHook { deadline: machine.deadline(), times: machine.times() }
    }

    /// Returns the deadline of the work before a drain has made room for its pods.
    pub(super) fn own_deadline(&self) -> Deadline {
        self.machine.borrow().own_deadline()
    }

    /// Returns the deadline of work that starts at `begins`; `None` if heartbeats can't put it off.
    pub(super) fn deadline_from(&self, begins: Instant) -> Option<Deadline> {
        let terms = self.machine.borrow().terms();
        let deadline = terms.deadline(self.machine.borrow().times());
        matches!(deadline, Deadline::Hook(_)).then(|| deadline.put_off(begins.saturating_duration_since(terms.found)))
    }

    /// Puts off the deadline for a wait until `until`, and returns it, if heartbeats can do that.
    pub(super) fn put_off(hook: Option<&Self>, until: Instant) -> Option<Deadline> {
        let latest = hook?.deadline_from(until)?;
        hook?.handle(HookEvent::Moved(latest));
        Some(latest)
    }

    /// Moves the deadline of the work to make room for its pods, unless the hook's times have changed since `from`.
    pub(super) fn set_deadline(&self, deadline: Deadline, from: HookTimes) {
        self.machine.send_if_modified(|machine| {
            let changes = machine.times() == from && machine.deadline() != deadline;
            if changes {
                machine.handle(HookEvent::Lengthened(deadline), Instant::now());
            }
            changes
        });
    }

    /// Notes that the work is admitted: from now on the hook's expiry may override a budget.
    pub(super) fn admit(&self) {
        self.handle(HookEvent::Admitted);
    }

    /// Whether AWS has accepted a heartbeat, or the hook's message is trusted.
    pub(super) fn is_proven(&self) -> bool {
        self.machine.borrow().is_proven()
    }

    /// Returns the hook's times.
    pub(super) fn times(&self) -> HookTimes {
        self.machine.borrow().times()
    }

    /// Whether AWS has reported that the lifecycle action is over.
    pub(super) fn has_ended(&self) -> bool {
        self.machine.borrow().is_over()
    }

    /// Returns the changes of the hook.
    pub(super) fn changes(&self) -> watch::Receiver<HookMachine> {
        self.machine.subscribe()
    }

    /// Waits until the hook changes; without one, forever.
    pub(super) async fn changed(changes: &mut Option<watch::Receiver<HookMachine>>) {
        let Some(changes) = changes else { return pending().await };
        // The sender is here.
        let _ = changes.changed().await;
    }

    /// Returns the hook with its current times.
    pub(super) fn with_times(&self) -> (&Self, HookTimes) {
        (self, self.times())
    }

    /// Waits until the hook's times are no longer the known ones; without a hook, forever.
    pub(super) async fn times_changed(known: Option<(&Self, HookTimes)>) {
        let Some((hook, known)) = known else { return pending().await };
        // The sender is here.
        let _ = hook.machine.subscribe().wait_for(|machine| machine.times() != known).await;
    }

    /// Returns the end of the hook's life, until which it can be completed.
    fn ends(&self) -> Instant {
        self.machine.borrow().ends()
    }

    /// Waits until AWS reports that the lifecycle action is over; without a hook, forever.
    pub(super) async fn over(hook: Option<&Self>) {
        let Some(hook) = hook else { return pending().await };
        // As above.
        let _ = hook.machine.subscribe().wait_for(HookMachine::is_over).await;
    }

    /// Waits until the instance turns out not to wait at the hook, and returns why; without a hook, forever.
    pub(super) fn not_found(hook: Option<&Self>) -> impl Future<Output = HookLack> + use<> {
        let changes = hook.map(|hook| hook.machine.subscribe());
        async {
            let Some(mut changes) = changes else { return pending().await };
            let found = changes.wait_for(|machine| machine.lack().is_some()).await;
            match found.ok().and_then(|machine| machine.lack().cloned()) {
                Some(lack) => lack,
                None => pending().await,
            }
        }
    }

    /// Sends a heartbeat to find out whether the action is over. Without an answer it counts as waiting.
    pub(super) async fn is_over(&self, case: &Case) -> bool {
        let backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(2));
        // The case knows the Node that was found since.
        let action = case.action(Arc::clone(&self.action.hook));
        if action.ask(backoff, Instant::now() + NOTE_TIMEOUT).await == Some(HookReply::Over) {
            self.handle(HookEvent::Over);
        }
        // The heartbeat task may have found out first.
        self.machine.borrow().is_over()
    }

    /// Stops the heartbeat, and returns when no more beats can be sent.
    pub(super) async fn stop(mut self) {
        self.end_heartbeat(HookEvent::Left).await;
    }

    /// Completes the hook, with retries within its life. Returns whether that succeeded.
    pub(super) async fn complete(&mut self, case: &Case, completion: Completion) -> bool {
        let (instead, done) = match completion {
            Completion::Continue => ("complete the lifecycle action with CONTINUE", CompletionResult::Continue),
            Completion::Abandon => ("complete the lifecycle action with ABANDON", CompletionResult::Abandon),
        };
        if case.policy.dry_run {
            case.emit(&Fact::DryRun { about: case.about(), instead });
            return true;
        }
        let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));
        let returns = comes_back(&case.notice.detail).is_some();
        // An action that was over before was not completed by this call.
        let (was_over, mut unanswered) = (self.machine.borrow().is_over(), None::<Instant>);
        self.handle(HookEvent::Completing);
        loop {
            let Case { interrupter, notice, .. } = case;
            let call = interrupter.hooks.complete(&self.action.hook, notice.instance.as_str(), completion, self.ends());
            let error = match Box::pin(call).await {
                Ok(answer) => {
                    let result = if answer == HookReply::Done { done } else { CompletionResult::Over };
                    case.emit(&Fact::HookCompleted { about: case.about(), result });
                    self.end_heartbeat(HookEvent::Completed).await;
                    if let Some(node) = case.node.as_ref().filter(|_| returns) {
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
                // A missing permission must not keep an instance alive for two days.
                Category::Denied => {
                    self.end_heartbeat(HookEvent::Left).await;
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

    /// Ends the heartbeat by this event, and returns when no more beats can be sent.
    async fn end_heartbeat(&mut self, event: HookEvent) {
        if let Some(heartbeat) = self.heartbeat.take() {
            self.handle(event);
            heartbeat.ended().await;
        }
    }
}

impl Case {
    /// Returns the Node if it has restarted since this notice's mark and its instance can return. Whether it has returned is not known yet.
    pub(super) fn restarted(&self) -> Option<Arc<Node>> {
        restarted(&self.interrupter.index, self.node.as_ref()?, self.notice.key())
    }

    /// Returns when AWS last accepted a heartbeat of this process for the notice's hook: the instance waited at that time.
    pub(super) fn waited(&self) -> Option<Timestamp> {
        let at = self.interrupter.hooks.last_beat(self.notice.hook()?)?;
        Some(self.interrupter.clock.timestamp_of(at))
    }

    /// Whether the instance may have come back from the lifecycle action that is still to be completed.
    pub(super) fn is_in_doubt(&self, node: &Node) -> bool {
        let touched = self.policy.touched_hook(&self.notice).is_some();
        touched && may_be_over(&self.notice, node, self.waited())
    }

    /// Whether the mark records that the Node may have come back before it was written.
    fn is_of_unknown_boot(&self) -> bool {
        let known = self.node.as_ref().and_then(|node| self.interrupter.index.newest(node));
        known.is_some_and(|node| node.record.notice(self.notice.key()).is_some_and(|known| known.boot.is_unknown()))
    }

    /// Returns the mark to write on the Node, with a record of that doubt.
    pub(super) fn doubted(&self, mark: Mark, node: &Node) -> Mark {
        if self.is_in_doubt(node) { mark.of_unknown_boot() } else { mark }
    }

    /// Returns the lifecycle action of the notice, which waits at this hook.
    pub(super) fn action(&self, hook: Arc<Hook>) -> LifecycleAction {
        let Self { interrupter, notice, message, node, .. } = self;
        LifecycleAction {
            hook,
            notice: Arc::clone(notice),
            message: Arc::clone(message),
            node: node.clone(),
            hooks: interrupter.hooks.clone(),
            index: interrupter.index.clone(),
            marker: interrupter.marker.clone(),
            clock: interrupter.clock,
            facts: interrupter.facts.clone(),
        }
    }

    /// Returns how far the notice's hook is trusted: an attacker who can write to the queue may have forged its message to end an
    /// instance's pods. A launch ends none. `before` is the same hook before the steps started again.
    pub(super) fn trust(&self, hook: &Hook, times: HookTimes, before: Option<&KeptHook>) -> Trust {
        let Self { interrupter, policy, notice, .. } = self;
        let clock = &interrupter.clock;
        let terminates = matches!(notice.detail, Detail::AsgTerminate(_));
        let is_doubted = policy.admission.is_wary() && terminates;
        let is_old = clock.notice_instant(notice.at()) + times.heartbeat / OLD < Instant::now();
        let allows_tests = self.node.as_ref().is_some_and(|node| node.record.text(TEST_ANNOTATION) == Some("true"));
        // Only a heartbeat proves a hook.
        if !policy.sends_heartbeats()
            || !is_doubted && hook.is_test() && allows_tests
            || before.is_some_and(KeptHook::is_proven)
        {
            return Trust::Trusted;
        }
        match (&hook.token, is_doubted) {
            (None, _) => Trust::Unknown,
            (Some(_), true) if is_old => Trust::Unknown,
            (Some(_), true) => Trust::Unproven,
            (Some(_), false) if terminates => Trust::Announced,
            (Some(_), false) => Trust::Trusted,
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
