//! The watch of Nodes against an API server that plays back scripted answers.

use super::watch::SYNC_TIMEOUT;
use super::*;
use crate::fact::TaskKind;
use crate::pipeline::node::node_api;
use crate::runtime::Clock;
use crate::runtime::task::Tasks;
use http::{Request, Response};
use kube::client::Body;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The answer to one request: a status, lines, and whether the connection then stays open.
struct Answer(u16, Vec<Value>, bool);

#[derive(Clone)]
struct Server {
    answers: Arc<Mutex<VecDeque<Answer>>>,
    queries: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn new(answers: impl IntoIterator<Item = Answer>) -> Self {
        Self { answers: Arc::new(Mutex::new(answers.into_iter().collect())), queries: Arc::default() }
    }

    fn client(&self) -> kube::Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                server.queries.lock().push(request.uri().query().unwrap_or_default().to_owned());
                let answer = server.answers.lock().pop_front();
                let Some(Answer(status, lines, stays)) = answer else { return std::future::pending().await };
                let lines = lines.into_iter().map(|line| Ok::<_, std::io::Error>(format!("{line}\n").into_bytes()));
                let lines = futures_util::stream::iter(lines.collect::<Vec<_>>());
                let body = futures_util::StreamExt::chain(
                    lines,
                    futures_util::stream::once(async move {
                        if stays {
                            std::future::pending::<()>().await;
                        }
                        Ok(Vec::new())
                    }),
                );
                let body = http_body_util::StreamBody::new(futures_util::StreamExt::map(body, |line| {
                    line.map(|line| hyper::body::Frame::data(bytes::Bytes::from(line)))
                }));
                Ok::<_, std::convert::Infallible>(Response::builder().status(status).body(body).unwrap())
            }
        });
        kube::Client::new(service, "default")
    }

    /// Returns the kind of each request so far: a watch with initial events, another watch, or a list.
    fn requests(&self) -> Vec<&'static str> {
        let kind = |query: &String| match query {
            query if query.contains("sendInitialEvents=true") => "initial events",
            query if query.contains("watch=true") => "watch",
            _ => "list",
        };
        self.queries.lock().iter().map(kind).collect()
    }
}

fn node(n: u32, uid: &str, version: u32) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": format!("node-{uid}"), "uid": uid, "resourceVersion": version.to_string() },
        "spec": { "providerID": format!("aws:///eu-west-1a/i-{n:017x}") },
        "status": {},
    })
}

fn event(kind: &str, object: &Value) -> Value {
    json!({ "type": kind, "object": object })
}

fn bookmark(version: u32, all: bool) -> Value {
    let annotations = if all { json!({ "k8s.io/initial-events-end": "true" }) } else { json!({}) };
    let meta = json!({ "resourceVersion": version.to_string(), "annotations": annotations });
    event("BOOKMARK", &json!({ "apiVersion": "v1", "kind": "Node", "metadata": meta }))
}

/// An index and its running watch.
struct WatchedIndex {
    index: Index,
    server: Server,
    _task: crate::runtime::task::Handle<()>,
}

impl WatchedIndex {
    fn new(answers: impl IntoIterator<Item = Answer>) -> Self {
        let server = Server::new(answers);
        let index = Index::default();
        let facts = Facts::to(Vec::new());
        let watch = index.clone().watch(node_api(server.client()), facts.clone(), oneshot::channel().0);
        Self { _task: Tasks::new(facts).spawn(TaskKind::NodeWatch, watch), index, server }
    }

    fn is_live(&self) -> bool {
        *self.index.0.live.borrow()
    }

    /// Returns the UIDs of the known Nodes, sorted.
    fn known(&self) -> Vec<String> {
        let mut known: Vec<_> = self.index.0.nodes.lock().all().map(|node| node.uid.to_string()).collect();
        known.sort();
        known
    }

    /// Waits until this number of requests has been made, and returns the time that took.
    async fn requests(&self, count: usize) -> Duration {
        let begun = Instant::now();
        while self.server.requests().len() < count {
            sleep(Duration::from_millis(100)).await;
        }
        sleep(Duration::from_millis(10)).await;
        begun.elapsed()
    }
}

#[tokio::test(start_paused = true)]
async fn events_apply_to_nodes_that_are_still_arriving() {
    let lines = vec![
        event("ADDED", &node(1, "a", 3)),
        event("ADDED", &node(2, "b", 4)),
        event("ADDED", &node(3, "old", 5)),
        event("ADDED", &node(3, "new", 6)),
        event("DELETED", &node(2, "b", 7)),
        event("DELETED", &node(3, "old", 8)),
        bookmark(8, true),
        event("ADDED", &node(4, "c", 9)),
    ];
    let watched = WatchedIndex::new([Answer(200, lines, true)]);
    watched.requests(1).await;
    assert_eq!((watched.known(), watched.is_live()), (vec!["a".into(), "c".into(), "new".into()], true));
}

