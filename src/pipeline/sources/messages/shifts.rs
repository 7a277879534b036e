//! Zonal shifts: the replica that receives the message notes the shift on a few Nodes, so that all replicas know it.

use super::Deliverer;
use crate::clients::gate::{Backoff, CALL_TIMEOUT, KubeError};
use crate::fact::{Fact, IgnoreReason};
use crate::pipeline::event::ZonalShift;
use crate::pipeline::node::shift::Shift;
use std::time::Duration;
use tokio::time::{Instant, sleep};

impl Deliverer {
    /// Notes the shift on Nodes. Retries until that succeeds: the message is held meanwhile.
    pub(super) async fn note_shift(&self, event: &ZonalShift, message: &str) {
        let resources = &self.interrupter.policy().waits.zonal_shift;
        let counting: Vec<_> = event.resources.iter().filter(|resource| resources.has(resource)).collect();
        if counting.is_empty() {
            self.facts.emit(&Fact::MessageIgnored { message, reason: IgnoreReason::OtherShift });
            return;
        }
        self.interrupter.index.live().await;
        for resource in counting {
            let shift = Shift::of(event, resource);
            let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
            let mut logged = None;
            let is_noted = loop {
                match self.write_shift(&shift).await {
                    Ok(Some(is_noted)) => break is_noted,
                    // The watch will show other Nodes.
                    Ok(None) => sleep(backoff.step()).await,
                    Err(error) => {
                        // Once: a missing permission would be logged for hours.
                        if logged.replace(error.category) != Some(error.category) {
                            self.facts.emit(&Fact::ZonalShiftFailed {
                                message,
                                category: error.category,
                                error: &error,
                            });
                        }
                        sleep(error.wait(backoff.step())).await;
                    }
                }
            };
            if !is_noted {
                self.facts.emit(&Fact::MessageIgnored { message, reason: IgnoreReason::StaleShift });
                continue;
            }
            let (away_from, until) = (&*event.away_from, event.begins.then_some(shift.until));
            self.facts.emit(&Fact::ZonalShift { message, away_from, resource, until });
        }
    }

    /// Returns whether a Node carries the note: none does if a newer event announced the shift, or if there is no Node. `None` if all Nodes
    /// that were chosen for the note are gone.
    async fn write_shift(&self, shift: &Shift) -> Result<Option<bool>, KubeError> {
        let nodes = self.interrupter.index.all_that(|node| !node.is_excluded());
        let carriers = shift.carriers(&nodes);
        let (mut is_noted, mut are_gone) = (false, !carriers.is_empty());
        for node in carriers {
            let (by, mut notes) = (Instant::now() + CALL_TIMEOUT, false);
            let patch = |current: &_| {
                let patch = shift.patch(current, self.interrupter.clock.now());
                notes = patch.is_some() || shift.is_noted(current);
                patch
            };
            if self.interrupter.marker.note(&node, by, patch).await? {
                is_noted |= notes;
                are_gone = false;
            }
        }
        Ok((!are_gone).then_some(is_noted))
    }
}
