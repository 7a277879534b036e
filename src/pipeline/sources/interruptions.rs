//! The interruptions that run, one for each notice, whatever announced it; and the outcomes of those that have ended.

use super::outcome_cache::OutcomeCache;
use crate::fact::Fact;
use crate::pipeline::event::{Identity, Notice, Version};
use crate::pipeline::interruption::{Interrupter, MessageLink, NoticeOutcome, Seat, Slots};
use crate::pipeline::queue::VISIBILITY_TIMEOUT;
use crate::runtime::task::TaskError;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The key of an interruption: the notices' identity, and whether the interruption waits for AWS to confirm a withdrawal. Until then the
/// withdrawal has no effect, and the change itself doesn't wait for it.
pub type InterruptionKey = (Identity, bool);

/// The interruptions that run, and the outcomes of those that have ended.
pub struct Interruptions {
    /// Those that run.
    pub running: Slots<InterruptionKey, MessageLink, NoticeOutcome>,
    /// Outcomes of notices that have ended.
    pub outcomes: OutcomeCache,
    /// Acts on notices.
    pub interrupter: Arc<Interrupter>,
}

/// A copy of a notice: of a message, or of another source.
pub(super) enum NoticeCopy {
    /// The notice is being acted on.
    Running(Version, Seat<InterruptionKey, MessageLink, NoticeOutcome>),
    /// The notice had ended before this copy came.
    Late(NoticeOutcome),
}

impl Interruptions {
    /// Joins the interruption of the notice, or starts one.
    pub(super) fn join(&self, notice: Notice, message: &Arc<str>) -> NoticeCopy {
        let version = notice.version();
        let ended = self.outcomes.get(&version);
        let notice = Arc::new(notice);
        if let Some(outcome) = ended {
            self.report_joined(&notice, message);
            return NoticeCopy::Late(outcome);
        }
        if notice.is_test() {
            self.interrupter.facts.emit(&Fact::TestNotice { about: notice.about(None, message) });
        }
        let is_doubted = notice.is_withdrawn() && self.interrupter.policy().admission.is_verified(&notice);
        let key = |is_doubted| (notice.identity.clone(), is_doubted);
        let running = if is_doubted { self.running.join_running(&key(false)) } else { None };
        let (seat, joined) = running.map_or_else(
            || {
                self.running.join(
                    key(is_doubted),
                    || MessageLink::new(Arc::clone(&notice), VISIBILITY_TIMEOUT),
                    |shared, stop| Arc::clone(&self.interrupter).act(Arc::clone(message), shared, stop),
                )
            },
            |seat| (seat, true),
        );
        seat.shared().revise(&notice);
        if notice.hook().is_some_and(|hook| hook.direct) {
            seat.shared().direct.store(true, Ordering::Release);
        }
        if joined {
            self.report_joined(&notice, message);
        }
        NoticeCopy::Running(version, seat)
    }

    /// Reports that this copy of a notice starts nothing.
    pub(super) fn report_joined(&self, notice: &Notice, message: &str) {
        self.interrupter.facts.emit(&Fact::NoticeJoined { about: notice.about(None, message) });
    }

    /// Waits until the notice has ended.
    ///
    /// # Errors
    /// When the interruption panicked.
    pub(super) async fn ended(&self, copy: &NoticeCopy) -> Result<NoticeOutcome, TaskError> {
        match copy {
            NoticeCopy::Running(version, seat) => {
                let end = seat.ended().await;
                end.inspect(|outcome| self.outcomes.remember(version, *outcome))
            }
            NoticeCopy::Late(outcome) => Ok(*outcome),
        }
    }
}

impl NoticeCopy {
    /// Returns the state that the interruption shares with its copies, while it runs.
    pub(super) fn link(&self) -> Option<&MessageLink> {
        match self {
            Self::Running(_, seat) => Some(seat.shared()),
            Self::Late(_) => None,
        }
    }

    /// Gives up the copy. The last one stops the interruption, and waits until it has stopped.
    pub(super) async fn leave(self) {
        if let Self::Running(_, seat) = self {
            seat.leave().await;
        }
    }
}
