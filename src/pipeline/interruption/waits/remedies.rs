//! The end of a repair: the reboot of a drained node's instance, until the node is healthy; or its termination, until its group was asked.

use super::active_wait::ActiveWait;
use super::replacement::{Moment, Progress};
use crate::clients::answers::FAILURE_KEPT;
use crate::clients::gate::{Backoff, CALL_TIMEOUT, Category, KubeError};
use crate::fact::{DrainStep, Fact, Remedy, Replacement, WaitOutcome};
use crate::pipeline::event::Detail;
use crate::pipeline::interruption::Case;
use crate::pipeline::interruption::remedy::is_reboot_due;
use crate::pipeline::node::Node;
use crate::pipeline::node::reboot::{note, rebooted_at, removal};
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// What ends the repair of a drained node.
pub(super) struct EndOfRepair<'a> {
    case: &'a Case,
    waiting: &'a ActiveWait<'a>,
}

impl<'a> EndOfRepair<'a> {
    /// The end of the case's repair, which is waited for.
    pub const fn new(case: &'a Case, waiting: &'a ActiveWait<'a>) -> Self {
        Self { case, waiting }
    }

    /// Reboots the instance, unless that was done within the hour, and waits until its Node is healthy.
    pub async fn by_reboot(&self) -> WaitOutcome {
        let Self { case, waiting } = self;
        let Case { interrupter, notice, .. } = case;
        let Some(node) = interrupter.index.get(&notice.instance) else { return WaitOutcome::NotNeeded };
        // The steps know when a reboot is due: otherwise, what is left is the wait for the last one.
        if is_reboot_due(&node, interrupter.clock.now()) {
            let result = Box::pin(self.reboot(&node)).await;
            case.emit(&Fact::Remedy { about: case.about(), remedy: Remedy::Reboot, group: "", result });
            let asked = outcome(result);
            if asked != WaitOutcome::Met {
                return asked;
            }
        }
        waiting.set_reason("the node has not become healthy since its reboot");
        match &notice.detail {
            Detail::Condition(name) => {
                let has = |known: Option<&Arc<Node>>| known.is_some_and(|known| known.has_condition(name));
                interrupter.index.until_node(&node, |known| (!has(known)).then_some(())).await;
                WaitOutcome::Met
            }
            // EC2's word that a status check passes calls the notice off.
            _ => pending().await,
        }
    }

    /// Notes the reboot on the Node, and asks EC2 for it.
    async fn reboot(&self, node: &Node) -> Replacement {
        let Self { case, waiting } = self;
        let Case { interrupter, notice, .. } = case;
        if case.policy.dry_run {
            case.emit(&Fact::DryRun { about: case.about(), instead: "reboot the instance" });
            return Replacement::DryRun;
        }
        let known = rebooted_at(node);
        let is_ours = AtomicBool::new(false);
        let write = || {
            let (at, is_ours) = (interrupter.clock.now(), &is_ours);
            let patch = move |node: &Node| note(node, known, at).inspect(|_| is_ours.store(true, Relaxed));
            interrupter.marker.note(node, Instant::now() + CALL_TIMEOUT, patch)
        };
        let passes = |error: &KubeError| super::retries(case, node, DrainStep::Reboot, error);
        let backoff = Backoff::new(Duration::from_secs(1), FAILURE_KEPT);
        match backoff.retry(Some(waiting.until), write, passes).await {
            Ok(true) if is_ours.load(Relaxed) => {}
            // Another replica has asked.
            Ok(true) => return Replacement::Asked,
            Ok(false) => return Replacement::NotInService,
            Err(error) if error.category == Category::Denied => return Replacement::Denied,
            Err(_) => return Replacement::Unknown,
        }
        let Err(error) = interrupter.reboots.ask(notice.instance.as_str()).await else { return Replacement::Asked };
        case.emit(&Fact::RebootFailed { about: case.about(), error: &error });
        if error.may_be_taken() {
            return Replacement::Asked;
        }
        // If that fails, the node is replaced.
        let _ = interrupter.marker.note(node, Instant::now() + CALL_TIMEOUT, removal).await;
        match error.category {
            Category::Denied => Replacement::Denied,
            _ if error.category.may_pass() => Replacement::Unknown,
            _ => Replacement::Refused,
        }
    }

    /// Asks the instance's group to terminate it, and to launch another.
    pub async fn by_termination(&self) -> WaitOutcome {
        let Self { case, waiting } = self;
        let mut progress = Progress::new(Moment::Drained);
        let result = timeout_at(waiting.until, self.termination(&mut progress)).await;
        let result = result.unwrap_or(progress.if_over);
        let (about, remedy) = (case.about(), Remedy::Terminate);
        case.emit(&Fact::Remedy { about, remedy, group: &progress.group, result });
        outcome(result)
    }

    async fn termination(&self, progress: &mut Progress) -> Replacement {
        let Self { case, waiting } = self;
        let Case { interrupter, notice, .. } = case;
        let Some(node) = interrupter.index.get(&notice.instance) else { return Replacement::NotInService };
        match case.own_group(waiting).await {
            Ok(group) => progress.group = group,
            Err(reason) => return reason,
        }
        match Box::pin(case.ask(&node, waiting, progress)).await {
            Ok(_) => Replacement::Asked,
            Err(reason) => {
                case.take_back_unasked(&node, waiting.log).await;
                reason
            }
        }
    }
}

/// Returns how the wait for a request ends; met if AWS has taken it.
const fn outcome(result: Replacement) -> WaitOutcome {
    match result {
        Replacement::Asked => WaitOutcome::Met,
        Replacement::Queued | Replacement::Unknown => WaitOutcome::TimeOver,
        Replacement::Denied => WaitOutcome::Denied,
        _ => WaitOutcome::NotNeeded,
    }
}
