//! Calls to Auto Scaling: a hook's times, heartbeats, completions, and the search for the action of an instance from an agent notice.

use crate::clients::answers::{Answers, FAILURE_KEPT, sweep};
use crate::clients::gate::{AwsClass, AwsError, Backoff, Category, Gate, Operation};
use crate::fact::HookLack;
use crate::pipeline::event::{Hook, InstanceId};
use crate::pipeline::interruption::group_lookup::GroupLookup;
use crate::pipeline::interruption::times::HookTimes;
use aws_sdk_autoscaling::Client;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Time for which a hook's times are kept: users change them rarely, and a storm must not ask twice.
const TIMES_KEPT: Duration = Duration::from_mins(10);

/// Timeout for looking up a hook's times: a drain waits for it.
const LOOK_UP_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum heartbeat timeout of a lifecycle hook: an older beat keeps nothing alive.
const MAX_HEARTBEAT_TIMEOUT: Duration = Duration::from_hours(2);

const DESCRIBE_HOOKS: Operation = Operation::new("autoscaling", "DescribeLifecycleHooks");

/// AWS's message about a lifecycle action that has ended.
const OVER_MESSAGE: &str = "No active Lifecycle Action found";

/// The reply to a lifecycle call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookReply {
    /// The call was accepted.
    Done,
    /// The lifecycle action is over: completed, expired, or its instance is gone. It needs nothing more.
    Over,
}

/// The result that a lifecycle action is completed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// The group continues.
    Continue,
    /// The group skips the remaining hooks; an instance that was being launched is terminated.
    Abandon,
}

impl Completion {
    /// The result's name in Auto Scaling's API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Continue => "CONTINUE",
            Self::Abandon => "ABANDON",
        }
    }
}

/// Whether an instance that its group terminates waits at a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookSearch {
    /// It waits at a hook. If AWS accepts a heartbeat for this one, it is the one.
    Found(Hook),
    /// It does not wait yet: its group first deregisters it from load balancers, which takes minutes.
    NotYet,
    /// Its group keeps it, as far as Auto Scaling shows now.
    InService,
    /// It is past the hooks of its departure, and comes back: its root volume was replaced, or it is in its warm pool.
    Returning,
    /// It is in no group, as far as Auto Scaling shows now.
    NoGroup,
    /// It will not wait at a hook of this name: its group has no such hook, or all hooks are over.
    Nowhere(HookLack),
}

/// Makes lifecycle calls.
#[derive(Clone, Debug)]
pub struct Hooks {
    client: Client,
    gate: Gate<AwsClass>,
    /// Times by group, hook, and whether a message announced it: the answers differ.
    times: Arc<Answers<(String, String, bool), TimesResult>>,
    beats: Beats,
    groups: GroupLookup,
}

/// The last heartbeat of each action from this process, by its token.
#[derive(Clone, Debug, Default)]
struct Beats(Arc<Mutex<HashMap<String, Instant>>>);

impl Beats {
    fn last(&self, token: &str) -> Option<Instant> {
        self.0.lock().get(token).copied()
    }

    fn remember(&self, token: &str, beat: Instant) {
        let mut beats = self.0.lock();
        sweep(&mut beats, |last| last.elapsed() < MAX_HEARTBEAT_TIMEOUT);
        beats.insert(token.to_owned(), beat);
    }
}

/// The times of a hook, or the reason why they are unknown.
type TimesResult = Result<HookTimes, NoTimes>;

/// Why a hook's times are unknown.
#[derive(Clone, Debug)]
struct NoTimes {
    error: Arc<AwsError>,
    /// The terminating hooks that the group has instead.
    others: Vec<String>,
}

impl From<AwsError> for NoTimes {
    fn from(error: AwsError) -> Self {
        Self { error: Arc::new(error), others: Vec::new() }
    }
}

impl Hooks {
    /// Makes calls with `client` through `gate`, and searches by `groups`.
    #[must_use]
    pub fn new(client: Client, gate: Gate<AwsClass>, groups: GroupLookup) -> Self {
        Self { client, gate, times: Arc::default(), beats: Beats::default(), groups }
    }

