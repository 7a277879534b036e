//! The actions for notices, and the outcomes of notices and drains.

use std::fmt;

labels! {
    /// The kinds of notice, as users name them.
    NoticeKind {
        /// An Auto Scaling group terminates the instance.
        AsgTerminate => "asg-terminate",
        /// An Auto Scaling group launches the instance.
        AsgLaunch => "asg-launch",
        /// A spot instance is interrupted.
        Spot => "spot",
        /// A spot instance has an elevated risk of interruption.
        Rebalance => "rebalance",
        /// The instance leaves the state `running`.
        StateChange => "state-change",
        /// AWS Health schedules a change of the instance.
        ScheduledChange => "scheduled-change",
        /// A capacity reservation takes its capacity back.
        CapacityReservation => "capacity-reservation",
        /// A condition of the Node reports it as unhealthy.
        NodeCondition => "node-condition",
        /// EC2's checks of the instance, its host or its volumes fail.
        StatusCheck => "status-check",
    }
}

labels! {
    /// The response to a kind of notice.
    Action {
        /// Cordon and drain the node; complete the hook.
        Drain => "drain",
        /// As `Drain`, then reboot the instance; if that helps no longer, let its Auto Scaling group replace it.
        Reboot => "reboot",
        /// As `Drain`, but let the Auto Scaling group replace the node first.
        Replace => "replace",
        /// Cordon the node.
        Cordon => "cordon",
        /// Wait until the node is Ready, and complete the launch hook.
        Ready => "ready",
        /// Log the notice, and do nothing.
        Report => "report",
        /// Do nothing.
        Ignore => "ignore",
    }
}

impl NoticeKind {
    /// The actions that a kind can have.
    #[must_use]
    pub const fn actions(self) -> &'static [Action] {
        match self {
            Self::AsgLaunch => &[Action::Ready, Action::Report, Action::Ignore],
            // They leave no time for a replacement.
            Self::Spot | Self::StateChange => &[Action::Drain, Action::Cordon, Action::Report, Action::Ignore],
            // AWS ends what it has announced, whatever a reboot fixes.
            _ if !self.is_repair() => &[Action::Drain, Action::Replace, Action::Cordon, Action::Report, Action::Ignore],
            _ => &[Action::Drain, Action::Reboot, Action::Replace, Action::Cordon, Action::Report, Action::Ignore],
        }
    }

    /// Whether the node itself is unhealthy. AWS announces nothing then: no message brings a notice of this kind.
    #[must_use]
    pub const fn is_repair(self) -> bool {
        matches!(self, Self::NodeCondition | Self::StatusCheck)
    }

    /// Whether a notice of this kind only warns that the capacity may be lost. With the others the node is unhealthy, or AWS has set the
    /// time at which it takes the capacity.
    #[must_use]
    pub const fn is_hint(self) -> bool {
        matches!(self, Self::Rebalance)
    }

    /// Whether a drain for a notice of this kind has time to wait for others.
    #[must_use]
    pub const fn waits_in_waves(self) -> bool {
        self.is_repair() || matches!(self, Self::AsgTerminate | Self::Rebalance | Self::ScheduledChange)
    }
}

impl Action {
    /// The actions that lead to a drain.
    pub const DRAINS: [Self; 3] = [Self::Drain, Self::Reboot, Self::Replace];

    /// Whether the action leads to a drain.
    #[must_use]
    pub const fn drains(self) -> bool {
        matches!(self, Self::Drain | Self::Reboot | Self::Replace)
    }
}

labels! {
    /// What ends the repair of a drained node.
    Remedy {
        /// A reboot of its instance.
        Reboot => "reboot",
        /// The termination of its instance by the Auto Scaling group, which launches another.
        Terminate => "terminate",
    }
}

