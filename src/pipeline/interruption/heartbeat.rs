//! Heartbeats of one lifecycle hook, while its owner lives.
//!
//! The task lives in the [`Heartbeat`], which is stopped by [`Heartbeat::stop`] and aborted by its drop.

use super::hook::{HookReply, Hooks};
use super::policy::Heartbeats;
use super::times::{HookTimes, due_beat};
use crate::clients::gate::{Backoff, Category};
use crate::fact::{Fact, Facts, HeartbeatResult, NoticeKind, NoticeRef, TaskKind};
use crate::pipeline::event::Hook;
use crate::runtime::random;
use crate::runtime::task::{Handle, Tasks};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

/// Maximum share of the time to a beat by which the beat goes out earlier, so that a storm's hooks don't beat together.
const JITTER: f64 = 0.1;

/// The input of a heartbeat.
#[derive(Clone, Debug)]
pub(super) struct Beating {
    pub hooks: Hooks,
    pub hook: Hook,
    pub kind: NoticeKind,
    pub instance: Arc<str>,
    pub node: Option<Arc<str>>,
    pub message: Arc<str>,
    pub heartbeats: Heartbeats,
    pub times: HookTimes,
    /// The begin of the lifecycle action: the notice's time.
    pub begun: Instant,
    /// The latest time at which the completion is expected.
    pub finish: Instant,
    pub facts: Facts,
    /// Cancelled when AWS says that the action is over.
    pub over: CancellationToken,
}

/// A running heartbeat. Only the interruption owns it.
#[derive(Debug)]
pub(super) struct Heartbeat {
    task: Handle<()>,
    stop: CancellationToken,
    over: CancellationToken,
}

impl Heartbeat {
    /// Starts beating.
    pub(super) fn start(tasks: &Tasks, beating: Beating) -> Self {
        let stop = CancellationToken::new();
        let over = beating.over.clone();
        Self { task: tasks.spawn(TaskKind::Heartbeat, beating.run(stop.clone())), stop, over }
    }

    /// Cancelled when AWS has said that the action is over.
    pub(super) fn over(&self) -> CancellationToken {
        self.over.clone()
    }

    /// Stops, and returns when no beat can go out any more.
    pub(super) async fn stop(self) {
        self.stop.cancel();
        // A beat in flight is cut off: it may arrive, but no other follows. The task itself reports a panic.
        let _ = self.task.await;
    }
}

impl Beating {
    async fn run(self, stop: CancellationToken) {
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = self.beats() => {}
        }
    }

    /// Returns when AWS says that the action is over, or when no more beats are due.
    async fn beats(&self) {
        let last = self.hooks.last_beat(&self.hook).unwrap_or(self.begun);
        let mut expires = last.max(self.begun) + self.times.heartbeat;
        let dead_at = self.begun + self.times.life();
        while let Some(due) = due_beat(self.heartbeats, self.begun, expires, self.times, self.finish) {
            // A beat that is due after the expected completion is for a completion that is late.
            let floor = if due >= self.finish { self.finish } else { Instant::now() };
            sleep_until(earlier(due).max(floor)).await;
            let Some(beaten) = self.beat(expires, dead_at).await else { return };
            expires = beaten + self.times.heartbeat;
        }
    }

    /// Sends one beat, with retries. Returns when it went out; `None` when no more beats are of any use. Only AWS knows whether the hook
    /// has expired: another process may have sent beats before.
    async fn beat(&self, expires: Instant, dead_at: Instant) -> Option<Instant> {
        let mut late = Backoff::new(Duration::from_secs(1), self.times.heartbeat / 2);
        loop {
            let sent = Instant::now();
            // Boxed: a heartbeat mostly sleeps, and a call is ten times as large.
            let error = match Box::pin(self.hooks.beat(&self.hook, &self.instance, expires)).await {
                Ok(HookReply::Done) => {
                    self.tell(HeartbeatResult::Sent, None);
                    return Some(sent);
                }
                Ok(HookReply::Over) => {
                    self.tell(HeartbeatResult::Over, None);
                    self.over.cancel();
                    return None;
                }
                Err(error) => error,
            };
            self.tell(HeartbeatResult::Failed(error.category), Some(&error));
            if matches!(error.category, Category::Invalid | Category::NotFound) || Instant::now() >= dead_at {
                return None;
            }
            let late = if Instant::now() < expires { None } else { Some(late.step()) };
            sleep(late.unwrap_or_else(|| self.retry_in(expires))).await;
        }
    }

    /// Returns the wait before a retry: a few tries in the time left, because all of the account shares the rate of these calls.
    fn retry_in(&self, expires: Instant) -> Duration {
        let left = expires.saturating_duration_since(Instant::now() + self.times.margin());
        let least = (self.times.margin() / 4).max(Duration::from_secs(1));
        random::jittered((left / 4).max(least), 0.75..1.0)
    }

    fn tell(&self, result: HeartbeatResult, error: Option<&dyn std::fmt::Display>) {
        let about =
            NoticeRef { kind: self.kind, instance: &self.instance, node: self.node.as_deref(), message: &self.message };
        self.facts.emit(&Fact::Heartbeat { about, result, error });
    }
}

/// Returns `due`, or a time earlier by up to a tenth of the time to it.
fn earlier(due: Instant) -> Instant {
    let wait = due.saturating_duration_since(Instant::now());
    due.checked_sub(random::jittered(wait, 0.0..JITTER)).unwrap_or(due)
}
