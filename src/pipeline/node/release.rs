//! Which marks of a Node are due for removal, and the patch that removes them. Pure.

use super::hinted::is_left_to_hints;
use super::mark::{BOOTED_ANNOTATION, KIND_LABEL, MarkSettings, out_of_service, written};
use super::names::id_of;
use super::patch::guarded;
use super::record::{
    Boot, KeptChange, NoticeRecord, RecordChange, ReturnSign, Sources, UNDO_ANNOTATION, Withdrawal, Work, text,
    whole_seconds,
};
use super::replacement::{self, is_replaced, stale_at};
use super::{Node, hold};
use crate::fact::{NoticeKind, UndoReason};
use crate::pipeline::event::NoticeKey;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Taint;
use serde_json::{Map, Value, json};
use std::time::Duration;

/// Minimum time between the announced start of an interruption and a notice that counts as late because its Node is Ready again: clocks
/// differ, and nodes flap. With an annotation about the restart no time needs to pass.
pub const LATE_AFTER: Duration = Duration::from_mins(1);

/// Maximum time after its expiry for which a record stays because another tool works on the Node.
const MAX_WORK: SignedDuration = SignedDuration::from_hours(2);

/// The notices that release a Node, or are no longer planned for it, for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRelease {
    changes: Vec<RecordChange>,
    /// The reason.
    pub reason: UndoReason,
    /// The time of this release after a restart that the Ready condition does not show, or not yet for sure, because it was fast.
    restarted: Option<Timestamp>,
    /// Whether a notice that held the Node, or was planned, no longer does or is.
    has_marks: bool,
}

/// The marks of a Node that are due for removal, or the time at which the next are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleaseSchedule {
    /// The marks that are due.
    pub due: Option<NodeRelease>,
    /// The next time at which a mark may become due, if one is known.
    pub next: Option<Timestamp>,
    /// Whether a mark that has expired stays because another tool works on the Node.
    pub is_kept: bool,
}

/// The patch that removes marks.
pub struct ReleasePatch {
    /// The merge patch.
    pub body: Value,
    /// Whether the patch uncordons the Node.
    pub uncordons: bool,
    /// Taints and labels that the Node lists for removal, and that stay: no mark can have put them there.
    pub left: Vec<String>,
}

impl NodeRelease {
    /// Returns the marks that are due at `now`. A Node with the annotation `ebbtide/ignore` is left to its owner; one that its group replaces
    /// is terminated, whatever happens to the announced change.
    #[must_use]
    pub fn schedule(node: &Node, now: Timestamp) -> ReleaseSchedule {
        if node.ignored || is_replaced(node, now) {
            return ReleaseSchedule { due: None, next: stale_at(node).filter(|_| !node.ignored), is_kept: false };
        }
        let all: Vec<_> = node.record.notices().collect();
        let returned = |notice: &NoticeRecord| has_returned(node, notice, now);
        let work = if node.work_sign.is_some() { MAX_WORK } else { SignedDuration::ZERO };
        let expires = |notice: &NoticeRecord| notice.expires.map(|at| at.checked_add(work).unwrap_or(at));
        let expired = |notice: &NoticeRecord| expires(notice).is_some_and(|at| at <= now);
        let unseen = all.iter().any(|(_, notice)| {
            // Before its start, nothing but this shows that the announcement is over.
            let (begun, ahead) = (notice.start.filter(|start| *start < now), notice.start >= Some(now));
            let is_soon = |after: Timestamp| now.duration_since(after).unsigned_abs() <= LATE_AFTER;
            let is_unseen =
                |after: Timestamp| after < now && (ahead || is_soon(after) || !restarted_after(node, after));
            returned(notice) && begun.max(notice.since).is_some_and(is_unseen)
        });
        let due = Self::of(&all, UndoReason::Rebooted, returned)
            .map(|due| Self { restarted: unseen.then_some(now), ..due })
            .or_else(|| Self::of(&all, UndoReason::Expired, expired));
        let next = |notice: &NoticeRecord| {
            let terminates = notice.terminates_at().filter(|at| *at >= now);
            let at_expiry = notice.expires.filter(|at| *at > now);
            [at_expiry, expires(notice), terminates].into_iter().flatten().min()
        };
        let is_kept = |notice: &NoticeRecord| notice.expires.is_some_and(|at| at <= now) && !expired(notice);
        ReleaseSchedule {
            due,
            next: all.iter().filter_map(|(_, notice)| next(notice)).min(),
            is_kept: all.iter().any(|(_, notice)| is_kept(notice)),
        }
    }

