//! A replacement before the drain: the Auto Scaling group is told that the instance is unhealthy, and launches another first. Evictions
//! wait until the new Node is Ready. The group then terminates the instance under its hook, whose notice joins the drain.

use super::waiting::{ReplacementNote, WaitLog, Waiting};
use crate::clients::gate::{CALL_TIMEOUT, Category};
use crate::fact::{Fact, Replacement, WaitOutcome};
use crate::pipeline::event::{Detail, InstanceId};
use crate::pipeline::interruption::Case;
use crate::pipeline::interruption::groups::FAILURE_KEPT;
use crate::pipeline::interruption::replaceable::{Group, MemberState, replaceable};
use crate::pipeline::node::Node;
use crate::pipeline::node::replacement::{AskedReplacement, claim, replaces_another};
use jiff::Timestamp;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

/// Minimum time that a replacement is worth asking for: half of five minutes to the deadline. An instance boots in a minute or two.
pub const MIN_TIME: Duration = Duration::from_secs(150);

/// Age at which a group is looked up again, to ask for a replacement.
const GROUP_KEPT: Duration = Duration::from_secs(30);

/// Interval between looks at a group during a wait, if no Node changes.
const LOOK_INTERVAL: Duration = Duration::from_mins(1);

/// Interval between looks at a group that launches instances: only Auto Scaling knows which belong to it.
const LAUNCH_INTERVAL: Duration = Duration::from_secs(15);

/// Time after which all replicas have seen a note.
const NOTES_SEEN: Duration = Duration::from_secs(1);

/// Time after which a note counts no more for an instance that is in service and healthy: its replacement was never asked for.
const NOTE_STALE: Duration = Duration::from_mins(2);

/// Age before a notice from which an instance is none that its group has launched instead.
const OLD_AFTER: Duration = Duration::from_mins(15);

/// Pause after a change of the Nodes, so that a storm of changes is looked at once.
const CHANGES_PAUSE: Duration = Duration::from_secs(1);

/// How far a wait has come.
struct Progress {
    /// The group; empty if it is not known.
    group: Arc<str>,
    /// The result if the time is over now; [`Replacement::Late`] once another Node is waited for.
    if_over: Replacement,
}

impl Progress {
    fn is_begun(&self) -> bool {
        self.if_over == Replacement::Late
    }
}

