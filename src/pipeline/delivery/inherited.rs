//! Records of deleted Nodes, for the next Nodes of their instances.

use crate::clients::gate::CALL_TIMEOUT;
use crate::fact::{Fact, NoticeRef};
use crate::pipeline::event::NoticeKey;
use crate::pipeline::interruption::Interrupter;
use crate::pipeline::node::Node;
use crate::pipeline::node::plan;
use crate::pipeline::node::record::{NoticeRecord, Withdrawal};
use crate::pipeline::node::release::NodeRelease;
use futures_util::future::join_all;
use jiff::Timestamp;
use tokio::time::Instant;

/// Writes the planned changes and the cancellations of deleted Nodes on the next Nodes of their instances. A write that fails is repeated at the
/// next call.
pub(super) async fn write(interrupter: &Interrupter, now: Timestamp) {
    join_all(interrupter.index.kept(now).into_iter().map(async |(node, key, known)| {
        match Withdrawal::recorded(&known) {
            Some(by) => withdraw(interrupter, &node, key, by).await,
            None => plan(interrupter, &node, &known, now).await,
        }
    }))
    .await;
}

async fn plan(Interrupter { marker, facts, .. }: &Interrupter, node: &Node, kept: &NoticeRecord, now: Timestamp) {
    let missing = plan::notice(kept, &node.instance).filter(|_| plan::patch(kept, node).is_some());
    let Some(notice) = missing else { return };
    let about = NoticeRef {
        kind: notice.kind(),
        instance: notice.instance.as_str(),
        node: Some(&node.name),
        message: &kept.message,
    };
    match marker.plan(node, kept, true, Instant::now() + CALL_TIMEOUT).await {
        Ok(_) => facts.emit(&Fact::ChangePlanned { about, start: kept.start.unwrap_or(now) }),
        Err(error) => facts.emit(&Fact::CordonFailed { about, category: error.category, error: &error }),
    }
}

/// Records the cancellation. Another replica that has not received it may have written the plan.
async fn withdraw(Interrupter { marker, facts, .. }: &Interrupter, node: &Node, key: NoticeKey, by: Withdrawal) {
    let due = |current: &Node| NodeRelease::of_withdrawn(current, key, by, true);
    match marker.release(node, Instant::now() + CALL_TIMEOUT, due).await {
        Ok(Some(released)) if released.release.has_marks() => released.report(node, |fact| facts.emit(fact)),
        Ok(_) => {}
        Err(error) => facts.emit(&Fact::ReleaseFailed { on: node.named(), category: error.category, error: &error }),
    }
}
