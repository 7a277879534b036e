//! The clients, configured as their own tools are: AWS by its environment, Kubernetes by KUBECONFIG or the pod's service account.
//!
//! The SDKs do not retry, but once with new credentials where AWS calls those of the call expired: only Ebbtide's callers retry, because
//! they know their deadline. All AWS clients share one HTTP client, and
//! so does the lookup of the region in the instance's metadata.

mod cluster;
mod credentials;
mod http;
mod kubeconfig;
mod program;
mod renewal;
mod retry_after;

pub use http::{BadVariable, is_proxy};
pub use kubeconfig::BadKubeconfig;
pub use program::BadProgram;
pub use retry_after::kube_client;

use crate::runtime::clock::Clock;
use aws_config::Region;
use aws_config::imds::region::ImdsRegionProvider;
use aws_config::meta::region::ProvideRegion;
use aws_config::profile::ProfileFileRegionProvider;
use aws_config::provider_config::ProviderConfig;
use aws_config::retry::RetryConfig;
use aws_config::stalled_stream_protection::StalledStreamProtectionConfig;
use aws_config::{BehaviorVersion, SdkConfig};
use aws_smithy_async::rt::sleep::TokioSleep;
use aws_smithy_runtime_api::client::http::{SharedHttpClient, SharedHttpConnector};
use aws_smithy_types::base64;
use kubeconfig::ClusterAccess;
use program::{ClientCertificate, Program};
use renewal::Renewal;
use std::env;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::join;

/// Timeout of one attempt to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout of a connection to the instance metadata service, on the machine itself.
const METADATA_TIMEOUT: Duration = Duration::from_secs(1);

/// Timeout of reads from a watch. A live one sends something every minute, if only a bookmark.
const WATCH_READ_TIMEOUT: Duration = Duration::from_secs(100);

/// The clients of AWS and of the API server.
#[derive(Clone)]
pub struct Clients {
    /// AWS.
    pub aws: AwsClients,
    /// The API server, for calls.
    pub kube: kube::Client,
    /// The API server, for watches. They have connections of their own, so that calls don't wait for them.
    pub watches: kube::Client,
    /// The receiver of notifications, if there is one.
    pub webhook: Option<SharedHttpConnector>,
    /// The collector of traces, if there is one.
    pub collector: Option<SharedHttpConnector>,
}

/// The clients of AWS's services.
#[derive(Clone)]
pub struct AwsClients {
    /// SQS.
    pub sqs: aws_sdk_sqs::Client,
    /// Auto Scaling.
    pub autoscaling: aws_sdk_autoscaling::Client,
    /// EC2.
    pub ec2: aws_sdk_ec2::Client,
    /// Elastic Load Balancing, version 2.
    pub elb: aws_sdk_elasticloadbalancingv2::Client,
    /// EventBridge, for the doctor.
    pub eventbridge: aws_sdk_eventbridge::Client,
    /// STS, for the doctor.
    pub sts: aws_sdk_sts::Client,
}

impl AwsClients {
    /// Returns the region of all calls.
    #[must_use]
    pub fn region(&self) -> Option<&str> {
        self.sqs.config().region().map(AsRef::as_ref)
    }
}

/// The clients that could be made: if one side is not configured, the doctor checks the other.
pub struct AvailableClients {
    /// AWS, in a known region.
    pub aws: Result<AwsClients, ConnectError>,
    /// The API server, for calls.
    pub kube: Result<kube::Client, ConnectError>,
}

impl From<Clients> for AvailableClients {
    fn from(clients: Clients) -> Self {
        Self { aws: Ok(clients.aws), kube: Ok(clients.kube) }
    }
}

/// The choice of a cluster: the default is the environment's.
#[derive(Clone, Debug, Default)]
pub struct ClusterChoice {
    /// The kubeconfig.
    pub kubeconfig: Option<PathBuf>,
    /// The kubeconfig's context.
    pub context: Option<String>,
}

