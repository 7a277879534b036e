//! The interruptions of a history, and what facts do to them.

use super::changes::Changes;
use super::day::Day;
use super::entry::{Deadline, Drain, Entry, MAX_SIZE, Outcome};
use super::failures::Failures;
use super::records::Records;
use super::storm::{Gauge, MAX_STORMS, Storm};
use super::{MAX_BYTES, Since, report};
use crate::fact::{Action, NodeRef, NoticeOutcome, NoticeRef, RecordedNotice};
use jiff::Timestamp;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

/// All interruptions.
#[derive(Debug)]
pub(super) struct State {
    /// By their numbers: the order in which they began.
    entries: BTreeMap<u64, Entry>,
    /// The running work, by the ids of instances.
    subjects: HashMap<Arc<str>, Subject>,
    /// The newest last.
    storms: VecDeque<Storm>,
    gauge: Gauge,
    pub(super) day: Day,
    pub(super) changes: Changes,
    records: Records,
    /// Size of all interruptions and drains.
    bytes: usize,
    /// Number of interruptions that run and were forgotten, because there was no room. Each was in a storm.
    untracked: usize,
    pub(super) failures: Failures,
}

/// The running work for one instance.
#[derive(Debug, Default)]
struct Subject {
    /// The numbers of its interruptions.
    running: Vec<u64>,
    drains: Vec<Drain>,
}

impl State {
    pub(super) fn new(now: Timestamp) -> Self {
        Self {
            entries: BTreeMap::new(),
            subjects: HashMap::new(),
            storms: VecDeque::new(),
            gauge: Gauge::default(),
            day: Day::new(now),
            changes: Changes::default(),
            records: Records::default(),
            bytes: 0,
            untracked: 0,
            failures: Failures::default(),
        }
    }

    pub(super) fn begins(&mut self, about: &NoticeRef<'_>, action: Action, deadline: Option<Deadline>, now: Timestamp) {
        // It begins again after AWS has revised the notice, or after a handover to this process.
        if let Some(number) = self.number_of(about) {
            return self.change_entry(number, |entry| (entry.action, entry.deadline) = (Some(action), deadline));
        }
        let number = self.insert(about, now);
        self.records.acts(about.instance, true, &mut self.changes);
        self.change_entry(number, |entry| (entry.action, entry.deadline) = (Some(action), deadline));
        if let Some(entry) = self.entries.get(&number) {
            self.subjects.entry(Arc::clone(&entry.instance)).or_default().running.push(number);
        }
    }

    pub(super) fn joins(&mut self, about: &NoticeRef<'_>) {
        let running = self.subjects.get(about.instance).map_or(&[][..], |subject| &subject.running);
        let same =
            running.iter().copied().find(|number| self.entries.get(number).is_some_and(|it| it.kind == about.kind));
        if let Some(number) = same {
            self.change_entry(number, |entry| entry.copies += 1);
        }
    }

    pub(super) fn ends(
        &mut self,
        about: &NoticeRef<'_>,
        outcome: NoticeOutcome,
        waited: &str,
        (since, now): (Timestamp, Timestamp),
    ) {
        let known = self.number_of(about);
        if known.is_none() && matches!(outcome, NoticeOutcome::NotOurs | NoticeOutcome::Ignored) {
            return;
        }
        if outcome.is_failure() {
            self.day.fails(now);
            self.failures.add(about, outcome, now);
        }
        if known.is_none() && self.untracked > 0 {
            self.untracked -= 1;
            if let Some(storm) = self.storms.back_mut() {
                storm.ends(about.node.unwrap_or(about.instance), about.kind, outcome, (since, now));
                storm.revision = self.changes.add();
            }
            return;
        }
        let number = known.unwrap_or_else(|| self.insert(about, since));
        let drains = self.leave_subject(number);
        self.change_entry(number, |entry| {
            entry.names_node(about.node);
            entry.ends(now, outcome, waited, drains);
        });
        let Some(entry) = self.entries.get(&number) else { return };
        if entry.is_settled() {
            self.records.settle(about.instance, about.kind);
        }
        let acts = self.subjects.contains_key(about.instance);
        self.records.acts(about.instance, acts, &mut self.changes);
        if let Some(storm) = entry.storm
            && let Some(storm) = self.storms.iter_mut().find(|known| known.number == storm)
        {
            storm.ends(entry.name(), entry.kind, outcome, (entry.since, now));
            storm.revision = self.changes.count();
            self.remove(number);
        }
    }

