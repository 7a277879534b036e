//! Facts, put together to traces.
//!
//! A trace ends when the message is deleted or given back; that of a notice without a message ends with the notice. The notices that a
//! node has at the same time share its drain.

use super::span::{Event, Span, Status, Trace, Value};
use super::trace_id;
use crate::fact::{Fact, HeartbeatResult, LeaseEnd, MessageRelease, NodeRef, NoticeRef, PoolRef, Subscriber};
use crate::runtime::clock::Clock;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;

/// Maximum number of unfinished traces, and of messages. What comes then is not traced, and counted.
const MAX_OPEN: usize = 2048;

/// Maximum number of finished traces that wait for the exporter: those of a storm that ends at once.
const MAX_FINISHED: usize = 1024;

/// Puts facts together, for the [`TraceExporter`](super::TraceExporter).
#[derive(Debug)]
pub struct TraceSubscriber {
    clock: Clock,
    sender: mpsc::Sender<Trace>,
    dropped: Arc<AtomicUsize>,
    recorder: Mutex<Recorder>,
}

/// The finished traces that the [`TraceExporter`](super::TraceExporter) has not read yet.
#[derive(Debug)]
pub struct FinishedTraces {
    pub(super) receiver: mpsc::Receiver<Trace>,
    dropped: Arc<AtomicUsize>,
}

/// Returns a subscriber, and the traces that it finishes.
#[must_use]
pub fn trace_subscriber(clock: Clock) -> (TraceSubscriber, FinishedTraces) {
    let (sender, receiver) = mpsc::channel(MAX_FINISHED);
    let dropped = Arc::new(AtomicUsize::new(0));
    let subscriber = TraceSubscriber { clock, sender, dropped: Arc::clone(&dropped), recorder: Mutex::default() };
    (subscriber, FinishedTraces { receiver, dropped })
}

impl FinishedTraces {
    /// Returns the number of traces that were dropped since the last call.
    pub(super) fn take_dropped(&self) -> usize {
        self.dropped.swap(0, Ordering::Relaxed)
    }
}

impl Subscriber for TraceSubscriber {
    fn note(&self, fact: &Fact<'_>) {
        let mut recorder = self.recorder.lock();
        recorder.note(fact, self.clock);
        let dropped = std::mem::take(&mut recorder.dropped)
            + recorder.finished.drain(..).filter_map(|trace| self.sender.try_send(trace).err()).count();
        self.dropped.fetch_add(dropped, Ordering::Relaxed);
    }
}

#[derive(Debug, Default)]
struct Recorder {
    /// By the message's id.
    messages: HashMap<Box<str>, MessageRecord>,
    /// By the instance's id, because drains know no more.
    open: HashMap<Box<str>, Vec<OpenTrace>>,
    count: usize,
    finished: Vec<Trace>,
    dropped: usize,
}

/// A message that is being handled.
#[derive(Debug)]
struct MessageRecord {
    sent: Timestamp,
    at: Timestamp,
    /// How often it was received: SQS may deliver a message again while it is being handled.
    copies: usize,
    /// The instances of its traces.
    instances: Vec<Box<str>>,
}

/// An unfinished trace.
#[derive(Debug)]
struct OpenTrace {
    trace: Trace,
    message: Box<str>,
    /// When the notice ended.
    ended: Option<Timestamp>,
}