/// The reason why there are no clients.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// AWS's region is not known.
    #[error("AWS's region is not known; set AWS_REGION to the region of the nodes and the queue")]
    NoRegion,
    /// The settings ask for no call to AWS.
    #[error("AWS is not called with --source nodes alone; nothing is to be done about it")]
    NotCalled,
    /// A variable of the environment names no proxy or no endpoint.
    #[error(transparent)]
    BadVariable(#[from] BadVariable),
    /// There is neither a kubeconfig nor a service account.
    #[error(
        "no way to the API server: there is no kubeconfig, and as a pod: {0}; set KUBECONFIG, or run in a pod with a service account"
    )]
    NoCluster(#[source] kube::config::InClusterError),
    /// The kubeconfig can't be read or used.
    #[error(transparent)]
    Kubeconfig(#[from] BadKubeconfig),
    /// The kubeconfig's program gives no credentials.
    #[error(transparent)]
    Program(#[from] BadProgram),
    /// The kubeconfig's proxy is not a proxy. It is not repeated: it may contain a password.
    #[error("the kubeconfig's proxy-url names no proxy; write it as http://HOST:PORT")]
    BadClusterProxy,
    /// No client can be made of the settings for the API server.
    #[error("the settings for the API server can't be used: {0}; check KUBECONFIG, or the pod's service account")]
    BadCluster(String),
}

/// Makes all clients, without a call to a service. `default_region` is used if neither the environment nor a profile names a region.
///
/// # Errors
/// When AWS or the API server is not configured, or wrongly.
pub async fn clients(
    clock: Clock,
    default_region: Option<String>,
    cluster: &ClusterChoice,
) -> Result<Clients, ConnectError> {
    let aws = in_a_region(aws(clock, default_region).await?)?;
    let (kube, watches) = kube_clients(clock, cluster).await?;
    Ok(Clients { aws, kube, watches, webhook: None, collector: None })
}

/// Makes the clients of the API server. Those of AWS have neither credentials nor a connection: a call fails before it leaves.
///
/// # Errors
/// When the API server is not configured, or wrongly.
pub async fn clients_without_aws(clock: Clock, cluster: &ClusterChoice) -> Result<Clients, ConnectError> {
    let (kube, watches) = kube_clients(clock, cluster).await?;
    let nothing = SdkConfig::builder().behavior_version(BehaviorVersion::latest()).build();
    Ok(Clients { aws: aws_clients(&nothing), kube, watches, webhook: None, collector: None })
}

/// Makes all clients, even without a region: then every call to AWS fails.
///
/// # Errors
/// When the API server is not configured, or wrongly; or when a variable names no proxy or no endpoint, which the AWS SDK does not
/// accept.
pub(crate) async fn clients_without_region(
    clock: Clock,
    default_region: Option<String>,
    cluster: &ClusterChoice,
) -> Result<Clients, ConnectError> {
    let aws = aws(clock, default_region).await?;
    let (kube, watches) = kube_clients(clock, cluster).await?;
    Ok(Clients { aws, kube, watches, webhook: None, collector: None })
}

/// Makes the clients of each side for itself; those of AWS only if it is called.
pub async fn available_clients(
    clock: Clock,
    default_region: Option<String>,
    cluster: &ClusterChoice,
    calls_aws: bool,
) -> AvailableClients {
    if !calls_aws {
        return AvailableClients { aws: Err(ConnectError::NotCalled), kube: cluster_client(clock, cluster).await };
    }
    let (aws, kube) = join!(Box::pin(aws(clock, default_region)), Box::pin(kube_clients(clock, cluster)));
    AvailableClients { aws: aws.and_then(in_a_region), kube: kube.map(|(kube, _)| kube) }
}

/// Makes the client of the API server alone, for calls.
///
/// # Errors
/// When the API server is not configured, or wrongly.
pub async fn cluster_client(clock: Clock, cluster: &ClusterChoice) -> Result<kube::Client, ConnectError> {
    kube_clients(clock, cluster).await.map(|(kube, _)| kube)
}

/// Makes a client of the instance metadata service at this address: plain HTTP, without credentials, a proxy or certificates.
///
/// # Errors
/// When no client can be made of the address.
pub fn metadata_client(endpoint: ::http::Uri) -> Result<kube::Client, ConnectError> {
    let mut config = kube::Config::new(endpoint);
    config.connect_timeout = Some(METADATA_TIMEOUT);
    config.default_retry = false;
    // Not even those of the system, which take a megabyte.
    config.root_cert = Some(Vec::new());
    cluster::client(config, None, None).map_err(|error| ConnectError::BadCluster(error.to_string()))
}

/// Returns the name of the chosen context; `None` without a kubeconfig that can be read.
#[must_use]
pub fn context(cluster: &ClusterChoice) -> Option<String> {
    cluster.context.clone().or_else(|| kubeconfig::current_context(cluster, variable))
}

/// Makes a client for a receiver of the user's, through `proxy` or else through the environment's.
///
/// # Errors
/// When this is no proxy, or a variable names none.
pub fn webhook(proxy: Option<&str>) -> Result<SharedHttpConnector, ConnectError> {
    Ok(http::webhook(proxy, CONNECT_TIMEOUT, variable)?)
}

async fn aws(clock: Clock, default_region: Option<String>) -> Result<AwsClients, ConnectError> {
    let http = http::client(variable)?;
    let config = aws_config::defaults(BehaviorVersion::latest()).http_client(http.clone()).time_source(clock);
    let region = region(default_region, http).await;
    Ok(aws_clients(&credentials::naming_profiles(config.region(region).load().await)))
}

fn in_a_region(aws: AwsClients) -> Result<AwsClients, ConnectError> {
    if aws.region().is_some() { Ok(aws) } else { Err(ConnectError::NoRegion) }
}

/// Returns the region that the environment or a profile names, or else `default_region`, or else that of the instance. The instance
/// comes last: without an answer the lookup takes seconds, and the queue's region is right in any case.
async fn region(default_region: Option<String>, http: SharedHttpClient) -> Option<Region> {
    // Charts set variables without a value to the empty string.
    let named = ["AWS_REGION", "AWS_DEFAULT_REGION"].iter().find_map(|name| variable(name).filter(|it| !it.is_empty()));
    if named.is_some() {
        return named.map(Region::new);
    }
    // A profile's region may be empty as well.
    let profile = ProfileFileRegionProvider::new().region().await.filter(|region| !region.as_ref().is_empty());
    match (profile, default_region) {
        (Some(profile), _) => Some(profile),
        (None, Some(default)) => Some(Region::new(default)),
        (None, None) => instance_region(http).await,
    }
}

/// Returns the region in the instance's metadata. The SDK's own HTTP client is not built in.
async fn instance_region(http: SharedHttpClient) -> Option<Region> {
    let provider = ProviderConfig::default().with_http_client(http);
    ImdsRegionProvider::builder().configure(&provider).build().region().await
}

/// Returns a variable that is no setting of Ebbtide: all programs behind a proxy read these.
#[allow(
    clippy::disallowed_methods,
    reason = "these variables are no settings of Ebbtide, like those that the SDKs read"
)]
fn variable(name: &str) -> Option<String> {
    env::var(name).ok()
}