#[tokio::test(start_paused = true)]
async fn an_incomplete_sync_shows_no_node_and_ends_in_a_list() {
    let lines = || vec![event("ADDED", &node(1, "a", 3)), bookmark(3, false)];
    let list = json!({
        "apiVersion": "v1", "kind": "NodeList", "metadata": { "resourceVersion": "9" }, "items": [node(1, "a", 3)],
    });
    // An answer that a proxy cuts ends regularly.
    let cut = [(); 3].map(|()| Answer(200, lines(), false));
    let watched = WatchedIndex::new(cut.into_iter().chain([Answer(200, vec![list], false)]));
    let took = watched.requests(3).await;
    assert!(took >= Duration::from_secs(1), "not in a tight loop: {took:?}");
    assert_eq!((watched.known().len(), watched.is_live()), (0, false));
    watched.requests(5).await;
    assert_eq!(watched.server.requests(), ["initial events", "initial events", "initial events", "list", "watch"]);
    assert_eq!((watched.known(), watched.is_live()), (vec!["a".into()], true));
}

#[tokio::test(start_paused = true)]
async fn a_sync_that_hangs_times_out() {
    let lines = vec![event("ADDED", &node(1, "a", 3))];
    let watched = WatchedIndex::new([Answer(200, lines, true)]);
    let took = watched.requests(2).await;
    assert!(took >= SYNC_TIMEOUT && took < SYNC_TIMEOUT * 2, "{took:?}");
    assert!(!watched.is_live());
}

#[tokio::test(start_paused = true)]
async fn after_a_gap_the_index_is_not_live_until_all_nodes_have_arrived_again() {
    let gone = event("ERROR", &json!({ "kind": "Status", "status": "Failure", "code": 410, "reason": "Expired" }));
    let first = vec![event("ADDED", &node(1, "a", 3)), bookmark(3, true), gone];
    let second = vec![event("ADDED", &node(1, "a", 3)), event("ADDED", &node(2, "b", 7))];
    let watched = WatchedIndex::new([Answer(200, first, true), Answer(200, second, true)]);
    watched.requests(2).await;
    assert_eq!((watched.known(), watched.is_live()), (vec!["a".into()], false));
    assert!(watched.server.queries.lock()[1].contains("resourceVersion=3"), "not older than what was known");
}

#[tokio::test(start_paused = true)]
async fn only_a_server_without_initial_events_is_asked_for_a_list_at_once() {
    for (status, then) in [(422, "list"), (400, "list"), (500, "initial events"), (404, "initial events")] {
        let watched = WatchedIndex::new([Answer(status, vec![json!({ "kind": "Status", "code": status })], false)]);
        watched.requests(2).await;
        assert_eq!(watched.server.requests(), ["initial events", then], "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_older_sync_does_not_replace_the_answer_to_a_patch() {
    let lines = vec![event("ADDED", &node(1, "a", 3)), bookmark(3, true)];
    let gone = event("ERROR", &json!({ "kind": "Status", "status": "Failure", "code": 410 }));
    let again = vec![event("ADDED", &node(1, "a", 3)), bookmark(4, true)];
    let watched = WatchedIndex::new([Answer(200, [lines, vec![gone]].concat(), true)]);
    watched.requests(2).await;
    let newer = serde_json::from_value(node(1, "a", 5)).unwrap();
    watched.index.put(watched.index.read(newer).unwrap());
    watched.server.answers.lock().push_back(Answer(200, again, true));
    let versions =
        || -> Vec<_> { watched.index.0.nodes.lock().all().map(|node| node.resource_version.to_string()).collect() };
    assert_eq!(versions(), ["5"]);
    // The request that hangs times out; the next is answered.
    watched.requests(3).await;
    assert_eq!((versions(), watched.is_live()), (vec!["5".to_owned()], true));
}

#[tokio::test(start_paused = true)]
async fn the_answer_to_a_patch_does_not_show_that_a_condition_has_lasted_while_the_watch_is_down() {
    let clock = Clock::showing("2026-11-28T12:00:00Z".parse().unwrap());
    for (is_live, since) in [(true, "2020-11-28T10:00:00Z"), (false, "2020-11-28T10:05:00Z")] {
        let (name, toleration) = ("KernelReady=False".into(), Duration::from_mins(1));
        let rule = ConditionRule { name, toleration, action: crate::fact::Action::Drain };
        let index = Index::new(NodeScope::default(), Vec::new(), [rule].into(), Arc::default());
        let unhealthy = |version, since| {
            let mut node = node(1, "a", version);
            let condition = json!({ "type": "KernelReady", "status": "False", "lastTransitionTime": since });
            node["status"] = json!({ "conditions": [condition] });
            index.read(serde_json::from_value(node).unwrap()).unwrap()
        };
        index.0.nodes.lock().apply(unhealthy(1, "2020-11-28T10:00:00Z"), true);
        index.set_live(is_live);
        index.put(unhealthy(2, "2020-11-28T10:05:00Z"));
        let known = index.all_that(|_| true);
        assert_eq!(known[0].conditions[0].since(None, &clock).to_string(), since);
    }
}
