//! The work on a notice that a Node reports: an agent notice, or a condition.

use super::nodes::{Done, RETRY_DELAY};
use super::offers::Offers;
use super::work::is_work;
use super::{CRASH_DELAY, Verdict, verdict};
use crate::clients::gate::CALL_TIMEOUT;
use crate::fact::{Fact, NoticeRef};
use crate::pipeline::event::{Detail, Identity, Notice, NoticeTime};
use crate::pipeline::interruption::{Interrupter, NoticeOutcome};
use crate::pipeline::node::Node;
use crate::pipeline::node::agent_notices::is_reported;
use crate::pipeline::node::handled::{NodeNotice, is_handled};
use crate::pipeline::node::record::has_had;
use crate::runtime::task::TaskError;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// Pause before another try of a notice for which there was no room until its deadline.
const ROOM_DELAY: Duration = Duration::from_mins(5);

/// The end of the work on a Node's notice.
enum WorkEnd {
    /// Nothing is left to do, and the Node gets a note of that.
    Handled,
    /// Nothing is left to do, and nothing is noted.
    Unnoted,
    /// The work is tried again after this pause, if the Node still reports the notice.
    Again(Duration),
}

/// What follows a turn that has ended, while a hook is searched.
enum Next {
    /// The search is over, with this result.
    Searched(Detail),
    /// Another replica takes the notice, or the Node no longer reports it.
    Left,
    /// Nothing.
    Over,
    /// There may be room now.
    Room,
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
    /// Works on a notice until it has ended, and notes that on its Node. A notice that a message `confirmed` is only noted.
    pub(super) async fn carry_out_node_notice(
        &self,
        node: Arc<Node>,
        reported: NodeNotice,
        confirmed: bool,
        cut: CancellationToken,
    ) -> Done {
        let NodeNotice { notice, message } = reported;
        let (version, message) = (notice.version(), Arc::<str>::from(message));
        let work = || self.work_on(&node, notice.clone(), Arc::clone(&message), &cut);
        let end = if confirmed { WorkEnd::Handled } else { work().await };
        let pause = match end {
            WorkEnd::Unnoted => return (version, true),
            WorkEnd::Again(pause) => pause,
            WorkEnd::Handled => match self.note_end(&node, &notice, &message).await {
                Ok(()) => return (version, true),
                Err(pause) => pause,
            },
        };
        tokio::select! {
            biased;
            () = cut.cancelled() => {}
            () = self.ended_by_user(&node, &notice), if !notice.is_withdrawn() => return (version, true),
            () = sleep(pause) => {}
        }
        (version, false)
    }

    /// Notes on the Node that its notice is handled, or removes the note if the notice is withdrawn. A dry run stores no notes.
    ///
    /// # Errors
    /// The pause before the next try.
    async fn note_end(&self, node: &Node, notice: &Notice, message: &str) -> Result<(), Duration> {
        let Interrupter { index, marker, .. } = &*self.interrupter;
        let is_gone = index.newest(node).is_some_and(|node| !reports(&node, &notice.identity));
        let writes = !notice.is_withdrawn();
        if is_gone || !writes {
            // The Node may report the same again.
            self.interruptions.outcomes.forget(&notice.identity);
        }
        if is_gone && writes {
            return Ok(());
        }
        let by = Instant::now() + CALL_TIMEOUT;
        let noted = if writes {
            marker.end(node, notice, message, None, by).await
        } else {
            marker.forget_end(node, notice, by).await
        };
        noted.map(drop).map_err(|error| {
            let (on, category) = (node.named(), error.category);
            self.interrupter.facts.emit(&Fact::ReleaseFailed { on, category, error: &error });
            CRASH_DELAY
        })
    }

    /// Waits until a user has ended a notice that would be tried again, by an uncordon.
    async fn ended_by_user(&self, node: &Node, notice: &Notice) {
        let is_ended = |known: Option<&Arc<Node>>| known.filter(|known| is_handled(known, notice)).map(drop);
        self.interrupter.index.until_node(node, is_ended).await;
    }

