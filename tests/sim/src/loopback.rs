//! The simulated services on loopback ports, in real time: for the sandbox, and for any HTTP client.

use crate::World;
use crate::fault::Disconnected;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Pause after a failed accept, when the machine has no connections left.
const PAUSE: Duration = Duration::from_millis(50);

/// Both halves of a [`World`] on ports of their own. Dropping it closes the ports and all connections.
#[derive(Debug)]
pub struct Loopback {
    /// Endpoint URL of SQS, Auto Scaling and EC2.
    pub aws_url: String,
    /// URL of the API server.
    pub kube_url: String,
    _servers: JoinSet<()>,
}

impl Loopback {
    /// Returns a kubeconfig for the simulated cluster.
    #[must_use]
    pub fn kubeconfig(&self) -> String {
        kubeconfig(&self.kube_url)
    }
}

/// Returns a kubeconfig for an API server without authentication.
#[must_use]
pub fn kubeconfig(url: &str) -> String {
    format!(
        "apiVersion: v1\n\
         kind: Config\n\
         current-context: sandbox\n\
         clusters:\n\
         - name: sandbox\n\
         \x20 cluster:\n\
         \x20   server: {url}\n\
         contexts:\n\
         - name: sandbox\n\
         \x20 context:\n\
         \x20   cluster: sandbox\n\
         \x20   user: sandbox\n\
         users:\n\
         - name: sandbox\n\
         \x20 user: {{}}\n"
    )
}

impl World {
    /// Serves this world on two free loopback ports, until the returned [`Loopback`] is dropped.
    ///
    /// # Errors
    ///
    /// Fails if no port is available.
    pub async fn bind(&self) -> std::io::Result<Loopback> {
        let (aws, kube) = (TcpListener::bind("127.0.0.1:0").await?, TcpListener::bind("127.0.0.1:0").await?);
        let (aws_url, kube_url) = (format!("http://{}", aws.local_addr()?), format!("http://{}", kube.local_addr()?));
        let mut servers = JoinSet::new();
        let world = self.clone();
        servers.spawn(accept(aws, move |request| {
            let aws = world.aws.clone();
            async move { Ok(aws.serve(request).await?.map(Full::new)) }
        }));
        let world = self.clone();
        servers.spawn(accept(kube, move |request| {
            let kube = world.kube.clone();
            async move { kube.serve(request).await }
        }));
        Ok(Loopback { aws_url, kube_url, _servers: servers })
    }
}

/// Accepts connections until dropped; its connections end with it.
async fn accept<S, F, B>(listener: TcpListener, serve: S)
where
    S: Fn(Request<Bytes>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<Response<B>, Disconnected>> + Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => drop(connections.spawn(connection(stream, serve.clone()))),
                Err(_) => tokio::time::sleep(PAUSE).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection<S, F, B>(stream: TcpStream, serve: S)
where
    S: Fn(Request<Bytes>) -> F,
    F: Future<Output = Result<Response<B>, Disconnected>>,
    B: Body<Data = Bytes> + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    // Without TCP_NODELAY small answers wait for the client's acknowledgement. A refusal only makes them slower.
    let _ = stream.set_nodelay(true);
    let serve = &serve;
    let service = service_fn(|request: Request<Incoming>| async move {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map_err(|_| Disconnected)?.to_bytes();
        serve(Request::from_parts(head, body)).await
    });
    // An error means that the plan or the client broke the connection, so no client waits for a report.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

#[cfg(test)]
mod tests {
    use super::World;
    use crate::fault::{Fault, Rule};
    use futures_util::TryStreamExt;
    use k8s_openapi::api::core::v1::Node;
    use kube::api::{Api, ListParams, WatchEvent, WatchParams};
    use kube::config::{KubeConfigOptions, Kubeconfig};
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    async fn client(kubeconfig: &str) -> kube::Client {
        let parsed = Kubeconfig::from_yaml(kubeconfig).expect("the kubeconfig must be one");
        let config = kube::Config::from_custom_kubeconfig(parsed, &KubeConfigOptions::default()).await;
        config.expect("the kubeconfig must be complete").try_into().expect("the client must start")
    }

    /// Returns everything received until the connection is closed.
    async fn say(url: &str, request: &str) -> String {
        let address = url.strip_prefix("http://").expect("the URL must be one");
        let mut stream = TcpStream::connect(address).await.expect("the port must be open");
        stream.write_all(request.as_bytes()).await.expect("the request must go out");
        let mut answer = String::new();
        // A reset connection sends nothing more.
        let _ = stream.read_to_string(&mut answer).await;
        answer
    }

    #[tokio::test]
    async fn a_client_with_the_kubeconfig_reaches_the_cluster() {
        let world = World::new(1);
        let loopback = world.bind().await.expect("a port must be free");
        world.kube.add_node("node-0", "i-0");
        let nodes: Api<Node> = Api::all(client(&loopback.kubeconfig()).await);
        assert_eq!(nodes.list(&ListParams::default()).await.expect("the list must succeed").items.len(), 1);
        let watch = nodes.watch(&WatchParams::default(), "0").await.expect("the watch must start");
        let mut watch = std::pin::pin!(watch);
        assert!(matches!(watch.try_next().await, Ok(Some(WatchEvent::Added(_)))));
        world.kube.remove_node("node-0");
        assert!(matches!(watch.try_next().await, Ok(Some(WatchEvent::Deleted(_)))));
    }

    #[tokio::test]
    async fn a_broken_connection_is_closed_without_an_answer() {
        let world = World::new(1);
        let loopback = world.bind().await.expect("a port must be free");
        let request = "GET /readyz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        assert!(say(&loopback.kube_url, request).await.starts_with("HTTP/1.1 200 OK"));
        assert!(say(&loopback.aws_url, request).await.starts_with("HTTP/1.1 "));
        world.faults.add(Rule::on("*", Fault::Disconnect));
        assert_eq!(say(&loopback.kube_url, request).await, "");
    }

    #[tokio::test]
    async fn the_ports_close_when_it_is_dropped() {
        let world = World::new(1);
        let loopback = world.bind().await.expect("a port must be free");
        let address = loopback.kube_url.strip_prefix("http://").expect("the URL must be one").to_owned();
        drop(TcpStream::connect(&address).await.expect("the port must be open"));
        drop(loopback);
        // The servers stop when the runtime next runs them.
        let refused = async {
            while TcpStream::connect(&address).await.is_ok() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), refused).await.expect("the port must be closed");
    }
}
