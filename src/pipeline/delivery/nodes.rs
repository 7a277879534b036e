//! Notices that Nodes give: what each says that its instance has been told, and the conditions that the settings name.
//!
//! A message has a receipt, and a Node has none: one replica at a time takes what Nodes say, by a Kubernetes Lease. Its drains end early
//! when it sees that another replica has the Lease, and at a shutdown. When the API server does not answer, nobody else has taken them,
//! and they go on: what is done twice is harmless, and each write names the version that it replaces.

use super::plans::is_work;
use super::repairs::Repairs;
use super::{CRASH_DELAY, Deliverer, NoticeCopy, Verdict, verdict};
use crate::clients::gate::{CALL_TIMEOUT, Category};
use crate::fact::{Fact, NoticeKind, NoticeRef};
use crate::leases::election::{Election, Office, Turn};
use crate::pipeline::event::{Detail, Notice, Version};
use crate::pipeline::interruption::{Interrupter, NoticeOutcome};
use crate::pipeline::node::Node;
use crate::pipeline::node::handled::Standing;
use crate::pipeline::node::mark::{is_going, is_told_to_terminate};
use crate::pipeline::node::says::{NodeNotice, said, standing_of, taken_back};
use crate::pipeline::queue::VISIBILITY_TIMEOUT;
use crate::runtime::random;
use crate::runtime::task::TaskError;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use jiff::Timestamp;
use std::collections::{HashMap, HashSet};
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

/// Interval between scans of what Nodes say, if none says anything new: for what could not be done before.
const SCAN_INTERVAL: Duration = Duration::from_secs(30);

/// Pause before a notice that has not ended is taken again.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Pause before a notice is tried again for which there was no room until its deadline.
const ROOM_DELAY: Duration = Duration::from_mins(5);

/// Whose turn it is to act on what Nodes say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    /// Ours until then; afterwards nobody knows.
    Ours(Instant),
    /// That of another replica.
    Theirs,
}

/// The end of the work on a notice: its version, and whether it needs nothing more of this process.
type Done = (Version, bool);

/// The work on what Nodes say.
#[derive(Default)]
struct Work<'a> {
    running: FuturesUnordered<BoxFuture<'a, Done>>,
    versions: HashSet<Version>,
    /// The notices that need nothing more, and of which their Nodes carry no note: they were ignored, or reported.
    ended: HashSet<Version>,
    /// The conditions that are not acted on for now.
    repairs: Repairs,
    /// What was refused, by the Node's UID and the annotation, so that each value is told once.
    refused: HashMap<(Arc<str>, String), String>,
    /// Ends the work early.
    cut: CancellationToken,
}

impl Deliverer {
    /// Acts on what Nodes say, while it is this replica's turn, until `stop`. Without an election it always is.
    pub async fn act_on_nodes(self: Arc<Self>, mut election: Option<Election>, stop: CancellationToken) {
        let held = watch::Sender::new(Held::Theirs);
        tokio::select! {
            biased;
            () = self.act_while_held(held.subscribe(), &stop) => {}
            () = self.keep_turn(election.as_mut(), &held) => {}
        }
        if let Some(election) = election {
            // A failure does not matter: the turn expires by itself.
            let _ = election.give_back().await;
        }
    }

