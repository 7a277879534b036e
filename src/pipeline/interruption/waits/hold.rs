//! A hold point: the interruption waits until a user or another controller releases the Node.

use super::active_wait::{ActiveWait, WaitLog};
use crate::clients::gate::{Backoff, CALL_TIMEOUT, KubeError, LAST_CALL};
use crate::fact::{DrainStep, HoldPoint, WaitOutcome};
use crate::pipeline::interruption::Case;
use crate::pipeline::node::Node;
use crate::pipeline::node::hold::{HoldChange, is_held, is_over};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

impl Case {
    /// Waits until a user or another controller releases the Node from this point, and removes the hold from the Node. If the wait ends
    /// before that, the next step removes it.
    pub(super) async fn held(&self, waiting: &ActiveWait<'_>, point: HoldPoint) -> WaitOutcome {
        let outcome = self.released(waiting, point).await;
        self.end_hold(waiting.log, point, false).await;
        outcome
    }

    async fn released(&self, waiting: &ActiveWait<'_>, point: HoldPoint) -> WaitOutcome {
        let Self { interrupter, node, .. } = self;
        let Some(node) = node else { return WaitOutcome::NotNeeded };
        let outcome_of = |known: Option<&Arc<Node>>| match known {
            None => Some(WaitOutcome::NotNeeded),
            Some(known) => is_over(known, point).then_some(WaitOutcome::Met),
        };
        if outcome_of(interrupter.index.newest(node).as_ref()).is_some() {
            return WaitOutcome::NotNeeded;
        }
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
        waiting.log.set_hold(Some(point));
        loop {
            match self.hold(node, point).await {
                Ok(true) => {}
                Ok(false) => return WaitOutcome::NotNeeded,
                Err(_) => return WaitOutcome::Denied,
            }
            waiting.set_reason(format!("ebbtide/release is not set to {point}"));
            // Another interruption of the instance may end its own hold, and this one with it.
            let changed = |known: Option<&Arc<Node>>| match known {
                Some(known) if !is_held(known, point) => Some(outcome_of(Some(known))),
                known => outcome_of(known).map(Some),
            };
            if let Some(outcome) = interrupter.index.until_node(node, changed).await {
                return outcome;
            }
            // Two interruptions at different points must not overwrite each other without a pause.
            sleep(backoff.step()).await;
        }
    }

    /// Writes the hold on the Node, with retries until that succeeds. Returns whether the Node exists.
    ///
    /// # Errors
    /// The permission is missing.
    async fn hold(&self, node: &Node, point: HoldPoint) -> Result<bool, KubeError> {
        let marker = &self.interrupter.marker;
        let hold = || marker.hold(node, point, HoldChange::Begins, Instant::now() + CALL_TIMEOUT);
        let failed = |error: &KubeError| super::retries(self, node, DrainStep::Hold, error);
        Backoff::new(Duration::from_millis(200), Duration::from_secs(5)).retry(None, hold, failed).await
    }

    /// Removes this interruption's hold at the point from the Node; `drains` if evictions start. If that fails, the end of the Node's marks
    /// removes it.
    pub(in crate::pipeline::interruption) async fn end_hold(&self, log: &WaitLog, point: HoldPoint, drains: bool) {
        let Some(node) = &self.node else { return };
        // A drain ends every hold before it, including that of a replica with other settings.
        let is_any = || {
            let known = self.interrupter.index.newest(node);
            point == HoldPoint::BeforeDrain && known.is_some_and(|known| is_held(&known, point))
        };
        if log.hold() == Some(point) || drains && is_any() {
            let by = Instant::now() + LAST_CALL;
            let change = if drains { HoldChange::Over } else { HoldChange::Ends };
            let _ = Box::pin(self.interrupter.marker.hold(node, point, change, by)).await;
            log.set_hold(None);
        }
    }
}
