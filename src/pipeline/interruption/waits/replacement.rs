//! A replacement before the drain: the Auto Scaling group is told that the instance is unhealthy, and launches another first. Evictions
//! wait until the new Node is Ready. The group then terminates the instance under its hook, whose notice joins the drain.

use super::waiting::Waiting;
use crate::clients::gate::CALL_TIMEOUT;
use crate::fact::{Fact, Replacement, WaitOutcome};
use crate::pipeline::event::{Detail, InstanceId};
use crate::pipeline::interruption::Case;
use crate::pipeline::interruption::replaceable::{MemberState, replaceable};
use crate::pipeline::node::replacement::{AskedReplacement, claim, replaces_another};
use crate::pipeline::node::{Index, Node};
use jiff::Timestamp;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

/// Minimum time that a replacement is worth asking for: half of five minutes to the deadline. An instance boots in a minute or two.
const MIN_TIME: Duration = Duration::from_secs(150);

/// Age at which a group is looked up again, to ask for a replacement.
const GROUP_KEPT: Duration = Duration::from_secs(30);

/// Interval between looks at a group during a wait, if no Node changes.
const LOOK_INTERVAL: Duration = Duration::from_mins(1);

/// Interval between looks at a group that launches instances: only Auto Scaling knows which belong to it.
const LAUNCH_INTERVAL: Duration = Duration::from_secs(15);

/// Time after which all replicas have seen a note.
const NOTES_SEEN: Duration = Duration::from_secs(1);

/// How far a wait has come when its time is over.
struct Progress {
    /// The group; empty if it is not known.
    group: Arc<str>,
    /// Whether another Node is waited for.
    begun: bool,
}

impl Case {
    /// Waits until the instance is replaced, if its group can do that.
    pub(super) async fn replaced(&self, waiting: &Waiting<'_>) -> WaitOutcome {
        let until = waiting.until;
        let mut progress = Progress { group: Arc::default(), begun: false };
        let result = match timeout_at(until, self.replacement(waiting, &mut progress)).await {
            Ok(result) => result,
            Err(_) if progress.begun => Replacement::Late,
            Err(_) => Replacement::Queued,
        };
        self.tell(&Fact::Replacement { about: self.about(), group: &progress.group, result });
        if !progress.begun {
            // Nothing was waited for: others of the same burst may not be cordoned yet.
            let Self { interrupter, .. } = self;
            if let Some((quiet, at_most)) = interrupter.policy.settles(Instant::now(), until) {
                interrupter.settling.settled(quiet, at_most, || interrupter.index.marked_at()).await;
            }
        }
        match result {
            Replacement::Ready => WaitOutcome::Met,
            Replacement::Complete if progress.begun => WaitOutcome::Met,
            Replacement::Late | Replacement::Queued => WaitOutcome::TimeOver,
            Replacement::Denied => WaitOutcome::Denied,
            _ => WaitOutcome::NotNeeded,
        }
    }

