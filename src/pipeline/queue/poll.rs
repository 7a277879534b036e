//! Receiving messages: several receives at once for a backlog, one long poll for an empty queue.

use super::lanes::Lanes;
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

/// Receives from a queue until it is told to stop.
#[derive(Debug)]
pub struct Poller {
    /// The queue.
    pub queue: Queue,
    /// Takes the messages.
    pub messages: mpsc::UnboundedSender<Message>,
    /// Signals the queue's first answer.
    pub answered: oneshot::Sender<()>,
    /// Tells the poller to stop.
    pub stop: CancellationToken,
}

impl Poller {
    /// Receives, and hands messages on.
    pub async fn run(self) {
        let Self { queue, messages, answered, stop } = self;
        let mut answered = Some(answered);
        let mut lanes = Lanes::new();
        let mut receives = FuturesUnordered::new();
        loop {
            while let Some(next) = lanes.next(receives.len()) {
                let (queue, stop) = (queue.clone(), stop.clone());
                receives.push(async move {
                    tokio::select! {
                        biased;
                        () = stop.cancelled() => return Ok(Vec::new()),
                        () = sleep(next.pause) => {}
                    }
                    queue.receive(next.wait, &stop).await
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
                    lanes.received(batch.len());
                    hand_on(batch, &messages);
                }
                Err(error) => {
                    tell(&queue, &error);
                    lanes.failed(error.category);
                }
            }
        }
        // No receive begins after the shutdown. Messages of one in flight would stay invisible for 30 s: they are handed on, and
        // released with the others.
        let until = Instant::now() + LAST_RECEIVES;
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
        // An error says that the service is being dropped: its messages become visible by themselves.
        let _ = messages.send(message);
    }
}

fn tell(queue: &Queue, error: &AwsError) {
    queue.0.facts.emit(&Fact::ReceiveFailed { category: error.category, error });
}
