//! The command line: flags in groups, each with its environment variable. `settings` checks their values.

mod admission;
pub mod agent;
pub mod borrowed;
pub mod cluster;
pub mod doctor;
pub mod migrate;
pub mod notify;
mod reporting;
pub mod send;
mod servers;
pub mod simulate;
mod source;
pub mod status;
mod traces;
mod values;
mod waits;

pub use admission::Admission;
pub use notify::Notifications;
pub use reporting::Reporting;
pub use servers::Servers;
pub use source::{Source, Sources};
pub use traces::Traces;
pub use values::{EKS_HOOKS, LogFormat, WORK_SIGNS};
pub use waits::Waits;

use crate::pipeline::drain::AtDeadline;
use crate::pipeline::interruption::{OnFailed, OnUncordon};
use clap::builder::{BoolishValueParser, PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};

/// Drains Kubernetes nodes before AWS takes them away.
#[derive(Debug, Parser)]
#[command(
    name = "ebbtide",
    version = concat!(env!("CARGO_PKG_VERSION"), " (", env!("EBBTIDE_BUILD"), ")"),
    after_help = "Access to AWS and Kubernetes is configured as for their own tools: AWS_REGION, AWS_ENDPOINT_URL, HTTPS_PROXY, IRSA or Pod \
                  Identity; KUBECONFIG, or the pod's service account.",
    max_term_width = 110
)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "a process has one of them")]
pub enum Command {
    /// Read the queue and drain nodes, until a signal ends the process
    #[command(
        after_help = "Durations are written 30s, 5m, 1h30m, 2d. Lists in an environment variable are separated by commas.\n\
                            Exit codes: 0 after an ordered shutdown, 1 if it can't start, 2 for wrong settings, 3 if the shutdown aborted work, 4 after a bug."
    )]
    Run(Run),
    /// Write what the instance's metadata announce to its Node, until a signal ends the process
    #[command(
        after_help = "Writes annotations ebbtide/says.* on its own Node, and nothing else; the service with --source nodes acts on them.\n\
                            Exit codes: 0 after a signal, 1 if it can't start, 2 for wrong flags."
    )]
    Agent(agent::Agent),
    /// Show what the service would do about a message, and why; change nothing
    #[command(
        after_help = "Takes the service's flags and variables, too: --help-all shows them; needs no queue. Only reads.\n\
                            Exit codes: 0 with an answer, even if nothing would be done; 1 if the cluster can't be read, 2 for wrong flags or an unreadable message."
    )]
    Simulate(Box<simulate::Simulate>),
    /// Send a test message to the queue, for a Node that allows tests
    #[command(
        after_help = "The message looks like one from AWS, and the service handles it like one: it cordons and drains the Node. Asks before. Uses the caller's credentials.\n\
                            Exit codes: 0 if the message was sent, 1 if not or if the output can't be written, 2 for wrong flags."
    )]
    Send(send::Send),
    /// Show what the replicas are doing: what is drained, how long is left, what blocks
    #[command(after_help = "Needs the right to list pods and to get pods/proxy with --namespace; nothing else.\n\
                            Exit codes: 0 if nothing is blocked, 1 if no replica answers, 2 for wrong flags, 3 if something is blocked or has failed in the last hour, or if a replica does not answer or the queue can't be read.")]
    Status(status::Status),
    /// Check everything that run needs, with a remedy for each problem; change nothing
    #[command(after_help = "Takes the service's flags and variables, too: --help-all shows them.\n\
                            Exit codes: 0 without a failure, 1 with a failure, with --strict also for a warning, 2 for wrong settings.")]
    Doctor(doctor::Doctor),
    /// Send a test of each notification that the settings ask for, and print the receiver's answers
    Notify(notify::Notify),
    /// Convert values of aws-node-termination-handler's chart to values of Ebbtide's chart
    ///
    /// Writes the values to standard output or a file, and remarks on values that differ or are lost to standard error.
    #[command(
        after_help = "Exit codes: 0 with values, 1 if they can't be written, 2 if the file is not a values file; with --strict 3 if a value was lost or differs."
    )]
    Migrate(migrate::Migrate),
}

