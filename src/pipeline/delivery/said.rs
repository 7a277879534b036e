//! The work on what a Node says.

use super::nodes::{Done, RETRY_DELAY};
use super::plans::is_work;
use super::{CRASH_DELAY, Deliverer, NoticeCopy, Verdict, verdict};
use crate::clients::gate::CALL_TIMEOUT;
use crate::fact::{Fact, NoticeRef};
use crate::pipeline::event::{Detail, Identity, Notice, NoticeTime};
use crate::pipeline::interruption::{Interrupter, NoticeOutcome};
use crate::pipeline::node::Node;
use crate::pipeline::node::handled::{NodeNotice, message_of};
use crate::pipeline::node::mark::{has_had_mark, is_told_to_terminate};
use crate::pipeline::node::says::says;
use crate::pipeline::queue::VISIBILITY_TIMEOUT;
use crate::runtime::task::TaskError;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// Pause before a notice is tried again for which there was no room until its deadline.
const ROOM_DELAY: Duration = Duration::from_mins(5);

/// The end of the work on what a Node says.
enum SaidEnd {
    /// Nothing is left to do, and a note on the Node says so.
    Handled,
    /// Nothing is left to do, and nothing is noted.
    Unnoted,
    /// It is taken again after this pause, if the Node says it still.
    Again(Duration),
}

/// What follows a turn that has ended, while a hook is sought.
enum Next {
    /// The search is over, and has found this.
    Shows(Detail),
    /// It is left to others, or no longer said.
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
    /// It is left to others.
    Left,
    /// The search for its hook is over, and has found this.
    Shows(Detail),
}

impl Deliverer {
    /// Acts on a notice until it has ended, and notes that on its Node; if a message `told` of it, only notes it.
    pub(super) async fn carry_out_said(
        &self,
        node: Arc<Node>,
        said: NodeNotice,
        told: bool,
        cut: CancellationToken,
    ) -> Done {
        let NodeNotice { notice, message } = said;
        let version = notice.version();
        let end = if told { SaidEnd::Handled } else { self.work_on(&node, notice.clone(), message.into(), &cut).await };
        let pause = match end {
            SaidEnd::Unnoted => return (version, true),
            SaidEnd::Again(pause) => pause,
            SaidEnd::Handled => match self.note_end(&node, &notice).await {
                Ok(()) => return (version, true),
                Err(pause) => pause,
            },
        };
        tokio::select! {
            biased;
            () = cut.cancelled() => {}
            () = self.let_go(&node, &notice) => return (version, self.note_end(&node, &notice).await.is_ok()),
            () = sleep(pause) => {}
        }
        (version, false)
    }

    /// Notes on the Node that its notice needs nothing any more, or removes the note of what it has taken back. A dry run stores none.
    ///
    /// # Errors
    /// The pause before that is tried again.
    async fn note_end(&self, node: &Node, notice: &Notice) -> Result<(), Duration> {
        let Interrupter { index, marker, .. } = &*self.interrupter;
        let is_gone = index.newest(node).is_some_and(|node| !gives(&node, &notice.identity));
        let writes = !notice.is_withdrawn();
        if is_gone || !writes {
            // The Node may say the same again.
            self.outcomes.forget(&notice.identity);
        }
        if is_gone && writes {
            return Ok(());
        }
        let noted = marker.note_handled(node, notice, writes, Instant::now() + CALL_TIMEOUT).await;
        noted.map(drop).map_err(|error| {
            let (on, category) = (node.named(), error.category);
            self.facts.emit(&Fact::ReleaseFailed { on, category, error: &error });
            CRASH_DELAY
        })
    }

    /// Waits until somebody uncordons the Node after work that has failed, and is to be tried again: who wants the node to stay is not
    /// overruled. A Node that has taken back what it gave, or has restarted, is another matter.
    async fn let_go(&self, node: &Node, notice: &Notice) {
        let index = &self.interrupter.index;
        let carries = |known: &Node| message_of(known, &notice.identity).is_some();
        if notice.is_withdrawn() || !index.newest(node).is_some_and(|known| carries(&known)) {
            return pending().await;
        }
        let mut is_taken_back = false;
        let let_go = |known: Option<&Arc<Node>>| {
            let known = known?;
            // It may give the same again.
            is_taken_back |= !gives(known, &notice.identity);
            let is_free = !carries(known) && !known.cordoned && known.boot == node.boot;
            (is_free && !is_taken_back).then_some(())
        };
        index.until_node(node, let_go).await;
    }

