//! Notices that Nodes report: those of their agents, and the conditions that the settings name.
//!
//! A message has a receipt, and a Node has none: one replica at a time handles the Nodes' notices, elected by a Kubernetes Lease. Its
//! drains end early when it sees that another replica holds the Lease, and at a shutdown. While the API server does not answer, no other
//! replica can take the Lease, and the drains continue: work that is done twice is harmless, and each write names the version that it
//! replaces.

use super::offers::{Offer, Origin, Round, Source};
use super::refusals::NodeRefusals;
use crate::clients::gate::Category;
use crate::clients::server_date;
use crate::fact::Fact;
use crate::leases::election::{Election, Office, Turn};
use crate::pipeline::event::Identity;
use crate::pipeline::interruption::Interrupter;
use crate::pipeline::node::Node;
use crate::pipeline::node::agent_notices::{
    NodeNotice, is_reported, notices_of, standing_of, taken_back, terminated_by_request,
};
use crate::runtime::random;
use futures_util::StreamExt;
use futures_util::stream::{BoxStream, unfold};
use jiff::Timestamp;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

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

/// Pause before the next comparison, if the first had no answer.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// The notices that Nodes report.
pub struct Nodes {
    interrupter: Arc<Interrupter>,
    refusals: Arc<NodeRefusals>,
    /// Whether SQS's answers supply the time.
    hears_aws: bool,
    /// The turn to work on the notices. Between two terms of ours, another replica may have worked.
    turn: watch::Sender<Turn>,
    /// Notified when the work on a notice has ended that needs nothing more.
    settled: Notify,
    /// Notified when the work on a notice has ended that needs more.
    unsettled: Notify,
}

/// When the Nodes' notices are scanned.
struct Scans {
    turn: watch::Receiver<Turn>,
    /// Signalled when a Node's notices change.
    changes: watch::Receiver<()>,
    is_ours: bool,
    last_term: Option<i32>,
    last: Instant,
    next: Instant,
}

impl Source for Nodes {
    fn rounds(&self) -> BoxStream<'_, Round> {
        let now = Instant::now();
        let scans = Scans {
            turn: self.turn.subscribe(),
            changes: self.interrupter.index.reports(),
            is_ours: false,
            last_term: None,
            last: now,
            next: now,
        };
        unfold(scans, async |mut scans| Some((self.next_round(&mut scans).await, scans))).boxed()
    }

    fn still(&self, Offer { notice, .. }: &Offer, node: &Node) -> bool {
        match &notice.identity {
            Identity::Condition { condition, .. } => node.has_condition(condition),
            others => is_reported(node, others),
        }
    }

    fn ended(&self, is_settled: bool) {
        let ended = if is_settled { &self.settled } else { &self.unsettled };
        ended.notify_one();
    }
}

impl Nodes {
    /// Returns the source. `hears_aws`: SQS's answers supply the time.
    pub fn new(interrupter: Arc<Interrupter>, refusals: Arc<NodeRefusals>, hears_aws: bool) -> Self {
        let turn = watch::Sender::new(Turn::Theirs { until: Instant::now() });
        Self { interrupter, refusals, hears_aws, turn, settled: Notify::new(), unsettled: Notify::new() }
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

    /// Takes the turn when it is free, and renews it. Without an election this replica always has it. Never ends.
    pub(super) async fn keep_turn(&self, mut election: Option<&mut Election>) {
        let mut compared = self.compare_clock().await;
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
                    self.turn.send_replace(turn);
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

    /// Waits until the Nodes' notices may have changed while this replica has the turn, and returns them; none once another has it.
    async fn next_round(&self, scans: &mut Scans) -> Round {
        let index = &self.interrupter.index;
        loop {
            tokio::select! {
                biased;
                Ok(()) = scans.turn.changed() => match *scans.turn.borrow_and_update() {
                    Turn::Ours { term, .. } => {
                        if !scans.is_ours {
                            scans.next = Instant::now();
                        }
                        if scans.last_term.replace(term) != Some(term) {
                            return Round::Passed;
                        }
                    }
                    Turn::Theirs { .. } => {
                        scans.is_ours = false;
                        return Round::Lost;
                    }
                },
                Ok(()) = scans.changes.changed() => scans.next = scans.next.min(scans.last + SCAN_PAUSE),
                () = self.unsettled.notified() => scans.next = scans.next.min(scans.last + SCAN_PAUSE),
                () = self.settled.notified() => scans.next = scans.next.min(scans.last + SETTLED_PAUSE),
                () = sleep_until(scans.next) => {}
            }
            let now = Instant::now();
            scans.is_ours = matches!(*scans.turn.borrow(), Turn::Ours { until, .. } if now < until);
            if now < scans.next {
                continue;
            }
            scans.last = now;
            scans.next = now + random::jittered(SCAN_INTERVAL, 0.9..1.1);
            // A condition of an outdated index may be over. The index signals when it is current again.
            if scans.is_ours && index.is_live() {
                scans.changes.mark_unchanged();
                return Round::Offers(self.scan(&mut scans.next));
            }
        }
    }

    /// Returns what all Nodes report, and advances the next scan to the time at which the next condition will have lasted too long.
    fn scan(&self, next: &mut Instant) -> Vec<Offer> {
        let Interrupter { clock, index, .. } = &*self.interrupter;
        let seeks_hooks = self.interrupter.policy().node_hook().is_some();
        let (now, mut offers) = (clock.now(), Vec::new());
        for node in index.all_that(|node| !node.is_excluded() && node.gives_notices()) {
            let mut reported = taken_back(&node, &index.others(&node), now);
            for (condition, from) in self.conditions_of(&node) {
                if from > now {
                    *next = clock.instant_of(from).min(*next);
                } else {
                    reported.push(condition);
                }
            }
            for (name, notice) in notices_of(&node, now) {
                match notice {
                    Ok(notice) => reported.push(notice),
                    Err(error) => self.refusals.refuse(&node, name, &error),
                }
            }
            reported.extend(terminated_by_request(&node, now).filter(|_| seeks_hooks));
            offers.extend(reported.into_iter().map(|reported| {
                let (node, standing) = (Arc::clone(&node), standing_of(&node, &reported));
                let NodeNotice { notice, message } = reported;
                Offer { node, notice, message: message.into(), origin: Origin::Node, standing }
            }));
        }
        offers
    }

    /// Returns the notices of the Node's conditions, each with the time from which it is due. Returns none if another Node of the instance
    /// has replaced this one, or if the Node is drained for another reason.
    fn conditions_of(&self, node: &Node) -> Vec<(NodeNotice, Timestamp)> {
        let Interrupter { clock, index, .. } = &*self.interrupter;
        let is_current = || index.get(&node.instance).is_some_and(|current| current.uid == node.uid);
        let counts = !node.conditions.is_empty() && !node.record.is_leaving() && is_current();
        let rules = &self.interrupter.policy().conditions;
        if counts { node.condition_notices(rules, clock).collect() } else { Vec::new() }
    }
}
