//! Makes the calls that keep one lifecycle hook alive. The machine decides which, and when.
//!
//! The task lives in the [`Heartbeat`], which is aborted by its drop.

use super::machine::{HookEffect, HookEvent, HookMachine};
use super::{HookReply, LifecycleAction};
use crate::clients::gate::{AbsenceSince, AwsError, Category};
use crate::fact::{Fact, HeartbeatResult, TaskKind};
use crate::runtime::clock;
use crate::runtime::task::{Handle, Tasks};
use futures_util::StreamExt;
use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::FuturesUnordered;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// A running heartbeat. Only the interruption owns it.
#[derive(Debug)]
pub struct Heartbeat(Handle<()>);

impl Heartbeat {
    /// Starts the heartbeat of the action. `visibility` is the visibility timeout that its messages need; the API server's absences put off the
    /// deadline of the work.
    pub fn start(
        tasks: &Tasks,
        action: Arc<LifecycleAction>,
        machine: watch::Sender<HookMachine>,
        visibility: watch::Sender<Duration>,
        absence: AbsenceSince,
    ) -> Self {
        Self(tasks.spawn(TaskKind::Heartbeat, HeartbeatTask { action, machine, visibility, absence }.run()))
    }

    /// Waits until no more calls can be made: the machine is done.
    pub async fn ended(self) {
        // The task itself reports a panic.
        let _ = self.0.await;
    }
}

struct HeartbeatTask {
    action: Arc<LifecycleAction>,
    machine: watch::Sender<HookMachine>,
    visibility: watch::Sender<Duration>,
    absence: AbsenceSince,
}

impl HeartbeatTask {
    async fn run(self) {
        let (mut changes, mut calls) = (self.machine.subscribe(), FuturesUnordered::new());
        // A call in flight is cancelled at the end: it may arrive, but no other follows.
        loop {
            let counted = {
                let machine = changes.borrow_and_update();
                if machine.is_done() {
                    return;
                }
                machine.absent()
            };
            let (effect, wakes_at) = self.next();
            if let Some(effect) = effect {
                calls.extend(self.call(effect));
                continue;
            }
            tokio::select! {
                biased;
                // The sender is here.
                _ = changes.changed() => {}
                Some(event) = calls.next() => self.handle(event),
                () = self.absence.grown(counted) => self.handle(HookEvent::Absent(self.absence.total())),
                () = clock::until(wakes_at) => {}
            }
        }
    }

    fn handle(&self, event: HookEvent) {
        self.machine.send_modify(|machine| machine.handle(event, Instant::now()));
    }

    /// Returns what is to be done now, and when to ask again.
    fn next(&self) -> (Option<HookEffect>, Option<Instant>) {
        let mut next = (None, None);
        self.machine.send_if_modified(|machine| {
            next = (machine.next(Instant::now()), machine.wakes_at());
            false
        });
        next
    }

    /// Returns the call, which ends with its event. Boxed: a heartbeat mostly sleeps, and a call is ten times as large.
    fn call(&self, effect: HookEffect) -> Option<BoxFuture<'_, HookEvent>> {
        match effect {
            HookEffect::Beat(by) => Some(self.beat(by).boxed()),
            HookEffect::Search => Some(self.search().boxed()),
            HookEffect::LookUp => Some(self.look_up().boxed()),
            HookEffect::ReportDenied(until) => {
                self.action.emit(&Fact::HeartbeatsDenied { about: self.action.about(), until });
                None
            }
        }
    }

    async fn beat(&self, by: Instant) -> HookEvent {
        let sent = Instant::now();
        let answer = self.action.beat(by).await;
        let (result, error) = match &answer {
            Ok(HookReply::Done) => (HeartbeatResult::Sent, None),
            Ok(HookReply::Over) => (HeartbeatResult::Over, None),
            Err(error) => (HeartbeatResult::Failed(error.category), Some(error as &dyn std::fmt::Display)),
        };
        self.action.emit(&Fact::Heartbeat { about: self.action.about(), result, error });
        HookEvent::Beat { sent, answer: answer.map_err(|error| certain(&error)) }
    }

    async fn search(&self) -> HookEvent {
        let LifecycleAction { hooks, hook, notice, .. } = &*self.action;
        let found = hooks.search(&hook.name, &notice.instance).await.map_err(|error| error.category);
        HookEvent::Searched { found, may_be_back: self.action.may_be_back() }
    }

    async fn look_up(&self) -> HookEvent {
        let times = self.action.hooks.times(&self.action.hook).await.ok();
        if let Some(times) = times {
            self.visibility.send_replace(times.visibility());
        }
        HookEvent::LookedUp(times)
    }
}

/// Returns the error's category. Codes other than a missing hook's may be AWS's own failures.
fn certain(error: &AwsError) -> Category {
    match error.category {
        Category::Invalid if error.code.as_deref() == Some("ValidationError") => Category::NotFound,
        category => category,
    }
}
