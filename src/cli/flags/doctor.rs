//! The flags of `ebbtide doctor`.

use super::cluster::Cluster;
use super::{HELP_ALL, Run};
use crate::cli::output::Output;
use clap::{ArgAction, Args};

/// The flags of `run`, whose set-up is checked, and those of the doctor.
#[derive(Args, Debug)]
pub struct Doctor {
    /// Format of the output
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "table")]
    pub output: Output,

    /// Fail on warnings, too
    #[arg(long)]
    pub strict: bool,

    /// Show also the service's flags, all of which this command takes
    #[arg(long = HELP_ALL, action = ArgAction::HelpLong)]
    pub help_all: Option<bool>,

    /// The choice of a cluster.
    #[command(flatten)]
    pub cluster: Cluster,

    /// The flags of `ebbtide run`.
    #[command(flatten)]
    pub run: Run,
}
