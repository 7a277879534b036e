//! A hold point: the Node says that somebody else has to act before the interruption goes on.

use super::waiting::{WaitLog, Waiting};
use crate::clients::gate::{Backoff, CALL_TIMEOUT, KubeError, LAST_CALL};
use crate::fact::{DrainStep, HoldPoint, WaitOutcome};
use crate::pipeline::interruption::Case;
use crate::pipeline::node::Node;
use crate::pipeline::node::hold::{HoldChange, is_held, is_over};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

impl Case {
    /// Waits until somebody lets the interruption go on from this point, and takes back what the Node says of it. If the wait is over
    /// before, the next step does that.
    pub(super) async fn held(&self, waiting: &Waiting<'_>, point: HoldPoint) -> WaitOutcome {
        let outcome = self.released(waiting, point).await;
        self.end_hold(waiting.log, point, false).await;
        outcome
    }

    async fn released(&self, waiting: &Waiting<'_>, point: HoldPoint) -> WaitOutcome {
        let Self { interrupter, node, .. } = self;
        let Some(node) = node else { return WaitOutcome::NotNeeded };
        let goes_on = |known: Option<&Arc<Node>>| match known {
            None => Some(WaitOutcome::NotNeeded),
            Some(known) => is_over(known, point).then_some(WaitOutcome::Met),
        };
        if goes_on(interrupter.index.newest(node).as_ref()).is_some() {
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
            waiting.says(format!("nobody has set ebbtide/release to {point}"));
            // Another interruption of the instance may end its own hold.
            let changed = |known: Option<&Arc<Node>>| match known {
                Some(known) if !is_held(known, point) => Some(goes_on(Some(known))),
                known => goes_on(known).map(Some),
            };
            if let Some(outcome) = interrupter.index.until_node(node, changed).await {
                return outcome;
            }
            // Two interruptions at different points must not write in turns without a pause.
            sleep(backoff.step()).await;
        }
    }

    /// Says on the Node that it is held. Retries until that succeeds. Returns whether the Node exists.
    ///
    /// # Errors
    /// The right is missing.
    async fn hold(&self, node: &Node, point: HoldPoint) -> Result<bool, KubeError> {
        let marker = &self.interrupter.marker;
        let hold = || marker.hold(node, point, HoldChange::Begins, Instant::now() + CALL_TIMEOUT);
        let failed = |error: &KubeError| super::retries(self, node, DrainStep::Hold, error);
        Backoff::new(Duration::from_millis(200), Duration::from_secs(5)).retry(None, hold, failed).await
    }

    /// Takes back what the Node says of this interruption's hold at the point; `drains` if evictions begin. If that fails, the end of the
    /// Node's marks does it.
    pub(in crate::pipeline::interruption) async fn end_hold(&self, log: &WaitLog, point: HoldPoint, drains: bool) {
        let Some(node) = &self.node else { return };
        // A drain ends everybody's hold before it, such as that of a replica with other settings.
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
