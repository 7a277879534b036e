//! The work on an offer, until its notice has ended and that is noted.

use super::messages::{CRASH_DELAY, Verdict, verdict};
use super::offers::{Done, Offer, Offers, Origin, Source};
use super::outcome_cache::is_work;
use crate::clients::gate::{CALL_TIMEOUT, KubeError};
use crate::fact::{Fact, NoticeKind};
use crate::pipeline::event::{Detail, Identity, Notice, NoticeTime};
use crate::pipeline::interruption::{Interrupter, NoticeOutcome};
use crate::pipeline::node::agent_notices::is_reported;
use crate::pipeline::node::handled::{Standing, is_handled};
use crate::pipeline::node::record::has_had;
use crate::pipeline::node::{Node, is_from_node};
use crate::runtime::task::TaskError;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// Minimum pause before another try of a notice that has not ended.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Pause before another try of a notice for which there was no room until its deadline.
const ROOM_DELAY: Duration = Duration::from_mins(5);

/// The end of the work on an offer.
enum WorkEnd {
    /// Nothing is left to do, and the Node gets a note of that.
    Handled,
    /// Nothing is left to do, and nothing is noted.
    Unnoted,
    /// The work is tried again after this pause, if the source still offers the notice.
    Again(Duration),
}

/// The first event that ends a turn of that work.
enum TurnEnd {
    /// The notice has ended.
    Ended(Result<NoticeOutcome, TaskError>),
    /// The notice is left to another replica, or dropped.
    Left,
    /// The search for the hook is over, with this result.
    Searched(Detail),
}

impl Offers {
    /// Works on an offer until its notice has ended, and notes that on its Node. An offer that a message announced too is only noted.
    pub(super) async fn work(&self, source: &dyn Source, offer: Offer, cut: CancellationToken) -> Done {
        let Offer { node, notice, standing, .. } = &offer;
        let end = match standing {
            Standing::Announced => WorkEnd::Handled,
            _ => self.work_on(source, &offer, &cut).await,
        };
        let is_settled = match self.note(source, &offer, end).await {
            Ok(()) => true,
            Err(pause) => tokio::select! {
                biased;
                () = cut.cancelled() => false,
                // A user has ended it by an uncordon.
                () = self.shown(node, |node| is_handled(node, notice)), if !notice.is_withdrawn() => true,
                () = sleep(pause) => false,
            },
        };
        if is_settled && cut.is_cancelled() {
            // Another replica may undo the work.
            self.interruptions.outcomes.forget(&notice.identity);
        }
        (notice.version(), (is_settled && !cut.is_cancelled()).then(|| Arc::clone(&node.uid)))
    }

    /// Notes the end of the work on the Node, and removes the plan of a change that needs nothing more. A dry run stores no notes.
    ///
    /// # Errors
    /// The pause before the next try.
    async fn note(&self, source: &dyn Source, offer: &Offer, end: WorkEnd) -> Result<(), Duration> {
        let Interrupter { marker, facts, .. } = &*self.interrupter;
        let mut noted = match end {
            WorkEnd::Handled => self.note_end(source, offer).await,
            WorkEnd::Unnoted => Ok(true),
            WorkEnd::Again(pause) => return Err(pause),
        };
        if let (Some(plan), Ok(_)) = (offer.plan(), &noted) {
            noted = marker.plan(&offer.node, plan, false, Instant::now() + CALL_TIMEOUT).await;
        }
        noted.map(drop).map_err(|error| {
            let (on, category) = (offer.node.named(), error.category);
            facts.emit(&Fact::ReleaseFailed { on, category, error: &error });
            CRASH_DELAY
        })
    }

    /// Notes on the Node that the notice is handled, or removes the note if the notice is withdrawn.
    async fn note_end(&self, source: &dyn Source, offer: &Offer) -> Result<bool, KubeError> {
        let Interrupter { index, marker, .. } = &*self.interrupter;
        let Offer { node, notice, message, origin, .. } = offer;
        let plan = offer.plan();
        let is_gone = plan.is_none() && index.newest(node).is_some_and(|node| !source.still(offer, &node));
        // Another replica's answer may be older, and still show the check as failing since then.
        let writes = !notice.is_withdrawn() || notice.kind() == NoticeKind::StatusCheck;
        if matches!(origin, Origin::Node) && (is_gone || !writes) {
            // The Node may report the same again.
            self.interruptions.outcomes.forget(&notice.identity);
        }
        let by = Instant::now() + CALL_TIMEOUT;
        if !writes {
            marker.forget_end(node, notice, by).await
        } else if is_gone || offer.comes_once() {
            Ok(true)
        } else {
            marker.end(node, notice, message, plan, by).await
        }
    }

