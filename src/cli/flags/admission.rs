//! The flags that limit what a writer to the queue can cause.

use crate::pipeline::interruption::Verify;
use clap::Args;

/// The limits of what a writer to the queue can cause.
#[derive(Args, Debug)]
pub struct Admission {
    /// Maximum number of nodes that are drained at the same time, or their share of the cluster's nodes, at least one; beyond it only notices
    /// that AWS confirms lead to drains, and the rest waits. `none` for no limit. Needs the AWS permissions of the stack's Verify=true
    /// [default with a queue: 25%, beyond which only what AWS denies waits]
    #[arg(long, env = "EBBTIDE_MAX_DRAINING", value_name = "N|P%", help_heading = "Drain")]
    pub max_draining: Option<String>,

    /// Notices that EC2 or Auto Scaling has to confirm before their nodes are drained: always, all that they can confirm; unusual, those
    /// beyond --max-draining, and those whose time is nearly over. always and unusual need those permissions, too
    #[arg(
        long,
        env = "EBBTIDE_VERIFY",
        value_enum,
        value_name = "WHICH",
        default_value = "unusual",
        help_heading = "Drain"
    )]
    pub verify: Verify,
}
