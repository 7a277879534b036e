//! Notices that are acted on as if their messages had come: changes that Nodes keep until they are near, and what EC2 lists though no
//! message told of it. There is no receipt. The plan is on the Node, and EC2 goes on to list the change, until the notice has ended, so
//! another replica continues after a crash.

use super::polling::{Answers, Polling};
use super::repairs::Repairs;
use super::{Deliverer, NoticeCopy, Verdict, verdict};
use crate::clients::gate::{Backoff, CALL_TIMEOUT, Category, KubeError};
use crate::fact::{Fact, NoticeKind, NoticeRef};
use crate::pipeline::event::{CapacityBlock, Detail, Identity, Notice, NoticeTime, Version};
use crate::pipeline::interruption::NoticeOutcome;
use crate::pipeline::node::handled::{KnownNotice, Standing, is_handled, known, known_as, message_of, standing};
use crate::pipeline::node::is_from_node;
use crate::pipeline::node::mark::{deadline_of, is_going};
use crate::pipeline::node::plan::Plan;
use crate::pipeline::node::release::NodeRelease;
use crate::pipeline::node::says::{same_as, says};
use crate::pipeline::node::told;
use crate::pipeline::node::{Brake, Node};
use crate::pipeline::queue::VISIBILITY_TIMEOUT;
use crate::runtime::random;
use futures_util::StreamExt;
use futures_util::future::join;
use futures_util::stream::FuturesUnordered;
use jiff::Timestamp;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

/// Mean interval between scans of the plans on Nodes, and of what EC2 lists.
const SCAN_INTERVAL: Duration = Duration::from_mins(1);

/// Maximum time that a scan waits for a server's time: with a clock that is ahead, a plan is carried out too early.
const FIRST_ANSWER_TIMEOUT: Duration = Duration::from_mins(1);

/// Maximum time for the note that a message has told what the Node had said.
const NOTE_TIMEOUT: Duration = Duration::from_mins(1);

/// A notice that is due, without a message.
struct Due {
    node: Arc<Node>,
    notice: Notice,
    /// The message that once brought it, or what EC2 calls it.
    message: Arc<str>,
    /// The plan that keeps it.
    plan: Option<Plan>,
    /// Whether a message told of it, too: only a note about that is due.
    told: bool,
}

impl Deliverer {
    /// Acts on notices without messages. Runs until aborted.
    pub async fn act_without_messages(self: Arc<Self>, polling: Option<Polling>) {
        let answers = Answers::default();
        let polls = async {
            if let Some(polling) = polling {
                self.poll(&polling, &answers).await;
            }
        };
        join(polls, self.carry_out_all(&answers)).await;
    }

    async fn carry_out_all(&self, answers: &Answers) {
        let mut running = FuturesUnordered::new();
        let mut versions_running: HashSet<Version> = HashSet::new();
        let mut since: HashMap<Identity, Timestamp> = HashMap::new();
        let mut ended: HashSet<Version> = HashSet::new();
        let mut repairs = Repairs::default();
        loop {
            // Jittered, so that a replica sees the mark of another before it begins itself.
            let pause = async {
                sleep(random::jittered(SCAN_INTERVAL, 0.5..1.5)).await;
                // An index that is not current may show plans that were carried out long ago.
                self.interrupter.index.live().await;
                self.interrupter.clock.trusted(FIRST_ANSWER_TIMEOUT).await;
            };
            tokio::pin!(pause);
            loop {
                tokio::select! {
                    biased;
                    Some((version, is_settled)) = running.next() => {
                        versions_running.remove(&version);
                        ended.extend(Some(version).filter(|_| is_settled));
                    }
                    () = &mut pause => break,
                }
            }
            let now = self.interrupter.clock.now();
            let listed = answers.notices();
            let is_failing = |notice: &Notice| matches!(notice.detail, Detail::StatusCheck(_));
            let brake = if listed.iter().any(is_failing) { self.brake() } else { Brake::default() };
            let versions: HashSet<Version> = listed.iter().map(Notice::version).collect();
            ended.retain(|version| versions.contains(version));
            let listed = listed.into_iter().filter(|notice| !ended.contains(&notice.version()));
            let due = self.planned(now).into_iter().chain(listed.filter_map(|notice| self.listed(notice, now)));
            let known = std::mem::take(&mut since);
            for due in due {
                let identity = due.notice.identity.clone();
                let first = *since.entry(identity.clone()).or_insert(known.get(&identity).copied().unwrap_or(now));
                let is_ours = due.told || !in_other_hands(&due, first, now);
                let version = due.notice.version();
                if !is_ours || versions_running.contains(&version) || self.holds_check(&due, &brake, &mut repairs) {
                    continue;
                }
                // A newer version joins the work on the one before, and revises it.
                versions_running.insert(version);
                running.push(Box::pin(self.carry_out(due, answers)));
            }
            repairs.tell(NoticeKind::StatusCheck, &self.facts);
        }
    }

