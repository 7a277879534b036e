//! The command line: flags in groups, each with its environment variable. What they mean is checked in `settings`.

pub mod doctor;
pub mod explain;
pub mod migrate;
pub mod send;

use clap::builder::{BoolishValueParser, Resettable};
use clap::{Arg, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

/// The hooks of EKS's managed node groups, which EKS completes by itself.
pub const EKS_HOOKS: &str = "Terminate-LC-Hook,Launch-LC-Hook";

/// Drains Kubernetes nodes before AWS takes them away.
#[derive(Debug, Parser)]
#[command(
    name = "ebbtide",
    version,
    about = "Drains Kubernetes nodes before AWS takes them away.",
    after_help = "AWS and Kubernetes are configured as their own tools are: AWS_REGION, AWS_ENDPOINT_URL, HTTPS_PROXY, IRSA or Pod Identity; \
                  KUBECONFIG, or the pod's service account.",
    max_term_width = 110
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Reads the command line and the environment. A variable that is empty says as much as none: charts set them so. Ends the process
    /// where the command line is wrong, or asks for help.
    #[must_use]
    #[allow(clippy::disallowed_methods, reason = "whether a flag's variable is empty, clap does not tell")]
    pub fn read() -> Self {
        let filled = |arg: Arg| {
            let empty = arg.get_env().and_then(std::env::var_os).is_some_and(|value| value.is_empty());
            if empty { arg.env(Resettable::Reset) } else { arg }
        };
        let command = Self::command().mut_subcommands(|command| command.mut_args(filled));
        Self::from_arg_matches(&command.get_matches()).unwrap_or_else(|error| error.exit())
    }
}

/// What to do.
#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "there is one of them, for a moment")]
pub enum Command {
    /// Read the queue and drain nodes, until told to end
    #[command(
        after_help = "Durations are written 30s, 5m, 1h30m. Lists in an environment variable are separated by commas.\n\
                            Exit codes: 0 after an ordered shutdown, 1 when it can't start, 2 for wrong settings, 3 when work was cut off, 4 after a bug."
    )]
    Run(Run),
    /// Tell what would be done about a message, and change nothing
    #[command(
        after_help = "Takes the flags and the environment variables of the service whose decisions are explained, but no queue need be named; only reads.\n\
                            Exit codes: 0 when it is explained, also where nothing would be done; 1 when the cluster can't be read, 2 for wrong flags or a message that can't be read."
    )]
    Explain(Box<explain::Explain>),
    /// Put a test message on the queue, for a Node that allows it
    #[command(
        after_help = "The message is one as AWS would send it, and is handled as one: the Node is cordoned and drained. Uses the caller's credentials.\n\
                            Exit codes: 0 when it was sent, 1 when it was not, or when the output can't be written, 2 for wrong flags."
    )]
    Send(send::Send),

    /// Check that all is there that run needs, and say what to do where it is not; changes nothing
    #[command(after_help = "Exit codes: 0 when nothing failed, 1 when something did, 2 for wrong settings.")]
    Doctor(doctor::Doctor),
    /// Turn the values of aws-node-termination-handler's chart into those of Ebbtide's
    ///
    /// Ours go to standard output; what could not be carried over, and why, to standard error.
    #[command(
        after_help = "Exit codes: 0 when all was carried over, 1 when the output can't be written, 2 when the file is of no use, 3 when something was not carried over, or not as it was."
    )]
    Migrate(migrate::Migrate),
}

