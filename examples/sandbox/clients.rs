//! The service's settings and clients. Nothing is read from the environment: the sandbox is the same on every machine.

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_credential_types::Credentials;
use aws_credential_types::provider::SharedCredentialsProvider;
use clap::{CommandFactory, FromArgMatches};
use ebbtide::cli::Settings;
use ebbtide::cli::{Cli, Command};
use ebbtide::clients::connect::{Clients, aws_clients, kube_client};
use ebbtide::runtime::Clock;
use ebbtide_sim::aws::REGION;
use ebbtide_sim::loopback::Loopback;
use std::net::SocketAddr;

/// Returns the settings that `ebbtide run` would make of these flags, in the pod of this name.
pub fn settings(pod: &str, (admin, status): (SocketAddr, Option<SocketAddr>), flags: &[&str]) -> Settings {
    let (admin, status) = (admin.to_string(), status.map_or_else(|| "off".to_owned(), |status| status.to_string()));
    // The start-up checks examine the AWS set-up, and the sandbox has none.
    let mut words = vec!["ebbtide", "run", "--check-at-start=false"];
    words.extend(["--admin-address", &admin, "--status-address", &status]);
    // Replicas use these names to elect the one that acts on agent notices.
    words.extend(["--pod-namespace", "ebbtide", "--pod-name", pod]);
    let without_environment = Cli::command().mut_subcommand("run", |run| run.mut_args(|arg| arg.env(None::<&str>)));
    let matches = without_environment.get_matches_from(words.iter().chain(flags));
    let Command::Run(run) = Cli::from_arg_matches(&matches).expect("the flags must be the service's").command else {
        unreachable!("the first word is run")
    };
    Settings::from_flags(run).expect("the flags must be valid")
}

/// Builds real clients with the simulation's ports as endpoints.
pub fn on(loopback: &Loopback, clock: Clock) -> Clients {
    let credentials = Credentials::new("sandbox", "sandbox", None, None, "sandbox");
    let aws = SdkConfig::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new(REGION))
        .credentials_provider(SharedCredentialsProvider::new(credentials))
        .endpoint_url(&loopback.aws_url)
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .time_source(clock)
        .build();
    Clients { aws: aws_clients(&aws), kube: kube(loopback), watches: kube(loopback), webhook: None, collector: None }
}

fn kube(loopback: &Loopback) -> kube::Client {
    let mut config = kube::Config::new(loopback.kube_url.parse().expect("the simulation's URL must be one"));
    config.default_retry = false;
    // No TLS: the machine may have no certificates.
    config.root_cert = Some(Vec::new());
    kube_client(kube::client::ClientBuilder::try_from(config).expect("a client without TLS must start"))
}
