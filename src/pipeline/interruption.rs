//! One notice being acted on: the owner of its hook and its heartbeat.
//!
//! ```text
//! Armed ──pre_drain──▶ Draining ──post_drain──▶ Done
//!                         └───────early_exit──▶ Done
//! ```
//!
//! `pre_drain` starts the heartbeat, [`Draining`] owns it, and the only ways out consume it and wait for its end. Dropped by a panic or
//! a cancelled future, it takes its heartbeat with it. So a heartbeat can't outlive its interruption.

mod deadlines;
mod decisions;
mod heartbeat;
mod hook;
mod launch;
mod node_work;
mod out_of_service;
mod policy;
mod shared_work;
mod work;

pub use deadlines::Deadlines;
pub use decisions::{is_late, left_for_pool, out_of_service_mark, runs_no_more};
pub use hook::{Completion, Hooks};
pub use policy::{Action, Actions, Heartbeats, HookTimes, OnFailed, PerKind, Policy, due_beat};
pub use shared_work::{Seat, Slots};
pub use work::{Interrupter, Shared};

use crate::clients::gate::{AwsError, Backoff, CALL_TIMEOUT, Category};
use crate::fact::{About, CompletionResult, Fact};
use crate::pipeline::drain;
use crate::pipeline::event::{Hook, Notice};
use crate::pipeline::node::Node;
use crate::runtime::task::Ending;
use heartbeat::{Beating, Heartbeat};
use hook::Answer;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// A completion that is not permitted is tried again so often.
const DENIED: Duration = Duration::from_mins(1);

pub use crate::fact::NoticeOutcome as Outcome;

impl Ending for Outcome {
    fn failed(&self) -> bool {
        self.is_failure()
    }
}

/// What all states of an interruption know.
#[derive(Clone)]
struct Case {
    interrupter: Arc<Interrupter>,
    notice: Arc<Notice>,
    message: Arc<str>,
    node: Option<Arc<Node>>,
}

impl Case {
    fn about(&self) -> About<'_> {
        About {
            kind: self.notice.kind(),
            instance: self.notice.instance.as_str(),
            node: self.node.as_ref().map(|node| &*node.name),
            message: &self.message,
        }
    }

    fn tell(&self, fact: &Fact<'_>) {
        self.interrupter.facts.emit(fact);
    }

    /// The instance's Node, if it says now that it is to be left alone.
    fn excluded_node(&self) -> Option<Arc<Node>> {
        self.interrupter.index.get(&self.notice.instance).filter(|node| node.is_excluded())
    }
}

/// A notice that is ours to act on. Nothing has been done yet.
struct Armed {
    case: Case,
    deadline: drain::Deadline,
    hook: Option<(HookTimes, Instant)>,
}

/// The node is being found, cordoned and drained; the hook is kept alive.
struct Draining {
    case: Case,
    deadline: drain::Deadline,
    heartbeat: Option<Heartbeat>,
    /// Until when the hook can be completed at all.
    hook_ends: Option<Instant>,
    /// How long the hook lives without a heartbeat.
    timeout: Duration,
}

/// It is over. Nothing runs any more.
#[derive(Clone, Copy, Debug)]
struct Done(Outcome);

impl Armed {
    /// Starts the heartbeat.
    fn pre_drain(self) -> Draining {
        let Self { case, deadline, hook } = self;
        let waiting = case.notice.hook().filter(|_| !case.interrupter.policy.dry_run);
        let heartbeat = waiting.zip(hook).map(|(waiting, (times, begun))| {
            let interrupter = &case.interrupter;
            let beating = Beating {
                hooks: interrupter.hooks.clone(),
                hook: waiting.clone(),
                kind: case.notice.kind(),
                instance: case.notice.instance.as_str().into(),
                node: case.node.as_ref().map(|node| Arc::clone(&node.name)),
                message: Arc::clone(&case.message),
                heartbeats: interrupter.policy.heartbeats,
                times,
                begun,
                finish: deadline.at,
                facts: interrupter.facts.clone(),
                over: CancellationToken::new(),
            };
            Heartbeat::start(&interrupter.tasks, beating)
        });
        let hook_ends = hook.map(|(times, begun)| begun + times.life());
        let timeout = hook.map_or(Duration::ZERO, |(times, _)| times.heartbeat);
        Draining { case, deadline, heartbeat, hook_ends, timeout }
    }
}

