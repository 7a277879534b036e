//! The cluster that a command line chooses.

use crate::cli::flags::cluster::Cluster;
use crate::clients::connect::ClusterChoice;

/// Returns the choice of the command line.
#[must_use]
pub fn chosen(Cluster { kubeconfig, context }: Cluster) -> ClusterChoice {
    ClusterChoice { kubeconfig, context }
}
