//! SQS: messages in, deletions and extensions out.
//!
//! The receipt is the only claim to a message, so [`Message`] and [`Receipt`] are not `Clone`, and a message ends in exactly one of
//! [`Queue::delete`] and [`Queue::release`], which consume it, or is left to become visible by itself. Work continues without a claim.

mod lanes;
mod lease;
mod poll;
mod url;

pub use lease::{Lease, LeaseEnd, VISIBILITY_TIMEOUT};
pub use poll::Poller;
pub use url::QueueUrl;

use lease::Claim;

use crate::clients::batch::Batcher;
use crate::clients::gate;
use crate::clients::gate::{AwsError, Backoff, CALL_TIMEOUT, Category, Operation};
use crate::clients::server_date::{self, ClockComparison};
use crate::fact::{Fact, Facts, MessageStep};
use crate::runtime::clock::Clock;
use crate::runtime::task::Tasks;
use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::{
    BatchResultErrorEntry, ChangeMessageVisibilityBatchRequestEntry, DeleteMessageBatchRequestEntry,
    MessageSystemAttributeName,
};
use jiff::Timestamp;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// Maximum number of entries a batch, and of messages a receive: SQS's own limit.
const MAX_BATCH: usize = 10;

/// Maximum time for which a deletion or an extension waits until its batch is full. Neither is urgent: a storm's drains end one by one,
/// and messages that came together are extended together.
const LINGER: Duration = Duration::from_millis(750);

/// Maximum time for which a release waits until its batch is full: another replica waits for the message.
const RELEASE_LINGER: Duration = Duration::from_millis(50);

/// Maximum number of messages held; polling pauses at it. The work on each takes up to 58 kB if an attacker makes it large, and the chart's
/// memory limit has room for that. SQS allows 120,000 in flight for all receivers together.
const MAX_HELD: usize = 8_000;

/// Maximum sum of the messages' sizes above [`USUAL_KIB`] that are being read or name many instances, in KiB; polling pauses at it.
const MAX_EXCESS_KIB: u32 = 16 * 1024;

/// Minimum size in bytes of an instance's entry in a message. The work on an instance takes a few times as much, so a message that names
/// thousands keeps this part of its size for each; padding counts only until the message is read.
const INSTANCE_BYTES: usize = 32;

/// Size in KiB of a message about one instance, with SNS's envelope.
const USUAL_KIB: u32 = 8;

/// Maximum number of tries of a release: the message soon becomes visible by itself.
const MAX_RELEASE_TRIES: u32 = 3;

/// Prefix of a role's ID. A session's sender ID is the role's, a colon, and the session's name (SQS API reference, `ReceiveMessage`).
const ROLE_ID: &str = "AROA";

const DELETE: Operation = Operation::new("sqs", "DeleteMessageBatch");

const CHANGE_VISIBILITY: Operation = Operation::new("sqs", "ChangeMessageVisibilityBatch");

/// One SQS message.
#[derive(Debug)]
pub struct Message {
    /// SQS's ID, the same at each receive.
    pub id: Arc<str>,
    /// The text that was sent.
    pub body: String,
    /// SQS's time when it was sent.
    pub sent: Option<Timestamp>,
    /// Whether a role's session sent it, as Auto Scaling does for a lifecycle hook. SNS, including raw delivery, sends as a user of its own.
    pub from_role: bool,
    /// The time during which the message is ours.
    pub lease: Lease,
    _held: OwnedSemaphorePermit,
    excess: Option<OwnedSemaphorePermit>,
}

impl Message {
    /// Drops the text, and frees its room except the part for its instances.
    pub fn drop_body(&mut self, instances: usize) {
        self.body = String::new();
        if let Some(excess) = &mut self.excess {
            let given_back = excess.num_permits().saturating_sub(instances * INSTANCE_BYTES / 1024);
            drop(excess.split(given_back));
        }
    }
}

/// The right to delete a message or to change its visibility, until it is received again.
#[derive(Debug)]
pub struct Receipt(String);

/// One queue. Clones share its batches and its count of messages held.
#[derive(Clone, Debug)]
pub struct Queue(Arc<Inner>);

/// SQS's answer about one entry of a batch. The failure of a whole call leaves its entries unknown.
type EntryResult = Result<(), AwsError>;

