//! Holding a message: its visibility timeout is extended while work on it runs.

use super::{Queue, Receipt, is_lost};
use crate::clients::gate::Backoff;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// Visibility timeout of a received message: the delay that a killed process costs. Extended after two thirds of it.
pub const VISIBILITY_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum time that a message is held: SQS keeps it invisible for at most 12 h from its receive.
const MAX_HOLD: Duration = Duration::from_mins(11 * 60 + 50);

/// Minimum time between a try of an extension that is not answered and the next one.
const MIN_EXTENSION_TRY: Duration = Duration::from_secs(1);

/// The time during which a message is ours.
#[derive(Debug)]
pub struct Lease {
    receipt: Receipt,
    times: LeaseTimes,
}

/// The times of a lease. Separate from the receipt, so that a deletion can continue while the lease is kept.
#[derive(Debug)]
pub(super) struct LeaseTimes {
    received_at: Instant,
    extended_at: Instant,
    visible_at: Instant,
}

pub use crate::fact::{LeaseEnd, MessageStep};

impl Lease {
    pub(super) fn new(receipt: Receipt, received_at: Instant) -> Self {
        let visible_at = received_at + VISIBILITY_TIMEOUT;
        Self { receipt, times: LeaseTimes { received_at, extended_at: received_at, visible_at } }
    }

    /// Keeps the message invisible, with this visibility timeout. Returns when the lease has ended.
    pub async fn kept(&mut self, queue: &Queue, message: &str, visibility: watch::Receiver<Duration>) -> LeaseEnd {
        self.times.kept(queue, Claim { message, receipt: &self.receipt }, Some(visibility)).await
    }

    pub(super) fn receipt(&self) -> &Receipt {
        &self.receipt
    }

    pub(super) fn split(&mut self) -> (&mut LeaseTimes, &Receipt) {
        (&mut self.times, &self.receipt)
    }
}

/// A message and the right to extend it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim<'a> {
    pub message: &'a str,
    pub receipt: &'a Receipt,
}

impl LeaseTimes {
    pub(super) async fn kept(
        &mut self,
        queue: &Queue,
        claim: Claim<'_>,
        mut visibility: Option<watch::Receiver<Duration>>,
    ) -> LeaseEnd {
        let leave_at = self.received_at + MAX_HOLD;
        loop {
            let span = visibility.as_mut().map_or(VISIBILITY_TIMEOUT, |watched| *watched.borrow_and_update());
            // A shorter span takes effect now, not when the longer one before it would have ended.
            let due = self.extended_at.max(self.received_at) + span * 2 / 3;
            tokio::select! {
                biased;
                () = sleep_until(due.min(leave_at)) => {}
                () = changed(&mut visibility) => continue,
            }
            if Instant::now() >= leave_at {
                return LeaseEnd::TooOld;
            }
            if !self.extend(queue, claim, span).await {
                return LeaseEnd::Lost;
            }
        }
    }

    /// Extends the visibility timeout, with retries until the message is visible. Returns whether the message is still ours. A try that
    /// hangs is followed by others, and still counts when it is answered after all.
    async fn extend(&mut self, queue: &Queue, claim: Claim<'_>, span: Duration) -> bool {
        let mut reported = false;
        let mut backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(4));
        let mut tries = FuturesUnordered::new();
        let mut next = Instant::now();
        loop {
            tokio::select! {
                biased;
                Some((asked, answer)) = tries.next() => match answer {
                    Ok(Ok(())) => {
                        self.extended_at = asked;
                        self.visible_at = asked + span;
                        return true;
                    }
                    Ok(Err(error)) if is_lost(&error) => return false,
                    Ok(Err(error)) | Err(error) => {
                        if !std::mem::replace(&mut reported, true) {
                            queue.report_retry(claim.message, MessageStep::Extend, &error);
                        }
                        next = Instant::now() + backoff.step();
                    }
                },
                () = sleep_until(self.visible_at) => return false,
                () = sleep_until(next) => {
                    // Counted from before the call: SQS counts from the call's arrival.
                    let asked = Instant::now();
                    tries.push(async move { (asked, queue.extend(claim.receipt, span).await) });
                    let left = self.visible_at.saturating_duration_since(asked);
                    next = asked + (left / 3).max(MIN_EXTENSION_TRY);
                }
            }
        }
    }
}

/// Returns when the wanted visibility timeout changes; never, if it can't change.
async fn changed(visibility: &mut Option<watch::Receiver<Duration>>) {
    match visibility {
        Some(watched) => match watched.changed().await {
            Ok(()) => {}
            Err(_) => std::future::pending().await,
        },
        None => std::future::pending().await,
    }
}
