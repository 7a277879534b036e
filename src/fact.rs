//! Events of the service, as values. Stages emit [`Fact`]s; the log, metrics, Kubernetes Events, the history, notifications and traces
//! subscribe to them.
//!
//! Telemetry never delays a drain: a [`Subscriber`] returns at once. A subscriber that has to wait owns a bounded buffer and counts
//! what it drops. A fact borrows its fields, so that emitting one costs no allocation.

#[macro_use]
mod label;
pub mod condition;
mod hook;
mod outcome;

pub use hook::{HookFailure, HookLack};
pub use label::{
    CallResult, Category, CheckStatus, CompletionResult, DeadlineType, DrainStep, EventReason, HeartbeatResult,
    IgnoreReason, LeaseEnd, MalformedReason, MessageCount, MessageRelease, MessageStep, NodeRefusal, ReceiveOrder,
    TaskKind, TaskOutcome, UndoReason, WatchedResource, label,
};
pub use outcome::{
    Action, AgentNoticeKind, CollectionStop, DrainOutcome, HoldPoint, InstanceEnd, MetadataFailure, NoticeKind,
    NoticeOutcome, NotificationPhase, NotificationResult, Remedy, RepairStop, Replacement, SurgeOutcome, Unusual, Wait,
    WaitOutcome,
};

use jiff::SignedDuration;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The notice that a fact is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoticeRef<'a> {
    /// The notice's kind.
    pub kind: NoticeKind,
    /// The id of the instance.
    pub instance: &'a str,
    /// The name of the instance's Node, if there is one.
    pub node: Option<&'a str>,
    /// The id of its message.
    pub message: &'a str,
}

/// A notice that holds a Node, by the Node's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedNotice<'a> {
    /// The notice's kind.
    pub kind: NoticeKind,
    /// The id of its message.
    pub message: &'a str,
    /// AWS's time of it.
    pub since: Option<jiff::Timestamp>,
    /// The deadline of the drain; `None` without a drain.
    pub deadline: Option<jiff::Timestamp>,
    /// Whether work on it is left.
    pub is_open: bool,
}

/// The Node that a drain is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeRef<'a> {
    /// Its name.
    pub node: &'a str,
    /// Its UID.
    pub uid: &'a str,
    /// The id of its instance.
    pub instance: &'a str,
}

/// The pool of capacity that a Node's instance comes from. A part that is not known is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolRef<'a> {
    /// The instance's type.
    pub instance_type: &'a str,
    /// Its availability zone.
    pub zone: &'a str,
    /// The group of Nodes.
    pub group: &'a str,
}

/// Time for which pods of a drain are held back, without a break, before the drain counts as blocked. Most budgets allow an eviction as soon
/// as another pod is Ready: that is no news.
pub const MIN_BLOCKED_TIME: Duration = Duration::from_secs(5);

/// The pod that a fact is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodRef<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Its UID.
    pub uid: &'a str,
}

/// The Deployment that a fact is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkloadRef<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
}

impl fmt::Display for WorkloadRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A pod that is held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldPod<'a> {
    /// The pod.
    pub pod: PodRef<'a>,
    /// What holds it, in a sentence.
    pub by: &'a str,
}

