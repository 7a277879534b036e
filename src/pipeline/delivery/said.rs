//! The work on what a Node says.

use super::nodes::{Done, RETRY_DELAY};
use super::plans::is_work;
use super::{CRASH_DELAY, Deliverer, NoticeCopy, Verdict, verdict};
use crate::clients::gate::CALL_TIMEOUT;
use crate::fact::{Fact, NoticeRef};
use crate::pipeline::event::{Detail, Notice};
use crate::pipeline::interruption::NoticeOutcome;
use crate::pipeline::node::Node;
use crate::pipeline::node::handled::NodeNotice;
use crate::pipeline::node::mark::{has_had_mark, is_told_to_terminate};
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

    /// Acts on a notice until it has ended. If a hook is sought, goes on with what the search finds, and ends when that is over, too.
    async fn work_on(&self, node: &Node, mut notice: Notice, message: Arc<str>, cut: &CancellationToken) -> SaidEnd {
        let (kind, instance) = (notice.kind(), notice.instance.clone());
        let about = NoticeRef { kind, instance: instance.as_str(), node: Some(&node.name), message: &message };
        if let Some(outcome) = self.outcomes.get(&notice.version()).filter(|_| self.seeks(&notice)) {
            // Only the note was not written: its hook is no longer to be found.
            return self.said_end(&notice, Ok(outcome));
        }
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
                    let has_room = end != Ok(NoticeOutcome::NotAdmitted);
                    if is_kept || !sought.is_open || has_room && !matches!(ended, SaidEnd::Handled) {
                        return ended;
                    }
                    let next = tokio::select! {
                        biased;
                        () = cut.cancelled() => Next::Left,
                        () = self.unsaid(node, &notice) => Next::Left,
                        detail = self.hook_shows(&instance, &mut sought, &about) => Next::Shows(detail),
                        () = self.kept(node, &notice), if has_room => Next::Over,
                        () = sleep(ROOM_DELAY), if !has_room => Next::Room,
                    };
                    match next {
                        Next::Shows(detail @ Detail::AsgTerminate(_)) => detail,
                        Next::Shows(_) | Next::Over => return ended,
                        Next::Room => return SaidEnd::Again(Duration::ZERO),
                        Next::Left => {
                            // Another replica may undo it, or the Node says it again: then it is new.
                            self.outcomes.forget(&notice.identity);
                            return SaidEnd::Again(RETRY_DELAY);
                        }
                    }
                }
            };
            notice = Notice { at: self.interrupter.clock.now(), detail, ..notice };
        }
    }

    /// Waits until somebody wants the node to stay, after its drain.
    async fn kept(&self, node: &Node, notice: &Notice) {
        let identity = notice.identity.to_string();
        self.interrupter.drainer.uncordoned(node, has_had_mark(identity)).await;
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

/// Whether a withdrawal that has ended so may have left what it withdraws.
const fn is_undone(outcome: NoticeOutcome) -> bool {
    matches!(outcome, NoticeOutcome::NotAdmitted) || is_work(outcome) && !matches!(outcome, NoticeOutcome::Withdrawn)
}