labels! {
    /// The result of requesting a replacement before the drain, or a remedy after it.
    Replacement {
        /// AWS has taken the request: the instance was reported as unhealthy to the group, or is rebooted.
        Asked => "asked",
        /// A new Node of the group is Ready.
        Ready => "ready",
        /// The group replaces the instance already, and all its Nodes are Ready.
        Complete => "complete",
        /// The new Node was not Ready in time.
        Late => "late",
        /// The instance belongs to no Auto Scaling group.
        NoGroup => "no-group",
        /// The group, or its hooks, could not be read.
        Unknown => "unknown",
        /// The group has no terminating hook that Ebbtide completes: the instance would end undrained.
        NoHook => "no-hook",
        /// The group's maintenance policy does not launch first.
        TerminatesFirst => "terminates-first",
        /// A process of the group that replaces instances is suspended.
        Suspended => "suspended",
        /// The group has its maximum size.
        AtMaximum => "at-maximum",
        /// The instance is protected from scale-in.
        Protected => "protected",
        /// The instance is not in service in its group.
        NotInService => "not-in-service",
        /// The deadline is too near.
        TooLate => "too-late",
        /// Too many nodes of the group were being replaced, for too long.
        Queued => "queued",
        /// Auto Scaling did not accept the call.
        Refused => "refused",
        /// A dry run asks for nothing.
        DryRun => "dry-run",
        /// The permission is missing.
        Denied => "denied",
    }
}

labels! {
    /// Waits before the cordon, before evictions begin, or between a drain and the completion of its hook.
    Wait {
        /// Its admission: fewer drains than `--max-draining` allows, or AWS's confirmation.
        Admission => "admission",
        /// The user's delay of evictions.
        Delay => "delay",
        /// The node that replaces the instance, until it is Ready.
        Replacement => "replacement",
        /// A place in the wave of the Node's label: fewer drains of its value than `--wave` allows.
        Wave => "wave",
        /// The end of a zonal shift away from another zone.
        ZonalShift => "zonal-shift",
        /// The user's delay of the completion.
        CompleteAfter => "complete-after",
        /// Another controller or a user, before evictions begin.
        HoldBeforeDrain => "hold-before-drain",
        /// Another controller or a user, before the completion.
        HoldBeforeCompletion => "hold-before-completion",
        /// The volumes of the drained pods, until they are detached.
        Volumes => "volumes",
        /// The instance and its drained pods, until no target group lists them.
        LoadBalancers => "load-balancers",
        /// The reboot of the instance, until its Node is healthy.
        Reboot => "reboot",
        /// The group that terminates the instance, until it was asked.
        Termination => "termination",
    }
}

labels! {
    /// The reason why a notice is unusual.
    Unusual {
        /// More nodes are drained than `--max-draining` allows.
        TooManyDrains => "too-many-drains",
        /// Its time is nearly over, or past.
        Late => "late",
        /// AWS does not confirm it.
        NotConfirmed => "not-confirmed",
        /// AWS has had little time to confirm it, or can't: it is worked on unconfirmed.
        Unconfirmed => "unconfirmed",
    }
}

labels! {
    /// Why no repair of an unhealthy node starts: the cause is not the node.
    RepairStop {
        /// More than half of the zones, and at least two, have a fifth of their nodes unhealthy.
        Zones => "zones",
        /// More than a fifth of the nodes of its group, rounded up, are unhealthy.
        Group => "group",
        /// More than a fifth of all nodes, rounded up, are unhealthy.
        Cluster => "cluster",
    }
}

labels! {
    /// What EC2 shows of an instance that has ended.
    InstanceEnd {
        /// It is terminated.
        Terminated => "terminated",
        /// EC2 does not know it: it was terminated more than an hour ago.
        Unknown => "unknown",
    }
}

labels! {
    /// Why Nodes of instances that have ended are not deleted for now.
    CollectionStop {
        /// EC2 shows the instance of no Ready Node.
        NoWitness => "no-witness",
        /// EC2 does not know the instance of a Ready Node, so another account or region may know those of other Nodes, too.
        Account => "account",
        /// A fifth of the Nodes has been deleted in the last ten minutes.
        Limit => "limit",
    }
}

labels! {
    /// How the surge of a Deployment ended.
    SurgeOutcome {
        /// Its new pods were Ready before its old ones were evicted.
        Ready => "ready",
        /// The time was over before.
        TimedOut => "timed-out",
        /// Its strategy has no room for a new pod next to the old ones.
        NoRoom => "no-room",
        /// It could not be read or restarted.
        Failed => "failed",
    }
}

