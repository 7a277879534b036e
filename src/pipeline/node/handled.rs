//! How a Node shows that a listed notice, an agent notice or a condition was acted on, by whichever replica. Pure.
//!
//! EC2 lists a change for weeks, and its mark may be removed earlier: after an uncordon or a restart. An annotation that stays records that
//! the notice needs nothing more, so that it is acted on once.

use super::Node;
use super::names::id_of;
use super::patch::guarded;
use super::record::{NoticeRecord, RecordChange, Work, whole_seconds};
use crate::pipeline::event::{Detail, Identity, Notice};
use jiff::Timestamp;
use serde_json::{Value, json};

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
    let key = notice.key();
    if notice.is_withdrawn() {
        let has_trace = node.record.get(key).is_some_and(|known| known.work != Work::Withdrawn);
        return if has_trace { Standing::Open } else { Standing::Settled };
    }
    let start = notice.named_time().map(whole_seconds);
    // The work for the start that AWS named before, or its plan, must learn of this one, whatever else has announced it.
    let known = node.record.live(key).and_then(|known| known.start);
    if start.is_some() && known.is_some_and(|known| Some(whole_seconds(known)) != start) {
        return Standing::Open;
    }
    // What EC2's last answer still lists, a message may have cancelled since.
    let is_cancelled = || node.record.withdrawals().any(|(_, by)| by.ends(start, notice.at()));
    if notice.is_listed_by_ec2() && is_cancelled() {
        return Standing::Settled;
    }
    // A message has another identity for the same change.
    if is_handled(node, notice) || notice.is_listed_by_ec2() && has_handled(node, notice) {
        return Standing::Settled;
    }
    if kept_ids(node, start).any(|id| notice.identity.ec2_id().as_deref() == Some(id)) {
        return Standing::Settled;
    }
    let is_announced = is_marked_by_other(node, notice, own) || kept_ids(node, start).next().is_some();
    if is_announced { Standing::Announced } else { Standing::Open }
}

/// Whether the Node has a mark for the same announcement as `notice` from a message or another source. `own` is the id that stands for a
/// message in the mark of this source.
fn is_marked_by_other(node: &Node, notice: &Notice, own: Option<&str>) -> bool {
    let start = notice.named_time().map(whole_seconds);
    let mut marks = node.record.notices().filter(|(_, mark)| mark.is_of(notice.kind()));
    marks.any(|(key, mark)| {
        let same = key == notice.key() || mark.start.is_some() && mark.start == start;
        // EC2's list and an agent name a change alike, and neither has a receipt: a replica that takes over continues the other's work.
        same && own.map(id_of) != Some(id_of(&mark.message))
    })
}

/// Returns what is known about the notice of a message, if it was acted on first because EC2 lists it.
#[must_use]
pub fn known(node: &Node, notice: &Notice) -> Option<KnownNotice> {
    let start = Some(whole_seconds(notice.named_time()?));
    match (&notice.identity, &notice.detail) {
        (
            Identity::HealthEvent { instance, .. } | Identity::Ec2Event { instance, .. },
            Detail::ScheduledChange(change),
        ) => {
            if node.record.live(notice.key()).is_some() {
                return None;
            }
            if !change.withdrawn && has_handled(node, notice) {
                return Some(KnownNotice::Handled);
            }
            let listed = |id: String| Identity::of_change(id, instance.clone());
            // The mark of a listed change names that change in place of a message.
            let marks = node.record.notices().filter(|(_, mark)| mark.is_of(notice.kind()) && mark.start == start);
            let mut marks = marks.map(|(key, mark)| (key, listed(id_of(&mark.message).to_owned())));
            let marked = marks.find(|(key, listed)| *key == listed.key());
            let mut kept = kept_ids(node, start).map(|id| listed(id.to_owned()));
            let kept = || kept.find(|listed| listed.ec2_id().is_some());
            marked.map(|(_, listed)| listed).or_else(kept).map(KnownNotice::Same)
        }
        (Identity::Block { .. }, _) => (is_handled(node, notice)
            && !is_marked_by_other(node, notice, notice.identity.ec2_id().as_deref()))
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
    let known = node.record.get(notice.key());
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
    Some(written(node, notice, Some(NoticeRecord { start, named, ..record }.ended())))
}

/// Returns the patch that removes the record that the notice needs nothing more; `None` if there is none.
#[must_use]
pub(super) fn removal(node: &Node, notice: &Notice) -> Option<Value> {
    let known = node.record.get(notice.key())?;
    match known.work {
        Work::Handled => Some(written(node, notice, None)),
        Work::Ended => Some(written(node, notice, Some(NoticeRecord { work: Work::Open, ..known.clone() }))),
        _ => None,
    }
}

fn written(node: &Node, notice: &Notice, left: Option<NoticeRecord>) -> Value {
    let changes = [RecordChange { key: notice.key(), left }];
    guarded(node, &node.record.annotations(&changes).into(), &json!({}), json!({}))
}

/// Whether the Node records that exactly this notice needs nothing more.
#[must_use]
pub fn is_handled(node: &Node, notice: &Notice) -> bool {
    node.record.get(notice.key()).is_some_and(|known| known.is_over(notice.named_time()))
}

/// Whether the Node records that some notice of the same time needs nothing more: that of a message, for a change that EC2 lists.
fn has_handled(node: &Node, notice: &Notice) -> bool {
    let named = notice.named_time();
    named.is_some() && node.record.all().any(|(_, known)| known.is_over(named))
}

/// Returns what is known about a message's notice that announces the same as the agent notice `reported`.
#[must_use]
pub fn known_as(node: &Node, reported: &Notice) -> Option<KnownNotice> {
    if is_handled(node, reported) {
        return Some(KnownNotice::Handled);
    }
    node.record.notice(reported.key()).map(|_| KnownNotice::Same(reported.identity.clone()))
}

/// Returns the ids under which the changes with this start are listed that the Node keeps, or their ARNs.
fn kept_ids(node: &Node, start: Option<Timestamp>) -> impl Iterator<Item = &str> {
    let kept = node.record.kept().filter(move |kept| start.is_some() && kept.start.map(whole_seconds) == start);
    kept.filter_map(|kept| Some(&*kept.kept.as_ref()?.event))
}
