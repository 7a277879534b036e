//! The status page: `/`, its report as JSON at `/api/status`, and its changes as server-sent events at `/api/events`.
//!
//! It needs no login, shows no secret and changes nothing. Viewers share the work: a report is rendered once for all of them, at most
//! once a second, and only while a viewer is connected. Their number is bounded, and one that reads too slowly is dropped. The other
//! replicas are asked only then, too.

mod peers;

use crate::fact::TaskKind;
use crate::runtime::task::Tasks;
use crate::telemetry::history::report::Report;
use crate::telemetry::history::{History, Since};
use crate::telemetry::http::{Answers, Body, answer, only_get, plain};
use bytes::Bytes;
use futures_util::stream;
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use http::header::{HeaderName, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use parking_lot::Mutex;
use peers::Peers;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex as AsyncMutex, Notify, OwnedSemaphorePermit, Semaphore, broadcast};
use tokio::time::{Instant, sleep};

/// Maximum number of viewers that get changes at once. Others can ask for reports.
const MAX_VIEWERS: usize = 32;

/// Minimum time between two frames, and maximum age of a shared report.
const PACE: Duration = Duration::from_secs(1);

/// Minimum time between two questions to the other replicas.
const PEERS_PACE: Duration = Duration::from_secs(2);

/// Maximum number of large reports that wait for their readers: each costs as much memory as the history.
const MAX_READERS: usize = 8;

/// Size from which a report is large, in bytes.
const LARGE: usize = 256 << 10;

/// Maximum time between two frames, so that a dead connection is noticed.
const MAX_SILENCE: Duration = Duration::from_secs(15);

/// Number of frames that a viewer may be behind.
const MAX_BEHIND: usize = 8;

/// The page's rights: show itself, and ask this server.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A file of the page, as a browser gets it.
struct File {
    path: &'static str,
    content_type: &'static str,
    text: &'static str,
}

const FILES: [File; 7] = [
    File { path: "/", content_type: "text/html; charset=utf-8", text: include_str!("page/index.html") },
    File { path: "/page.css", content_type: "text/css; charset=utf-8", text: include_str!("page/page.css") },
    script("/page.js", include_str!("page/page.js")),
    script("/model.js", include_str!("page/model.js")),
    script("/document.js", include_str!("page/document.js")),
    script("/words.js", include_str!("page/words.js")),
    script("/views.js", include_str!("page/views.js")),
];

const fn script(path: &'static str, text: &'static str) -> File {
    File { path, content_type: "text/javascript; charset=utf-8", text }
}

/// The status page of one replica.
#[derive(Debug)]
pub struct Page {
    history: Arc<History>,
    tasks: Tasks,
    /// The names and ports of the other replicas.
    peers: Vec<String>,
    /// When the other replicas were asked last. Held while they are asked.
    peers_asked: AsyncMutex<Option<Instant>>,
    frames: broadcast::Sender<Bytes>,
    shared: Mutex<ViewerState>,
    readers: Arc<Semaphore>,
    /// Signalled when the first viewer comes.
    viewed: Notify,
}

/// The state that viewers share.
#[derive(Debug, Default)]
struct ViewerState {
    /// The latest whole report, and when it was made.
    whole: Option<RenderedReport>,
    /// The same of this replica alone.
    own: Option<RenderedReport>,
    /// The count of changes that the latest frame shows, and its time.
    framed: Option<(u64, Instant)>,
    peers: Peers,
}

/// A report as JSON.
#[derive(Clone, Debug)]
struct RenderedReport {
    json: Bytes,
    /// The same as the first frame of a viewer.
    frame: Bytes,
    at: Instant,
}

impl RenderedReport {
    fn of(report: &Report) -> Self {
        let frame = frame("full", &serde_json::to_vec(report).unwrap_or_default());
        // Between the words of the frame and the empty line.
        let json = frame.slice(FULL.len()..frame.len() - 2);
        Self { json, frame, at: Instant::now() }
    }
}