    /// Returns all marks if a user or another controller has removed Ebbtide's cordon.
    #[must_use]
    pub fn after_uncordon(node: &Node) -> Option<Self> {
        let removed = !node.ignored && !node.cordoned && node.record.undo().cordon;
        if removed {
            Self::of(&node.record.notices().collect::<Vec<_>>(), UndoReason::Uncordoned, |_| true)
        } else {
            None
        }
    }

    /// Returns the marks of notices of this kind that are not newer than `at`.
    #[must_use]
    pub fn of_kind(node: &Node, kind: &str, at: Timestamp, reason: UndoReason) -> Option<Self> {
        let due = |notice: &NoticeRecord| notice.kind == kind && notice.since <= Some(at);
        Self::of(&node.record.notices().collect::<Vec<_>>(), reason, due)
    }

    /// Returns the release of the notice with this key that AWS has cancelled, unless the Node knows a newer copy. With `noted`, an older copy
    /// that comes later finds the cancellation.
    #[must_use]
    pub fn of_withdrawn(node: &Node, key: NoticeKey, by: Withdrawal, noted: bool) -> Option<Self> {
        let (start, own_key) = (by.start.filter(|_| noted), key);
        let other = || node.record.of_other(key, start, false, &node.instance);
        let own = node.record.get(key).map(|known| (key, known));
        let (key, known) = own.or_else(other).map_or((key, None), |(key, known)| (key, Some(known)));
        let is_live = known.is_some_and(|known| known.work.is_live());
        let is_over = |known: &NoticeRecord| {
            let is_newer = known.since.is_some_and(|since| since > by.at);
            is_newer
                || known.is_unreadable()
                || known.work == Work::Withdrawn && known.since >= Some(whole_seconds(by.at))
        };
        if known.is_some_and(is_over) || !is_live && !noted {
            return None;
        }
        if let Some(known) = known.filter(|known| key != own_key && !noted && known.also.without(own_key).repeat()) {
            // What has moved is listed under another id: only this source has ended.
            return Some(Self::leaving(vec![RecordChange::leaves((key, known), own_key)], UndoReason::Withdrawn));
        }
        // The older answer of another replica may still show a status check as failing.
        let is_check = |known: &&NoticeRecord| known.is_of(NoticeKind::StatusCheck);
        let left = match known {
            _ if noted => Some(by.record(known)),
            known => known.filter(is_check).and_then(|known| known.released(UndoReason::Withdrawn)),
        };
        // A change that AWS has moved may have left the message in the record of another source.
        let joined = node.record.all().filter(|(other, known)| *other != key && noted && known.also.has(key));
        let joined = joined.map(|of| RecordChange::leaves(of, key));
        let changes = [RecordChange { key, left }].into_iter().chain(joined).collect();
        Some(Self { has_marks: is_live, ..Self::leaving(changes, UndoReason::Withdrawn) })
    }

    /// Leaves the change of this cancellation to the Node's agent, which still reports it: only the other sources have ended. `message` stands for
    /// one in the agent's record.
    #[must_use]
    pub fn leaving_to_agent(self, node: &Node, agent: NoticeKey, message: &str) -> Self {
        let Some(RecordChange { key, left }) = self.changes.first() else { return self };
        let Some(known) = node.record.live(*key) else { return self };
        let withdrawn = |key, by: &str| {
            let left = left.clone().map(|left| alone(&left, by));
            RecordChange { key, left }
        };
        let others = [(*key, &*known.message)]
            .into_iter()
            .chain(known.also.iter())
            .filter(|(key, _)| *key != agent)
            .map(|(key, by)| withdrawn(key, by));
        let alone = RecordChange { key: agent, left: Some(alone(known, message)) };
        Self { changes: others.chain([alone]).collect(), has_marks: false, ..self }
    }

