//! A change that is not near yet: its notice is kept on the Node.

use super::Case;
use super::step::Finding;
use crate::clients::gate::{Backoff, CALL_TIMEOUT};
use crate::fact::Fact;
use crate::pipeline::node::Node;
use crate::pipeline::node::plan::Plan;
use std::time::Duration;
use tokio::time::{Instant, sleep};

impl Case {
    /// Writes the plan on the Node, with retries until `by`.
    pub(super) async fn plan(&self, node: &Node, plan: &Plan, by: Instant) -> Finding {
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_mins(1));
        loop {
            let written = self.interrupter.marker.plan(node, plan, true, Instant::now() + CALL_TIMEOUT).await;
            let Err(error) = written else {
                if self.interrupter.index.newest(node).is_some_and(|node| !plan.fits(&node)) {
                    // Others of the same burst have taken the room.
                    return Finding::Planned(false);
                }
                self.tell(&Fact::ChangePlanned { about: self.about(), start: plan.start });
                return Finding::Planned(true);
            };
            self.tell(&Fact::CordonFailed { about: self.about(), category: error.category, error: &error });
            let wait = error.wait(backoff.step());
            if Instant::now() + wait >= by {
                return Finding::Planned(false);
            }
            sleep(wait).await;
        }
    }
}
