//! The flags of Events and conditions.

use super::Events;
use clap::Args;

/// Events and conditions for Kubernetes.
#[derive(Args, Debug)]
pub struct Reporting {
    /// Which drains get Kubernetes Events, and a condition of the Node: blocked, all, lifecycle or none
    ///
    /// blocked: drains that have been blocked for 5 s, with the reason and the deadline. all: every drain, from its start.
    /// lifecycle: all, with the Node conditions of KEP-5683, which is alpha.
    #[arg(
        long,
        env = "EBBTIDE_EVENTS",
        value_enum,
        value_name = "WHICH",
        default_value = "blocked",
        hide_possible_values = true,
        help_heading = "Reporting"
    )]
    pub events: Events,

    /// Which drains get the condition of the Node, in the same words [default: as --events]
    ///
    /// The condition needs patch on nodes/status, Events need create and patch on events. For Events, lifecycle is all.
    #[arg(
        long,
        env = "EBBTIDE_NODE_CONDITION",
        value_enum,
        value_name = "WHICH",
        hide_possible_values = true,
        help_heading = "Reporting"
    )]
    pub node_condition: Option<Events>,
}
