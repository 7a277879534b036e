//! The arguments of `ebbtide migrate`.

use clap::Args;
use std::path::PathBuf;

/// The arguments of `ebbtide migrate`.
#[derive(Args, Debug)]
pub struct Migrate {
    /// Values file of aws-node-termination-handler's chart; - or no file for standard input
    #[arg(value_name = "VALUES")]
    pub values: Option<PathBuf>,

    /// Write the values to this file; an existing one is kept, and that is an error
    #[arg(long, value_name = "FILE")]
    pub output_file: Option<PathBuf>,

    /// Fail if a value was lost or differs
    #[arg(long)]
    pub strict: bool,
}
