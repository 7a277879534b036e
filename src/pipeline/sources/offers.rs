//! One loop for all sources but messages: offer → brake → turn → work → noted. Messages have a door of their own, and join the same
//! interruptions.
//!
//! A source has no receipts: it continues to offer a notice until the notice has ended, so another replica continues after a crash.

use super::interruptions::Interruptions;
use super::refusals::NodeRefusals;
use super::repairs::{RepairBrake, Repairs};
use crate::fact::NoticeKind;
use crate::pipeline::event::{Identity, Notice, Version};
use crate::pipeline::interruption::Interrupter;
use crate::pipeline::node::handled::Standing;
use crate::pipeline::node::record::NoticeRecord;
use crate::pipeline::node::{Node, is_from_node};
use crate::runtime::random;
use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, FuturesUnordered, select_all, unfold};
use futures_util::{FutureExt, Stream, StreamExt};
use jiff::Timestamp;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// Mean interval between rounds of a source that each replica works on.
const ROUND_INTERVAL: Duration = Duration::from_mins(1);

/// Maximum time for which a round waits for a server's time: with a clock that is ahead, a change would be acted on too early.
const FIRST_ANSWER_TIMEOUT: Duration = Duration::from_mins(1);

/// A source of notices.
pub(super) trait Source: Sync {
    /// Returns what the source offers, each time that it may have changed. Never ends.
    fn rounds(&self) -> BoxStream<'_, Round>;

    /// Whether the source still offers the notice, by its last answer and the newest version of the Node.
    fn still(&self, offer: &Offer, node: &Node) -> bool;

    /// Notes that the work on an offer has ended, and whether it needs nothing more.
    fn ended(&self, _is_settled: bool) {}
}

/// The state of a source at one time.
pub(super) enum Round {
    /// These notices are due, or need nothing more.
    Offers(Vec<Offer>),
    /// Another replica may have worked on the source's notices meanwhile.
    Passed,
    /// Another replica works on the source's notices now.
    Lost,
}

/// A notice without a message.
pub(super) struct Offer {
    /// The Node of the notice's instance.
    pub node: Arc<Node>,
    /// The notice.
    pub notice: Notice,
    /// The ID of the message that brought it, or the id that stands for one.
    pub message: Arc<str>,
    /// What offers it.
    pub origin: Origin,
    /// What the Node shows about it. If a message announced it too, only a note of that is due.
    pub standing: Standing,
}

impl Offer {
    /// Returns the record that keeps the planned change, if that offers it.
    pub(super) fn plan(&self) -> Option<&NoticeRecord> {
        if let Origin::Plan(plan) = &self.origin { Some(plan) } else { None }
    }

    /// Whether a message alone announced it, before it was planned: neither EC2's list nor the Node repeats it.
    pub(super) fn comes_once(&self) -> bool {
        let listed = self.notice.identity.ec2_id();
        self.plan().is_some_and(|plan| !is_from_node(&plan.message) && listed.as_deref() != Some(&*plan.message))
    }
}

/// What offers a notice.
pub(super) enum Origin {
    /// The Node: its agent, its conditions, or the note that its group replaces it.
    Node,
    /// The record that keeps a planned change.
    Plan(Box<NoticeRecord>),
    /// EC2's list.
    Ec2,
}

/// The UID of a Node.
type Uid = Arc<str>;

/// The end of the work on an offer: its version, and the Node on which it needs nothing more of this process.
pub(super) type Done = (Version, Option<Uid>);

/// Works on what the sources offer.
pub struct Offers {
    /// The interruptions of the notices, and of those of messages.
    pub interruptions: Arc<Interruptions>,
    /// Acts on notices.
    pub interrupter: Arc<Interrupter>,
    /// Holds back repairs.
    pub brake: Arc<RepairBrake>,
    /// Nodes and annotations that are ignored.
    pub refusals: Arc<NodeRefusals>,
}

/// What is known of a source's offers.
#[derive(Default)]
struct Book {
    /// The notices of the last round, except those that wait.
    offered: HashSet<Version>,
    /// The time of the round in which each became due.
    since: HashMap<Identity, Timestamp>,
    /// The notices that are worked on.
    running: HashSet<Version>,
    /// The notices that need nothing more, and the Nodes on which that is so: another Node of the instance is drained, too.
    ended: HashMap<Version, Uid>,
    /// The repairs that are held back for now.
    repairs: Repairs,
    /// Ends the work early.
    cut: CancellationToken,
}

