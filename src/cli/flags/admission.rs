//! The flags that limit what a writer to the queue can cause.

use super::values::{drain_limit, value};
use crate::pipeline::interruption::{DrainLimit, Verify};
use clap::Args;

/// The limits of what a writer to the queue can cause.
#[derive(Args, Clone, Debug)]
pub struct Admission {
    /// Maximum number of nodes that are drained at the same time, a number or a share of all EC2 nodes, at least one. Beyond it Ebbtide drains only
    /// what AWS confirms, and the rest waits. `none` for no limit. Needs the AWS permissions of the template parameter `Verify` [default: with a
    /// queue `25%`, beyond which only what AWS denies waits]
    #[arg(
        long,
        env = "EBBTIDE_MAX_DRAINING",
        value_parser = value(drain_limit),
        value_name = "N|P%|none",
        help_heading = "Drain",
    )]
    pub max_draining: Option<DrainLimit>,

    /// Which notices AWS must confirm before their nodes are drained: `always`, all that AWS can confirm; `unusual`, those beyond
    /// `--max-draining`, with the default limit also those with little time left; `never`
    ///
    /// AWS is asked with the permissions of the template parameter `Verify`; without them the default limit only delays.
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
