//! Receiving: as many receives at once as the backlog asks for, one long poll when there is none.

use super::{BATCH, Message, Queue};
use crate::clients::gate::{AwsError, Backoff, Category};
use crate::fact::Fact;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

/// SQS's longest wait: an empty queue costs one call in it.
const LONG_POLL: Duration = Duration::from_secs(20);

/// A backlog is received by at most so many calls at once: at SQS's 10–20 ms a call, thousands of messages a second.
const LANES: usize = 8;

/// How long a receive beside others waits. Not at all would be a short poll, which asks only some of SQS's servers, and comes back with
/// less than there is.
const BESIDE: Duration = Duration::from_secs(1);

/// Receives that fail are so far apart at first, and at the most: a spot instance has two minutes.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));

/// At the most, where a person must mend it: the log is not to be filled meanwhile.
const AGAIN_WHEN_MENDED: Duration = Duration::from_secs(30);

/// What a long poll in flight is given at shutdown.
const LAST_POLL: Duration = Duration::from_secs(2);

/// Receives from a queue until it is told to stop.
#[derive(Debug)]
pub struct Poller {
    /// The queue.
    pub queue: Queue,
    /// Where messages go.
    pub messages: mpsc::UnboundedSender<Message>,
    /// Told once, when the queue has answered for the first time.
    pub answered: tokio::sync::oneshot::Sender<()>,
    /// Tells it to stop.
    pub stop: CancellationToken,
}

impl Poller {
    /// Receives, and hands messages on. A full batch is followed by more receives at once, an empty queue by one long poll.
    pub async fn run(self) {
        let Self { queue, messages, answered, stop } = self;
        let mut answered = Some(answered);
        let mut receives = FuturesUnordered::new();
        let (mut soon, mut late) = (Backoff::new(AGAIN.0, AGAIN.1), Backoff::new(AGAIN.0, AGAIN_WHEN_MENDED));
        let mut lanes = 1;
        // After an error the next receive waits, in its own place: the others go on, and their answers are heard.
        let mut pause = Duration::ZERO;
        loop {
            while receives.len() < lanes {
                // Only one waits for long: the others are there for a backlog, and are gone with it. And the very first does not
                // wait, so that a start on an empty queue is ready at once.
                let wait = match (answered.is_some(), receives.is_empty()) {
                    (true, _) => Duration::ZERO,
                    (false, true) => LONG_POLL,
                    (false, false) => BESIDE,
                };
                let queue = queue.clone();
                let pause = std::mem::take(&mut pause);
                receives.push(async move {
                    sleep(pause).await;
                    queue.receive(wait).await
                });
            }
            let received = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(received) = receives.next() => received,
            };
            match received {
                Ok(batch) => {
                    if let Some(answered) = answered.take() {
                        let _ = answered.send(());
                    }
                    soon.reset();
                    late.reset();
                    lanes = match batch.len() {
                        BATCH => (lanes * 2).min(LANES),
                        0 => 1,
                        // SQS gives less than it has now and then: no reason yet to believe that the backlog is gone.
                        _ => (lanes - 1).max(1),
                    };
                    hand_on(batch, &messages);
                }
                Err(error) => {
                    tell(&queue, &error);
                    lanes = 1;
                    // Lanes that fail together are one failure.
                    if pause.is_zero() {
                        pause = match error.category {
                            Category::Denied | Category::NotFound => late.step(),
                            _ => soon.step(),
                        };
                    }
                }
            }
        }
        // What a receive in flight brings now would stay invisible for 30 s: it is handed on, and released with the rest.
        let until = Instant::now() + LAST_POLL;
        while let Ok(Some(received)) = timeout_at(until, receives.next()).await {
            match received {
                Ok(batch) => hand_on(batch, &messages),
                Err(error) => tell(&queue, &error),
            }
        }
    }
}

fn hand_on(batch: Vec<Message>, messages: &mpsc::UnboundedSender<Message>) {
    for message in batch {
        // Nobody takes messages any more only when the service is being dropped: they become visible by themselves.
        let _ = messages.send(message);
    }
}

fn tell(queue: &Queue, error: &AwsError) {
    queue.0.facts.emit(&Fact::ReceiveFailed { category: error.category, error });
}
