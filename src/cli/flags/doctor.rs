//! The flags of `ebbtide doctor`.

use super::borrowed::Borrowed;
use clap::Args;

/// The flags of `ebbtide doctor`.
#[derive(Args, Debug)]
pub struct Doctor {
    /// Fail on warnings, too
    #[arg(long)]
    pub strict: bool,

    /// The flags of the service, and those that go with them.
    #[command(flatten)]
    pub borrowed: Borrowed,
}