    /// Searches for the lifecycle action at which the terminating instance waits, by the hook's name. A few calls serve the instances of a
    /// storm.
    ///
    /// # Errors
    /// AWS did not answer. The caller retries.
    pub async fn search(&self, name: &str, instance: &InstanceId) -> Result<HookSearch, AwsError> {
        let Some(found) = self.groups.find(instance).await? else { return Ok(HookSearch::NoGroup) };
        if found.is_past_hooks() {
            return Ok(HookSearch::Nowhere(HookLack::Over(found.state)));
        }
        if found.is_returning() {
            return Ok(HookSearch::Returning);
        }
        if !found.begins_to_terminate() {
            return Ok(HookSearch::InService);
        }
        let waits = found.waits_to_terminate();
        let (group, name) = (found.group, name.to_owned());
        let hook = Hook { group, name, token: None, pool: None, replaces_root_volume: false, direct: true };
        match self.kept_times(&hook).await {
            Err(NoTimes { error, others }) if error.category == Category::NotFound => {
                Ok(HookSearch::Nowhere(HookLack::NoHook { group: hook.group, others }))
            }
            _ if waits => Ok(HookSearch::Found(hook)),
            Ok(_) => Ok(HookSearch::NotYet),
            Err(NoTimes { error, .. }) => Err((*error).clone()),
        }
    }

    /// Returns the hook's times, which may be some minutes old. Only the first of several callers asks AWS; the others wait for its
    /// reply.
    ///
    /// # Errors
    /// When AWS did not reply within a few seconds; [`HookTimes::UNKNOWN`] is safe then.
    pub async fn times(&self, hook: &Hook) -> Result<HookTimes, Arc<AwsError>> {
        self.kept_times(hook).await.map_err(|no_times| no_times.error)
    }

    async fn kept_times(&self, hook: &Hook) -> TimesResult {
        let max_age = |times: &TimesResult| if times.is_ok() { TIMES_KEPT } else { FAILURE_KEPT };
        let question = (hook.group.clone(), hook.name.clone(), hook.token.is_some());
        self.times.get(question, max_age, || self.look_up(hook)).await
    }

