//! The queue's state and rules, without the wire format and without waiting.
//!
//! `schedule` sorts all messages by the time from which each is visible. Entries up to now can be received, and the first entry
//! after now is when a long poll looks again.

use super::Received;
use crate::aws::md5;
use crate::aws::refusal::Refusal;
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Maximum time that a message can be kept invisible after its receive.
pub(super) const LONGEST_HOLD: Duration = Duration::from_hours(12);

#[derive(Debug)]
pub(super) struct Queue {
    rng: fastrand::Rng,
    /// Time of the last look at the queue.
    now: Duration,
    next_number: u64,
    /// Messages by number, which is the order of sending.
    messages: BTreeMap<u64, Message>,
    schedule: BTreeSet<(Duration, u64)>,
    /// All messages ever sent, by ID.
    known: BTreeMap<String, Known>,

    pub deleted: Vec<String>,
    pub dead_letters: Vec<String>,
    pub expired: Vec<String>,
    pub log: Vec<Received>,
    /// Whether a message may have become visible since this was last taken.
    pub woken: bool,

    pub visibility_timeout: Duration,
    pub retention: Duration,
    pub max_receives: Option<u32>,
    pub duplicate_chance: f64,
    pub failing_entries: u32,
    pub silent_late_changes: bool,
    /// Attributes set by the queue's owner: `Policy`, `KmsMasterKeyId`, `SqsManagedSseEnabled`, `DelaySeconds`.
    pub attributes: BTreeMap<String, String>,
}

#[derive(Debug)]
struct Message {
    id: String,
    sender: String,
    body: String,
    md5: String,
    sent: Timestamp,
    sent_at: Duration,
    first_received: Option<Timestamp>,
    /// Time of the last receive.
    received_at: Duration,
    receives: u32,
    visible_at: Duration,
}

#[derive(Debug)]
struct Known {
    number: u64,
    receives: u32,
    /// When it left the queue.
    removed: Option<Duration>,
}

/// A message as delivered by one receive.
#[derive(Debug)]
pub(super) struct Delivery {
    pub id: String,
    pub sender: String,
    pub receipt: String,
    pub body: String,
    pub md5: String,
    pub sent: Timestamp,
    pub first_received: Timestamp,
    pub receives: u32,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub visible: usize,
    pub in_flight: usize,
    pub delayed: usize,
}

impl Queue {
    pub fn new(seed: u64) -> Self {
        Self {
            rng: fastrand::Rng::with_seed(seed),
            now: Duration::ZERO,
            next_number: 0,
            messages: BTreeMap::new(),
            schedule: BTreeSet::new(),
            known: BTreeMap::new(),
            deleted: Vec::new(),
            dead_letters: Vec::new(),
            expired: Vec::new(),
            log: Vec::new(),
            woken: false,
            visibility_timeout: Duration::from_secs(30),
            retention: Duration::from_hours(4 * 24),
            max_receives: None,
            duplicate_chance: 0.0,
            failing_entries: 0,
            silent_late_changes: false,
            attributes: BTreeMap::new(),
        }
    }

    /// Advances the queue to now: drops messages past their retention, in flight or not.
    pub fn settle(&mut self, now: Duration) {
        self.now = now;
        while let Some((&number, oldest)) = self.messages.first_key_value()
            && oldest.sent_at + self.retention <= now
        {
            let id = self.remove(number);
            self.expired.push(id);
        }
    }

    pub fn now(&self) -> Duration {
        self.now
    }

    pub fn send(&mut self, wall: Timestamp, sender: &str, body: String, delay: Duration) -> String {
        let id = uuid(&mut self.rng);
        let number = self.next_number;
        self.next_number += 1;
        let message = Message {
            id: id.clone(),
            sender: sender.to_owned(),
            md5: md5::hex(&body),
            body,
            sent: wall,
            sent_at: self.now,
            first_received: None,
            received_at: Duration::ZERO,
            receives: 0,
            visible_at: self.now + delay,
        };
        self.schedule.insert((message.visible_at, number));
        self.messages.insert(number, message);
        self.known.insert(id.clone(), Known { number, receives: 0, removed: None });
        self.woken = true;
        id
    }

    /// Delivers up to `max` visible messages and hides each for `visibility`, except the ones drawn to stay visible.
    pub fn receive(&mut self, wall: Timestamp, max: usize, visibility: Option<Duration>) -> Vec<Delivery> {
        let due: Vec<u64> = self.schedule.range(..=(self.now, u64::MAX)).take(max).map(|&(_, number)| number).collect();
        let hidden_until = self.now + visibility.unwrap_or(self.visibility_timeout);
        due.into_iter().filter_map(|number| self.deliver(number, wall, hidden_until)).collect()
    }

    fn deliver(&mut self, number: u64, wall: Timestamp, hidden_until: Duration) -> Option<Delivery> {
        let duplicate = self.duplicate_chance > 0.0 && self.rng.f64() < self.duplicate_chance;
        let message = self.messages.get_mut(&number)?;
        if self.max_receives.is_some_and(|max| message.receives >= max) {
            let id = self.remove(number);
            self.dead_letters.push(id);
            return None;
        }
        message.receives += 1;
        message.received_at = self.now;
        let delivery = Delivery {
            id: message.id.clone(),
            sender: message.sender.clone(),
            receipt: receipt(&message.id, message.receives),
            body: message.body.clone(),
            md5: message.md5.clone(),
            sent: message.sent,
            first_received: *message.first_received.get_or_insert(wall),
            receives: message.receives,
        };
        if let Some(known) = self.known.get_mut(&delivery.id) {
            known.receives = delivery.receives;
        }
        if !duplicate {
            self.show_at(number, hidden_until);
        }
        let (id, receipt) = (delivery.id.clone(), delivery.receipt.clone());
        self.log.push(Received { at: self.now, id, receipt, duplicate });
        Some(delivery)
    }

