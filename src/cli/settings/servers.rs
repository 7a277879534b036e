//! The settings of the process's own servers.

use super::problems::Problems;
use crate::cli::flags::Servers;
use crate::telemetry::http::HostNames;
use std::net::SocketAddr;

/// Returns the addresses of probes and metrics, and of the status page, if there is one, and the host names of both.
pub(super) fn checked(problems: &mut Problems, flags: &Servers) -> (SocketAddr, Option<SocketAddr>, HostNames) {
    let admin = problems.address("--admin-address", &flags.admin_address);
    let status = &*flags.status_address;
    let status = (status != "off").then(|| problems.address("--status-address", status));
    (admin, status, host_names(problems, &flags.allowed_host))
}

/// Returns the host names of a server.
pub(super) fn host_names(problems: &mut Problems, names: &[String]) -> HostNames {
    HostNames::read(names).unwrap_or_else(|error| {
        problems.add("--allowed-host", error.to_string());
        HostNames::default()
    })
}

impl Problems {
    pub(super) fn address(&mut self, flag: &'static str, text: &str) -> SocketAddr {
        text.parse().unwrap_or_else(|_| {
            self.add(flag, format!("\"{text}\" is not an address; write IP:PORT, such as [::]:8080 or 127.0.0.1:8080"));
            SocketAddr::from(([0, 0, 0, 0], 0))
        })
    }

    pub(super) fn status_peers(&mut self, names: Vec<String>, has_pod_name: bool) -> Vec<String> {
        let is_name = |name: &&String| {
            name.rsplit_once(':').is_some_and(|(host, port)| {
                !host.is_empty() && !host.contains(['/', '@']) && port.parse::<u16>().is_ok_and(|port| port > 0)
            })
        };
        if let Some(wrong) = names.iter().find(|name| !is_name(name)) {
            let what = format!("\"{wrong}\" is not HOST:PORT; write such as ebbtide-status.ebbtide.svc:8081");
            self.add("--status-peers", what);
        } else if !names.is_empty() && !has_pod_name {
            self.add("--status-peers", "needs --pod-name, which distinguishes the replicas: set it, too");
        }
        names
    }
}