impl Offers {
    /// Works on what the sources offer, until `stop`. Then leaves all interruptions, and waits until they have stopped.
    pub(super) async fn work_on_all(&self, sources: &[(NoticeKind, &dyn Source)], stop: &CancellationToken) {
        let mut books: Vec<Book> = sources.iter().map(|_| Book::default()).collect();
        let mut rounds = select_all(
            (0..sources.len()).map(|number| sources[number].1.rounds().map(move |round| (number, round)).boxed()),
        );
        let mut running: FuturesUnordered<BoxFuture<'_, (usize, Done)>> = FuturesUnordered::new();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some((number, (version, settled_on))) = running.next() => {
                    let Book { running, ended, .. } = &mut books[number];
                    running.remove(&version);
                    sources[number].1.ended(settled_on.is_some());
                    ended.extend(settled_on.map(|node| (version, node)));
                }
                Some((number, round)) = rounds.next() => {
                    let (book, (repairs, source)) = (&mut books[number], sources[number]);
                    for offer in self.taken(round, book, repairs) {
                        // A newer version joins the work on the one before, and revises it.
                        let work = self.work(source, offer, book.cut.clone());
                        running.push(work.map(move |done| (number, done)).boxed());
                    }
                }
            }
        }
        for book in &books {
            book.cut.cancel();
        }
        while running.next().await.is_some() {}
    }

    /// Returns the offers on which the work begins. `repairs` is the kind of the source's repairs.
    fn taken(&self, round: Round, book: &mut Book, repairs: NoticeKind) -> Vec<Offer> {
        let (now, facts) = (self.interrupter.clock.now(), &self.interrupter.facts);
        let outcomes = &self.interruptions.outcomes;
        let offers = match round {
            Round::Offers(offers) => offers,
            Round::Passed | Round::Lost => {
                if let Round::Lost = round {
                    std::mem::take(&mut book.cut).cancel();
                    book.repairs.report(repairs, facts);
                }
                // Another replica may have undone the work, and may have been killed while it worked on the same again.
                book.ended.drain().for_each(|(version, _)| outcomes.forget(version.identity()));
                return Vec::new();
            }
        };
        let (mut offered, mut since, mut counted, mut taken) = (HashSet::new(), HashMap::new(), None, Vec::new());
        for offer in offers {
            let Offer { node, notice, standing, .. } = &offer;
            let (version, is_settled) = (notice.version(), *standing == Standing::Settled);
            let by_node = !matches!(offer.origin, Origin::Ec2) && !notice.is_withdrawn();
            let is_new = by_node && !is_settled && !book.offered.contains(&version);
            if is_new && !self.refusals.admits(node) {
                continue;
            }
            offered.insert(version.clone());
            if is_settled || book.ended.get(&version) == Some(&node.uid) {
                continue;
            }
            let known = book.since.get(&notice.identity).copied().unwrap_or(now);
            let first = *since.entry(notice.identity.clone()).or_insert(known);
            if book.running.contains(&version) || is_held_by_another(&offer, first, now) {
                continue;
            }
            if by_node && !self.refusals.heeds(node)
                || self.brake.holds_back((node, notice), &mut counted, &mut book.repairs)
            {
                continue;
            }
            book.running.insert(version);
            taken.push(offer);
        }
        for (version, _) in book.ended.extract_if(|version, _| !offered.contains(version)) {
            // The Node may have the condition again, or another Node of the instance.
            if let Some(identity) = version.of_condition() {
                outcomes.forget(identity);
            }
        }
        (book.offered, book.since) = (offered, since);
        book.repairs.report(repairs, facts);
        taken
    }
}

/// Whether another replica drains the Node for the notice: its mark has a deadline ahead. A notice that is still due after half of the
/// time from `since`, when it was first due, to that deadline probably belonged to a replica that has ended.
fn is_held_by_another(Offer { node, notice, origin, standing, .. }: &Offer, since: Timestamp, now: Timestamp) -> bool {
    // One replica has the turn to work on what Nodes report.
    let is_shared = !matches!(origin, Origin::Node) && *standing == Standing::Open && !notice.is_withdrawn();
    let deadline = node.record.deadline(notice.key(), notice.start()).filter(|_| is_shared);
    deadline.is_some_and(|deadline| deadline.duration_since(now) > now.duration_since(since))
}

/// Returns the times of the rounds of a source that each replica works on.
pub(super) fn each_minute(interrupter: &Interrupter) -> impl Stream<Item = Timestamp> {
    unfold((), async |()| {
        // Jittered, so that a replica sees another's mark before it starts itself.
        sleep(random::jittered(ROUND_INTERVAL, 0.5..1.5)).await;
        // An outdated index may show changes that were acted on long ago.
        interrupter.index.live().await;
        interrupter.clock.trusted(FIRST_ANSWER_TIMEOUT).await;
        Some((interrupter.clock.now(), ()))
    })
}
