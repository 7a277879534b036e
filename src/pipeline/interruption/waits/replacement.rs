//! A replacement before the drain: Ebbtide marks the instance as unhealthy in Auto Scaling, and its group launches another one first.
//! Evictions wait until the new Node is Ready. The group then terminates the instance under its hook, whose notice joins the drain.

mod asking;

use super::active_wait::{ActiveWait, ReplacementNote};
use crate::clients::answers::FAILURE_KEPT;
use crate::clients::gate::{CALL_TIMEOUT, Category};
use crate::fact::{Fact, Replacement, WaitOutcome};
use crate::pipeline::event::{Detail, InstanceId};
use crate::pipeline::interruption::Case;
use crate::pipeline::interruption::decisions::has_started;
use crate::pipeline::node::Node;
use crate::pipeline::node::replacement::{AskedReplacement, claim, replaces_another};
use jiff::Timestamp;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

/// Minimum time between a notice and its deadline for a request for a replacement. An instance boots in a minute or two.
pub const MIN_DRAIN: Duration = Duration::from_mins(5);

/// Minimum wait for a replacement: half of [`MIN_DRAIN`], less part of the time that the cordon may take.
const MIN_TIME: Duration = Duration::from_secs(145);

/// Age at which a group is looked up again before a request for a replacement.
const GROUP_KEPT: Duration = Duration::from_secs(30);

/// Interval between checks of a group during a wait, if no Node changes.
const LOOK_INTERVAL: Duration = Duration::from_mins(1);

/// Interval between polls of a group that launches instances: only Auto Scaling knows which belong to it.
const LAUNCH_INTERVAL: Duration = Duration::from_secs(15);

/// Instances launched more than this before the notice don't count as replacements.
const OLD_AFTER: Duration = Duration::from_mins(15);

/// Pause after a change of the Nodes, so that a storm of changes is read once.
const CHANGES_PAUSE: Duration = Duration::from_secs(1);

/// When a group is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// Before evictions: it launches another node first.
    BeforeEvictions,
    /// After the drain: it may terminate the instance at once.
    Drained,
}

/// The progress of a wait.
pub(super) struct Progress {
    /// The group; empty if it is unknown.
    pub group: Arc<str>,
    moment: Moment,
    /// The result if the time is over now; [`Replacement::Late`] once another Node is waited for.
    pub if_over: Replacement,
}

impl Progress {
    pub fn new(moment: Moment) -> Self {
        Self { group: Arc::default(), moment, if_over: Replacement::Unknown }
    }

    fn is_begun(&self) -> bool {
        self.if_over == Replacement::Late
    }
}

impl Case {
    /// Waits until the instance is replaced, if its group can replace it.
    pub(super) async fn replaced(&self, waiting: &ActiveWait<'_>) -> WaitOutcome {
        let mut progress = Progress::new(Moment::BeforeEvictions);
        let result = timeout_at(waiting.until, self.replacement(waiting, &mut progress)).await;
        let result = result.unwrap_or(progress.if_over);
        self.emit(&Fact::Replacement { about: self.about(), group: &progress.group, result });
        if result == Replacement::Late {
            waiting.log.set_note(ReplacementNote::Late);
        }
        match result {
            Replacement::Ready => WaitOutcome::Met,
            Replacement::Complete if progress.is_begun() => WaitOutcome::Met,
            Replacement::Late | Replacement::Queued | Replacement::Unknown => WaitOutcome::TimeOver,
            Replacement::Denied => WaitOutcome::Denied,
            _ => WaitOutcome::NotNeeded,
        }
    }

    async fn replacement(&self, waiting: &ActiveWait<'_>, progress: &mut Progress) -> Replacement {
        let Self { interrupter, notice, .. } = self;
        let Some(node) = interrupter.index.get(&notice.instance) else { return Replacement::NotInService };
        let asked = AskedReplacement::of(&node);
        if is_too_late(&node, waiting.until) {
            return Replacement::TooLate;
        }
        match (&asked, &notice.detail) {
            (Some(asked), _) => progress.group = asked.group.as_str().into(),
            (None, Detail::AsgTerminate(hook)) => {
                progress.group = hook.group.as_str().into();
                return self.group_whole(waiting, progress).await;
            }
            (None, _) => match self.own_group(waiting).await {
                Ok(group) => progress.group = group,
                Err(reason) => return reason,
            },
        }
        match Box::pin(self.ask(&node, waiting, progress)).await {
            Ok(None) => self.group_whole(waiting, progress).await,
            Ok(Some(since)) => {
                progress.if_over = Replacement::Late;
                waiting.set_reason(format!("no new Node of group {} is Ready", progress.group));
                self.new_node(&progress.group, since).await
            }
            Err(reason) => {
                self.take_back_unasked(&node, waiting.log).await;
                reason
            }
        }
    }