impl Recorder {
    fn note(&mut self, fact: &Fact<'_>, clock: Clock) {
        let now = clock.now();
        match *fact {
            Fact::MessageReceived { message, age, .. } if self.messages.len() < MAX_OPEN => {
                let age = age.and_then(|age| SignedDuration::try_from(age).ok()).unwrap_or_default();
                let sent = now.checked_sub(age).unwrap_or(now);
                let first = || MessageRecord { sent, at: now, copies: 0, instances: Vec::new() };
                self.messages.entry(message.into()).or_insert_with(first).copies += 1;
            }
            Fact::MessageDeleted { message } => self.end_message(message, now, "delete", None),
            // It has ended with its lease.
            Fact::MessageReleased { why: MessageRelease::Lost, .. } => {}
            Fact::MessageReleased { message, why } => self.end_message(message, now, "release", Some(&why)),
            // One that is too old is released next, or left.
            Fact::MessageLeaseEnded { message, why: why @ (LeaseEnd::Lost | LeaseEnd::Away) } => {
                self.end_message(message, now, "lose lease", Some(&why));
            }
            Fact::MessageLeft { message, error, .. } => self.end_message(message, now, "leave", Some(error)),
            Fact::NoticeBegun { again: true, about, .. } => self.event(about, now, "revised", None),
            Fact::NoticeBegun { about, action, pool, .. } => self.begin(about, now, action.as_str(), pool),
            Fact::NodeAwaited { about, .. } => self.event(about, now, "no node yet", None),
            Fact::CordonFailed { about, error, .. } => self.event(about, now, "cordon failed", Some(error)),
            Fact::NodeCordoned { about, already, .. } => {
                let how = if already { "it was before" } else { "cordoned" };
                self.after_the_rest(about, now, "cordon", None, &how);
            }
            Fact::PodBlocked { on, pod, by, .. } => self.of_node(on, |open| {
                let attributes = vec![("k8s.pod.name", Value::text(&pod)), ("ebbtide.blocked_by", Value::text(&by))];
                open.trace.happened(Event { name: "pod blocked", at: now, attributes });
            }),
            Fact::DrainEnded { on, outcome, gone, took, report, .. } => self.of_node(on, |open| {
                // A notice may have joined after the start.
                let begin = before(now, took).max(open.trace.whole.end);
                let attributes = vec![
                    ("ebbtide.outcome", Value::text(&outcome)),
                    ("ebbtide.pods_gone", Value::number(gone)),
                    ("ebbtide.report", Value::text(report)),
                ];
                open.part("evict", begin, now, Status::of(!outcome.is_success(), &outcome), attributes);
            }),
            Fact::DrainAbandoned { on } => self.of_node(on, |open| {
                open.part("evict", open.last_end(), now, Status::of(true, &"abandoned"), Vec::new());
            }),
            Fact::WaitEnded { about, wait, outcome, took, left, .. } => {
                let Some(open) = self.open_of(about) else { return };
                let mut attributes = vec![("ebbtide.outcome", Value::text(&outcome))];
                attributes.extend(left.map(|left| ("ebbtide.left", Value::text(&left))));
                open.part(wait.as_str(), before(now, took), now, Status::Ok, attributes);
            }
            Fact::Heartbeat { about, result, error } if result != HeartbeatResult::Sent => {
                self.event(about, now, "heartbeat failed", error);
            }
            Fact::Heartbeat { about, .. } => self.event(about, now, "heartbeat", None),
            Fact::HookCompleted { about, result } => self.after_the_rest(about, now, "complete hook", None, &result),
            Fact::HookLeft { about } => self.event(about, now, "hook left", None),
            Fact::CompletionRetried { about, error, .. } => self.event(about, now, "completion failed", Some(error)),
            Fact::CompletionFailed { about, error } => {
                self.after_the_rest(about, now, "complete hook", Some(error), &"failed");
            }
            Fact::NoticeEnded { about, outcome, .. } => {
                let Some(open) = self.open_of(about) else { return };
                open.ended = Some(now);
                open.trace.whole.end = now;
                open.trace.whole.attributes.push(("ebbtide.outcome", Value::text(&outcome)));
                open.trace.whole.status = Status::of(outcome.is_failure(), &outcome);
                if !self.messages.contains_key(about.message) {
                    self.finish(about.instance, |open| open.ended.is_some() && *open.message == *about.message, |_| {});
                }
            }
            _ => {}
        }
    }

