//! The command line: flags in groups, each with its environment variable. `settings` checks their values.

mod admission;
pub mod agent;
pub mod borrowed;
pub mod cluster;
pub mod completion;
pub mod doctor;
pub mod migrate;
pub mod notify;
mod pool;
mod reporting;
pub mod send;
mod servers;
pub mod simulate;
mod source;
pub mod status;
mod traces;
pub mod undo;
mod values;
mod waits;

pub use admission::Admission;
pub use notify::Notifications;
pub use pool::PoolFlag;
pub use reporting::Reporting;
pub use servers::Servers;
pub use source::{Source, Sources};
pub use traces::Traces;
pub use values::{EKS_HOOKS, LogFormat, MAX_DRAIN, Problem, ValueError, WORK_SIGNS, at_most, up_to};
pub use waits::Waits;

use crate::pipeline::drain::AtDeadline;
use crate::pipeline::interruption::{Heartbeats, OnFailed, OnUncordon};
use crate::pipeline::node::ManagedTag;
use crate::pipeline::node::label::{self, KeyPattern, Selector, Taint, checked_key};
use crate::telemetry::log_filter;
use clap::builder::{BoolishValueParser, PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::time::Duration;
use tracing_subscriber::filter::Targets;
use values::{cluster_name, heartbeats, managed_tag, poll_interval, priority, taint, text, value, zero_up_to};

/// Maximum grace period of a pod. Kubernetes allows any, but more than a day is a typing error.
const MAX_POD_GRACE: Duration = Duration::from_hours(24);

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
    /// Write what the instance's metadata announces to annotations of its Node, until a signal ends the process
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
    /// Remove what is left on Nodes after the service has been uninstalled: cordons, taints, labels, annotations
    #[command(
        after_help = "Refuses while the service or an agent runs. Asks before; --dry-run shows everything and changes nothing. Uses the caller's credentials.\n\
                            Exit codes: 0 if nothing is left, or with --dry-run; 1 if a Node could not be changed or something still runs, 2 for wrong flags."
    )]
    Undo(undo::Undo),
    /// Send a test of each notification that the settings ask for, and print the receiver's answers
    Notify(notify::Notify),
    /// Convert values of aws-node-termination-handler's chart to values of Ebbtide's chart
    ///
    /// Writes the values to standard output or a file, and remarks on values that differ or are lost to standard error.
    #[command(
        after_help = "Exit codes: 0 with values, 1 if they can't be written, 2 if the file is not a values file; with --strict 3 if a value was lost or differs."
    )]
    Migrate(migrate::Migrate),
    /// Write what a shell completes: load it by `source <(ebbtide completion bash)`
    #[command(after_help = "Exit codes: 0, or 1 if the output can't be written, 2 for another shell.")]
    Completion(completion::Completion),
}

