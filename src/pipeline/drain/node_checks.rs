//! Whether a drain's Node still exists and is still cordoned.

use super::Drainer;
use crate::clients::gate::{Backoff, CALL_TIMEOUT, Call, Class, LAST_CALL};
use crate::clients::trimmed;
use crate::fact::{DrainStep, Fact};
use crate::pipeline::node::Node;
use crate::pipeline::node::record::Record;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Interval between reads of a Node while the API server is unreachable.
const PROBE_INTERVAL: Duration = Duration::from_secs(2);

/// Wait between tries to restore a cordon.
const RECORDON_RETRY: Duration = Duration::from_secs(1);

impl Drainer {
    /// Waits until the Node's cordon has ended for good: the Node is ignored by annotation, was rebooted, has been released by a replica, or
    /// was uncordoned for the second time. The first removal may be another controller's mistake, so the cordon is restored. `is_own` returns
    /// whether the Node carries, or has carried, the caller's mark: the end of other marks doesn't count.
    pub async fn uncordoned(&self, node: &Node, mut is_own: impl FnMut(&Record) -> bool) {
        if self.dry_run {
            std::future::pending::<()>().await;
        }
        // A Node without a mark was never cordoned: its cordon was forgone.
        let (mut marked, mut own) = (false, false);
        loop {
            let uncordoned = |known: Option<&Arc<Node>>| {
                let known = known?;
                marked |= known.record.is_held();
                own = is_own(&known.record);
                // Another controller may have cordoned it before, so that it stays cordoned.
                let is_back = own && !known.record.is_held() && known.boot != node.boot;
                (known.ignored || is_back || marked && !known.cordoned).then(|| Arc::clone(known))
            };
            let known = self.index.until_node(node, uncordoned).await;
            if !known.ignored && !own && !known.record.is_held() {
                marked = false;
                continue;
            }
            if known.ignored || known.record.undo().restored || !known.record.is_held() || known.boot != node.boot {
                return;
            }
            match Box::pin(self.marker.recordon(&known, Instant::now() + CALL_TIMEOUT)).await {
                Ok(true) => self.facts.emit(&Fact::NodeRecordoned { on: node.named() }),
                // Another replica restored it first, or the Node is gone.
                Ok(false) => sleep(RECORDON_RETRY).await,
                Err(error) => {
                    let (on, category) = (node.named(), error.category);
                    self.facts.emit(&Fact::DrainRetried { on, step: DrainStep::Cordon, category, error: &error });
                    sleep(RECORDON_RETRY).await;
                }
            }
        }
    }

    /// Reads the Node repeatedly while the API server is, or may be, unreachable, so that its absence and return are noticed at once. One
    /// caller at a time does that for all. Never ends.
    pub async fn probe(&self, node: &Node) -> Infallible {
        let _turn = self.probing.lock().await;
        let read = || async {
            let call = Call { verb: "get", resource: "nodes", subject: &node.name };
            // The gate notes the result. A call has already hung, and a deadline may be near.
            let by = Instant::now() + LAST_CALL;
            let _ = self.gate.kube(call, Class::List, by, || self.nodes.get(&node.name)).await;
        };
        self.gate.absence().probe(PROBE_INTERVAL, read).await
    }

    /// Waits until the watch no longer shows the Node, or shows another in its place.
    pub async fn missing(&self, node: &Node) {
        self.index.until_node(node, |known| known.is_none().then_some(())).await;
    }

    /// Returns whether the Node is gone: another Node has its name, or the API server reports it missing. Retries until the API server
    /// answers.
    pub(super) async fn is_gone(&self, node: &Node) -> bool {
        if self.index.has_another(node) {
            return true;
        }
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(2));
        loop {
            let call = Call { verb: "get", resource: "nodes", subject: &node.name };
            let by = Instant::now() + CALL_TIMEOUT;
            match self.gate.kube(call, Class::List, by, || trimmed::find(&self.nodes, "nodes", &node.name)).await {
                Ok(found) => return found.and_then(|found| found.metadata.uid).as_deref() != Some(&*node.uid),
                Err(_) => sleep(backoff.step()).await,
            }
        }
    }
}
