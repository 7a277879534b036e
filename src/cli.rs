//! The command line: flags in groups, each with its environment variable. What they mean is checked in `settings`.

use clap::builder::FalseyValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};

/// Drains Kubernetes nodes before AWS takes them away.
#[derive(Debug, Parser)]
#[command(
    name = "ebbtide",
    version,
    about = "Drains Kubernetes nodes before AWS takes them away.",
    after_help = "AWS and Kubernetes are configured as their own tools are: AWS_REGION, AWS_ENDPOINT_URL, IRSA or Pod Identity; \
                  KUBECONFIG, or the pod's service account.",
    max_term_width = 110
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Read the queue and drain nodes, until told to end
    #[command(
        after_help = "Durations are written 30s, 5m, 1h30m. Lists in an environment variable are separated by commas.\n\
                            Exit codes: 0 after an ordered shutdown, 1 when it can't start, 2 for wrong settings, 3 when work was cut off, 4 after a bug."
    )]
    Run(Run),
}

/// The flags of `ebbtide run`.
#[derive(Args, Debug)]
pub struct Run {
    /// The SQS queue that EventBridge and lifecycle hooks send to; must be given
    #[arg(long, env = "EBBTIDE_QUEUE_URL", value_name = "URL", help_heading = "Queue")]
    pub queue_url: Option<String>,

    /// What a kind of notice leads to; may be given once for each kind
    ///
    /// Kinds: asg-terminate, asg-launch, spot, rebalance, state-change, scheduled-change, capacity-reservation. Actions: drain, cordon,
    /// report, ignore (for asg-launch: report, ignore). By default everything is drained, but rebalance=cordon and asg-launch=ignore. An
    /// action other than drain never touches the lifecycle hook.
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
        default_value = "Terminate-LC-Hook,Launch-LC-Hook",
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
    #[arg(long, env = "EBBTIDE_REQUIRE_TAG", value_parser = FalseyValueParser::new(), help_heading = "Notices")]
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

    /// How long a drain may take [default: what the notice allows; for a lifecycle hook its heartbeat timeout]
    ///
    /// For lifecycle hooks it may be longer than the hook's timeout: heartbeats keep the hook alive. For a rebalance recommendation or a
    /// scheduled change it replaces our own patience, an hour. Where AWS sets the time, it only shortens.
    #[arg(long, env = "EBBTIDE_DRAIN_TIMEOUT", value_name = "DURATION", help_heading = "Drain")]
    pub drain_timeout: Option<String>,

    /// The grace period for every pod [default: the pod's own]
    #[arg(long, env = "EBBTIDE_POD_GRACE", value_name = "DURATION", help_heading = "Drain")]
    pub pod_grace: Option<String>,

    /// When lifecycle hooks get heartbeats: auto (where the drain may outlast the hook), off, or always at an interval
    #[arg(
        long,
        env = "EBBTIDE_HEARTBEAT",
        value_name = "auto|off|DURATION",
        default_value = "auto",
        help_heading = "Drain"
    )]
    pub heartbeat: String,

    /// Change nothing: the API server checks cordons and evictions, hooks are left alone; messages are deleted
    #[arg(long, env = "EBBTIDE_DRY_RUN", value_parser = FalseyValueParser::new(), help_heading = "Drain")]
    pub dry_run: bool,

    /// Where to serve /metrics, /readyz and /healthz
    #[arg(
        long,
        env = "EBBTIDE_ADMIN_ADDRESS",
        value_name = "ADDRESS",
        default_value = "0.0.0.0:8080",
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

    /// What is logged: a level, or levels by module, such as info,ebbtide=debug
    #[arg(long, env = "EBBTIDE_LOG", value_name = "FILTER", default_value = "info", help_heading = "Process")]
    pub log: String,

    /// The namespace of the pod that this process runs in, so that it does not evict itself
    #[arg(long, env = "EBBTIDE_POD_NAMESPACE", value_name = "NAME", help_heading = "Process")]
    pub pod_namespace: Option<String>,

    /// The name of the pod that this process runs in
    #[arg(long, env = "EBBTIDE_POD_NAME", value_name = "NAME", help_heading = "Process")]
    pub pod_name: Option<String>,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}
