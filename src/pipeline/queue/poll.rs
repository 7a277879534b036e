//! Receiving messages: several receives at once for a backlog, one long poll for an empty queue.

use super::lanes::{Lanes, Receive};
use super::{Message, Queue};
use crate::clients::gate::AwsError;
use crate::fact::Fact;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

/// Maximum time for the receives that are in flight at shutdown.
const LAST_RECEIVES: Duration = Duration::from_secs(2);

/// Maximum interval between checks of the machine's time. A machine that was suspended for longer may miss the tightest deadlines.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Purpose of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Messages,
    /// SQS's time, after a jump of the machine's: a quick answer shows whether the clock was set or the machine suspended.
    Time,
}

/// Receives from a queue until it is stopped.
#[derive(Debug)]
pub struct Poller {
    /// The queue.
    pub queue: Queue,
    /// Receives the messages.
    pub messages: mpsc::UnboundedSender<Message>,
    /// Signals the queue's first answer.
    pub answered: oneshot::Sender<()>,
    /// Stops the poller.
    pub stop: CancellationToken,
}

impl Poller {
    /// Receives, and hands messages on.
    pub async fn run(self) {
        let Self { queue, messages, answered, stop } = self;
        let mut answered = Some(answered);
        let mut lanes = Lanes::new();
        let mut receives = FuturesUnordered::new();
        let mut comparing = false;
        let receive = async |next: Receive, purpose| (purpose, received(&queue, next, &stop).await);
        loop {
            while let Some(next) = lanes.next(receives.len() - usize::from(comparing)) {
                receives.push(receive(next, Purpose::Messages));
            }
            if !comparing && queue.doubts_clock() {
                comparing = true;
                receives.push(receive(Receive { pause: Duration::ZERO, wait: Duration::ZERO }, Purpose::Time));
            }
            let (purpose, received) = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(received) = receives.next() => received,
                () = sleep(CHECK_INTERVAL) => continue,
            };
            if purpose == Purpose::Time {
                comparing = false;
                if queue.doubts_clock() {
                    queue.follow_machine();
                }
            }
            match received {
                Ok(batch) => {
                    if let Some(answered) = answered.take() {
                        let _ = answered.send(());
                    }
                    if purpose == Purpose::Messages {
                        lanes.received(batch.len());
                    }
                    hand_on(batch, &messages);
                }
                Err(error) => {
                    report(&queue, &error);
                    if purpose == Purpose::Messages {
                        lanes.failed(error.category);
                    }
                }
            }
        }
        // No receive starts after the shutdown. Messages of a receive in flight would stay invisible for 30 s: they are handed on, and
        // released with the others.
        let until = Instant::now() + LAST_RECEIVES;
        while let Ok(Some((_, received))) = timeout_at(until, receives.next()).await {
            match received {
                Ok(batch) => hand_on(batch, &messages),
                Err(error) => report(&queue, &error),
            }
        }
    }
}

async fn received(queue: &Queue, next: Receive, stop: &CancellationToken) -> Result<Vec<Message>, AwsError> {
    tokio::select! {
        biased;
        () = stop.cancelled() => return Ok(Vec::new()),
        () = sleep(next.pause) => {}
    }
    queue.receive(next.wait, stop).await
}

fn hand_on(batch: Vec<Message>, messages: &mpsc::UnboundedSender<Message>) {
    for message in batch {
        // An error means that the service is being dropped: its messages become visible by themselves.
        let _ = messages.send(message);
    }
}

fn report(queue: &Queue, error: &AwsError) {
    queue.0.facts.emit(&Fact::ReceiveFailed { category: error.category, error });
}
