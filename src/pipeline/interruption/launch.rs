//! A launched instance: its hook is completed as soon as its Node is Ready.

use super::decisions::left_for_pool;
use super::heartbeat::Heartbeat;
use super::{Case, Draining, Outcome};
use crate::clients::gate::{Backoff, CALL_TIMEOUT};
use crate::fact::Fact;
use crate::pipeline::event::{Detail, Hook, WarmPool};
use crate::pipeline::node::Node;
use crate::pipeline::node::release::Over;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

impl Draining {
    /// Waits until the instance's Node is Ready, by the watch's word. May be cancelled at any await.
    pub(super) async fn await_ready(&mut self) -> Outcome {
        let Case { interrupter, notice, .. } = self.case.clone();
        let at_most = self.deadline.at.saturating_duration_since(Instant::now());
        self.case.tell(&Fact::LaunchAwaited { about: self.case.about(), at_most });
        let in_service = |node: Option<&Arc<Node>>| {
            node.filter(|node| node.is_excluded() || interrupter.policy.in_service(node)).map(Arc::clone)
        };
        let over = self.heartbeat.as_ref().map(Heartbeat::over).unwrap_or_default();
        let found = tokio::select! {
            biased;
            found = interrupter.index.until(&notice.instance, in_service) => Some(found),
            // Nobody waits for it any more.
            () = over.cancelled() => None,
            () = sleep_until(self.deadline.at) => None,
        };
        let Some(node) = found else { return Outcome::NotReady };
        self.case.node = Some(Arc::clone(&node));
        if node.is_excluded() {
            return Outcome::Excluded;
        }
        if let Detail::AsgLaunch(Hook { pool: Some(WarmPool::From), .. }) = notice.detail {
            self.welcome_back(&node).await;
        }
        Outcome::Ready
    }

    /// Takes back what was left on the Node when its instance went to the warm pool. Instances that were stopped there have another boot
    /// ID now, and are released by that; those that went on running have not.
    async fn welcome_back(&self, node: &Node) {
        let interrupter = &self.case.interrupter;
        let over = |current: &Node| left_for_pool(&self.case.notice, current);
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
        loop {
            let error = match interrupter.marker.release(node, Instant::now() + CALL_TIMEOUT, over).await {
                Ok(None) => return,
                Ok(Some((Over { why, .. }, uncordoned))) => {
                    let (on, why, told) = (node.named(), why, node.draining);
                    return self.case.tell(&Fact::NodeReleased { on, why, uncordoned, told });
                }
                Err(error) => error,
            };
            let category = error.category;
            self.case.tell(&Fact::ReleaseFailed { on: node.named(), category, error: &error });
            let wait = error.wait(backoff.step());
            // The launch is worth more than the marks: a cordon can be seen, and taken away by hand.
            if Instant::now() + wait >= self.deadline.at {
                return;
            }
            sleep(wait).await;
        }
    }
}
