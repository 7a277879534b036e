//! Watches: each is a stream with its own position in a resource's history, and writes events only when it is
//! read.

use super::Body;
use super::object::{Form, Object};
use super::refusal::Refusal;
use super::route::Call;
use super::select::Scope;
use super::state::Shared;
use super::store::Change;
use crate::fault::Disconnected;
use bytes::Bytes;
use http::{HeaderValue, Response, header};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::json;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// Interval between the bookmarks of a quiet watch.
const BOOKMARKS: Duration = Duration::from_secs(60);

/// Default timeout of a watch.
const DEFAULT_TIMEOUT: u64 = 300;

/// Maximum number of changes written at once.
const CHUNK: usize = 500;

/// Interruption of a running watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupt {
    /// The watch ends cleanly.
    Close,
    /// The connection breaks.
    Break,
    /// The watch stays open and sends nothing more, as over a connection that a firewall forgot.
    Freeze,
}

/// One running watch.
struct Watch {
    shared: Arc<Shared>,
    scope: Scope,
    form: Form,
    /// Objects that existed at the start and are not yet sent.
    initial: VecDeque<Arc<Object>>,
    /// Version at which `initial` is complete, if the client waits for the bookmark.
    initial_end: Option<u64>,
    place: u64,
    signal: watch::Receiver<()>,
    interrupts: usize,
    bookmarks: bool,
    next_bookmark: Instant,
    ends: Instant,
    ended: bool,
}

/// Starts a watch.
pub(super) fn start(shared: &Arc<Shared>, call: &Call) -> Response<Body> {
    match open(shared, call) {
        Ok(watch) => {
            let chunks = futures_util::stream::unfold(watch, |mut watch| async move {
                let chunk = watch.next().await?;
                Some((chunk.map(|chunk| Frame::data(Bytes::from(chunk))), watch))
            });
            answer(StreamBody::new(chunks).boxed_unsync())
        }
        // The stream has already begun when the server finds the error.
        Err(refusal) if refusal.is_expired() => failed(&refusal),
        Err(refusal) => refusal.response(),
    }
}

/// Returns a watch that ends at once.
pub(super) fn closed() -> Response<Body> {
    answer(http_body_util::Empty::new().map_err(|never| match never {}).boxed_unsync())
}

/// Returns a watch whose only event is an error.
pub(super) fn failed(refusal: &Refusal) -> Response<Body> {
    let line = format!("{}\n", json!({ "type": "ERROR", "object": refusal.status() }));
    answer(http_body_util::Full::from(line).map_err(|never| match never {}).boxed_unsync())
}

