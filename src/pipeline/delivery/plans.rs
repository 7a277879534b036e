//! Changes that Nodes keep until they are near: then they are acted on as if their messages had come. There is no receipt; the plan on
//! the Node is removed when its notice has ended, so another replica continues after a crash.

use super::{Deliverer, Verdict, verdict};
use crate::clients::gate::CALL_TIMEOUT;
use crate::fact::Fact;
use crate::pipeline::event::{Identity, Notice};
use crate::pipeline::interruption::NoticeOutcome;
use crate::pipeline::node::Node;
use crate::pipeline::node::mark::deadline_of;
use crate::pipeline::node::plan::Plan;
use crate::pipeline::queue::VISIBILITY_TIMEOUT;
use crate::runtime::random;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

/// Mean interval between scans of the plans on Nodes.
const SCAN_INTERVAL: Duration = Duration::from_mins(1);

impl Deliverer {
    /// Acts on planned changes when they are near. Runs until aborted.
    pub async fn carry_out_plans(self: Arc<Self>) {
        let mut running = FuturesUnordered::new();
        let mut identities: HashSet<Identity> = HashSet::new();
        loop {
            // Jittered, so that a replica sees the mark of another before it begins itself.
            let pause = sleep(random::jittered(SCAN_INTERVAL, 0.5..1.5));
            tokio::pin!(pause);
            loop {
                tokio::select! {
                    biased;
                    Some(ended) = running.next() => drop(identities.remove(&ended)),
                    () = &mut pause => break,
                }
            }
            // An index that is not current may show plans that were carried out long ago.
            self.interrupter.index.live().await;
            for (node, plan) in self.interrupter.index.plans() {
                let notice = plan.notice(&node.instance);
                if self.is_due(&node, &notice) && identities.insert(notice.identity.clone()) {
                    running.push(Box::pin(self.carry_out(node, plan, notice)));
                }
            }
        }
    }

    /// Whether the change is near, and no other replica drains the Node for it: that one's mark has a deadline ahead.
    fn is_due(&self, node: &Node, notice: &Notice) -> bool {
        let now = self.interrupter.clock.now();
        let is_far = self.interrupter.policy.acts_from(notice).is_some_and(|from| from > now);
        !is_far && deadline_of(node, &notice.identity.to_string()).is_none_or(|deadline| deadline <= now)
    }

    /// Acts on the notice of a plan until it has ended, and removes the plan.
    async fn carry_out(&self, node: Arc<Node>, plan: Plan, notice: Notice) -> Identity {
        let identity = notice.identity.clone();
        let copy = self.join(notice, &Arc::from(&*plan.message));
        let end = self.ended(&copy, &watch::Sender::new(VISIBILITY_TIMEOUT)).await;
        copy.leave().await;
        // A notice that has not ended is tried again at the next scan.
        if verdict([end]) == Verdict::Delete && end != Ok(NoticeOutcome::Planned) {
            let by = Instant::now() + CALL_TIMEOUT;
            if let Err(error) = self.interrupter.marker.plan(&node, &plan, false, by).await {
                let category = error.category;
                self.facts.emit(&Fact::ReleaseFailed { on: node.named(), category, error: &error });
            }
        }
        identity
    }
}
