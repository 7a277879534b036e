//! Messages whose lease is lost, or that were given back, while the work on them continues. Each holds seats in its interruptions, so there
//! is at most one for each message, however often it is received and lost.

use super::{Deliverer, DeliveryEnd};
use crate::clients::gate::Absence;
use crate::fact::{Fact, MessageRelease};
use crate::pipeline::queue::{Lease, LeaseEnd};
use futures_util::future::join;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::future::pending;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

/// Time for which the API server must be unreachable before a message is given back.
const MAX_ABSENCE: Duration = Duration::from_mins(2);

/// Messages that are worked on without a claim, by ID.
#[derive(Debug, Default)]
pub struct Unclaimed(Mutex<HashMap<Arc<str>, Weak<Notify>>>);

impl Unclaimed {
    /// Waits until the API server has been unreachable for [`MAX_ABSENCE`], so that another replica should receive the message and join the
    /// work. Never returns for a message that is already worked on without a claim: it was given back before.
    pub(super) async fn given_back(&self, message: &str, absence: &Absence) {
        absence.lasted(MAX_ABSENCE).await;
        let is_unclaimed = {
            let lost = self.0.lock();
            lost.get(message).is_some_and(|later| later.strong_count() > 0)
        };
        if is_unclaimed {
            pending::<()>().await;
        }
    }

    /// Waits until a later receive of the message has lost its claim too: until then this one's seats may be the only ones.
    pub(super) async fn superseded(&self, message: &Arc<str>) {
        let later = Arc::new(Notify::new());
        {
            let mut lost = self.0.lock();
            lost.retain(|_, later| later.strong_count() > 0);
            if let Some(earlier) = lost.insert(Arc::clone(message), Arc::downgrade(&later)).and_then(|it| it.upgrade())
            {
                earlier.notify_one();
            }
        }
        later.notified().await;
    }
}

/// Holds a message while the work on it continues, and cancels `lost` when the claim is lost. Returns when the work must end.
pub(super) async fn hold(
    deliverer: &Deliverer,
    lease: &mut Lease,
    message: &Arc<str>,
    visibility: watch::Receiver<Duration>,
    lost: &CancellationToken,
) -> DeliveryEnd {
    let Deliverer { queue, unclaimed, interrupter, facts, .. } = deliverer;
    let why = tokio::select! {
        biased;
        why = lease.kept(queue, message, visibility) => why,
        () = unclaimed.given_back(message, interrupter.drainer.gate.absence()) => LeaseEnd::Away,
    };
    facts.emit(&Fact::MessageLeaseEnded { message, why });
    if why == LeaseEnd::TooOld {
        return DeliveryEnd::TooOld;
    }
    lost.cancel();
    let released = async {
        // An extension whose answer was lost hides the message from other replicas. Failures have been reported already.
        if Box::pin(queue.release_late(lease)).await.is_ok() && why == LeaseEnd::Lost {
            facts.emit(&Fact::MessageReleased { message, why: MessageRelease::Lost });
        }
    };
    // It is known as unclaimed before it can be received again.
    join(unclaimed.superseded(message), released).await;
    DeliveryEnd::Superseded
}
