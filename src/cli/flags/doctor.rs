//! The flags of `ebbtide doctor`.

use super::Run;
use clap::{Args, ValueEnum};

/// The flags of `run`, whose set-up is checked, and the output format.
#[derive(Args, Debug)]
pub struct Doctor {
    /// The flags of `ebbtide run`.
    #[command(flatten)]
    pub run: Run,

    /// Format of the output
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "text", help_heading = "Doctor")]
    pub output: Output,
}

/// The format of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Text, for people: one line for each check, with its remedy below.
    Text,
    /// One JSON object.
    Json,
}