fn answer(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn open(shared: &Arc<Shared>, call: &Call) -> Result<Watch, Refusal> {
    let scope = Scope::of(call)?;
    let from = match call.asked("resourceVersion") {
        None | Some("0") => None,
        Some(version) => {
            let invalid = || Refusal::new(400, format!("invalid resource version {version:?}"));
            Some(version.parse::<u64>().map_err(|_| invalid())?)
        }
    };
    let initial_events = call.asked("sendInitialEvents") == Some("true");
    let bookmarks = matches!(call.asked("allowWatchBookmarks"), Some("true" | "1"));
    if initial_events && call.asked("resourceVersionMatch") != Some("NotOlderThan") {
        return Err(Refusal::new(422, "resourceVersionMatch: Forbidden: sendInitialEvents requires NotOlderThan"));
    }
    let timeout = call.asked("timeoutSeconds").and_then(|seconds| seconds.parse().ok()).filter(|&seconds| seconds > 0);
    let now = Instant::now();
    let state = shared.lock();
    let version = state.store.version();
    let (initial, place) = match from {
        Some(from) if !initial_events => (VecDeque::new(), state.store.place_after(scope.resource, from)),
        _ => (scope.objects(&state.store).into(), state.store.place_after(scope.resource, version)),
    };
    Ok(Watch {
        shared: Arc::clone(shared),
        form: call.form,
        initial,
        initial_end: (initial_events && bookmarks).then_some(version),
        place: place.map_err(|oldest| Refusal::expired(from.unwrap_or_default(), oldest))?,
        signal: state.store.signal(scope.resource),
        interrupts: state.store.interrupts(),
        scope,
        bookmarks,
        next_bookmark: now + BOOKMARKS,
        ends: now + Duration::from_secs(timeout.unwrap_or(DEFAULT_TIMEOUT)),
        ended: false,
    })
}

impl Watch {
    /// Returns the next lines, as soon as there are any.
    async fn next(&mut self) -> Option<Result<Vec<u8>, Disconnected>> {
        loop {
            if self.ended {
                return None;
            }
            // Marked as seen before the look at the state, so that later changes wake the watch.
            self.signal.borrow_and_update();
            let interruption = self.shared.lock().store.interruption(self.interrupts);
            match interruption {
                Some(Interrupt::Close) => return None,
                Some(Interrupt::Break) => {
                    self.ended = true;
                    return Some(Err(Disconnected));
                }
                Some(Interrupt::Freeze) => std::future::pending().await,
                None => {}
            }
            let (lines, version) = self.read()?;
            if !lines.is_empty() {
                return Some(Ok(lines));
            }
            let now = Instant::now();
            if now >= self.ends {
                self.ended = true;
            }
            if self.bookmarks && (self.ended || now >= self.next_bookmark) {
                self.next_bookmark = now + BOOKMARKS;
                return Some(Ok(self.bookmark(version, false)));
            }
            let wake = if self.bookmarks { self.next_bookmark.min(self.ends) } else { self.ends };
            tokio::select! {
                biased;
                _ = self.signal.changed() => {}
                () = sleep_until(wake) => {}
            }
        }
    }

    /// Returns the lines to send now, and the version for a bookmark if there are none. Returns `None` if the history that
    /// the watch needs is gone: a real server drops a watch that does not keep up.
    fn read(&mut self) -> Option<(Vec<u8>, u64)> {
        let mut lines = Vec::new();
        for object in self.initial.drain(..self.initial.len().min(CHUNK)) {
            write(&mut lines, "ADDED", &object, &self.scope, self.form);
        }
        if !lines.is_empty() {
            return Some((lines, 0));
        }
        if let Some(version) = self.initial_end.take() {
            return Some((self.bookmark(version, true), version));
        }
        let state = self.shared.lock();
        let mut taken = 0;
        for change in state.store.changes(self.scope.resource, self.place)?.take(CHUNK) {
            taken += 1;
            tell(&mut lines, change, &self.scope, self.form);
        }
        self.place += taken;
        let version = state.store.version();
        // None of this chunk was selected and more may follow: an empty answer would look like the end.
        if lines.is_empty() && taken == CHUNK as u64 {
            drop(state);
            return self.read();
        }
        Some((lines, version))
    }

    fn bookmark(&self, version: u64, initial_end: bool) -> Vec<u8> {
        let mut meta = ObjectMeta { resource_version: Some(version.to_string()), ..ObjectMeta::default() };
        if initial_end {
            meta.annotations = Some([("k8s.io/initial-events-end".to_owned(), "true".to_owned())].into());
        }
        let object = json!({ "metadata": meta }).as_object().cloned().unwrap_or_default();
        let object = Object::from_value(self.scope.resource, object).expect("a bookmark must be an object");
        let mut line = Vec::new();
        write(&mut line, "BOOKMARK", &object, &self.scope, self.form);
        line
    }
}

/// Sends a change if the watch selects the object before or after it.
fn tell(lines: &mut Vec<u8>, change: &Change, scope: &Scope, form: Form) {
    let sees = !change.removed && scope.sees(&change.object);
    let saw = change.before.as_ref().filter(|before| scope.sees(before));
    match (saw, sees) {
        (None, false) => {}
        (None, true) => write(lines, "ADDED", &change.object, scope, form),
        (Some(_), true) => write(lines, "MODIFIED", &change.object, scope, form),
        // The event carries the object as last seen, at the version of the change that removed it from view.
        (Some(before), false) => {
            let last = before.with_meta(|meta| meta.resource_version = Some(change.version.to_string()));
            write(lines, "DELETED", &last, scope, form);
        }
    }
}

fn write(lines: &mut Vec<u8>, kind: &str, object: &Object, scope: &Scope, form: Form) {
    lines.extend_from_slice(format!(r#"{{"type":"{kind}","object":"#).as_bytes());
    object.write(lines, scope.resource, form);
    lines.extend_from_slice(b"}\n");
}