    fn begin(&mut self, about: NoticeRef<'_>, now: Timestamp, action: &'static str, pool: Option<PoolRef<'_>>) {
        // An earlier try of the same process, which was given up.
        let id = trace_id(about);
        self.finish(about.instance, |open| open.trace.id == id, |_| {});
        if self.count >= MAX_OPEN {
            self.dropped += 1;
            return;
        }
        let NoticeRef { kind, instance, node, message } = about;
        let mut attributes = vec![
            ("messaging.system", Value::text(&"aws_sqs")),
            ("messaging.message.id", Value::text(&message)),
            ("ebbtide.kind", Value::text(&kind)),
            ("ebbtide.action", Value::text(&action)),
            ("host.id", Value::text(&instance)),
        ];
        attributes.extend(node.map(|node| ("k8s.node.name", Value::text(&node))));
        let pool = pool.map(|pool| [("host.type", pool.instance_type), ("cloud.availability_zone", pool.zone)]);
        let known = pool.into_iter().flatten().filter(|(_, value)| !value.is_empty());
        attributes.extend(known.map(|(name, value)| (name, Value::text(&value))));
        let received = self.messages.get_mut(message);
        let begin = received.as_ref().map_or(now, |received| received.sent);
        let status = Status::of(true, &"given up");
        let whole = Span { name: "interruption", begin, end: now, attributes, status };
        let trace = Trace { id, whole, parts: Vec::new(), events: Vec::new(), missing_events: 0 };
        let mut open = OpenTrace { trace, message: message.into(), ended: None };
        if let Some(received) = received {
            open.part("receive", received.sent, received.at, Status::Ok, Vec::new());
            open.part("resolve", received.at, now, Status::Ok, Vec::new());
            received.instances.push(instance.into());
        }
        self.open.entry(instance.into()).or_default().push(open);
        self.count += 1;
    }

    fn event(&mut self, about: NoticeRef<'_>, at: Timestamp, name: &'static str, error: Option<&dyn Display>) {
        if let Some(open) = self.open_of(about) {
            let attributes = error.map(|error| ("exception.message", Value::text(&error))).into_iter().collect();
            open.trace.happened(Event { name, at, attributes });
        }
    }

    /// Adds a part that began when the last one ended.
    fn after_the_rest(
        &mut self,
        about: NoticeRef<'_>,
        now: Timestamp,
        name: &'static str,
        error: Option<&dyn Display>,
        outcome: &dyn Display,
    ) {
        let Some(open) = self.open_of(about) else { return };
        let begin = open.last_end();
        let status = error.map_or(Status::Ok, |error| Status::of(true, error));
        open.part(name, begin, now, status, vec![("ebbtide.outcome", Value::text(outcome))]);
    }

    /// The message is no longer ours: its traces end. `why` is the reason if it was not deleted.
    fn end_message(&mut self, message: &str, now: Timestamp, name: &'static str, why: Option<&dyn Display>) {
        let Some(received) = self.messages.get_mut(message) else { return };
        received.copies -= 1;
        if received.copies > 0 {
            return;
        }
        let Some(received) = self.messages.remove(message) else { return };
        for instance in received.instances {
            self.finish(
                &instance,
                |open| *open.message == *message,
                |open| {
                    let begin = open.ended.unwrap_or(now);
                    let status = Status::of(why.is_some(), &why.map(ToString::to_string).unwrap_or_default());
                    open.part(name, begin, now, status, Vec::new());
                },
            );
        }
    }

    /// Finishes the traces of an instance that `which` chooses.
    fn finish(&mut self, instance: &str, which: impl Fn(&OpenTrace) -> bool, last: impl Fn(&mut OpenTrace)) {
        let Some(all) = self.open.get_mut(instance) else { return };
        for mut open in all.extract_if(.., |open| which(open)) {
            last(&mut open);
            self.finished.push(open.trace);
            self.count -= 1;
        }
        if all.is_empty() {
            self.open.remove(instance);
        }
    }

    fn open_of(&mut self, about: NoticeRef<'_>) -> Option<&mut OpenTrace> {
        let all = self.open.get_mut(about.instance)?;
        let id = trace_id(about);
        all.iter_mut().find(|open| open.trace.id == id)
    }

    fn of_node(&mut self, on: NodeRef<'_>, what: impl Fn(&mut OpenTrace)) {
        let all = self.open.get_mut(on.instance).into_iter().flatten();
        all.filter(|open| open.ended.is_none()).for_each(what);
    }
}

/// Returns the time at which something that `took` this long began.
fn before(now: Timestamp, took: Duration) -> Timestamp {
    now.checked_sub(took).unwrap_or(now)
}

impl OpenTrace {
    /// Returns the end of its last part.
    fn last_end(&self) -> Timestamp {
        self.trace.parts.iter().map(|part| part.end).max().unwrap_or(self.trace.whole.begin)
    }

    fn part(
        &mut self,
        name: &'static str,
        begin: Timestamp,
        end: Timestamp,
        status: Status,
        attributes: Vec<(&'static str, Value)>,
    ) {
        self.trace.add(Span { name, begin, end, attributes, status });
    }
}