    /// Whether the work on a failing status check does not begin: too many fail, or the node goes for another reason.
    fn holds_check(&self, Due { node, notice, .. }: &Due, brake: &Brake, repairs: &mut Repairs) -> bool {
        self.begins_repair(node, notice) && (is_going(node) || repairs.hold(brake, node))
    }

    /// Returns the planned changes that are near.
    fn planned(&self, now: Timestamp) -> Vec<Due> {
        let due = |(node, plan): (Arc<Node>, Plan)| {
            let (notice, message) = (plan.notice(&node.instance), Arc::from(&*plan.message));
            Due { node, notice, message, plan: Some(plan), told: false }
        };
        let plans = self.interrupter.index.plans().into_iter().map(due);
        let is_near = |due: &Due| self.interrupter.policy.acts_from(&due.notice).is_none_or(|from| from <= now);
        plans.filter(|due| is_near(due) && self.refusals.heeds(&due.node)).collect()
    }

    /// Returns what is due for a notice that EC2 lists, if anything.
    fn listed(&self, mut notice: Notice, now: Timestamp) -> Option<Due> {
        let node = self.interrupter.index.get(&notice.instance).filter(|node| !node.is_excluded())?;
        if CapacityBlock::warned_of(&notice).is_some_and(|from| from > now) {
            return None;
        }
        let told = match standing(&node, &notice, notice.identity.ec2_id().as_deref()) {
            Standing::Settled => return None,
            Standing::Told => true,
            Standing::Open => false,
        };
        let message = Arc::from(&*notice.identity.ec2_id()?);
        // Newer than the mark of another replica, whose work this one continues.
        notice.time = NoticeTime::Seen(now);
        Some(Due { node, notice, message, plan: None, told })
    }

    /// Acts on a notice until it has ended, and removes its plan. Returns its version, and whether EC2 need not list it any more.
    async fn carry_out(&self, due: Due, answers: &Answers) -> (Version, bool) {
        let Due { node, notice, message, plan, told } = due;
        let version = notice.version();
        let mut outcome = None;
        if !told {
            if plan.is_none() && !notice.is_withdrawn() {
                let (kind, instance) = (notice.kind(), notice.instance.as_str());
                self.facts.emit(&Fact::NoticeListed {
                    about: NoticeRef { kind, instance, node: Some(&node.name), message: &message },
                });
            }
            let copy = self.join(notice.clone(), &message);
            let visibility = watch::Sender::new(VISIBILITY_TIMEOUT);
            // A plan that is gone from its Node, or what EC2 no longer lists, is not begun any more.
            let listed = || answers.notices().iter().any(|listed| listed.version() == version);
            let end = tokio::select! {
                biased;
                end = self.ended(&copy, &visibility) => Some(end),
                () = self.not_to_begin(&node, &notice, |_| plan.is_none() && listed()) => None,
            };
            copy.leave().await;
            let Some(end) = end else { return (version, false) };
            // A notice that has not ended is tried again at the next scan.
            if verdict([end]) != Verdict::Delete {
                return (version, false);
            }
            outcome = end.ok();
        }
        let is_taken_back = match outcome {
            Some(NoticeOutcome::Withdrawn) => !notice.is_withdrawn(),
            // By another replica, which has the turn.
            Some(NoticeOutcome::Uncordoned) => {
                plan.as_ref().is_some_and(|plan| is_from_node(&plan.message))
                    && self.interrupter.index.newest(&node).is_some_and(|node| !says(&node, &notice.identity))
            }
            _ => false,
        };
        if is_taken_back {
            // Its withdrawal has removed what the Node carries. It may be announced again.
            self.outcomes.forget(&notice.identity);
            return (version, false);
        }
        if outcome.is_some_and(|outcome| self.is_tried_again(&notice, outcome)) {
            return (version, false);
        }
        // There may be room at a later scan, and EC2, or the Node, says it still. A message does not.
        let listed = notice.identity.ec2_id();
        let is_of_message =
            plan.as_ref().is_some_and(|plan| !is_from_node(&plan.message) && listed.as_deref() != Some(&*plan.message));
        if outcome == Some(NoticeOutcome::NotAdmitted) && !is_of_message {
            return (version, false);
        }
        // EC2 has listed something newer meanwhile, whose work this was, too.
        if plan.is_none() && !answers.notices().iter().any(|listed| listed.version() == version) {
            return (version, true);
        }
        let is_settled = self.settle(&node, &notice, plan.as_ref(), outcome).await;
        // A plan is on the Node for as long as it is needed; a dry run stores none, and would plan for ever.
        let is_planned = outcome == Some(NoticeOutcome::Planned) && !self.interrupter.policy.dry_run;
        (version, is_settled && !is_planned)
    }

