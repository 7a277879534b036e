//! Which notification follows from a fact, and when. Pure: it neither waits nor sends.
//!
//! Within a process each phase of a node is sent once. Between processes two rules keep it so. The ids of notifications derive from
//! AWS's ids, so that receivers can recognise copies. And a notice is not sent if the message was received before and the Node was
//! cordoned before: an earlier receiver got far enough to send it.

use super::NotifySettings;
use super::episode::{End, Episode, Verdict, Work};
use super::event::{About, Event, Pool};
use super::format::Format;
use super::notification::{BlockedPod, Notification};
use super::phases::Phases;
use super::storm::FoldedStorm;
use super::words::Writer;
use crate::fact::NotificationPhase::{self, Done, Failed, Notice};
use crate::fact::{Action, NoticeOutcome};
use crate::runtime::clock::Clock;
use crate::telemetry::history::storm::Gauge;
use crate::telemetry::kube_events::MIN_BLOCKED_TIME;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Time that a notice is kept back for the cordon, which shows whether an earlier receiver was here.
const NOTICE_DELAY: Duration = Duration::from_secs(3);

/// Time for which an ended node is remembered. For as long a late copy of a notice starts no work either.
const MEMORY: Duration = Duration::from_mins(15);

/// Maximum number of nodes that are remembered, about 1 kB each. Further ones get no notifications.
const MAX_NODES: usize = 4096;

/// Maximum number of messages that are remembered as tests, or as received before.
const MAX_MESSAGES: usize = 1024;

type Key = (Box<str>, Work);

/// The state of all nodes.
#[derive(Debug)]
pub(super) struct Tracker {
    settings: Arc<NotifySettings>,
    clock: Clock,
    writer: Writer,
    nodes: HashMap<Key, Episode>,
    /// When to check a node again. Old entries have no effect.
    timers: BinaryHeap<Reverse<(Instant, Key)>>,
    /// The nodes that have ended, the oldest first.
    ended: VecDeque<(Instant, Key)>,
    redelivered: Recent,
    tests: Recent,
    gauge: Gauge,
    storm: Option<FoldedStorm>,
    ready: Vec<Notification>,
}

/// The last few of many messages.
#[derive(Debug, Default)]
struct Recent(VecDeque<Box<str>>);

impl Recent {
    fn add(&mut self, message: Box<str>) {
        if !self.has(&message) {
            self.0.push_back(message);
        }
        if self.0.len() > MAX_MESSAGES {
            self.0.pop_front();
        }
    }

    fn has(&self, message: &str) -> bool {
        self.0.iter().any(|known| **known == *message)
    }
}

impl Tracker {
    pub(super) fn new(settings: Arc<NotifySettings>, clock: Clock) -> Self {
        let writer = Writer::new(&settings, clock);
        Self {
            settings,
            clock,
            writer,
            nodes: HashMap::new(),
            timers: BinaryHeap::new(),
            ended: VecDeque::new(),
            redelivered: Recent::default(),
            tests: Recent::default(),
            gauge: Gauge::default(),
            storm: None,
            ready: Vec::new(),
        }
    }

    /// Returns the notifications to send.
    pub(super) fn take_ready(&mut self) -> Vec<Notification> {
        std::mem::take(&mut self.ready)
    }

