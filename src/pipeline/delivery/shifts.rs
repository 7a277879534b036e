//! Zonal shifts: the replica that receives the message notes it on a few Nodes, so that all know it.

use super::Deliverer;
use crate::clients::gate::{Backoff, CALL_TIMEOUT, KubeError};
use crate::fact::{Fact, IgnoreReason};
use crate::pipeline::event::ZonalShift;
use crate::pipeline::node::shift::Shift;
use std::time::Duration;
use tokio::time::{Instant, sleep};

impl Deliverer {
    /// Notes the shift on Nodes. Retries until that succeeds: the message is held meanwhile.
    pub(super) async fn note_shift(&self, told: &ZonalShift, message: &str) {
        let resources = &self.interrupter.policy.waits.zonal_shift;
        let counting: Vec<_> = told.resources.iter().filter(|resource| resources.has(resource)).collect();
        if counting.is_empty() {
            self.facts.emit(&Fact::MessageIgnored { message, reason: IgnoreReason::OtherShift });
            return;
        }
        self.interrupter.index.live().await;
        for resource in counting {
            let shift = Shift::of(told, resource);
            let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
            let mut logged = None;
            let is_noted = loop {
                match self.write_shift(&shift).await {
                    Ok(Some(is_noted)) => break is_noted,
                    // The watch will tell which others there are.
                    Ok(None) => sleep(backoff.step()).await,
                    Err(error) => {
                        // Once: a right that is missing would be told for hours.
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
            let (away_from, until) = (&*told.away_from, told.begins.then_some(shift.until));
            self.facts.emit(&Fact::ZonalShift { message, away_from, resource, until });
        }
    }

    /// Returns whether a Node notes it: none does if a newer event has told of the shift, or if there is no Node. `None` if all that were to
    /// note it are gone.
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
