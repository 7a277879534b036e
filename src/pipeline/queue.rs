//! SQS: messages in, deletions and extensions out.
//!
//! The receipt is the only claim to a message, so [`Message`] and [`Receipt`] are not `Clone`, and a message ends in exactly one
//! of [`Queue::delete`] and [`Queue::release`], which consume it, or is left to become visible by itself.

mod lease;
mod place;
mod poll;

pub use lease::{Lease, LeaseEnd, VISIBILITY};
pub use place::Place;
pub use poll::Poller;

use crate::clients::batch::{Batcher, Unanswered};
use crate::clients::gate;
use crate::clients::gate::{AwsError, Backoff, CALL_TIMEOUT, Category};
use crate::fact::{Fact, Facts, MessageStep};
use crate::runtime::clock::Clock;
use crate::runtime::task::Tasks;
use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::{
    BatchResultErrorEntry, ChangeMessageVisibilityBatchRequestEntry, DeleteMessageBatchRequestEntry,
    MessageSystemAttributeName,
};
use jiff::Timestamp;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep};

/// SQS takes at most so many entries a batch, and gives at most so many messages a receive.
const BATCH: usize = 10;

/// How long a deletion or an extension waits for company. Nobody waits for either; a storm's drains end one by one, and messages that came
/// together are extended together.
const LINGER: Duration = Duration::from_millis(750);

/// How long a release waits for company: another replica waits for it.
const RELEASE_LINGER: Duration = Duration::from_millis(50);

/// At most so many messages are held; beyond it polling pauses. SQS allows 120,000 in flight to all receivers together.
const HELD: usize = 20_000;

/// A failed release is tried again so often: soon its message is visible by itself.
const RELEASE_TRIES: u32 = 3;

/// One SQS message.
#[derive(Debug)]
pub struct Message {
    /// SQS's id; the same at each receive.
    pub id: Arc<str>,
    /// What was sent.
    pub body: String,
    /// Since when we hold it, until when.
    pub lease: Lease,
    _held: OwnedSemaphorePermit,
}

/// The right to delete a message or to change its visibility, until it is received again.
#[derive(Debug)]
pub struct Receipt(String);

/// One queue. Clones share its batches and its count of messages held.
#[derive(Clone, Debug)]
pub struct Queue(Arc<Inner>);

type Answer = Result<(), AwsError>;

#[derive(Debug)]
struct Inner {
    client: Client,
    url: String,
    clock: Clock,
    facts: Facts,
    held: Arc<Semaphore>,
    deletes: Batcher<String, Answer>,
    releases: Batcher<(String, Duration), Answer>,
    extensions: Batcher<(String, Duration), Answer>,
}

impl Queue {
    /// The queue at `url`.
    #[must_use]
    pub fn new(client: Client, url: String, clock: Clock, tasks: &Tasks, facts: Facts) -> Self {
        let wire = Wire { client: client.clone(), url: url.clone(), facts: facts.clone() };
        let changes = |linger| {
            let wire = wire.clone();
            Batcher::start(tasks, BATCH, linger, move |entries| wire.clone().change(entries))
        };
        Self(Arc::new(Inner {
            releases: changes(RELEASE_LINGER),
            extensions: changes(LINGER),
            deletes: Batcher::start(tasks, BATCH, LINGER, move |receipts| wire.clone().delete(receipts)),
            client,
            url,
            clock,
            facts,
            held: Arc::new(Semaphore::new(HELD)),
        }))
    }

