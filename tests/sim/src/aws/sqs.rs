//! SQS: one standard queue, its dead-letter queue, and the state that tests inspect.

use super::refusal::{Refusal, Words};
use super::{ACCOUNT, REGION};
use crate::clock::Clock;
use crate::fault::{Disconnected, Edge};
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use queue::Queue;
use request::{Call, Receive};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

mod perform;
mod queue;
mod request;

pub(super) use queue::uuid;

/// Name of the only queue.
const NAME: &str = "ebbtide";

/// The sender of most messages: the session of a role, as Auto Scaling's.
const ROLE_SESSION: &str = "AROAEXAMPLEEXAMPLEEXA:AutoScaling";

/// The sender of what comes through a topic.
const SNS: &str = "AIDAIT2UOQQY3AUEKVGXU";

const WORDS: Words = Words {
    throttled_status: 400,
    throttled: "RequestThrottled",
    denied: "AccessDenied",
    expired: (403, "ExpiredToken"),
    invalid: "InvalidParameterValue",
    internal: "InternalFailure",
    unavailable: "ServiceUnavailable",
};

/// A simulated queue. Clones share one state.
#[derive(Clone, Debug)]
pub struct Sqs {
    clock: Clock,
    edge: Edge,
    queue: Arc<Mutex<Queue>>,
    /// Wakes long polls when a message becomes visible earlier than expected.
    changed: Arc<Notify>,
}

/// One delivery of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// Time since the world's start.
    pub at: Duration,
    /// The message's id.
    pub id: String,
    /// The receipt handle.
    pub receipt: String,
    /// Whether the message stayed visible, so that another receiver can hold it at the same time.
    pub duplicate: bool,
}

impl Sqs {
    pub(super) fn new(clock: Clock, edge: Edge, seed: u64) -> Self {
        Self { clock, edge, queue: Arc::new(Mutex::new(Queue::new(seed))), changed: Arc::default() }
    }

    /// Returns the queue's URL. A request may name it on any host: only the last part of the path counts.
    #[must_use]
    pub fn queue_url(&self) -> String {
        url("sqs.sim")
    }

    /// Sends a message, visible at once. Returns its ID.
    pub fn send(&self, body: impl Into<String>) -> String {
        self.send_delayed(body, Duration::ZERO)
    }

    /// Sends a message as SNS, for instance with raw delivery. Returns its ID.
    pub fn send_by_topic(&self, body: impl Into<String>) -> String {
        self.alter(|queue| queue.send(self.clock.now(), SNS, body.into(), Duration::ZERO))
    }

    /// Sends a message that becomes visible after `delay`. Returns its ID.
    pub fn send_delayed(&self, body: impl Into<String>, delay: Duration) -> String {
        self.alter(|queue| queue.send(self.clock.now(), ROLE_SESSION, body.into(), delay))
    }

    /// Returns the number of messages that could be received now.
    #[must_use]
    pub fn visible(&self) -> usize {
        self.queue().counts().visible
    }

