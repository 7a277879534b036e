//! Which notification follows from a fact, and when. Pure: it neither waits nor sends.
//!
//! Within a process each phase of a node is sent once. Between processes two rules keep it so. The ids of notifications derive from
//! AWS's ids, so that receivers can recognise copies. And a notice is not sent if the message was received before and the Node was
//! cordoned before: an earlier receiver got far enough to send it.

use super::NotifySettings;
use super::episode::{End, Episode, Hold, Work};
use super::event::{About, Event, Pool};
use super::format::Format;
use super::notification::Notification;
use super::phases::Phases;
use super::storm::{FoldedStorm, MAX_CALM, MAX_TAIL, WINDOW};
use super::words::Writer;
use crate::fact::NotificationPhase::{self, Done, Failed, Notice};
use crate::fact::{Action, NoticeOutcome};
use crate::runtime::clock::Clock;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Time after the start of a node's work in which nothing of it is sent: a storm shows itself, and the cordon shows whether an earlier
/// receiver was here.
const HOLD: Duration = Duration::from_secs(3);

/// Time for which an ended node is remembered. For as long a late copy of a notice starts no work either.
const MEMORY: Duration = Duration::from_mins(15);

/// Maximum number of nodes that are remembered, about 1 kB each. Further ones are only counted, as dropped.
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
    storm: Option<FoldedStorm>,
    /// When to end the alert of a storm that a process which has died may have raised.
    left_alert: Option<Instant>,
    /// Number of begins that were not noted.
    untracked: usize,
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

/// Whether an end resolves an alert.
fn resolves_alerts(settings: &NotifySettings) -> bool {
    settings.format == Format::PagerDuty && settings.phases.any().has(Done)
}

impl Tracker {
    pub(super) fn new(settings: Arc<NotifySettings>, clock: Clock) -> Self {
        let writer = Writer::new(&settings, clock);
        Self {
            left_alert: resolves_alerts(&settings).then(|| Instant::now() + MAX_TAIL),
            settings,
            clock,
            writer,
            nodes: HashMap::new(),
            timers: BinaryHeap::new(),
            ended: VecDeque::new(),
            redelivered: Recent::default(),
            tests: Recent::default(),
            storm: None,
            untracked: 0,
            ready: Vec::new(),
        }
    }

    /// Returns the notifications to send.
    pub(super) fn take_ready(&mut self) -> Vec<Notification> {
        std::mem::take(&mut self.ready)
    }

    /// Returns the number of nodes that there was no room for since the last call.
    pub(super) const fn take_untracked(&mut self) -> usize {
        std::mem::replace(&mut self.untracked, 0)
    }

