//! Reads the report of one replica, or of all of them through the API server.

use crate::cli::flags::status::Status;
use crate::clients::connect::{ClusterChoice, ConnectError, cluster_client};
use crate::clients::get::{GetError, get};
use crate::clients::trimmed::Trimmed;
use crate::commands::cluster::Phase;
use crate::runtime::clock::Clock;
use crate::telemetry::bounded::bounded;
use crate::telemetry::history::report::{Report, VERSION};
use crate::telemetry::http::NO_PAGE;
use futures_util::{StreamExt, stream};
use http_body_util::{BodyExt, Limited};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, ListParams};
use kube::client::Body;
use kube::{Api, Client};
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::time::Duration;
use tokio::net::lookup_host;
use tokio::time::timeout;

/// Time in which a replica must answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum length of a report: 4 MiB of history are more as JSON.
const MAX_REPORT: usize = 16 << 20;

/// Maximum length of what is quoted of a failure.
const MAX_QUOTE: usize = 300;

/// Number of replicas that are asked at once.
const AT_ONCE: usize = 8;

/// Where reports come from.
pub(super) enum Source {
    /// A status page.
    Page { address: String },
    /// The pods of a namespace, through the API server.
    Pods { client: Client, namespace: String, selector: String, port: u16 },
}

/// The reason why there is no report.
#[derive(Debug, thiserror::Error)]
pub(super) enum StatusError {
    #[error("\"{0}\" is not the address of a status page; write HOST:PORT, such as 127.0.0.1:8081")]
    BadAddress(String),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("{address} can't be resolved: {error}; check the address")]
    Unresolved { address: String, error: std::io::Error },
    #[error(
        "no status from {address}: {error}; for a replica in a cluster run kubectl --namespace NAMESPACE port-forward deployment/ebbtide 8081, or name the --namespace"
    )]
    Unanswered { address: String, error: GetError },
    #[error("{from} answers, but not with a status report: {why}; use an ebbtide of the replica's version")]
    NotAReport { from: String, why: String },
    #[error("the pods in namespace {namespace} can't be listed: {error}; you need the right to list pods there")]
    Unlisted { namespace: String, error: kube::Error },
    #[error("no pod in namespace {namespace} has the labels {selector}; check --namespace and --selector")]
    NoPods { namespace: String, selector: String },
    #[error(
        "no replica in namespace {namespace} answers: {why}; you need the right to get pods/proxy, and the status page must be shared (status.shared in the chart, or --status-address with the pod's address)"
    )]
    AllSilent { namespace: String, why: String },
}

impl StatusError {
    /// Whether the command line is wrong.
    pub(super) const fn is_wrong_input(&self) -> bool {
        matches!(self, Self::BadAddress(_))
    }
}

/// The used part of the API server's answer to a failed call.
#[derive(Deserialize)]
struct Refusal {
    message: String,
}

impl Source {
    /// Returns the source of the command line.
    pub(super) async fn of(flags: &Status, cluster: &ClusterChoice) -> Result<Self, StatusError> {
        let Status { address, namespace, selector, port, .. } = flags;
        let Some(namespace) = namespace.clone() else {
            let bare = address.strip_prefix("http://").unwrap_or(address).trim_end_matches('/');
            let is_address = bare
                .rsplit_once(':')
                .is_some_and(|(host, port)| !host.is_empty() && !host.contains('/') && port.parse::<u16>().is_ok());
            return if is_address {
                Ok(Self::Page { address: bare.to_owned() })
            } else {
                Err(StatusError::BadAddress(address.clone()))
            };
        };
        let client = cluster_client(Clock::system(), cluster).await?;
        Ok(Self::Pods { client, namespace, selector: selector.clone(), port: *port })
    }

    /// Returns the report of all replicas that answer.
    pub(super) async fn read(&self) -> Result<Report, StatusError> {
        match self {
            Self::Page { address } => {
                let unresolved = |error| StatusError::Unresolved { address: address.clone(), error };
                let mut error = None;
                for found in lookup_host(address).await.map_err(unresolved)? {
                    match get(found, "/api/status", MAX_REPORT, TIMEOUT).await {
                        Ok(body) => return report(address, &body),
                        // The first address is the one that the user means.
                        Err(failed) => error = error.or(Some(failed)),
                    }
                }
                let nothing = || std::io::Error::other("the name has no address");
                Err(match error {
                    Some(error) => StatusError::Unanswered { address: address.clone(), error },
                    None => unresolved(nothing()),
                })
            }
            Self::Pods { client, namespace, selector, port } => pods(client, namespace, selector, *port).await,
        }
    }
}

