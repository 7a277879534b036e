//! Keeps the notice of a change on its Node until the change is near.

use super::known::Progress;
use super::{Case, Interrupter, NoticeOutcome};
use crate::clients::gate::{Backoff, CALL_TIMEOUT, KubeError};
use crate::fact::Fact;
use crate::pipeline::node::Node;
use crate::pipeline::node::plan::fits;
use crate::pipeline::node::record::NoticeRecord;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

impl Case {
    /// Writes the plan on the Node, with retries until `by`.
    pub(super) async fn plan(&self, node: &Arc<Node>, plan: &NoticeRecord, by: Instant) -> Progress {
        let Interrupter { marker, index, .. } = &*self.interrupter;
        let write = || marker.plan(node, plan, true, Instant::now() + CALL_TIMEOUT);
        let failed = |error: &KubeError| {
            self.emit(&Fact::CordonFailed { about: self.about(), category: error.category, error });
            true
        };
        let backoff = Backoff::new(Duration::from_millis(200), Duration::from_mins(1));
        let written = backoff.retry(Some(by), write, failed).await;
        if matches!(written, Ok(false)) {
            // The instance's next Node keeps it.
            return Progress::Gone(Arc::clone(node), NoticeOutcome::NothingToDrain);
        }
        // Other plans of the same burst may have taken the space.
        if written.is_err() || index.newest(node).is_some_and(|node| !fits(plan, &node)) {
            // The change is near by now, or there is no room.
            return Progress::Received;
        }
        if let Some(start) = plan.start {
            self.emit(&Fact::ChangePlanned { about: self.about(), start });
        }
        Progress::Ended(NoticeOutcome::Planned)
    }
}
