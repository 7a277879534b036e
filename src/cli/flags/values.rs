//! The words that flags take.

use crate::pipeline::event::NoticeKind;
use clap::ValueEnum;
use clap::builder::PossibleValue;

impl ValueEnum for NoticeKind {
    fn value_variants<'a>() -> &'a [Self] {
        &Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.as_str()))
    }
}

/// The hooks of EKS managed node groups, which EKS itself completes.
pub const EKS_HOOKS: &str = "Terminate-LC-Hook,Launch-LC-Hook";

/// Signs that another tool works on a node now, not only wants to: of Karpenter, Cluster Autoscaler, the Node Maintenance Operator, the
/// remediations of medik8s, kured with `--annotate-nodes`, Flatcar's update operator, and the Machine Config Operator.
pub const WORK_SIGNS: &str = "karpenter.sh/disrupted,ToBeDeletedByClusterAutoscaler,medik8s.io/drain,medik8s.io/remediation,\
    weave.works/kured-reboot-in-progress,flatcar-linux-update.v1.flatcar-linux.net/reboot-in-progress=true,\
    machineconfiguration.openshift.io/state=Working";

/// The action for pods that remain shortly before a hard deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AtDeadline {
    /// Delete them while their grace period fits.
    Delete,
    /// Leave them.
    Leave,
}

/// The action for a terminating hook after a failed drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnFailedDrain {
    /// Complete it with CONTINUE.
    Continue,
    /// Complete it with ABANDON, which skips the group's other hooks and may keep the instance.
    Abandon,
    /// Leave it to its own timeout.
    Leave,
}

/// What to do for the load balancers of an interrupted instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WaitForLoadBalancers {
    /// Nothing.
    Off,
    /// Wait between the drain and a hook's completion until no target group lists the instance or its drained pods, 6 minutes at most.
    Wait,
    /// Deregister the instance when its drain begins, if it is terminated; then wait.
    Deregister,
}

/// The action for a terminating hook whose Node a user uncordoned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnUncordon {
    /// Leave it to its own timeout.
    Leave,
    /// Keep it alive until its deadline, then do as after a failed drain.
    AtDeadline,
}

/// The notices that AWS has to confirm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Verify {
    /// All that AWS can confirm.
    Always,
    /// Those beyond the maximum number of drains.
    Unusual,
    /// None.
    Never,
}

/// The action for a launch hook whose Node is not Ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnFailedLaunch {
    /// Complete it with ABANDON, which terminates the instance.
    Abandon,
    /// Leave it to its own timeout.
    Leave,
}

/// The drains that get Events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Events {
    /// Blocked drains.
    Blocked,
    /// All drains.
    All,
    /// All drains, with the conditions of KEP-5683.
    Lifecycle,
    /// No drains.
    None,
}

/// The format of notifications.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NotifyFormat {
    /// JSON.
    Json,
    /// A message for Slack.
    Slack,
    /// A card for Microsoft Teams.
    Teams,
    /// An event for `PagerDuty`.
    #[value(name = "pagerduty")]
    PagerDuty,
    /// JSON, with the headers of `CloudEvents`.
    #[value(name = "cloudevents")]
    CloudEvents,
}

/// The format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Text, for people.
    Text,
    /// One JSON object per line.
    Json,
}