#[derive(Debug)]
struct Inner {
    client: Client,
    url: String,
    clock: Clock,
    facts: Facts,
    held: Arc<Semaphore>,
    excess: Arc<Semaphore>,
    /// The excess of the largest message of the last receive.
    largest: AtomicU32,
    deletes: Batcher<String, EntryResult>,
    releases: Batcher<(String, Duration), EntryResult>,
    extensions: Batcher<(String, Duration), EntryResult>,
}

impl Queue {
    /// The queue at `url`.
    #[must_use]
    pub fn new(client: Client, url: String, clock: Clock, tasks: &Tasks, facts: Facts) -> Self {
        let calls = BatchCalls { client: client.clone(), url: url.clone(), facts: facts.clone() };
        let changes = |linger| {
            let calls = calls.clone();
            Batcher::start(tasks, CHANGE_VISIBILITY, MAX_BATCH, linger, move |entries| calls.clone().change(entries))
        };
        Self(Arc::new(Inner {
            releases: changes(RELEASE_LINGER),
            extensions: changes(LINGER),
            deletes: Batcher::start(tasks, DELETE, MAX_BATCH, LINGER, move |receipts| calls.clone().delete(receipts)),
            client,
            url,
            clock,
            facts,
            held: Arc::new(Semaphore::new(MAX_HELD)),
            excess: Arc::new(Semaphore::new(MAX_EXCESS_KIB as usize)),
            largest: AtomicU32::new(0),
        }))
    }

