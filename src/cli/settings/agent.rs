//! The settings of `ebbtide agent`, validated.

use super::problems::Problems;
use super::servers::host_names;
use super::{SettingsError, flags};
use crate::telemetry::http::HostNames;
use http::Uri;
use std::net::SocketAddr;
use tracing_subscriber::filter::Targets;

/// The settings of `ebbtide agent`.
#[derive(Clone, Debug)]
pub struct AgentSettings {
    /// The Node that the agent runs on.
    pub node_name: String,
    /// The instance metadata service.
    pub metadata_endpoint: Uri,
    /// The address of `/metrics` and `/healthz`, if there is one.
    pub address: Option<SocketAddr>,
    /// Host names under which clients may ask for metrics.
    pub host_names: HostNames,
    /// The filter of the log.
    pub log: Targets,
}

impl AgentSettings {
    /// Validates the flags.
    ///
    /// # Errors
    /// All problems.
    pub fn from_flags(flags: &flags::agent::Agent) -> Result<Self, SettingsError> {
        let mut problems = Problems::of(flags.refused.clone());
        let node_name = flags.node_name.trim().to_owned();
        let is_name = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.');
        if node_name.is_empty() || !node_name.bytes().all(is_name) {
            let what = format!("\"{node_name}\" is no Node's name; set it from the downward API, spec.nodeName");
            problems.add("--node-name", what);
        }
        let endpoint = flags.metadata_endpoint.trim_end_matches('/').parse::<Uri>().unwrap_or_default();
        let has_path = !matches!(endpoint.path(), "" | "/");
        if endpoint.scheme_str() != Some("http") || endpoint.host().is_none_or(str::is_empty) || has_path {
            let what =
                "names no metadata service; write it as http://169.254.169.254, or http://[fd00:ec2::254] for IPv6";
            problems.add("--metadata-endpoint", what);
        }
        let address = (flags.agent_address != "off").then(|| problems.address("--agent-address", &flags.agent_address));
        let host_names = host_names(&mut problems, &flags.allowed_host);
        problems.end()?;
        Ok(Self { node_name, metadata_endpoint: endpoint, address, host_names, log: flags.log.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};

    fn read(flags: &[&str]) -> Result<AgentSettings, String> {
        let Command::Agent(flags) = Cli::of(["ebbtide", "agent"].iter().chain(flags)).unwrap().command else {
            panic!("it must be agent")
        };
        AgentSettings::from_flags(&flags).map_err(|problems| problems.to_string())
    }

    #[test]
    fn each_endpoint_is_an_address_of_http() {
        let node = ["--node-name", "ip-10-0-0-1.eu-west-1.compute.internal"];
        let endpoint = |url| read(&[&node[..], &["--metadata-endpoint", url]].concat());
        assert_eq!(read(&node).unwrap().metadata_endpoint.to_string(), "http://169.254.169.254/");
        for url in ["http://[fd00:ec2::254]", "http://127.0.0.1:1338/"] {
            endpoint(url).unwrap();
        }
        for url in ["", "169.254.169.254", "https://169.254.169.254", "http://host/latest"] {
            assert!(endpoint(url).unwrap_err().starts_with("--metadata-endpoint: "), "{url}");
        }
        assert!(read(&["--node-name", "a/b"]).unwrap_err().starts_with("--node-name: "));
        assert_eq!(read(&[&node[..], &["--agent-address", "off"]].concat()).unwrap().address, None);
        let wrong = read(&[&node[..], &["--allowed-host", "a.example,a:8080"]].concat()).unwrap_err();
        assert!(wrong.starts_with("--allowed-host: \"a:8080\" is no host name"), "{wrong}");
    }
}
