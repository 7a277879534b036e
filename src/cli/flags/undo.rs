//! The flags of `ebbtide undo`.

use super::cluster::Cluster;
use crate::cli::output::Output;
use crate::pipeline::node::label::checked_key;
use clap::Args;

/// The flags of `ebbtide undo`.
#[derive(Args, Debug)]
pub struct Undo {
    /// Show what would be removed, and change nothing
    #[arg(long)]
    pub dry_run: bool,

    /// Only this Node; repeatable [default: all Nodes]
    #[arg(long, value_name = "NAME")]
    pub node: Vec<String>,

    /// Key of a taint that the service added, by its --taint; repeatable. Without it such a taint stays, and is named
    #[arg(long, value_name = "KEY", value_parser = checked_key)]
    pub taint_key: Vec<String>,

    /// Format of the output
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "table")]
    pub output: Output,

    /// Remove without a question
    #[arg(short, long)]
    pub yes: bool,

    /// The choice of a cluster.
    #[command(flatten)]
    pub cluster: Cluster,
}
