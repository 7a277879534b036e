//! Notices that Nodes report: those of their agents, and the conditions that the settings name.
//!
//! A message has a receipt, and a Node has none: one replica at a time handles the Nodes' notices, elected by a Kubernetes Lease. Its
//! drains end early when it sees that another replica holds the Lease, and at a shutdown. While the API server does not answer, no other
//! replica can take the Lease, and the drains continue: work that is done twice is harmless, and each write names the version that it
//! replaces.

use super::offers::Offers;
use super::repairs::Repairs;
use crate::clients::gate::Category;
use crate::clients::server_date;
use crate::fact::{Fact, NoticeKind};
use crate::leases::election::{Election, Office, Turn};
use crate::pipeline::event::Version;
use crate::pipeline::interruption::Interrupter;
use crate::pipeline::node::Node;
use crate::pipeline::node::agent_notices::{NodeNotice, notices_of, standing_of, taken_back, terminated_by_request};
use crate::pipeline::node::handled::Standing;
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

/// Interval between scans of the Nodes' notices when none changes: for notices that could not be worked on before.
const SCAN_INTERVAL: Duration = Duration::from_secs(30);

/// Minimum interval between two scans. A scan reads all Nodes with notices, and a storm changes a thousand of them.
const SCAN_PAUSE: Duration = Duration::from_millis(200);

/// Minimum interval after the end of a notice that needs nothing more.
const SETTLED_PAUSE: Duration = Duration::from_secs(2);

/// Timeout of a comparison with the API server's clock: a turn of [`Office::NODES`] is renewed within it.
const TIME_TIMEOUT: Duration = Duration::from_secs(2);

/// Interval between comparisons, without calls to AWS, and while the machine's time does not jump.
const TIME_INTERVAL: Duration = Duration::from_mins(5);

/// Time for the first comparison before the machine's time counts unchecked: the turn itself needs answers.
const FIRST_TIME_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause before the next try of a notice that has not ended.
pub(super) const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Holder of the turn to work on the Nodes' notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    /// This replica, until then; the holder is unknown afterwards. Between two terms, another replica may have worked.
    Ours { until: Instant, term: i32 },
    /// Another replica.
    Theirs,
}

/// The end of the work on a notice: its version, and whether it needs nothing more of this process.
pub(super) type Done = (Version, bool);

/// The work on the Nodes' notices.
#[derive(Default)]
struct Work<'a> {
    running: FuturesUnordered<BoxFuture<'a, Done>>,
    versions: HashSet<Version>,
    /// The notices that Nodes reported at the last scan, except those that wait.
    given: HashSet<Version>,
    /// The notices that need nothing more and have no note on their Nodes: they were ignored, or reported.
    ended: HashSet<Version>,
    /// The conditions that are held back for now.
    repairs: Repairs,
    /// Ends the work early.
    cut: CancellationToken,
}

impl Offers {
    /// Works on the Nodes' notices while this replica has the turn, until `stop`. Without an election it always has.
    pub async fn act_on_nodes(self: Arc<Self>, mut election: Option<Election>, stop: CancellationToken) {
        let compared = self.compare_clock().await;
        let holder = watch::Sender::new(Holder::Theirs);
        tokio::select! {
            biased;
            () = self.act_while_held(holder.subscribe(), &stop) => {}
            () = self.keep_turn(election.as_mut(), &holder, compared) => {}
        }
        if let Some(election) = election {
            // A failure does not matter: the turn expires by itself.
            let _ = election.give_back().await;
        }
    }

    /// Compares the clock with the API server's, unless AWS has supplied the time: agent notices name deadlines. Without an answer the
    /// machine's time counts. Returns the time of the comparison.
    async fn compare_clock(&self) -> Option<Instant> {
        let Interrupter { drainer, clock, .. } = &*self.interrupter;
        if !(self.hears_aws && clock.is_trusted()) {
            let by = Instant::now() + TIME_TIMEOUT;
            // In a storm the gate may be full for longer, and the turn must not be lost meanwhile.
            let asked =
                server_date::ask_api_server(&drainer.client, &drainer.gate, *clock, &self.interrupter.facts, by);
            timeout_at(by, asked).await.ok()?.ok()?;
        }
        Some(Instant::now())
    }

