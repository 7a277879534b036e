//! Receiving: as many receives at once as the backlog asks for, one long poll when there is none.

use super::{BATCH, Message, Queue};
use crate::fact::Fact;
use crate::gate::{AwsError, Backoff};
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
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(5));
        let mut lanes = 1;
        // After an error the next receive waits, in its own place: the others go on, and their answers are heard.
        let mut pause = Duration::ZERO;
        loop {
            while receives.len() < lanes {
                // Only one waits: the others are there for a backlog, and are gone with it. And the very first does not, so that
                // a start on an empty queue is ready at once.
                let wait = if receives.is_empty() && answered.is_none() { LONG_POLL } else { Duration::ZERO };
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
                    backoff.reset();
                    lanes = if batch.len() == BATCH { (lanes * 2).min(LANES) } else { 1 };
                    hand_on(batch, &messages);
                }
                Err(error) => {
                    tell(&queue, &error);
                    lanes = 1;
                    // Lanes that fail together are one failure.
                    if pause.is_zero() {
                        pause = backoff.step();
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
    queue.0.facts.emit(&Fact::ReceiveFailed { category: error.category.as_str(), error });
}