    /// Returns when [`Tracker::tick`] has something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        let node = self.timers.peek().map(|Reverse((at, _))| *at);
        let storm = self.storm.as_ref().and_then(FoldedStorm::due);
        [node, storm, self.left_alert].into_iter().flatten().min()
    }

    pub(super) fn note(&mut self, event: Event) {
        match event {
            Event::Redelivered { message } => self.redelivered.add(message),
            Event::Test { message } => self.tests.add(message),
            Event::Begun { about, action, deadline, pool } => self.begin(about, action, deadline, pool),
            Event::Cordoned { about, already } => self.cordoned(&about, already),
            Event::DrainBlocked { instance, node, pods, deadline } => {
                let key = (instance, Work::Drain);
                let Some(episode) = self.nodes.get_mut(&key).filter(|episode| !episode.is_over()) else { return };
                episode.deadline = Some(deadline);
                episode.about.node.get_or_insert(node);
                episode.blocked = pods;
                if let Some(storm) = self.storm.as_mut().filter(|_| episode.is_folded) {
                    storm.block(episode);
                }
                self.report(&key);
            }
            Event::DrainUnblocked { instance } => {
                if let Some(episode) = self.nodes.get_mut(&(instance, Work::Drain)) {
                    episode.blocked.clear();
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
                        self.release(&key);
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
        if self.left_alert.take_if(|due| *due <= now).is_some() && self.storm.is_none() {
            if self.nodes.values().any(|node| node.is_again && !node.is_over()) {
                self.left_alert = Some(now + WINDOW);
            } else {
                self.ready.extend(self.writer.end_of_storms());
            }
        }
        let Some(storm) = &mut self.storm else { return };
        if storm.is_over() {
            return self.end_storm();
        }
        while let Some(phase) = storm.phase() {
            self.ready.push(self.writer.storm(phase, storm, false));
        }
    }

    /// The process ends: no other process sends what is kept back here.
    pub(super) fn finish(&mut self) {
        let held: Vec<Key> =
            self.nodes.iter().filter(|(_, node)| node.hold.is_some()).map(|(key, _)| key.clone()).collect();
        for key in held {
            self.release(&key);
        }
        // Another replica continues a storm that is not over, and reports what it finds; of the failures it knows nothing.
        if let Some(storm) = self.storm.take_if(|storm| !storm.is_whole()) {
            let failed = storm.last_phases(false).filter(|phase| *phase == Failed);
            self.ready.extend(failed.map(|phase| self.writer.storm(phase, &storm, false)));
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
        if is_new {
            self.release(&key);
        }
        if let Some(known) = self.nodes.get_mut(&key) {
            known.join(about, action, deadline);
        } else if self.nodes.len() < MAX_NODES || self.forget_oldest() {
            self.nodes.insert(key.clone(), Episode::new(about, action, deadline));
        }
        let Some(episode) = self.nodes.get_mut(&key) else {
            self.untracked += 1;
            return;
        };
        episode.chosen = episode.chosen.or(chosen);
        if !pool.instance_type.is_empty() {
            episode.pool = pool;
        }
        episode.is_test |= self.tests.has(&message);
        episode.is_again |= self.redelivered.has(&message);
        if episode.is_again && resolves_alerts(&self.settings) {
            self.left_alert = Some(Instant::now() + WINDOW);
        }
        if is_new {
            let until = Instant::now() + HOLD;
            episode.hold = Some(Hold { until, is_cordoned: false });
            self.timers.push(Reverse((until, key.clone())));
            self.fold(&key);
        }
    }

    /// Folds a node whose work begins into the storm, or into one that begins with it.
    fn fold(&mut self, key: &Key) {
        if let Some(storm) = self.storm.as_mut().filter(|storm| storm.includes_new()) {
            if let Some(episode) = self.nodes.get_mut(key).filter(|episode| episode.sent.is_empty()) {
                storm.take(episode, self.clock);
            }
            return;
        }
        let is_recent = |node: &Episode| node.begun.elapsed() <= WINDOW;
        if self.nodes.values().filter(|node| is_recent(node)).count() <= MAX_CALM {
            return;
        }
        self.end_storm();
        // Nodes with a notification of their own keep theirs to the end.
        let is_fresh = |node: &&mut Episode| is_recent(node) && (node.sent.is_empty() || node.hold.is_some());
        let mut fresh: Vec<&mut Episode> = self.nodes.values_mut().filter(is_fresh).collect();
        fresh.sort_by_key(|node| node.begun);
        let Some(first) = fresh.first() else { return };
        let mut storm = FoldedStorm::new(self.clock.timestamp_of(first.begun));
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
                episode.sent = episode.sent.with(Notice);
            } else if let Some(hold) = &mut episode.hold {
                hold.is_cordoned = true;
            }
        }
    }

    fn look_at(&mut self, key: &Key, now: Instant) {
        let Some(episode) = self.nodes.get_mut(key) else { return };
        episode.hold.take_if(|hold| hold.until <= now);
        self.report(key);
    }

    fn end(&mut self, about: About, outcome: NoticeOutcome, took: Duration, waited: Box<str>) {
        let found = Work::ALL.map(|work| (about.instance.clone(), work)).into_iter();
        let Some(key) = found.into_iter().find(|key| self.nodes.get(key).is_some_and(|node| node.runs(&about.message)))
        else {
            return;
        };
        let Some(episode) = self.nodes.get_mut(&key) else { return };
        // The next replica sees the cordon, and takes the notice for sent.
        if outcome == NoticeOutcome::HandedOver && episode.hold.is_some_and(|hold| hold.is_cordoned) {
            self.release(&key);
        }
        let Some(episode) = self.nodes.get_mut(&key) else { return };
        episode.ends(&about.message, about.node, End { kind: about.kind, outcome, took, waited });
        if !episode.is_over() {
            return self.report(&key);
        }
        let pages = self.settings.format == Format::PagerDuty;
        if let Some(storm) = self.storm.as_mut().filter(|_| episode.is_folded) {
            storm.end(episode, self.clock);
            // An alert that an earlier receiver raised has the node's own key.
            if pages && episode.is_again && episode.chosen.has(Done) && episode.calls_for(Done, pages) {
                self.announce(&key, Done);
            }
        }
        self.report(&key);
        self.ended.push_back((Instant::now(), key));
    }

    /// Reports what was kept back.
    fn release(&mut self, key: &Key) {
        if let Some(episode) = self.nodes.get_mut(key) {
            episode.hold = None;
        }
        self.report(key);
    }

    /// Reports what was not reported of a node.
    fn report(&mut self, key: &Key) {
        let pages = self.settings.format == Format::PagerDuty;
        for phase in NotificationPhase::ALL {
            if self.nodes.get(key).is_some_and(|episode| episode.wants(phase) && episode.calls_for(phase, pages)) {
                self.announce(key, phase);
            }
        }
    }

    fn announce(&mut self, key: &Key, phase: NotificationPhase) {
        let Some(episode) = self.nodes.get_mut(key) else { return };
        episode.sent = episode.sent.with(phase);
        self.ready.push(self.writer.node(phase, episode));
    }

    /// Reports the end of the storm. What still runs is reported by itself from now on.
    fn end_storm(&mut self) {
        let Some(storm) = self.storm.take() else { return };
        self.left_alert = None;
        let mut running = Vec::new();
        for (key, episode) in self.nodes.iter_mut().filter(|(_, episode)| episode.is_folded) {
            episode.is_folded = false;
            if episode.is_over() {
                // The storm's end was theirs.
                episode.sent = Phases::of(&NotificationPhase::ALL);
            } else {
                episode.sent = Phases::of(&[Notice]);
                running.push(key.clone());
            }
        }
        for phase in storm.last_phases(self.settings.format == Format::PagerDuty) {
            self.ready.push(self.writer.storm(phase, &storm, true));
        }
        for key in running {
            self.report(&key);
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
