//! The pod of this process. It leaves last, and its eviction shuts down the process.

use super::evict::Evictions;
use super::pod_times::MAX_WAIT_FOR_OTHERS;
use super::select::Departure;
use std::convert::Infallible;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// Grace period after the end of the last other drain, for the completion of its interruptions.
const COMPLETION_GRACE: Duration = Duration::from_secs(2);

/// The pod of this process, as the latest list shows it.
#[derive(Debug, Default)]
pub(super) struct OwnPod {
    /// Its departure, if it runs on the node.
    pub departure: Option<Box<Departure>>,
    /// Whether no other pod is left, so that its turn has come.
    pub is_last: bool,
}

impl Evictions<'_> {
    /// Evicts the pod of this process when all other pods have left, or at the latest time for its termination signal.
    pub(super) async fn leave_last(&self, mut own_pod: watch::Receiver<OwnPod>) -> Infallible {
        loop {
            let departure = match own_pod.wait_for(|own| own.departure.is_some()).await {
                Ok(own) => own.departure.clone(),
                Err(_) => None,
            };
            let Some(departure) = departure else { return std::future::pending().await };
            // Boxed, because it happens at most once: a waiting drain should take only the memory that its pods need.
            Box::pin(self.leave_in_turn(&departure, &mut own_pod)).await;
            // The pod is gone, or another has its name: the next list shows which.
            let _ = own_pod.changed().await;
        }
    }

    /// Evicts the pod of this process when its turn has come, or a hard deadline requires it.
    async fn leave_in_turn(&self, departure: &Departure, own_pod: &mut watch::Receiver<OwnPod>) {
        let signal_by = |deadline| self.grace(departure).signal_by(deadline);
        let last = async {
            loop {
                let _ = own_pod.wait_for(|own| own.is_last).await;
                self.other_drains_ended().await;
                // A newer list may show other pods again.
                if own_pod.borrow().is_last {
                    return;
                }
            }
        };
        tokio::select! {
            biased;
            () = self.drain.reached(signal_by) => {}
            () = last => {}
        }
        self.evict_own_pod(departure).await;
    }

    /// Waits, for a limited time, until the other drains of this process have ended. They may have less time than another replica
    /// needs to take them over.
    async fn other_drains_ended(&self) {
        let mut running = self.drain.drainer.running.subscribe();
        if *running.borrow_and_update() > 1 {
            let _ = timeout(MAX_WAIT_FOR_OTHERS, running.wait_for(|running| *running <= 1)).await;
            sleep(COMPLETION_GRACE).await;
        }
    }
}
