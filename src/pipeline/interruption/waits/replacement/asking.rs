//! Requests a replacement. The request is recorded on the Node before the call, so that all replicas count it. No replica removes another
//! one's note, unless the call was never made.

use super::{GROUP_KEPT, LOOK_INTERVAL, MIN_TIME, Moment, Progress, change};
use crate::clients::answers::FAILURE_KEPT;
use crate::clients::gate::{CALL_TIMEOUT, Category};
use crate::fact::{Fact, Replacement};
use crate::pipeline::interruption::Case;
use crate::pipeline::interruption::replaceable::{Group, MemberState, replaceable, terminable};
use crate::pipeline::interruption::waits::active_wait::{ActiveWait, ReplacementNote, WaitLog};
use crate::pipeline::node::Node;
use crate::pipeline::node::replacement::{AskedReplacement, NOTE_STALE};
use jiff::Timestamp;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Time after which all replicas have seen a note.
const NOTES_SEEN: Duration = Duration::from_secs(1);

/// Time after which the writer of a note has made the request or given up: the patch, a pause, and three calls.
const ASKED_AFTER: Duration = Duration::from_mins(1);

/// Interval between checks whether the writer of a note has made the request.
const ASKED_INTERVAL: Duration = Duration::from_secs(10);

impl Case {
    /// Requests the replacement, as soon as not too many others of the group are being replaced. Returns the time of the request; `None` if
    /// another controller or a user made it, without a note.
    pub(in crate::pipeline::interruption::waits) async fn ask(
        &self,
        node: &Node,
        waiting: &ActiveWait<'_>,
        progress: &mut Progress,
    ) -> Result<Option<Timestamp>, Replacement> {
        let Self { interrupter, notice, .. } = self;
        let (groups, index, policy) = (&interrupter.groups, &interrupter.index, &self.policy);
        let (group, instance) = (Arc::clone(&progress.group), notice.instance.as_str());
        let mut turns = index.turns();
        loop {
            let turn = groups.turn(&group).await;
            let asked = index.newest(node).as_deref().and_then(AskedReplacement::of);
            // The cached group may be older than the note.
            let max_age = if asked.is_some() { Duration::ZERO } else { GROUP_KEPT };
            let known = groups.get(&group, max_age).await;
            let member = known.as_ref().ok().and_then(|known| known.members.get(instance));
            match (&asked, member) {
                // Another replica, or another notice, has asked.
                (Some(asked), member) if member.is_none_or(|member| !member.is_in_service()) => {
                    if known.is_ok() {
                        self.note_asked(node).await;
                    }
                    return Ok(Some(asked.since));
                }
                (None, Some(member)) if member.state == MemberState::InService && !member.healthy => return Ok(None),
                (Some(asked), Some(_)) if self.is_asking(asked, waiting.log) => {
                    drop(turn);
                    progress.if_over = Replacement::Queued;
                    waiting.set_reason(format!("another interruption is about to ask group {group} for a replacement"));
                    sleep(ASKED_INTERVAL).await;
                    continue;
                }
                // The process ended before its call.
                _ => {}
            }
            if known != Err(Replacement::Unknown) {
                let known = known?;
                match progress.moment {
                    Moment::BeforeEvictions => replaceable(&known, instance, |hook| policy.completes(hook))?,
                    Moment::Drained => terminable(&known, instance)?,
                }
                let others = self.other_replacements(&known, &group, node).count();
                let at_most = policy.waits.max_replacements.of(known.desired);
                if asked.is_some() || others < at_most {
                    let is_late = || waiting.until.saturating_duration_since(Instant::now()) < MIN_TIME;
                    if asked.is_none() && progress.moment == Moment::BeforeEvictions && is_late() {
                        return Err(progress.if_over);
                    }
                    if policy.dry_run {
                        let instead = match progress.moment {
                            Moment::BeforeEvictions => "ask the Auto Scaling group for a replacement first",
                            Moment::Drained => "ask the Auto Scaling group to terminate the instance",
                        };
                        self.emit(&Fact::DryRun { about: self.about(), instead });
                        return Err(Replacement::DryRun);
                    }
                    // While holding the turn, so that another notice does not ask meanwhile.
                    match self.ask_now(node, (waiting.log, progress.moment), asked, &group, &known).await {
                        Ok(Some(since)) => return Ok(Some(since)),
                        Ok(None) => {}
                        Err(Replacement::Unknown) => {
                            drop(turn);
                            progress.if_over = Replacement::Unknown;
                            waiting.set_reason("the API server does not take the note about a replacement");
                            sleep(FAILURE_KEPT).await;
                            continue;
                        }
                        Err(reason) => return Err(reason),
                    }
                }
                drop(turn);
                progress.if_over = Replacement::Queued;
                waiting.set_reason(format!("{others} other nodes of group {group} are being replaced"));
                tokio::select! {
                    () = change(&mut turns) => {}
                    () = sleep(LOOK_INTERVAL) => {}
                }
                continue;
            }
            drop(turn);
            progress.if_over = Replacement::Unknown;
            waiting.set_reason(format!("Auto Scaling has not described group {group}"));
            sleep(FAILURE_KEPT).await;
        }
    }

