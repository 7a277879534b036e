//! Notices that Nodes give: what each says that its instance has been told, and the conditions that the settings name.
//!
//! A message has a receipt, and a Node has none: one replica at a time takes what Nodes say, by a Kubernetes Lease. Its drains end early
//! when it sees that another replica has the Lease, and at a shutdown. When the API server does not answer, nobody else has taken them,
//! and they go on: what is done twice is harmless, and each write names the version that it replaces.

use super::Deliverer;
use super::repairs::Repairs;
use crate::clients::gate::Category;
use crate::clients::server_date;
use crate::fact::{Fact, NoticeKind};
use crate::leases::election::{Election, Office, Turn};
use crate::pipeline::event::Version;
use crate::pipeline::interruption::Interrupter;
use crate::pipeline::node::Node;
use crate::pipeline::node::handled::Standing;
use crate::pipeline::node::mark::is_going;
use crate::pipeline::node::says::{NodeNotice, said, standing_of, taken_back};
use crate::runtime::random;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use jiff::Timestamp;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

/// Interval between scans of what Nodes say, if none says anything new: for what could not be done before.
const SCAN_INTERVAL: Duration = Duration::from_secs(30);

/// Minimum interval between two scans, each of which reads all Nodes that say something: a storm changes a thousand of them.
const SCAN_PAUSE: Duration = Duration::from_millis(200);

/// The same after the end of a notice that needs nothing more.
const SETTLED_PAUSE: Duration = Duration::from_secs(2);

/// Timeout of a question for the API server's time: a turn of [`Office::NODES`] is renewed by then.
const TIME_TIMEOUT: Duration = Duration::from_secs(2);

/// Interval of these questions, if AWS is not asked anything, and the machine's time was not set.
const TIME_INTERVAL: Duration = Duration::from_mins(5);

/// Time for these questions at the start before the machine's time counts without an answer: the turn itself needs answers.
const FIRST_TIME_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause before a notice that has not ended is taken again.
pub(super) const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Whose turn it is to act on what Nodes say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    /// Ours until then; afterwards nobody knows. Of another term, others may have acted meanwhile.
    Ours { until: Instant, term: i32 },
    /// That of another replica.
    Theirs,
}

/// The end of the work on a notice: its version, and whether it needs nothing more of this process.
pub(super) type Done = (Version, bool);

/// The work on what Nodes say.
#[derive(Default)]
struct Work<'a> {
    running: FuturesUnordered<BoxFuture<'a, Done>>,
    versions: HashSet<Version>,
    /// The notices that Nodes gave at the last scan, but for those that wait.
    given: HashSet<Version>,
    /// The notices that need nothing more, and of which their Nodes carry no note: they were ignored, or reported.
    ended: HashSet<Version>,
    /// The conditions that are not acted on for now.
    repairs: Repairs,
    /// Ends the work early.
    cut: CancellationToken,
}

impl Deliverer {
    /// Acts on what Nodes say, while it is this replica's turn, until `stop`. Without an election it always is.
    pub async fn act_on_nodes(self: Arc<Self>, mut election: Option<Election>, stop: CancellationToken) {
        let heard = self.hear_time().await;
        let held = watch::Sender::new(Held::Theirs);
        tokio::select! {
            biased;
            () = self.act_while_held(held.subscribe(), &stop) => {}
            () = self.keep_turn(election.as_mut(), &held, heard) => {}
        }
        if let Some(election) = election {
            // A failure does not matter: the turn expires by itself.
            let _ = election.give_back().await;
        }
    }

    /// Compares the clock with the API server's, unless AWS has told its time: what a Node says names deadlines. Without an answer the
    /// machine's time counts. Returns the time at which a server has told its own.
    async fn hear_time(&self) -> Option<Instant> {
        let Interrupter { drainer, clock, .. } = &*self.interrupter;
        if !(self.hears_aws && clock.is_trusted()) {
            let by = Instant::now() + TIME_TIMEOUT;
            // In a storm the gate may be full for longer, and the turn must not be lost meanwhile.
            let asked = server_date::ask_api_server(&drainer.client, &drainer.gate, *clock, &self.facts, by);
            timeout_at(by, asked).await.ok()?.ok()?;
        }
        Some(Instant::now())
    }

    /// Takes the turn when it is free, and renews it. Never ends.
    async fn keep_turn(
        &self,
        mut election: Option<&mut Election>,
        held: &watch::Sender<Held>,
        mut heard: Option<Instant>,
    ) {
        // Before that, every Node's silence would be a withdrawal.
        self.interrupter.index.live().await;
        let (mut had, mut told): (Option<bool>, Option<Category>) = (None, None);
        // By a clock that is ahead, deadlines on Nodes are over.
        let by = Instant::now() + FIRST_TIME_TIMEOUT;
        while heard.is_none() && Instant::now() < by {
            sleep(RETRY_DELAY).await;
            heard = self.hear_time().await;
        }
        loop {
            // What could not be asked is asked before each turn.
            let is_due = heard.is_none_or(|heard| heard.elapsed() >= TIME_INTERVAL);
            if !self.hears_aws && (is_due || self.interrupter.clock.has_stepped()) {
                heard = self.hear_time().await;
            }
            let turn = match election.as_deref_mut() {
                Some(election) => election.take_turn().await,
                None => Ok(Turn::Ours { until: Instant::now() + SCAN_INTERVAL, term: 0 }),
            };
            let mut next = Instant::now() + random::jittered(Office::LOOK, 0.9..1.1);
            match turn {
                Ok(turn) => {
                    if let Turn::Theirs { until } = turn {
                        next = next.min(until);
                    }
                    told = None;
                    let ours = matches!(turn, Turn::Ours { .. });
                    if election.is_some() && had.replace(ours) != Some(ours) {
                        self.facts.emit(&Fact::NodesTurn { ours });
                    }
                    held.send_replace(match turn {
                        Turn::Ours { until, term } => Held::Ours { until, term },
                        Turn::Theirs { .. } => Held::Theirs,
                    });
                }
                Err(error) => {
                    let category = error.category;
                    had = None;
                    if told.replace(category) != Some(category) {
                        self.facts.emit(&Fact::NodesTurnUnknown { category, error: &error });
                    }
                }
            }
            sleep_until(next).await;
        }
    }