async fn pods(client: &Client, namespace: &str, selector: &str, port: u16) -> Result<Report, StatusError> {
    let api: Api<Trimmed<IgnoredAny, Phase>> =
        Api::namespaced_with(client.clone(), namespace, &ApiResource::erase::<Pod>(&()));
    let listed = api.list(&ListParams::default().labels(selector)).await;
    let unlisted = |error| StatusError::Unlisted { namespace: namespace.to_owned(), error };
    let running = listed.map_err(unlisted)?.items.into_iter().filter(|pod| pod.status.phase == "Running");
    let names: Vec<String> = running.filter_map(|pod| pod.metadata.name).collect();
    if names.is_empty() {
        let (namespace, selector) = (namespace.to_owned(), selector.to_owned());
        return Err(StatusError::NoPods { namespace, selector });
    }
    let asked = stream::iter(names).map(async |name| {
        let report = through_proxy(client, namespace, &name, port).await;
        (name, report)
    });
    let answers: Vec<_> = asked.buffered(AT_ONCE).collect().await;
    let (mut all, mut silent) = (None::<Report>, Vec::new());
    for (name, answer) in answers {
        match (answer, &mut all) {
            (Ok(report), None) => all = Some(report),
            (Ok(report), Some(all)) => all.add(report),
            (Err(why), _) => silent.push((name, why)),
        }
    }
    let Some(mut all) = all else {
        let why = silent.into_iter().map(|(name, why)| format!("{name}: {why}")).collect::<Vec<_>>().join("; ");
        return Err(StatusError::AllSilent { namespace: namespace.to_owned(), why });
    };
    for (name, why) in silent {
        all.add_silent(&name, &why);
    }
    all.is_of_all();
    Ok(all)
}

async fn through_proxy(client: &Client, namespace: &str, pod: &str, port: u16) -> Result<Report, String> {
    let path = format!("/api/v1/namespaces/{namespace}/pods/http:{pod}:{port}/proxy/api/status?scope=replica");
    let request = http::Request::get(path).header(NO_PAGE, "status").body(Body::empty());
    let request = request.map_err(|error| error.to_string())?;
    let asked = async {
        let answer = client.send(request).await.map_err(|error| error.to_string())?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_REPORT).collect().await.map_err(|error| error.to_string())?;
        Ok((status, body.to_bytes()))
    };
    let (status, body) =
        timeout(TIMEOUT, asked).await.unwrap_or_else(|_| Err(format!("no answer within {TIMEOUT:?}")))?;
    if !status.is_success() {
        let text = String::from_utf8_lossy(&body);
        let text = serde_json::from_str::<Refusal>(&text).map_or_else(|_| text.into_owned(), |refusal| refusal.message);
        return Err(format!("answered {status}: {}", bounded(&text, MAX_QUOTE)));
    }
    report(pod, &body).map_err(|error| error.to_string())
}