    /// Returns the release of the notice with this key, if only the Node's agent has reported it. Nothing is left of it: nothing else may show
    /// later that the agent has withdrawn it.
    #[must_use]
    pub fn of_taken_back(node: &Node, key: NoticeKey) -> Option<Self> {
        node.record.live(key).filter(|known| known.is_only_reported())?;
        Some(Self::leaving(vec![RecordChange { key, left: None }], UndoReason::Withdrawn))
    }

    /// Returns the release of the notice with this identity.
    #[must_use]
    pub fn of_notice(node: &Node, key: NoticeKey, reason: UndoReason) -> Option<Self> {
        let left = node.record.notice(key)?.released(reason);
        Some(Self::leaving(vec![RecordChange { key, left }], reason))
    }

    fn of(all: &[(NoticeKey, &NoticeRecord)], reason: UndoReason, due: impl Fn(&NoticeRecord) -> bool) -> Option<Self> {
        let due = all.iter().filter(|(_, notice)| due(notice));
        let changes: Vec<_> =
            due.map(|(key, notice)| RecordChange { key: *key, left: notice.released(reason) }).collect();
        (!changes.is_empty()).then(|| Self::leaving(changes, reason))
    }

    /// Returns the release that leaves these records.
    const fn leaving(changes: Vec<RecordChange>, reason: UndoReason) -> Self {
        Self { changes, reason, restarted: None, has_marks: true }
    }

    /// Returns the release that also removes the marks of hints, if it would leave the Node cordoned for these alone and hints hold as many
    /// nodes as they may: `is_full`. While the Node was cordoned for another reason, it took no part in their limit.
    #[must_use]
    pub fn within_limit_of_hints(mut self, node: &Node, is_full: impl FnOnce() -> bool) -> Self {
        let left: Vec<_> = self.left(node).collect();
        let is_left_to_hints = !left.is_empty() && is_left_to_hints(node, left.iter().map(|(_, notice)| *notice));
        if is_left_to_hints && is_full() {
            let left = left.into_iter();
            self.changes.extend(left.map(|(key, notice)| RecordChange { key, left: notice.released(self.reason) }));
        }
        self
    }

    /// Returns the notices that still hold the Node after the release.
    fn left<'a>(&self, node: &'a Node) -> impl Iterator<Item = (NoticeKey, &'a NoticeRecord)> {
        node.record.notices().filter(|(key, _)| !self.changes.iter().any(|change| change.releases(*key)))
    }

    /// Whether there are marks to remove. A notice that was withdrawn before it came leaves only a note.
    #[must_use]
    pub const fn has_marks(&self) -> bool {
        self.has_marks
    }

    /// Returns the patch that removes the marks, and with the last one what marks have put on the Node by these settings.
    #[must_use]
    pub fn patch(&self, node: &Node, settings: &MarkSettings) -> ReleasePatch {
        let mut annotations = node.record.annotations(&self.changes);
        if let Some(since) = self.restarted {
            annotations.insert(BOOTED_ANNOTATION.to_owned(), json!(since));
        }
        if !self.has_marks() {
            let body = guarded(node, &annotations.into(), &json!({}), json!({}));
            return ReleasePatch { body, uncordons: false, left: Vec::new() };
        }
        match self.left(node).map(|(_, notice)| notice).max_by_key(|notice| notice.since) {
            Some(newest) => self.partial_patch(node, annotations, newest),
            None => Self::full_patch(node, annotations, settings),
        }
    }

    /// Returns the patch for a Node that other notices hold. A returned instance loses the out-of-service taint all the same.
    fn partial_patch(&self, node: &Node, mut annotations: Map<String, Value>, newest: &NoticeRecord) -> ReleasePatch {
        let mut undo = node.record.undo().clone();
        let out_of_service = written(&out_of_service());
        let mut spec = json!({});
        if self.reason == UndoReason::Rebooted && undo.taints.contains(&out_of_service) {
            let kept: Vec<&Taint> = node.taints.iter().filter(|taint| written(taint) != out_of_service).collect();
            spec["taints"] = json!(kept);
            undo.taints.retain(|taint| *taint != out_of_service);
            annotations.insert(UNDO_ANNOTATION.to_owned(), json!(text(&undo)));
        }
        let labels = json!({ KIND_LABEL: newest.kind });
        let body = guarded(node, &annotations.into(), &labels, spec);
        ReleasePatch { body, uncordons: false, left: Vec::new() }
    }

    /// Returns the patch that undoes every change of Ebbtide's to the Node.
    pub(super) fn full_patch(
        node: &Node,
        mut annotations: Map<String, Value>,
        settings: &MarkSettings,
    ) -> ReleasePatch {
        let (undo, left) = settings.divide(node.record.undo().clone());
        annotations.insert(UNDO_ANNOTATION.to_owned(), Value::Null);
        hold::forget(node, &mut annotations);
        replacement::forget(node, &mut annotations);
        let mut labels: Map<String, Value> = undo.labels.iter().map(|label| (label.clone(), Value::Null)).collect();
        labels.insert(KIND_LABEL.to_owned(), Value::Null);
        let mut spec = json!({});
        if undo.cordon {
            spec["unschedulable"] = Value::Null;
        }
        let kept: Vec<&Taint> = node.taints.iter().filter(|taint| !undo.taints.contains(&written(taint))).collect();
        if kept.len() < node.taints.len() {
            spec["taints"] = json!(kept);
        }
        let body = guarded(node, &annotations.into(), &labels.into(), spec);
        ReleasePatch { body, uncordons: undo.cordon && node.cordoned, left }
    }
}