    /// Whether work that calls have failed, or for which there was no room, is tried again: the change is still ahead, or the Node or EC2
    /// goes on saying the same. Its plan, or who has told of it, stays.
    pub(super) fn is_tried_again(&self, notice: &Notice, outcome: NoticeOutcome) -> bool {
        let is_ahead = || notice.start().is_some_and(|start| start > self.interrupter.clock.now());
        let goes_on = notice.kind().is_repair() || matches!(notice.identity, Identity::Agent { .. });
        matches!(outcome, NoticeOutcome::Failed | NoticeOutcome::NotAdmitted)
            && !notice.is_withdrawn()
            && (goes_on || is_ahead())
    }

    /// Notes on the Node that the notice has ended. `outcome` is `None` if a message told of it, too. Returns whether that is done.
    async fn settle(&self, node: &Node, notice: &Notice, plan: Option<&Plan>, outcome: Option<NoticeOutcome>) -> bool {
        let marker = &self.interrupter.marker;
        let by = Instant::now() + CALL_TIMEOUT;
        let mut written = Ok(true);
        if let Some(listed) = notice.identity.ec2_id().filter(|_| outcome.is_none_or(is_work)) {
            // A plan that a message brought is none of EC2's list, nor of a Node.
            if plan.is_none_or(|plan| plan.message == listed || is_from_node(&plan.message)) {
                // Another replica's answer may be older, and say that the check still fails since then.
                let write = !notice.is_withdrawn() || notice.kind() == NoticeKind::StatusCheck;
                written = marker.note_handled(node, notice, write, by).await;
            }
        }
        if let Some(plan) = plan.filter(|_| written.is_ok() && outcome != Some(NoticeOutcome::Planned)) {
            written = marker.plan(node, plan, false, by).await;
        }
        if let Err(error) = &written {
            self.facts.emit(&Fact::ReleaseFailed { on: node.named(), category: error.category, error });
        }
        written.is_ok()
    }

    /// Whether a message tells of a change before EC2 is known to list it.
    pub(super) fn is_told_first(&self, notice: &Notice) -> bool {
        let node = self.interrupter.index.get(&notice.instance);
        notice.is_listed_by_ec2() && node.is_some_and(|node| known(&node, notice).is_none())
    }

    /// Notes that a change, of which a message told, needs nothing any more, though EC2 lists it.
    pub(super) async fn note_told(&self, notice: &Notice, outcome: NoticeOutcome) {
        let node = self.interrupter.index.get(&notice.instance);
        if let Some(node) = node.filter(|_| is_work(outcome)) {
            let (write, by) = (!notice.is_withdrawn(), Instant::now() + CALL_TIMEOUT);
            // Without the note, EC2's list is acted on once more.
            let _ = self.interrupter.marker.note_handled(&node, notice, write, by).await;
        }
    }

