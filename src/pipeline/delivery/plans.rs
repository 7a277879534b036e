//! Notices that are worked on without a message: planned changes, kept on their Nodes until they are near, and listed notices. There is no
//! receipt. The plan stays on the Node, and EC2 continues to list the change, until the notice has ended, so another replica continues
//! after a crash.

use super::inherited;
use super::polling::{Answers, PollSettings};
use super::repairs::Repairs;
use super::{Deliverer, NoticeCopy, Verdict, verdict};
use crate::clients::gate::{Backoff, CALL_TIMEOUT, Category, KubeError};
use crate::fact::{Fact, NoticeKind, NoticeRef};
use crate::pipeline::event::{CapacityBlock, Detail, Identity, Notice, NoticeKey, NoticeTime, Version};
use crate::pipeline::interruption::NoticeOutcome;
use crate::pipeline::node::agent_notices::{is_reported, reported_copy};
use crate::pipeline::node::confirmation;
use crate::pipeline::node::handled::{KnownNotice, Standing, is_handled, known, known_as, standing};
use crate::pipeline::node::is_from_node;
use crate::pipeline::node::plan;
use crate::pipeline::node::record::NoticeRecord;
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

/// Mean interval between scans of the plans on Nodes and of the listed notices.
const SCAN_INTERVAL: Duration = Duration::from_mins(1);

/// Maximum time for which a scan waits for a server's time: with a clock that is ahead, a plan would be carried out too early.
const FIRST_ANSWER_TIMEOUT: Duration = Duration::from_mins(1);

/// Maximum time to write the note that a message confirms an agent notice.
const NOTE_TIMEOUT: Duration = Duration::from_mins(1);

/// A notice that is due, without a message.
struct Due {
    node: Arc<Node>,
    notice: Notice,
    /// The ID of the message that brought it, or EC2's ID.
    message: Arc<str>,
    /// The plan that keeps it.
    plan: Option<NoticeRecord>,
    /// Whether a message announced it too: only a note of that is due.
    announced: bool,
}

