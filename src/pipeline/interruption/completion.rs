//! A lifecycle hook that waits for this interruption: kept alive by a heartbeat, and completed in the end.

use super::heartbeat::{Beating, Heartbeat};
use super::hook::HookReply;
use super::{Case, Completion, HookTimes};
use crate::clients::gate::{AwsError, Backoff, Category};
use crate::fact::{CompletionResult, Fact};
use crate::pipeline::drain::Deadline;
use crate::pipeline::event::Hook;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// Interval between completions that are not permitted.
const DENIED_RETRY: Duration = Duration::from_mins(1);

/// A hook and its heartbeat.
pub(super) struct KeptHook {
    hook: Hook,
    heartbeat: Option<Heartbeat>,
    /// The time until which the hook can be completed at all.
    ends: Instant,
    /// The time that the hook lives without a heartbeat.
    timeout: Duration,
}

impl KeptHook {
    /// Starts the heartbeat of a hook; a dry run has none.
    pub(super) fn keep(case: &Case, hook: &Hook, times: HookTimes, deadline: Deadline) -> Self {
        let interrupter = &case.interrupter;
        let begun = interrupter.clock.notice_instant(case.notice.at);
        let beating = || Beating {
            hooks: interrupter.hooks.clone(),
            hook: hook.clone(),
            kind: case.notice.kind(),
            instance: case.notice.instance.as_str().into(),
            node: case.node.as_ref().map(|node| Arc::clone(&node.name)),
            message: Arc::clone(&case.message),
            heartbeats: interrupter.policy.heartbeats,
            times,
            begun,
            finish: deadline.at(),
            facts: interrupter.facts.clone(),
            over: CancellationToken::new(),
        };
        let heartbeat = (!interrupter.policy.dry_run).then(|| Heartbeat::start(&interrupter.tasks, beating()));
        Self { hook: hook.clone(), heartbeat, ends: begun + times.life(), timeout: times.heartbeat }
    }

    /// Cancelled when AWS has said that the lifecycle action is over.
    pub(super) fn over(&self) -> CancellationToken {
        self.heartbeat.as_ref().map(Heartbeat::over).unwrap_or_default()
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
        let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));
        loop {
            let Case { interrupter, notice, .. } = case;
            let call = interrupter.hooks.complete(&self.hook, notice.instance.as_str(), completion, self.ends);
            let error = match Box::pin(call).await {
                Ok(answer) => {
                    let result = if answer == HookReply::Done { done } else { CompletionResult::Over };
                    case.tell(&Fact::HookCompleted { about: case.about(), result });
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
                _ => backoff.step(),
            };
            if Instant::now() + wait >= self.ends {
                return give_up(case, &error);
            }
            let category = error.category;
            case.tell(&Fact::CompletionRetried { about: case.about(), category, error: &error });
            sleep(wait).await;
        }
    }

    /// Leaves the hook to its own timeout. A missing permission may be granted, but must not keep an instance alive for two days until
    /// then.
    async fn stop_heartbeat(&mut self) {
        if let Some(heartbeat) = self.heartbeat.take() {
            heartbeat.stop().await;
            self.ends = self.ends.min(Instant::now() + self.timeout);
        }
    }
}

fn give_up(case: &Case, error: &AwsError) -> bool {
    case.tell(&Fact::CompletionFailed { about: case.about(), error });
    false
}
