//! The flags of `ebbtide agent`.

use super::LogFormat;
use super::cluster::Cluster;
use super::values::{Problem, value};
use crate::telemetry::log_filter;
use clap::Args;
use tracing_subscriber::filter::Targets;

/// The flags of `ebbtide agent`.
#[derive(Args, Debug)]
#[allow(clippy::doc_markdown, reason = "the help shows addresses as they are written")]
pub struct Agent {
    /// The Node that the agent runs on, from the downward API
    #[arg(long, env = "EBBTIDE_NODE_NAME", value_name = "NAME")]
    pub node_name: String,

    /// The instance metadata service.
    // The address in the help would be a link here.
    #[arg(
        long,
        env = "EBBTIDE_METADATA_ENDPOINT",
        value_name = "URL",
        default_value = "http://169.254.169.254",
        help = "The instance metadata service, such as http://[fd00:ec2::254] over IPv6"
    )]
    pub metadata_endpoint: String,

    /// Address of /metrics, /healthz and /readyz, or off
    #[arg(long, env = "EBBTIDE_AGENT_ADDRESS", value_name = "ADDRESS|off", default_value = "[::]:8080")]
    pub agent_address: String,

    /// Another host name under which clients may ask for metrics, or *.DOMAIN; repeatable
    #[arg(long, env = "EBBTIDE_ALLOWED_HOST", value_name = "NAME", value_delimiter = ',')]
    pub allowed_host: Vec<String>,

    /// Format of the log
    #[arg(long, env = "EBBTIDE_LOG_FORMAT", value_enum, value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,

    /// Level of the log, or levels by module
    #[arg(
        long,
        env = "EBBTIDE_LOG",
        value_parser = value(log_filter::parse),
        value_name = "FILTER",
        default_value = "info",
    )]
    pub log: Targets,

    /// The choice of a cluster.
    #[command(flatten)]
    pub cluster: Cluster,

    /// The values that their flags have refused.
    #[arg(skip)]
    pub refused: Vec<Problem>,
}
