//! The waits of an interruption, at two places: before evictions start, and after the drain, before the hook's completion or the end of a
//! repair. The waits of a place run at the same time, except a wave, which comes last. Each ends as met, not needed or timed out. None fails the
//! drain, and only the end of a repair outlasts the deadline.
//!
//! ```text
//! hold            until a user or another controller releases the Node
//! replacement     until the Auto Scaling group has launched another node, before evictions
//! zonal_shift     until traffic is no longer shifted away from another zone, before evictions
//! wave            until the Node has a place among those of its label's value, before evictions
//! active_wait     one wait, and its reports
//! remedies        until a rebooted node is healthy, or the group that terminates it was asked
//! volumes         until the volumes of the drained pods are detached
//! attachments     the watch of all attachments, while an interruption waits
//! load_balancers  until no target group lists the instance, and its deregistration
//! target_groups   finds the target groups; target_group: one
//! service_groups  finds those of the cloud provider's Services, by their tags
//! targets         polls their targets, while an interruption waits
//! ```

mod active_wait;
mod attachments;
mod hold;
mod load_balancers;
mod remedies;
mod replacement;
mod service_groups;
mod target_group;
mod target_groups;
mod targets;
mod volumes;
mod wave;
mod zonal_shift;

pub(super) use active_wait::ActiveWait;
pub use active_wait::WaitLog;
pub use attachments::{Attachments, WatchShare};
pub use load_balancers::LoadBalancers;
pub use replacement::{MIN_DRAIN, is_too_late};
pub use target_group::{Source, TargetGroup, name_of};
pub use target_groups::TargetGroups;

use remedies::EndOfRepair;

use super::completion::KeptHook;
use super::known::Progress;
use super::shared_drain::EarlySeat;
use super::step::{Target, Waits};
use super::{Case, NoticeOutcome};
use crate::clients::gate::{Backoff, Category, KubeError, LAST_CALL};
use crate::fact::{DrainStep, Fact, HoldPoint, Wait, WaitOutcome};
use crate::pipeline::drain::Room;
use crate::pipeline::node::Node;
use futures_util::future::join_all;
use std::future::{pending, ready};
use std::pin::pin;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// The reason that ends all waits of a place early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    /// The Node is gone.
    Gone,
    /// A user keeps the Node.
    Uncordoned,
    /// Another interruption drains the Node.
    Drains,
    /// AWS has reported that the lifecycle action is over.
    Over,
    /// The times of the hook have moved the deadline.
    Moved,
}

impl Cut {
    /// Returns the end of the waits.
    const fn outcome(self) -> WaitOutcome {
        match self {
            Self::Gone | Self::Uncordoned => WaitOutcome::CalledOff,
            Self::Drains | Self::Over | Self::Moved => WaitOutcome::CutShort,
        }
    }
}

impl Case {
    /// Waits before evictions start, while the Node exists and is cordoned. Another interruption's drain ends the waits.
    pub(super) async fn delay(
        &self,
        target: &Target,
        waits: &Waits,
        hook: Option<&KeptHook>,
        early: &mut Option<EarlySeat>,
        log: &WaitLog,
    ) -> Progress {
        let drainer = &self.interrupter.drainer;
        let mut running = drainer.running.subscribe();
        if self.join_early(target, early) {
            return Progress::Delayed(target.clone());
        }
        let in_wave = waits.put_off_until().map(|until| KeptHook::put_off(hook, until));
        let ends = hook.map_or(target.deadline, KeptHook::deadline).at();
        let started = async { while running.changed().await.is_ok() && !self.join_early(target, early) {} };
        let cut = async {
            tokio::select! {
                biased;
                () = drainer.missing(&target.node) => Cut::Gone,
                () = drainer.uncordoned(&target.node, self.has_had_mark()) => Cut::Uncordoned,
                () = started => Cut::Drains,
                cut = cut_by(hook) => cut,
                never = self.keep_marked(Some(ends)), if in_wave.is_some() => match never {},
            }
        };
        let mut cut = pin!(cut);
        let cut = tokio::select! {
            biased;
            cut = &mut cut => Some(cut),
            room = self.room(target) => {
                let before = |deadline| room.and_then(|room: Room| room.before(deadline));
                let last = before(target.deadline);
                let last_in_wave = in_wave.map_or(last, |latest| before(latest.unwrap_or(target.deadline)));
                self.side_by_side(&waits.within(last, last_in_wave), cut, hook, log).await
            }
        };
        let target = &in_wave.and_then(|_| self.counted_from_place(target, hook)).unwrap_or_else(|| target.clone());
        match (cut, hook) {
            (Some(Cut::Uncordoned), _) => Progress::Ended(NoticeOutcome::Uncordoned),
            (Some(Cut::Moved), Some(hook)) => {
                let deadline = hook.own_deadline().at_least(Instant::now() + LAST_CALL);
                Progress::Cordoned(Target { deadline, ..target.clone() })
            }
            _ => Progress::Delayed(target.clone()),
        }
    }

    /// Removes the waits' notes from the Node, or corrects them.
    pub(super) async fn end_waits(&self, log: &WaitLog) {
        self.end_hold(log, HoldPoint::BeforeDrain, false).await;
        self.end_hold(log, HoldPoint::BeforeCompletion, false).await;
        self.end_note(log).await;
        self.end_place(false).await;
    }