    /// One receive, which waits at most `wait` for a first message. Takes the places of its messages first.
    async fn receive(&self, wait: Duration) -> Result<Vec<Message>, AwsError> {
        let inner = &*self.0;
        let mut places = Vec::with_capacity(BATCH);
        // One after the other: with nine places left, a receive of nine is better than a wait for ten.
        while places.len() < BATCH {
            let place = match Arc::clone(&inner.held).try_acquire_owned() {
                Ok(place) => place,
                Err(_) if !places.is_empty() => break,
                Err(_) => match Arc::clone(&inner.held).acquire_owned().await {
                    Ok(place) => place,
                    Err(_) => return Ok(Vec::new()),
                },
            };
            places.push(place);
        }
        let asked = Instant::now();
        let request = inner
            .client
            .receive_message()
            .queue_url(&inner.url)
            .max_number_of_messages(i32::try_from(places.len()).unwrap_or(1))
            .wait_time_seconds(seconds(wait))
            .visibility_timeout(seconds(VISIBILITY))
            .message_system_attribute_names(MessageSystemAttributeName::ApproximateReceiveCount)
            .message_system_attribute_names(MessageSystemAttributeName::SentTimestamp);
        let answer =
            gate::aws(&inner.facts, ("sqs", "ReceiveMessage"), &inner.url, wait + CALL_TIMEOUT, || request.send())
                .await?;
        // Visibility runs from when SQS gave the messages, not from when their answer arrived: at the latest when the wait was over.
        let received_at = Instant::now().min(asked + wait);
        let messages = answer.messages.unwrap_or_default().into_iter().zip(places);
        Ok(messages.filter_map(|(message, place)| self.message(message, received_at, place)).collect())
    }

    /// `None` for a message without id, receipt or body, which SQS does not send.
    fn message(
        &self,
        message: aws_sdk_sqs::types::Message,
        received_at: Instant,
        held: OwnedSemaphorePermit,
    ) -> Option<Message> {
        let attribute = |name| message.attributes.as_ref().and_then(|all| all.get(&name));
        let receives =
            attribute(MessageSystemAttributeName::ApproximateReceiveCount).and_then(|n| n.parse().ok()).unwrap_or(1);
        let sent = attribute(MessageSystemAttributeName::SentTimestamp)
            .and_then(|ms| Timestamp::from_millisecond(ms.parse().ok()?).ok());
        let age = sent.map(|sent| self.0.clock.now().duration_since(sent).try_into().unwrap_or_default());
        let id: Arc<str> = message.message_id?.into();
        self.0.facts.emit(&Fact::MessageReceived { message: &id, receives, age });
        let lease = Lease::new(Receipt(message.receipt_handle?), received_at);
        Some(Message { id, body: message.body?, lease, _held: held })
    }

    /// Makes the message invisible for another `visibility` from now.
    async fn extend(&self, receipt: &Receipt, visibility: Duration) -> Answer {
        flat("ChangeMessageVisibilityBatch", self.0.extensions.ask((receipt.0.clone(), visibility)).await)
    }

    /// Deletes the message; retried with backoff for as long as it is ours.
    ///
    /// # Errors
    /// The last failure, when the message is no longer ours; it will be received again.
    pub async fn delete(&self, mut message: Message) -> Result<(), AwsError> {
        let Message { id, lease, .. } = &mut message;
        let (keeper, receipt) = lease.split();
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
        let mut last = None;
        let tries = async {
            loop {
                match flat("DeleteMessageBatch", self.0.deletes.ask(receipt.0.clone()).await) {
                    Ok(()) => return,
                    Err(error) => {
                        if last.is_none() {
                            self.tell_retried(id, MessageStep::Delete, &error);
                        }
                        last = Some(error);
                    }
                }
                sleep(backoff.step()).await;
            }
        };
        tokio::select! {
            biased;
            () = tries => Ok(()),
            _ = keeper.kept(self, (&**id, receipt), None) => Err(last.unwrap_or_else(|| self.lost("DeleteMessageBatch"))),
        }
    }

    /// Makes the message visible again `after` so long, for any receiver.
    ///
    /// # Errors
    /// The last of a few failures; the message becomes visible when its visibility ends.
    pub async fn release(&self, message: Message, after: Duration) -> Result<(), AwsError> {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
        let receipt = message.lease.receipt();
        let mut tries = 0;
        loop {
            let answer = self.0.releases.ask((receipt.0.clone(), after)).await;
            tries += 1;
            match flat("ChangeMessageVisibilityBatch", answer) {
                Ok(()) => return Ok(()),
                Err(error) if tries == RELEASE_TRIES || lost(&error) => return Err(error),
                Err(_) => sleep(backoff.step()).await,
            }
        }
    }

