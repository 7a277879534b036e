//! The flags that `ebbtide doctor` and `ebbtide simulate` share: they ask about the service with the service's own flags.

use super::Run;
use super::cluster::Cluster;
use crate::cli::output::Output;
use clap::{ArgAction, Args};

/// Name of the flag that shows the service's flags in the help, too.
pub const HELP_ALL: &str = "help-all";

/// The service's flags, and how the answer about them is shown.
#[derive(Args, Debug)]
pub struct ServiceFlags {
    /// Format of the output
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "table")]
    pub output: Output,

    /// Also show the service's flags; this command takes all of them
    #[arg(long = HELP_ALL, action = ArgAction::HelpLong)]
    pub help_all: Option<bool>,

    /// The choice of a cluster.
    #[command(flatten)]
    pub cluster: Cluster,

    /// The flags of `ebbtide run`.
    #[command(flatten)]
    pub run: Run,
}
