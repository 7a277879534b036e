//! Facts as Kubernetes Events, and as the Node's condition `EbbtideDraining`.
//!
//! [`EventSubscriber`] notes facts and returns at once; [`EventWriter`], a task, writes. A drain that nothing blocks costs no call.
//! One that is blocked costs five at most: an Event on its Node, one on a pod, the condition, and at its end a patch of the Node's Event
//! and one of the condition. What can't be written is left out and emitted as a fact: no drain ever waits for it.

mod api;
mod state;
mod text;
mod waits;
mod writer;

pub use writer::EventWriter;

use crate::fact::{DrainOutcome, Fact, HeldPod, NodeRef, NoticeRef, PodRef, Subscriber, Wait, WaitOutcome};
use crate::telemetry::bounded::bounded;
use clap::ValueEnum;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use text::MAX_NOTE_LENGTH;
use tokio::sync::mpsc;
use tokio::time::Instant;
use waits::{AnnouncementState, RunningWait, WaitKey};

/// Maximum number of facts that wait for the task: a thousand nodes blocked at once, by a few pods each.
const MAX_BACKLOG: usize = 4096;

/// Maximum length of the reason why a pod is blocked, in bytes.
const MAX_REASON_LENGTH: usize = 256;

/// The drains that are reported by Events and by the Node's condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Scope {
    /// Drains that are blocked.
    Blocked,
    /// All drains.
    All,
    /// All drains, with the conditions of the Node that KEP-5683 proposes for every tool: `DrainInProgress` and `Drained`.
    Lifecycle,
    /// No drains.
    None,
}

impl Scope {
    /// Whether each drain is reported.
    const fn has_all(self) -> bool {
        matches!(self, Self::All | Self::Lifecycle)
    }

    /// Whether the conditions of KEP-5683 are written.
    const fn has_lifecycle(self) -> bool {
        matches!(self, Self::Lifecycle)
    }
}

/// The object of an Event. Only a pod has a namespace.
#[derive(Debug)]
struct ObjectRef {
    kind: &'static str,
    namespace: Box<str>,
    name: Box<str>,
    uid: Arc<str>,
}

/// A pod that can't be evicted now, and why.
#[derive(Debug)]
struct BlockedPod {
    pod: ObjectRef,
    reason: Box<str>,
}

/// A fact about a drain, with owned values. `node_uid` and `pod_uid` are UIDs.
#[derive(Debug)]
enum DrainEvent {
    Begun {
        node: ObjectRef,
        pods: usize,
        deadline: DrainDeadline,
    },
    Blocked {
        node: ObjectRef,
        pods: Vec<BlockedPod>,
        deadline: DrainDeadline,
    },
    Unblocked {
        node_uid: Arc<str>,
    },
    Ended {
        node: ObjectRef,
        end: DrainEnd,
        report: String,
        has_condition: bool,
        /// Whether pods stay that must leave: the end is announced in each scope.
        is_notable: bool,
    },
    Abandoned {
        node_uid: Arc<str>,
    },
    /// A Node whose drain had ended before is in use again.
    Returned {
        node: ObjectRef,
    },
    WaitBegun {
        node: ObjectRef,
        wait: RunningWait,
    },
    WaitEnded {
        node_uid: Arc<str>,
        key: WaitKey,
        outcome: WaitOutcome,
        how: String,
    },
    WaitAbandoned {
        node_uid: Arc<str>,
        key: WaitKey,
    },
}

/// The end of a drain, as the reason of its Node's condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DrainEnd {
    /// The drain itself ended.
    Of(DrainOutcome),
    /// The marks were removed from the Node, so nothing drains it any more.
    Released,
    /// The Node or the settings exclude the Node now.
    Excluded,
}

impl DrainEnd {
    /// Returns the end as a fixed word.
    const fn as_str(self) -> &'static str {
        match self {
            Self::Of(outcome) => outcome.as_str(),
            Self::Released => "released",
            Self::Excluded => "excluded",
        }
    }
}

/// The deadline of a drain, as Events show it.
#[derive(Clone, Copy, Debug)]
struct DrainDeadline {
    at: Instant,
    /// Whether the node goes at the deadline.
    is_hard: bool,
}

impl DrainDeadline {
    fn after(left: Duration, is_hard: bool) -> Self {
        let now = Instant::now();
        Self { at: now.checked_add(left).unwrap_or(now), is_hard }
    }
}

/// Notes facts about drains for the [`EventWriter`].
#[derive(Debug)]
pub struct EventSubscriber {
    sender: mpsc::Sender<DrainEvent>,
    dropped: Arc<AtomicUsize>,
}