    /// Acts on a notice until it has ended. If a hook is sought, goes on with what the search finds, and ends when that is over, too.
    async fn work_on(&self, node: &Node, mut notice: Notice, message: Arc<str>, cut: &CancellationToken) -> SaidEnd {
        let (kind, instance) = (notice.kind(), notice.instance.clone());
        let about = NoticeRef { kind, instance: instance.as_str(), node: Some(&node.name), message: &message };
        let has_failed = |outcome: &NoticeOutcome| *outcome == NoticeOutcome::Failed;
        let ended = self.outcomes.get(&notice.version()).filter(|outcome| !has_failed(outcome));
        if let Some(outcome) = ended.filter(|_| self.seeks(&notice)) {
            // Only the note was not written: its hook is no longer to be found.
            return self.said_end(&notice, Ok(outcome));
        }
        self.facts.emit(&Fact::NoticeAnnotated { about });
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
                seat.shared().by_node.store(true, Ordering::Release);
            }
            let end = loop {
                tokio::select! {
                    biased;
                    end = self.ended(&copy, &visibility) => break TurnEnd::Ended(end),
                    () = cut.cancelled() => break TurnEnd::Left,
                    () = self.told_with_a_hook(&notice) => break TurnEnd::Left,
                    () = self.not_to_begin(node, &notice, |node| gives(node, &notice.identity)) => break TurnEnd::Left,
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
                    let has_room = end != Ok(NoticeOutcome::NotAdmitted);
                    // Its hook may begin while a drain that has failed waits for its next try.
                    let waits = end.is_ok_and(|outcome| has_failed(&outcome)) && matches!(ended, SaidEnd::Again(_));
                    if is_kept || !sought.is_open || has_room && !waits && !matches!(ended, SaidEnd::Handled) {
                        return ended;
                    }
                    let next = tokio::select! {
                        biased;
                        () = cut.cancelled() => Next::Left,
                        () = self.unsaid(node, &notice) => Next::Left,
                        detail = self.hook_shows(&instance, &mut sought, &about) => Next::Shows(detail),
                        () = self.kept(node, &notice), if has_room => Next::Over,
                        () = sleep(ROOM_DELAY), if !has_room || waits => Next::Room,
                    };
                    match next {
                        Next::Shows(detail @ Detail::AsgTerminate(_)) => detail,
                        Next::Over => return SaidEnd::Handled,
                        Next::Shows(_) => return ended,
                        Next::Room => return SaidEnd::Again(Duration::ZERO),
                        Next::Left => {
                            // Another replica may undo it, or the Node says it again: then it is new.
                            self.outcomes.forget(&notice.identity);
                            return SaidEnd::Again(RETRY_DELAY);
                        }
                    }
                }
            };
            notice = notice.revised(NoticeTime::Seen(self.interrupter.clock.now()), detail);
        }
    }

    /// Waits until somebody wants the node to stay, after its drain.
    async fn kept(&self, node: &Node, notice: &Notice) {
        let key = notice.key();
        self.interrupter.drainer.uncordoned(node, has_had_mark(key)).await;
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
            (_, Ok(outcome)) if self.is_tried_again(notice, outcome) => SaidEnd::Again(ROOM_DELAY),
            // A plan is on the Node, and a notice without an effect leaves nothing there.
            (_, Ok(outcome)) if !is_work(outcome) => SaidEnd::Unnoted,
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

/// Whether the Node has the condition, or says the notice, with this identity.
fn gives(node: &Node, identity: &Identity) -> bool {
    match identity {
        Identity::Condition { condition, .. } => node.has_condition(condition),
        others => says(node, others),
    }
}

/// Whether a withdrawal that has ended so may have left what it withdraws.
const fn is_undone(outcome: NoticeOutcome) -> bool {
    matches!(outcome, NoticeOutcome::NotAdmitted) || is_work(outcome) && !matches!(outcome, NoticeOutcome::Withdrawn)
}