    /// Returns the instance's group. Retries until EC2 answers.
    pub(super) async fn own_group(&self, waiting: &ActiveWait<'_>) -> Result<Arc<str>, Replacement> {
        let Self { interrupter, notice, .. } = self;
        let mut is_reported = false;
        loop {
            let error = match interrupter.owner.group_of(&notice.instance).await {
                Ok(group) => return group.ok_or(Replacement::NoGroup),
                Err(error) => error,
            };
            if !std::mem::replace(&mut is_reported, true) {
                self.emit(&Fact::OwnerUnknown { about: self.about(), category: error.category, error: &error });
            }
            if error.category == Category::Denied {
                return Err(Replacement::Denied);
            }
            waiting.set_reason("EC2 has not reported the instance's Auto Scaling group");
            sleep(FAILURE_KEPT).await;
        }
    }

    /// Waits until a Node of the group is Ready that registered after `since` and replaces no other instance.
    async fn new_node(&self, group: &str, since: Timestamp) -> Replacement {
        let Self { interrupter, notice, .. } = self;
        let instance = notice.instance.as_str();
        let mut turns = interrupter.index.turns();
        loop {
            let is_new = |node: &Node| {
                let is_ready = has_started(node, &self.policy.startup_taints) && !node.cordoned;
                is_ready && node.created > Some(since) && !replaces_another(node, instance)
            };
            let mut new = interrupter.index.all_that(is_new);
            new.sort_by_key(|node| node.created);
            for node in new {
                let of_group =
                    matches!(interrupter.owner.group_of(&node.instance).await, Ok(Some(found)) if *found == *group);
                if of_group && self.claim(&node).await {
                    return Replacement::Ready;
                }
            }
            if interrupter.groups.get(group, GROUP_KEPT).await == Err(Replacement::NoGroup) {
                return Replacement::NoGroup;
            }
            tokio::select! {
                () = change(&mut turns) => {}
                () = sleep(LOOK_INTERVAL) => {}
            }
        }
    }

    /// Notes on the new Node which instance it replaces. Returns whether it replaces this one.
    async fn claim(&self, node: &Node) -> bool {
        let instance = self.notice.instance.as_str();
        let mut ours = true;
        let note = |node: &Node| {
            ours = !replaces_another(node, instance);
            claim(node, instance)
        };
        let noted = self.interrupter.marker.note(node, Instant::now() + CALL_TIMEOUT, note).await;
        matches!(noted, Ok(true)) && ours
    }

    /// Waits until the group of a terminating instance has its desired capacity in Ready Nodes: it launches another, or shrinks.
    async fn group_whole(&self, waiting: &ActiveWait<'_>, progress: &mut Progress) -> Replacement {
        let Self { interrupter, notice, .. } = self;
        let index = &interrupter.index;
        let mut turns = index.turns();
        loop {
            let group = match interrupter.groups.get(&progress.group, LAUNCH_INTERVAL).await {
                Ok(group) => group,
                Err(Replacement::Unknown) => {
                    waiting.set_reason(format!("Auto Scaling has not described group {}", progress.group));
                    sleep(FAILURE_KEPT).await;
                    continue;
                }
                Err(reason) => return reason,
            };
            if group.suspends(&["Launch"]) {
                return Replacement::Suspended;
            }
            let ready = |id: &str| {
                let node = InstanceId::new(id).and_then(|id| index.get(&id));
                // An older instance counts, whatever its state is now.
                node.is_some_and(|node| node.ready || node.created < Some(notice.at() - OLD_AFTER))
            };
            if group.is_whole_without(notice.instance.as_str(), ready) {
                return Replacement::Complete;
            }
            progress.if_over = Replacement::Late;
            waiting.set_reason(format!("group {} has fewer than {} Ready Nodes", progress.group, group.desired));
            tokio::select! {
                () = change(&mut turns) => {}
                () = sleep(LAUNCH_INTERVAL) => {}
            }
        }
    }
}

/// Waits for a change of the Nodes, and for other changes right after it.
async fn change(turns: &mut watch::Receiver<()>) {
    // The sender lives as long as the index.
    let _ = turns.changed().await;
    sleep(CHANGES_PAUSE).await;
}

/// Whether it is too late to request a replacement of the Node and wait for it until `until`. An earlier request counts.
#[must_use]
pub fn is_too_late(node: &Node, until: Instant) -> bool {
    AskedReplacement::of(node).is_none() && until.saturating_duration_since(Instant::now()) < MIN_TIME
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_storm_of_changes_is_looked_at_once_in_a_while() {
        let (changes, mut turns) = watch::channel(());
        let storm = async {
            for _ in 0..1000 {
                changes.send_replace(());
                sleep(Duration::from_millis(10)).await;
            }
        };
        let mut looks = 0;
        let look = async {
            loop {
                change(&mut turns).await;
                looks += 1;
            }
        };
        tokio::select! {
            biased;
            () = storm => {}
            () = look => {}
        }
        assert!((9..=10).contains(&looks), "{looks}");
    }
}