/// Returns the record of the source with this message, if it alone asserts the notice.
fn alone(record: &NoticeRecord, message: &str) -> NoticeRecord {
    let kept = record.kept.clone().map(|kept| Box::new(KeptChange { event: id_of(message).to_owned(), ..*kept }));
    NoticeRecord { message: message.to_owned(), also: Sources::default(), kept, ..record.clone() }
}

/// Returns whether a notice of this kind waits for a restart of the Node that has not come.
#[must_use]
pub fn awaits_boot(node: &Node, kind: &str) -> bool {
    let waits = |notice: &NoticeRecord| notice.kind == kind && notice.return_sign == Some(ReturnSign::Boot);
    node.record.notices().any(|(_, notice)| waits(notice) && notice.boot == Boot::new(&node.boot))
}

/// Returns whether the Node has become Ready or was restarted after `at`. A restart may be too fast for the Ready condition, which
/// changes only when the kubelet was missed for a while.
#[must_use]
pub fn restarted_after(node: &Node, at: Timestamp) -> bool {
    node.ready_since > Some(at) || booted_after(node, at)
}

/// Returns whether the Node was restarted after `at`, by its annotation. Later restarts that no replica recorded do not change that.
#[must_use]
pub fn booted_after(node: &Node, at: Timestamp) -> bool {
    let booted = node.record.text(BOOTED_ANNOTATION).and_then(|value| value.parse::<Timestamp>().ok());
    booted.is_some_and(|booted| booted > at)
}

/// Returns whether the Node's instance has returned from what the notice with this identity announced, as its mark shows, which is about
/// to be removed.
#[must_use]
pub fn is_back(node: &Node, key: NoticeKey, start: Option<Timestamp>, now: Timestamp) -> bool {
    let notice = node.record.notice(key).filter(|notice| notice.starts_at(start));
    notice.is_some_and(|notice| notice.return_sign.is_some() && has_returned(node, notice, now))
}

/// Returns whether the Node's instance has returned from what the notice announced.
fn has_returned(node: &Node, notice: &NoticeRecord, now: Timestamp) -> bool {
    let rebooted = notice.boot.is_before(&node.boot);
    // The Node of a frozen kubelet is not Ready for a while. A Node that becomes Ready before the deadline only flaps.
    let resumed = node.ready_since > notice.deadline.max(notice.since);
    // An instance that restarts before its end, or while a hook keeps it, is still terminated. The replica that drains for a hook may be
    // about to extend the end.
    let is_over = if notice.has_hook() {
        notice.terminates_at() < Some(now)
    } else {
        notice.end() < Some(now) || !notice.is_of(NoticeKind::Spot)
    };
    node.ready
        && match notice.return_sign {
            // Only the source that reported the node as unhealthy knows whether it still is.
            None if notice.kind().is_some_and(NoticeKind::is_repair) => false,
            // If it runs long after that, AWS has kept it.
            None => rebooted && notice.terminates_at().is_some_and(|at| at < now),
            Some(ReturnSign::Boot) => rebooted && is_over && !notice.is_ahead(now),
            Some(ReturnSign::Ready) => rebooted || resumed,
        }
}