    /// Works on a notice until it has ended. If a hook is searched, continues with the result, and ends when that has ended too.
    async fn work_on(&self, source: &dyn Source, offer: &Offer, cut: &CancellationToken) -> WorkEnd {
        let Offer { node, message, origin, .. } = offer;
        let outcomes = &self.interruptions.outcomes;
        let mut notice = offer.notice.clone();
        let about = offer.notice.about(Some(&node.name), message);
        let has_failed = |outcome: &NoticeOutcome| *outcome == NoticeOutcome::Failed;
        let ended = outcomes.get(&notice.version()).filter(|outcome| !has_failed(outcome));
        if let Some(outcome) = ended.filter(|_| self.seeks(&notice)) {
            // Only the note was not written. The hook can't be found any more.
            return self.work_end(offer, Ok(outcome));
        }
        let found = tokio::select! {
            biased;
            () = cut.cancelled() => None,
            found = self.seek_hook(offer, &mut notice, &about) => found,
        };
        let Some(mut search) = found else { return WorkEnd::Again(RETRY_DELAY) };
        if search.is_by_request && notice.hook().is_none() {
            // The notice for which the group was asked drains the node.
            return WorkEnd::Handled;
        }
        loop {
            let outcome = outcomes.get(&notice.version());
            if notice.hook().is_some() && outcome != Some(NoticeOutcome::Uncordoned) {
                // The drain may be over while the hook is not.
                outcomes.forget(&notice.identity);
            }
            let copy = self.interruptions.join(notice.clone(), message);
            if let (Origin::Node, Some(link)) = (origin, copy.link()) {
                // A Node of this cluster reports it.
                link.by_node.store(true, Ordering::Release);
            }
            let end = loop {
                tokio::select! {
                    biased;
                    end = self.interruptions.ended(&copy) => break TurnEnd::Ended(end),
                    () = cut.cancelled() => break TurnEnd::Left,
                    () = self.confirmed_with_hook(&notice) => break TurnEnd::Left,
                    () = self.brake.dropped_before_start(node, &notice, |node| source.still(offer, node)) => break TurnEnd::Left,
                    detail = self.search_ended(&notice.instance, &mut search, &about) => if detail != notice.detail {
                        break TurnEnd::Searched(detail);
                    }
                }
            };
            copy.leave().await;
            let detail = match end {
                TurnEnd::Left => return WorkEnd::Again(Duration::ZERO),
                TurnEnd::Searched(detail) => detail,
                TurnEnd::Ended(end) => {
                    let ended = self.work_end(offer, end);
                    // A user who uncordons wants the node to stay, whether its instance waits at a hook or not.
                    let is_kept = end == Ok(NoticeOutcome::Uncordoned);
                    let has_room = end != Ok(NoticeOutcome::NotAdmitted);
                    // The hook may start while a failed drain waits for its next try.
                    let waits = end.is_ok_and(|outcome| has_failed(&outcome)) && matches!(ended, WorkEnd::Again(_));
                    if is_kept || !search.is_open || has_room && !waits && !matches!(ended, WorkEnd::Handled) {
                        return ended;
                    }
                    let left = || {
                        // Another replica may undo the work, or the Node may report the notice again: then it is new.
                        outcomes.forget(&notice.identity);
                        WorkEnd::Again(RETRY_DELAY)
                    };
                    tokio::select! {
                        biased;
                        () = cut.cancelled() => return left(),
                        () = self.withdrawn_by_node(node, &notice) => return left(),
                        detail = self.search_ended(&notice.instance, &mut search, &about) => match detail {
                            Detail::AsgTerminate(_) => detail,
                            _ => return ended,
                        },
                        // A user has kept the node by an uncordon after its drain.
                        () = self.interrupter.drainer.uncordoned(node, has_had(notice.key())), if has_room => {
                            return WorkEnd::Handled;
                        }
                        // There may be room now.
                        () = sleep(ROOM_DELAY), if !has_room || waits => return WorkEnd::Again(Duration::ZERO),
                    }
                }
            };
            notice = notice.revised(NoticeTime::Seen(self.interrupter.clock.now()), detail);
        }
    }

