//! The deadlines of the interruptions that share a drain. Each adds its own, and may move it. Marks on the Node show the hooks that other
//! replicas keep alive.

use super::deadline::{Deadline, Plan};
use super::pod_times::PodTimes;
use super::recorder::Progress;
use super::remaining::Remaining;
use super::tier::Tier;
use crate::pipeline::event::NoticeKey;
use crate::pipeline::node::record::Record;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// The deadlines and the progress of a drain.
#[derive(Debug)]
pub struct Deadlines {
    plan: watch::Sender<Plan>,
    entries: Mutex<Entries>,
    /// The progress.
    pub progress: Progress,
}

#[derive(Debug, Default)]
struct Entries {
    deadlines: BTreeMap<u64, Deadline>,
    /// The pods that are left, and the time that they need.
    pods: PodTimes,
    remaining: Remaining,
    /// Fixed ends of the capacity of the interruptions that have left at their soft deadline: they hold until AWS revises the
    /// notice.
    fixed_ends: BTreeMap<NoticeKey, Instant>,
    /// The keys of the notices that this process knows to be over for the drain: what their marks record of a hook doesn't count.
    over: BTreeSet<NoticeKey>,
    /// The keys of the notices of this process's interruptions, and whether the Node has carried them.
    own: BTreeMap<u64, (NoticeKey, bool)>,
    /// The keys of the notices that hold the Node.
    on_node: BTreeSet<NoticeKey>,
    /// The ends of hooks by the notices that hold the Node.
    marked: Vec<(NoticeKey, Instant)>,
}

impl Entries {
    /// Returns the latest end of a hook that another replica keeps alive, perhaps in place of this process.
    fn elsewhere(&self) -> Option<Instant> {
        let is_own = |key: &NoticeKey| self.own.values().any(|(own, _)| own == key);
        let others = self.marked.iter().filter(|(key, _)| !self.over.contains(key) && !is_own(key));
        others.map(|(_, ends)| *ends).max()
    }
}

impl Deadlines {
    /// The deadlines of a drain that starts with this one.
    #[must_use]
    pub fn new(first: Deadline) -> Self {
        Self { plan: watch::Sender::new(first.into()), entries: Mutex::default(), progress: Progress::default() }
    }

    /// The drain's plan, as it changes.
    #[must_use]
    pub fn plan(&self) -> watch::Receiver<Plan> {
        self.plan.subscribe()
    }

    /// Adds the deadline of the notice with this key, until the entry is dropped.
    pub fn add(self: &Arc<Self>, key: NoticeKey, deadline: Deadline) -> DeadlineEntry {
        let mut entries = self.entries.lock();
        entries.fixed_ends.remove(&key);
        entries.over.remove(&key);
        let id = entries.deadlines.last_key_value().map_or(0, |(id, _)| id + 1);
        entries.own.insert(id, (key, false));
        self.insert(&mut entries, id, deadline);
        DeadlineEntry { deadlines: Arc::clone(self), id, key, own: deadline }
    }

    /// Whether the Node carries, or has carried, the mark of a current interruption of this process. Marks of those that have left don't
    /// count.
    pub(super) fn has_had_mark(&self, record: &Record) -> bool {
        let mut entries = self.entries.lock();
        for (key, is_seen) in entries.own.values_mut() {
            *is_seen |= record.notice(*key).is_some();
        }
        entries.own.values().any(|(_, is_seen)| *is_seen)
    }

    /// Changes the times of the pods that are left, and puts off the deadlines that can make room for them.
    pub(super) fn change_pods(&self, change: impl FnOnce(&mut PodTimes)) {
        let mut entries = self.entries.lock();
        change(&mut entries.pods);
        let end = self.plan.borrow().hooks_end();
        entries.remaining = entries.pods.remaining(Instant::now(), end);
        self.settle(&entries);
    }

    /// Returns the time in which the pods of `tier` and of those after it can stop, one tier after the other.
    pub(super) fn needed_from(&self, tier: Tier) -> Duration {
        self.entries.lock().pods.needed_from(tier, Instant::now())
    }

    /// Sets the notices that hold the Node, and the ends of the hooks that they record. Marks of this process's interruptions don't
    /// count, because it knows more. A removed mark removes its notice's fixed end.
    pub(super) fn take_marks(&self, all: BTreeSet<NoticeKey>, hooks: Vec<(NoticeKey, Instant)>) {
        let mut entries = self.entries.lock();
        for gone in entries.on_node.difference(&all).copied().collect::<Vec<_>>() {
            entries.fixed_ends.remove(&gone);
        }
        (entries.on_node, entries.marked) = (all, hooks);
        self.settle(&entries);
    }

    fn insert(&self, entries: &mut Entries, id: u64, deadline: Deadline) {
        entries.deadlines.insert(id, deadline);
        self.settle(entries);
    }

    fn settle(&self, entries: &Entries) {
        let all = entries.deadlines.values().map(|deadline| deadline.lengthened(entries.remaining));
        // The other replicas' hooks make room for the same pods by default.
        let pods = if all.clone().any(Deadline::has_room) { entries.remaining } else { Remaining::default() };
        let elsewhere = entries.elsewhere().map(|ends| pods.after(ends).map_or(ends, |end| end.max(ends)));
        // Without an entry the drain is on its way out, and its last plan stands.
        if let Some(plan) = Plan::of(all, entries.fixed_ends.values().copied().min(), elsewhere) {
            self.plan.send_if_modified(|current| std::mem::replace(current, plan) != plan);
        }
    }
}

/// An interruption's deadline in a drain.
#[derive(Debug)]
pub struct DeadlineEntry {
    deadlines: Arc<Deadlines>,
    id: u64,
    /// The notice's key.
    key: NoticeKey,
    own: Deadline,
}

impl DeadlineEntry {
    /// Moves the deadline.
    pub fn set(&mut self, deadline: Deadline) {
        self.own = deadline;
        self.deadlines.insert(&mut self.deadlines.entries.lock(), self.id, deadline);
    }

    /// Whether another lifecycle hook keeps the instance.
    #[must_use]
    pub fn has_other_hook(&self) -> bool {
        let entries = self.deadlines.entries.lock();
        let is_other = |(id, deadline): (&u64, &Deadline)| *id != self.id && matches!(deadline, Deadline::Hook(_));
        entries.deadlines.iter().any(is_other) || entries.elsewhere().is_some_and(|ends| ends > Instant::now())
    }

    /// Ends this interruption's part in the drain, because its soft deadline has passed or its lifecycle action is over. Leaves the end of the
    /// capacity, if it is known, to the drain. If the entry is dropped instead, another replica may continue for the notice.
    pub fn outlive(self) {
        let mut entries = self.deadlines.entries.lock();
        entries.over.insert(self.key);
        entries.fixed_ends.extend(self.own.fixed_end().map(|ends| (self.key, ends)));
    }

    /// Returns the deadline, with the room that the drain has made for its pods.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        self.own.lengthened(self.deadlines.entries.lock().remaining)
    }
}

impl Drop for DeadlineEntry {
    fn drop(&mut self) {
        let mut entries = self.deadlines.entries.lock();
        entries.deadlines.remove(&self.id);
        entries.own.remove(&self.id);
        self.deadlines.settle(&entries);
    }
}
