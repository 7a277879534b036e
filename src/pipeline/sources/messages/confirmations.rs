//! What a message announces that another source announced first, and what of that is noted on the Node.

use super::Deliverer;
use crate::clients::gate::{Backoff, CALL_TIMEOUT, Category, KubeError};
use crate::fact::Fact;
use crate::pipeline::event::Notice;
use crate::pipeline::interruption::{Interrupter, NoticeOutcome};
use crate::pipeline::node::Node;
use crate::pipeline::node::agent_notices::reported_copy;
use crate::pipeline::node::confirmation;
use crate::pipeline::node::handled::{KnownNotice, is_handled, known, known_as};
use crate::pipeline::sources::interruptions::NoticeCopy;
use crate::pipeline::sources::outcome_cache::is_work;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum time to write a note of what a message announces, or of what a user has ended.
const NOTE_TIMEOUT: Duration = Duration::from_mins(1);

impl Deliverer {
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
        self.noted(&node, || self.interrupter.marker.note(&node, Instant::now() + CALL_TIMEOUT, patch)).await;
    }

    /// Notes on the Nodes that these notices are handled, so that a replica that receives the message again doesn't overrule the user.
    pub(super) async fn note_called_off(&self, message: &str, notices: Vec<Arc<Notice>>) {
        let Interrupter { index, marker, .. } = &*self.interrupter;
        for notice in notices {
            let Some(node) = index.get(&notice.instance) else { continue };
            self.noted(&node, || marker.end(&node, &notice, message, None, Instant::now() + CALL_TIMEOUT)).await;
        }
    }

    /// Writes a note, and retries for [`NOTE_TIMEOUT`]. Failures are reported.
    async fn noted<F: Future<Output = Result<bool, KubeError>>>(&self, node: &Node, write: impl Fn() -> F) {
        let failed = |error: &KubeError| {
            self.facts.emit(&Fact::ReleaseFailed { on: node.named(), category: error.category, error });
            error.category != Category::Denied
        };
        let backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
        let _ = backoff.retry(Some(Instant::now() + NOTE_TIMEOUT), write, failed).await;
    }

    /// Joins a message's notice to the listed notice or agent notice of the same that came first.
    pub(super) fn join_listed(&self, notice: Notice, message: &Arc<str>) -> NoticeCopy {
        let Some(node) = self.interrupter.index.get(&notice.instance) else {
            return self.interruptions.join(notice, message);
        };
        match self.known_on(&node, &notice) {
            None => self.interruptions.join(notice, message),
            Some(KnownNotice::Same(identity)) => {
                let before = node.record.message(identity.key()).map(Arc::from);
                let copy = self.interruptions.join(notice.with_identity(identity), before.as_ref().unwrap_or(message));
                if let Some(link) = copy.link() {
                    link.confirmed.store(true, Ordering::Release);
                }
                copy
            }
            Some(KnownNotice::Handled) => {
                self.interruptions.report_joined(&notice, message);
                NoticeCopy::Late(NoticeOutcome::Drained)
            }
        }
    }
}
