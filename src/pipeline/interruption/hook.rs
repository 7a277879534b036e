//! Auto Scaling's lifecycle calls: what a hook's times are, one more heartbeat, the completion.

use super::times::HookTimes;
use crate::clients::gate::{AwsError, Backoff, Category, Gate, LifecycleClass};
use crate::pipeline::event::Hook;
use aws_sdk_autoscaling::Client;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// A hook's settings are asked for again after so long: users change them rarely, and a storm must not ask twice.
const KEPT: Duration = Duration::from_mins(10);

/// After a failure the next notice asks again, but not each of a storm.
const FAILURE_KEPT: Duration = Duration::from_secs(30);

/// Timeout of the look-up of a hook's times: a drain waits for it.
const LOOK_UP_TIMEOUT: Duration = Duration::from_secs(5);

/// Lifecycle hooks wait for a heartbeat no longer than this: an older beat means nothing.
const LONGEST_TIMEOUT: Duration = Duration::from_hours(2);

/// Old beats are swept out when so many, or a doubling of it, have gathered: some hundred bytes each.
const SWEPT_AT: usize = 1024;

/// What AWS says of an action that is not waiting for anybody any more.
const OVER: &str = "No active Lifecycle Action found";

/// How a lifecycle call was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It was done.
    Done,
    /// The action is over: completed by somebody, expired, or its instance is gone. For us that is done.
    Over,
}

/// How the group goes on once an action is completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// As it was about to.
    Continue,
    /// Without what other hooks still had to do; an instance that was being launched is terminated.
    Abandon,
}

impl Completion {
    /// Its name in Auto Scaling's API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Continue => "CONTINUE",
            Self::Abandon => "ABANDON",
        }
    }
}

/// Makes lifecycle calls.
#[derive(Clone, Debug)]
pub struct Hooks {
    client: Client,
    gate: Gate<LifecycleClass>,
    known: Known,
    beaten: Arc<Mutex<HashMap<String, Instant>>>,
}

type Looked = Result<HookTimes, Arc<AwsError>>;

/// One lock for each hook: the first who asks is answered by AWS, those who come meanwhile by the first.
type Known = Arc<Mutex<HashMap<(String, String), Arc<tokio::sync::Mutex<Option<(Looked, Instant)>>>>>>;

impl Hooks {
    /// Calls by way of `client`, as `gate` lets them.
    #[must_use]
    pub fn new(client: Client, gate: Gate<LifecycleClass>) -> Self {
        Self { client, gate, known: Arc::default(), beaten: Arc::default() }
    }

    /// The hook's times, as AWS told them now or some minutes ago.
    ///
    /// # Errors
    /// When AWS did not tell them within a few seconds; [`HookTimes::UNKNOWN`] is safe then.
    pub async fn times(&self, hook: &Hook) -> Result<HookTimes, Arc<AwsError>> {
        let place = {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(known.entry((hook.group.clone(), hook.name.clone())).or_default())
        };
        let mut place = place.lock().await;
        if let Some((looked, until)) = &*place
            && Instant::now() < *until
        {
            return looked.clone();
        }
        let looked = self.look_up(hook).await.map_err(Arc::new);
        let kept = if looked.is_ok() { KEPT } else { FAILURE_KEPT };
        *place = Some((looked.clone(), Instant::now() + kept));
        looked
    }