    /// Waits between the work, which ended with this outcome, and the completion of the hook.
    pub(super) async fn wait(
        &self,
        waits: &Waits,
        ended: NoticeOutcome,
        hook: Option<&KeptHook>,
        log: &WaitLog,
    ) -> Progress {
        let uncordoned = async {
            match self.node.as_deref().filter(|_| ended != NoticeOutcome::Uncordoned) {
                Some(node) => self.interrupter.drainer.uncordoned(node, self.has_had_mark()).await,
                None => pending().await,
            }
        };
        let cut = async {
            tokio::select! {
                biased;
                () = uncordoned => Cut::Uncordoned,
                cut = cut_by(hook) => cut,
                never = self.keep_marked(hook.map(|hook| hook.deadline().at()).max(waits.end())) => match never {},
            }
        };
        match self.side_by_side(waits, cut, hook, log).await {
            // The waits start again, with other ends.
            Some(Cut::Moved) => Progress::Ended(ended),
            // The Node's owner completes the hook, as if the drain had ended like this.
            Some(Cut::Uncordoned) => Progress::Ended(NoticeOutcome::Uncordoned),
            _ => Progress::Waited,
        }
    }

    /// Returns the time that the pods need before a hard deadline, if the API server answers soon.
    async fn room(&self, Target { node, deadline }: &Target) -> Option<Room> {
        if !deadline.is_hard() {
            return None;
        }
        // Without an answer, half of the time has to be enough.
        let by = Instant::now() + deadline.at().saturating_duration_since(Instant::now()) / 20;
        let room = || Box::pin(self.interrupter.drainer.room(node, by));
        let backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
        backoff.retry(Some(by), room, |_| true).await.ok().flatten()
    }

    /// Runs all waits until each has ended or timed out, or until `cut`. Reports how each ended. The wait for a place in a wave comes when the
    /// others are over, so that the node can use the place.
    async fn side_by_side(
        &self,
        waits: &Waits,
        cut: impl Future<Output = Cut>,
        hook: Option<&KeptHook>,
        log: &WaitLog,
    ) -> Option<Cut> {
        let cut_short = watch::Sender::new(None);
        let wait = |(wait, until)| self.wait_for(ActiveWait::new(self, log, wait, until), hook, cut_short.subscribe());
        let all = async {
            join_all(waits.iter().filter(|(wait, _)| *wait != Wait::Wave).map(wait)).await;
            if let Some(until) = waits.until(Wait::Wave).filter(|_| cut_short.borrow().is_none()) {
                wait((Wait::Wave, until)).await;
            }
        };
        let mut all = pin!(all);
        tokio::select! {
            biased;
            () = &mut all => None,
            cut = cut => {
                // After a moved deadline the waits restart, with other ends.
                if cut != Cut::Moved {
                    cut_short.send_replace(Some(cut));
                    all.await;
                }
                Some(cut)
            }
        }
    }

    async fn wait_for(
        &self,
        waiting: ActiveWait<'_>,
        hook: Option<&KeptHook>,
        mut cut_short: watch::Receiver<Option<Cut>>,
    ) {
        let outcome = tokio::select! {
            biased;
            // The pods need all the time.
            () = ready(()), if waiting.until <= Instant::now() => WaitOutcome::TimeOver,
            outcome = self.until_so(&waiting, hook) => outcome,
            // The sender lives as long as the waits.
            Ok(cut) = cut_short.wait_for(Option::is_some) => cut.map_or(WaitOutcome::TimeOver, Cut::outcome),
            () = sleep_until(waiting.until) => WaitOutcome::TimeOver,
        };
        waiting.end(outcome);
    }

    /// Waits for the condition. Cancelled when the time is over.
    async fn until_so(&self, waiting: &ActiveWait<'_>, hook: Option<&KeptHook>) -> WaitOutcome {
        match waiting.wait {
            Wait::Delay => {
                waiting.set_reason("--delay");
                sleep_until(waiting.until).await;
                WaitOutcome::Met
            }
            Wait::CompleteAfter => {
                let node = self.node.as_ref().and_then(|node| self.interrupter.index.newest(node));
                let stays = node.is_some_and(|node| !node.cordoned);
                waiting.set_reason(if stays { "--on-uncordon=at-deadline" } else { "--complete-after" });
                sleep_until(waiting.until).await;
                WaitOutcome::Met
            }
            // Boxed, because a wait for the time alone would reserve memory for their calls.
            Wait::Replacement => Box::pin(self.replaced(waiting)).await,
            Wait::ZonalShift => Box::pin(self.shifted_back(waiting)).await,
            Wait::Wave => Box::pin(self.placed(waiting, hook)).await,
            Wait::HoldBeforeDrain => Box::pin(self.held(waiting, HoldPoint::BeforeDrain)).await,
            Wait::HoldBeforeCompletion => Box::pin(self.held(waiting, HoldPoint::BeforeCompletion)).await,
            // That wait comes before the cordon, alone.
            Wait::Admission => WaitOutcome::NotNeeded,
            Wait::Volumes => Box::pin(self.volumes_detached(waiting)).await,
            Wait::Reboot => Box::pin(EndOfRepair::new(self, waiting).by_reboot()).await,
            Wait::Termination => Box::pin(EndOfRepair::new(self, waiting).by_termination()).await,
            Wait::LoadBalancers => Box::pin(self.targets_gone(waiting)).await,
        }
    }
}

/// Waits until the hook ends the waits of its interruption.
async fn cut_by(hook: Option<&KeptHook>) -> Cut {
    let Some(hook) = hook else { return pending().await };
    tokio::select! {
        biased;
        () = KeptHook::over(Some(hook)) => Cut::Over,
        () = KeptHook::times_changed(Some(hook.with_times())) => Cut::Moved,
    }
}

/// Reports the failure of a step. Returns whether another try may help.
fn retries(case: &Case, node: &Node, step: DrainStep, error: &KubeError) -> bool {
    case.emit(&Fact::DrainRetried { on: node.named(), step, category: error.category, error });
    error.category != Category::Denied
}
