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

/// The format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Text, for people.
    Text,
    /// One JSON object per line.
    Json,
}
