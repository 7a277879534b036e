//! Clients as their own tools would make them: AWS from its environment, Kubernetes from KUBECONFIG or the pod's service account.
//!
//! Retries of the SDKs are off: there is one layer of them, ours, which sees the deadline. All clients of AWS share one HTTP client.

mod cluster;
mod credentials;
mod http;
mod retry_after;

pub use http::BadVariable;
pub use retry_after::kube_client;

use crate::clock::Clock;
use aws_config::Region;
use aws_config::imds::region::ImdsRegionProvider;
use aws_config::meta::region::ProvideRegion;
use aws_config::profile::ProfileFileRegionProvider;
use aws_config::retry::RetryConfig;
use aws_config::stalled_stream_protection::StalledStreamProtectionConfig;
use aws_config::{BehaviorVersion, SdkConfig};
use aws_smithy_async::rt::sleep::TokioSleep;
use std::env;
use std::time::Duration;

/// A connection is made within this, or another one is tried.
const CONNECT: Duration = Duration::from_secs(5);

/// A watch is told something every minute, if only a bookmark; one that is silent for longer is dead.
const WATCH_SILENCE: Duration = Duration::from_secs(100);

/// The clients of all that the service talks to.
#[derive(Clone)]
pub struct Clients {
    /// SQS.
    pub sqs: aws_sdk_sqs::Client,
    /// Auto Scaling.
    pub autoscaling: aws_sdk_autoscaling::Client,
    /// EC2.
    pub ec2: aws_sdk_ec2::Client,
    /// CloudWatch, for the doctor.
    pub cloudwatch: aws_sdk_cloudwatch::Client,
    /// EventBridge, for the doctor.
    pub eventbridge: aws_sdk_eventbridge::Client,
    /// STS, for the doctor.
    pub sts: aws_sdk_sts::Client,
    /// The API server, for calls.
    pub kube: kube::Client,
    /// The API server, for watches: connections of their own, which calls don't wait for.
    pub watches: kube::Client,
}

/// Why there are no clients.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// AWS's region is not known.
    #[error("AWS's region is not known; set AWS_REGION to the queue's region")]
    NoRegion,
    /// The environment names a way to AWS that is none.
    #[error(transparent)]
    BadVariable(#[from] BadVariable),
    /// There is no way to the API server.
    #[error("no way to the API server: {0}; set KUBECONFIG, or run in a pod with a service account")]
    NoCluster(#[source] kube::config::InferConfigError),
    /// The API server's proxy is none. It is not repeated: it may hold a password.
    #[error(
        "the API server's proxy can't be used; write it as http://HOST:PORT, in HTTPS_PROXY or as the kubeconfig's proxy-url"
    )]
    BadClusterProxy,
    /// The way to the API server is of no use.
    #[error("the settings for the API server can't be used: {0}; check KUBECONFIG, or the pod's service account")]
    BadCluster(#[source] kube::Error),
}

/// Makes all clients. No service is called yet. `near` is the region to be in where neither the environment nor a profile names one.
///
/// # Errors
/// When nothing says where AWS or the API server are.
pub async fn clients(clock: Clock, near: Option<String>) -> Result<Clients, ConnectError> {
    let clients = clients_without_region(clock, near).await?;
    if clients.sqs.config().region().is_some() { Ok(clients) } else { Err(ConnectError::NoRegion) }
}

/// The same for those who need no answer from AWS: without a region every call to it fails, and says so.
///
/// # Errors
/// When the environment does not say where the API server is.
pub async fn clients_without_region(clock: Clock, near: Option<String>) -> Result<Clients, ConnectError> {
    let http = http::client(variable)?;
    let config = aws_config::defaults(BehaviorVersion::latest()).http_client(http).time_source(clock);
    let config = credentials::named(config.region(region(near).await).load().await);
    let (kube, watches) = kube_clients().await?;
    Ok(aws_clients(&config, kube, watches))
}

/// The region that the environment or a profile names; else `near`; else that of the instance. It comes last because asking for it
/// takes seconds where there is no answer, and a queue knows better in any case.
async fn region(near: Option<String>) -> Option<Region> {
    // Charts set what they have no value for to nothing.
    let named = ["AWS_REGION", "AWS_DEFAULT_REGION"].iter().find_map(|name| variable(name).filter(|it| !it.is_empty()));
    if named.is_some() {
        return named.map(Region::new);
    }
    // A profile may have a region that is nothing, too.
    let profile = ProfileFileRegionProvider::new().region().await.filter(|region| !region.as_ref().is_empty());
    match (profile, near) {
        (Some(profile), _) => Some(profile),
        (None, Some(near)) => Some(Region::new(near)),
        (None, None) => ImdsRegionProvider::builder().build().region().await,
    }
}

/// A variable that is not ours: all programs that go through a proxy read these.
#[allow(clippy::disallowed_methods, reason = "these are no settings of ours, as little as those that the SDKs read")]
fn variable(name: &str) -> Option<String> {
    env::var(name).ok()
}

/// AWS's clients with our ways of retrying and waiting, whatever `config` says of them.
#[must_use]
pub fn aws_clients(config: &SdkConfig, kube: kube::Client, watches: kube::Client) -> Clients {
    let config = config
        .to_builder()
        .retry_config(RetryConfig::disabled())
        // Answers are small, and every call has a timeout of its own.
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        .sleep_impl(TokioSleep::new())
        .build();
    Clients {
        sqs: aws_sdk_sqs::Client::new(&config),
        autoscaling: aws_sdk_autoscaling::Client::new(&config),
        ec2: aws_sdk_ec2::Client::new(&config),
        cloudwatch: aws_sdk_cloudwatch::Client::new(&config),
        eventbridge: aws_sdk_eventbridge::Client::new(&config),
        sts: aws_sdk_sts::Client::new(&config),
        kube,
        watches,
    }
}

/// Two clients for the API server: one for calls, and one for watches, with connections of their own.
async fn kube_clients() -> Result<(kube::Client, kube::Client), ConnectError> {
    let mut calls = kube::Config::infer().await.map_err(ConnectError::NoCluster)?;
    calls.proxy_url = http::to_api_server(calls.proxy_url.take(), &calls.cluster_url, variable);
    calls.default_retry = false;
    calls.connect_timeout = Some(CONNECT);
    let mut watches = calls.clone();
    watches.read_timeout = Some(WATCH_SILENCE);
    let client = |config| {
        cluster::client(config).map_err(|error| match error {
            kube::Error::ProxyProtocolUnsupported { .. } | kube::Error::ProxyProtocolDisabled { .. } => {
                ConnectError::BadClusterProxy
            }
            error => ConnectError::BadCluster(error),
        })
    };
    Ok((client(calls)?, client(watches)?))
}
