//! The arguments of `ebbtide migrate`.

use clap::Args;

/// The arguments of `ebbtide migrate`.
#[derive(Args, Debug)]
pub struct Migrate {
    /// The values file of aws-node-termination-handler's chart; - is standard input
    #[arg(value_name = "VALUES", default_value = "-")]
    pub values: String,
}