    async fn act_while_held(&self, mut held: watch::Receiver<Held>, stop: &CancellationToken) {
        let index = &self.interrupter.index;
        let mut sayings = index.sayings();
        let mut work = Work::default();
        let (mut next, mut scanned, mut is_ours, mut last_term) = (Instant::now(), Instant::now(), false, None);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return work.cut_short().await,
                Some(done) = work.running.next() => {
                    let pause = if done.1 { SETTLED_PAUSE } else { SCAN_PAUSE };
                    work.note(done);
                    next = next.min(scanned + pause);
                }
                Ok(()) = held.changed() => {
                    let now = *held.borrow_and_update();
                    if now == Held::Theirs {
                        work.cut_short().await;
                        work.repairs.tell(NoticeKind::NodeCondition, &self.facts);
                    }
                    let passed = match now {
                        Held::Ours { term, .. } => last_term.replace(term) != Some(term),
                        Held::Theirs => true,
                    };
                    if passed {
                        // Another replica undoes it, and may die in the middle of the same again.
                        work.ended.drain().for_each(|version| self.outcomes.forget(version.identity()));
                    }
                    if !is_ours {
                        next = Instant::now();
                    }
                }
                Ok(()) = sayings.changed() => next = next.min(scanned + SCAN_PAUSE),
                () = sleep_until(next) => {}
            }
            is_ours = matches!(*held.borrow(), Held::Ours { until, .. } if Instant::now() < until);
            if Instant::now() < next {
                continue;
            }
            scanned = Instant::now();
            next = scanned + random::jittered(SCAN_INTERVAL, 0.9..1.1);
            if is_ours {
                sayings.mark_unchanged();
                next = self.take_up(&mut work).into_iter().chain([next]).min().unwrap_or(next);
                work.repairs.tell(NoticeKind::NodeCondition, &self.facts);
            }
        }
    }

    /// Begins to act on all that Nodes say and that nobody acts on. Returns when a Node will have had a condition for too long.
    fn take_up<'a>(&'a self, work: &mut Work<'a>) -> Option<Instant> {
        let Interrupter { clock, policy, index, .. } = &*self.interrupter;
        let (now, mut next, mut brake) = (clock.now(), None, None);
        let nodes = index.all_that(|node| !node.is_excluded() && node.gives_notices());
        let mut given = HashSet::new();
        for node in nodes {
            let mut due: Vec<NodeNotice> = taken_back(&node, &index.others(&node), &policy.conditions, now);
            for (said, from) in self.conditions_of(&node) {
                if from > now {
                    next = next.into_iter().chain([clock.instant_of(from)]).min();
                } else {
                    due.push(said);
                }
            }
            for (name, notice) in said(&node, now) {
                match notice {
                    Ok(notice) => due.push(notice),
                    Err(error) => self.refusals.refuse(&node, name, &error),
                }
            }
            for said in due {
                let (standing, version) = (standing_of(&node, &said), said.notice.version());
                let is_known =
                    standing == Standing::Settled || said.notice.is_withdrawn() || work.given.contains(&version);
                if !is_known && !self.refusals.admits(&node) {
                    continue;
                }
                given.insert(version.clone());
                let is_done = standing == Standing::Settled || work.ended.contains(&version);
                if is_done || work.versions.contains(&version) {
                    continue;
                }
                if !said.notice.is_withdrawn() && !self.refusals.heeds(&node) {
                    continue;
                }
                if self.begins_repair(&node, &said.notice) {
                    // Without all answers there is nothing to count yet.
                    if !self.knows_broken() || work.repairs.hold(brake.get_or_insert_with(|| self.brake()), &node) {
                        continue;
                    }
                }
                if work.versions.insert(version) {
                    let (node, cut, told) = (Arc::clone(&node), work.cut.clone(), standing == Standing::Told);
                    work.running.push(Box::pin(self.carry_out_said(node, said, told, cut)));
                }
            }
        }
        for version in work.ended.extract_if(|version| !given.contains(version)) {
            // The Node may have the condition again, or another Node of the instance.
            if let Some(identity) = version.of_condition() {
                self.outcomes.forget(identity);
            }
        }
        work.given = given;
        next
    }

    /// Returns the notices of the Node's conditions, each with the time from which it is due: none of a Node that another one of its
    /// instance has followed, or that is drained for another reason.
    fn conditions_of(&self, node: &Node) -> Vec<(NodeNotice, Timestamp)> {
        let Interrupter { clock, policy, index, .. } = &*self.interrupter;
        let is_current = || index.get(&node.instance).is_some_and(|current| current.uid == node.uid);
        let counts = !node.conditions.is_empty() && !is_going(node) && is_current();
        if counts { node.condition_notices(&policy.conditions, clock).collect() } else { Vec::new() }
    }
}

impl Work<'_> {
    fn note(&mut self, (version, is_settled): Done) {
        self.versions.remove(&version);
        if is_settled {
            self.ended.insert(version);
        }
    }

    /// Leaves all interruptions, and waits until they have stopped.
    async fn cut_short(&mut self) {
        self.cut.cancel();
        while let Some(done) = self.running.next().await {
            self.note(done);
        }
        self.cut = CancellationToken::new();
    }
}
