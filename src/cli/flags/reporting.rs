//! The flags of Events and conditions.

use crate::telemetry::kube_events::Scope;
use clap::Args;

/// Events and conditions for Kubernetes.
#[derive(Args, Clone, Debug)]
pub struct Reporting {
    /// Which drains get Kubernetes Events and a condition of the Node: `blocked`, `all`, `lifecycle` (`all`, with the Node conditions of
    /// KEP-5683) or `none`
    ///
    /// Needs `create` and `patch` on `events`, and `patch` on `nodes/status`.
    #[arg(
        long,
        env = "EBBTIDE_EVENTS",
        value_enum,
        value_name = "WHICH",
        default_value = "blocked",
        hide_possible_values = true,
        help_heading = "Kubernetes Events"
    )]
    pub events: Scope,
}
