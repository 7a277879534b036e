//! The flags of the limits for who may write to the queue.

use super::Verify;
use clap::Args;

/// The limits for who may write to the queue.
#[derive(Args, Debug)]
pub struct Admission {
    /// Maximum number of nodes that are drained at the same time, or their share of the cluster's, of which one is always allowed; beyond it
    /// only what AWS confirms is drained, and the rest waits. Needs the AWS permissions of the stack's Verify=true [default: no limit]
    #[arg(long, env = "EBBTIDE_MAX_DRAINING", value_name = "N|P%", help_heading = "Drain")]
    pub max_draining: Option<String>,

    /// Notices that EC2 or Auto Scaling has to confirm before their nodes are drained: always, all of which they can tell; unusual, those
    /// beyond --max-draining. But for never it needs those permissions, too
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
