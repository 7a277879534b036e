//! The flags of `ebbtide status`.

use super::cluster::Cluster;
use crate::cli::output::Output;
use clap::Args;

/// The flags of `ebbtide status`.
#[derive(Args, Debug)]
pub struct Status {
    /// Address of a status page, as kubectl port-forward gives it
    #[arg(value_name = "ADDRESS", default_value = "127.0.0.1:8081", conflicts_with = "namespace")]
    pub address: String,

    /// Ask all replicas in this namespace, through the API server; the status page must be shared
    #[arg(short, long, value_name = "NAME")]
    pub namespace: Option<String>,

    /// With --namespace: the labels of the replicas' pods
    #[arg(
        short = 'l',
        long,
        value_name = "LABELS",
        default_value = "app.kubernetes.io/name=ebbtide",
        requires = "namespace",
        conflicts_with = "address"
    )]
    pub selector: String,

    /// With --namespace: the port of their status pages
    #[arg(long, value_name = "PORT", default_value_t = 8081, requires = "namespace", conflicts_with = "address")]
    pub port: u16,

    /// Format of the output
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "table", conflicts_with = "watch")]
    pub output: Output,

    /// Show it again every second, until Ctrl-C
    #[arg(short, long)]
    pub watch: bool,

    /// Show all interruptions that are known, not only those of the last hour
    #[arg(long)]
    pub all: bool,

    /// The choice of a cluster.
    #[command(flatten)]
    pub cluster: Cluster,
}
