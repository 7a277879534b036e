//! The task that sends notifications, one after the other.

use super::NotifySettings;
use super::courier::{Acceptance, Courier, DeliveryError};
use super::event::Backlog;
use super::notification::Notification;
use super::queue::Queue;
use super::tracker::Tracker;
use crate::clients::gate::Backoff;
use crate::fact::{Fact, Facts, NotificationResult};
use crate::runtime::clock::{Clock, until};
use aws_smithy_runtime_api::client::http::SharedHttpConnector;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Maximum number of tries of one notification.
const MAX_TRIES: u32 = 5;

/// Bounds of the pause between two tries. A receiver that stays silent is asked once a minute.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));

/// Interval between reports of a receiver that does not accept notifications.
const FAILURE_REPORT_INTERVAL: Duration = Duration::from_mins(10);

/// Interval between reports of dropped notifications.
const DROP_REPORT_INTERVAL: Duration = Duration::from_mins(1);

/// Sends notifications, for as long as the service lives.
pub struct Notifier {
    backlog: Backlog,
    tracker: Tracker,
    courier: Arc<Courier>,
    facts: Facts,
    queue: Queue,
    current: Option<Attempt>,
    backoff: Backoff,
    /// The receiver gets nothing before.
    pause: Option<Instant>,
    dropped: usize,
    drops_reported_at: Option<Instant>,
    failure_reported_at: Option<Instant>,
}

/// A notification that is being sent.
struct Attempt {
    notification: Arc<Notification>,
    tries: u32,
    begun: Instant,
    /// The attempt in progress.
    sending: Option<BoxFuture<'static, Result<Acceptance, DeliveryError>>>,
}

impl Notifier {
    /// A notifier of the facts in `backlog`.
    #[must_use]
    pub fn new(
        settings: Arc<NotifySettings>,
        backlog: Backlog,
        connector: SharedHttpConnector,
        clock: Clock,
        facts: Facts,
    ) -> Self {
        let courier = Arc::new(Courier::new(Arc::clone(&settings), connector, clock));
        Self {
            backlog,
            queue: Queue::new(settings.format),
            tracker: Tracker::new(settings, clock),
            courier,
            facts,
            current: None,
            backoff: Backoff::new(PAUSES.0, PAUSES.1),
            pause: None,
            dropped: 0,
            drops_reported_at: None,
            failure_reported_at: None,
        }
    }

    /// Sends until there is no subscriber any more or, once `stop` is cancelled, until everything was tried once.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut stopping = false;
        loop {
            self.tracker.tick();
            self.fill_queue();
            self.report_drops();
            let next_try = self.next_try();
            // The end of the process does not wait for the limit.
            if stopping && !self.is_sending() && next_try.is_none_or(|at| at > Instant::now()) {
                return;
            }
            let drops = self.drops_reported_at.filter(|_| self.dropped > 0).map(|at| at + DROP_REPORT_INTERVAL);
            let due = [self.tracker.due(), drops].into_iter().flatten().min();
            tokio::select! {
                biased;
                result = answer(self.current.as_mut()) => self.finish_try(result, stopping),
                event = self.backlog.receiver.recv() => match event {
                    Some(event) => self.tracker.note(event),
                    None => return,
                },
                () = until(next_try) => self.send(),
                () = until(due) => {}
                () = stop.cancelled(), if !stopping => {
                    stopping = true;
                    self.tracker.finish();
                    // At the end of the process a pause that the receiver asked for is skipped.
                    self.pause = None;
                }
            }
        }
    }

    /// Takes new notifications.
    fn fill_queue(&mut self) {
        for notification in self.tracker.take_ready() {
            for phase in self.queue.push(notification) {
                self.facts.emit(&Fact::NotificationFolded { phase });
            }
        }
        self.dropped += self.backlog.take_dropped() + self.tracker.take_untracked();
    }

    fn is_sending(&self) -> bool {
        self.current.as_ref().is_some_and(|attempt| attempt.sending.is_some())
    }

    /// Returns when to try next; `None` during an attempt.
    fn next_try(&self) -> Option<Instant> {
        let opens = match &self.current {
            Some(attempt) => attempt.sending.is_none().then(|| self.queue.opens()),
            None => self.queue.due(),
        };
        opens.map(|opens| self.pause.map_or(opens, |pause| pause.max(opens)))
    }

    fn send(&mut self) {
        let next = || {
            let notification = Arc::new(self.queue.pop()?);
            Some(Attempt { notification, tries: 0, begun: Instant::now(), sending: None })
        };
        let Some(mut attempt) = self.current.take().or_else(next) else { return };
        self.queue.count_request();
        attempt.tries += 1;
        let (courier, notification) = (Arc::clone(&self.courier), Arc::clone(&attempt.notification));
        attempt.sending = Some(async move { courier.send(&notification).await }.boxed());
        self.current = Some(attempt);
    }

    fn finish_try(&mut self, result: Result<Acceptance, DeliveryError>, stopping: bool) {
        self.pause = None;
        let Some(mut attempt) = self.current.take() else { return };
        attempt.sending = None;
        let Err(error) = result else {
            self.backoff.reset();
            let (phase, took) = (attempt.notification.phase, attempt.begun.elapsed());
            return self.facts.emit(&Fact::NotificationSent { phase, took });
        };
        if error.is_retried() && !stopping {
            // A receiver that failed gets a pause before the next notification, too.
            let pause = self.backoff.step().max(error.retry_after().unwrap_or_default());
            self.pause = Some(Instant::now() + pause);
            if attempt.tries < MAX_TRIES {
                self.facts.emit(&Fact::NotificationRetried { category: error.category(), error: &error });
                self.current = Some(attempt);
                return;
            }
        }
        self.queue.count_again(&attempt.notification.folded);
        let result = if error.is_retried() { NotificationResult::Failed } else { NotificationResult::Refused };
        let now = Instant::now();
        let repeated = self.failure_reported_at.is_some_and(|at| at + FAILURE_REPORT_INTERVAL > now);
        if !repeated {
            self.failure_reported_at = Some(now);
        }
        let host = self.courier.host();
        self.facts.emit(&Fact::NotificationFailed { host, result, error: &error, repeated });
    }

    fn report_drops(&mut self) {
        let now = Instant::now();
        if self.dropped == 0 || self.drops_reported_at.is_some_and(|at| at + DROP_REPORT_INTERVAL > now) {
            return;
        }
        self.drops_reported_at = Some(now);
        self.facts.emit(&Fact::NotificationsDropped { count: std::mem::take(&mut self.dropped) });
    }
}

/// Waits for the answer of a try; without one, forever.
async fn answer(attempt: Option<&mut Attempt>) -> Result<Acceptance, DeliveryError> {
    match attempt.and_then(|attempt| attempt.sending.as_mut()) {
        Some(sending) => sending.await,
        None => std::future::pending().await,
    }
}

/// Notifications left at the end of the process are counted.
impl Drop for Notifier {
    fn drop(&mut self) {
        let left = self.queue.len() + usize::from(self.current.is_some()) + self.dropped;
        if left > 0 {
            self.facts.emit(&Fact::NotificationsDropped { count: left });
        }
    }
}

#[cfg(test)]
mod tests;
