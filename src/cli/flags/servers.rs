//! The flags of the process's own servers: probes and metrics, and the status page.

use clap::Args;

/// The process's own servers.
#[derive(Args, Clone, Debug)]
pub struct Servers {
    /// Address of `/metrics`, `/readyz` and `/healthz`; `[::]` is all addresses, IPv4 included
    #[arg(
        long,
        env = "EBBTIDE_ADMIN_ADDRESS",
        value_name = "ADDRESS",
        default_value = "[::]:8080",
        help_heading = "Process"
    )]
    pub admin_address: String,

    /// Address of the status page, or `off`
    ///
    /// The page shows what is being drained, to anyone who can reach the address. It changes nothing.
    #[arg(
        long,
        env = "EBBTIDE_STATUS_ADDRESS",
        value_name = "ADDRESS|off",
        default_value = "127.0.0.1:8081",
        help_heading = "Process"
    )]
    pub status_address: String,

    /// Address of the other replicas' status pages, whose work this page shows, too: `HOST:PORT` of a headless Service of all replicas, or of each
    /// replica; repeatable. Needs `--pod-name`
    ///
    /// `--status-address` must be one that the other replicas reach.
    #[arg(
        long,
        env = "EBBTIDE_STATUS_PEERS",
        value_name = "HOST:PORT",
        value_delimiter = ',',
        help_heading = "Process"
    )]
    pub status_peers: Vec<String>,

    /// Another host name under which clients may ask for metrics or the status page, such as that of an Ingress, `NAME` or `*.DOMAIN`; repeatable
    ///
    /// Addresses, names without a dot, `*.svc` and `*.cluster.local` are always answered; any other host is refused, so that no foreign site in a
    /// browser can read the answers.
    #[arg(long, env = "EBBTIDE_ALLOWED_HOST", value_name = "HOST", value_delimiter = ',', help_heading = "Process")]
    pub allowed_host: Vec<String>,
}