/// The flags of `ebbtide run`.
#[derive(Args, Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct Run {
    /// The sources of notices.
    #[command(flatten)]
    pub sources: Sources,

    /// Action for each kind of notice, as `KIND=ACTION`; once per kind [default: `drain`, but `rebalance=cordon`, `asg-launch=ignore` and
    /// `status-check=report`]
    ///
    /// Kinds: `asg-terminate`, `asg-launch`, `spot`, `rebalance`, `state-change`, `scheduled-change`, `capacity-reservation`, and `status-check`
    /// with `--ec2-poll-interval`; for conditions of Nodes (`node-condition`) use `--on-condition`. Actions: `drain`, `replace` (not for `spot`
    /// and `state-change`), `reboot` (only for `status-check`), `cordon`, `report`, `ignore`; for `asg-launch` `ready`, `report`, `ignore`. Only
    /// `drain`, `replace` and `ready` touch lifecycle hooks. With `replace` the Auto Scaling group first launches another node.
    #[arg(
        long,
        env = "EBBTIDE_ON",
        value_parser = text,
        value_name = "KIND=ACTION",
        value_delimiter = ',',
        help_heading = "Notices",
    )]
    pub on: Vec<String>,

    /// Action for a fault of an instance that AWS Health reports, as `CODE=ACTION`, by the code of the event: `drain`, `replace`, `cordon` or
    /// `report`; repeatable [default: faults are ignored]
    ///
    /// Such events need an EventBridge rule of their own, for the category `issue`.
    #[arg(
        long,
        env = "EBBTIDE_HEALTH_ISSUE",
        value_parser = text,
        value_name = "CODE=ACTION",
        value_delimiter = ',',
        help_heading = "Notices"
    )]
    pub health_issue: Vec<String>,

    /// Lifecycle hooks that other controllers complete; repeatable
    ///
    /// A value replaces the default, the two hooks of EKS.
    #[arg(
        long,
        env = "EBBTIDE_IGNORE_HOOK",
        value_name = "HOOK",
        value_delimiter = ',',
        default_value = EKS_HOOKS,
        help_heading = "Notices"
    )]
    pub ignore_hook: Vec<String>,

    /// EC2 tag that this cluster's instances carry, its key alone or with a value
    #[arg(
        long,
        env = "EBBTIDE_MANAGED_TAG",
        value_parser = value(managed_tag),
        value_name = "TAG[=VALUE]",
        default_value = "aws-node-termination-handler/managed",
        help_heading = "Notices"
    )]
    pub managed_tag: ManagedTag,

    /// Name of this cluster, as in the tags `kubernetes.io/cluster/NAME`, `eks:cluster-name` or `aws:eks:cluster-name` of its instances [default:
    /// from the tags of a Node's instance]
    #[arg(
        long,
        env = "EBBTIDE_CLUSTER_NAME",
        value_parser = value(cluster_name),
        value_name = "NAME",
        help_heading = "Notices",
    )]
    pub cluster_name: Option<String>,

    /// Require the managed tag also on instances that have a Node here; costs a question to EC2 for each
    #[arg(long, env = "EBBTIDE_REQUIRE_TAG", value_parser = BoolishValueParser::new(), help_heading = "Notices")]
    pub require_tag: bool,

    /// Time to wait for the Node of a terminating instance before its hook is completed; other kinds wait until their deadline
    #[arg(
        long,
        env = "EBBTIDE_REGISTRATION_GRACE",
        value_parser = value(up_to(MAX_DRAIN)),
        value_name = "DURATION",
        default_value = "30s",
        help_heading = "Notices"
    )]
    pub registration_grace: Duration,

    /// Interval between polls of EC2, `1m` to `1h`, such as `5m`. They find scheduled changes, ends of Capacity Blocks and failing status checks
    /// that no message announced [default: never]
    ///
    /// EventBridge may lose events. Needs `ec2:DescribeInstanceStatus` and `ec2:DescribeCapacityReservations`.
    #[arg(
        long,
        env = "EBBTIDE_EC2_POLL_INTERVAL",
        value_parser = value(poll_interval),
        value_name = "DURATION",
        help_heading = "Notices",
    )]
    pub ec2_poll_interval: Option<Duration>,

    /// Act only on Nodes whose labels match, such as `pool=spot,zone!=a` [default: all Nodes]
    #[arg(
        long,
        env = "EBBTIDE_NODE_SELECTOR",
        value_parser = value(label::selector),
        value_name = "SELECTOR",
        help_heading = "Notices",
    )]
    pub node_selector: Option<Selector>,

    /// Pool of Nodes with settings of its own, as `NAME;node-selector=SELECTOR;FLAG=VALUE`, with as many flags as differ; repeatable, in the
    /// variable one a line. The first pool that selects a Node counts
    ///
    /// A flag is `on`, `drain-timeout`, `delay`, `hold`, `wave`, `when`, `at-deadline`, `at-timeout`, `pod-grace`, `surge`, `uncordon-after`,
    /// `on-failed-drain`, `on-uncordon` or `complete-after`. What a pool does not set is as for all Nodes.
    #[arg(
        long,
        env = "EBBTIDE_POOL",
        value_parser = value(pool::pool),
        value_name = "POOL",
        value_delimiter = '\n',
        help_heading = "Notices",
    )]
    pub pool: Vec<PoolFlag>,

    /// Maximum duration of a drain, at most 48h, for all kinds or for one [default: the time that AWS sets; for a lifecycle hook its timeout, or
    /// `15m` if that is longer, plus the remaining grace periods; otherwise `1h`]
    ///
    /// May be set for all kinds, and for each kind. For lifecycle hooks it may exceed the hook's timeout, because heartbeats keep the hook
    /// alive. AWS sets no time for a rebalance recommendation, a condition, a failing status check, and a termination that only a Node reports;
    /// for a scheduled change, whose start may be weeks ahead, the default is `1h`, too. If AWS sets the time, this can only shorten it.
    #[arg(
        long,
        env = "EBBTIDE_DRAIN_TIMEOUT",
        value_parser = text,
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

    /// When to act on a scheduled change: `now`, or this long before its start, at most 30 days, such as `scheduled-change=2h-before`.
    /// Retirements are always acted on at once [default: now]
    #[arg(
        long,
        env = "EBBTIDE_WHEN",
        value_parser = text,
        value_name = "KIND=now|DURATION-before",
        value_delimiter = ',',
        help_heading = "Drain"
    )]
    pub when: Vec<String>,

    /// What to do with pods that could not be evicted shortly before a hard deadline, at which the node's capacity ends: `delete` them while
    /// their grace period fits, or `leave` them
    ///
    /// `delete` also shortens the grace periods of terminating pods that would end too late.
    #[arg(
        long,
        env = "EBBTIDE_AT_DEADLINE",
        value_enum,
        value_name = "WHAT",
        default_value = "delete",
        help_heading = "Drain"
    )]
    pub at_deadline: AtDeadline,

    /// What to do with pods that could not be evicted when the time of a drain ends but the node's capacity does not, as for repairs and rebalance
    /// recommendations: `leave` them, so that the drain has failed, or `delete` them in time for their grace periods, as before a hard
    /// deadline; for all kinds or for one [default: `leave`]
    ///
    /// Without it a budget can hold up a repair for ever. Not while a lifecycle hook waits.
    #[arg(
        long,
        env = "EBBTIDE_AT_TIMEOUT",
        value_parser = text,
        value_name = "[KIND=]leave|delete",
        value_delimiter = ',',
        help_heading = "Drain"
    )]
    pub at_timeout: Vec<String>,

    /// Also evict pods of DaemonSets, once each, after all others
    #[arg(long, env = "EBBTIDE_EVICT_DAEMONSETS", value_parser = BoolishValueParser::new(), help_heading = "Drain")]
    pub evict_daemonsets: bool,

    /// Priority from which a tier of pods begins; repeatable. Lower tiers are evicted first, each when those before it are gone, or when its
    /// share of the time begins. Without `2000000000` critical pods leave with others
    ///
    /// Each tier with pods has an equal share of the time that is left. A pod below all tiers belongs to the first.
    #[arg(
        long,
        env = "EBBTIDE_PRIORITY_TIER",
        value_parser = value(priority),
        value_name = "PRIORITY",
        value_delimiter = ',',
        allow_negative_numbers = true,
        default_value = "0,2000000000",
        help_heading = "Drain"
    )]
    pub priority_tier: Vec<i32>,

    /// Evict only pods that match this label selector [default: all pods]
    #[arg(
        long,
        env = "EBBTIDE_POD_SELECTOR",
        value_parser = value(label::selector),
        value_name = "SELECTOR",
        help_heading = "Drain",
    )]
    pub pod_selector: Option<Selector>,

    /// Don't evict pods with an emptyDir volume, which `kubectl drain` evicts only with `--delete-emptydir-data`
    #[arg(long, env = "EBBTIDE_KEEP_EMPTY_DIR", value_parser = BoolishValueParser::new(), help_heading = "Drain")]
    pub keep_empty_dir: bool,

    /// Don't evict pods without a controller, which `kubectl drain` evicts only with `--force`
    #[arg(long, env = "EBBTIDE_KEEP_UNMANAGED", value_parser = BoolishValueParser::new(), help_heading = "Drain")]
    pub keep_unmanaged: bool,

    /// Don't evict pods with the annotation `karpenter.sh/do-not-disrupt`, or `cluster-autoscaler.kubernetes.io/safe-to-evict: "false"`, until
    /// shortly before a hard deadline
    ///
    /// The value of the first may also be a duration from the pod's start, such as `30m`.
    #[arg(
        long,
        env = "EBBTIDE_RESPECT_DO_NOT_DISRUPT",
        value_parser = BoolishValueParser::new(),
        help_heading = "Drain",
    )]
    pub respect_do_not_disrupt: bool,

    /// Grace period of every eviction, 1s to 24h [default: the pod's own]
    #[arg(
        long,
        env = "EBBTIDE_POD_GRACE",
        value_parser = value(up_to(MAX_POD_GRACE)),
        value_name = "DURATION",
        help_heading = "Drain",
    )]
    pub pod_grace: Option<Duration>,

    /// Maximum time, at most 48h, for which a pod waits for its new pod: a Deployment all of whose ready pods are on nodes that are being drained
    /// is first restarted, as by `kubectl rollout restart` [default: no Deployment is restarted]
    ///
    /// So a single replica leaves no gap. Only if the new pod can come before the old one leaves: the strategy is `RollingUpdate`, its `maxSurge`
    /// is not 0, and its `maxUnavailable` is less than the number of replicas. Needs the right to patch Deployments.
    #[arg(
        long,
        env = "EBBTIDE_SURGE",
        value_parser = value(up_to(MAX_DRAIN)),
        value_name = "DURATION",
        help_heading = "Drain",
    )]
    pub surge: Option<Duration>,

    /// Taint that is set and removed with the cordon; repeatable. With `NoExecute` Kubernetes evicts pods regardless of budgets
    #[arg(
        long,
        env = "EBBTIDE_TAINT",
        value_parser = value(taint),
        value_name = "KEY[=VALUE]:EFFECT",
        value_delimiter = ',',
        help_heading = "Marks on the Node"
    )]
    pub taint: Vec<Taint>,

    /// Key of a taint that an earlier `--taint` set, so that Ebbtide removes it with the cordon; repeatable
    #[arg(
        long,
        env = "EBBTIDE_FORMER_TAINT",
        value_parser = value(checked_key),
        value_name = "KEY",
        value_delimiter = ',',
        help_heading = "Marks on the Node"
    )]
    pub former_taint: Vec<String>,

    /// Keep external load balancers away from cordoned nodes, by the label `node.kubernetes.io/exclude-from-external-load-balancers`
    #[arg(
        long,
        env = "EBBTIDE_EXCLUDE_FROM_LOAD_BALANCERS",
        value_parser = BoolishValueParser::new(),
        help_heading = "Marks on the Node"
    )]
    pub exclude_from_load_balancers: bool,

    /// Set the out-of-service taint on the Nodes of stopped or terminated instances, so that their pods move
    #[arg(
        long,
        env = "EBBTIDE_OUT_OF_SERVICE_TAINT",
        value_parser = BoolishValueParser::new(),
        help_heading = "Marks on the Node"
    )]
    pub out_of_service_taint: bool,

    /// Time after which Ebbtide undoes a cordon that no interruption followed, at most 48h; `0s` keeps cordons [default: `20m` for
    /// `rebalance=cordon`; else never]
    #[arg(
        long,
        env = "EBBTIDE_UNCORDON_AFTER",
        value_parser = value(zero_up_to(MAX_DRAIN)),
        value_name = "DURATION",
        help_heading = "Marks on the Node",
    )]
    pub uncordon_after: Option<Duration>,

    /// Taint or annotation that shows that another tool works on the node; repeatable. While it is there, an expired cordon stays, for up to 2
    /// h. A value replaces the default [default: those of Karpenter, Cluster Autoscaler, kured, Flatcar, OpenShift and medik8s]
    #[arg(
        long,
        env = "EBBTIDE_KEEP_CORDON_WHILE",
        value_name = "KEY[=VALUE]",
        value_delimiter = ',',
        default_value = WORK_SIGNS,
        hide_default_value = true,
        help_heading = "Marks on the Node"
    )]
    pub keep_cordon_while: Vec<String>,

    /// What to do with a terminating hook after a failed drain: `continue`, `abandon` or `leave`
    #[arg(
        long,
        env = "EBBTIDE_ON_FAILED_DRAIN",
        value_enum,
        value_name = "WHAT",
        default_value = "continue",
        help_heading = "Lifecycle hooks"
    )]
    pub on_failed_drain: OnFailed,

    /// What to do with a terminating hook when a user uncordons its Node during the drain: `leave` it, or `at-deadline`: keep it alive until its
    /// deadline, then as after a failed drain
    #[arg(
        long,
        env = "EBBTIDE_ON_UNCORDON",
        value_enum,
        value_name = "WHAT",
        default_value = "leave",
        help_heading = "Lifecycle hooks"
    )]
    pub on_uncordon: OnUncordon,

    /// What to do with a launch hook when its Node is not Ready by the deadline: `abandon` or `leave`
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

    /// Taint that a new Node must lose before it counts as ready, for `asg-launch=ready` and the action `replace`: its key, or a prefix of keys,
    /// such as `readiness.k8s.io/*`; repeatable
    #[arg(
        long,
        env = "EBBTIDE_STARTUP_TAINT",
        value_parser = value(label::key_pattern),
        value_name = "KEY|PREFIX*",
        value_delimiter = ',',
        help_heading = "Lifecycle hooks"
    )]
    pub startup_taint: Vec<KeyPattern>,

    /// When to send heartbeats: `auto`, if the drain may outlast the hook; `off`; or always at this interval
    ///
    /// An interval is from 5s to less than 2h; Ebbtide shortens it if a hook's timeout requires that. With `off` the drain ends within that
    /// timeout.
    #[arg(
        long,
        env = "EBBTIDE_HEARTBEAT",
        value_parser = value(heartbeats),
        value_name = "auto|off|DURATION",
        default_value = "auto",
        help_heading = "Lifecycle hooks"
    )]
    pub heartbeat: Heartbeats,

    /// Change nothing: the API server only validates cordons and evictions, and hooks get no calls. Messages are still deleted, so give a dry
    /// run a queue of its own
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
    /// One replica at a time does this, so `--pod-namespace` and `--pod-name` are required.
    #[arg(
        long,
        env = "EBBTIDE_COLLECT_LEASES",
        value_parser = BoolishValueParser::new(),
        help_heading = "Leftovers",
    )]
    pub collect_leases: bool,

    /// Delete Nodes of terminated instances
    ///
    /// For clusters without a cloud controller, which does that itself. One replica at a time does this, so `--pod-namespace` and `--pod-name`
    /// are required.
    #[arg(long, env = "EBBTIDE_COLLECT_NODES", value_parser = BoolishValueParser::new(), help_heading = "Leftovers")]
    pub collect_nodes: bool,

    /// The process's own servers.
    #[command(flatten)]
    pub servers: Servers,

    /// Format of the log: `text` or `json`
    #[arg(
        long,
        env = "EBBTIDE_LOG_FORMAT",
        value_enum,
        value_name = "FORMAT",
        default_value = "text",
        help_heading = "Process"
    )]
    pub log_format: LogFormat,

    /// Run the checks of `ebbtide doctor` once at the start and log problems
    #[arg(
        long,
        env = "EBBTIDE_CHECK_AT_START",
        value_parser = BoolishValueParser::new(),
        action = clap::ArgAction::Set,
        default_value = "true",
        help_heading = "Process"
    )]
    pub check_at_start: bool,

    /// Level of the log, or levels by module, such as `info,ebbtide=debug`, which logs every call and eviction
    #[arg(
        long,
        env = "EBBTIDE_LOG",
        value_parser = value(log_filter::parse),
        value_name = "FILTER",
        default_value = "info",
        help_heading = "Process",
    )]
    pub log: Targets,

    /// Namespace of Ebbtide's own pod, which is then the last to be evicted
    #[arg(long, env = "EBBTIDE_POD_NAMESPACE", value_parser = text, value_name = "NAME", help_heading = "Process")]
    pub pod_namespace: Option<String>,

    /// Name of Ebbtide's own pod
    #[arg(long, env = "EBBTIDE_POD_NAME", value_parser = text, value_name = "NAME", help_heading = "Process")]
    pub pod_name: Option<String>,

    /// The values that their flags have refused.
    #[arg(skip)]
    pub refused: Vec<Problem>,
}