impl fmt::Display for PodRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Something that happened. Fields of closed sets may label metrics; names may not.
#[non_exhaustive]
#[allow(missing_docs, reason = "each variant's sentence describes its fields")]
pub enum Fact<'a> {
    /// The service starts. `queue` is empty without one; `sources` give notices, and `node_hook` names the hook of Nodes that report their termination.
    Started { queue: &'a str, sources: &'a dyn fmt::Display, node_hook: Option<&'a str>, dry_run: bool },
    /// The admin server listens.
    AdminListening { address: SocketAddr },
    /// The status page listens.
    StatusListening { address: SocketAddr },
    /// The status page can't listen; the service works without it.
    StatusFailed { error: &'a dyn fmt::Display },
    /// A user changed the log filter.
    LogFilterChanged { filter: &'a str },
    /// The service is ready: the Nodes are listed, and the queue has answered.
    Ready,
    /// The index holds the cluster's Nodes.
    NodesSynced { nodes: usize },
    /// The number of Nodes in the index has changed.
    NodesKnown { nodes: usize },
    /// A list or a watch failed; it is restarted.
    WatchFailed { resource: WatchedResource, error: &'a dyn fmt::Display },
    /// The API server can't stream lists; ordinary lists are requested instead.
    ListsNotStreamed { resource: WatchedResource, error: &'a dyn fmt::Display },
    /// Receiving failed; it is retried with backoff.
    ReceiveFailed { category: Category, error: &'a dyn fmt::Display },
    /// A message arrived. `age` is the time since it was sent.
    MessageReceived { message: &'a str, receives: u32, age: Option<Duration> },
    /// A message can't be read. `excerpt` is bounded.
    MessageMalformed { message: &'a str, reason: MalformedReason, error: &'a dyn fmt::Display, excerpt: &'a str },
    /// An instance that a message names can't be read; the others are worked on.
    EntityUnreadable { message: &'a str, error: &'a dyn fmt::Display },
    /// A message has no notice for Ebbtide.
    MessageIgnored { message: &'a str, reason: IgnoreReason },
    /// A message was deleted: all its notices have ended.
    MessageDeleted { message: &'a str },
    /// A message was made visible again, for another receiver.
    MessageReleased { message: &'a str, why: MessageRelease },
    /// The lease of a message ended before its notices. It is released next; after `Lost` another receiver may have it already.
    MessageLeaseEnded { message: &'a str, why: LeaseEnd },
    /// Deleting or extending a message failed for the first time; it is retried while the message is ours.
    MessageRetried { message: &'a str, step: MessageStep, category: Category, error: &'a dyn fmt::Display },
    /// A message could neither be deleted nor released; it becomes visible after its visibility timeout.
    MessageLeft { message: &'a str, category: Category, error: &'a dyn fmt::Display },
    /// The machine's clock was set forward by this much, or its machine was suspended for as long.
    ClockStepped { by: SignedDuration },
    /// The machine's clock is ahead of AWS's by this much; 0 if it no longer is.
    ClockSkewed { ahead: SignedDuration },
    /// Work on a notice begins, or begins again because AWS has revised the notice. `until` is the time left until its deadline, which
    /// is `hard` if the node goes then.
    NoticeBegun {
        about: NoticeRef<'a>,
        action: Action,
        until: Option<Duration>,
        hard: bool,
        again: bool,
        /// Where the capacity comes from, if the instance has a Node.
        pool: Option<PoolRef<'a>>,
    },
    /// A notice comes from a test message.
    TestNotice { about: NoticeRef<'a> },
    /// A second copy of a notice joined the first.
    NoticeJoined { about: NoticeRef<'a> },
    /// A notice ended. `waited` lists how its waits ended; it is empty without one.
    NoticeEnded { about: NoticeRef<'a>, outcome: NoticeOutcome, took: Duration, waited: &'a str },
    /// The calls for a notice failed, and it is tried again after a `pause`, because its change is ahead.
    NoticeRetried { about: NoticeRef<'a>, pause: Duration },
    /// An instance of this cluster has no Node yet; its message is held.
    NodeAwaited { about: NoticeRef<'a>, at_most: Duration },
    /// EC2 did not answer to which cluster an instance belongs; retried.
    OwnerUnknown { about: NoticeRef<'a>, category: Category, error: &'a dyn fmt::Display },
    /// EC2 did not return the instances of a capacity reservation; retried.
    ReservationUnknown { message: &'a str, reservation: &'a str, category: Category, error: &'a dyn fmt::Display },
    /// A message reports a zonal shift away from a zone, which counts until then, or its end.
    ZonalShift { message: &'a str, away_from: &'a str, resource: &'a str, until: Option<jiff::Timestamp> },
    /// The zonal shift could not be noted on the Nodes; retried.
    ZonalShiftFailed { message: &'a str, category: Category, error: &'a dyn fmt::Display },
    /// EC2 lists a notice that no message announced; it is acted on.
    NoticeListed { about: NoticeRef<'a> },
    /// A Node carries a new notice, which is acted on from now on.
    NoticeAnnotated { about: NoticeRef<'a> },
    /// Another Node has the same instance and is Ready, or was Ready later: notices, plans and marks of this Node are ignored.
    /// Emitted once for a Node.
    TwinRefused { on: NodeRef<'a> },
    /// More annotations of one prefix are on a Node than are read; `count` are left unread. Emitted once for a Node.
    AnnotationsUnread { on: NodeRef<'a>, count: usize },
    /// A Node reports and plans more new notices than are begun in an hour: the rest waits. Emitted once for a Node.
    AgentNoticesHeld { on: NodeRef<'a> },
    /// This annotation is no valid agent notice. Emitted once for each annotation.
    AgentNoticeRefused { on: NodeRef<'a>, annotation: &'a str, error: &'a dyn fmt::Display },
    /// Work on this number of unhealthy `nodes` is held back; it was `before` until now. `share`: the number of unhealthy nodes, and of
    /// all; for [`RepairStop::Zones`], of zones.
    RepairsHeld { kind: NoticeKind, why: RepairStop, nodes: usize, before: usize, share: (usize, usize) },
    /// This replica begins to handle notices from Nodes (`ours`), or another one does.
    NodesTurn { ours: bool },
    /// The election for notices from Nodes failed; retried. Emitted once until it succeeds, or fails differently.
    NodesTurnUnknown { category: Category, error: &'a dyn fmt::Display },
    /// The EC2 poll failed; retried. Emitted once until it succeeds, or fails differently.
    PollFailed { category: Category, error: &'a dyn fmt::Display },
    /// A notice is not acted on yet: too many nodes are drained, or AWS does not confirm it. `drains`: their number, and its maximum.
    NoticeUnusual { about: NoticeRef<'a>, why: Unusual, drains: Option<(usize, usize)> },
    /// AWS was asked to confirm a notice, and did not answer; asked again. Emitted once for each category of a notice.
    ConfirmationFailed { about: NoticeRef<'a>, category: Category, error: &'a dyn fmt::Display },
    /// The Node keeps the notice until its change, which begins at `start`, is near.
    ChangePlanned { about: NoticeRef<'a>, start: jiff::Timestamp },
    /// The Node is cordoned and carries the notice's mark. `already`: it did before. `after`: the time since the notice.
    NodeCordoned { about: NoticeRef<'a>, already: bool, after: Duration },
    /// The patch that cordons the Node failed; retried.
    CordonFailed { about: NoticeRef<'a>, category: Category, error: &'a dyn fmt::Display },
    /// Hints hold as many nodes as they may, of this group or, if it is empty, of all: this one is not cordoned. `held`: those that are
    /// cordoned for hints alone; `of`: those that would be schedulable without.
    CordonLimited { about: NoticeRef<'a>, group: &'a str, held: usize, of: usize },
    /// Pods are evicted from a Node that could not be cordoned in time.
    CordonForgone { about: NoticeRef<'a> },
    /// The Node has the taint that lets its pods move, because EC2 reports the instance as stopped or terminated.
    NodeOutOfService { about: NoticeRef<'a> },
    /// The marks of notices were removed from a Node. `uncordoned`: it is schedulable again. `has_condition`: the Node's condition
    /// shows a drain.
    NodeReleased { on: NodeRef<'a>, why: UndoReason, uncordoned: bool, has_condition: bool },
    /// The marks of a Node have expired, and stay because another tool works on the Node, as `sign` shows.
    ReleaseDeferred { on: NodeRef<'a>, sign: &'a dyn fmt::Display },
    /// A Node without marks keeps what it `listed` for removal, taints and labels: no mark can have put these `entries` there.
    UndoRefused { on: NodeRef<'a>, entries: usize, listed: &'a str },
    /// Admission has denied taints or labels of a mark: the cordon and the record were written without them.
    MarksDenied { on: NodeRef<'a>, category: Category, error: &'a dyn fmt::Display },
    /// A Node has these notices on record, whichever replica acts on them: emitted at the start, and when they change; with none once they no
    /// longer hold the Node. `blocked` is the message of the Node's condition while a drain is held back.
    NodeRecorded { on: NodeRef<'a>, notices: &'a [RecordedNotice<'a>], blocked: Option<&'a str> },
    /// Removing marks, or writing a note, failed; retried.
    ReleaseFailed { on: NodeRef<'a>, category: Category, error: &'a dyn fmt::Display },
    /// EC2 did not show whether the change that is ahead of a Node still stands, after a restart of it, the first of some. `retried`: EC2 is
    /// asked again; otherwise the change counts as standing.
    RestartUnjudged { on: NodeRef<'a>, retried: bool, error: &'a dyn fmt::Display },
    /// The group was asked to replace the instance, or was not: then the node is drained without. `group` is empty if it has none.
    Replacement { about: NoticeRef<'a>, group: &'a str, result: Replacement },
    /// A call about a group whose node is to be replaced failed. Those of Auto Scaling are emitted once in some minutes for each category.
    ReplacementFailed { group: &'a str, error: &'a dyn fmt::Display },
    /// The end of a repair was requested from AWS, or was not. `group` is empty without one.
    Remedy { about: NoticeRef<'a>, remedy: Remedy, group: &'a str, result: Replacement },
    /// A call to reboot an instance failed.
    RebootFailed { about: NoticeRef<'a>, error: &'a dyn fmt::Display },
    /// A launched instance's Node is not Ready yet.
    LaunchAwaited { about: NoticeRef<'a>, at_most: Duration },
    /// A pod's grace period does not fit into the time that is left until the drain's deadline.
    GraceTooLong { on: NodeRef<'a>, pod: PodRef<'a>, grace: Duration, until: Duration, of_hook: bool },
    /// A drain begins. `until` is the time left until its deadline, which is `hard` if the node goes then.
    DrainBegun { on: NodeRef<'a>, pods: usize, left_alone: usize, until: Duration, hard: bool },
    /// A pod of a drain is gone. `pods` and `gone` count those that must leave.
    DrainProgress { on: NodeRef<'a>, pods: usize, gone: usize },
    /// The deadline of a drain has moved. `until` is the time left until it; it is `hard` if the node goes then.
    DrainDeadlineMoved { on: NodeRef<'a>, until: Duration, hard: bool },
    /// A notice joined the drain that its node already has.
    DrainJoined { about: NoticeRef<'a> },
    /// The API server answered an eviction.
    Eviction { on: NodeRef<'a>, pod: PodRef<'a>, result: CallResult },
    /// The API server answered a deletion before a hard deadline. `grace` is in seconds.
    Deletion { on: NodeRef<'a>, pod: PodRef<'a>, grace: i64, result: CallResult },
    /// A budget, a webhook, a policy or its own annotation blocks the eviction of a pod, or the pod is stuck in its termination; emitted
    /// once for each pod. `until` is the time left until the drain's deadline, which is `hard` if the node goes then.
    PodBlocked { on: NodeRef<'a>, pod: PodRef<'a>, by: &'a str, until: Duration, hard: bool },
    /// A blocked pod no longer is.
    PodUnblocked { on: NodeRef<'a>, pod: PodRef<'a> },
    /// Pods of a drain have been held back for [`MIN_BLOCKED_TIME`]: these, now. `until` is the time left until the drain's deadline, which is
    /// `hard` if the node goes then.
    DrainBlocked { on: NodeRef<'a>, pods: &'a [HeldPod<'a>], until: Duration, hard: bool },
    /// No pod of a blocked drain is held back any more. Not emitted at the drain's end.
    DrainUnblocked { on: NodeRef<'a> },
    /// A pod came back to the cordoned Node, as others of its owner before, and is left there; emitted once for each owner. It `tolerates`
    /// the cordon, or bypassed the scheduler.
    PodComesBack { on: NodeRef<'a>, pod: PodRef<'a>, tolerates: bool },
    /// A Deployment was restarted, because all its ready pods are on nodes that are being drained; in a dry run it would have been.
    DeploymentRestarted { on: NodeRef<'a>, deployment: WorkloadRef<'a>, dry_run: bool },
    /// The pods of a Deployment all of whose ready pods are on nodes that are being drained no longer wait for new ones, or never did; emitted
    /// once for each Deployment. `why` is a sentence for outcomes that need one. After a failed read it has the name of the `ReplicaSet`.
    SurgeEnded { on: NodeRef<'a>, deployment: WorkloadRef<'a>, outcome: SurgeOutcome, took: Duration, why: &'a str },
    /// A step of a drain failed; retried until the deadline.
    DrainRetried { on: NodeRef<'a>, step: DrainStep, category: Category, error: &'a dyn fmt::Display },
    /// A user or another controller removed the cordon during the drain; it was restored.
    NodeRecordoned { on: NodeRef<'a> },
    /// All other pods are gone, and the eviction of our own pod was accepted: the process ends in order.
    LeavingNode { on: NodeRef<'a> },
    /// A drain ended. `left` is the time left until the capacity ends, if that is known (`hard`), else until the drain's timeout.
    /// `report` lists which pods left and which stayed. `come_back` is the number of those that come back whenever they are evicted.
    /// `has_condition`: the Node's condition shows the drain.
    DrainEnded {
        on: NodeRef<'a>,
        outcome: DrainOutcome,
        gone: usize,
        took: Duration,
        left: Duration,
        hard: bool,
        report: &'a dyn fmt::Display,
        come_back: usize,
        has_condition: bool,
    },
    /// A drain was given up before its end: nothing in this process waits for it any more.
    DrainAbandoned { on: NodeRef<'a> },
    /// A drain whose Node has a condition is not continued: the Node or the settings exclude the Node now.
    DrainExcluded { on: NodeRef<'a> },
    /// A hook's timeout could not be looked up; a safe default is used.
    HookUnknown { about: NoticeRef<'a>, error: &'a dyn fmt::Display },
    /// Searching for the lifecycle action of an instance failed; the drain continues without it, and the search is retried.
    HookSearchFailed { about: NoticeRef<'a>, error: &'a dyn fmt::Display },
    /// Auto Scaling has answered that an instance waits at the hook of the name that the settings give.
    HookFound { about: NoticeRef<'a>, group: &'a str, hook: &'a str },
    /// Auto Scaling has answered that an instance waits at no hook of the name that the settings give. Emitted once for each notice that
    /// is taken up.
    HookNotFound { about: NoticeRef<'a>, hook: &'a str, why: &'a HookLack },
    /// AWS answered a heartbeat, or did not.
    Heartbeat { about: NoticeRef<'a>, result: HeartbeatResult, error: Option<&'a dyn fmt::Display> },
    /// AWS denies the heartbeats of a hook, which expires without: its drain ends in time for that. `until`: the time that it has.
    HeartbeatsDenied { about: NoticeRef<'a>, until: Duration },
    /// A wait begins, before evictions or before the completion. `reason` describes it.
    WaitBegun { about: NoticeRef<'a>, on: Option<NodeRef<'a>>, wait: Wait, reason: &'a str, at_most: Duration },
    /// The subject of a wait has changed.
    WaitChanged { about: NoticeRef<'a>, wait: Wait, reason: &'a str, at_most: Duration },
    /// A wait ended. `left`: what was still missing when its time was over, or when it was cut short.
    WaitEnded {
        about: NoticeRef<'a>,
        on: Option<NodeRef<'a>>,
        wait: Wait,
        outcome: WaitOutcome,
        took: Duration,
        left: Option<&'a str>,
    },
    /// A wait was given up: another replica continues it, or the interruption starts again.
    WaitAbandoned { about: NoticeRef<'a>, on: NodeRef<'a>, wait: Wait },
    /// A call about target groups failed. Reads of targets are retried, and the failure is emitted once until a read succeeds or fails
    /// differently.
    LoadBalancerFailed { category: Category, error: &'a dyn fmt::Display },
    /// Targets of interrupted instances were deregistered from the target group of this name.
    TargetsDeregistered { group: &'a str, targets: usize },
    /// The settings leave a lifecycle action to its own timeout.
    HookLeft { about: NoticeRef<'a> },
    /// A hook is left alone, because its instance may belong to another cluster.
    HookUnproven { about: NoticeRef<'a> },
    /// A lifecycle action was completed.
    HookCompleted { about: NoticeRef<'a>, result: CompletionResult },
    /// Completing failed; retried within the hook's life.
    CompletionRetried { about: NoticeRef<'a>, category: Category, error: &'a dyn fmt::Display },
    /// A lifecycle action could not be completed within its life.
    CompletionFailed { about: NoticeRef<'a>, error: &'a dyn fmt::Display },
    /// A dry run did nothing; `instead` is what it would have done.
    DryRun { about: NoticeRef<'a>, instead: &'static str },
    /// A call to AWS ended.
    AwsCall { service: &'static str, operation: &'static str, result: CallResult, took: Duration },
    /// A call to the API server ended.
    KubeCall { verb: &'static str, resource: &'static str, result: CallResult, took: Duration },
    /// A Kubernetes Event or a condition could not be written.
    KubeEventFailed { category: Category, error: &'a dyn fmt::Display },
    /// Facts came faster than Events and conditions could be written: `count` were dropped.
    KubeEventsDropped { count: usize },
    /// The receiver of notifications accepted one.
    NotificationSent { phase: NotificationPhase, took: Duration },
    /// A notification could not be delivered; it is tried again.
    NotificationRetried { category: Category, error: &'a dyn fmt::Display },
    /// A notification was given up. `host` is the receiver's. `repeated`: another one was, some minutes ago at most.
    NotificationFailed { host: &'a str, result: NotificationResult, error: &'a dyn fmt::Display, repeated: bool },
    /// A notification was left out because of the limit: the next one counts it.
    NotificationFolded { phase: NotificationPhase },
    /// Facts came faster than notifications could be made of them, or the process ended: `count` were dropped.
    NotificationsDropped { count: usize },
    /// The collector took traces.
    TracesSent { count: usize },
    /// The collector did not take `count` traces. `host` is its. `repeated`: others were lost some minutes ago at most.
    TracesLost { host: &'a str, count: usize, error: &'a dyn fmt::Display, repeated: bool },
    /// A Kubernetes Event was written.
    EventWritten { reason: EventReason },
    /// A check of the set-up ended; `found` and `remedy` are sentences.
    Checked { area: &'static str, check: &'static str, status: CheckStatus, found: &'a str, remedy: Option<&'a str> },
    /// All checks of the set-up ended; `counts` has the number of checks with each status.
    ChecksEnded { counts: [(CheckStatus, usize); CheckStatus::ALL.len()] },
    /// This replica begins to collect what is left of Nodes (`ours`), or another one does.
    CollectorTurn { ours: bool },
    /// A Lease without a Node was deleted; in a dry run it would have been. `idle` is the time since its last renewal.
    LeaseCollected { lease: &'a str, idle: Duration, dry_run: bool },
    /// A Node was deleted, because its instance has ended; in a dry run it would have been. `silent`: how long its kubelet has been.
    /// `has_finalizers`: it stays until other controllers remove them.
    NodeCollected { on: NodeRef<'a>, end: InstanceEnd, silent: Duration, has_finalizers: bool, dry_run: bool },
    /// This number of Nodes is left for now, although EC2's answer shows that their instances have ended; it was `before` until now.
    CollectionHeld { why: CollectionStop, nodes: usize, before: usize },
    /// Collecting what is left of Nodes failed; retried.
    CollectFailed { category: Category, error: &'a dyn fmt::Display },
    /// The agent of this Node starts.
    AgentStarted { node: &'a str },
    /// The agent wrote a notice to its Node; with an empty `text` it removed the notice.
    AgentWrote { node: &'a str, kind: AgentNoticeKind, text: &'a str },
    /// The agent could not patch its Node; retried. Emitted once until it can, or fails differently.
    AgentWriteFailed { node: &'a str, category: Category, error: &'a dyn fmt::Display },
    /// The instance's metadata could not be read; retried. `again`: as the time before.
    MetadataFailed { why: MetadataFailure, again: bool },
    /// The instance's metadata can be read again.
    MetadataAnswer,
    /// A task panicked: a bug.
    TaskPanicked { task: TaskKind },
    /// Shutdown began.
    ShutdownBegun { messages: usize },
    /// Shutdown ended. `clean`: every task ended by itself in time.
    ShutdownEnded { clean: bool, took: Duration },
}

/// A receiver of facts.
pub trait Subscriber: Send + Sync {
    /// Notes a fact. Must return at once, and must not panic.
    fn note(&self, fact: &Fact<'_>);
}

/// Sends facts to subscribers. Clones share the subscribers.
#[derive(Clone)]
pub struct Facts(Arc<[Arc<dyn Subscriber>]>);

impl Facts {
    /// A sender to each of `subscribers`, in their order.
    #[must_use]
    pub fn to(subscribers: Vec<Arc<dyn Subscriber>>) -> Self {
        Self(subscribers.into())
    }

    /// Returns a sender to the same subscribers and, last, to one more.
    #[must_use]
    pub fn with(&self, subscriber: Arc<dyn Subscriber>) -> Self {
        Self(self.0.iter().cloned().chain([subscriber]).collect())
    }

    /// Sends a fact to every subscriber.
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