labels! {
    /// The points at which an interruption can wait for another controller or a user.
    HoldPoint {
        /// Before evictions begin.
        BeforeDrain => "before-drain",
        /// Before the hook is completed.
        BeforeCompletion => "before-completion",
    }
}

labels! {
    /// How a wait ended.
    WaitOutcome {
        /// There was nothing to wait for.
        NotNeeded => "not-needed",
        /// The awaited event has happened.
        Met => "met",
        /// A user keeps the node, or the node is gone.
        CalledOff => "called-off",
        /// The time for it was over.
        TimeOver => "time-over",
        /// Another drain of the node began, or the lifecycle action or its time was over.
        CutShort => "cut-short",
        /// The right to see it is missing.
        Denied => "denied",
    }
}

labels! {
    /// How a notice ended.
    NoticeOutcome {
        /// The node was drained, and the hook completed.
        Drained => "drained",
        /// The node's kubelet is silent, and the grace periods of its pods are over; the hook was completed.
        NodeDead => "node-dead",
        /// The node was cordoned, as configured.
        Cordoned => "cordoned",
        /// The notice was logged, as configured.
        Reported => "reported",
        /// The notice was ignored, as configured.
        Ignored => "ignored",
        /// The instance belongs to another cluster, or another controller completes the hook.
        NotOurs => "not-ours",
        /// The Node or the settings exclude the Node.
        Excluded => "excluded",
        /// The notice came late: its node has become Ready again since the announced change.
        Stale => "stale",
        /// The announced change is not near yet: the Node keeps the notice until then.
        Planned => "planned",
        /// AWS cancelled the announced change, or reports it as completed: the notice's mark was removed.
        Withdrawn => "withdrawn",
        /// No node was there to drain: it never registered, or is gone; the hook was completed.
        NothingToDrain => "nothing-to-drain",
        /// The launched instance's node is Ready, and its hook was completed.
        Ready => "ready",
        /// At the deadline the launched instance's node was not Ready.
        NotReady => "not-ready",
        /// Until the deadline too many nodes were drained, and AWS did not confirm the notice: the node was left alone.
        NotAdmitted => "not-admitted",
        /// At the deadline a budget or a pod's annotation still blocked the drain.
        Blocked => "blocked",
        /// At the deadline pods were still terminating.
        TimedOut => "timed-out",
        /// The grace periods of the pods that are left were long over, and their kubelet lives; the hook waits no longer.
        Stuck => "stuck",
        /// Calls to the API server failed until the deadline.
        Failed => "failed",
        /// A user or another controller removed the cordon during the drain, and again after it was restored.
        Uncordoned => "uncordoned",
        /// The hook could not be completed within its life.
        HookFailed => "hook-failed",
        /// The work stopped halfway; the next receiver of the message continues it.
        HandedOver => "handed-over",
        /// The drain panicked: a bug. The next receiver tries again.
        Crashed => "crashed",
    }
}

impl NoticeOutcome {
    /// Whether the notice ended without its purpose.
    #[must_use]
    pub const fn is_failure(self) -> bool {
        match self {
            Self::NotReady
            | Self::NotAdmitted
            | Self::Blocked
            | Self::TimedOut
            | Self::Stuck
            | Self::Failed
            | Self::Uncordoned
            | Self::HookFailed
            | Self::Crashed => true,
            Self::Drained
            | Self::NodeDead
            | Self::Cordoned
            | Self::Reported
            | Self::Ignored
            | Self::NotOurs
            | Self::Excluded
            | Self::Stale
            | Self::Planned
            | Self::Withdrawn
            | Self::NothingToDrain
            | Self::Ready
            | Self::HandedOver => false,
        }
    }
}

labels! {
    /// The part of an interruption that a notification is about.
    NotificationPhase {
        /// Work on a node begins.
        Notice => "notice",
        /// A drain has been blocked for some seconds.
        Blocked => "blocked",
        /// The work ended as it should.
        Done => "done",
        /// The work ended without its purpose.
        Failed => "failed",
    }
}