impl Deliverer {
    /// Works on notices without messages. Runs until aborted.
    pub async fn act_without_messages(self: Arc<Self>, polling: Option<PollSettings>) {
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
        // The plans that were due at the last scan, but for those that wait.
        let mut planned: HashSet<Version> = HashSet::new();
        let mut repairs = Repairs::default();
        loop {
            // Jittered, so that a replica sees another's mark before it starts itself.
            let pause = async {
                sleep(random::jittered(SCAN_INTERVAL, 0.5..1.5)).await;
                // An outdated index may show plans that were carried out long ago.
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
            inherited::write(&self.interrupter, now).await;
            let mut plans = self.planned(now);
            plans.retain(|due| planned.contains(&due.notice.version()) || self.refusals.admits(&due.node));
            planned = plans.iter().map(|due| due.notice.version()).collect();
            let due = plans.into_iter().chain(listed.filter_map(|notice| self.listed(notice, now)));
            let known = std::mem::take(&mut since);
            for due in due {
                let identity = due.notice.identity.clone();
                let first = *since.entry(identity.clone()).or_insert(known.get(&identity).copied().unwrap_or(now));
                let is_ours = due.announced || !is_held_by_another(&due, first, now);
                let version = due.notice.version();
                if !is_ours || versions_running.contains(&version) || self.holds_check(&due, &brake, &mut repairs) {
                    continue;
                }
                // A newer version joins the work on the one before, and revises it.
                versions_running.insert(version);
                running.push(Box::pin(self.carry_out(due, answers)));
            }
            repairs.report(NoticeKind::StatusCheck, &self.facts);
        }
    }

    /// Whether the work on a failing status check is held back: too many fail, or the instance is terminated for another reason.
    fn holds_check(&self, Due { node, notice, .. }: &Due, brake: &Brake, repairs: &mut Repairs) -> bool {
        self.starts_repair(node, notice) && (node.record.is_leaving() || repairs.hold(brake, node))
    }

    /// Returns the planned changes that are near.
    fn planned(&self, now: Timestamp) -> Vec<Due> {
        let due = |(node, _, plan): (Arc<Node>, NoticeKey, NoticeRecord)| {
            let (notice, message) = (plan::notice(&plan, &node.instance)?, Arc::from(&*plan.message));
            Some(Due { node, notice, message, plan: Some(plan), announced: false })
        };
        let plans = self.interrupter.index.kept(now).into_iter().filter_map(due);
        let is_near = |due: &Due| self.interrupter.policy.acts_from(&due.notice).is_none_or(|from| from <= now);
        plans.filter(|due| is_near(due) && self.refusals.heeds(&due.node)).collect()
    }

    /// Returns what is due for a listed notice, if anything.
    fn listed(&self, mut notice: Notice, now: Timestamp) -> Option<Due> {
        let node = self.interrupter.index.get(&notice.instance).filter(|node| !node.is_excluded())?;
        if CapacityBlock::warned_of(&notice).is_some_and(|from| from > now) {
            return None;
        }
        let announced = match standing(&node, &notice, notice.identity.ec2_id().as_deref()) {
            Standing::Settled => return None,
            Standing::Announced => true,
            Standing::Open => false,
        };
        let message = Arc::from(&*notice.identity.ec2_id()?);
        // Newer than the mark of another replica, whose work this one continues.
        notice.time = NoticeTime::Seen(now);
        Some(Due { node, notice, message, plan: None, announced })
    }

    /// Works on a notice until it has ended, and removes its plan. Returns its version, and whether it needs nothing more of this process.
    async fn carry_out(&self, due: Due, answers: &Answers) -> (Version, bool) {
        let Due { node, notice, message, plan, announced } = due;
        let version = notice.version();
        let mut outcome = None;
        if !announced {
            if plan.is_none() && !notice.is_withdrawn() {
                let (kind, instance) = (notice.kind(), notice.instance.as_str());
                self.facts.emit(&Fact::NoticeListed {
                    about: NoticeRef { kind, instance, node: Some(&node.name), message: &message },
                });
            }
            let copy = self.join(notice.clone(), &message);
            let visibility = watch::Sender::new(VISIBILITY_TIMEOUT);
            // Without its plan or its entry in EC2's list, pending work is dropped.
            let listed = || answers.notices().iter().any(|listed| listed.version() == version);
            let end = tokio::select! {
                biased;
                end = self.ended(&copy, &visibility) => Some(end),
                () = self.dropped_before_start(&node, &notice, |_| plan.is_none() && listed()) => None,
            };
            copy.leave().await;
            let Some(end) = end else { return (version, false) };
            // A notice that has not ended is tried again at the next scan.
            if verdict([end]) != Verdict::Delete {
                return (version, false);
            }
            outcome = end.ok();
        }
        let is_withdrawn = match outcome {
            Some(NoticeOutcome::Withdrawn) => !notice.is_withdrawn(),
            // Another replica, which has the turn, removed the marks.
            Some(NoticeOutcome::Uncordoned) => {
                plan.as_ref().is_some_and(|plan| is_from_node(&plan.message))
                    && self.interrupter.index.newest(&node).is_some_and(|node| !is_reported(&node, &notice.identity))
            }
            _ => false,
        };
        if is_withdrawn {
            // The withdrawal has removed the annotations. The notice may be announced again.
            self.outcomes.forget(&notice.identity);
            return (version, false);
        }
        if outcome.is_some_and(|outcome| self.is_tried_again(&notice, outcome)) {
            return (version, false);
        }
        // There may be room at a later scan, while EC2 or the Node still reports the notice. A message comes once.
        let listed = notice.identity.ec2_id();
        let is_of_message =
            plan.as_ref().is_some_and(|plan| !is_from_node(&plan.message) && listed.as_deref() != Some(&*plan.message));
        if outcome == Some(NoticeOutcome::NotAdmitted) && !is_of_message {
            return (version, false);
        }
        // EC2 has listed a newer version meanwhile, which this work was for too.
        if plan.is_none() && !answers.notices().iter().any(|listed| listed.version() == version) {
            return (version, true);
        }
        let is_settled = self.settle(&node, (&notice, &message), plan.as_ref(), outcome).await;
        // A plan stays on the Node for as long as it is needed; a dry run stores none, and would plan for ever.
        let is_planned = outcome == Some(NoticeOutcome::Planned) && !self.interrupter.policy.dry_run;
        (version, is_settled && !is_planned)
    }

    /// Whether work that failed, or for which there was no room, is tried again: the change is still ahead, or the Node or EC2 continues to
    /// report the notice. Its plan or its source stays.
    pub(super) fn is_tried_again(&self, notice: &Notice, outcome: NoticeOutcome) -> bool {
        let is_ahead = || notice.start().is_some_and(|start| start > self.interrupter.clock.now());
        let is_repeated = notice.kind().is_repair() || matches!(notice.identity, Identity::Agent { .. });
        matches!(outcome, NoticeOutcome::Failed | NoticeOutcome::NotAdmitted)
            && !notice.is_withdrawn()
            && (is_repeated || is_ahead())
    }

    /// Notes on the Node that the notice has ended. `outcome` is `None` if a message announced it too. Returns whether that is done.
    async fn settle(
        &self,
        node: &Node,
        (notice, message): (&Notice, &str),
        plan: Option<&NoticeRecord>,
        outcome: Option<NoticeOutcome>,
    ) -> bool {
        let marker = &self.interrupter.marker;
        let by = Instant::now() + CALL_TIMEOUT;
        let mut written = Ok(true);
        if let Some(listed) = notice.identity.ec2_id().filter(|_| outcome.is_none_or(is_work)) {
            // Plans created from messages don't appear in EC2's list or in agent notices.
            if plan.is_none_or(|plan| plan.message == listed || is_from_node(&plan.message)) {
                // Another replica's answer may be older, and still show the check as failing since then.
                written = if !notice.is_withdrawn() || notice.kind() == NoticeKind::StatusCheck {
                    marker.end(node, notice, message, plan, by).await
                } else {
                    marker.forget_end(node, notice, by).await
                };
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

    /// Whether a message announces a change before EC2 is known to list it.
    pub(super) fn is_announced_first(&self, notice: &Notice) -> bool {
        let node = self.interrupter.index.get(&notice.instance);
        notice.is_listed_by_ec2() && node.is_some_and(|node| known(&node, notice).is_none())
    }

    /// Notes that a change announced by a message is handled, although EC2 lists it.
    pub(super) async fn note_listed(&self, notice: &Notice, message: &str, outcome: NoticeOutcome) {
        let (marker, by) = (&self.interrupter.marker, Instant::now() + CALL_TIMEOUT);
        let node = self.interrupter.index.get(&notice.instance);
        if let Some(node) = node.filter(|_| is_work(outcome) && !notice.is_withdrawn()) {
            // Without the note, the listed notice is worked on once more.
            let _ = marker.end(&node, notice, message, None, by).await;
        }
    }

    /// Returns a message's notice with the Node that has it from another source.
    pub(super) fn reported_before(&self, notice: &Notice, message: &str) -> Option<(Arc<Node>, Notice)> {
        let node = self.interrupter.index.get(&notice.instance)?;
        confirmation::patch(&node, notice, message).map(|_| (node, notice.clone()))
    }

    /// Returns what the Node shows of a message's notice: an agent notice or a listed notice of the same, or that it is handled.
    fn known_on(&self, node: &Node, notice: &Notice) -> Option<KnownNotice> {
        if !notice.is_withdrawn() && is_handled(node, notice) {
            return Some(KnownNotice::Handled);
        }
        let reported = reported_copy(node, notice, self.interrupter.clock.now());
        reported.and_then(|reported| known_as(node, &reported)).or_else(|| known(node, notice))
    }

    /// Notes on the Node that a message confirms what another source has reported.
    pub(super) async fn note_confirmation(&self, (node, notice): (Arc<Node>, Notice), message: &str) {
        let patch = |current: &Node| confirmation::patch(current, &notice, message);
        let note = || self.interrupter.marker.note(&node, Instant::now() + CALL_TIMEOUT, patch);
        let failed = |error: &KubeError| {
            self.facts.emit(&Fact::ReleaseFailed { on: node.named(), category: error.category, error });
            error.category != Category::Denied
        };
        let backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
        // Failures are reported above.
        let _ = backoff.retry(Some(Instant::now() + NOTE_TIMEOUT), note, failed).await;
    }

    /// Joins a message's notice to the listed notice or agent notice of the same that came first.
    pub(super) fn join_listed(&self, notice: Notice, message: &Arc<str>) -> NoticeCopy {
        let Some(node) = self.interrupter.index.get(&notice.instance) else { return self.join(notice, message) };
        match self.known_on(&node, &notice) {
            None => self.join(notice, message),
            Some(KnownNotice::Same(identity)) => {
                let before = node.record.message(identity.key()).map(Arc::from);
                let copy = self.join(notice.with_identity(identity), before.as_ref().unwrap_or(message));
                if let NoticeCopy::Running(_, seat) = &copy {
                    seat.shared().confirmed.store(true, Ordering::Release);
                }
                copy
            }
            Some(KnownNotice::Handled) => {
                self.report_joined(&notice, message);
                NoticeCopy::Late(NoticeOutcome::Drained)
            }
        }
    }
}

/// Whether the notice was worked on to its end.
pub(super) const fn is_work(outcome: NoticeOutcome) -> bool {
    use NoticeOutcome::{Crashed, Excluded, HandedOver, Ignored, NotAdmitted, NotOurs, Planned, Reported};
    !matches!(outcome, Crashed | HandedOver | Planned | Ignored | Reported | NotOurs | Excluded | NotAdmitted)
}

/// Whether another replica drains the Node for the notice: its mark has a deadline ahead. A notice that is still due after half of the
/// time from `since`, when it was first due, to that deadline probably belonged to a replica that has ended.
fn is_held_by_another(Due { node, notice, .. }: &Due, since: Timestamp, now: Timestamp) -> bool {
    let deadline = node.record.deadline(notice.key(), notice.start());
    let deadline = deadline.filter(|_| !notice.is_withdrawn());
    deadline.is_some_and(|deadline| deadline.duration_since(now) > now.duration_since(since))
}