    /// Makes one receive, which waits at most `wait` for a first message. Takes the permits of its messages first; if `stop` comes
    /// before it has one, nothing is received.
    async fn receive(&self, wait: Duration, stop: &CancellationToken) -> Result<Vec<Message>, AwsError> {
        let inner = &*self.0;
        let mut permits = Vec::with_capacity(MAX_BATCH);
        // One permit at a time: with nine left, a receive of nine is better than a wait for ten.
        while permits.len() < MAX_BATCH {
            let permit = match Arc::clone(&inner.held).try_acquire_owned() {
                Ok(permit) => permit,
                Err(_) if !permits.is_empty() => break,
                Err(_) => tokio::select! {
                    biased;
                    () = stop.cancelled() => return Ok(Vec::new()),
                    permit = Arc::clone(&inner.held).acquire_owned() => match permit {
                        Ok(permit) => permit,
                        Err(_) => return Ok(Vec::new()),
                    },
                },
            };
            permits.push(permit);
        }
        // If the last messages were large, there must be room for equally large ones: for as many as fit, and at least for one.
        let largest = inner.largest.load(Ordering::Relaxed).min(MAX_EXCESS_KIB);
        let fit = inner.excess.available_permits().checked_div(largest as usize).unwrap_or(MAX_BATCH);
        permits.truncate(fit.max(1));
        let room = largest * u32::try_from(permits.len()).unwrap_or(1);
        let mut excess = tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(Vec::new()),
            permit = Arc::clone(&inner.excess).acquire_many_owned(room) => match permit {
                Ok(permit) => permit,
                Err(_) => return Ok(Vec::new()),
            },
        };
        let asked = Instant::now();
        let request = inner
            .client
            .receive_message()
            .queue_url(&inner.url)
            .max_number_of_messages(i32::try_from(permits.len()).unwrap_or(1))
            .wait_time_seconds(seconds(wait))
            .visibility_timeout(seconds(VISIBILITY_TIMEOUT))
            .message_system_attribute_names(MessageSystemAttributeName::ApproximateReceiveCount)
            .message_system_attribute_names(MessageSystemAttributeName::SentTimestamp)
            .message_system_attribute_names(MessageSystemAttributeName::SenderId);
        let answer =
            gate::aws(&inner.facts, Operation::new("sqs", "ReceiveMessage"), &inner.url, wait + CALL_TIMEOUT, || {
                request.customize().interceptor(ClockComparison::begin(inner.clock, inner.facts.clone())).send()
            })
            .await?;
        // The visibility timeout starts with SQS's answer, not with its arrival here: at the latest at the end of the wait.
        let received_at = Instant::now().min(asked + wait);
        let messages = answer.messages.unwrap_or_default();
        let sizes = messages.iter().map(|message| {
            let kib = message.body.as_ref().map_or(0, |body| body.len() / 1024);
            u32::try_from(kib).unwrap_or(MAX_EXCESS_KIB).saturating_sub(USUAL_KIB)
        });
        let sizes: Vec<u32> = sizes.collect();
        inner.largest.store(sizes.iter().copied().max().unwrap_or_default(), Ordering::Relaxed);
        let messages = messages.into_iter().zip(permits).zip(sizes).map(|((message, held), kib)| {
            let others = || Arc::clone(&inner.excess).try_acquire_many_owned(kib).ok();
            (message, (held, excess.split(kib as usize).or_else(others)))
        });
        Ok(messages.filter_map(|(message, permits)| self.message(message, received_at, permits)).collect())
    }

    /// Whether the machine's time has jumped, and no answer of SQS has confirmed it since.
    fn doubts_clock(&self) -> bool {
        self.0.clock.has_stepped()
    }

    /// Follows the machine's time, because SQS does not answer.
    fn follow_machine(&self) {
        server_date::report(&self.0.facts, self.0.clock.follow());
    }

    /// Returns `None` for a message without ID, receipt or body, which SQS does not send.
    fn message(
        &self,
        message: aws_sdk_sqs::types::Message,
        received_at: Instant,
        (held, excess): (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>),
    ) -> Option<Message> {
        let receives = attribute(&message, &MessageSystemAttributeName::ApproximateReceiveCount).unwrap_or(1);
        let sent = time(&message, &MessageSystemAttributeName::SentTimestamp);
        let sender: Option<String> = attribute(&message, &MessageSystemAttributeName::SenderId);
        let from_role = sender.is_some_and(|sender| sender.starts_with(ROLE_ID) && sender.contains(':'));
        let age = sent.map(|sent| self.0.clock.now().duration_since(sent).try_into().unwrap_or_default());
        let id: Arc<str> = message.message_id?.into();
        self.0.facts.emit(&Fact::MessageReceived { message: &id, receives, age });
        let lease = Lease::new(Receipt(message.receipt_handle?), received_at);
        Some(Message { id, body: message.body?, sent, from_role, lease, _held: held, excess })
    }

    /// Makes the message invisible for `visibility` from now.
    async fn extend(&self, receipt: &Receipt, visibility: Duration) -> Result<EntryResult, AwsError> {
        self.0.extensions.ask((receipt.0.clone(), visibility)).await
    }

    /// Deletes the message, with retries while it is ours.
    ///
    /// # Errors
    /// The last failure, if the message is no longer ours. It will be received again.
    pub async fn delete(&self, mut message: Message) -> Result<(), AwsError> {
        let Message { id, lease, .. } = &mut message;
        let (times, receipt) = lease.split();
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
        let mut last = None;
        let tries = async {
            loop {
                match self.0.deletes.ask(receipt.0.clone()).await.flatten() {
                    Ok(()) => return,
                    Err(error) => {
                        if last.is_none() {
                            self.report_retry(id, MessageStep::Delete, &error);
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
            _ = times.kept(self, Claim { message: id, receipt }, None) => Err(last.unwrap_or_else(|| self.lost_error(DELETE))),
        }
    }

    /// Deletes a message that is no longer ours, in one try. That succeeds if no replica has received it since.
    ///
    /// # Errors
    /// SQS's answer, or none.
    pub async fn delete_late(&self, message: Message) -> Result<(), AwsError> {
        self.0.deletes.ask(message.lease.receipt().0.clone()).await.flatten()
    }

    /// Makes the message visible to any receiver after the time `after`.
    ///
    /// # Errors
    /// The last of a few failures. The message becomes visible when its visibility timeout ends.
    pub async fn release(&self, message: Message, after: Duration) -> Result<(), AwsError> {
        self.show(&message.lease, after).await
    }

    /// Makes a message visible whose lease is probably lost: SQS may have extended it all the same.
    ///
    /// # Errors
    /// As [`Queue::release`].
    pub async fn release_late(&self, lease: &Lease) -> Result<(), AwsError> {
        self.show(lease, Duration::ZERO).await
    }

    async fn show(&self, lease: &Lease, after: Duration) -> Result<(), AwsError> {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
        let receipt = lease.receipt();
        let mut tries = 0;
        loop {
            let answer = self.0.releases.ask((receipt.0.clone(), after)).await;
            tries += 1;
            match answer {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) if is_lost(&error) => return Err(error),
                Ok(Err(error)) | Err(error) if tries == MAX_RELEASE_TRIES => return Err(error),
                Ok(Err(_)) | Err(_) => sleep(backoff.step()).await,
            }
        }
    }

    fn report_retry(&self, message: &str, step: MessageStep, error: &AwsError) {
        let category = error.category;
        self.0.facts.emit(&Fact::MessageRetried { message, step, category, error });
    }

    fn lost_error(&self, operation: Operation) -> AwsError {
        AwsError::new(operation, &self.0.url, Category::TimedOut, "the message is no longer ours".to_owned())
    }
}

/// Whether the error of an entry means that its receipt is no longer valid.
fn is_lost(error: &AwsError) -> bool {
    matches!(error.category, Category::Invalid | Category::NotFound)
}

fn seconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_secs()).unwrap_or(i32::MAX)
}

