//! Keeping one lifecycle hook alive, for exactly as long as somebody owns it.
//!
//! There is no channel to close and no second place to remember: the task lives in the [`Heartbeat`], which is stopped by
//! [`Heartbeat::stop`] and aborted by its drop.

use super::hook::{Answer, Hooks};
use super::policy::Heartbeats;
use super::times::{HookTimes, due_beat};
use crate::clients::gate::{Backoff, Category};
use crate::fact::{About, Fact, Facts, HeartbeatResult, NoticeKind, TaskKind};
use crate::pipeline::event::Hook;
use crate::runtime::random;
use crate::runtime::task::{Handle, Tasks};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

/// A beat goes out up to this part of the time to it earlier, so that a storm's hooks don't beat together.
const JITTER: f64 = 0.1;

/// What a heartbeat needs to know.
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
    /// When the action began, as far as we know: the notice's time.
    pub begun: Instant,
    /// The latest moment at which the completion is expected.
    pub finish: Instant,
    pub facts: Facts,
    /// Cancelled when AWS says that the action is over.
    pub over: CancellationToken,
}

/// A running heartbeat. Owned by the interruption that drains, and by nothing else.
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
        // A beat in flight is cut off: it may arrive, but nothing follows it. A panic was told by the task itself.
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

    /// Ends when AWS says that the action is over, or when no beat is ever due.
    async fn beats(&self) {
        let last = self.hooks.last_beat(&self.hook).unwrap_or(self.begun);
        let mut expires = last.max(self.begun) + self.times.heartbeat;
        let dead_at = self.begun + self.times.life();
        while let Some(due) = due_beat(self.heartbeats, self.begun, expires, self.times, self.finish) {
            // Where the completion is expected before it, the beat is for one that is late.
            let floor = if due >= self.finish { self.finish } else { Instant::now() };
            sleep_until(earlier(due).max(floor)).await;
            let Some(beaten) = self.beat(expires, dead_at).await else { return };
            expires = beaten + self.times.heartbeat;
        }
    }

    /// Sends one beat, again and again if need be. `None` when no more beats are of any use, else when it went out. That the hook has
    /// expired only AWS knows: the beats of another process before us are not known here.
    async fn beat(&self, expires: Instant, dead_at: Instant) -> Option<Instant> {
        let mut late = Backoff::new(Duration::from_secs(1), self.times.heartbeat / 2);
        loop {
            let sent = Instant::now();
            // Boxed: a heartbeat sleeps for almost all of its life, and a call is ten times as large.
            let error = match Box::pin(self.hooks.beat(&self.hook, &self.instance, expires)).await {
                Ok(Answer::Done) => {
                    self.tell(HeartbeatResult::Sent, None);
                    return Some(sent);
                }
                Ok(Answer::Over) => {
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

    /// A few tries in the time that is left, not a flood: the calls share their rate with all of the account.
    fn retry_in(&self, expires: Instant) -> Duration {
        let left = expires.saturating_duration_since(Instant::now() + self.times.margin());
        let least = (self.times.margin() / 4).max(Duration::from_secs(1));
        random::jittered((left / 4).max(least), 0.75..1.0)
    }

    fn tell(&self, result: HeartbeatResult, error: Option<&dyn std::fmt::Display>) {
        let about =
            About { kind: self.kind, instance: &self.instance, node: self.node.as_deref(), message: &self.message };
        self.facts.emit(&Fact::Heartbeat { about, result, error });
    }
}

/// `due`, or up to a tenth of the time to it earlier.
fn earlier(due: Instant) -> Instant {
    let wait = due.saturating_duration_since(Instant::now());
    due.checked_sub(random::jittered(wait, 0.0..JITTER)).unwrap_or(due)
}