    /// Returns when [`Tracker::tick`] has something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        let node = self.timers.peek().map(|Reverse((at, _))| *at);
        let storm = self.storm.as_ref().map(|storm| storm.due(self.clock));
        [node, storm].into_iter().flatten().min()
    }

    pub(super) fn note(&mut self, event: Event) {
        match event {
            Event::Redelivered { message } => self.redelivered.add(message),
            Event::Test { message } => self.tests.add(message),
            Event::Begun { about, action, deadline, pool } => self.begin(about, action, deadline, pool),
            Event::Cordoned { about, already } => self.cordoned(&about, already),
            Event::PodBlocked { instance, node, pod, uid, by, deadline } => {
                let key = (instance, Work::Drain);
                let Some(episode) = self.nodes.get_mut(&key).filter(|episode| !episode.is_over()) else { return };
                episode.deadline = Some(deadline);
                episode.about.node.get_or_insert_with(|| node.clone());
                episode.block(uid, BlockedPod { node: node.into(), pod: pod.into(), by: by.into() });
                if episode.blocked_due.is_none() && !episode.sent.has(NotificationPhase::Blocked) {
                    let due = Instant::now() + MIN_BLOCKED_TIME;
                    episode.blocked_due = Some(due);
                    self.timers.push(Reverse((due, key)));
                }
            }
            Event::PodUnblocked { instance, uid } => {
                if let Some(episode) = self.nodes.get_mut(&(instance, Work::Drain)) {
                    episode.unblock(&uid);
                }
            }
            Event::DrainEnded { instance, report } => {
                if let Some(episode) = self.nodes.get_mut(&(instance, Work::Drain)) {
                    episode.report = Some(report);
                }
            }
            Event::Ended { about, outcome, took, waited } => self.end(about, outcome, took, waited),
            Event::Released { instance } => {
                for work in Work::ALL {
                    let key = (instance.clone(), work);
                    if self.nodes.get(&key).is_some_and(Episode::is_over) {
                        self.nodes.remove(&key);
                    }
                }
            }
        }
    }

    /// Creates the notifications that are due, and forgets old nodes.
    pub(super) fn tick(&mut self) {
        let now = Instant::now();
        while self.timers.peek().is_some_and(|Reverse((at, _))| *at <= now) {
            let Some(Reverse((_, key))) = self.timers.pop() else { break };
            self.look_at(&key, now);
        }
        while self.ended.front().is_some_and(|(at, _)| *at + MEMORY <= now) {
            self.forget_oldest();
        }
        let Some(storm) = &mut self.storm else { return };
        while let Some(phase) = storm.phase() {
            self.ready.push(self.writer.storm(phase, storm));
        }
        if storm.is_over(self.clock.now()) {
            self.end_storm();
        }
    }

    /// The process ends: no other process sends what is kept back here.
    pub(super) fn finish(&mut self) {
        let pending: Vec<Key> =
            self.nodes.iter().filter(|(_, node)| node.notice_due.is_some()).map(|(key, _)| key.clone()).collect();
        for key in pending {
            self.announce_notice(&key);
        }
        let continues_elsewhere = self.storm.as_ref().is_some_and(|storm| !storm.is_whole() && !storm.has_failed());
        // Another replica continues, and reports what it finds. Only an alert must not stay: there it gets another key.
        if continues_elsewhere && self.settings.format != Format::PagerDuty {
            self.storm = None;
        }
        self.end_storm();
    }

    fn begin(&mut self, about: About, action: Action, deadline: Option<(Instant, bool)>, pool: Pool) {
        let Some(work) = Work::of(action) else { return };
        let (kind, message) = (about.kind, about.message.clone());
        let key = (about.instance.clone(), work);
        let chosen = self.settings.phases.of(kind);
        // A clock that jumped makes interruptions begin again.
        let is_new = self.nodes.get(&key).is_none_or(Episode::is_over);
        if let Some(known) = self.nodes.get_mut(&key) {
            known.join(about, action, deadline);
        } else if self.nodes.len() < MAX_NODES || self.forget_oldest() {
            self.nodes.insert(key.clone(), Episode::new(about, action, deadline));
        }
        let Some(episode) = self.nodes.get_mut(&key) else { return };
        episode.chosen = episode.chosen.or(chosen);
        if !pool.instance_type.is_empty() {
            episode.pool = pool;
        }
        episode.is_test |= self.tests.has(&message);
        episode.is_again |= self.redelivered.has(&message);
        if is_new {
            self.count(&key);
        }
        let Some(episode) = self.nodes.get_mut(&key) else { return };
        if episode.wants(Notice) && episode.notice_due.is_none() {
            let due = Instant::now() + NOTICE_DELAY;
            episode.notice_due = Some(due);
            self.timers.push(Reverse((due, key)));
        }
    }

    /// Counts a node whose work begins, and folds it into a storm.
    fn count(&mut self, key: &Key) {
        let now = self.clock.now();
        let begun = self.gauge.count(now);
        if let Some(storm) = self.storm.as_mut().filter(|storm| storm.includes(now)) {
            if let Some(episode) = self.nodes.get_mut(key).filter(|episode| episode.sent.is_empty()) {
                storm.take(episode, self.clock);
            }
            return;
        }
        let Some(since) = begun else { return };
        self.end_storm();
        let mut storm = FoldedStorm::new(since);
        // Nodes with a notification of their own keep theirs to the end.
        let mut fresh: Vec<&mut Episode> = self
            .nodes
            .values_mut()
            .filter(|node| node.sent.is_empty() && !node.is_folded && self.clock.timestamp_of(node.begun) >= since)
            .collect();
        fresh.sort_by_key(|node| node.begun);
        for episode in fresh {
            storm.take(episode, self.clock);
        }
        self.storm = Some(storm);
    }

    fn cordoned(&mut self, about: &About, already: bool) {
        for work in [Work::Drain, Work::Cordon] {
            let key = (about.instance.clone(), work);
            let Some(episode) = self.nodes.get_mut(&key).filter(|episode| episode.runs(&about.message)) else {
                continue;
            };
            episode.about.node = episode.about.node.take().or_else(|| about.node.clone());
            if already && self.redelivered.has(&about.message) {
                episode.notice_due = None;
                episode.sent = episode.sent.with(Notice);
            } else if episode.notice_due.is_some() {
                self.announce_notice(&key);
            }
        }
    }

    fn look_at(&mut self, key: &Key, now: Instant) {
        let Some(episode) = self.nodes.get_mut(key) else { return };
        if episode.blocked_due.take_if(|due| *due <= now).is_some() && episode.is_blocked() {
            if let Some(storm) = self.storm.as_mut().filter(|_| episode.is_folded) {
                episode.sent = episode.sent.with(NotificationPhase::Blocked);
                storm.block(episode);
            } else if episode.wants(NotificationPhase::Blocked) {
                self.announce(key, NotificationPhase::Blocked);
            }
        }
        if self.nodes.get(key).is_some_and(|episode| episode.notice_due.is_some_and(|due| due <= now)) {
            self.announce_notice(key);
        }
    }

    fn end(&mut self, about: About, outcome: NoticeOutcome, took: Duration, waited: Box<str>) {
        let found = Work::ALL.map(|work| (about.instance.clone(), work)).into_iter();
        let Some(key) = found.into_iter().find(|key| self.nodes.get(key).is_some_and(|node| node.runs(&about.message)))
        else {
            return;
        };
        let verdict = Verdict::on(outcome);
        if verdict >= Verdict::Done {
            self.announce_notice(&key);
        }
        let Some(episode) = self.nodes.get_mut(&key) else { return };
        episode.ends(&about.message, about.node, End { kind: about.kind, outcome, took, waited });
        let is_over = episode.is_over();
        if verdict == Verdict::Failed && episode.wants(Failed) {
            self.announce(&key, Failed);
        }
        if is_over {
            self.end_node(key);
        }
    }

    /// All notices of a node have ended.
    fn end_node(&mut self, key: Key) {
        let Some(episode) = self.nodes.get_mut(&key) else { return };
        let pages = self.settings.format == Format::PagerDuty;
        if let Some(storm) = self.storm.as_mut().filter(|_| episode.is_folded) {
            storm.end(episode, self.clock);
            let ended_well = |end: &End| matches!(Verdict::on(end.outcome), Verdict::Done | Verdict::Settled);
            // An alert that an earlier receiver raised has the node's own key.
            if pages && episode.is_again && episode.chosen.has(Done) && episode.end.as_ref().is_some_and(ended_well) {
                self.announce(&key, Done);
            }
        } else if let Some(end) = &episode.end {
            let matters = match Verdict::on(end.outcome) {
                // PagerDuty needs no resolution without an alert.
                Verdict::Done | Verdict::Settled if pages => !episode.sent.is_empty() || episode.is_again,
                Verdict::Done => true,
                Verdict::Settled => !episode.sent.is_empty(),
                Verdict::Failed | Verdict::Silent => false,
            };
            if matters && episode.wants(Done) {
                self.announce(&key, Done);
            }
        }
        self.ended.push_back((Instant::now(), key));
    }

    fn announce_notice(&mut self, key: &Key) {
        let Some(episode) = self.nodes.get_mut(key) else { return };
        if episode.notice_due.take().is_some() && episode.wants(Notice) {
            self.announce(key, Notice);
        }
    }

    fn announce(&mut self, key: &Key, phase: NotificationPhase) {
        let Some(episode) = self.nodes.get_mut(key) else { return };
        episode.sent = episode.sent.with(phase);
        self.ready.push(self.writer.node(phase, episode));
    }

    /// Reports the end of the storm. What still runs is reported by itself from now on.
    fn end_storm(&mut self) {
        let Some(mut storm) = self.storm.take() else { return };
        let (now, mut failed) = (Instant::now(), Vec::new());
        for (key, episode) in self.nodes.iter_mut().filter(|(_, episode)| episode.is_folded) {
            episode.is_folded = false;
            if episode.is_over() {
                // The storm's end was theirs.
                episode.sent = Phases::of(&NotificationPhase::ALL);
                continue;
            }
            episode.sent = Phases::of(&[Notice]);
            if episode.is_blocked() {
                episode.blocked_due = Some(now);
                self.timers.push(Reverse((now, key.clone())));
            }
            // One of its notices has failed, and another one is still worked on.
            if episode.end.as_ref().is_some_and(|end| Verdict::on(end.outcome) == Verdict::Failed) {
                failed.push(key.clone());
            }
        }
        if let Some(phase) = storm.last_phase() {
            self.ready.push(self.writer.storm(phase, &storm));
        }
        for key in failed {
            if self.nodes.get(&key).is_some_and(|episode| episode.wants(Failed)) {
                self.announce(&key, Failed);
            }
        }
    }

    /// Forgets the node that ended first, if it has not begun again. Returns whether there was one.
    fn forget_oldest(&mut self) -> bool {
        let Some((_, key)) = self.ended.pop_front() else { return false };
        if self.nodes.get(&key).is_some_and(Episode::is_over) && !self.ended.iter().any(|(_, other)| *other == key) {
            self.nodes.remove(&key);
        }
        true
    }
}

#[cfg(test)]
mod tests;
