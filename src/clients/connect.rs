//! Clients as their own tools would make them: AWS from its environment, Kubernetes from KUBECONFIG or the pod's service account.
//!
//! Retries of the SDKs are off: there is one layer of them, ours, which sees the deadline. All clients of AWS share one HTTP client;
//! only who asks the instance for its region has one of its own.

mod cluster;
mod credentials;
mod http;
mod kubeconfig;
mod program;
mod retry_after;

pub use http::BadVariable;
pub use kubeconfig::BadKubeconfig;
pub use program::BadProgram;
pub use retry_after::kube_client;

use crate::runtime::clock::Clock;
use aws_config::Region;
use aws_config::imds::region::ImdsRegionProvider;
use aws_config::meta::region::ProvideRegion;
use aws_config::profile::ProfileFileRegionProvider;
use aws_config::retry::RetryConfig;
use aws_config::stalled_stream_protection::StalledStreamProtectionConfig;
use aws_config::{BehaviorVersion, SdkConfig};
use aws_smithy_async::rt::sleep::TokioSleep;
use aws_smithy_types::base64;
use program::Program;
use std::env;
use std::sync::Arc;
use std::time::Duration;
use tokio::join;

/// A connection is made within this, or another one is tried.
const CONNECT: Duration = Duration::from_secs(5);

/// A watch is told something every minute, if only a bookmark; one that is silent for longer is dead.
const WATCH_SILENCE: Duration = Duration::from_secs(100);

/// The clients of all that the service talks to.
#[derive(Clone)]
pub struct Clients {
    /// AWS.
    pub aws: Aws,
    /// The API server, for calls.
    pub kube: kube::Client,
    /// The API server, for watches: connections of their own, which calls don't wait for.
    pub watches: kube::Client,
}

/// The clients of AWS's services.
#[derive(Clone)]
pub struct Aws {
    /// SQS.
    pub sqs: aws_sdk_sqs::Client,
    /// Auto Scaling.
    pub autoscaling: aws_sdk_autoscaling::Client,
    /// EC2.
    pub ec2: aws_sdk_ec2::Client,
    /// EventBridge, for the doctor.
    pub eventbridge: aws_sdk_eventbridge::Client,
    /// STS, for the doctor.
    pub sts: aws_sdk_sts::Client,
}

impl Aws {
    /// The region that it is asked in.
    #[must_use]
    pub fn region(&self) -> Option<&str> {
        self.sqs.config().region().map(AsRef::as_ref)
    }
}

/// Both sides, each for itself: where there is no way to one, the doctor looks at the other.
pub struct Ways {
    /// AWS, in a region that is known.
    pub aws: Result<Aws, ConnectError>,
    /// The API server, for calls.
    pub kube: Result<kube::Client, ConnectError>,
}

