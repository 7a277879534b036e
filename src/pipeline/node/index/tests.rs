//! What a watch tells, line by line, from an API server that says what the test wants.

use super::*;
use crate::fact::TaskKind;
use crate::pipeline::node::node_api;
use crate::runtime::task::Tasks;
use http::{Request, Response};
use kube::client::Body;
use serde_json::{Value, json};
use std::collections::VecDeque;
use tokio::time::Instant;

/// What one request is answered: a status, lines, and whether the answer then stays open.
struct Answer(u16, Vec<Value>, bool);

#[derive(Clone)]
struct Server {
    answers: Arc<Mutex<VecDeque<Answer>>>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn new(answers: impl IntoIterator<Item = Answer>) -> Self {
        Self { answers: Arc::new(Mutex::new(answers.into_iter().collect())), asked: Arc::default() }
    }

    fn client(&self) -> kube::Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                server.asked.lock().unwrap().push(request.uri().query().unwrap_or_default().to_owned());
                let answer = server.answers.lock().unwrap().pop_front();
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

    /// Of each request so far, whether it was for a watch with all that there is, another watch, or a list.
    fn asked(&self) -> Vec<&'static str> {
        let what = |query: &String| match query {
            query if query.contains("sendInitialEvents=true") => "all",
            query if query.contains("watch=true") => "watch",
            _ => "list",
        };
        self.asked.lock().unwrap().iter().map(what).collect()
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

/// An index that watches, and whether it lives.
struct Watching {
    index: Index,
    server: Server,
    _task: crate::runtime::task::Handle<()>,
}

impl Watching {
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

    /// The UIDs of what is known, sorted.
    fn known(&self) -> Vec<String> {
        let mut known: Vec<_> = self.index.lock().by_instance.values().map(|node| node.uid.to_string()).collect();
        known.sort();
        known
    }

    /// Waits until so many requests have been made, and gives how long that took.
    async fn asked(&self, requests: usize) -> Duration {
        let begun = Instant::now();
        while self.server.asked().len() < requests {
            sleep(Duration::from_millis(100)).await;
        }
        sleep(Duration::from_millis(10)).await;
        begun.elapsed()
    }
}

#[tokio::test(start_paused = true)]
async fn what_happens_while_nodes_arrive_is_heeded() {
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
    let watching = Watching::new([Answer(200, lines, true)]);
    watching.asked(1).await;
    assert_eq!((watching.known(), watching.is_live()), (vec!["a".into(), "c".into(), "new".into()], true));
}

#[tokio::test(start_paused = true)]
async fn nodes_that_have_not_all_arrived_are_none() {
    let lines = || vec![event("ADDED", &node(1, "a", 3)), bookmark(3, false)];
    let list = json!({
        "apiVersion": "v1", "kind": "NodeList", "metadata": { "resourceVersion": "9" }, "items": [node(1, "a", 3)],
    });
    // It ends in good order each time, as it looks when something in between cuts it.
    let cut = [(); 3].map(|()| Answer(200, lines(), false));
    let watching = Watching::new(cut.into_iter().chain([Answer(200, vec![list], false)]));
    let took = watching.asked(3).await;
    assert!(took >= Duration::from_secs(1), "not in a tight loop: {took:?}");
    assert_eq!((watching.known().len(), watching.is_live()), (0, false));
    watching.asked(5).await;
    assert_eq!(watching.server.asked(), ["all", "all", "all", "list", "watch"], "then a list must do");
    assert_eq!((watching.known(), watching.is_live()), (vec!["a".into()], true));
}

#[tokio::test(start_paused = true)]
async fn an_arrival_that_hangs_is_given_up() {
    let lines = vec![event("ADDED", &node(1, "a", 3))];
    let watching = Watching::new([Answer(200, lines, true)]);
    let took = watching.asked(2).await;
    assert!(took >= LIST_TIMEOUT && took < LIST_TIMEOUT * 2, "{took:?}");
    assert!(!watching.is_live());
}

#[tokio::test(start_paused = true)]
async fn after_a_gap_nothing_is_concluded_until_all_have_arrived_anew() {
    let gone = event("ERROR", &json!({ "kind": "Status", "status": "Failure", "code": 410, "reason": "Expired" }));
    let first = vec![event("ADDED", &node(1, "a", 3)), bookmark(3, true), gone];
    let second = vec![event("ADDED", &node(1, "a", 3)), event("ADDED", &node(2, "b", 7))];
    let watching = Watching::new([Answer(200, first, true), Answer(200, second, true)]);
    watching.asked(2).await;
    assert_eq!((watching.known(), watching.is_live()), (vec!["a".into()], false));
    assert!(watching.server.asked.lock().unwrap()[1].contains("resourceVersion=3"), "not older than what was known");
}

#[tokio::test(start_paused = true)]
async fn only_a_server_that_says_so_is_not_asked_again_for_all() {
    for (status, then) in [(422, "list"), (400, "list"), (500, "all"), (404, "all")] {
        let watching = Watching::new([Answer(status, vec![json!({ "kind": "Status", "code": status })], false)]);
        watching.asked(2).await;
        assert_eq!(watching.server.asked(), ["all", then], "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_patch_s_answer_outlives_an_older_arrival() {
    let lines = vec![event("ADDED", &node(1, "a", 3)), bookmark(3, true)];
    let gone = event("ERROR", &json!({ "kind": "Status", "status": "Failure", "code": 410 }));
    let again = vec![event("ADDED", &node(1, "a", 3)), bookmark(4, true)];
    let watching = Watching::new([Answer(200, [lines, vec![gone]].concat(), true)]);
    watching.asked(2).await;
    let newer = serde_json::from_value(node(1, "a", 5)).unwrap();
    watching.index.put(watching.index.read(newer).unwrap());
    watching.server.answers.lock().unwrap().push_back(Answer(200, again, true));
    let versions = || -> Vec<_> {
        watching.index.lock().by_instance.values().map(|node| node.resource_version.to_string()).collect()
    };
    assert_eq!(versions(), ["5"]);
    // The request that hangs is given up; the next is answered.
    watching.asked(3).await;
    assert_eq!((versions(), watching.is_live()), (vec!["5".to_owned()], true));
}