    /// Waits until the Node's newest version is so.
    pub(super) async fn shown(&self, node: &Node, is_so: impl Fn(&Node) -> bool) {
        self.interrupter.index.until_node(node, |node| node.filter(|node| is_so(node)).map(drop)).await;
    }

    /// Returns what is left to do after this end of the notice.
    fn work_end(&self, offer: &Offer, end: Result<NoticeOutcome, TaskError>) -> WorkEnd {
        let Offer { notice, origin, .. } = offer;
        let outcomes = &self.interruptions.outcomes;
        // Other sources have their own pauses between rounds.
        let pause = if matches!(origin, Origin::Node) { ROOM_DELAY } else { Duration::ZERO };
        if self.interrupter.index.get(&notice.instance).is_none() {
            // The source may offer it for the instance's next Node.
            outcomes.forget(&notice.identity);
        }
        match (verdict([end]), end) {
            (Verdict::Release(after), _) => WorkEnd::Again(after.clamp(RETRY_DELAY, CRASH_DELAY)),
            // The withdrawal failed, is not confirmed by AWS, or joined work that ended before the change could be called off: the mark
            // stays until the next try.
            (_, Ok(outcome)) if notice.is_withdrawn() && is_undone(outcome) => {
                outcomes.forget(&notice.identity);
                WorkEnd::Again(CRASH_DELAY)
            }
            // The withdrawal removes the note.
            (_, Ok(outcome)) if self.is_taken_back(offer, outcome) => {
                outcomes.forget(&notice.identity);
                WorkEnd::Again(Duration::ZERO)
            }
            (_, Ok(outcome)) if self.is_tried_again(offer, outcome) => WorkEnd::Again(pause),
            // A plan is on the Node, and a notice without an effect leaves nothing there.
            (_, Ok(outcome)) if !is_work(outcome) => WorkEnd::Unnoted,
            _ => WorkEnd::Handled,
        }
    }

    /// Whether the source withdrew the notice during the work.
    fn is_taken_back(&self, offer: &Offer, outcome: NoticeOutcome) -> bool {
        let Offer { node, notice, .. } = offer;
        let newest = || self.interrupter.index.newest(node);
        match outcome {
            NoticeOutcome::Withdrawn => !notice.is_withdrawn(),
            // The replica that has the turn has removed the marks.
            NoticeOutcome::Uncordoned => {
                offer.plan().is_some_and(|plan| is_from_node(&plan.message))
                    && newest().is_some_and(|node| !is_reported(&node, &notice.identity))
            }
            _ => false,
        }
    }

    /// Whether work that failed, or for which there was no room, is tried again: the change is still ahead, or the source continues to
    /// offer the notice. Its plan stays.
    fn is_tried_again(&self, offer: &Offer, outcome: NoticeOutcome) -> bool {
        let Offer { notice, origin, .. } = offer;
        let clock = &self.interrupter.clock;
        let is_ahead = || notice.start().is_some_and(|start| start > clock.now());
        match outcome {
            // There may be room later.
            NoticeOutcome::NotAdmitted => !offer.comes_once() || is_ahead(),
            NoticeOutcome::Failed => {
                notice.kind().is_repair() || matches!(notice.identity, Identity::Agent { .. }) || is_ahead()
            }
            // EC2 may name another start while the Node keeps the plan. A dry run stores none, and would plan for ever.
            NoticeOutcome::Planned => !matches!(origin, Origin::Node) && !self.interrupter.policy().dry_run,
            _ => false,
        }
    }

    /// Waits until a lifecycle hook's message, received by any replica, confirms the termination that the agent reported: the hook's
    /// deadline decides then, and the hook's mark has replaced the agent notice's.
    async fn confirmed_with_hook(&self, notice: &Notice) {
        if !matches!(notice.detail, Detail::AsgTermination { .. }) {
            return pending().await;
        }
        let is_confirmed =
            |node: Option<&Arc<Node>>| node.filter(|node| node.record.is_termination_announced()).map(drop);
        self.interrupter.index.until(&notice.instance, is_confirmed).await;
    }
}

/// Whether a withdrawal with this outcome may have left marks of what it withdraws.
const fn is_undone(outcome: NoticeOutcome) -> bool {
    matches!(outcome, NoticeOutcome::NotAdmitted) || is_work(outcome) && !matches!(outcome, NoticeOutcome::Withdrawn)
}
