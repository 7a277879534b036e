//! The planned changes that Nodes keep until they are near.

use super::inherited;
use super::offers::{Offer, Origin, Round, Source, next_round};
use crate::pipeline::interruption::Interrupter;
use crate::pipeline::node::handled::Standing;
use crate::pipeline::node::{Node, plan};
use futures_util::StreamExt;
use futures_util::stream::{BoxStream, repeat};
use jiff::Timestamp;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// The planned changes that Nodes keep.
pub(super) struct Plans {
    pub interrupter: Arc<Interrupter>,
    pub stop: CancellationToken,
}

impl Source for Plans {
    fn rounds(&self) -> BoxStream<'_, Round> {
        let round = |()| async {
            next_round(&self.interrupter).await;
            let now = self.interrupter.clock.now();
            inherited::write(&self.interrupter, now).await;
            Round { offers: self.near(now), ..Round::default() }
        };
        repeat(()).then(round).boxed()
    }

    fn still(&self, Offer { notice, .. }: &Offer, node: &Node) -> bool {
        node.record.live(notice.key()).is_some()
    }
}

impl Plans {
    /// Returns the planned changes that are near.
    fn near(&self, now: Timestamp) -> Vec<Offer> {
        let Interrupter { index, policy, .. } = &*self.interrupter;
        let offered = index.kept(now).into_iter().filter_map(|(node, kept)| {
            let (notice, message) = (plan::notice(&kept, &node.instance)?, Arc::from(&*kept.message));
            let (origin, standing, cut) = (Origin::Plan(kept), Standing::Open, self.stop.clone());
            Some(Offer { node, notice, message, origin, standing, cut })
        });
        offered.filter(|offer| policy.acts_from(&offer.notice).is_none_or(|from| from <= now)).collect()
    }
}
