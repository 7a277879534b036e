//! The flags of `ebbtide doctor`.

use super::Run;
use clap::{Args, ValueEnum};

/// Those of `run`, whose set-up is looked at, and how the findings are shown.
#[derive(Args, Debug)]
pub struct Doctor {
    /// The flags of `ebbtide run`.
    #[command(flatten)]
    pub run: Run,

    /// How the findings are shown
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "text", help_heading = "Doctor")]
    pub output: Output,
}

/// How the findings are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people: one line for each check, and what to do below it.
    Text,
    /// One JSON object.
    Json,
}
