//! The flags of the sources of notices.

use super::values::text;
use clap::{Args, ValueEnum};

/// A source of notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Source {
    /// The messages of the queue.
    Queue,
    /// Notices on Nodes.
    Nodes,
    /// Notices that EC2 lists.
    Ec2,
}

/// The choice of sources.
#[derive(Args, Clone, Debug)]
pub struct Sources {
    /// URL of the SQS queue that EventBridge and lifecycle hooks send to; required, unless `--source` has no `queue`
    #[arg(long, env = "EBBTIDE_QUEUE_URL", value_parser = text, value_name = "URL", help_heading = "Queue")]
    pub queue_url: Option<String>,

    /// Sources of notices: `queue`, the messages of `--queue-url`; `nodes`, agent notices and conditions on the Nodes; `ec2`, what EC2 lists at
    /// `--ec2-poll-interval` [default: `queue`, and `ec2` with `--ec2-poll-interval`]
    #[arg(
        long,
        env = "EBBTIDE_SOURCE",
        value_name = "SOURCE",
        value_enum,
        hide_possible_values = true,
        value_delimiter = ',',
        help_heading = "Queue"
    )]
    pub source: Vec<Source>,

    /// The Lease for the election of the replica that handles notices from Nodes, in the namespace of --pod-namespace [default: ebbtide-nodes]
    ///
    /// Hidden: it is for the chart, which names the Lease after its release, because two releases in one namespace need two.
    #[arg(long, env = "EBBTIDE_NODES_LEASE", value_parser = text, value_name = "NAME", hide = true)]
    pub nodes_lease: Option<String>,

    /// Without a queue: name of the terminating lifecycle hook, the same in each Auto Scaling group, that Ebbtide keeps alive and completes when
    /// a Node reports that its group terminates it
    ///
    /// Needs AWS permissions for four calls to Auto Scaling. Refused with a queue, because its messages name the hook themselves.
    #[arg(long, env = "EBBTIDE_NODE_HOOK", value_parser = text, value_name = "HOOK", help_heading = "Notices")]
    pub node_hook: Option<String>,

    /// Action for a Node whose condition lasts longer than tolerated, such as `KernelReady=False:30m=replace`: `report`, `cordon`, `drain`,
    /// `reboot` or `replace`; once per condition, or for its reasons, such as `AcceleratedHardwareReady=False/NvidiaXID*:10m=replace`. Needs
    /// `nodes` in `--source`
    ///
    /// Tolerated from 1s to 24h. A rule with the whole reason comes before one with its beginning, and that before one without. Conditions are
    /// those of the EKS node monitoring agent, the node problem detector and Kubernetes itself (`Ready=Unknown`). No repair starts while more
    /// than a fifth, rounded up, of a group or of all nodes, or most zones, are affected.
    #[arg(
        long,
        env = "EBBTIDE_ON_CONDITION",
        value_parser = text,
        value_name = "TYPE=STATUS[/REASON]:TOLERATION=ACTION",
        value_delimiter = ',',
        help_heading = "Notices"
    )]
    pub on_condition: Vec<String>,
}