/// The flags of `ebbtide run`.
#[derive(Args, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct Run {
    /// The SQS queue that EventBridge and lifecycle hooks send to
    #[arg(long, env = "EBBTIDE_QUEUE_URL", value_name = "URL", help_heading = "Queue")]
    pub queue_url: Option<String>,

    /// What a kind of notice leads to; may be given once for each kind
    ///
    /// Kinds: asg-terminate, asg-launch, spot, rebalance, state-change, scheduled-change, capacity-reservation. Actions: drain, cordon,
    /// report, ignore (for asg-launch: ready, report, ignore). By default everything is drained, but rebalance=cordon and
    /// asg-launch=ignore. An action other than drain and ready never touches the lifecycle hook.
    #[arg(long, env = "EBBTIDE_ON", value_name = "KIND=ACTION", value_delimiter = ',', help_heading = "Notices")]
    pub on: Vec<String>,

    /// Leave this lifecycle hook alone: somebody else completes it; may be repeated
    ///
    /// Naming one replaces the default, EKS's own two.
    #[arg(
        long,
        env = "EBBTIDE_IGNORE_HOOK",
        value_name = "NAME",
        value_delimiter = ',',
        default_value = EKS_HOOKS,
        help_heading = "Notices"
    )]
    pub ignore_hook: Vec<String>,

    /// The tag that makes an instance without a Node this cluster's
    #[arg(
        long,
        env = "EBBTIDE_MANAGED_TAG",
        value_name = "KEY[=VALUE]",
        default_value = "aws-node-termination-handler/managed",
        help_heading = "Notices"
    )]
    pub managed_tag: String,

    /// Act only on instances that carry the managed tag, even if they have a Node here
    #[arg(long, env = "EBBTIDE_REQUIRE_TAG", value_parser = BoolishValueParser::new(), help_heading = "Notices")]
    pub require_tag: bool,

    /// How long a terminating instance of ours may take to register as a Node before its hook is completed
    #[arg(
        long,
        env = "EBBTIDE_REGISTRATION_GRACE",
        value_name = "DURATION",
        default_value = "30s",
        help_heading = "Notices"
    )]
    pub registration_grace: String,

    /// Act only on Nodes whose labels match, such as pool=spot,zone!=a
    #[arg(long, env = "EBBTIDE_NODE_SELECTOR", value_name = "SELECTOR", help_heading = "Notices")]
    pub node_selector: Option<String>,

    /// How long a drain may take, for all kinds or for one [default: what the notice allows; for a hook its timeout]
    ///
    /// May be given once for all, and once for each kind. For lifecycle hooks it may be longer than the hook's timeout: heartbeats keep the hook alive. For a rebalance recommendation or a
    /// scheduled change it replaces our own patience, an hour. Where AWS sets the time, it only shortens.
    #[arg(
        long,
        env = "EBBTIDE_DRAIN_TIMEOUT",
        value_name = "[KIND=]DURATION",
        value_delimiter = ',',
        help_heading = "Drain"
    )]
    pub drain_timeout: Vec<String>,

    /// Let so much time go by after a notice of this kind before pods are evicted; the node is cordoned at once; may be repeated
    #[arg(long, env = "EBBTIDE_DELAY", value_name = "KIND=DURATION", value_delimiter = ',', help_heading = "Drain")]
    pub delay: Vec<String>,

    /// What becomes of pods that could not be evicted when a hard deadline is near
    ///
    /// A hard deadline is one at which the node's capacity goes. delete: the pod is deleted while its grace period still fits before the
    /// deadline. leave: it is left, and dies with the node.
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

    /// Evict only pods that match, as kubectl drain --pod-selector
    #[arg(long, env = "EBBTIDE_POD_SELECTOR", value_name = "SELECTOR", help_heading = "Drain")]
    pub pod_selector: Option<String>,

    /// Leave pods with an emptyDir volume, which kubectl drain evicts only with --delete-emptydir-data
    #[arg(long, env = "EBBTIDE_KEEP_EMPTY_DIR", value_parser = BoolishValueParser::new(), help_heading = "Drain")]
    pub keep_empty_dir: bool,

    /// Leave pods without a controller, which kubectl drain evicts only with --force
    #[arg(long, env = "EBBTIDE_KEEP_UNMANAGED", value_parser = BoolishValueParser::new(), help_heading = "Drain")]
    pub keep_unmanaged: bool,

    /// Heed karpenter.sh/do-not-disrupt: "true" and cluster-autoscaler.kubernetes.io/safe-to-evict: "false" on pods until a hard
    /// deadline is near
    #[arg(long, env = "EBBTIDE_RESPECT_DO_NOT_DISRUPT", value_parser = BoolishValueParser::new(), help_heading = "Drain")]
    pub respect_do_not_disrupt: bool,

    /// The grace period for every pod [default: the pod's own]
    #[arg(long, env = "EBBTIDE_POD_GRACE", value_name = "DURATION", help_heading = "Drain")]
    pub pod_grace: Option<String>,

    /// Set this taint with the cordon; may be repeated
    #[arg(
        long,
        env = "EBBTIDE_TAINT",
        value_name = "KEY[=VALUE]:EFFECT",
        value_delimiter = ',',
        help_heading = "Marks on the Node"
    )]
    pub taint: Vec<String>,

    /// Keep load balancers from sending traffic to a cordoned node
    #[arg(
        long,
        env = "EBBTIDE_EXCLUDE_FROM_LOAD_BALANCERS",
        value_parser = BoolishValueParser::new(),
        help_heading = "Marks on the Node"
    )]
    pub exclude_from_load_balancers: bool,

    /// Taint the Node of a stopped or terminated instance so that its pods can be moved, once EC2 says that it is
    #[arg(
        long,
        env = "EBBTIDE_OUT_OF_SERVICE_TAINT",
        value_parser = BoolishValueParser::new(),
        help_heading = "Marks on the Node"
    )]
    pub out_of_service_taint: bool,

    /// When a cordon that no interruption followed is taken back; 0s keeps it [default: 20m for rebalance=cordon]
    #[arg(long, env = "EBBTIDE_UNCORDON_AFTER", value_name = "DURATION", help_heading = "Marks on the Node")]
    pub uncordon_after: Option<String>,

    /// What becomes of a terminating hook when its drain did not succeed by the deadline
    #[arg(
        long,
        env = "EBBTIDE_ON_FAILED_DRAIN",
        value_enum,
        value_name = "WHAT",
        default_value = "continue",
        help_heading = "Lifecycle hooks"
    )]
    pub on_failed_drain: OnFailedDrain,

    /// What becomes of a launch hook when its node is not Ready by the deadline
    #[arg(
        long,
        env = "EBBTIDE_ON_FAILED_LAUNCH",
        value_enum,
        value_name = "WHAT",
        default_value = "leave",
        help_heading = "Lifecycle hooks"
    )]
    pub on_failed_launch: OnFailedLaunch,

    /// Hold a hook's completion back for so long after the drain, for load balancers that still send traffic
    #[arg(long, env = "EBBTIDE_COMPLETE_AFTER", value_name = "DURATION", help_heading = "Lifecycle hooks")]
    pub complete_after: Option<String>,

    /// For asg-launch=ready: a taint, by its key, that the node must have lost; may be repeated
    #[arg(
        long,
        env = "EBBTIDE_STARTUP_TAINT",
        value_name = "KEY",
        value_delimiter = ',',
        help_heading = "Lifecycle hooks"
    )]
    pub startup_taint: Vec<String>,

    /// When lifecycle hooks get heartbeats: auto (where the drain may outlast the hook), off, or always at an interval
    #[arg(
        long,
        env = "EBBTIDE_HEARTBEAT",
        value_name = "auto|off|DURATION",
        default_value = "auto",
        help_heading = "Lifecycle hooks"
    )]
    pub heartbeat: String,

    /// Change nothing: the API server checks cordons and evictions, hooks are left alone; messages are deleted
    #[arg(long, env = "EBBTIDE_DRY_RUN", value_parser = BoolishValueParser::new(), help_heading = "Drain")]
    pub dry_run: bool,

    /// Which drains Kubernetes Events and a condition of the Node tell of
    ///
    /// blocked: those that are held back for 5 s, with by whom and until when. all: each, from its beginning.
    #[arg(
        long,
        env = "EBBTIDE_EVENTS",
        value_enum,
        value_name = "WHICH",
        default_value = "blocked",
        hide_possible_values = true,
        help_heading = "Telling"
    )]
    pub events: Events,

    /// Delete Leases in kube-node-lease whose Nodes are gone, and which nothing else collects
    ///
    /// One replica at a time does it, so --pod-namespace and --pod-name must be given.
    #[arg(long, env = "EBBTIDE_COLLECT_LEASES", value_parser = BoolishValueParser::new(), help_heading = "Housekeeping")]
    pub collect_leases: bool,

    /// Where to serve /metrics, /readyz and /healthz
    #[arg(
        long,
        env = "EBBTIDE_ADMIN_ADDRESS",
        value_name = "ADDRESS",
        default_value = "[::]:8080",
        help_heading = "Process"
    )]
    pub admin_address: String,

    /// How log lines look
    #[arg(
        long,
        env = "EBBTIDE_LOG_FORMAT",
        value_enum,
        value_name = "FORMAT",
        default_value = "text",
        help_heading = "Process"
    )]
    pub log_format: LogFormat,

    /// Whether the checks of ebbtide doctor are made once at the start, and what they find is logged
    #[arg(
        long,
        env = "EBBTIDE_CHECK_AT_START",
        value_parser = BoolishValueParser::new(),
        action = clap::ArgAction::Set,
        value_name = "true|false",
        default_value = "true",
        help_heading = "Process"
    )]
    pub check_at_start: bool,

    /// What is logged: a level, or levels by module, such as info,ebbtide=debug
    #[arg(long, env = "EBBTIDE_LOG", value_name = "FILTER", default_value = "info", help_heading = "Process")]
    pub log: String,

    /// The namespace of the pod that this process runs in, so that it evicts itself last
    #[arg(long, env = "EBBTIDE_POD_NAMESPACE", value_name = "NAME", help_heading = "Process")]
    pub pod_namespace: Option<String>,

    /// The name of the pod that this process runs in
    #[arg(long, env = "EBBTIDE_POD_NAME", value_name = "NAME", help_heading = "Process")]
    pub pod_name: Option<String>,
}

/// What becomes of pods that a hard deadline finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AtDeadline {
    /// They are deleted with their grace period while that fits.
    Delete,
    /// They are left.
    Leave,
}

/// What becomes of a terminating hook whose drain failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnFailedDrain {
    /// It is completed with CONTINUE.
    Continue,
    /// It is completed with ABANDON, which skips the group's other hooks, and may keep the instance.
    Abandon,
    /// It is left to its own timeout.
    Leave,
}

/// What becomes of a launch hook whose node is not Ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnFailedLaunch {
    /// It is completed with ABANDON: the instance is terminated.
    Abandon,
    /// It is left to its own timeout.
    Leave,
}

/// Which drains Events tell of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Events {
    /// Those that are blocked.
    Blocked,
    /// All.
    All,
    /// None.
    None,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}