impl Case {
    /// Waits until the instance is replaced, if its group can do that.
    pub(super) async fn replaced(&self, waiting: &Waiting<'_>) -> WaitOutcome {
        let mut progress = Progress { group: Arc::default(), if_over: Replacement::Unknown };
        let result = timeout_at(waiting.until, self.replacement(waiting, &mut progress)).await;
        let result = result.unwrap_or(progress.if_over);
        self.tell(&Fact::Replacement { about: self.about(), group: &progress.group, result });
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
            (None, _) => match self.own_group(waiting).await {
                Ok(group) => progress.group = group,
                Err(reason) => return reason,
            },
        }
        match Box::pin(self.ask(&node, waiting, progress)).await {
            Ok(None) => self.group_whole(waiting, progress).await,
            Ok(Some(since)) => {
                progress.if_over = Replacement::Late;
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

    /// Returns the instance's group. Asks until EC2 has said it.
    async fn own_group(&self, waiting: &Waiting<'_>) -> Result<Arc<str>, Replacement> {
        let Self { interrupter, notice, .. } = self;
        loop {
            let error = match interrupter.owner.group_of(&notice.instance).await {
                Ok(group) => return group.ok_or(Replacement::NoGroup),
                Err(error) => error,
            };
            self.tell(&Fact::OwnerUnknown { about: self.about(), category: error.category(), error: &error });
            if error.category() == Category::Denied {
                return Err(Replacement::Denied);
            }
            waiting.says("EC2 does not say to which group the instance belongs");
            sleep(FAILURE_KEPT).await;
        }
    }

    /// Has the group replace the instance, as soon as not too many others of the group are being replaced. Returns when it was asked; `None`
    /// if somebody else has asked, who leaves no note.
    async fn ask(
        &self,
        node: &Node,
        waiting: &Waiting<'_>,
        progress: &mut Progress,
    ) -> Result<Option<Timestamp>, Replacement> {
        let Self { interrupter, notice, .. } = self;
        let (groups, index, policy) = (&interrupter.groups, &interrupter.index, &interrupter.policy);
        let (group, instance) = (Arc::clone(&progress.group), notice.instance.as_str());
        let mut turns = index.turns();
        loop {
            let turn = groups.turn(&group).await;
            let asked = index.newest(node).as_deref().and_then(AskedReplacement::of);
            // What is known of the group may be older than the note.
            let max_age = if asked.is_some() { Duration::ZERO } else { GROUP_KEPT };
            let known = groups.get(&group, max_age).await;
            let member = known.as_ref().ok().and_then(|known| known.members.get(instance));
            match (&asked, member) {
                // Another replica, or another notice, has asked; or the process ended before its call.
                (Some(asked), None) => return Ok(Some(asked.since)),
                (Some(asked), Some(member)) if !member.is_in_service() => return Ok(Some(asked.since)),
                (None, Some(member)) if member.state == MemberState::InService && !member.healthy => return Ok(None),
                _ => {}
            }
            if known != Err(Replacement::Unknown) {
                let known = known?;
                replaceable(&known, instance, &policy.ignored_hooks)?;
                let others = self.other_replacements(&known, &group, node).count();
                let at_most = policy.waits.max_replacements.of(known.desired);
                if asked.is_some() || others < at_most {
                    if asked.is_none() && waiting.until.saturating_duration_since(Instant::now()) < MIN_TIME {
                        return Err(progress.if_over);
                    }
                    if policy.dry_run {
                        let instead = "ask the Auto Scaling group for a replacement first";
                        self.tell(&Fact::DryRun { about: self.about(), instead });
                        return Err(Replacement::DryRun);
                    }
                    // With the turn, so that another notice does not ask meanwhile.
                    match self.ask_now(node, waiting.log, asked, &group, &known).await {
                        Ok(Some(since)) => return Ok(Some(since)),
                        Ok(None) | Err(Replacement::Unknown) => {}
                        Err(reason) => return Err(reason),
                    }
                }
                drop(turn);
                progress.if_over = Replacement::Queued;
                waiting.says(format!("{others} other nodes of group {group} are being replaced"));
                tokio::select! {
                    () = change(&mut turns) => {}
                    () = sleep(LOOK_INTERVAL) => {}
                }
                continue;
            }
            drop(turn);
            progress.if_over = Replacement::Unknown;
            waiting.says(format!("Auto Scaling does not say what group {group} is like"));
            sleep(FAILURE_KEPT).await;
        }
    }

    /// Notes the replacement on the Node, by which all replicas count, and asks for it; returns when. `None` if other replicas have noted
    /// theirs at the same time, and are before this one.
    async fn ask_now(
        &self,
        node: &Node,
        log: &WaitLog,
        noted: Option<AskedReplacement>,
        group: &str,
        known: &Group,
    ) -> Result<Option<Timestamp>, Replacement> {
        let Self { interrupter, notice, .. } = self;
        let is_noted = noted.is_some();
        let asked = noted.unwrap_or_else(|| AskedReplacement::new(group, interrupter.clock.now()));
        // If the wait is over before the call, the next step takes the note back.
        log.set_note(ReplacementNote::Unasked);
        if !is_noted {
            self.note(node, &asked).await?;
            sleep(NOTES_SEEN).await;
            let own = (asked.since, Arc::clone(&node.uid));
            let before = self.other_replacements(known, group, node).filter(|other| *other < own).count();
            if before >= interrupter.policy.waits.max_replacements.of(known.desired) {
                self.take_back(node).await;
                log.set_note(ReplacementNote::Right);
                return Ok(None);
            }
        }
        let accepted = interrupter.groups.set_unhealthy(group, notice.instance.as_str()).await;
        match accepted {
            Ok(()) => self.tell(&Fact::Replacement { about: self.about(), group, result: Replacement::Asked }),
            Err(_) => self.take_back(node).await,
        }
        log.set_note(ReplacementNote::Right);
        accepted.map(|()| Some(asked.since))
    }

    /// Notes a replacement on the Node. Without the note, another replica would not count it.
    async fn note(&self, node: &Node, asked: &AskedReplacement) -> Result<(), Replacement> {
        let marker = &self.interrupter.marker;
        let error = match marker.note(node, Instant::now() + CALL_TIMEOUT, |node| asked.patch(node)).await {
            Ok(true) => return Ok(()),
            Ok(false) => return Err(Replacement::NotInService),
            Err(error) => error,
        };
        self.tell(&Fact::ReplacementFailed { group: &asked.group, error: &error });
        Err(if error.category == Category::Denied { Replacement::Denied } else { Replacement::Unknown })
    }

    /// Returns the replacements by the group that are noted on other Nodes: their times, and the Nodes' UIDs.
    fn other_replacements(
        &self,
        known: &Group,
        group: &str,
        own: &Node,
    ) -> impl Iterator<Item = (Timestamp, Arc<str>)> {
        let stale = self.interrupter.clock.now() - NOTE_STALE;
        let counts = |node: &Node, asked: &AskedReplacement| {
            let in_service = known.members.get(node.instance.as_str()).is_some_and(|member| member.is_in_service());
            asked.group == group && node.uid != own.uid && !(in_service && asked.since < stale)
        };
        let of = |node: &Node| AskedReplacement::of(node).filter(|asked| counts(node, asked)).map(|asked| asked.since);
        let nodes = self.interrupter.index.all_that(|node| of(node).is_some());
        nodes.into_iter().filter_map(|node| Some((AskedReplacement::of(&node)?.since, Arc::clone(&node.uid))))
    }

    /// Makes the Node's note of a replacement right after a wait that was cut or over: removes one that was never asked for, unless the
    /// call has come through, and notes that one did not come in time.
    pub(in crate::pipeline::interruption) async fn end_note(&self, log: &WaitLog) {
        let Some(node) = &self.node else { return };
        match log.note() {
            ReplacementNote::Right => return,
            ReplacementNote::Unasked => Box::pin(self.take_back_unasked(node)).await,
            ReplacementNote::Late => {
                let by = Instant::now() + CALL_TIMEOUT;
                let _ = Box::pin(self.interrupter.marker.note(node, by, AskedReplacement::late)).await;
            }
        }
        log.set_note(ReplacementNote::Right);
    }

    async fn take_back_unasked(&self, node: &Node) {
        let Self { interrupter, notice, .. } = self;
        let noted = interrupter.index.newest(node).as_deref().and_then(AskedReplacement::of);
        let Some(noted) = noted else { return };
        let known = interrupter.groups.get(&noted.group, Duration::ZERO).await.ok();
        let member = known.as_ref().and_then(|known| known.members.get(notice.instance.as_str()));
        if member.is_none_or(|member| member.is_in_service()) {
            self.take_back(node).await;
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
            let taints = &interrupter.policy.startup_taints;
            let is_new = |node: &Node| {
                let starts = node.taints.iter().any(|taint| taints.contains(&taint.key));
                let is_ready = node.ready && !node.cordoned && !starts;
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
                Err(Replacement::Unknown) => {
                    waiting.says(format!("Auto Scaling does not say what group {} is like", progress.group));
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
                // One that was there before is what the group has, whatever has become of it.
                node.is_some_and(|node| node.ready || node.created < Some(notice.at - OLD_AFTER))
            };
            if group.is_whole_without(notice.instance.as_str(), ready) {
                return Replacement::Complete;
            }
            progress.if_over = Replacement::Late;
            waiting.says(format!("group {} has fewer than {} Ready Nodes", progress.group, group.desired));
            tokio::select! {
                () = change(&mut turns) => {}
                () = sleep(LAUNCH_INTERVAL) => {}
            }
        }
    }
}

/// Waits for a change of the Nodes, and for those that come with it.
async fn change(turns: &mut watch::Receiver<()>) {
    // The sender lives as long as the index.
    let _ = turns.changed().await;
    sleep(CHANGES_PAUSE).await;
}

/// Whether it is too late to ask for a replacement of the Node, which has not been asked for, and would be waited for until then.
#[must_use]
pub fn is_too_late(node: &Node, until: Instant) -> bool {
    AskedReplacement::of(node).is_none() && until.saturating_duration_since(Instant::now()) < MIN_TIME
}