    /// Works on a notice until it has ended. If a hook is searched, continues with the result, and ends when that has ended too.
    async fn work_on(&self, node: &Node, mut notice: Notice, message: Arc<str>, cut: &CancellationToken) -> WorkEnd {
        let (kind, instance) = (notice.kind(), notice.instance.clone());
        let about = NoticeRef { kind, instance: instance.as_str(), node: Some(&node.name), message: &message };
        let has_failed = |outcome: &NoticeOutcome| *outcome == NoticeOutcome::Failed;
        let ended = self.interruptions.outcomes.get(&notice.version()).filter(|outcome| !has_failed(outcome));
        if let Some(outcome) = ended.filter(|_| self.seeks(&notice)) {
            // Only the note was not written. The hook can't be found any more.
            return self.work_end(&notice, Ok(outcome));
        }
        let found = tokio::select! {
            biased;
            () = cut.cancelled() => None,
            found = self.seek_hook(node, &mut notice, &about) => found,
        };
        let Some(mut search) = found else { return WorkEnd::Again(RETRY_DELAY) };
        if search.is_by_request && notice.hook().is_none() {
            // The notice for which the group was asked drains the node.
            return WorkEnd::Handled;
        }
        loop {
            let outcome = self.interruptions.outcomes.get(&notice.version());
            if notice.hook().is_some() && outcome != Some(NoticeOutcome::Uncordoned) {
                // The drain may be over while the hook is not.
                self.interruptions.outcomes.forget(&notice.identity);
            }
            let copy = self.interruptions.join(notice.clone(), &message);
            if let Some(link) = copy.link() {
                // A Node of this cluster reports it.
                link.by_node.store(true, Ordering::Release);
            }
            let end = loop {
                tokio::select! {
                    biased;
                    end = self.interruptions.ended(&copy) => break TurnEnd::Ended(end),
                    () = cut.cancelled() => break TurnEnd::Left,
                    () = self.confirmed_with_hook(&notice) => break TurnEnd::Left,
                    () = self.brake.dropped_before_start(node, &notice, |node| reports(node, &notice.identity)) => break TurnEnd::Left,
                    detail = self.search_ended(&instance, &mut search, &about) => if detail != notice.detail {
                        break TurnEnd::Searched(detail);
                    }
                }
            };
            copy.leave().await;
            let detail = match end {
                TurnEnd::Left => return WorkEnd::Again(Duration::ZERO),
                TurnEnd::Searched(detail) => detail,
                TurnEnd::Ended(end) => {
                    let ended = self.work_end(&notice, end);
                    // A user who uncordons wants the node to stay, whether its instance waits at a hook or not.
                    let is_kept = end == Ok(NoticeOutcome::Uncordoned);
                    let has_room = end != Ok(NoticeOutcome::NotAdmitted);
                    // The hook may start while a failed drain waits for its next try.
                    let waits = end.is_ok_and(|outcome| has_failed(&outcome)) && matches!(ended, WorkEnd::Again(_));
                    if is_kept || !search.is_open || has_room && !waits && !matches!(ended, WorkEnd::Handled) {
                        return ended;
                    }
                    let next = tokio::select! {
                        biased;
                        () = cut.cancelled() => Next::Left,
                        () = self.withdrawn_by_node(node, &notice) => Next::Left,
                        detail = self.search_ended(&instance, &mut search, &about) => Next::Searched(detail),
                        () = self.kept(node, &notice), if has_room => Next::Over,
                        () = sleep(ROOM_DELAY), if !has_room || waits => Next::Room,
                    };
                    match next {
                        Next::Searched(detail @ Detail::AsgTerminate(_)) => detail,
                        Next::Over => return WorkEnd::Handled,
                        Next::Searched(_) => return ended,
                        Next::Room => return WorkEnd::Again(Duration::ZERO),
                        Next::Left => {
                            // Another replica may undo the work, or the Node may report the notice again: then it is new.
                            self.interruptions.outcomes.forget(&notice.identity);
                            return WorkEnd::Again(RETRY_DELAY);
                        }
                    }
                }
            };
            notice = notice.revised(NoticeTime::Seen(self.interrupter.clock.now()), detail);
        }
    }

    /// Waits until a user keeps the node by an uncordon after its drain.
    async fn kept(&self, node: &Node, notice: &Notice) {
        let key = notice.key();
        self.interrupter.drainer.uncordoned(node, has_had(key)).await;
    }

    /// Returns what is left to do after this end of the notice.
    fn work_end(&self, notice: &Notice, end: Result<NoticeOutcome, TaskError>) -> WorkEnd {
        match (verdict([end]), end) {
            (Verdict::Release(after), _) => WorkEnd::Again(after.clamp(RETRY_DELAY, CRASH_DELAY)),
            // The withdrawal failed, is not confirmed by AWS, or joined work that ended before the change could be called off: the mark
            // stays until the next try.
            (_, Ok(outcome)) if notice.is_withdrawn() && is_undone(outcome) => {
                self.interruptions.outcomes.forget(&notice.identity);
                WorkEnd::Again(CRASH_DELAY)
            }
            // The Node withdrew the notice during the work, and the withdrawal removes the note.
            (_, Ok(NoticeOutcome::Withdrawn)) if !notice.is_withdrawn() => {
                self.interruptions.outcomes.forget(&notice.identity);
                WorkEnd::Again(Duration::ZERO)
            }
            // There may be room later, while the Node still reports the notice.
            (_, Ok(NoticeOutcome::NotAdmitted)) => WorkEnd::Again(ROOM_DELAY),
            (_, Ok(outcome)) if self.is_tried_again(notice, outcome) => WorkEnd::Again(ROOM_DELAY),
            // A plan is on the Node, and a notice without an effect leaves nothing there.
            (_, Ok(outcome)) if !is_work(outcome) => WorkEnd::Unnoted,
            _ => WorkEnd::Handled,
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

/// Whether the Node has the condition, or reports the agent notice, with this identity.
fn reports(node: &Node, identity: &Identity) -> bool {
    match identity {
        Identity::Condition { condition, .. } => node.has_condition(condition),
        others => is_reported(node, others),
    }
}

/// Whether a withdrawal with this outcome may have left marks of what it withdraws.
const fn is_undone(outcome: NoticeOutcome) -> bool {
    matches!(outcome, NoticeOutcome::NotAdmitted) || is_work(outcome) && !matches!(outcome, NoticeOutcome::Withdrawn)
}
