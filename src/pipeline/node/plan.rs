//! Writes planned changes on Nodes: an annotation keeps the notice until the change is near, so any replica can act on it after any
//! restart. Pure.

use super::Node;
use super::patch::recorded;
use super::record::{KeptChange, NoticeRecord, RecordChange, Source, Work, joining, whole_seconds};
use crate::pipeline::event::{Detail, Identity, InstanceId, Notice, NoticeKey, NoticeTime, ScheduledChange};
use serde_json::Value;

/// Returns the record that keeps a notice on its Node until its change is near; `None` if it has no known start.
#[must_use]
pub fn of(notice: &Notice, message: &str) -> Option<NoticeRecord> {
    let kept = Some(Box::new(KeptChange::of(notice)?));
    let record = NoticeRecord::new(notice.kind().as_str().to_owned(), notice.at(), message.to_owned());
    let hard = matches!(&notice.detail, Detail::ScheduledChange(change) if change.hard);
    // AWS's exact times, so that the notice is made again as it was.
    Some(NoticeRecord {
        since: Some(notice.at()),
        start: Some(notice.start()?),
        hard,
        work: Work::Planned,
        kept,
        ..record
    })
}

/// Returns the plan of a change that its Node keeps, as before the work on it; `None` if it keeps none.
pub(super) fn again(known: &NoticeRecord) -> Option<NoticeRecord> {
    let kept = Some(known.kept.clone()?);
    Some(NoticeRecord { work: Work::Planned, hard: known.hard, kept, ..known.remembered() })
}

/// Returns the notice that the record keeps for the instance of the Node; `None` if it keeps none.
#[must_use]
pub fn notice(record: &NoticeRecord, instance: &InstanceId) -> Option<Notice> {
    let (kept, since) = (record.kept.as_ref()?, record.since?);
    let (code, start) = (kept.code.clone(), Some(record.start?));
    let change = ScheduledChange { code, start, hard: record.hard, withdrawn: false, is_issue: false };
    let identity = Identity::of_change(kept.event.clone(), instance.clone());
    let time = match identity {
        Identity::Ec2Event { .. } => NoticeTime::Seen(since),
        _ => NoticeTime::Announced(since),
    };
    Some(Notice::new(identity, instance.clone(), time, Detail::ScheduledChange(change)))
}

/// Returns the patch that keeps the change on the Node; `None` if the Node has it, or that of a newer copy of the notice, or no room. A Node
/// that the notice holds already is not planned for.
#[must_use]
pub fn patch(plan: &NoticeRecord, node: &Node) -> Option<Value> {
    let notice = notice(plan, &node.instance)?;
    let (key, since, found) = (notice.key(), plan.since.map(whole_seconds), node.record.of(&notice));
    if let Some(first) = found.filter(|(first, known)| *first != key && known.work.is_live()) {
        return Some(recorded(node, &joining(&node.record, first, Source::of(&notice, &plan.message))?));
    }
    let is_new = found.is_none_or(|(_, known)| match known.work {
        // AWS's times have no more than seconds, and a change is cancelled after its announcement.
        Work::Withdrawn => known.since < since,
        Work::Handled => !known.is_over(plan.start) && known.since <= since,
        _ => known.start != plan.start && known.since <= plan.since,
    });
    (is_new && fits(plan, node)).then(|| recorded(node, &[RecordChange { key, left: Some(plan.clone()) }]))
}

/// Returns the patch with which the Node no longer keeps the change, unless a newer copy of the notice has replaced it. What holds the Node
/// stays.
#[must_use]
pub fn removal(plan: &NoticeRecord, node: &Node) -> Option<Value> {
    let key = key(plan, node)?;
    let start = |record: &NoticeRecord| record.start.map(whole_seconds);
    let is_same = |known: &&NoticeRecord| known.kept == plan.kept && start(known) == start(plan);
    let known = node.record.live(key).filter(is_same)?;
    let left = NoticeRecord { kept: None, ..known.clone() };
    let left = Some(left).filter(|left| left.work != Work::Planned);
    Some(recorded(node, &[RecordChange { key, left }]))
}

/// Whether the Node keeps it, or has room for it. A change that is not kept is acted on at once.
#[must_use]
pub fn fits(plan: &NoticeRecord, node: &Node) -> bool {
    let Some(notice) = notice(plan, &node.instance) else { return false };
    let live = node.record.of(&notice).map(|(_, known)| known).filter(|known| known.work.is_live());
    live.map_or_else(|| !node.record.is_full_of(Work::Planned), |known| known.kept.is_some())
}

fn key(plan: &NoticeRecord, node: &Node) -> Option<NoticeKey> {
    Some(notice(plan, &node.instance)?.key())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::event::{Parsed, parse};

    fn notice() -> Notice {
        let body = include_str!("../../../tests/fixtures/events/health-stop.json");
        let Parsed::Notices(mut notices) = parse(body) else { panic!("{body}") };
        notices.next().unwrap()
    }

    #[test]
    fn a_plan_keeps_the_notice_on_the_node() {
        let notice = notice();
        let mut node = Node { instance: notice.instance.clone(), ..Node::for_tests("node-1") };
        let plan = of(&notice, "m-1").unwrap();
        let patch = patch(&plan, &node).unwrap();
        assert!(patch.get("spec").is_none(), "no cordon: {patch}");
        let written = patch["metadata"]["annotations"].as_object().unwrap().iter().next().unwrap();
        node.record.insert(written.0.clone(), written.1.as_str().unwrap());
        assert_eq!(
            node.record.kept().filter_map(|plan| super::notice(plan, &node.instance)).collect::<Vec<_>>(),
            [notice]
        );
        assert_eq!(super::patch(&plan, &node), None);
        let hour = std::time::Duration::from_hours(1);
        let later = NoticeRecord { start: plan.start.map(|start| start + hour), ..plan.clone() };
        assert!(super::patch(&later, &node).is_some() && removal(&later, &node).is_none());
        let older = NoticeRecord { since: plan.since.map(|since| since - hour), ..later };
        assert_eq!(super::patch(&older, &node), None, "AWS has said something else since");
        assert!(removal(&plan, &node).is_some());
        node.record.insert(written.0.clone(), "{");
        assert_eq!(node.record.kept().count(), 0);
    }
}
