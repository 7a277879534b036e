//! What happened, as values. Stages emit [`Fact`]s; logs, metrics and all that tells people subscribe.
//!
//! Telling people never delays a drain: a [`Subscriber`] returns at once, and one that has to wait for something owns a
//! bounded buffer and counts what it drops. A fact borrows what it tells, so emitting one that nobody keeps costs nothing.

#[macro_use]
mod label;
mod outcome;

pub use label::{
    CallResult, Category, CheckStatus, CompletionResult, DrainStep, EventReason, HeartbeatResult, IgnoreReason,
    LeaseEnd, MalformedReason, MessageRelease, MessageStep, TaskKind, UndoReason, WatchedResource, label,
};
pub use outcome::{Action, DrainOutcome, NoticeKind, NoticeOutcome};

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The notice that a fact is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct About<'a> {
    /// The notice's kind.
    pub kind: NoticeKind,
    /// The instance it names.
    pub instance: &'a str,
    /// The instance's Node, where it has one.
    pub node: Option<&'a str>,
    /// The id of the message that brought it.
    pub message: &'a str,
}

/// The Node that a drain is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnNode<'a> {
    /// Its name.
    pub node: &'a str,
    /// Its UID.
    pub uid: &'a str,
    /// The instance it runs on.
    pub instance: &'a str,
}

/// The pod that a fact is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnPod<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Its UID.
    pub uid: &'a str,
}