    fn tell_retried(&self, message: &str, step: MessageStep, error: &AwsError) {
        let category = error.category;
        self.0.facts.emit(&Fact::MessageRetried { message, step, category, error });
    }

    fn lost(&self, operation: &'static str) -> AwsError {
        AwsError {
            service: "sqs",
            operation,
            subject: self.0.url.clone(),
            category: Category::TimedOut,
            code: None,
            message: "the message is no longer ours".to_owned(),
        }
    }
}

/// Whether an answer says that the receipt is worth nothing any more.
fn lost(error: &AwsError) -> bool {
    matches!(error.category, Category::Invalid | Category::NotFound)
}

fn flat(operation: &'static str, answer: Result<Answer, Unanswered>) -> Answer {
    answer.unwrap_or_else(|died| {
        Err(AwsError {
            service: "sqs",
            operation,
            subject: "the queue".to_owned(),
            category: Category::Unavailable,
            code: None,
            message: died.to_string(),
        })
    })
}

fn seconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_secs()).unwrap_or(i32::MAX)
}

/// What the batches need to make their calls.
#[derive(Clone, Debug)]
struct Wire {
    client: Client,
    url: String,
    facts: Facts,
}

impl Wire {
    async fn delete(self, receipts: Vec<String>) -> Vec<Answer> {
        let count = receipts.len();
        let entries = receipts.into_iter().enumerate().filter_map(|(n, receipt)| {
            DeleteMessageBatchRequestEntry::builder().id(n.to_string()).receipt_handle(receipt).build().ok()
        });
        let request = self.client.delete_message_batch().queue_url(&self.url).set_entries(Some(entries.collect()));
        let answer =
            gate::aws(&self.facts, ("sqs", "DeleteMessageBatch"), &self.url, CALL_TIMEOUT, || request.send()).await;
        self.each(count, "DeleteMessageBatch", answer.map(|answer| answer.failed))
    }

    async fn change(self, changes: Vec<(String, Duration)>) -> Vec<Answer> {
        let count = changes.len();
        let entries = changes.into_iter().enumerate().filter_map(|(n, (receipt, visibility))| {
            ChangeMessageVisibilityBatchRequestEntry::builder()
                .id(n.to_string())
                .receipt_handle(receipt)
                .visibility_timeout(seconds(visibility))
                .build()
                .ok()
        });
        let request =
            self.client.change_message_visibility_batch().queue_url(&self.url).set_entries(Some(entries.collect()));
        let answer =
            gate::aws(&self.facts, ("sqs", "ChangeMessageVisibilityBatch"), &self.url, CALL_TIMEOUT, || request.send())
                .await;
        self.each(count, "ChangeMessageVisibilityBatch", answer.map(|answer| answer.failed))
    }

    /// A batch answers per entry: those it does not name as failed are done.
    fn each(
        &self,
        count: usize,
        operation: &'static str,
        answer: Result<Vec<BatchResultErrorEntry>, AwsError>,
    ) -> Vec<Answer> {
        let failed = match answer {
            Ok(failed) => failed,
            Err(error) => return vec![Err(error); count],
        };
        let mut answers = vec![Ok(()); count];
        for entry in failed {
            let Some(place) = entry.id.parse().ok().and_then(|n: usize| answers.get_mut(n)) else { continue };
            *place = Err(AwsError {
                service: "sqs",
                operation,
                subject: self.url.clone(),
                category: gate::category_of_code(&entry.code, if entry.sender_fault { 400 } else { 500 }),
                code: Some(entry.code),
                message: entry.message.unwrap_or_default(),
            });
        }
        answers
    }
}