    async fn look_up(&self, hook: &Hook) -> Result<HookTimes, AwsError> {
        let mut last = None;
        let by = Instant::now() + LOOK_UP_TIMEOUT;
        let tries = async {
            let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(2));
            loop {
                match self.describe(hook, by).await {
                    Ok(times) => return Ok(times),
                    // Waiting does not grant a permission, nor make a hook appear.
                    Err(error)
                        if matches!(error.category, Category::Denied | Category::Invalid | Category::NotFound) =>
                    {
                        return Err(error);
                    }
                    Err(error) => last = Some(error),
                }
                sleep(backoff.step()).await;
            }
        };
        match timeout(LOOK_UP_TIMEOUT, tries).await {
            Ok(looked) => looked,
            Err(_) => Err(last.unwrap_or_else(|| not_described(hook, format!("no answer within {LOOK_UP_TIMEOUT:?}")))),
        }
    }

    async fn describe(&self, hook: &Hook, by: Instant) -> Result<HookTimes, AwsError> {
        let request = self
            .client
            .describe_lifecycle_hooks()
            .auto_scaling_group_name(&hook.group)
            .lifecycle_hook_names(&hook.name);
        let operation = ("autoscaling", "DescribeLifecycleHooks");
        let answer = self.gate.aws(operation, &subject(hook), LifecycleClass::Describe, by, || request.send()).await?;
        let mut hooks = answer.lifecycle_hooks.unwrap_or_default().into_iter();
        let found = hooks.find(|found| found.lifecycle_hook_name.as_deref() == Some(&hook.name));
        let seconds = found.and_then(|found| found.heartbeat_timeout).and_then(|seconds| u64::try_from(seconds).ok());
        match seconds {
            // Shorter than AWS allows can't be, and would make heartbeats a flood.
            Some(seconds) => Ok(HookTimes::of(Duration::from_secs(seconds.max(30)))),
            None => Err(not_described(hook, "the group has no such hook, or it names no timeout".to_owned())),
        }
    }

    /// When this process last kept the action alive: a notice that comes back to it need not beat at once.
    pub fn last_beat(&self, hook: &Hook) -> Option<Instant> {
        self.beaten.lock().unwrap_or_else(PoisonError::into_inner).get(&hook.token).copied()
    }

    fn remember(&self, hook: &Hook, beat: Instant) {
        let mut beaten = self.beaten.lock().unwrap_or_else(PoisonError::into_inner);
        if beaten.len() >= SWEPT_AT && beaten.len().is_power_of_two() {
            beaten.retain(|_, last| last.elapsed() < LONGEST_TIMEOUT);
        }
        beaten.insert(hook.token.clone(), beat);
    }

    /// One heartbeat, for an action that `expires` without: those that expire first go first.
    ///
    /// # Errors
    /// When AWS did not take it, for another reason than that the action is over.
    pub async fn beat(&self, hook: &Hook, instance: &str, expires: Instant) -> Result<Answer, AwsError> {
        let request = self
            .client
            .record_lifecycle_action_heartbeat()
            .auto_scaling_group_name(&hook.group)
            .lifecycle_hook_name(&hook.name)
            .lifecycle_action_token(&hook.token)
            .set_instance_id(named(hook, instance));
        let operation = ("autoscaling", "RecordLifecycleActionHeartbeat");
        let sent = Instant::now();
        let answer = over(
            self.gate.aws(operation, &subject(hook), LifecycleClass::Heartbeat, expires, || request.send()).await,
        )?;
        self.remember(hook, sent);
        Ok(answer)
    }

    /// Completes the action, which can be done until `by`: the group goes on as `result` says.
    ///
    /// # Errors
    /// When AWS did not take it, for another reason than that the action is over.
    pub async fn complete(
        &self,
        hook: &Hook,
        instance: &str,
        result: Completion,
        by: Instant,
    ) -> Result<Answer, AwsError> {
        let request = self
            .client
            .complete_lifecycle_action()
            .auto_scaling_group_name(&hook.group)
            .lifecycle_hook_name(&hook.name)
            .lifecycle_action_token(&hook.token)
            .set_instance_id(named(hook, instance))
            .lifecycle_action_result(result.as_str());
        let operation = ("autoscaling", "CompleteLifecycleAction");
        over(self.gate.aws(operation, &subject(hook), LifecycleClass::Complete, by, || request.send()).await)
    }
}

/// The instance, beside the token. A test's token is nobody's; AWS must not find an action by the instance instead.
fn named(hook: &Hook, instance: &str) -> Option<String> {
    (!hook.is_test()).then(|| instance.to_owned())
}

fn over<T>(answer: Result<T, AwsError>) -> Result<Answer, AwsError> {
    match answer {
        Ok(_) => Ok(Answer::Done),
        Err(error) if error.category == Category::Invalid && error.message.starts_with(OVER) => Ok(Answer::Over),
        Err(error) => Err(error),
    }
}

fn subject(hook: &Hook) -> String {
    format!("hook {} of group {}", hook.name, hook.group)
}

fn not_described(hook: &Hook, message: String) -> AwsError {
    AwsError {
        service: "autoscaling",
        operation: "DescribeLifecycleHooks",
        subject: subject(hook),
        category: Category::NotFound,
        code: None,
        message,
    }
}