/// Makes the AWS clients, which share their credentials and retry only with new ones; the retries of `config` don't count.
#[must_use]
pub fn aws_clients(config: &SdkConfig) -> AwsClients {
    let renewal = Renewal::new();
    let config = config
        .to_builder()
        .retry_config(RetryConfig::standard().with_max_attempts(renewal::ATTEMPTS))
        .identity_cache(renewal.clone())
        // Answers are small, and every call has a timeout.
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        .sleep_impl(TokioSleep::new())
        // The time source is corrected already: a second correction would sign at a wrong time.
        .disable_clock_skew_correction(true)
        .build();
    macro_rules! client {
        ($sdk:ident) => {{
            let config = $sdk::config::Builder::from(&config).retry_classifier(renewal.clone());
            $sdk::Client::from_conf(config.build())
        }};
    }
    AwsClients {
        sqs: client!(aws_sdk_sqs),
        autoscaling: client!(aws_sdk_autoscaling),
        ec2: client!(aws_sdk_ec2),
        elb: client!(aws_sdk_elasticloadbalancingv2),
        eventbridge: client!(aws_sdk_eventbridge),
        sts: client!(aws_sdk_sts),
    }
}

/// Makes two clients for the API server: for calls, and for watches.
async fn kube_clients(clock: Clock, cluster: &ClusterChoice) -> Result<(kube::Client, kube::Client), ConnectError> {
    let ClusterAccess { config: mut calls, from_kubeconfig, proxy } =
        kubeconfig::cluster_access(cluster, variable).await?;
    let proxy = if from_kubeconfig { http::to_api_server(proxy, &calls.cluster_url, variable)? } else { None };
    calls.default_retry = false;
    calls.connect_timeout = Some(CONNECT_TIMEOUT);
    let program = start_program(&mut calls, clock).await?;
    let mut watches = calls.clone();
    watches.read_timeout = Some(WATCH_READ_TIMEOUT);
    let client = |config| {
        let client = cluster::client(config, proxy.as_ref(), program.clone());
        client.map_err(|error| ConnectError::BadCluster(kubeconfig::unusable(error)))
    };
    Ok((client(calls)?, client(watches)?))
}

