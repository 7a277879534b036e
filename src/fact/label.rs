//! The closed sets of words that facts carry. Each word labels metrics and log lines, so its spelling is part of the interface.

use std::fmt;

/// Declares an enum whose values have names, and lists all of them.
macro_rules! labels {
    ($(#[$about:meta])* $name:ident { $($(#[$meaning:meta])* $value:ident => $label:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name {
            $($(#[$meaning])* $value,)+
        }

        impl $name {
            /// Every value, in the order in which tables show them.
            pub const ALL: [Self; [$($label),+].len()] = [$(Self::$value),+];

            /// The value's name in settings, metrics, logs and annotations.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$value => $label,)+
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

labels! {
    /// Why a well-formed message has no notice for Ebbtide.
    IgnoreReason {
        /// Auto Scaling's check, sent when a hook is set up.
        TestNotification => "test-notification",
        /// SNS's own traffic (subscription confirmations).
        SnsControl => "sns-control",
        /// An event of a source or detail-type that Ebbtide does not act on.
        UnknownType => "unknown-type",
        /// An instance state that takes nothing away (`pending`, `running`).
        HarmlessState => "harmless-state",
        /// A fleet's event that is no termination notice.
        OtherFleetChange => "other-fleet-change",
        /// A Health event of another service, of another category, or without affected instances.
        NotScheduledChange => "not-scheduled-change",
        /// The end of a Capacity Block that has no instance.
        EmptyReservation => "empty-reservation",
        /// A zonal shift of another resource than those of `--zonal-shift`.
        OtherShift => "other-shift",
        /// An event of a zonal shift that a newer one has overtaken, or that no Node can note.
        StaleShift => "stale-shift",
        /// A Health event that is over (`closed`).
        Closed => "closed",
    }
}

labels! {
    /// The fault of a message that can't be read.
    MalformedReason {
        /// The body is not JSON, or not an object.
        NotJson => "not-json",
        /// The body is JSON, but neither an event, nor a notification, nor a lifecycle message.
        UnknownShape => "unknown-shape",
        /// A required field is missing.
        MissingField => "missing-field",
        /// A field has an impossible value.
        BadValue => "bad-value",
        /// One of several instances has an impossible id; the message is not lost.
        BadEntity => "bad-entity",
    }
}

labels! {
    /// Why a message was released for another receiver.
    MessageRelease {
        /// The service shuts down.
        Shutdown => "shutdown",
        /// The work on one of its notices was handed over.
        HandedOver => "handed over",
        /// Its visibility could not be extended in time. SQS may have extended it all the same. The work on it continues.
        Lost => "lost",
        /// The message was held for almost the 12 h that SQS allows.
        TooOld => "held for 11 h 50",
    }
}

labels! {
    /// Why the lease of a message ended before its notices did.
    LeaseEnd {
        /// The message is visible again, or another receiver has it.
        Lost => "lost",
        /// The message was held for almost the 12 h that SQS allows.
        TooOld => "held for 11 h 50",
        /// The API server has been away for two minutes, and a replica that reaches it may join the work.
        Away => "the API server is away",
    }
}

labels! {
    /// A retried step in the life of a message.
    MessageStep {
        /// Deleting the message.
        Delete => "delete",
        /// Extending its visibility.
        Extend => "extend",
    }
}

labels! {
    /// A retried step of a drain.
    DrainStep {
        /// Listing the node's pods.
        List => "list",
        /// Restoring the cordon.
        Cordon => "cordon",
        /// Noting the hold on the Node.
        Hold => "hold",
        /// Noting the place in a wave on the Node.
        Wave => "wave",
        /// Noting the reboot on the Node.
        Reboot => "reboot",
        /// Evicting a pod.
        Evict => "evict",
        /// Deleting a pod before a hard deadline.
        DeletePod => "delete-pod",
    }
}

labels! {
    /// Why marks were removed from a Node.
    UndoReason {
        /// No interruption followed within the time that the user set.
        Expired => "expired",
        /// The Node is Ready again after a restart: the announced change is over.
        Rebooted => "rebooted",
        /// A user or another controller removed the cordon and kept it removed.
        Uncordoned => "uncordoned",
        /// The instance has returned from its group's warm pool.
        FromWarmPool => "from-warm-pool",
        /// AWS cancelled the announced change, or reports it as completed.
        Withdrawn => "withdrawn",
        /// Another replica has cordoned at the same time, so that hints held more nodes than they may.
        OverLimit => "over-limit",
    }
}

labels! {
    /// Content of a Node that is ignored. Anyone with write access to the Node may have written it.
    NodeRefusal {
        /// Entries for removal that no mark can have put there.
        Undo => "undo",
        /// An invalid agent notice.
        AgentNotice => "saying",
        /// Notices, plans and marks for an instance that another Node has, too.
        Twin => "two-nodes",
        /// Annotations beyond the number that is read.
        Unread => "unread",
        /// Its agent notices and plans beyond the number of new ones that begin in an hour.
        Held => "often",
    }
}

labels! {
    /// How a lifecycle action was completed.
    CompletionResult {
        /// With CONTINUE.
        Continue => "continue",
        /// With ABANDON.
        Abandon => "abandon",
        /// It had ended before, as AWS answered.
        Over => "over",
    }
}

labels! {
    /// The class of a failed call. It decides about retries.
    Category {
        /// The service asks for fewer calls.
        Throttled => "throttled",
        /// Credentials or permissions don't allow the call.
        Denied => "denied",
        /// The credentials have expired, and new ones too, or there are none yet.
        Expired => "expired",
        /// The subject does not exist.
        NotFound => "not-found",
        /// Another writer changed the subject meanwhile.
        Conflict => "conflict",
        /// A disruption budget, an admission webhook or an admission policy forbids the eviction now.
        Refused => "refused",
        /// The service calls the request invalid.
        Invalid => "invalid",
        /// The service failed (5xx).
        Unavailable => "unavailable",
        /// No answer in time.
        TimedOut => "timed-out",
        /// No connection, or it broke.
        Unreachable => "unreachable",
    }
}

labels! {
    /// A resource that the service watches.
    WatchedResource {
        /// Nodes.
        Nodes => "nodes",
        /// Pods.
        Pods => "pods",
        /// Attachments of volumes.
        VolumeAttachments => "volumeattachments",
    }
}

labels! {
    /// The reason of a Kubernetes Event.
    EventReason {
        /// A drain began.
        Draining => "Draining",
        /// A drain has been blocked for some seconds.
        DrainBlocked => "DrainBlocked",
        /// A pod can't be evicted.
        EvictionBlocked => "EvictionBlocked",
        /// A drain ended.
        DrainEnded => "DrainEnded",
        /// An interruption has waited for some seconds.
        Waiting => "Waiting",
        /// The waits of an interruption ended.
        WaitEnded => "WaitEnded",
    }
}

labels! {
    /// How a check of the set-up ended.
    CheckStatus {
        /// The set-up is as it should be.
        Ok => "ok",
        /// The set-up works, but not in every case.
        Warning => "warning",
        /// The set-up does not work.
        Failure => "failure",
        /// The check could not be made.
        Skipped => "skipped",
    }
}

labels! {
    /// The kinds of task.
    TaskKind {
        /// Receives messages. Fixed.
        Poller => "poller",
        /// Watches Nodes. Fixed.
        NodeWatch => "node-watch",
        /// Removes marks from Nodes. Fixed.
        Undo => "undo",
        /// Works on what Nodes report and keep, and on what EC2 lists. Fixed.
        Sources => "sources",
        /// Serves probes and metrics. Fixed.
        Admin => "admin",
        /// Writes Events and conditions. Fixed.
        Teller => "teller",
        /// Collects what is left of Nodes. Fixed.
        Collector => "collector",
        /// Collects calls into a batch (deletions, extensions, questions to EC2). Fixed.
        Batcher => "batcher",
        /// Makes one batched call.
        Batch => "batch",
        /// Holds one message until all its notices have ended.
        Message => "message",
        /// Acts on one notice.
        Interruption => "interruption",
        /// Keeps one lifecycle hook alive.
        Heartbeat => "heartbeat",
        /// Drains one node.
        Drain => "drain",
        /// Watches pods while drains run.
        PodWatch => "pod-watch",
        /// Watches the attachments of volumes while an interruption, or the deletion of a Node, waits for them.
        AttachmentWatch => "attachment-watch",
        /// Deregisters one instance from its target groups.
        Deregistration => "deregistration",
        /// Reads the targets of one target group while an interruption waits for them.
        TargetHealth => "target-health",
        /// Checks the set-up once, some seconds after the start.
        Checks => "checks",
        /// Answers one connection of the admin server. The reader of the gauges has one open.
        AdminConnection => "admin-connection",
        /// Sends notifications. Fixed.
        Notifier => "notifier",
        /// Sends traces. Fixed.
        Tracer => "tracer",
        /// Serves the status page. Fixed.
        Status => "status",
        /// Answers one connection of the status page.
        StatusConnection => "status-connection",
    }
}

impl TaskKind {
    /// Whether tasks of this kind come and go with messages, rather than with the service or with its observers.
    #[must_use]
    pub const fn transient(self) -> bool {
        !matches!(
            self,
            Self::Poller
                | Self::NodeWatch
                | Self::Undo
                | Self::Sources
                | Self::Admin
                | Self::Teller
                | Self::Notifier
                | Self::Tracer
                | Self::Collector
                | Self::AdminConnection
                | Self::Status
                | Self::StatusConnection
                | Self::Batcher
        )
    }
}

labels! {
    /// How a task ended.
    TaskOutcome {
        /// The task returned.
        Finished => "finished",
        /// The task returned an error.
        Failed => "failed",
        /// The task was aborted, or its runtime ended.
        Cancelled => "cancelled",
        /// The task panicked.
        Panicked => "panicked",
    }
}

labels! {
    /// A step in the life of a message, as it is counted.
    MessageCount {
        /// Received.
        Received => "received",
        /// Deleted.
        Deleted => "deleted",
        /// Made visible for another receiver.
        Released => "released",
        /// Possibly received by others, because its visibility could not be extended in time.
        LeaseEnded => "lease-ended",
        /// Neither deleted nor released.
        Left => "left",
    }
}

labels! {
    /// Which receive of a message one is.
    ReceiveOrder {
        /// The first.
        First => "first",
        /// One of the next.
        Again => "again",
        /// One of many.
        Often => "often",
    }
}

labels! {
    /// The kind of a drain's deadline.
    DeadlineType {
        /// The node's capacity ends.
        Hard => "hard",
        /// Only our patience ends.
        Soft => "soft",
    }
}

impl DeadlineType {
    /// Returns the type of a deadline at which the capacity ends if it is `hard`.
    pub(crate) const fn of(hard: bool) -> Self {
        if hard { Self::Hard } else { Self::Soft }
    }
}

/// How a heartbeat was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeartbeatResult {
    /// The lifecycle action's timeout began again.
    Sent,
    /// AWS reports that the lifecycle action has ended.
    Over,
    /// The call failed.
    Failed(Category),
}

impl HeartbeatResult {
    /// Every label of a result.
    pub fn labels() -> impl Iterator<Item = &'static str> {
        [Self::Sent, Self::Over].into_iter().chain(Category::ALL.map(Self::Failed)).map(Self::as_str)
    }

    /// The result's name in metrics and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Over => "over",
            Self::Failed(category) => category.as_str(),
        }
    }
}

/// How a call was answered: well, or with a failure of a category.
pub type CallResult = Result<(), Category>;

/// The name of a call's result in metrics and logs: `ok`, or the failure's category.
#[must_use]
pub const fn label(result: CallResult, ok: &'static str) -> &'static str {
    if let Err(category) = result { category.as_str() } else { ok }
}

impl Category {
    /// Whether the server gave no answer, or only that it is overloaded or has failed: a later call may be answered otherwise.
    #[must_use]
    pub const fn is_away(self) -> bool {
        matches!(self, Self::Throttled | Self::Unavailable | Self::TimedOut | Self::Unreachable)
    }

    /// Whether a later call may be answered otherwise: the server is away, or the credentials have expired, which are renewed.
    #[must_use]
    pub const fn may_pass(self) -> bool {
        self.is_away() || matches!(self, Self::Expired)
    }
}
