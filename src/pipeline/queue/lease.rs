//! Holding a message: its visibility is extended for as long as work on it runs.

use super::{Queue, Receipt, lost};
use crate::clients::gate::Backoff;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout_at};

/// How long a received message is invisible: what a killed process costs. Extended after two thirds of it.
pub const VISIBILITY: Duration = Duration::from_secs(30);

/// SQS keeps a message invisible for at most 12 h from its receive; we hand it over ten minutes before.
const LONGEST: Duration = Duration::from_mins(11 * 60 + 50);

/// Since when a message is ours, and until when.
#[derive(Debug)]
pub struct Lease {
    receipt: Receipt,
    keeper: Keeper,
}

/// The times of a lease, apart from the receipt, so that a deletion may go on while the lease is kept.
#[derive(Debug)]
pub(super) struct Keeper {
    received_at: Instant,
    extended_at: Instant,
    visible_at: Instant,
}

pub use crate::fact::{LeaseEnd, MessageStep};

impl Lease {
    pub(super) fn new(receipt: Receipt, received_at: Instant) -> Self {
        let visible_at = received_at + VISIBILITY;
        Self { receipt, keeper: Keeper { received_at, extended_at: received_at, visible_at } }
    }

    /// Keeps the message invisible, `visibility` at a time; comes back only when the lease has ended.
    pub async fn kept(&mut self, queue: &Queue, message: &str, visibility: watch::Receiver<Duration>) -> LeaseEnd {
        self.keeper.kept(queue, (message, &self.receipt), Some(visibility)).await
    }

    pub(super) fn receipt(&self) -> &Receipt {
        &self.receipt
    }

    pub(super) fn split(&mut self) -> (&mut Keeper, &Receipt) {
        (&mut self.keeper, &self.receipt)
    }
}

impl Keeper {
    pub(super) async fn kept(
        &mut self,
        queue: &Queue,
        (message, receipt): (&str, &Receipt),
        mut visibility: Option<watch::Receiver<Duration>>,
    ) -> LeaseEnd {
        let leave_at = self.received_at + LONGEST;
        loop {
            let span = visibility.as_mut().map_or(VISIBILITY, |watched| *watched.borrow_and_update());
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
            if !self.extend(queue, (message, receipt), span).await {
                return LeaseEnd::Lost;
            }
        }
    }

    /// Extends, again and again if need be, until the message is visible. Tells whether it is still ours.
    async fn extend(&mut self, queue: &Queue, (message, receipt): (&str, &Receipt), span: Duration) -> bool {
        let mut told = false;
        let mut backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(4));
        loop {
            // Counted from before the call: SQS counts from when it arrives.
            let asked = Instant::now();
            match timeout_at(self.visible_at, queue.extend(receipt, span)).await {
                Ok(Ok(())) => {
                    self.extended_at = asked;
                    self.visible_at = asked + span;
                    return true;
                }
                Ok(Err(error)) if lost(&error) => return false,
                Ok(Err(error)) => {
                    if !std::mem::replace(&mut told, true) {
                        queue.tell_retried(message, MessageStep::Extend, &error);
                    }
                    sleep_until((Instant::now() + backoff.step()).min(self.visible_at)).await;
                }
                Err(_) => return false,
            }
        }
    }
}

/// Returns when the visibility asked for changes; never, where it can't.
async fn changed(visibility: &mut Option<watch::Receiver<Duration>>) {
    match visibility {
        Some(watched) => match watched.changed().await {
            Ok(()) => {}
            Err(_) => std::future::pending().await,
        },
        None => std::future::pending().await,
    }
}