/// The flags of `ebbtide run`.
#[derive(Args, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct Run {
    /// The sources of notices.
    #[command(flatten)]
    pub sources: Sources,

    /// Action for a kind of notice; once per kind
    ///
    /// Kinds: asg-terminate, asg-launch, spot, rebalance, state-change, scheduled-change, capacity-reservation, node-condition,
    /// status-check. Actions: drain, replace, cordon, report, ignore (for asg-launch: ready, report, ignore; for node-condition see
    /// --on-condition). Default: drain, but rebalance=cordon, asg-launch=ignore and status-check=report. Only drain, replace and ready
    /// touch lifecycle hooks. replace: as drain, but first the Auto Scaling group launches another node.
    #[arg(long, env = "EBBTIDE_ON", value_name = "KIND=ACTION", value_delimiter = ',', help_heading = "Notices")]
    pub on: Vec<String>,

    /// Action for a fault of an instance that AWS Health reports: drain, replace, cordon or report, by the code of the event; repeatable
    ///
    /// Without it events of the category issue are ignored. They need a rule of their own.
    #[arg(
        long,
        env = "EBBTIDE_HEALTH_ISSUE",
        value_name = "CODE=ACTION",
        value_delimiter = ',',
        help_heading = "Notices"
    )]
    pub health_issue: Vec<String>,

    /// A lifecycle hook that others complete; repeatable
    ///
    /// A value replaces the default, the two hooks of EKS.
    #[arg(
        long,
        env = "EBBTIDE_IGNORE_HOOK",
        value_name = "NAME",
        value_delimiter = ',',
        default_value = EKS_HOOKS,
        help_heading = "Notices"
    )]
    pub ignore_hook: Vec<String>,

    /// The EC2 tag of this cluster's instances
    #[arg(
        long,
        env = "EBBTIDE_MANAGED_TAG",
        value_name = "KEY[=VALUE]",
        default_value = "aws-node-termination-handler/managed",
        help_heading = "Notices"
    )]
    pub managed_tag: String,

    /// The name of this cluster, as in the tags kubernetes.io/cluster/NAME, eks:cluster-name or aws:eks:cluster-name of its instances
    /// [default: from the tags of a Node's instance]
    #[arg(long, env = "EBBTIDE_CLUSTER_NAME", value_name = "NAME", help_heading = "Notices")]
    pub cluster_name: Option<String>,

    /// Require the managed tag even if the instance has a Node here
    #[arg(long, env = "EBBTIDE_REQUIRE_TAG", value_parser = BoolishValueParser::new(), help_heading = "Notices")]
    pub require_tag: bool,

    /// How long to wait for the Node of a terminating instance before its hook is completed
    #[arg(
        long,
        env = "EBBTIDE_REGISTRATION_GRACE",
        value_name = "DURATION",
        default_value = "30s",
        help_heading = "Notices"
    )]
    pub registration_grace: String,

    /// Poll EC2 at this interval, 1m to 1h, for scheduled changes, ends of Capacity Blocks and failing status checks that no message announced, such as 5m [default: never]
    ///
    /// EventBridge may lose events. Needs ec2:DescribeInstanceStatus and ec2:DescribeCapacityReservations.
    #[arg(long, env = "EBBTIDE_EC2_POLL_INTERVAL", value_name = "DURATION", help_heading = "Notices")]
    pub ec2_poll_interval: Option<String>,

    /// Act only on Nodes whose labels match, such as pool=spot,zone!=a
    #[arg(long, env = "EBBTIDE_NODE_SELECTOR", value_name = "SELECTOR", help_heading = "Notices")]
    pub node_selector: Option<String>,

    /// Maximum duration of a drain, at most 48h, for all kinds or for one [default: what the notice allows; for a hook its heartbeat timeout or 15m, and the grace periods still to run]
    ///
    /// Once for all kinds and once per kind. For lifecycle hooks it may exceed the hook's timeout, because heartbeats keep the hook alive.
    /// It replaces the default of one hour of a rebalance recommendation, a scheduled change, a condition, a failing status check, and of a
    /// termination that only a Node reports. If AWS sets the time, it can only shorten it.
    #[arg(
        long,
        env = "EBBTIDE_DRAIN_TIMEOUT",
        value_name = "[KIND=]DURATION",
        value_delimiter = ',',
        help_heading = "Drain"
    )]
    pub drain_timeout: Vec<String>,

    /// The limits of what a writer to the queue can cause.
    #[command(flatten)]
    pub admission: Admission,

    /// Waits.
    #[command(flatten)]
    pub waits: Waits,

    /// When to act on a scheduled change: now, or this long before it begins, such as 2h-before; a retirement always now
    #[arg(
        long,
        env = "EBBTIDE_WHEN",
        value_name = "KIND=now|DURATION-before",
        value_delimiter = ',',
        help_heading = "Drain"
    )]
    pub when: Vec<String>,

    /// What to do shortly before a hard deadline with pods that could not be evicted
    ///
    /// At a hard deadline the node's capacity ends. delete: delete the pod while its grace period still fits before the deadline. leave:
    /// the pod dies with the node.
    #[arg(
        long,
        env = "EBBTIDE_AT_DEADLINE",
        value_enum,
        value_name = "WHAT",
        default_value = "delete",
        help_heading = "Drain"
    )]
    pub at_deadline: AtDeadline,

    /// Evict pods of DaemonSets, too, after all others, once each
    #[arg(long, env = "EBBTIDE_EVICT_DAEMONSETS", value_parser = BoolishValueParser::new(), help_heading = "Drain")]
    pub evict_daemonsets: bool,

    /// Evict only pods that match, like kubectl drain --pod-selector
    #[arg(long, env = "EBBTIDE_POD_SELECTOR", value_name = "SELECTOR", help_heading = "Drain")]
    pub pod_selector: Option<String>,

    /// Leave pods with an emptyDir volume, which kubectl drain evicts only with --delete-emptydir-data
    #[arg(long, env = "EBBTIDE_KEEP_EMPTY_DIR", value_parser = BoolishValueParser::new(), help_heading = "Drain")]
    pub keep_empty_dir: bool,

    /// Leave pods without a controller, which kubectl drain evicts only with --force
    #[arg(long, env = "EBBTIDE_KEEP_UNMANAGED", value_parser = BoolishValueParser::new(), help_heading = "Drain")]
    pub keep_unmanaged: bool,

    /// Leave pods with karpenter.sh/do-not-disrupt: "true" or cluster-autoscaler.kubernetes.io/safe-to-evict: "false" until shortly
    /// before a hard deadline
    #[arg(long, env = "EBBTIDE_RESPECT_DO_NOT_DISRUPT", value_parser = BoolishValueParser::new(), help_heading = "Drain")]
    pub respect_do_not_disrupt: bool,

    /// Grace period of every eviction [default: the pod's own]
    #[arg(long, env = "EBBTIDE_POD_GRACE", value_name = "DURATION", help_heading = "Drain")]
    pub pod_grace: Option<String>,

    /// A taint to set and remove with the cordon; repeatable
    #[arg(
        long,
        env = "EBBTIDE_TAINT",
        value_name = "KEY[=VALUE]:EFFECT",
        value_delimiter = ',',
        help_heading = "Marks on the Node"
    )]
    pub taint: Vec<String>,

    /// Key of a taint that --taint named before, so that it is removed with the cordon; repeatable
    #[arg(
        long,
        env = "EBBTIDE_FORMER_TAINT",
        value_name = "KEY",
        value_delimiter = ',',
        help_heading = "Marks on the Node"
    )]
    pub former_taint: Vec<String>,

    /// Exclude cordoned nodes from load balancers
    #[arg(
        long,
        env = "EBBTIDE_EXCLUDE_FROM_LOAD_BALANCERS",
        value_parser = BoolishValueParser::new(),
        help_heading = "Marks on the Node"
    )]
    pub exclude_from_load_balancers: bool,

    /// Set the out-of-service taint on the Nodes of stopped or terminated instances
    #[arg(
        long,
        env = "EBBTIDE_OUT_OF_SERVICE_TAINT",
        value_parser = BoolishValueParser::new(),
        help_heading = "Marks on the Node"
    )]
    pub out_of_service_taint: bool,

    /// When to undo a cordon that no interruption followed; 0s keeps cordons [default: 20m for rebalance=cordon]
    #[arg(long, env = "EBBTIDE_UNCORDON_AFTER", value_name = "DURATION", help_heading = "Marks on the Node")]
    pub uncordon_after: Option<String>,

    /// A taint or an annotation as the sign that another tool works on the node: a cordon that expires stays meanwhile, for 2 h at most;
    /// repeatable
    ///
    /// A value replaces the default, the signs of Karpenter, Cluster Autoscaler, medik8s, kured, and two operators that update nodes.
    #[arg(
        long,
        env = "EBBTIDE_KEEP_CORDON_WHILE",
        value_name = "KEY[=VALUE]",
        value_delimiter = ',',
        default_value = WORK_SIGNS,
        help_heading = "Marks on the Node"
    )]
    pub keep_cordon_while: Vec<String>,

    /// What to do with a terminating hook after a failed drain
    #[arg(
        long,
        env = "EBBTIDE_ON_FAILED_DRAIN",
        value_enum,
        value_name = "WHAT",
        default_value = "continue",
        help_heading = "Lifecycle hooks"
    )]
    pub on_failed_drain: OnFailed,

    /// What to do with a terminating hook if a user uncordons its Node during the drain
    #[arg(
        long,
        env = "EBBTIDE_ON_UNCORDON",
        value_enum,
        value_name = "WHAT",
        default_value = "leave",
        help_heading = "Lifecycle hooks"
    )]
    pub on_uncordon: OnUncordon,

    /// What to do with a launch hook whose Node is not Ready by the deadline
    #[arg(
        long,
        env = "EBBTIDE_ON_FAILED_LAUNCH",
        // A launch that has failed is not continued.
        value_parser = PossibleValuesParser::new(["abandon", "leave"]).try_map(|word| OnFailed::from_str(&word, false)),
        value_name = "WHAT",
        default_value = "leave",
        help_heading = "Lifecycle hooks"
    )]
    pub on_failed_launch: OnFailed,

    /// For asg-launch=ready, and for the new Node of replace: key of a taint that the Node must have lost; repeatable
    #[arg(
        long,
        env = "EBBTIDE_STARTUP_TAINT",
        value_name = "KEY",
        value_delimiter = ',',
        help_heading = "Lifecycle hooks"
    )]
    pub startup_taint: Vec<String>,

    /// When to send heartbeats: auto (if the drain may outlast the hook), off, or always at this interval
    #[arg(
        long,
        env = "EBBTIDE_HEARTBEAT",
        value_name = "auto|off|DURATION",
        default_value = "auto",
        help_heading = "Lifecycle hooks"
    )]
    pub heartbeat: String,

    /// Change nothing: the API server only validates cordons and evictions, and hooks get no calls; messages are deleted
    #[arg(long, env = "EBBTIDE_DRY_RUN", value_parser = BoolishValueParser::new(), help_heading = "Drain")]
    pub dry_run: bool,

    /// Events and conditions for Kubernetes.
    #[command(flatten)]
    pub reporting: Reporting,

    /// Notifications.
    #[command(flatten)]
    pub notifications: Notifications,

    /// Traces.
    #[command(flatten)]
    pub traces: Traces,

    /// Delete leaked Leases of deleted Nodes in kube-node-lease
    ///
    /// One replica at a time does this, so --pod-namespace and --pod-name are required.
    #[arg(long, env = "EBBTIDE_COLLECT_LEASES", value_parser = BoolishValueParser::new(), help_heading = "Housekeeping")]
    pub collect_leases: bool,

    /// The process's own servers.
    #[command(flatten)]
    pub servers: Servers,

    /// Format of the log
    #[arg(
        long,
        env = "EBBTIDE_LOG_FORMAT",
        value_enum,
        value_name = "FORMAT",
        default_value = "text",
        help_heading = "Process"
    )]
    pub log_format: LogFormat,

    /// Run the checks of ebbtide doctor once at the start and log problems
    #[arg(
        long,
        env = "EBBTIDE_CHECK_AT_START",
        value_parser = BoolishValueParser::new(),
        action = clap::ArgAction::Set,
        default_value = "true",
        help_heading = "Process"
    )]
    pub check_at_start: bool,

    /// Level of the log, or levels by module, such as info,ebbtide=debug
    #[arg(long, env = "EBBTIDE_LOG", value_name = "FILTER", default_value = "info", help_heading = "Process")]
    pub log: String,

    /// Namespace of Ebbtide's own pod, which is then the last to be evicted
    #[arg(long, env = "EBBTIDE_POD_NAMESPACE", value_name = "NAME", help_heading = "Process")]
    pub pod_namespace: Option<String>,

    /// Name of Ebbtide's own pod
    #[arg(long, env = "EBBTIDE_POD_NAME", value_name = "NAME", help_heading = "Process")]
    pub pod_name: Option<String>,
}
