//! The pod that this process runs in: it goes last, and its going ends the process.

use super::Drainer;
use super::evict::Evictions;
use super::select::Leaver;
use std::convert::Infallible;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// So long after the last of them what they were for has been completed, if nothing is in the way.
const COMPLETED: Duration = Duration::from_secs(2);

/// Our own pod waits for other drains of this process, but not for longer: what a spot instance has.
const OTHERS: Duration = Duration::from_mins(2);

/// The pod that this process runs in, if it is on the node, and whether its turn has come.
#[derive(Debug, Default)]
pub(super) struct Own {
    pub pod: Option<Leaver>,
    pub turn: bool,
}

impl Drainer {
    /// Evicts the pod that this process runs in when all others have gone, or when it must be told that it is to end, whatever is left.
    pub(super) async fn leave_last(&self, evictions: &Evictions<'_>, mut own: watch::Receiver<Own>) -> Infallible {
        loop {
            let ourselves = match own.wait_for(|own| own.pod.is_some()).await {
                Ok(own) => own.pod.clone(),
                Err(_) => None,
            };
            let Some(ourselves) = ourselves else { return std::future::pending().await };
            // Boxed, as all that happens once or never: a drain that waits should cost what its pods need.
            Box::pin(self.leave_in_turn(evictions, &ourselves, &mut own)).await;
            // It is not there, or another one of its name is: the next list tells.
            let _ = own.changed().await;
        }
    }

    /// Evicts our own pod when its turn has come, or its time.
    async fn leave_in_turn(&self, evictions: &Evictions<'_>, ourselves: &Leaver, own: &mut watch::Receiver<Own>) {
        let told_by = |deadline| evictions.grace(ourselves).told_by(deadline);
        let others_first = async {
            loop {
                let _ = own.wait_for(|own| own.turn).await;
                self.others_done().await;
                // Somebody may have come meanwhile.
                if own.borrow().turn {
                    return;
                }
            }
        };
        tokio::select! {
            biased;
            () = evictions.reached(told_by) => {}
            () = others_first => {}
        }
        evictions.leave(ourselves).await;
    }

    /// Waits, not for ever, for the other drains of this process: they may have less time than another replica needs to take them
    /// over.
    async fn others_done(&self) {
        let mut running = self.running.subscribe();
        if *running.borrow_and_update() > 1 {
            let _ = timeout(OTHERS, running.wait_for(|running| *running <= 1)).await;
            // What they were for is being completed.
            sleep(COMPLETED).await;
        }
    }
}