    /// Returns the number of messages in flight: received, and invisible.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.queue().counts().in_flight
    }

    /// Returns whether no message is left, visible or not. Dead letters don't count.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue().is_empty()
    }

    /// Returns the IDs of the deleted messages, in the order of deletion.
    #[must_use]
    pub fn deleted(&self) -> Vec<String> {
        self.queue().deleted.clone()
    }

    /// Returns how many times a message has been received; works for deleted messages, too.
    #[must_use]
    pub fn receives(&self, id: &str) -> u32 {
        self.queue().receives(id)
    }

    /// Returns all deliveries so far, in order: two receipts of one message show two holders.
    #[must_use]
    pub fn receive_log(&self) -> Vec<Received> {
        self.queue().log.clone()
    }

    /// Sets the probability that a delivered message stays visible: at-least-once delivery.
    pub fn duplicate_chance(&self, probability: f64) {
        self.queue().duplicate_chance = probability;
    }

    /// Sets the number of receives after which a message becomes a dead letter at the next receive.
    pub fn set_dead_letter(&self, max_receive_count: u32) {
        self.queue().max_receives = Some(max_receive_count);
    }

    /// Returns the IDs of the dead letters, in the order in which they became dead letters.
    #[must_use]
    pub fn dead_letters(&self) -> Vec<String> {
        self.queue().dead_letters.clone()
    }

    /// Makes the next `times` entries of batch calls fail alone, with `InternalError`, which is not the sender's fault.
    pub fn fail_entries(&self, times: u32) {
        self.queue().failing_entries = times;
    }

    /// Sets an attribute of the owner: `Policy`, `KmsMasterKeyId`, `SqsManagedSseEnabled`, `DelaySeconds`.
    pub fn set_attribute(&self, name: &str, value: &str) {
        self.queue().attributes.insert(name.to_owned(), value.to_owned());
    }

    /// Returns the queue's ARN.
    #[must_use]
    pub fn queue_arn(&self) -> String {
        arn(NAME)
    }

    /// Sets the default visibility timeout; 30 s at first.
    pub fn set_visibility_timeout(&self, timeout: Duration) {
        self.queue().visibility_timeout = timeout;
    }

    /// Sets the retention of messages, in flight or not; 4 days at first.
    pub fn set_retention(&self, retention: Duration) {
        self.queue().retention = retention;
    }

    /// Returns the IDs of the messages dropped at the end of their retention.
    #[must_use]
    pub fn expired(&self) -> Vec<String> {
        self.queue().expired.clone()
    }

    /// Sets whether a visibility change succeeds without effect if the message is visible again and not yet received again.
    /// AWS documents `MessageNotInflight`, which is the default here; some users observed the silent success.
    pub fn silent_late_changes(&self, silent: bool) {
        self.queue().silent_late_changes = silent;
    }

    pub(crate) fn forget_before(&self, time: Duration) {
        self.queue().forget_before(time);
    }

    /// Returns the queue as it is now.
    fn queue(&self) -> MutexGuard<'_, Queue> {
        let mut queue = self.queue.lock();
        queue.settle(self.clock.elapsed());
        queue
    }

    /// Makes a change, and wakes the long polls if a message may have become visible.
    fn alter<T>(&self, act: impl FnOnce(&mut Queue) -> T) -> T {
        let (answer, woken) = {
            let mut queue = self.queue();
            let answer = act(&mut queue);
            (answer, std::mem::take(&mut queue.woken))
        };
        if woken {
            self.changed.notify_waiters();
        }
        answer
    }

    pub(super) async fn serve(
        &self,
        operation: &str,
        host: Option<&str>,
        body: &Bytes,
    ) -> Result<http::Response<Bytes>, Disconnected> {
        let call = Call::parse(operation, body);
        let subject = call.as_ref().map_or_else(|_| String::new(), |call| call.subject(&self.queue()));
        let refuse = |fault| Refusal::planned(fault, &WORDS).map(|refusal| perform::refuse(&refusal));
        let serve = async {
            let result = match call {
                Ok(call) => self.perform(call, host).await,
                Err(malformed) => Err(malformed),
            };
            result.map_or_else(|refusal| perform::refuse(&refusal), |answer| perform::answer(&answer))
        };
        self.edge.pass("sqs", operation, &subject, refuse, serve).await
    }

    async fn perform(&self, call: Call, host: Option<&str>) -> Result<serde_json::Value, Refusal> {
        match call {
            Call::Receive(call) => self.receive(call).await,
            Call::Act(call) => self.alter(|queue| call.perform(queue, self.clock.now(), host)),
        }
    }

    /// Waits for messages, as long as a long poll may: ends when there is something to deliver, or at its timeout.
    async fn receive(&self, call: Receive) -> Result<serde_json::Value, Refusal> {
        let order = call.order()?;
        let end = self.clock.elapsed() + order.wait;
        loop {
            // Created before the look at the queue, so that messages sent after the look wake it.
            let changed = self.changed.notified();
            let next = {
                let mut queue = self.queue();
                let deliveries = queue.receive(self.clock.now(), order.max, order.visibility);
                if !deliveries.is_empty() || queue.now() >= end {
                    return Ok(order.answer(&deliveries));
                }
                queue.next_visible()
            };
            let until = next.map_or(end, |next| next.min(end));
            tokio::select! {
                biased;
                () = changed => {}
                () = tokio::time::sleep(until.saturating_sub(self.clock.elapsed())) => {}
            }
        }
    }
}

fn url(host: &str) -> String {
    format!("http://{host}/{ACCOUNT}/{NAME}")
}

fn arn(name: &str) -> String {
    format!("arn:aws:sqs:{REGION}:{ACCOUNT}:{name}")
}