/// Starts the kubeconfig's program for credentials, if the kubeconfig has no others.
async fn start_program(config: &mut kube::Config, clock: Clock) -> Result<Option<Arc<Program>>, ConnectError> {
    let auth = &mut config.auth_info;
    let Some(exec) = auth.exec.take() else { return Ok(None) };
    let has_secret = auth.password.is_some() || auth.token.is_some() || auth.token_file.is_some();
    if has_secret || auth.auth_provider.is_some() {
        return Ok(None);
    }
    let (program, certificate) = Program::start(exec, clock).await?;
    if let Some(ClientCertificate { certificate, key }) = certificate {
        auth.client_certificate_data = Some(base64::encode(certificate));
        auth.client_key_data = Some(base64::encode(key).into());
    }
    Ok(Some(Arc::new(program)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use aws_smithy_runtime_api::client::http::{
        HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
    };
    use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
    use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
    use aws_smithy_types::body::SdkBody;

    /// An instance's metadata in eu-north-1.
    #[derive(Debug)]
    struct Metadata;

    impl HttpClient for Metadata {
        fn http_connector(&self, _: &HttpConnectorSettings, _: &RuntimeComponents) -> SharedHttpConnector {
            SharedHttpConnector::new(Self)
        }
    }

    impl HttpConnector for Metadata {
        fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
            let answer = match (request.method(), request.uri()) {
                ("PUT", uri) if uri.ends_with("/latest/api/token") => "token",
                ("GET", uri) if uri.ends_with("/latest/meta-data/placement/region") => "eu-north-1",
                (method, uri) => panic!("{method} {uri} is no question about the region"),
            };
            let response = ::http::Response::builder().header("x-aws-ec2-metadata-token-ttl-seconds", "21600");
            let response = response.body(SdkBody::from(answer)).unwrap();
            HttpConnectorFuture::ready(Ok(HttpResponse::try_from(response).unwrap()))
        }
    }

    #[tokio::test]
    async fn the_metadata_are_asked_by_the_given_http_client() {
        let region = instance_region(SharedHttpClient::new(Metadata)).await;
        assert_eq!(region, Some(Region::new("eu-north-1")));
    }
}