labels! {
    /// The result of a notification.
    NotificationResult {
        /// The receiver accepted it.
        Sent => "sent",
        /// The receiver does not accept it, or it can't be written.
        Refused => "refused",
        /// The receiver could not be reached, or failed, each time.
        Failed => "failed",
        /// It was left out because of the limit, and the next one counts it.
        Folded => "folded",
        /// Facts came faster than they could be noted, or the process ended.
        Dropped => "dropped",
    }
}

labels! {
    /// How a drain ended.
    DrainOutcome {
        /// Every pod that had to go is gone.
        Drained => "drained",
        /// The Node was deleted, and its pods with it.
        NodeGone => "node-gone",
        /// The kubelet is silent, and the grace periods of all pods are over: no kubelet will report their end.
        NodeDead => "node-dead",
        /// At the deadline a budget or a pod's annotation still forbade an eviction.
        Blocked => "blocked",
        /// At the deadline pods were still terminating.
        TimedOut => "timed-out",
        /// The grace periods of the pods that are left were long over, and their kubelet lives; the hook waits no longer.
        Stuck => "stuck",
        /// Calls to the API server failed until the deadline.
        Failed => "failed",
        /// A user or another controller removed the cordon, and again after it was restored.
        Uncordoned => "uncordoned",
    }
}

impl DrainOutcome {
    /// Whether no pod that had to go runs on the node any more.
    #[must_use]
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Drained | Self::NodeGone | Self::NodeDead)
    }
}

impl From<DrainOutcome> for NoticeOutcome {
    fn from(outcome: DrainOutcome) -> Self {
        match outcome {
            DrainOutcome::Drained | DrainOutcome::NodeGone => Self::Drained,
            DrainOutcome::NodeDead => Self::NodeDead,
            DrainOutcome::Blocked => Self::Blocked,
            DrainOutcome::TimedOut => Self::TimedOut,
            DrainOutcome::Stuck => Self::Stuck,
            DrainOutcome::Failed => Self::Failed,
            DrainOutcome::Uncordoned => Self::Uncordoned,
        }
    }
}

labels! {
    /// The kinds of agent notices.
    AgentNoticeKind {
        /// A spot instance is taken back.
        Spot => "spot",
        /// A spot instance runs an elevated risk of being taken back.
        Rebalance => "rebalance",
        /// A change is scheduled.
        Maintenance => "maintenance",
        /// The instance's Auto Scaling group terminates it.
        Termination => "termination",
    }
}

labels! {
    /// Why the instance metadata service gave no answer that can be used.
    MetadataFailure {
        /// There is no connection: not an EC2 instance, or the service is off.
        Unreachable => "unreachable",
        /// There was no answer in time.
        TimedOut => "timed-out",
        /// There was no token in time: the limit of hops keeps its answer from a pod.
        NoToken => "no-token",
        /// The service refuses to answer.
        Refused => "refused",
        /// The service answers too many requests, or has an error of its own.
        Throttled => "throttled",
        /// The answering server has no tokens: not EC2's service.
        NotEc2 => "not-ec2",
        /// The answer is not what EC2 documents.
        Nonsense => "nonsense",
    }
}

impl MetadataFailure {
    /// Returns what to do about it.
    #[must_use]
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::Unreachable => "if the node is an EC2 instance, allow access to its metadata endpoint",
            Self::NoToken => {
                "set agent.hostNetwork=true in the chart, with the agents in a namespace of their own; or set the metadata hop limit of the \
                 instance to 2, which gives every pod on it the node's role"
            }
            Self::Refused => "enable the metadata endpoint of the instance",
            Self::NotEc2 => "run the agent on EC2 instances only, or correct --metadata-endpoint",
            Self::TimedOut | Self::Throttled | Self::Nonsense => "nothing, if it ends soon",
        }
    }

    /// Whether there is no metadata service of EC2 at all, as on a node that is no EC2 instance.
    #[must_use]
    pub const fn is_absence(self) -> bool {
        matches!(self, Self::Unreachable | Self::NotEc2)
    }
}
