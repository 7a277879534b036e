//! One GET over plain HTTP, bounded in time and size: for the status of other replicas and for `ebbtide status`.

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The reason why a GET has no answer.
#[derive(Debug, thiserror::Error)]
pub enum GetError {
    /// No whole answer came in time.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// No connection.
    #[error("no connection: {0}")]
    Unreachable(std::io::Error),
    /// The connection broke, or this is not HTTP.
    #[error("the connection broke: {0}")]
    Disconnected(hyper::Error),
    /// The answer is too long, or ended too early.
    #[error("the answer can't be read: {0}")]
    Unreadable(Box<dyn std::error::Error + Send + Sync>),
    /// The answer is not 200.
    #[error("answered {0}")]
    Refused(StatusCode),
}

/// Returns the body of the answer to `GET path`, if the status is 200.
///
/// # Errors
/// When there is no connection, no whole answer within `within`, more than `limit` bytes, or another status.
pub async fn get(address: SocketAddr, path: &str, limit: usize, within: Duration) -> Result<Bytes, GetError> {
    timeout(within, exchange(address, path, limit)).await.unwrap_or(Err(GetError::TimedOut(within)))
}

async fn exchange(address: SocketAddr, path: &str, limit: usize) -> Result<Bytes, GetError> {
    let stream = TcpStream::connect(address).await.map_err(GetError::Unreachable)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(GetError::Disconnected)?;
    let mut request = Request::new(Empty::<Bytes>::new());
    *request.uri_mut() = path.parse().map_err(|error| GetError::Unreadable(Box::from(error)))?;
    if let Ok(host) = address.to_string().parse() {
        request.headers_mut().insert(http::header::HOST, host);
    }
    let mut asked = pin!(async {
        let answer = sender.send_request(request).await.map_err(GetError::Disconnected)?;
        if answer.status() != StatusCode::OK {
            return Err(GetError::Refused(answer.status()));
        }
        let body = Limited::new(answer.into_body(), limit).collect().await.map_err(GetError::Unreadable)?;
        Ok(body.to_bytes())
    });
    tokio::select! {
        biased;
        answered = &mut asked => return answered,
        // The connection may end before the last bytes are taken.
        _ = connection => {}
    }
    asked.await
}
