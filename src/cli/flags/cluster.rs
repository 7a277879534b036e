//! The flags that choose a cluster, of all commands that people run against one.

use clap::Args;
use std::path::PathBuf;

/// The choice of a cluster.
#[derive(Args, Clone, Debug, Default)]
pub struct Cluster {
    /// The kubeconfig [default: KUBECONFIG, or ~/.kube/config, or the pod's service account]
    #[arg(long, value_name = "FILE", help_heading = "Cluster")]
    pub kubeconfig: Option<PathBuf>,

    /// The context of the kubeconfig [default: the current one]
    #[arg(long, value_name = "NAME", help_heading = "Cluster")]
    pub context: Option<String>,
}