    /// Returns the notice of a message with the Node that has said the same before, or that has it by another name if it is called off.
    pub(super) fn said_before(&self, notice: &Notice, message: &str) -> Option<(Arc<Node>, Notice)> {
        let node = self.interrupter.index.get(&notice.instance)?;
        let is_noted = if notice.is_withdrawn() {
            matches!(self.known_on(&node, notice), Some(KnownNotice::Same(identity)) if identity != notice.identity)
        } else {
            told::patch(&node, notice, message).is_some()
        };
        is_noted.then(|| (node, notice.clone()))
    }

    /// Returns by what the Node knows the notice of a message: what it has said itself, what EC2 lists, or that it needs nothing any more.
    fn known_on(&self, node: &Node, notice: &Notice) -> Option<KnownNotice> {
        if !notice.is_withdrawn() && is_handled(node, notice) {
            return Some(KnownNotice::Handled);
        }
        let said = same_as(node, notice, self.interrupter.clock.now());
        said.and_then(|said| known_as(node, &said)).or_else(|| known(node, notice))
    }

    /// Notes on the Node that a message has told what the Node had said; or that it has called that off, so that a late copy of an older
    /// message finds it.
    pub(super) async fn note_message(&self, (node, notice): (Arc<Node>, Notice), message: &str) {
        let called_off = |current: &Node| {
            let release = NodeRelease::of_withdrawn(current, notice.key(), notice.at(), true)?;
            (!release.has_marks()).then(|| release.patch(current, &self.interrupter.policy.mark_settings).body)
        };
        let patch = |current: &Node| {
            if notice.is_withdrawn() { called_off(current) } else { told::patch(current, &notice, message) }
        };
        let note = || self.interrupter.marker.note(&node, Instant::now() + CALL_TIMEOUT, patch);
        let failed = |error: &KubeError| {
            self.facts.emit(&Fact::ReleaseFailed { on: node.named(), category: error.category, error });
            error.category != Category::Denied
        };
        let backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
        // Its failures are told.
        let _ = backoff.retry(Some(Instant::now() + NOTE_TIMEOUT), note, failed).await;
    }

    /// Joins the notice of a message to the one that was acted on first because EC2 lists it, or because its Node gave it.
    pub(super) fn join_listed(&self, notice: Notice, message: &Arc<str>) -> NoticeCopy {
        let Some(node) = self.interrupter.index.get(&notice.instance) else { return self.join(notice, message) };
        match self.known_on(&node, &notice) {
            None => self.join(notice, message),
            Some(KnownNotice::Same(identity)) => {
                let before = message_of(&node, &identity).map(Arc::from);
                let copy = self.join(notice.with_identity(identity), before.as_ref().unwrap_or(message));
                if let NoticeCopy::Running(_, seat) = &copy {
                    seat.shared().confirmed.store(true, Ordering::Release);
                }
                copy
            }
            Some(KnownNotice::Handled) => {
                self.tell_joined(&notice, message);
                NoticeCopy::Late(NoticeOutcome::Drained)
            }
        }
    }
}

/// Whether the notice was acted on.
pub(super) const fn is_work(outcome: NoticeOutcome) -> bool {
    use NoticeOutcome::{Excluded, Ignored, NotAdmitted, NotOurs, Planned, Reported};
    !matches!(outcome, Planned | Ignored | Reported | NotOurs | Excluded | NotAdmitted)
}

/// Whether another replica drains the Node for the notice: its mark has a deadline ahead. A notice that is still due after half of the
/// time from `since`, when it was first seen due, to that deadline is probably one of a replica that has ended.
fn in_other_hands(Due { node, notice, .. }: &Due, since: Timestamp, now: Timestamp) -> bool {
    let deadline = deadline_of(node, notice.key(), notice.start());
    let deadline = deadline.filter(|_| !notice.is_withdrawn());
    deadline.is_some_and(|deadline| deadline.duration_since(now) > now.duration_since(since))
}