/// The facts that the [`EventWriter`] has not read yet.
#[derive(Debug)]
pub struct Backlog {
    receiver: mpsc::Receiver<DrainEvent>,
    dropped: Arc<AtomicUsize>,
}

/// Returns a subscriber, and the backlog that it fills.
#[must_use]
pub fn event_subscriber() -> (EventSubscriber, Backlog) {
    let (sender, receiver) = mpsc::channel(MAX_BACKLOG);
    let dropped = Arc::new(AtomicUsize::new(0));
    (EventSubscriber { sender, dropped: Arc::clone(&dropped) }, Backlog { receiver, dropped })
}

impl Subscriber for EventSubscriber {
    fn note(&self, fact: &Fact<'_>) {
        let Some(event) = DrainEvent::of(fact) else { return };
        if self.sender.try_send(event).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Backlog {
    fn has_dropped(&self) -> bool {
        self.dropped.load(Ordering::Relaxed) > 0
    }
}

impl DrainEvent {
    fn of(fact: &Fact<'_>) -> Option<Self> {
        Some(match *fact {
            Fact::DrainBegun { on, pods, until, hard, .. } => {
                Self::Begun { node: ObjectRef::node(on), pods, deadline: DrainDeadline::after(until, hard) }
            }
            Fact::DrainBlocked { on, pods, until, hard } => {
                let pods = pods.iter().map(BlockedPod::of).collect();
                Self::Blocked { node: ObjectRef::node(on), pods, deadline: DrainDeadline::after(until, hard) }
            }
            Fact::DrainUnblocked { on } => Self::Unblocked { node_uid: on.uid.into() },
            Fact::DrainEnded { on, outcome, report, come_back, has_condition, .. } => Self::Ended {
                node: ObjectRef::node(on),
                end: DrainEnd::Of(outcome),
                report: bounded(report, MAX_NOTE_LENGTH),
                has_condition,
                is_notable: come_back > 0,
            },
            // A drain that did not end itself has left the condition True.
            Fact::NodeReleased { on, has_condition: true, .. } => Self::Ended {
                node: ObjectRef::node(on),
                end: DrainEnd::Released,
                report: "no notice holds the node any more: its marks were removed".to_owned(),
                has_condition: true,
                is_notable: false,
            },
            Fact::NodeReleased { on, has_condition: false, .. } => Self::Returned { node: ObjectRef::node(on) },
            Fact::DrainExcluded { on } => Self::Ended {
                node: ObjectRef::node(on),
                end: DrainEnd::Excluded,
                report: "the Node or the settings now exclude the node".to_owned(),
                has_condition: true,
                is_notable: false,
            },
            Fact::WaitBegun { about, on: Some(on), wait, reason, at_most } => {
                let begun = Instant::now();
                let until = begun.checked_add(at_most).unwrap_or(begun);
                let (key, reason) = (WaitKey::of(about, wait), bounded(&reason, MAX_REASON_LENGTH).into());
                let wait = RunningWait { key, reason, begun, until, announcement: AnnouncementState::Later };
                Self::WaitBegun { node: ObjectRef::node(on), wait }
            }
            Fact::WaitEnded { about, on: Some(on), wait, outcome, left, .. } => {
                let left = left.map(|left| format!(" ({left})")).unwrap_or_default();
                let how = bounded(&format_args!("{wait}: {outcome}{left}"), MAX_REASON_LENGTH);
                Self::WaitEnded { node_uid: on.uid.into(), key: WaitKey::of(about, wait), outcome, how }
            }
            Fact::WaitAbandoned { about, on, wait } => {
                Self::WaitAbandoned { node_uid: on.uid.into(), key: WaitKey::of(about, wait) }
            }
            Fact::DrainAbandoned { on } => Self::Abandoned { node_uid: on.uid.into() },
            _ => return None,
        })
    }
}

impl WaitKey {
    fn of(about: NoticeRef<'_>, wait: Wait) -> Self {
        Self { message: about.message.into(), wait }
    }
}

impl BlockedPod {
    fn of(HeldPod { pod, by }: &HeldPod<'_>) -> Self {
        Self { pod: ObjectRef::pod(*pod), reason: bounded(by, MAX_REASON_LENGTH).into() }
    }
}

impl ObjectRef {
    fn node(NodeRef { node, uid, .. }: NodeRef<'_>) -> Self {
        Self { kind: "Node", namespace: "".into(), name: node.into(), uid: uid.into() }
    }

    fn pod(PodRef { namespace, name, uid }: PodRef<'_>) -> Self {
        Self { kind: "Pod", namespace: namespace.into(), name: name.into(), uid: uid.into() }
    }
}