/// Reads a report.
fn report(from: &str, body: &[u8]) -> Result<Report, StatusError> {
    /// The part that every version has.
    #[derive(Deserialize)]
    struct VersionField {
        version: u32,
    }
    let wrong = |why: String| StatusError::NotAReport { from: from.to_owned(), why };
    let VersionField { version } = serde_json::from_slice(body).map_err(|error| wrong(error.to_string()))?;
    if version != VERSION {
        return Err(wrong(format!("its version is {version}, and this program reads {VERSION}")));
    }
    serde_json::from_slice(body).map_err(|error| wrong(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::flags::cluster::Cluster;
    use crate::telemetry::history::{History, Since};
    use serde_json::json;

    #[test]
    fn a_report_of_another_version_is_refused() {
        let error = |body: &str| report("ebbtide-1", body.as_bytes()).unwrap_err().to_string();
        let newer = error("{\"version\":2,\"other\":true}");
        assert!(newer.starts_with("ebbtide-1 answers, but not with a status report: its version is 2"), "{newer}");
        assert!(error("<html>").contains("expected value"), "not a page of something else");
    }

    /// An API server with these pods, of which each answers with its own name, or not at all.
    fn api_server(pods: &'static [(&'static str, &'static str)]) -> Client {
        let answer = move |request: http::Request<Body>| async move {
            let path = request.uri().path().to_owned();
            let name = path.split("/pods/http:").nth(1).and_then(|rest| rest.split(':').next());
            let (status, body) = match name {
                None => {
                    assert_eq!(path, "/api/v1/namespaces/ebbtide/pods");
                    let query = request.uri().query().unwrap_or_default().to_owned();
                    assert!(query.contains("labelSelector=app%3Debbtide"), "{query}");
                    let item = |(name, phase): &(&str, &str)| json!({ "metadata": { "name": name }, "status": { "phase": phase } });
                    let items: Vec<_> = pods.iter().map(item).collect();
                    (200, json!({ "apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": items }))
                }
                Some("silent") => (503, json!({ "kind": "Status", "code": 503, "message": "connection refused" })),
                Some(name) => {
                    assert!(path.ends_with(":8081/proxy/api/status"), "{path}");
                    // The API server passes on its own host, which the page would refuse a browser.
                    assert!(request.headers().contains_key(NO_PAGE), "{:?}", request.headers());
                    let history = History::new(Clock::showing("2026-11-23T10:00:00Z".parse().unwrap()), name, false);
                    (200, serde_json::to_value(history.report(Since::Ever, 0).0).unwrap())
                }
            };
            let body = Body::from(serde_json::to_vec(&body).unwrap());
            Ok::<_, std::convert::Infallible>(http::Response::builder().status(status).body(body).unwrap())
        };
        Client::new(tower::service_fn(answer), "default")
    }

    async fn read(pods: &'static [(&'static str, &'static str)]) -> Result<Report, StatusError> {
        let (namespace, selector) = ("ebbtide".to_owned(), "app=ebbtide".to_owned());
        Source::Pods { client: api_server(pods), namespace, selector, port: 8081 }.read().await
    }

    #[tokio::test(start_paused = true)]
    async fn all_replicas_are_asked_through_the_api_server_and_a_silent_one_is_named() {
        let report =
            read(&[("a", "Running"), ("silent", "Running"), ("b", "Running"), ("done", "Succeeded")]).await.unwrap();
        let names: Vec<_> = report.replicas.iter().map(|it| (&*it.name, it.silent.is_some())).collect();
        assert_eq!(names, [("a", false), ("b", false), ("silent", true)]);
        let silent = read(&[("silent", "Running")]).await.unwrap_err().to_string();
        assert!(silent.contains("silent: ") && silent.contains("status.shared"), "{silent}");
        let nobody = read(&[("done", "Failed")]).await.unwrap_err().to_string();
        assert!(nobody.starts_with("no pod in namespace ebbtide has the labels app=ebbtide"), "{nobody}");
    }

    #[tokio::test]
    async fn a_wrong_address_is_told_before_anything_is_asked() {
        for address in ["127.0.0.1", "https://x:1", "http://x/y:1", ":1", "x:port"] {
            let flags = Status {
                address: address.to_owned(),
                namespace: None,
                selector: String::new(),
                port: 1,
                output: crate::cli::output::Output::Table,
                watch: false,
                all: false,
                cluster: Cluster::default(),
            };
            assert!(
                Source::of(&flags, &ClusterChoice::default()).await.is_err_and(|error| error.is_wrong_input()),
                "{address}"
            );
        }
    }

    #[test]
    fn an_answer_can_t_steer_the_terminal() {
        let history = History::new(Clock::showing("2026-11-23T10:00:00Z".parse().unwrap()), "a", false);
        let mut body = serde_json::to_value(history.report(Since::Ever, 0).0).unwrap();
        body["health"]["state"] = json!("\u{1b}]0;owned\u{7}\u{1b}[2J\u{1b}[1;32mok: All is well.");
        let error = report("127.0.0.1:8081", &serde_json::to_vec(&body).unwrap()).unwrap_err();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        crate::cli::answer::Answer::failed(&error).print(&mut out, &mut err);
        assert!(!err.contains(&0x1b), "{:?}", String::from_utf8_lossy(&err));
    }

    #[tokio::test]
    async fn a_long_answer_of_a_pod_is_not_read_beyond_the_maximum() {
        let answer = |request: http::Request<Body>| async move {
            let body = if request.uri().path().ends_with("/pods") {
                let item = json!({ "metadata": { "name": "a" }, "status": { "phase": "Running" } });
                json!({ "apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": [item] }).to_string()
            } else {
                let history = History::new(Clock::system(), "a", false);
                let report = serde_json::to_string(&history.report(Since::Ever, 0).0).unwrap();
                report + &" ".repeat(5 * MAX_REPORT)
            };
            let body = Body::from(body.into_bytes());
            Ok::<_, std::convert::Infallible>(http::Response::builder().status(200).body(body).unwrap())
        };
        let client = Client::new(tower::service_fn(answer), "default");
        let (namespace, selector) = ("ebbtide".to_owned(), "app=ebbtide".to_owned());
        let read = Source::Pods { client, namespace, selector, port: 8081 }.read().await;
        assert!(read.is_err(), "80 MiB were read, and the maximum is 16 MiB");
    }
}
