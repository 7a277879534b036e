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
use jiff::Timestamp;
use std::collections::{HashMap, HashSet};
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
        let mut due: HashMap<Identity, Timestamp> = HashMap::new();
        loop {
            // Jittered, so that a replica sees the mark of another before it begins itself.
            let pause = async {
                sleep(random::jittered(SCAN_INTERVAL, 0.5..1.5)).await;
                // An index that is not current may show plans that were carried out long ago.
                self.interrupter.index.live().await;
            };
            tokio::pin!(pause);
            loop {
                tokio::select! {
                    biased;
                    Some(ended) = running.next() => drop(identities.remove(&ended)),
                    () = &mut pause => break,
                }
            }
            let known = std::mem::take(&mut due);
            for (node, plan) in self.interrupter.index.plans() {
                let notice = plan.notice(&node.instance);
                let now = self.interrupter.clock.now();
                if self.interrupter.policy.acts_from(&notice).is_some_and(|from| from > now) {
                    continue;
                }
                let since = known.get(&notice.identity).copied().unwrap_or(now);
                due.insert(notice.identity.clone(), since);
                if !in_other_hands(&node, &notice, since, now) && identities.insert(notice.identity.clone()) {
                    running.push(Box::pin(self.carry_out(node, plan, notice)));
                }
            }
        }
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

/// Whether another replica drains the Node for the notice: its mark has a deadline ahead. A plan that outlives half of the time from
/// `since`, when it was first seen due, to that deadline is probably one of a replica that has ended.
fn in_other_hands(node: &Node, notice: &Notice, since: Timestamp, now: Timestamp) -> bool {
    let deadline = deadline_of(node, &notice.identity.to_string());
    deadline.is_some_and(|deadline| deadline.duration_since(now) > now.duration_since(since))
}
