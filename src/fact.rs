//! What happened, as values. Stages emit [`Fact`]s; logs, metrics and all that tells people subscribe.
//!
//! Telling people never delays a drain: a [`Subscriber`] returns at once, and one that has to wait for something owns a
//! bounded buffer and counts what it drops. A fact borrows what it tells, so emitting one that nobody keeps costs nothing.

pub mod log;
pub mod metrics;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The notice that a fact is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct About<'a> {
    /// The notice's kind.
    pub kind: &'static str,
    /// The instance it names.
    pub instance: &'a str,
    /// The instance's Node, where it has one.
    pub node: Option<&'a str>,
    /// The id of the message that brought it.
    pub message: &'a str,
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
    WatchFailed { resource: &'static str, error: &'a dyn fmt::Display },
    /// Receiving failed; it is retried with backoff.
    ReceiveFailed { category: &'static str, error: &'a dyn fmt::Display },
    /// A message arrived. `age` is the time since it was sent.
    MessageReceived { message: &'a str, receives: u32, age: Option<Duration> },
    /// A message can't be read. `excerpt` is bounded.
    MessageMalformed { message: &'a str, reason: &'static str, error: &'a dyn fmt::Display, excerpt: &'a str },
    /// A message asks nothing of us.
    MessageIgnored { message: &'a str, reason: &'static str },
    /// A message was deleted: all its notices have ended.
    MessageDeleted { message: &'a str },
    /// A message was made visible again, for another receiver.
    MessageReleased { message: &'a str, why: &'static str },
    /// A message is no longer ours to hold.
    LeaseEnded { message: &'a str, why: &'static str },
    /// Deleting or extending a message failed for the first time; it is retried for as long as the message is ours.
    MessageRetried { message: &'a str, step: &'static str, category: &'static str, error: &'a dyn fmt::Display },
    /// A message could neither be deleted nor released; it becomes visible by itself.
    MessageLeft { message: &'a str, category: &'static str, error: &'a dyn fmt::Display },
    /// A notice is acted on. `until` is its deadline in time left.
    NoticeBegun { about: About<'a>, action: &'static str, until: Option<Duration>, hard: bool },
    /// A second copy of a notice joined the first.
    NoticeJoined { about: About<'a> },
    /// A notice ended, so.
    NoticeEnded { about: About<'a>, outcome: &'static str, took: Duration },
    /// An instance of ours has no Node yet; its message is held.
    NodeAwaited { about: About<'a>, at_most: Duration },
    /// EC2 can't be asked whose an instance is; retried.
    OwnerUnknown { about: About<'a>, category: &'static str, error: &'a dyn fmt::Display },
    /// The Node carries the notice's mark, and is cordoned. `already`: it was before.
    NodeCordoned { about: About<'a>, already: bool },
    /// The patch of the Node failed; retried.
    CordonFailed { about: About<'a>, category: &'static str, error: &'a dyn fmt::Display },
    /// A drain begins.
    DrainBegun { node: &'a str, instance: &'a str, pods: usize, left_alone: usize, until: Duration, hard: bool },
    /// A notice joined the drain that its node already has.
    DrainJoined { about: About<'a> },
    /// A pod's eviction was answered so: `evicted`, or an error's category (`refused` by a budget, `not-found`).
    Eviction { node: &'a str, pod: &'a str, result: &'static str },
    /// A budget refuses a pod's eviction; told once for each pod.
    PodBlocked { node: &'a str, instance: &'a str, pod: &'a str, by: &'a str },
    /// A pod that was blocked no longer is.
    PodUnblocked { node: &'a str, instance: &'a str, pod: &'a str },
    /// Listing or evicting failed; retried until the deadline.
    DrainRetried {
        node: &'a str,
        instance: &'a str,
        step: &'static str,
        category: &'static str,
        error: &'a dyn fmt::Display,
    },
    /// A drain ended, so. `report` lists what went and what stayed.
    DrainEnded {
        node: &'a str,
        instance: &'a str,
        outcome: &'static str,
        evicted: usize,
        took: Duration,
        report: &'a dyn fmt::Display,
    },
    /// A hook's timeout could not be looked up; a safe default is used.
    HookUnknown { about: About<'a>, error: &'a dyn fmt::Display },
    /// A heartbeat was answered so: `sent`, `over`, or an error's category.
    Heartbeat { about: About<'a>, result: &'static str, error: Option<&'a dyn fmt::Display> },
    /// A lifecycle action was completed so: `continue`, or `over` where AWS says that it had ended.
    HookCompleted { about: About<'a>, result: &'static str },
    /// Completing failed; retried within the hook's life.
    CompletionRetried { about: About<'a>, category: &'static str, error: &'a dyn fmt::Display },
    /// A lifecycle action could not be completed within its life.
    CompletionFailed { about: About<'a>, error: &'a dyn fmt::Display },
    /// What would have been done, had this not been a dry run.
    DryRun { about: About<'a>, instead: &'static str },
    /// A call to AWS was answered, or not.
    AwsCall { service: &'static str, operation: &'static str, outcome: &'static str, took: Duration },
    /// A call to the API server was answered, or not.
    KubeCall { verb: &'static str, resource: &'static str, outcome: &'static str, took: Duration },
    /// A task panicked: a bug.
    TaskPanicked { task: &'static str },
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
