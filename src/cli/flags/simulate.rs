//! The flags of `ebbtide simulate`: a message, and the flags of `ebbtide run`.

use super::borrowed::ServiceFlags;
use crate::pipeline::event::NoticeKind;
use clap::Args;
use std::path::PathBuf;

/// The flags of `ebbtide simulate`.
#[derive(Args, Debug)]
pub struct Simulate {
    /// A file with a message's body; - or no file for standard input
    #[arg(value_name = "FILE", help_heading = "Message")]
    pub file: Option<PathBuf>,

    /// Create a message of this kind for --node, instead of reading one
    #[arg(long, value_name = "KIND", value_enum, requires = "node", conflicts_with = "file", help_heading = "Message")]
    pub kind: Option<NoticeKind>,

    /// The Node of the created message
    #[arg(long, value_name = "NAME", requires = "kind", help_heading = "Message")]
    pub node: Option<String>,

    /// For a created lifecycle action, together with --hook: the Auto Scaling group [default: the instance's]
    #[arg(long, value_name = "NAME", requires = "kind", help_heading = "Message")]
    pub group: Option<String>,

    /// For a created lifecycle action, together with --group: its lifecycle hook [default: the first of the instance's group]
    #[arg(long, value_name = "NAME", requires = "kind", help_heading = "Message")]
    pub hook: Option<String>,

    /// The flags of the service, and those beside them.
    #[command(flatten)]
    pub borrowed: ServiceFlags,
}
