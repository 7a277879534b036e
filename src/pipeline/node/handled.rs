//! How a Node shows that a listed notice, an agent notice or a condition was acted on, by whichever replica. Pure.
//!
//! EC2 lists a change for weeks, and its mark may be removed earlier: after an uncordon or a restart. An annotation that stays records that
//! the notice needs nothing more, so that it is acted on once.

use super::Node;
use super::names::id_of;
use super::patch::recorded;
use super::record::{NoticeRecord, RecordChange, Source, Withdrawal, Work, joining, whole_seconds};
use crate::pipeline::event::{Detail, Identity, Notice};
use serde_json::Value;

/// What a Node shows about a listed notice or its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nothing was done yet, or not all.
    Open,
    /// A message has announced it: its mark or its plan is on the Node.
    Announced,
    /// The Node keeps it until the change is near, or it needs nothing more.
    Settled,
}

/// A notice of a Node's agent, or of one of its conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeNotice {
    /// The notice.
    pub notice: Notice,
    /// The id that stands for a message in its mark.
    pub message: String,
}

/// What a Node shows about a message's notice that EC2 lists, or its agent reports, as well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KnownNotice {
    /// Nothing is left to do.
    Handled,
    /// It is the notice with this identity, which was acted on first.
    Same(Identity),
}

/// Returns what the Node shows about `notice`, which is a listed notice or the Node's own. `own` is the id that stands for a message in its
/// mark.
#[must_use]
pub fn standing(node: &Node, notice: &Notice, own: Option<&str>) -> Standing {
    let found = node.record.of(notice);
    if notice.is_withdrawn() {
        let has_trace = found.is_some_and(|(_, known)| known.work != Work::Withdrawn);
        return if has_trace { Standing::Open } else { Standing::Settled };
    }
    let Some((key, known)) = found else { return Standing::Open };
    let (named, is_live) = (notice.named_time().map(whole_seconds), known.work.is_live());
    if let Some(by) = Withdrawal::recorded(known) {
        // What EC2's last answer still lists, a message may have cancelled since.
        let is_cancelled = notice.is_listed_by_ec2() && by.ends(named, notice.at());
        return if is_cancelled { Standing::Settled } else { Standing::Open };
    }
    if is_live && named.is_some() && known.start.is_some_and(|start| Some(whole_seconds(start)) != named) {
        // The work for the start that AWS named before, or its plan, must learn of this one, unless a message has moved it since the answer.
        let is_older = notice.identity.ec2_id().is_some() && key == notice.key() && known.since > Some(notice.at());
        return if is_older && !known.also.is_empty() { Standing::Settled } else { Standing::Open };
    }
    let is_kept = known.kept.as_ref().is_some_and(|kept| notice.identity.ec2_id().as_deref() == Some(&*kept.event));
    if known.is_over(named) || is_kept || is_live && known.also.has(notice.key()) {
        return Standing::Settled;
    }
    // EC2's list and an agent name a change alike, and neither has a receipt: a replica that takes over continues the other's work.
    let is_own = key == notice.key() && own.map(id_of) == Some(id_of(&known.message));
    let is_announced = is_live && !is_own && known.is_of(notice.kind());
    if is_announced { Standing::Announced } else { Standing::Open }
}

/// Returns what is known about the notice of a message, if it was acted on first because EC2 lists it.
#[must_use]
pub fn known(node: &Node, notice: &Notice) -> Option<KnownNotice> {
    let start = notice.named_time()?;
    let is_of_message = |mark: &NoticeRecord| notice.identity.ec2_id().as_deref() != Some(&*mark.message);
    match (&notice.identity, &notice.detail) {
        (
            Identity::HealthEvent { instance, .. } | Identity::Ec2Event { instance, .. },
            Detail::ScheduledChange(change),
        ) => {
            let (key, known) = node.record.of(notice)?;
            if !change.withdrawn && known.is_over(Some(start)) {
                return Some(KnownNotice::Handled);
            }
            // What EC2 lists, and an agent, has the change's id in place of a message.
            let listed = |id: &str| Identity::of_change(id.to_owned(), instance.clone());
            let kept = known.kept.iter().map(|kept| &*kept.event);
            let mut ids = [id_of(&known.message)].into_iter().chain(kept).map(listed);
            let same = ids.find(|listed| listed.key() == key).filter(|_| key != notice.key());
            same.filter(|_| known.work.is_live()).map(KnownNotice::Same)
        }
        (Identity::Block { .. }, _) => (is_handled(node, notice)
            && !node.record.notice(notice.key()).is_some_and(is_of_message))
        .then_some(KnownNotice::Handled),
        _ => None,
    }
}

/// Returns the patch that records that the notice needs nothing more; `None` if the Node shows it. `message` is the id of its message, or what
/// stands for one; `plan` is the change that the Node no longer keeps with that. A change that it plans otherwise, or that AWS has cancelled
/// since, stays so.
#[must_use]
pub(super) fn patch(node: &Node, notice: &Notice, message: &str, plan: Option<&NoticeRecord>) -> Option<Value> {
    if is_handled(node, notice) {
        return None;
    }
    let own = notice.key();
    let (key, known) = node.record.of(notice).map_or((own, None), |(key, known)| (key, Some(known)));
    // Another source has reported the change first.
    if let Some(first) = known.filter(|known| key != own && known.work.is_live()) {
        return Some(recorded(node, &joining(&node.record, (key, first), Source::of(notice, message))?));
    }
    let is_kept = |known: &NoticeRecord| match known.work {
        Work::Planned => plan.is_none(),
        Work::Withdrawn => known.since >= Some(whole_seconds(notice.at())),
        _ => known.is_unreadable(),
    };
    if known.is_some_and(is_kept) {
        return None;
    }
    let new = || {
        let record = NoticeRecord::new(notice.kind().as_str().to_owned(), notice.at(), message.to_owned());
        NoticeRecord { work: Work::Handled, ..record }
    };
    let record = known.filter(|known| known.work.is_live()).map_or_else(new, NoticeRecord::clone);
    let (start, named) = (notice.start().map(whole_seconds), notice.named_time().map(whole_seconds));
    let named = named.filter(|named| start != Some(*named));
    let left = Some(NoticeRecord { start, named, ..record }.ended());
    Some(recorded(node, &[RecordChange { key: own, left }]))
}

/// Returns the patch that removes the record that the notice needs nothing more, or its source from the record of another; `None` if there is
/// none.
#[must_use]
pub(super) fn removal(node: &Node, notice: &Notice) -> Option<Value> {
    let own = notice.key();
    let (key, known) = node.record.of(notice)?;
    if key != own {
        return known.also.has(own).then(|| recorded(node, &[RecordChange::leaves((key, known), own)]));
    }
    match known.work {
        Work::Handled => Some(recorded(node, &[RecordChange { key, left: None }])),
        Work::Ended => {
            let left = Some(NoticeRecord { work: Work::Open, ..known.clone() });
            Some(recorded(node, &[RecordChange { key, left }]))
        }
        _ => None,
    }
}

/// Whether the Node records that this notice needs nothing more.
#[must_use]
pub fn is_handled(node: &Node, notice: &Notice) -> bool {
    node.record.of(notice).is_some_and(|(_, known)| known.is_over(notice.named_time()))
}

/// Returns what is known about a message's notice that announces the same as the agent notice `reported`.
#[must_use]
pub fn known_as(node: &Node, reported: &Notice) -> Option<KnownNotice> {
    if is_handled(node, reported) {
        return Some(KnownNotice::Handled);
    }
    node.record.notice(reported.key()).map(|_| KnownNotice::Same(reported.identity.clone()))
}