    /// Takes the turn when it is free, and renews it. Never ends.
    async fn keep_turn(&self, mut election: Option<&mut Election>, held: &watch::Sender<Held>) {
        // Before that, every Node's silence would be a withdrawal.
        self.interrupter.index.live().await;
        let (mut had, mut told): (Option<bool>, Option<Category>) = (None, None);
        loop {
            let turn = match election.as_deref_mut() {
                Some(election) => election.take_turn().await,
                None => Ok(Turn::Ours { until: Instant::now() + SCAN_INTERVAL }),
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
                        Turn::Ours { until } => Held::Ours(until),
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
        let mut next = Instant::now();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return work.cut_short().await,
                Some(done) = work.running.next() => work.note(done),
                Ok(()) = held.changed() => {
                    if *held.borrow() == Held::Theirs {
                        work.cut_short().await;
                        // Another replica undoes it, and may die in the middle of the same again.
                        work.ended.drain().for_each(|version| self.outcomes.forget(version.identity()));
                        work.repairs.tell(NoticeKind::NodeCondition, &self.facts);
                    }
                }
                Ok(()) = sayings.changed() => {}
                () = sleep_until(next) => {}
            }
            next = Instant::now() + random::jittered(SCAN_INTERVAL, 0.9..1.1);
            let is_ours = matches!(*held.borrow_and_update(), Held::Ours(until) if Instant::now() < until);
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
        let (mut given, mut refused) = (HashSet::new(), HashMap::new());
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
                    Err(error) => {
                        let (key, text) = ((Arc::clone(&node.uid), name.clone()), &node.annotations[name]);
                        if work.refused.get(&key) != Some(text) {
                            self.facts.emit(&Fact::SayingRefused { on: node.named(), annotation: name, error: &error });
                        }
                        refused.insert(key, text.clone());
                    }
                }
            }
            for said in due {
                let (standing, version) = (standing_of(&node, &said), said.notice.version());
                given.insert(version.clone());
                let is_done = standing == Standing::Settled || work.ended.contains(&version);
                if is_done || work.versions.contains(&version) {
                    continue;
                }
                if version.of_condition().is_some() && self.begins_repair(&node, &said.notice) {
                    let brake = brake.get_or_insert_with(|| self.brake());
                    if work.repairs.hold(brake, &node) {
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
        work.refused = refused;
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

    /// Acts on a notice until it has ended, and notes that on its Node; if a message `told` of it, only notes it.
    async fn carry_out_said(&self, node: Arc<Node>, said: NodeNotice, told: bool, cut: CancellationToken) -> Done {
        let NodeNotice { notice, message } = said;
        let version = notice.version();
        let end = if told { SaidEnd::Handled } else { self.work_on(&node, notice.clone(), message.into(), &cut).await };
        let pause = match end {
            SaidEnd::Settled => return (version, true),
            SaidEnd::Again(pause) => pause,
            SaidEnd::Handled => {
                if notice.is_withdrawn() {
                    // The Node may say the same again.
                    self.outcomes.forget(&notice.identity);
                }
                let by = Instant::now() + CALL_TIMEOUT;
                match self.interrupter.marker.note_handled(&node, &notice, !notice.is_withdrawn(), by).await {
                    // A dry run stores no note.
                    Ok(_) => return (version, true),
                    Err(error) => {
                        let (on, category) = (node.named(), error.category);
                        self.facts.emit(&Fact::ReleaseFailed { on, category, error: &error });
                        CRASH_DELAY
                    }
                }
            }
        };
        tokio::select! { () = cut.cancelled() => {}, () = sleep(pause) => {} }
        (version, false)
    }
}

/// The end of the work on what a Node says.
enum SaidEnd {
    /// Nothing is left to do, and a note on the Node says so.
    Handled,
    /// Nothing is left to do, and nothing is noted.
    Settled,
    /// It is taken again after this pause, if the Node says it still.
    Again(Duration),
}

/// The first event that ends a turn of that work.
enum TurnEnd {
    /// The notice has ended.
    Ended(Result<NoticeOutcome, TaskError>),
    /// It is left to others.
    Left,
    /// The search for its hook is over, and has found this.
    Shows(Detail),
}

impl Deliverer {
    /// Acts on a notice until it has ended. If a hook is sought, goes on with what the search finds, and ends when that is over, too.
    async fn work_on(&self, node: &Node, mut notice: Notice, message: Arc<str>, cut: &CancellationToken) -> SaidEnd {
        let (kind, instance) = (notice.kind(), notice.instance.clone());
        let about = NoticeRef { kind, instance: instance.as_str(), node: Some(&node.name), message: &message };
        self.facts.emit(&Fact::NoticeSaid { about });
        let mut sought = self.seek_hook(&mut notice, &about).await;
        let visibility = watch::Sender::new(VISIBILITY_TIMEOUT);
        loop {
            let outcome = self.outcomes.get(&notice.version());
            if notice.hook().is_some() && outcome != Some(NoticeOutcome::Uncordoned) {
                // The drain may be over, and the hook is not.
                self.outcomes.forget(&notice.identity);
            }
            let copy = self.join(notice.clone(), &message);
            if let NoticeCopy::Running(_, seat) = &copy {
                // A Node of this cluster gives it.
                seat.shared().direct.store(true, Ordering::Release);
            }
            let end = loop {
                tokio::select! {
                    biased;
                    end = self.ended(&copy, &visibility) => break TurnEnd::Ended(end),
                    () = cut.cancelled() => break TurnEnd::Left,
                    () = self.told_with_a_hook(&notice) => break TurnEnd::Left,
                    detail = self.hook_shows(&instance, &mut sought, &about) => if detail != notice.detail {
                        break TurnEnd::Shows(detail);
                    }
                }
            };
            copy.leave().await;
            let detail = match end {
                TurnEnd::Left => return SaidEnd::Again(Duration::ZERO),
                TurnEnd::Shows(detail) => detail,
                TurnEnd::Ended(end) => {
                    let ended = self.said_end(&notice, end);
                    // A user who uncordons wants the node to stay, whether its instance waits at a hook or not.
                    let is_kept = end == Ok(NoticeOutcome::Uncordoned);
                    if is_kept || !sought.is_open || !matches!(ended, SaidEnd::Handled) {
                        return ended;
                    }
                    let shown = tokio::select! {
                        biased;
                        () = cut.cancelled() => None,
                        () = self.unsaid(&notice) => None,
                        detail = self.hook_shows(&instance, &mut sought, &about) => Some(detail),
                    };
                    match shown {
                        Some(detail @ Detail::AsgTerminate(_)) => detail,
                        Some(_) => return ended,
                        None => {
                            // Another replica may undo it, or the Node says it again: then it is new.
                            self.outcomes.forget(&notice.identity);
                            return SaidEnd::Again(Duration::ZERO);
                        }
                    }
                }
            };
            notice = Notice { at: self.interrupter.clock.now(), detail, ..notice };
        }
    }

    /// Returns what is left to do about a notice that has ended so.
    fn said_end(&self, notice: &Notice, end: Result<NoticeOutcome, TaskError>) -> SaidEnd {
        match (verdict([end]), end) {
            (Verdict::Release(after), _) => SaidEnd::Again(after.clamp(RETRY_DELAY, CRASH_DELAY)),
            // It failed, AWS has not confirmed it, or it joined work that ended before it could be called off: the mark stays till then.
            (_, Ok(outcome)) if notice.is_withdrawn() && is_undone(outcome) => {
                self.outcomes.forget(&notice.identity);
                SaidEnd::Again(CRASH_DELAY)
            }
            // It was taken back in the middle, and its withdrawal removes the note.
            (_, Ok(NoticeOutcome::Withdrawn)) if !notice.is_withdrawn() => {
                self.outcomes.forget(&notice.identity);
                SaidEnd::Again(Duration::ZERO)
            }
            // There may be room, and the Node says it still.
            (_, Ok(NoticeOutcome::NotAdmitted)) => SaidEnd::Again(ROOM_DELAY),
            // A plan is on the Node, and a notice without an effect leaves nothing there.
            (_, Ok(outcome)) if !is_work(outcome) => SaidEnd::Settled,
            _ => SaidEnd::Handled,
        }
    }

    /// Waits until a lifecycle hook's message has told, to whichever replica, what the notice is a hint of: the hook's deadline decides,
    /// and its mark has taken the place of the hint's.
    async fn told_with_a_hook(&self, notice: &Notice) {
        if !matches!(notice.detail, Detail::AsgTermination { .. }) {
            return pending().await;
        }
        let told = |node: Option<&Arc<Node>>| node.filter(|node| is_told_to_terminate(node)).map(drop);
        self.interrupter.index.until(&notice.instance, told).await;
    }
}

/// Whether a withdrawal that has ended so may have left what it withdraws.
const fn is_undone(outcome: NoticeOutcome) -> bool {
    matches!(outcome, NoticeOutcome::NotAdmitted) || is_work(outcome) && !matches!(outcome, NoticeOutcome::Withdrawn)
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