    /// Deletes a message. A receipt that a later receive made stale has no effect, and is no error.
    pub fn delete(&mut self, receipt: &str) -> Result<(), Refusal> {
        let (number, receive) = self.resolve(receipt)?;
        if self.messages.get(&number).is_some_and(|message| message.receives == receive) {
            let id = self.remove(number);
            self.deleted.push(id);
        }
        Ok(())
    }

    /// Makes a message in flight visible at `timeout` from now.
    pub fn change(&mut self, receipt: &str, timeout: Duration) -> Result<(), Refusal> {
        let (number, receive) = self.resolve(receipt)?;
        let Some(message) = self.messages.get(&number).filter(|message| message.receives == receive) else {
            return Err(Refusal::new(
                "InvalidParameterValue",
                format!(
                    "Value {receipt} for parameter ReceiptHandle is invalid. Reason: Message does not exist or is not \
                     available for visibility timeout change."
                ),
            ));
        };
        if message.visible_at <= self.now {
            if self.silent_late_changes {
                return Ok(());
            }
            let refusal =
                Refusal::new("AWS.SimpleQueueService.MessageNotInflight", "The message referred to isn't in flight.");
            return Err(refusal);
        }
        if self.now + timeout > message.received_at + LONGEST_HOLD {
            return Err(Refusal::new(
                "InvalidParameterValue",
                format!(
                    "Value {} for parameter VisibilityTimeout is invalid. Reason: Total VisibilityTimeout for the \
                     message is beyond the limit [43200 seconds]",
                    timeout.as_secs()
                ),
            ));
        }
        self.show_at(number, self.now + timeout);
        self.woken = true;
        Ok(())
    }

    /// Returns the ID of the message that a receipt belongs to.
    pub fn message_of(&self, receipt: &str) -> Option<String> {
        let (id, _) = parse(receipt)?;
        self.known.contains_key(id).then(|| id.to_owned())
    }

    /// Returns when the next invisible message becomes visible; now if a message is visible already.
    pub fn next_visible(&self) -> Option<Duration> {
        self.schedule.first().map(|&(at, _)| at)
    }

    pub fn receives(&self, id: &str) -> u32 {
        self.known.get(id).map_or(0, |known| known.receives)
    }

    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for message in self.messages.values() {
            let count = match (message.visible_at <= self.now, message.receives) {
                (true, _) => &mut counts.visible,
                (false, 0) => &mut counts.delayed,
                (false, _) => &mut counts.in_flight,
            };
            *count += 1;
        }
        counts
    }

    fn show_at(&mut self, number: u64, visible_at: Duration) {
        if let Some(message) = self.messages.get_mut(&number) {
            self.schedule.remove(&(message.visible_at, number));
            message.visible_at = visible_at;
            self.schedule.insert((visible_at, number));
        }
    }

    fn remove(&mut self, number: u64) -> String {
        let message = self.messages.remove(&number).expect("a message that is removed must be in the queue");
        self.schedule.remove(&(message.visible_at, number));
        if let Some(known) = self.known.get_mut(&message.id) {
            known.removed = Some(self.now);
        }
        message.id
    }

    /// Forgets deliveries before this time and messages that left the queue before it, whose receipts are then invalid.
    pub fn forget_before(&mut self, time: Duration) {
        self.known.retain(|_, known| known.removed.is_none_or(|removed| removed >= time));
        let Self { known, deleted, dead_letters, expired, log, .. } = self;
        log.retain(|received| received.at >= time);
        log.shrink_to_fit();
        for ids in [deleted, dead_letters, expired] {
            ids.retain(|id| known.contains_key(id));
            ids.shrink_to_fit();
        }
    }

    /// Returns the message's number and the receive that a receipt stands for.
    fn resolve(&self, receipt: &str) -> Result<(u64, u32), Refusal> {
        parse(receipt).and_then(|(id, receive)| Some((self.known.get(id)?.number, receive))).ok_or_else(|| {
            let message = format!("The input receipt handle \"{receipt}\" is not a valid receipt handle.");
            Refusal::new("ReceiptHandleIsInvalid", message)
        })
    }
}

/// A receipt contains its message's number and its receive, which makes failed tests readable.
fn receipt(id: &str, receive: u32) -> String {
    format!("AQEB/{id}/{receive}")
}

fn parse(receipt: &str) -> Option<(&str, u32)> {
    let (id, receive) = receipt.strip_prefix("AQEB/")?.split_once('/')?;
    Some((id, receive.parse().ok()?))
}

/// Returns a string in the form of a random UUID, from a seed.
pub(in crate::aws) fn uuid(rng: &mut fastrand::Rng) -> String {
    let bits = rng.u128(..);
    format!(
        "{:08x}-{:04x}-4{:03x}-8{:03x}-{:012x}",
        bits >> 96,
        (bits >> 80) & 0xffff,
        (bits >> 64) & 0xfff,
        (bits >> 48) & 0xfff,
        bits & 0xffff_ffff_ffff
    )
}
