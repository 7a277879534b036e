//! The flags that `ebbtide doctor` and `ebbtide simulate` share: they ask about the service with the service's own flags.

use super::Run;
use super::cluster::Cluster;
use crate::cli::output::Output;
use clap::Args;

/// The service's flags, and how the answer about them is shown.
#[derive(Args, Debug)]
pub struct ServiceFlags {
    /// Format of the output
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "table")]
    pub output: Output,

    /// The choice of a cluster.
    #[command(flatten)]
    pub cluster: Cluster,

    /// The flags of `ebbtide run`.
    #[command(flatten)]
    pub run: Run,
}
