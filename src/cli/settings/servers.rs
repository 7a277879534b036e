//! The settings of the process's own servers.

use super::problems::Problems;
use std::net::SocketAddr;

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