    /// Takes the notices that a Node has on record, and what holds its drain back.
    pub(super) fn is_recorded(
        &mut self,
        on: &NodeRef<'_>,
        record: (&[RecordedNotice<'_>], Option<&str>),
        now: Timestamp,
    ) {
        let acts = self.subjects.contains_key(on.instance);
        // The watch may be behind the end of short work.
        let has_ended = |kind| {
            let is_it = |entry: &Entry| entry.kind == kind && *entry.instance == *on.instance;
            self.entries.values().rev().find(|entry| is_it(entry)).is_some_and(Entry::is_settled)
        };
        self.records.update(on, record, (acts, has_ended), now, &mut self.changes);
    }

    /// Changes the running interruption of a notice.
    pub(super) fn change(&mut self, about: &NoticeRef<'_>, change: impl FnOnce(&mut Entry)) {
        if let Some(number) = self.number_of(about) {
            self.change_entry(number, change);
        }
    }

    /// Changes all running interruptions of a Node's instance.
    pub(super) fn change_all(&mut self, on: &NodeRef<'_>, change: impl Fn(&mut Entry)) {
        let running = self.subjects.get(on.instance).map(|subject| subject.running.clone());
        for number in running.unwrap_or_default() {
            self.change_entry(number, &change);
        }
    }

    pub(super) fn drain_begins(&mut self, on: &NodeRef<'_>, drain: Drain) {
        if let Some(subject) = self.subjects.get_mut(on.instance) {
            let known = subject.drains.iter().position(|known| known.uid == drain.uid);
            self.bytes += drain.size();
            if let Some(known) = known.map(|found| subject.drains.swap_remove(found)) {
                self.bytes -= known.size();
            }
            subject.drains.push(drain);
            self.touch_all(on);
        }
    }

    pub(super) fn change_drain(&mut self, on: &NodeRef<'_>, change: impl FnOnce(&mut Drain)) {
        let subject = self.subjects.get_mut(on.instance);
        let drain = subject.and_then(|subject| subject.drains.iter_mut().find(|drain| *drain.uid == *on.uid));
        if let Some(drain) = drain {
            self.bytes -= drain.size();
            change(drain);
            self.bytes += drain.size();
            self.change_all(on, |entry| entry.problem = None);
        }
    }

    fn touch_all(&mut self, on: &NodeRef<'_>) {
        self.change_all(on, |_| {});
    }

    fn number_of(&self, about: &NoticeRef<'_>) -> Option<u64> {
        let running = &self.subjects.get(about.instance)?.running;
        running.iter().copied().find(|number| self.entries.get(number).is_some_and(|entry| entry.is(about)))
    }

    /// Adds an interruption that begins, to its storm if there is one.
    fn insert(&mut self, about: &NoticeRef<'_>, since: Timestamp) -> u64 {
        self.day.begins(since);
        let mut entry = Entry::new(about, since);
        let storm_began = self.gauge.count(since);
        let is_in_storm = self.storms.back().is_some_and(|storm| storm.includes(since));
        if let (false, Some(began)) = (is_in_storm, storm_began) {
            self.begin_storm(began);
        }
        if let Some(storm) = self.storms.back_mut().filter(|storm| storm.includes(since)) {
            storm.begins(entry.kind, since);
            storm.revision = self.changes.add();
            entry.storm = Some(storm.number);
        }
        self.add(entry)
    }

    /// Makes a storm of what began since then.
    fn begin_storm(&mut self, began: Timestamp) {
        let mut storm = Storm::new(self.changes.number(), began);
        let is_in = |entry: &Entry| entry.since >= began;
        let mut ended = Vec::new();
        for (number, entry) in self.entries.iter_mut().filter(|(_, entry)| is_in(entry)) {
            storm.takes(entry);
            entry.storm = Some(storm.number);
            ended.extend(entry.end().map(|_| *number));
        }
        for number in ended {
            self.remove(number);
        }
        if self.storms.len() == MAX_STORMS {
            self.storms.pop_front();
        }
        self.storms.push_back(storm);
    }

    fn add(&mut self, entry: Entry) -> u64 {
        let number = self.changes.number();
        self.bytes += entry.size();
        self.entries.insert(number, entry);
        self.make_room();
        number
    }

    /// Forgets the oldest interruptions that have ended, until all fit; if that is not enough, those that run.
    fn make_room(&mut self) {
        while self.bytes + MAX_SIZE > MAX_BYTES {
            let oldest = self.entries.iter().find(|(_, it)| it.end.is_some()).map(|(number, _)| *number);
            let Some(number) = oldest.or_else(|| self.entries.first_key_value().map(|(number, _)| *number)) else {
                return;
            };
            self.leave_subject(number);
            self.untracked += usize::from(oldest.is_none());
            self.remove(number);
        }
    }

    fn change_entry(&mut self, number: u64, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.entries.get_mut(&number) {
            self.bytes -= entry.size();
            change(entry);
            entry.revision = self.changes.add();
            self.bytes += entry.size();
            self.make_room();
        }
    }

    fn remove(&mut self, number: u64) {
        if let Some(entry) = self.entries.remove(&number) {
            self.bytes -= entry.size();
            self.changes.remove(number);
        }
    }

    /// Takes an interruption out of those that run. Returns the drains of its instance with the last one.
    fn leave_subject(&mut self, number: u64) -> Vec<Drain> {
        let Some(entry) = self.entries.get(&number) else { return Vec::new() };
        let instance = Arc::clone(&entry.instance);
        let Some(subject) = self.subjects.get_mut(&instance) else { return Vec::new() };
        subject.running.retain(|running| *running != number);
        if !subject.running.is_empty() {
            return Vec::new();
        }
        let drains = self.subjects.remove(&instance).map(|subject| subject.drains).unwrap_or_default();
        self.bytes -= drains.iter().map(Drain::size).sum::<usize>();
        drains
    }

    /// Returns the drains that run or have just ended.
    pub(super) fn drains(&self) -> impl Iterator<Item = &Drain> + Clone {
        self.subjects.values().flat_map(|subject| &subject.drains)
    }

    /// Returns how many interruptions run.
    pub(super) fn running(&self) -> usize {
        self.subjects.values().map(|subject| subject.running.len()).sum()
    }

    /// Returns how many of them meet failures that are retried, or have a drain that ended badly.
    pub(super) fn troubled(&self) -> usize {
        let is_troubled = |subject: &Subject, number: &u64| {
            let ended_badly =
                |drain: &Drain| matches!(drain.outcome, Some(Outcome::Of(outcome)) if !outcome.is_success());
            subject.drains.iter().any(ended_badly)
                || self.entries.get(number).is_some_and(|entry| entry.problem.is_some())
        };
        self.subjects
            .values()
            .map(|subject| subject.running.iter().filter(|number| is_troubled(subject, number)).count())
            .sum()
    }

    /// Returns how many wait because AWS denies them.
    pub(super) fn denied(&self) -> usize {
        let running = self.subjects.values().flat_map(|subject| &subject.running);
        running.filter(|number| self.entries.get(number).is_some_and(|entry| entry.is_denied)).count()
    }

    /// Returns the interruption that ended last.
    pub(super) fn last_end(&self) -> Option<&Entry> {
        self.entries.values().filter(|entry| entry.end.is_some()).max_by_key(|entry| entry.end().map(|end| end.at))
    }

    /// Returns the drains on record that this replica does not act on.
    pub(super) fn recorded(&self, now: Timestamp) -> Vec<report::RecordedDrain> {
        self.records.drains(now)
    }

    /// Returns the rows of a report: interruptions, storms, and the ids of removed interruptions.
    pub(super) fn rows(
        &self,
        since: Since,
        replica: &str,
        now: Timestamp,
    ) -> (Vec<report::Interruption>, Vec<report::Storm>, Vec<String>) {
        let is_new = |revision: u64| match since {
            Since::Ever => true,
            Since::Change(known) => revision > known,
        };
        let id = |number: u64| format!("{replica}/{number}");
        let none = Subject::default();
        let row = |(number, entry): (&u64, &Entry)| {
            let subject = self.subjects.get(&entry.instance).unwrap_or(&none);
            entry.report(id(*number), replica, &subject.drains)
        };
        let new = || self.entries.iter().rev().filter(|(_, entry)| is_new(entry.revision));
        let running = new().filter(|(_, entry)| entry.end.is_none());
        let mut ended: Vec<_> = new().filter(|(_, entry)| entry.end.is_some()).collect();
        ended.sort_by_key(|(_, entry)| std::cmp::Reverse(entry.end().map(|end| end.at)));
        let mut interruptions: Vec<_> = running.map(row).collect();
        interruptions.extend(self.records.rows(is_new, id, replica, now));
        interruptions.extend(ended.into_iter().map(row));
        let storms = self.storms.iter().rev().filter(|storm| is_new(storm.revision));
        let storms = storms.map(|storm| storm.report(id(storm.number), replica)).collect();
        let removed = match since {
            Since::Ever => Vec::new(),
            Since::Change(known) => self.changes.removed_since(known).map(id).collect(),
        };
        (interruptions, storms, removed)
    }
}

#[cfg(test)]
impl State {
    /// Returns the size of all interruptions and drains, as counted.
    pub(super) const fn size(&self) -> usize {
        self.bytes
    }

    /// Asserts that the count is true, and that no interruption is too large.
    pub(super) fn check(&self) {
        let drains: usize = self.drains().map(Drain::size).sum();
        let entries: usize = self.entries.values().map(Entry::size).sum();
        assert_eq!(self.bytes, drains + entries);
        for entry in self.entries.values() {
            let drain = self.subjects.get(&entry.instance).and_then(|subject| subject.drains.first());
            let size = entry.size() + drain.map_or(0, Drain::size);
            assert!(size <= MAX_SIZE, "{size} bytes: {entry:?} {drain:?}");
        }
    }
}
