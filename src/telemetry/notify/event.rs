//! The facts that notifications are made of, with owned values, and the subscriber that notes them.

use super::notification::BlockedPod;
use crate::fact::{Action, Fact, HeldPod, NoticeKind, NoticeOutcome, NoticeRef, PoolRef, Subscriber};
use crate::telemetry::bounded::bounded;
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Maximum number of facts that wait for the task: those of a thousand nodes that begin, are blocked by a few pods each, and end.
const MAX_BACKLOG: usize = 8192;

/// Maximum length of names, in bytes: that of an object in Kubernetes.
const MAX_NAME_LENGTH: usize = 253;

/// Maximum length of a reason or a report, in bytes.
const MAX_TEXT_LENGTH: usize = 1024;

/// The notice that an event is about.
#[derive(Clone, Debug)]
pub(super) struct About {
    pub kind: NoticeKind,
    pub instance: Box<str>,
    pub node: Option<Box<str>>,
    pub message: Box<str>,
}

/// Where the capacity comes from. A part that is not known is empty.
#[derive(Clone, Debug, Default)]
pub(super) struct Pool {
    pub instance_type: Box<str>,
    pub zone: Box<str>,
    pub group: Box<str>,
}

/// A fact, with owned values.
#[derive(Debug)]
pub(super) enum Event {
    /// The message has been received before, by this process or another one.
    Redelivered {
        message: Box<str>,
    },
    /// The message was made by `ebbtide send`.
    Test {
        message: Box<str>,
    },
    Begun {
        about: About,
        action: Action,
        deadline: Option<(Instant, bool)>,
        pool: Pool,
    },
    Cordoned {
        about: About,
        already: bool,
    },
    DrainBlocked {
        instance: Box<str>,
        node: Box<str>,
        pods: Vec<BlockedPod>,
        deadline: (Instant, bool),
    },
    DrainUnblocked {
        instance: Box<str>,
    },
    DrainEnded {
        instance: Box<str>,
        report: Box<str>,
    },
    Ended {
        about: About,
        outcome: NoticeOutcome,
        took: Duration,
        waited: Box<str>,
    },
    /// Nothing holds the Node any more: what happens next to its instance is something new.
    Released {
        instance: Box<str>,
    },
}

/// Returns the text without control characters, in at most `max` bytes.
fn clean(text: &dyn Display, max: usize) -> Box<str> {
    bounded(text, max).chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn name(name: &str) -> Box<str> {
    clean(&name, MAX_NAME_LENGTH)
}

fn text(text: &dyn Display) -> Box<str> {
    clean(text, MAX_TEXT_LENGTH)
}

fn deadline(left: Duration, hard: bool) -> (Instant, bool) {
    let now = Instant::now();
    (now.checked_add(left).unwrap_or(now), hard)
}

impl About {
    fn of(about: NoticeRef<'_>) -> Self {
        let NoticeRef { kind, instance, node, message } = about;
        Self { kind, instance: name(instance), node: node.map(name), message: name(message) }
    }

    pub(super) fn as_ref(&self) -> NoticeRef<'_> {
        let Self { kind, instance, node, message } = self;
        NoticeRef { kind: *kind, instance, node: node.as_deref(), message }
    }
}

impl Pool {
    fn of(pool: PoolRef<'_>) -> Self {
        let PoolRef { instance_type, zone, group } = pool;
        Self { instance_type: name(instance_type), zone: name(zone), group: name(group) }
    }
}

impl Event {
    fn of(fact: &Fact<'_>) -> Option<Self> {
        Some(match *fact {
            Fact::MessageReceived { message, receives, .. } if receives > 1 => {
                Self::Redelivered { message: name(message) }
            }
            Fact::TestNotice { about } => Self::Test { message: name(about.message) },
            // No work follows from these.
            Fact::NoticeBegun { action: Action::Report | Action::Ignore, .. }
            | Fact::NoticeEnded { outcome: NoticeOutcome::Ignored | NoticeOutcome::Reported, .. } => return None,
            Fact::NoticeBegun { about, action, until, hard, pool, .. } => {
                let deadline = until.map(|left| deadline(left, hard));
                Self::Begun { about: About::of(about), action, deadline, pool: pool.map(Pool::of).unwrap_or_default() }
            }
            Fact::NodeCordoned { about, already, .. } => Self::Cordoned { about: About::of(about), already },
            Fact::DrainBlocked { on, pods, until, hard } => {
                let node = name(on.node);
                let blocked = |held: &HeldPod<'_>| BlockedPod {
                    node: node.to_string(),
                    pod: text(&held.pod).into(),
                    by: text(&held.by).into(),
                };
                let pods = pods.iter().map(blocked).collect();
                Self::DrainBlocked { instance: name(on.instance), node, pods, deadline: deadline(until, hard) }
            }
            Fact::DrainUnblocked { on } => Self::DrainUnblocked { instance: name(on.instance) },
            Fact::DrainEnded { on, report, .. } => {
                Self::DrainEnded { instance: name(on.instance), report: text(&report) }
            }
            Fact::NoticeEnded { about, outcome, took, waited } => {
                Self::Ended { about: About::of(about), outcome, took, waited: text(&waited) }
            }
            Fact::NodeReleased { on, .. } => Self::Released { instance: name(on.instance) },
            _ => return None,
        })
    }
}

/// Notes facts for the [`Notifier`](super::Notifier).
#[derive(Debug)]
pub struct NotifySubscriber {
    sender: mpsc::Sender<Event>,
    dropped: Arc<AtomicUsize>,
}

/// The facts that the [`Notifier`](super::Notifier) has not read yet.
#[derive(Debug)]
pub struct Backlog {
    pub(super) receiver: mpsc::Receiver<Event>,
    dropped: Arc<AtomicUsize>,
}

/// Returns a subscriber, and the backlog that it fills.
#[must_use]
pub fn notify_subscriber() -> (NotifySubscriber, Backlog) {
    let (sender, receiver) = mpsc::channel(MAX_BACKLOG);
    let dropped = Arc::new(AtomicUsize::new(0));
    (NotifySubscriber { sender, dropped: Arc::clone(&dropped) }, Backlog { receiver, dropped })
}

impl Subscriber for NotifySubscriber {
    fn note(&self, fact: &Fact<'_>) {
        let Some(event) = Event::of(fact) else { return };
        if self.sender.try_send(event).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Backlog {
    /// Returns the number of facts that were dropped since the last call.
    pub(super) fn take_dropped(&self) -> usize {
        self.dropped.swap(0, Ordering::Relaxed)
    }
}