/// A part of a body that counts as read when the last copy of it is gone.
struct CountedBytes {
    bytes: Bytes,
    _permit: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for CountedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Page {
    /// The page of this history. `tasks` are those of the service. `peers` are names and ports of all replicas.
    #[must_use]
    pub fn new(history: Arc<History>, tasks: Tasks, peers: Vec<String>) -> Self {
        Self {
            history,
            tasks,
            peers,
            peers_asked: AsyncMutex::default(),
            frames: broadcast::Sender::new(MAX_BEHIND),
            shared: Mutex::default(),
            readers: Arc::new(Semaphore::new(MAX_READERS)),
            viewed: Notify::new(),
        }
    }

    /// Sends changes to the viewers, while there are any. Runs until dropped.
    pub async fn send_frames(self: Arc<Self>) {
        loop {
            let viewed = self.viewed.notified();
            if self.frames.receiver_count() == 0 {
                viewed.await;
            }
            sleep(PACE).await;
            self.ask_peers().await;
            self.send_frame();
        }
    }

    /// Asks the other replicas, unless that was done just now.
    async fn ask_peers(&self) {
        if self.peers.is_empty() {
            return;
        }
        let mut asked = self.peers_asked.lock().await;
        if asked.is_some_and(|at| at.elapsed() < PEERS_PACE) {
            return;
        }
        let answers = peers::ask(&self.peers, self.history.replica()).await;
        let mut shared = self.shared.lock();
        shared.peers.take(answers);
        if self.frames.receiver_count() == 0 {
            // A viewer who comes gets a whole report first.
            shared.peers.take_changes();
        }
        shared.whole = None;
        drop(shared);
        *asked = Some(Instant::now());
    }

    fn send_frame(&self) {
        // Under the lock, so that a viewer who comes gets its whole report before or after this frame.
        let mut shared = self.shared.lock();
        let now = Instant::now();
        let since = match shared.framed {
            Some((change, at)) => {
                let same = change == self.history.revision() && !shared.peers.has_changes();
                if same && now - at < MAX_SILENCE {
                    return;
                }
                if self.history.is_known(change) { Since::Change(change) } else { Since::Ever }
            }
            None => Since::Ever,
        };
        let (mut report, change) = self.history.report(since, self.held());
        let (changed, removed) = shared.peers.take_changes();
        let is_whole = since == Since::Ever;
        self.add_peers(&shared.peers, &mut report, (!is_whole).then_some(&changed));
        report.removed.extend(removed.into_iter().filter(|_| !is_whole));
        let name = if is_whole { "full" } else { "update" };
        // An error means that no viewer is left.
        let _ = self.frames.send(frame(name, &serde_json::to_vec(&report).unwrap_or_default()));
        (shared.whole, shared.framed) = (None, Some((change, now)));
    }

    /// Makes the report one of all replicas, if the others are asked.
    fn add_peers(&self, peers: &Peers, report: &mut Report, only: Option<&BTreeSet<String>>) {
        if !self.peers.is_empty() {
            peers.add_to(report, only);
        }
    }

    /// Returns a whole report.
    fn whole(&self, shared: &mut ViewerState) -> RenderedReport {
        if let Some(known) = shared.whole.as_ref().filter(|known| known.at.elapsed() < PACE) {
            return known.clone();
        }
        let (mut report, _) = self.history.report(Since::Ever, self.held());
        self.add_peers(&shared.peers, &mut report, None);
        shared.whole.insert(RenderedReport::of(&report)).clone()
    }

    /// Returns the report of this replica alone.
    fn own(&self, shared: &mut ViewerState) -> RenderedReport {
        if let Some(known) = shared.own.as_ref().filter(|known| known.at.elapsed() < PACE) {
            return known.clone();
        }
        let (report, _) = self.history.report(Since::Ever, self.held());
        shared.own.insert(RenderedReport::of(&report)).clone()
    }

    /// Returns the bytes for one reader; `None` if too many others have not read theirs.
    fn for_reader(&self, bytes: Bytes) -> Option<Bytes> {
        if bytes.len() < LARGE {
            return Some(bytes);
        }
        let permit = Arc::clone(&self.readers).try_acquire_owned().ok()?;
        Some(Bytes::from_owner(CountedBytes { bytes, _permit: permit }))
    }

    fn report_for_reader(&self, report: RenderedReport) -> Response<Body> {
        match self.for_reader(report.json) {
            Some(json) => answer(StatusCode::OK, "application/json", json),
            None => plain(StatusCode::SERVICE_UNAVAILABLE, "too many readers; ask again\n"),
        }
    }

    /// Returns the changes from now on, beginning with a whole report.
    fn events(&self) -> Response<Body> {
        let mut shared = self.shared.lock();
        if self.frames.receiver_count() >= MAX_VIEWERS {
            return plain(StatusCode::SERVICE_UNAVAILABLE, "too many viewers; ask for api/status instead\n");
        }
        let Some(first) = self.for_reader(self.whole(&mut shared).frame) else {
            return plain(StatusCode::SERVICE_UNAVAILABLE, "too many readers; come again\n");
        };
        let receiver = self.frames.subscribe();
        drop(shared);
        self.viewed.notify_one();
        let frames = stream::unfold((Some(first), receiver), |(first, mut receiver)| async move {
            let bytes = match first {
                Some(first) => first,
                // A viewer that is too far behind is dropped: it comes again, and gets a whole report.
                None => receiver.recv().await.ok()?,
            };
            Some((Ok::<_, Infallible>(Frame::data(bytes)), (None, receiver)))
        });
        let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        response
    }

    fn held(&self) -> usize {
        usize::try_from(self.tasks.alive(TaskKind::Message)).unwrap_or(0)
    }
}

impl Answers for Page {
    async fn answer(&self, request: &Request<Incoming>, _: SocketAddr) -> Response<Body> {
        if let Some(refused) = only_get(request.method()) {
            return refused;
        }
        let path = request.uri().path();
        let mut response = match path {
            "/api/status" if request.uri().query() == Some("scope=replica") => {
                let report = self.own(&mut self.shared.lock());
                self.report_for_reader(report)
            }
            "/api/status" => {
                self.ask_peers().await;
                let report = self.whole(&mut self.shared.lock());
                self.report_for_reader(report)
            }
            "/api/events" => self.events(),
            _ => match FILES.iter().find(|file| file.path == path) {
                Some(file) => answer(StatusCode::OK, file.content_type, Bytes::from_static(file.text.as_bytes())),
                None => plain(StatusCode::NOT_FOUND, "not found; try /, /api/status, /api/events\n"),
            },
        };
        let headers: [(HeaderName, &str); 5] = [
            (CONTENT_SECURITY_POLICY, POLICY),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (REFERRER_POLICY, "no-referrer"),
            (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
            (CACHE_CONTROL, "no-store"),
        ];
        for (name, value) in headers {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

/// The start of the frame of a whole report.
const FULL: &[u8] = b"event: full\ndata: ";

/// Returns a server-sent event. JSON has no line breaks.
fn frame(name: &str, json: &[u8]) -> Bytes {
    [b"event: ", name.as_bytes(), b"\ndata: ", json, b"\n\n"].concat().into()
}

#[cfg(test)]
mod tests;