/// Makes the calls of batches.
#[derive(Clone, Debug)]
struct BatchCalls {
    client: Client,
    url: String,
    facts: Facts,
}

impl BatchCalls {
    async fn delete(self, receipts: Vec<String>) -> Vec<Result<EntryResult, AwsError>> {
        let count = receipts.len();
        let entries = receipts.into_iter().enumerate().filter_map(|(n, receipt)| {
            DeleteMessageBatchRequestEntry::builder().id(n.to_string()).receipt_handle(receipt).build().ok()
        });
        let request = self.client.delete_message_batch().queue_url(&self.url).set_entries(Some(entries.collect()));
        let answer = gate::aws(&self.facts, DELETE, &self.url, CALL_TIMEOUT, || request.send()).await;
        self.each(count, DELETE, answer.map(|answer| answer.failed))
    }

    async fn change(self, changes: Vec<(String, Duration)>) -> Vec<Result<EntryResult, AwsError>> {
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
        let answer = gate::aws(&self.facts, CHANGE_VISIBILITY, &self.url, CALL_TIMEOUT, || request.send()).await;
        self.each(count, CHANGE_VISIBILITY, answer.map(|answer| answer.failed))
    }

    /// A batch has a result for each entry: those that it does not name as failed are done.
    fn each(
        &self,
        count: usize,
        operation: Operation,
        answer: Result<Vec<BatchResultErrorEntry>, AwsError>,
    ) -> Vec<Result<EntryResult, AwsError>> {
        let failed = match answer {
            Ok(failed) => failed,
            Err(error) => return vec![Err(error); count],
        };
        let mut answers = vec![Ok(Ok(())); count];
        for entry in failed {
            let Some(answer) = entry.id.parse().ok().and_then(|n: usize| answers.get_mut(n)) else { continue };
            let category = gate::category_of_code(&entry.code, if entry.sender_fault { 400 } else { 500 });
            let error = AwsError::new(operation, &self.url, category, entry.message.unwrap_or_default());
            *answer = Ok(Err(AwsError { code: Some(entry.code), ..error }));
        }
        answers
    }
}

/// Returns a number among the message's attributes.
fn attribute<T: FromStr>(message: &aws_sdk_sqs::types::Message, name: &MessageSystemAttributeName) -> Option<T> {
    message.attributes.as_ref()?.get(name)?.parse().ok()
}

/// Returns a time among the message's attributes.
fn time(message: &aws_sdk_sqs::types::Message, name: &MessageSystemAttributeName) -> Option<Timestamp> {
    Timestamp::from_millisecond(attribute(message, name)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_message_that_was_read_keeps_room_for_its_instances_alone() {
        for (instances, kept) in [(0, 0), (1, 0), (3_200, 100), (32_000, 1_000), (64_000, 1_000)] {
            let (held, room) = (Arc::new(Semaphore::new(1)), Arc::new(Semaphore::new(1_000)));
            let mut message = Message {
                id: "m".into(),
                body: "x".repeat(1_008 * 1024),
                sent: None,
                from_role: false,
                lease: Lease::new(Receipt("r".to_owned()), Instant::now()),
                _held: held.try_acquire_owned().unwrap(),
                excess: Some(Arc::clone(&room).try_acquire_many_owned(1_000).unwrap()),
            };
            message.drop_body(instances);
            assert_eq!((message.body.capacity(), 1_000 - room.available_permits()), (0, kept), "{instances}");
            drop(message);
            assert_eq!(room.available_permits(), 1_000);
        }
    }
}
