//! The flags of `ebbtide doctor`.

use super::borrowed::ServiceFlags;
use clap::Args;

/// The flags of `ebbtide doctor`.
#[derive(Args, Debug)]
pub struct Doctor {
    /// Fail on warnings, too
    #[arg(long)]
    pub strict: bool,

    /// The flags of the service, and those beside them.
    #[command(flatten)]
    pub borrowed: ServiceFlags,
}