    /// Takes the turn when it is free, and renews it. Never ends.
    async fn keep_turn(
        &self,
        mut election: Option<&mut Election>,
        holder: &watch::Sender<Holder>,
        mut compared: Option<Instant>,
    ) {
        // Until then, every Node without a notice would look like a withdrawal.
        self.interrupter.index.live().await;
        let (mut had, mut reported): (Option<bool>, Option<Category>) = (None, None);
        // With a clock that is ahead, deadlines on Nodes would be over.
        let by = Instant::now() + FIRST_TIME_TIMEOUT;
        while compared.is_none() && Instant::now() < by {
            sleep(RETRY_DELAY).await;
            compared = self.compare_clock().await;
        }
        loop {
            // A comparison that failed is repeated before each turn.
            let is_due = compared.is_none_or(|compared| compared.elapsed() >= TIME_INTERVAL);
            if !self.hears_aws && (is_due || self.interrupter.clock.has_stepped()) {
                compared = self.compare_clock().await;
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
                    reported = None;
                    let ours = matches!(turn, Turn::Ours { .. });
                    if election.is_some() && had.replace(ours) != Some(ours) {
                        self.interrupter.facts.emit(&Fact::NodesTurn { ours });
                    }
                    holder.send_replace(match turn {
                        Turn::Ours { until, term } => Holder::Ours { until, term },
                        Turn::Theirs { .. } => Holder::Theirs,
                    });
                }
                Err(error) => {
                    let category = error.category;
                    had = None;
                    if reported.replace(category) != Some(category) {
                        self.interrupter.facts.emit(&Fact::NodesTurnUnknown { category, error: &error });
                    }
                }
            }
            sleep_until(next).await;
        }
    }

    async fn act_while_held(&self, mut holder: watch::Receiver<Holder>, stop: &CancellationToken) {
        let index = &self.interrupter.index;
        let mut changes = index.reports();
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
                Ok(()) = holder.changed() => {
                    let now = *holder.borrow_and_update();
                    if now == Holder::Theirs {
                        work.cut_short().await;
                        work.repairs.report(NoticeKind::NodeCondition, &self.interrupter.facts);
                    }
                    let passed = match now {
                        Holder::Ours { term, .. } => last_term.replace(term) != Some(term),
                        Holder::Theirs => true,
                    };
                    if passed {
                        // Another replica may have undone the work, and may have been killed while it worked on the same again.
                        work.ended.drain().for_each(|version| self.interruptions.outcomes.forget(version.identity()));
                    }
                    if !is_ours {
                        next = Instant::now();
                    }
                }
                Ok(()) = changes.changed() => next = next.min(scanned + SCAN_PAUSE),
                () = sleep_until(next) => {}
            }
            is_ours = matches!(*holder.borrow(), Holder::Ours { until, .. } if Instant::now() < until);
            if Instant::now() < next {
                continue;
            }
            scanned = Instant::now();
            next = scanned + random::jittered(SCAN_INTERVAL, 0.9..1.1);
            // A condition of an outdated index may be over. The index signals when it is current again.
            if is_ours && index.is_live() {
                changes.mark_unchanged();
                next = self.take_up(&mut work).into_iter().chain([next]).min().unwrap_or(next);
                work.repairs.report(NoticeKind::NodeCondition, &self.interrupter.facts);
            }
        }
    }

    /// Starts the work on all Nodes' notices that no replica works on. Returns when the next condition will have lasted too long.
    fn take_up<'a>(&'a self, work: &mut Work<'a>) -> Option<Instant> {
        let Interrupter { clock, policy, index, .. } = &*self.interrupter;
        let (now, mut next, mut brake) = (clock.now(), None, None);
        let nodes = index.all_that(|node| !node.is_excluded() && node.gives_notices());
        let mut given = HashSet::new();
        for node in nodes {
            let mut due: Vec<NodeNotice> = taken_back(&node, &index.others(&node), now);
            for (reported, from) in self.conditions_of(&node) {
                if from > now {
                    next = next.into_iter().chain([clock.instant_of(from)]).min();
                } else {
                    due.push(reported);
                }
            }
            for (name, notice) in notices_of(&node, now) {
                match notice {
                    Ok(notice) => due.push(notice),
                    Err(error) => self.refusals.refuse(&node, name, &error),
                }
            }
            due.extend(terminated_by_request(&node, now).filter(|_| policy.node_hook().is_some()));
            for reported in due {
                let (standing, version) = (standing_of(&node, &reported), reported.notice.version());
                let is_known =
                    standing == Standing::Settled || reported.notice.is_withdrawn() || work.given.contains(&version);
                if !is_known && !self.refusals.admits(&node) {
                    continue;
                }
                given.insert(version.clone());
                let is_done = standing == Standing::Settled || work.ended.contains(&version);
                if is_done || work.versions.contains(&version) {
                    continue;
                }
                if !reported.notice.is_withdrawn() && !self.refusals.heeds(&node) {
                    continue;
                }
                if self.brake.holds_back((&node, &reported.notice), &mut brake, &mut work.repairs) {
                    continue;
                }
                if work.versions.insert(version) {
                    let (node, cut, confirmed) = (Arc::clone(&node), work.cut.clone(), standing == Standing::Announced);
                    work.running.push(Box::pin(self.carry_out_node_notice(node, reported, confirmed, cut)));
                }
            }
        }
        for version in work.ended.extract_if(|version| !given.contains(version)) {
            // The Node may have the condition again, or another Node of the instance.
            if let Some(identity) = version.of_condition() {
                self.interruptions.outcomes.forget(identity);
            }
        }
        work.given = given;
        next
    }

    /// Returns the notices of the Node's conditions, each with the time from which it is due. Returns none if another Node of the instance
    /// has replaced this one, or if the Node is drained for another reason.
    fn conditions_of(&self, node: &Node) -> Vec<(NodeNotice, Timestamp)> {
        let Interrupter { clock, policy, index, .. } = &*self.interrupter;
        let is_current = || index.get(&node.instance).is_some_and(|current| current.uid == node.uid);
        let counts = !node.conditions.is_empty() && !node.record.is_leaving() && is_current();
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