    async fn replacement(&self, waiting: &Waiting<'_>, progress: &mut Progress) -> Replacement {
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
            (None, _) => match interrupter.owner.group_of(&notice.instance).await {
                Ok(Some(group)) => progress.group = group,
                Ok(None) => return Replacement::NoGroup,
                Err(error) => {
                    self.tell(&Fact::OwnerUnknown { about: self.about(), category: error.category(), error: &error });
                    return Replacement::Unknown;
                }
            },
        }
        match Box::pin(self.ask(&node, waiting, progress)).await {
            Ok(since) => {
                progress.begun = true;
                waiting.says(format!("no new Node of group {} is Ready", progress.group));
                self.new_node(&progress.group, since).await
            }
            Err(reason) => {
                if AskedReplacement::of(&node).is_some() {
                    self.take_back(&node).await;
                }
                reason
            }
        }
    }

    /// Has the group replace the instance, as soon as not too many others of the group are being replaced. Returns when it was asked.
    async fn ask(&self, node: &Node, waiting: &Waiting<'_>, progress: &Progress) -> Result<Timestamp, Replacement> {
        let Self { interrupter, notice, .. } = self;
        let (groups, index, policy) = (&interrupter.groups, &interrupter.index, &interrupter.policy);
        let (group, instance) = (&*progress.group, notice.instance.as_str());
        let mut turns = index.turns();
        loop {
            let turn = groups.turn(group).await;
            let known = groups.get(group, GROUP_KEPT).await;
            let asked = index.newest(node).as_deref().and_then(AskedReplacement::of);
            let member = known.as_ref().ok().and_then(|known| known.members.get(instance));
            match (&asked, member) {
                // Another replica, or another notice, has asked; or the process ended before its call.
                (Some(asked), None) => return Ok(asked.since),
                (Some(asked), Some(member)) if !member.healthy || member.state == MemberState::Leaves => {
                    return Ok(asked.since);
                }
                (None, Some(member)) if member.state == MemberState::InService && !member.healthy => {
                    return Ok(notice.at);
                }
                _ => {}
            }
            let known = known?;
            replaceable(&known, instance, &policy.ignored_hooks)?;
            let others = noted(index, group).filter(|(_, uid)| *uid != node.uid).count();
            if asked.is_some() || others < policy.waits.max_replacements.of(known.desired) {
                if waiting.until.saturating_duration_since(Instant::now()) < MIN_TIME {
                    return Err(Replacement::Queued);
                }
                if policy.dry_run {
                    let instead = "ask the Auto Scaling group for a replacement first";
                    self.tell(&Fact::DryRun { about: self.about(), instead });
                    return Err(Replacement::DryRun);
                }
                // With the turn, so that another notice does not ask meanwhile.
                if let Some(since) = self.ask_now(node, group, policy.waits.max_replacements.of(known.desired)).await? {
                    return Ok(since);
                }
            }
            drop(turn);
            waiting.says(format!("{others} other nodes of group {group} are being replaced"));
            tokio::select! {
                _ = turns.changed() => {}
                () = sleep(LOOK_INTERVAL) => {}
            }
        }
    }

    /// Notes the replacement on the Node, by which all replicas count, and asks for it; returns when. `None` if other replicas have noted
    /// theirs at the same time, and are before this one.
    async fn ask_now(&self, node: &Node, group: &str, at_most: usize) -> Result<Option<Timestamp>, Replacement> {
        let Self { interrupter, notice, .. } = self;
        let asked = AskedReplacement::new(group, interrupter.clock.now());
        let note = interrupter.marker.note(node, Instant::now() + CALL_TIMEOUT, |node| asked.patch(node)).await;
        match note {
            Ok(true) => {}
            Ok(false) => return Err(Replacement::NotInService),
            // Without the note, another replica would not count it.
            Err(error) => {
                self.tell(&Fact::ReplacementFailed { group, error: &error });
                return Err(Replacement::Unknown);
            }
        }
        sleep(NOTES_SEEN).await;
        let own = (asked.since, Arc::clone(&node.uid));
        if noted(&interrupter.index, group).filter(|other| *other < own).count() >= at_most {
            self.take_back(node).await;
            return Ok(None);
        }
        match interrupter.groups.set_unhealthy(group, notice.instance.as_str()).await {
            Ok(()) => {
                self.tell(&Fact::Replacement { about: self.about(), group, result: Replacement::Asked });
                Ok(Some(asked.since))
            }
            Err(reason) => {
                self.take_back(node).await;
                Err(reason)
            }
        }
    }

    /// Removes the note of a replacement that does not come. If that fails, the note keeps others waiting at most.
    async fn take_back(&self, node: &Node) {
        let marker = &self.interrupter.marker;
        let _ = marker.note(node, Instant::now() + CALL_TIMEOUT, AskedReplacement::removal).await;
    }

    /// Waits until a Node of the group is Ready that has registered since, and that replaces no other instance.
    async fn new_node(&self, group: &str, since: Timestamp) -> Replacement {
        let Self { interrupter, notice, .. } = self;
        let instance = notice.instance.as_str();
        let mut turns = interrupter.index.turns();
        loop {
            let is_new = |node: &Node| {
                node.ready && !node.cordoned && node.created > Some(since) && !replaces_another(node, instance)
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
                _ = turns.changed() => {}
                () = sleep(LOOK_INTERVAL) => {}
            }
        }
    }

    /// Notes on the new Node which instance it replaces. Returns whether it is ours.
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
    async fn group_whole(&self, waiting: &Waiting<'_>, progress: &mut Progress) -> Replacement {
        let Self { interrupter, notice, .. } = self;
        let index = &interrupter.index;
        let mut turns = index.turns();
        loop {
            let group = match interrupter.groups.get(&progress.group, LAUNCH_INTERVAL).await {
                Ok(group) => group,
                Err(reason) => return reason,
            };
            if group.suspends(&["Launch"]) {
                return Replacement::Suspended;
            }
            let ready = |id: &str| {
                let node = InstanceId::new(id).and_then(|id| index.get(&id));
                node.is_some_and(|node| node.ready && !node.cordoned)
            };
            if group.is_whole_without(notice.instance.as_str(), ready) {
                return Replacement::Complete;
            }
            if !progress.begun {
                progress.begun = true;
                waiting.says(format!("group {} has fewer than {} Ready Nodes", progress.group, group.desired));
            }
            tokio::select! {
                _ = turns.changed() => {}
                () = sleep(LAUNCH_INTERVAL) => {}
            }
        }
    }
}

/// Whether it is too late to ask for a replacement of the Node, which has not been asked for, and would be waited for until then.
#[must_use]
pub fn is_too_late(node: &Node, until: Instant) -> bool {
    AskedReplacement::of(node).is_none() && until.saturating_duration_since(Instant::now()) < MIN_TIME
}

/// Returns the replacements by the group that are noted on Nodes: their times, and the Nodes' UIDs.
fn noted(index: &Index, group: &str) -> impl Iterator<Item = (Timestamp, Arc<str>)> {
    let asked = |node: &Node| AskedReplacement::of(node).filter(|asked| asked.group == group);
    let nodes = index.all_that(|node| asked(node).is_some()).into_iter();
    nodes.filter_map(|node| Some((AskedReplacement::of(&node)?.since, Arc::clone(&node.uid))))
}