impl fmt::Display for OnPod<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Something that happened. Words (`&'static str`) come from closed sets and may label metrics; names may not.
#[non_exhaustive]
#[allow(missing_docs, reason = "each variant's sentence says what its fields are")]
pub enum Fact<'a> {
    /// The service begins its work.
    Started { queue: &'a str, dry_run: bool },
    /// The admin server listens.
    AdminListening { address: SocketAddr },
    /// All that has to be initialised is.
    Ready,
    /// The index holds the cluster's Nodes.
    NodesSynced { nodes: usize },
    /// So many Nodes are known now.
    NodesKnown { nodes: usize },
    /// The watch of Nodes, or of pods, broke; it is begun again.
    WatchFailed { resource: WatchedResource, error: &'a dyn fmt::Display },
    /// The API server can't begin a watch with what there is, and is asked for lists.
    ListsNotStreamed { resource: WatchedResource, error: &'a dyn fmt::Display },
    /// Receiving failed; it is retried with backoff.
    ReceiveFailed { category: Category, error: &'a dyn fmt::Display },
    /// A message arrived. `age` is the time since it was sent.
    MessageReceived { message: &'a str, receives: u32, age: Option<Duration> },
    /// A message can't be read. `excerpt` is bounded.
    MessageMalformed { message: &'a str, reason: MalformedReason, error: &'a dyn fmt::Display, excerpt: &'a str },
    /// A message asks nothing of us.
    MessageIgnored { message: &'a str, reason: IgnoreReason },
    /// A message was deleted: all its notices have ended.
    MessageDeleted { message: &'a str },
    /// A message was made visible again, for another receiver.
    MessageReleased { message: &'a str, why: MessageRelease },
    /// The lease of a message ended. A lost message may have another receiver already; another one is released next.
    LeaseEnded { message: &'a str, why: LeaseEnd },
    /// Deleting or extending a message failed for the first time; it is retried for as long as the message is ours.
    MessageRetried { message: &'a str, step: MessageStep, category: Category, error: &'a dyn fmt::Display },
    /// A message could neither be deleted nor released; it becomes visible by itself.
    MessageLeft { message: &'a str, category: Category, error: &'a dyn fmt::Display },
    /// A notice is acted on. `until` is its deadline in time left.
    NoticeBegun { about: About<'a>, action: Action, until: Option<Duration>, hard: bool },
    /// A notice of a message that was made to test.
    TestNotice { about: About<'a> },
    /// A second copy of a notice joined the first.
    NoticeJoined { about: About<'a> },
    /// A notice ended, so.
    NoticeEnded { about: About<'a>, outcome: NoticeOutcome, took: Duration },
    /// An instance of ours has no Node yet; its message is held.
    NodeAwaited { about: About<'a>, at_most: Duration },
    /// EC2 can't be asked whose an instance is; retried.
    OwnerUnknown { about: About<'a>, category: Category, error: &'a dyn fmt::Display },
    /// The Node carries the notice's mark, and is cordoned, so long `after` the notice's time. `already`: it was before.
    NodeCordoned { about: About<'a>, already: bool, after: Duration },
    /// The patch of the Node failed; retried.
    CordonFailed { about: About<'a>, category: Category, error: &'a dyn fmt::Display },
    /// The Node has the taint that lets its pods be moved: EC2 says that the instance is stopped or terminated.
    NodeOutOfService { about: About<'a> },
    /// What notices left on a Node is taken back; `uncordoned` if that makes it schedulable again. `told`: the Node's condition says
    /// that it is being drained.
    NodeReleased { on: OnNode<'a>, why: UndoReason, uncordoned: bool, told: bool },
    /// Taking marks back failed; retried.
    ReleaseFailed { on: OnNode<'a>, category: Category, error: &'a dyn fmt::Display },
    /// The drain of a cordoned Node begins later, as the policy says.
    DrainDelayed { about: About<'a>, by: Duration },
    /// A launched instance's Node is awaited to be Ready.
    LaunchAwaited { about: About<'a>, at_most: Duration },
    /// A drain begins.
    DrainBegun { on: OnNode<'a>, pods: usize, left_alone: usize, until: Duration, hard: bool },
    /// A notice joined the drain that its node already has.
    DrainJoined { about: About<'a> },
    /// A pod's eviction was answered so: `evicted`, or an error's category (`refused` by a budget, `not-found`).
    Eviction { on: OnNode<'a>, pod: OnPod<'a>, result: CallResult },
    /// A pod's deletion before a hard deadline was answered so: `deleted`, or an error's category. `grace` in seconds.
    Deletion { on: OnNode<'a>, pod: OnPod<'a>, grace: i64, result: CallResult },
    /// A pod is held back: by a budget, or by an annotation of its own. Told once for each pod. `until` is the drain's deadline in
    /// time left.
    PodBlocked { on: OnNode<'a>, pod: OnPod<'a>, by: &'a str, until: Duration, hard: bool },
    /// A pod that was blocked no longer is.
    PodUnblocked { on: OnNode<'a>, pod: OnPod<'a> },
    /// Listing, evicting or deleting failed; retried until the deadline.
    DrainRetried { on: OnNode<'a>, step: DrainStep, category: Category, error: &'a dyn fmt::Display },
    /// Somebody took the cordon away while the drain ran; it was set again.
    NodeRecordoned { on: OnNode<'a> },
    /// All other pods have gone, and the eviction of our own was accepted: the process ends in order.
    LeavingNode { on: OnNode<'a> },
    /// A drain ended, so. `left` is the time until its node `goes`, if that is known, else until its patience would have ended. `report`
    /// lists what went and what stayed. `told`: the Node's condition says that it is being drained.
    DrainEnded {
        on: OnNode<'a>,
        outcome: DrainOutcome,
        gone: usize,
        took: Duration,
        left: Duration,
        goes: bool,
        report: &'a dyn fmt::Display,
        told: bool,
    },
    /// A drain was given up before its end: nobody here waits for it any more.
    DrainLeft { on: OnNode<'a> },
    /// A drain that somebody told of is not gone on with: its Node is to be left alone now.
    DrainForgone { on: OnNode<'a> },
    /// A hook's timeout could not be looked up; a safe default is used.
    HookUnknown { about: About<'a>, error: &'a dyn fmt::Display },
    /// A heartbeat was answered so: `sent`, `over`, or an error's category.
    Heartbeat { about: About<'a>, result: HeartbeatResult, error: Option<&'a dyn fmt::Display> },
    /// The drain is done; the hook is completed later, as the policy says.
    CompletionHeld { about: About<'a>, by: Duration },
    /// A lifecycle action is left to its own timeout, as the policy says.
    HookLeft { about: About<'a> },
    /// A lifecycle action was completed so: `continue`, `abandon`, or `over` where AWS says that it had ended.
    HookCompleted { about: About<'a>, result: CompletionResult },
    /// Completing failed; retried within the hook's life.
    CompletionRetried { about: About<'a>, category: Category, error: &'a dyn fmt::Display },
    /// A lifecycle action could not be completed within its life.
    CompletionFailed { about: About<'a>, error: &'a dyn fmt::Display },
    /// What would have been done, had this not been a dry run.
    DryRun { about: About<'a>, instead: &'static str },
    /// A call to AWS was answered, or not.
    AwsCall { service: &'static str, operation: &'static str, result: CallResult, took: Duration },
    /// A call to the API server was answered, or not.
    KubeCall { verb: &'static str, resource: &'static str, result: CallResult, took: Duration },
    /// An Event or a condition could not be written.
    TellingFailed { category: Category, error: &'a dyn fmt::Display },
    /// Facts came faster than Events and conditions could be written: `count` were dropped.
    TellingDropped { count: usize },
    /// An Event was written.
    EventWritten { reason: EventReason },
    /// A check of the set-up ended so; `found` and `remedy` are sentences.
    Checked { area: &'static str, check: &'static str, status: CheckStatus, found: &'a str, remedy: Option<&'a str> },
    /// The set-up was checked: how many checks ended how.
    ChecksEnded { counts: [(CheckStatus, usize); CheckStatus::ALL.len()] },
    /// It is this replica's turn to collect leaked Leases, or no longer.
    CollectorTurn { ours: bool },
    /// A Lease whose Node is gone was deleted; in a dry run it would have been. `idle`: since it was renewed.
    LeaseCollected { lease: &'a str, idle: Duration, dry_run: bool },
    /// Collecting leaked Leases failed; retried.
    CollectFailed { category: Category, error: &'a dyn fmt::Display },
    /// A task panicked: a bug.
    TaskPanicked { task: TaskKind },
    /// Shutdown began.
    ShutdownBegun { messages: usize },
    /// Shutdown ended; `clean` if everything ended by itself in time.
    ShutdownEnded { clean: bool, took: Duration },
}

/// Somebody who wants to know.
pub trait Subscriber: Send + Sync {
    /// Takes note of a fact. Must return at once, and must not panic.
    fn note(&self, fact: &Fact<'_>);
}

/// Where stages put facts. Clones share the subscribers.
#[derive(Clone)]
pub struct Facts(Arc<[Arc<dyn Subscriber>]>);

impl Facts {
    /// Every fact goes to each of `subscribers`, in their order.
    #[must_use]
    pub fn to(subscribers: Vec<Arc<dyn Subscriber>>) -> Self {
        Self(subscribers.into())
    }

    /// The same subscribers, and one more, which comes last.
    #[must_use]
    pub fn with(&self, subscriber: Arc<dyn Subscriber>) -> Self {
        Self(self.0.iter().cloned().chain([subscriber]).collect())
    }

    /// Tells every subscriber.
    pub fn emit(&self, fact: &Fact<'_>) {
        for subscriber in self.0.iter() {
            subscriber.note(fact);
        }
    }
}

impl fmt::Debug for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Facts({} subscribers)", self.0.len())
    }
}
