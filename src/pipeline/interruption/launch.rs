//! Completes the hook of a launched instance as soon as its Node is Ready, and removes the marks that a notice ends.

use super::Case;
use super::completion::KeptHook;
use super::decisions::ended_marks;
use super::hook::HookReply;
use super::known::Progress;
use crate::clients::gate::{Backoff, CALL_TIMEOUT, KubeError};
use crate::fact::Fact;
use crate::pipeline::event::{Detail, Hook};
use crate::pipeline::node::Node;
use crate::pipeline::node::release::NodeRelease;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

impl Case {
    /// Waits until the watch shows the instance's Node in service or excluded, until the action is over, or until the hook's times change.
    pub(super) async fn await_ready(&self, until: Instant, hook: Option<&KeptHook>) -> Progress {
        let Self { interrupter, notice, .. } = self;
        let at_most = until.saturating_duration_since(Instant::now());
        self.emit(&Fact::LaunchAwaited { about: self.about(), at_most });
        let in_service = |node: Option<&Arc<Node>>| {
            node.filter(|node| node.is_excluded() || self.policy.in_service(notice, node)).map(Arc::clone)
        };
        tokio::select! {
            biased;
            node = interrupter.index.until(&notice.instance, in_service) => Progress::Found(node),
            () = KeptHook::over(hook) => Progress::NoNodeInTime,
            () = KeptHook::times_changed(hook.map(KeptHook::with_times)) => Progress::Begun,
            () = sleep_until(until) => Progress::NoNodeInTime,
        }
    }

    /// Removes the marks that the notice ends, and returns whether none is left. An instance that was stopped in the warm pool has a new boot
    /// ID, which releases it; one that continued to run has not.
    pub(super) async fn release_marks(&self, node: &Node, by: Instant) -> bool {
        let others = self.interrupter.index.others(node);
        let has_marks = |node: &Node| ended_marks(&self.notice, node).is_some();
        if let Detail::AsgLaunch(hook) = &self.notice.detail {
            if !has_marks(node) && !others.iter().any(|other| has_marks(other)) {
                return true;
            }
            if !self.is_shown(hook, by).await {
                return false;
            }
        }
        let over = |current: &Node| ended_marks(&self.notice, current);
        let mut all = self.release_marks_of(node, by, over).await;
        for other in others {
            all &= self.release_marks_of(&other, by, over).await;
        }
        all
    }

    /// Whether Auto Scaling knows the lifecycle action of a launch, which it shows by accepting a heartbeat. An attacker with access to the
    /// queue can forge one, even for a group that Ebbtide has no permission for. Without heartbeats, or in a dry run, there is no proof.
    async fn is_shown(&self, hook: &Hook, by: Instant) -> bool {
        let backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
        !self.policy.sends_heartbeats()
            || self.action(Arc::new(hook.clone())).ask(backoff, by).await == Some(HookReply::Done)
    }

    /// Removes the marks that `over` returns, with retries until `by`. Returns whether none is left.
    pub(super) async fn release_marks_of(
        &self,
        node: &Node,
        by: Instant,
        over: impl Fn(&Node) -> Option<NodeRelease>,
    ) -> bool {
        let marker = &self.interrupter.marker;
        let release = || marker.release(node, Instant::now() + CALL_TIMEOUT, &over);
        let failed = |error: &KubeError| {
            self.emit(&Fact::ReleaseFailed { on: node.named(), category: error.category, error });
            true
        };
        let backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
        let Ok(released) = backoff.retry(Some(by), release, failed).await else { return false };
        if let Some(released) = released.filter(|released| released.release.has_marks()) {
            released.report(node, |fact| self.emit(fact));
        }
        true
    }
}