    async fn look_up(&self, hook: &Hook) -> TimesResult {
        let mut last = None;
        let by = Instant::now() + LOOK_UP_TIMEOUT;
        let tries = async {
            let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(2));
            loop {
                match self.describe(hook, by).await {
                    Ok(times) => return Ok(times),
                    // A retry does not grant a permission or create a hook.
                    Err(failed)
                        if matches!(
                            failed.error.category,
                            Category::Denied | Category::Invalid | Category::NotFound
                        ) =>
                    {
                        return Err(failed);
                    }
                    Err(failed) => last = Some(failed),
                }
                sleep(backoff.step()).await;
            }
        };
        match timeout(LOOK_UP_TIMEOUT, tries).await {
            Ok(looked) => looked,
            // The call may have waited for its turn the whole time.
            Err(_) => Err(last.unwrap_or_else(|| {
                let message = format!("no answer within {LOOK_UP_TIMEOUT:?}");
                AwsError::new(DESCRIBE_HOOKS, &subject(hook), Category::TimedOut, message).into()
            })),
        }
    }

    async fn describe(&self, hook: &Hook, by: Instant) -> TimesResult {
        // Only messages, which have the token, announce launches.
        let is_announced = hook.token.is_some();
        let request = self
            .client
            .describe_lifecycle_hooks()
            .auto_scaling_group_name(&hook.group)
            // All hooks of a group, to report which it has instead of the one in the settings.
            .set_lifecycle_hook_names(is_announced.then(|| vec![hook.name.clone()]));
        let answer = self.gate.aws(DESCRIBE_HOOKS, &subject(hook), AwsClass::Describe, by, || request.send()).await?;
        let mut hooks = answer.lifecycle_hooks.unwrap_or_default();
        hooks.retain(|found| {
            is_announced || found.lifecycle_transition.as_deref().is_none_or(|kind| kind.ends_with("TERMINATING"))
        });
        let found = hooks.iter().find(|found| found.lifecycle_hook_name.as_deref() == Some(&hook.name));
        let seconds = found.and_then(|found| found.heartbeat_timeout).and_then(|seconds| u64::try_from(seconds).ok());
        if let Some(seconds) = seconds {
            // AWS allows no less than 30 s; a shorter timeout would make heartbeats a flood.
            return Ok(HookTimes::of(Duration::from_secs(seconds.max(30))));
        }
        let message = "the group has no such hook, or it names no timeout".to_owned();
        let error = Arc::new(AwsError::new(DESCRIBE_HOOKS, &subject(hook), Category::NotFound, message));
        Err(NoTimes { error, others: hooks.into_iter().filter_map(|found| found.lifecycle_hook_name).collect() })
    }

    /// Returns the last heartbeat that AWS has accepted from this process for the action: a notice that comes back need not send one at
    /// once. `None` for an action without a token: its start is unknown, so that only a new heartbeat makes its expiry known.
    #[must_use]
    pub fn last_beat(&self, hook: &Hook) -> Option<Instant> {
        self.beats.last(hook.token.as_ref()?)
    }

    /// Sends a heartbeat for an action that `expires` without one; those that expire first go first.
    ///
    /// # Errors
    /// When AWS did not accept it, unless the action is over.
    pub async fn beat(&self, hook: &Hook, instance: &str, expires: Instant) -> Result<HookReply, AwsError> {
        let request = self
            .client
            .record_lifecycle_action_heartbeat()
            .auto_scaling_group_name(&hook.group)
            .lifecycle_hook_name(&hook.name)
            .set_lifecycle_action_token(hook.token.clone())
            .set_instance_id(named(hook, instance));
        let operation = Operation::new("autoscaling", "RecordLifecycleActionHeartbeat");
        let sent = Instant::now();
        let answer =
            over(self.gate.aws(operation, &subject(hook), AwsClass::Heartbeat, expires, || request.send()).await)?;
        if let (HookReply::Done, Some(token)) = (answer, &hook.token) {
            self.beats.remember(token, sent);
        }
        Ok(answer)
    }

    /// Completes the action with `result`, which is possible until `by`.
    ///
    /// # Errors
    /// When AWS did not accept it, unless the action is over.
    pub async fn complete(
        &self,
        hook: &Hook,
        instance: &str,
        result: Completion,
        by: Instant,
    ) -> Result<HookReply, AwsError> {
        let request = self
            .client
            .complete_lifecycle_action()
            .auto_scaling_group_name(&hook.group)
            .lifecycle_hook_name(&hook.name)
            .set_lifecycle_action_token(hook.token.clone())
            .set_instance_id(named(hook, instance))
            .lifecycle_action_result(result.as_str());
        let operation = Operation::new("autoscaling", "CompleteLifecycleAction");
        over(self.gate.aws(operation, &subject(hook), AwsClass::Complete, by, || request.send()).await)
    }
}

/// Returns the instance that a call names besides the token: none for a test, so that AWS does not find a real action by the instance.
fn named(hook: &Hook, instance: &str) -> Option<String> {
    (!hook.is_test()).then(|| instance.to_owned())
}

fn over<T>(answer: Result<T, AwsError>) -> Result<HookReply, AwsError> {
    match answer {
        Ok(_) => Ok(HookReply::Done),
        Err(error) if error.category == Category::Invalid && error.message.starts_with(OVER_MESSAGE) => {
            Ok(HookReply::Over)
        }
        Err(error) => Err(error),
    }
}

fn subject(hook: &Hook) -> String {
    format!("hook {} of group {}", hook.name, hook.group)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::answers::SWEPT_AT;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn old_heartbeats_are_forgotten_and_others_are_not() {
        let beats = Beats::default();
        for n in 1..SWEPT_AT {
            beats.remember(&format!("old-{n}"), Instant::now());
        }
        advance(MAX_HEARTBEAT_TIMEOUT).await;
        let now = Instant::now();
        beats.remember("new", now);
        assert!(beats.last("old-1").is_some(), "the table has not grown");
        beats.remember("newer", now);
        assert_eq!(["old-1", "new", "newer"].map(|token| beats.last(token)), [None, Some(now), Some(now)]);
    }
}
