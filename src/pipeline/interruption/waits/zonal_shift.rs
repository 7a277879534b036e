//! The wait for the end of a zonal shift: the other zones' capacity carries the traffic of the shifted zone as well.

use super::active_wait::ActiveWait;
use crate::fact::WaitOutcome;
use crate::pipeline::interruption::Case;
use crate::pipeline::node::record::Place;
use crate::pipeline::node::shift::Shift;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// Interval between checks of the Nodes' notes.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

impl Case {
    /// Waits until no traffic is shifted away from another zone than the Node's.
    pub(super) async fn shifted_back(&self, waiting: &ActiveWait<'_>) -> WaitOutcome {
        let Self { interrupter, notice, node, .. } = self;
        let Some(node) = node else { return WaitOutcome::NotNeeded };
        let key = notice.key();
        loop {
            // In a blind index, a missing note proves nothing.
            interrupter.index.live().await;
            let Some(known) = interrupter.index.newest(node) else { return WaitOutcome::NotNeeded };
            if let Some(Place::Evicts(_) | Place::Over) = known.record.notice(key).and_then(|known| known.place) {
                // A takeover.
                return WaitOutcome::Met;
            }
            let now = interrupter.clock.now();
            let Some(shift) = interrupter.shifts.holding_back(&known, now) else { return WaitOutcome::Met };
            self.wait_in(&shift, waiting).await;
        }
    }

    /// Waits until the shift may be over.
    pub(super) async fn wait_in(&self, shift: &Shift, waiting: &ActiveWait<'_>) {
        waiting.set_reason(format!(
            "traffic of {} is shifted away from {}, until {} at the latest",
            shift.resource, shift.away_from, shift.until
        ));
        sleep_until(self.interrupter.clock.instant_of(shift.until).min(Instant::now() + CHECK_INTERVAL)).await;
    }
}
