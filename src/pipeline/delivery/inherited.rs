//! Planned changes of deleted Nodes, for the next Nodes of their instances.

use crate::clients::gate::CALL_TIMEOUT;
use crate::fact::{Fact, NoticeRef};
use crate::pipeline::interruption::Interrupter;
use crate::pipeline::node::plan;
use futures_util::future::join_all;
use jiff::Timestamp;
use tokio::time::Instant;

/// Writes the planned changes of deleted Nodes on the next Nodes of their instances. A write that fails is repeated at the next call.
pub(super) async fn write(interrupter: &Interrupter, now: Timestamp) {
    let Interrupter { index, marker, facts, .. } = interrupter;
    let missing = index.kept(now).into_iter().filter(|(node, kept)| plan::patch(kept, node).is_some());
    join_all(missing.map(async |(node, kept)| {
        let Some(notice) = plan::notice(&kept, &node.instance) else { return };
        let about = NoticeRef {
            kind: notice.kind(),
            instance: notice.instance.as_str(),
            node: Some(&node.name),
            message: &kept.message,
        };
        match marker.plan(&node, &kept, true, Instant::now() + CALL_TIMEOUT).await {
            Ok(_) => facts.emit(&Fact::ChangePlanned { about, start: kept.start.unwrap_or(now) }),
            Err(error) => facts.emit(&Fact::CordonFailed { about, category: error.category, error: &error }),
        }
    }))
    .await;
}
