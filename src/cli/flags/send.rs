//! The flags of `ebbtide send`.

use super::cluster::Cluster;
use crate::cli::output::Output;
use crate::pipeline::event::NoticeKind;
use clap::Args;

/// The flags of `ebbtide send`.
#[derive(Args, Debug)]
pub struct Send {
    /// The kind of notice
    #[arg(long, value_name = "KIND", value_enum)]
    pub kind: NoticeKind,

    /// The Node of the message, which must have the annotation ebbtide/allow-test: "true"
    #[arg(long, value_name = "NAME")]
    pub node: String,

    /// The SQS queue that the service reads; required
    #[arg(long, env = "EBBTIDE_QUEUE_URL", value_name = "URL")]
    pub queue_url: Option<String>,

    /// For a lifecycle action, together with --hook: the Auto Scaling group [default: the instance's]
    #[arg(long, value_name = "NAME")]
    pub group: Option<String>,

    /// For a lifecycle action, together with --group: its lifecycle hook [default: the first of the instance's group]
    #[arg(long, value_name = "NAME")]
    pub hook: Option<String>,

    /// Format of the output
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "table")]
    pub output: Output,

    /// Send it without a question
    #[arg(short, long)]
    pub yes: bool,

    /// The choice of a cluster.
    #[command(flatten)]
    pub cluster: Cluster,
}
