//! The planned changes that Nodes keep until they are near. Those of deleted Nodes pass on to the next Nodes of their instances.

use super::offers::{Offer, Origin, Round, Source, each_minute};
use crate::clients::gate::CALL_TIMEOUT;
use crate::fact::Fact;
use crate::pipeline::event::NoticeKey;
use crate::pipeline::interruption::Interrupter;
use crate::pipeline::node::handled::Standing;
use crate::pipeline::node::record::{NoticeRecord, Withdrawal};
use crate::pipeline::node::release::NodeRelease;
use crate::pipeline::node::{Node, plan};
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::BoxStream;
use jiff::Timestamp;
use std::sync::Arc;
use tokio::time::Instant;

/// The planned changes that Nodes keep.
pub(super) struct Plans(pub Arc<Interrupter>);

impl Source for Plans {
    fn rounds(&self) -> BoxStream<'_, Round> {
        let round = async |now| {
            self.pass_on(now).await;
            Round::Offers(self.near(now))
        };
        each_minute(&self.0).then(round).boxed()
    }

    fn still(&self, Offer { notice, .. }: &Offer, node: &Node) -> bool {
        node.record.live(notice.key()).is_some()
    }
}

impl Plans {
    /// Returns the planned changes that are near.
    fn near(&self, now: Timestamp) -> Vec<Offer> {
        let offered = self.0.index.kept(now).into_iter().filter_map(|(node, _, kept)| {
            let (notice, message) = (plan::notice(&kept, &node.instance)?, Arc::from(&*kept.message));
            Some(Offer { node, notice, message, origin: Origin::Plan(kept.into()), standing: Standing::Open })
        });
        let acts_from = |offer: &Offer| self.0.policy_of(Some(&offer.node)).acts_from(&offer.notice);
        offered.filter(|offer| acts_from(offer).is_none_or(|from| from <= now)).collect()
    }

    /// Writes the planned changes and the cancellations of deleted Nodes on the next Nodes of their instances. A write that fails is repeated in
    /// the next round.
    async fn pass_on(&self, now: Timestamp) {
        join_all(self.0.index.kept(now).into_iter().map(async |(node, key, known)| {
            match Withdrawal::recorded(&known) {
                Some(by) => self.withdraw(&node, key, by).await,
                None => self.plan(&node, &known, now).await,
            }
        }))
        .await;
    }

    async fn plan(&self, node: &Node, kept: &NoticeRecord, now: Timestamp) {
        let Interrupter { marker, facts, .. } = &*self.0;
        let missing = plan::notice(kept, &node.instance).filter(|_| plan::patch(kept, node).is_some());
        let Some(notice) = missing else { return };
        let about = notice.about(Some(&node.name), &kept.message);
        match marker.plan(node, kept, true, Instant::now() + CALL_TIMEOUT).await {
            Ok(_) => facts.emit(&Fact::ChangePlanned { about, start: kept.start.unwrap_or(now) }),
            Err(error) => facts.emit(&Fact::CordonFailed { about, category: error.category, error: &error }),
        }
    }

    /// Records the cancellation. Another replica that has not received it may have written the plan.
    async fn withdraw(&self, node: &Node, key: NoticeKey, by: Withdrawal) {
        let Interrupter { marker, facts, .. } = &*self.0;
        let due = |current: &Node| NodeRelease::of_withdrawn(current, key, by, true);
        match marker.release(node, Instant::now() + CALL_TIMEOUT, due).await {
            Ok(Some(released)) if released.release.has_marks() => released.report(node, |fact| facts.emit(fact)),
            Ok(_) => {}
            Err(error) => {
                facts.emit(&Fact::ReleaseFailed { on: node.named(), category: error.category, error: &error });
            }
        }
    }
}