impl Draining {
    /// It has ended, well or at its deadline: completes the hook, as the policy says, and then stops the heartbeat. Told to stop
    /// before the hook is completed, it is an early exit.
    async fn post_drain(mut self, outcome: Outcome, stop: &CancellationToken) -> Done {
        let notice = Arc::clone(&self.case.notice);
        let Some(hook) = notice.hook() else { return Done(outcome) };
        let Some(completion) = self.completion(outcome) else {
            self.case.tell(&Fact::HookLeft { about: self.case.about() });
            return self.early_exit(outcome).await;
        };
        let completed = async {
            self.hold_back(outcome).await;
            self.complete(hook, completion).await
        };
        let completed = tokio::select! {
            biased;
            () = stop.cancelled() => None,
            completed = completed => Some(completed),
        };
        match completed {
            None => self.early_exit(Outcome::HandedOver).await,
            Some(true) => self.early_exit(outcome).await,
            Some(false) => self.early_exit(Outcome::HookFailed).await,
        }
    }

    /// What the hook is completed with; `None` leaves it to its own timeout.
    fn completion(&self, outcome: Outcome) -> Option<Completion> {
        let excluded = self.case.excluded_node().is_some();
        self.case.interrupter.policy.completion(outcome, &self.case.notice.detail, excluded)
    }

    /// Waits after a drain for as long as the policy wants, within the deadline; the heartbeat goes on.
    async fn hold_back(&self, outcome: Outcome) {
        let left = self.deadline.at.saturating_duration_since(Instant::now());
        let by = self.case.interrupter.policy.complete_after.min(left);
        if outcome == Outcome::Drained && !by.is_zero() {
            self.case.tell(&Fact::CompletionHeld { about: self.case.about(), by });
            sleep(by).await;
        }
    }

    /// Leaves the hook as it is: stops the heartbeat, and returns when no beat can go out any more.
    async fn early_exit(self, outcome: Outcome) -> Done {
        if let Some(heartbeat) = self.heartbeat {
            heartbeat.stop().await;
        }
        Done(outcome)
    }

    /// Completes the hook, with retries for as long as it can be alive. Tells whether that is done.
    async fn complete(&mut self, hook: &Hook, completion: Completion) -> bool {
        let (instead, done) = match completion {
            Completion::Continue => ("complete the lifecycle action with CONTINUE", CompletionResult::Continue),
            Completion::Abandon => ("complete the lifecycle action with ABANDON", CompletionResult::Abandon),
        };
        if self.case.interrupter.policy.dry_run {
            self.case.tell(&Fact::DryRun { about: self.case.about(), instead });
            return true;
        }
        let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));
        let mut give_up_at = self.hook_ends;
        loop {
            let Case { interrupter, notice, .. } = &self.case;
            let by = give_up_at.unwrap_or_else(|| Instant::now() + CALL_TIMEOUT);
            let answer = Box::pin(interrupter.hooks.complete(hook, notice.instance.as_str(), completion, by)).await;
            let error = match answer {
                Ok(answer) => {
                    let result = if answer == Answer::Done { done } else { CompletionResult::Over };
                    self.case.tell(&Fact::HookCompleted { about: self.case.about(), result });
                    return true;
                }
                Err(error) => error,
            };
            let wait = match error.category {
                // An unknown group or hook stays unknown; what else AWS calls invalid does not become valid by waiting.
                Category::Invalid | Category::NotFound => return self.give_up(&error),
                Category::Denied => {
                    // A permission that is missing may be granted, but an instance must not be kept alive for two days until it is:
                    // without a heartbeat the hook's own timeout ends it.
                    if let Some(heartbeat) = self.heartbeat.take() {
                        heartbeat.stop().await;
                        give_up_at = give_up_at.map(|at| at.min(Instant::now() + self.timeout));
                    }
                    DENIED
                }
                _ => backoff.step(),
            };
            if give_up_at.is_none_or(|at| Instant::now() + wait >= at) {
                return self.give_up(&error);
            }
            let category = error.category;
            self.case.tell(&Fact::CompletionRetried { about: self.case.about(), category, error: &error });
            sleep(wait).await;
        }
    }

    fn give_up(&self, error: &AwsError) -> bool {
        self.case.tell(&Fact::CompletionFailed { about: self.case.about(), error });
        false
    }
}