    /// Notes the replacement on the Node, so that all replicas count it, and makes the request. Returns its time; `None` if other replicas
    /// noted this or others at the same time, and come first.
    async fn ask_now(
        &self,
        node: &Node,
        (log, moment): (&WaitLog, Moment),
        noted: Option<AskedReplacement>,
        group: &str,
        known: &Group,
    ) -> Result<Option<Timestamp>, Replacement> {
        let Self { interrupter, notice, .. } = self;
        let is_noted = noted.is_some();
        let late = moment == Moment::Drained;
        let new = || AskedReplacement { late, ..AskedReplacement::new(group, interrupter.clock.now()) };
        let asked = noted.unwrap_or_else(new);
        // If the wait ends before the call, the next step removes the note.
        log.set_note(ReplacementNote::Unasked);
        if !is_noted {
            if !self.note(node, &asked).await? {
                log.set_note(ReplacementNote::Right);
                return Ok(None);
            }
            sleep(NOTES_SEEN).await;
            let own = (asked.since, Arc::clone(&node.uid));
            let before = self.other_replacements(known, group, node).filter(|other| *other < own).count();
            if before >= self.policy.waits.max_replacements.of(known.desired) {
                self.take_back(node).await;
                log.set_note(ReplacementNote::Right);
                return Ok(None);
            }
        }
        let accepted = interrupter.groups.set_unhealthy(group, notice.instance.as_str()).await;
        let is_asked = match accepted {
            Ok(()) => true,
            Err(Replacement::Denied) => {
                self.take_back(node).await;
                false
            }
            // An answer may have been lost.
            Err(_) => !self.take_back_unasked(node, log).await,
        };
        log.set_note(ReplacementNote::Right);
        if !is_asked {
            return accepted.map(|()| None);
        }
        if moment == Moment::BeforeEvictions {
            self.emit(&Fact::Replacement { about: self.about(), group, result: Replacement::Asked });
        }
        self.note_asked(node).await;
        Ok(Some(asked.since))
    }

    /// Notes on the Node that its group was asked. If that fails, a Node that recovers is uncordoned, and later drained for its group's hook.
    async fn note_asked(&self, node: &Node) {
        let marker = &self.interrupter.marker;
        let _ = Box::pin(marker.note(node, Instant::now() + CALL_TIMEOUT, AskedReplacement::asked)).await;
    }

    /// Notes a replacement on the Node. Without the note, another replica would not count it. Returns whether there was none.
    async fn note(&self, node: &Node, asked: &AskedReplacement) -> Result<bool, Replacement> {
        let marker = &self.interrupter.marker;
        let mut is_new = false;
        let note = |node: &Node| asked.patch(node).inspect(|_| is_new = true);
        let error = match marker.note(node, Instant::now() + CALL_TIMEOUT, note).await {
            Ok(true) => return Ok(is_new),
            Ok(false) => return Err(Replacement::NotInService),
            Err(error) => error,
        };
        self.emit(&Fact::ReplacementFailed { group: &asked.group, error: &error });
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

    /// Corrects the Node's note of a replacement after a wait that was cut short or timed out: removes the note if the request was never made,
    /// and notes a replacement that is late.
    pub(in crate::pipeline::interruption) async fn end_note(&self, log: &WaitLog) {
        let Some(node) = &self.node else { return };
        match log.note() {
            ReplacementNote::Right => return,
            ReplacementNote::Unasked => drop(Box::pin(self.take_back_unasked(node, log)).await),
            ReplacementNote::Late => {
                let by = Instant::now() + CALL_TIMEOUT;
                let _ = Box::pin(self.interrupter.marker.note(node, by, AskedReplacement::late)).await;
            }
        }
        log.set_note(ReplacementNote::Right);
    }

    /// Whether another replica noted the replacement, and may be about to make the request.
    fn is_asking(&self, noted: &AskedReplacement, log: &WaitLog) -> bool {
        log.note() != ReplacementNote::Unasked && noted.since > self.interrupter.clock.now() - ASKED_AFTER
    }

    /// Removes the note, unless the group was asked or another replica is about to ask. Returns whether no note is left.
    pub(in crate::pipeline::interruption::waits) async fn take_back_unasked(&self, node: &Node, log: &WaitLog) -> bool {
        let Self { interrupter, notice, .. } = self;
        let noted = interrupter.index.newest(node).as_deref().and_then(AskedReplacement::of);
        let Some(noted) = noted else { return true };
        if self.is_asking(&noted, log) {
            return false;
        }
        let is_unasked = match interrupter.groups.get(&noted.group, Duration::ZERO).await {
            Ok(known) => known.members.get(notice.instance.as_str()).is_none_or(|member| member.is_in_service()),
            // Without an answer the request may have been made.
            Err(error) => error == Replacement::NoGroup,
        };
        if is_unasked {
            self.take_back(node).await;
        }
        is_unasked
    }

    /// Removes the note of a replacement that does not come. If that fails, the note only makes others wait.
    async fn take_back(&self, node: &Node) {
        let marker = &self.interrupter.marker;
        let _ = marker.note(node, Instant::now() + CALL_TIMEOUT, AskedReplacement::removal).await;
    }
}
