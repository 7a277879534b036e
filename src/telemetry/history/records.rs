//! The notices that Nodes have on record, whichever replica acts on them: what the watch sees.
//!
//! A notice is a row while this replica does not act on its instance and has not ended the work on it: then another replica acts on it, or
//! did before it ended.

use super::changes::Changes;
use super::entry::{MAX_INSTANCE, MAX_MESSAGE, MAX_NODE, MAX_REPORT};
use super::report;
use crate::fact::{NodeRef, NoticeKind, RecordedNotice};
use crate::telemetry::bounded::bounded;
use jiff::Timestamp;
use std::collections::BTreeMap;

/// Maximum number of Nodes, about half a kB each. Further ones are not shown.
const MAX_NODES: usize = 4096;

/// Maximum number of notices of a Node: others are not shown.
const MAX_NOTICES: usize = 8;

/// What Nodes have on record, by the ids of their instances: nearly always one Node each.
#[derive(Debug, Default)]
pub(super) struct Records(BTreeMap<Box<str>, Vec<NodeRecord>>);

#[derive(Debug)]
struct NodeRecord {
    node: Box<str>,
    uid: Box<str>,
    /// What holds its drain back.
    blocked: Option<Box<str>>,
    notices: Vec<Recorded>,
}

/// A notice on record.
#[derive(Debug)]
struct Recorded {
    kind: NoticeKind,
    message: Box<str>,
    since: Timestamp,
    deadline: Option<Timestamp>,
    is_open: bool,
    /// Whether this replica has ended the work on it: an entry of its own shows that.
    is_settled: bool,
    /// The number of its row, if it has one.
    row: Option<u64>,
    /// When it changed last, by the history's count of changes.
    revision: u64,
}

impl Recorded {
    fn is(&self, notice: &RecordedNotice<'_>) -> bool {
        self.kind == notice.kind && *self.message == *bounded(&notice.message, MAX_MESSAGE)
    }

    /// Whether a replica may drain the Node for it: the record does not show that a drain has ended before its deadline.
    fn may_be_drained(&self, now: Timestamp) -> bool {
        self.is_open && self.deadline.is_some_and(|deadline| deadline > now)
    }

    /// Gives it a row, or takes it away.
    fn show(&mut self, is_shown: bool, changes: &mut Changes) {
        match (is_shown && !self.is_settled, self.row) {
            (true, None) => (self.row, self.revision) = (Some(changes.number()), changes.add()),
            (false, Some(number)) => {
                self.row = None;
                changes.remove(number);
            }
            (true, Some(_)) | (false, None) => {}
        }
    }
}

impl Records {
    /// Takes what a Node has on record now. `acts`: whether this replica acts on its instance; `has_ended`: whether it has ended the work on a
    /// notice of this kind.
    pub(super) fn update(
        &mut self,
        on: &NodeRef<'_>,
        (notices, blocked): (&[RecordedNotice<'_>], Option<&str>),
        (acts, has_ended): (bool, impl Fn(NoticeKind) -> bool),
        now: Timestamp,
        changes: &mut Changes,
    ) {
        let instance = bounded(&on.instance, MAX_INSTANCE);
        let mut nodes = self.0.remove(&*instance).unwrap_or_default();
        let known = nodes.iter().position(|record| *record.uid == *on.uid).map(|at| nodes.swap_remove(at));
        let mut known = known.map(|record| record.notices).unwrap_or_default();
        let is_full = self.0.len() >= MAX_NODES;
        let revision = changes.add();
        let taken = notices.iter().take(MAX_NOTICES).map(|notice| {
            let before = known.iter().position(|known| known.is(notice)).map(|at| known.swap_remove(at));
            let mut recorded = Recorded {
                kind: notice.kind,
                message: bounded(&notice.message, MAX_MESSAGE).into(),
                since: notice.since.unwrap_or(now),
                deadline: notice.deadline,
                is_open: notice.is_open,
                is_settled: before.as_ref().map_or_else(|| !acts && has_ended(notice.kind), |before| before.is_settled),
                row: before.and_then(|before| before.row),
                revision,
            };
            recorded.show(!acts && !is_full, changes);
            recorded
        });
        let notices: Vec<_> = taken.collect();
        for gone in &mut known {
            gone.show(false, changes);
        }
        if !notices.is_empty() && !is_full {
            let blocked = blocked.map(|blocked| bounded(&blocked, MAX_REPORT).into());
            nodes.push(NodeRecord { node: bounded(&on.node, MAX_NODE).into(), uid: on.uid.into(), blocked, notices });
        }
        if !nodes.is_empty() {
            self.0.insert(instance.into(), nodes);
        }
    }

    /// Notes whether this replica acts on an instance.
    pub(super) fn acts(&mut self, instance: &str, acts: bool, changes: &mut Changes) {
        for notice in self.of(instance) {
            notice.show(!acts, changes);
        }
    }

    /// Notes that this replica has ended the work on a notice of this kind.
    pub(super) fn settle(&mut self, instance: &str, kind: NoticeKind) {
        for notice in self.of(instance).filter(|notice| notice.kind == kind) {
            notice.is_settled = true;
        }
    }

    fn of(&mut self, instance: &str) -> impl Iterator<Item = &mut Recorded> {
        self.0.get_mut(instance).into_iter().flatten().flat_map(|record| &mut record.notices)
    }

    /// Returns the drains that may run, and that this replica neither acts on nor has ended: one for each Node.
    pub(super) fn drains(&self, now: Timestamp) -> Vec<report::RecordedDrain> {
        let drain = |(instance, record): (&str, &NodeRecord)| {
            record.notices.iter().find(|notice| notice.row.is_some() && notice.may_be_drained(now))?;
            let (node, instance) = (record.node.to_string(), instance.to_owned());
            Some(report::RecordedDrain { node, instance, blocked: record.blocked.as_deref().map(ToOwned::to_owned) })
        };
        self.all().filter_map(drain).collect()
    }

    fn all(&self) -> impl Iterator<Item = (&str, &NodeRecord)> {
        self.0.iter().flat_map(|(instance, records)| records.iter().map(|record| (&**instance, record)))
    }

    /// Returns the rows that are new, by the revision of each. `id` makes the id of a number.
    pub(super) fn rows(
        &self,
        is_new: impl Fn(u64) -> bool,
        id: impl Fn(u64) -> String,
        replica: &str,
        now: Timestamp,
    ) -> Vec<report::Interruption> {
        let row = |instance: &str, record: &NodeRecord, notice: &Recorded| {
            let number = notice.row.filter(|_| is_new(notice.revision))?;
            let phase = if notice.may_be_drained(now) { report::ELSEWHERE } else { report::MARKED };
            Some(report::Interruption {
                id: id(number),
                replica: replica.to_owned(),
                message: notice.message.to_string(),
                kind: notice.kind.to_string(),
                action: None,
                instance: instance.to_owned(),
                node: Some(record.node.to_string()),
                copies: 0,
                since: notice.since,
                deadline: notice.deadline,
                hard: false,
                phase: phase.to_owned(),
                drains: Vec::new(),
                waits: Vec::new(),
                heartbeats: None,
                hook: None,
                problem: record.blocked.as_deref().map(ToOwned::to_owned),
                ended: None,
            })
        };
        let rows = self
            .all()
            .flat_map(|(instance, record)| record.notices.iter().map(move |notice| (instance, record, notice)));
        rows.filter_map(|(instance, record, notice)| row(instance, record, notice)).collect()
    }
}