impl From<Clients> for Ways {
    fn from(clients: Clients) -> Self {
        Self { aws: Ok(clients.aws), kube: Ok(clients.kube) }
    }
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
    #[error(
        "no way to the API server: there is no kubeconfig, and as a pod: {0}; set KUBECONFIG, or run in a pod with a service account"
    )]
    NoCluster(#[source] kube::config::InClusterError),
    /// There is a kubeconfig, and it leads nowhere.
    #[error(transparent)]
    Kubeconfig(#[from] BadKubeconfig),
    /// The kubeconfig's program gives no credentials.
    #[error(transparent)]
    Program(#[from] BadProgram),
    /// The API server's proxy is none. It is not repeated: it may hold a password.
    #[error("the kubeconfig's proxy-url names no proxy; write it as http://HOST:PORT")]
    BadClusterProxy,
    /// The way to the API server is of no use.
    #[error("the settings for the API server can't be used: {0}; check KUBECONFIG, or the pod's service account")]
    BadCluster(String),
}

/// Makes all clients. No service is called yet. `near` is the region to be in where neither the environment nor a profile names one.
///
/// # Errors
/// When nothing says where AWS or the API server are, or what says so leads nowhere.
pub async fn clients(clock: Clock, near: Option<String>) -> Result<Clients, ConnectError> {
    let aws = in_a_region(aws(clock, near).await?)?;
    let (kube, watches) = kube_clients(clock).await?;
    Ok(Clients { aws, kube, watches })
}

/// The same for those who need no answer from AWS: without a region every call to it fails, and says so.
///
/// # Errors
/// When there is no way to the API server. And when a variable names a proxy or an endpoint that is none, even where AWS is asked
/// nothing: its SDK can't be given such a thing.
pub async fn clients_without_region(clock: Clock, near: Option<String>) -> Result<Clients, ConnectError> {
    let aws = aws(clock, near).await?;
    let (kube, watches) = kube_clients(clock).await?;
    Ok(Clients { aws, kube, watches })
}

/// Makes the clients of each side, as far as there is a way to it.
pub async fn ways(clock: Clock, near: Option<String>) -> Ways {
    let (aws, kube) = join!(Box::pin(aws(clock, near)), Box::pin(kube_clients(clock)));
    Ways { aws: aws.and_then(in_a_region), kube: kube.map(|(kube, _)| kube) }
}

async fn aws(clock: Clock, near: Option<String>) -> Result<Aws, ConnectError> {
    let http = http::client(variable)?;
    let config = aws_config::defaults(BehaviorVersion::latest()).http_client(http).time_source(clock);
    Ok(aws_clients(&credentials::named(config.region(region(near).await).load().await)))
}

fn in_a_region(aws: Aws) -> Result<Aws, ConnectError> {
    if aws.region().is_some() { Ok(aws) } else { Err(ConnectError::NoRegion) }
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
pub fn aws_clients(config: &SdkConfig) -> Aws {
    let config = config
        .to_builder()
        .retry_config(RetryConfig::disabled())
        // Answers are small, and every call has a timeout of its own.
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        .sleep_impl(TokioSleep::new())
        .build();
    Aws {
        sqs: aws_sdk_sqs::Client::new(&config),
        autoscaling: aws_sdk_autoscaling::Client::new(&config),
        ec2: aws_sdk_ec2::Client::new(&config),
        eventbridge: aws_sdk_eventbridge::Client::new(&config),
        sts: aws_sdk_sts::Client::new(&config),
    }
}

/// Two clients for the API server: one for calls, and one for watches, with connections of their own.
async fn kube_clients(clock: Clock) -> Result<(kube::Client, kube::Client), ConnectError> {
    let kubeconfig::Way { config: mut calls, by_kubeconfig, proxy } = kubeconfig::way(variable).await?;
    let proxy = if by_kubeconfig { http::to_api_server(proxy, &calls.cluster_url, variable)? } else { None };
    calls.default_retry = false;
    calls.connect_timeout = Some(CONNECT);
    let program = ask_program(&mut calls, clock).await?;
    let mut watches = calls.clone();
    watches.read_timeout = Some(WATCH_SILENCE);
    let client = |config| {
        let client = cluster::client(config, proxy.as_ref(), program.clone());
        client.map_err(|error| ConnectError::BadCluster(kubeconfig::unusable(error)))
    };
    Ok((client(calls)?, client(watches)?))
}

/// Asks the kubeconfig's program for credentials, where nothing else says who we are.
async fn ask_program(config: &mut kube::Config, clock: Clock) -> Result<Option<Arc<Program>>, ConnectError> {
    let who = &mut config.auth_info;
    let Some(exec) = who.exec.take() else { return Ok(None) };
    let known = who.password.is_some() || who.token.is_some() || who.token_file.is_some();
    if known || who.auth_provider.is_some() {
        return Ok(None);
    }
    let (program, pair) = Program::start(exec, clock).await?;
    if let Some((certificate, key)) = pair {
        who.client_certificate_data = Some(base64::encode(certificate));
        who.client_key_data = Some(base64::encode(key).into());
    }
    Ok(Some(Arc::new(program)))
}
