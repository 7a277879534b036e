use super::*;
use crate::fact::{Action, Fact, Facts, NoticeKind, NoticeRef, Subscriber};
use crate::runtime::clock::Clock;
use crate::runtime::task::Handle;
use crate::telemetry::history::report::Report;
use crate::telemetry::http::Server;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A page that is served, and its history.
struct Served {
    history: Arc<History>,
    address: SocketAddr,
    tasks: Tasks,
    page: Arc<Page>,
    _serving: Handle<()>,
}

impl Served {
    async fn start() -> Self {
        Self::start_as("replica", &[]).await
    }

    async fn start_as(name: &str, peers: &[SocketAddr]) -> Self {
        let history = Arc::new(History::new(Clock::system(), name, false));
        let peers = peers.iter().map(ToString::to_string).collect();
        let tasks = Tasks::new(Facts::to(Vec::new()));
        let server = Server::bind("--status-address", "127.0.0.1:0".parse().unwrap()).await.unwrap();
        let (address, page) = (server.address(), Arc::new(Page::new(Arc::clone(&history), tasks.clone(), peers)));
        let (counted, served) = (tasks.clone(), Arc::clone(&page));
        let serving = tasks.spawn(TaskKind::Status, async move {
            tokio::join!(server.serve(&counted, TaskKind::StatusConnection, Arc::clone(&served)), served.send_frames());
        });
        Self { history, address, tasks, page, _serving: serving }
    }

    fn notice(&self, instance: &str, node: &str) {
        let about = NoticeRef { kind: NoticeKind::Spot, instance, node: Some(node), message: "m" };
        let until = Some(Duration::from_mins(2));
        self.history.note(&Fact::NoticeBegun {
            about,
            action: Action::Drain,
            until,
            hard: true,
            again: false,
            pool: None,
        });
    }

    async fn ask(&self, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(format!("{request} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).await.unwrap();
        stream
    }

    async fn report(&self, path: &str) -> Report {
        let answer = self.get(path).await;
        serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
    }

    /// Returns the whole answer.
    async fn get(&self, path: &str) -> String {
        let mut answer = String::new();
        self.ask(&format!("GET {path}")).await.read_to_string(&mut answer).await.unwrap();
        answer
    }
}

/// Reads until the text has come.
async fn until(stream: &mut TcpStream, text: &str) -> String {
    let mut read = Vec::new();
    loop {
        let mut part = [0; 4096];
        let length = stream.read(&mut part).await.unwrap();
        read.extend_from_slice(&part[..length]);
        let all = String::from_utf8_lossy(&read);
        if all.contains(text) {
            return all.into_owned();
        }
        assert!(length > 0, "it ended before {text}: {all}");
    }
}

#[tokio::test]
async fn every_answer_has_the_strict_policy_and_only_get_is_answered() {
    let served = Served::start().await;
    for path in FILES.iter().map(|file| file.path).chain(["/api/status", "/elsewhere"]) {
        let answer = served.get(path).await.to_ascii_lowercase();
        assert!(answer.contains("content-security-policy: default-src 'none'; script-src 'self'"), "{path}: {answer}");
        assert!(answer.contains("cache-control: no-store"), "{path}");
        assert_eq!(answer.starts_with("http/1.1 200"), path != "/elsewhere", "{path}");
    }
    let foreign = TcpStream::connect(served.address).await;
    let mut foreign = foreign.unwrap();
    foreign.write_all(b"GET /api/status HTTP/1.1\r\nhost: rebound.example\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    foreign.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("--allowed-host"), "{answer}");
    let mut answer = String::new();
    served.ask("POST /api/status").await.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 405"), "{answer}");
    assert!(FILES.iter().map(|file| file.text.len()).sum::<usize>() < 60 << 10, "the page is small");
}

#[tokio::test]
async fn the_report_is_json_and_hostile_names_are_text() {
    let served = Served::start().await;
    let hostile = "</script><img src=x onerror=alert(1)>\n\ndata: {}\u{202e}\"";
    served.notice("i-1", hostile);
    let report = served.report("/api/status").await;
    assert_eq!(report.interruptions[0].node.as_deref(), Some(hostile));
    let shown = until(&mut served.ask("GET /api/events").await, "\n\n").await;
    assert!(!shown.contains("\ndata: {}"), "a name can't make an event: {shown}");
}

#[tokio::test]
async fn viewers_get_a_whole_report_and_then_changes_and_leave_no_task() {
    let served = Served::start().await;
    served.notice("i-1", "node-1");
    let mut viewer = served.ask("GET /api/events").await;
    let first = until(&mut viewer, "\n\n").await;
    assert!(first.contains("content-type: text/event-stream\r\n") && first.contains("event: full\ndata: {"), "{first}");
    assert!(first.contains("node-1"));
    served.notice("i-2", "node-2");
    let next = until(&mut viewer, "node-2").await;
    assert!(next.contains("event: update\n") || next.contains("event: full\n"), "{next}");
    served.notice("i-3", "node-3");
    let next = until(&mut viewer, "node-3").await;
    assert!(next.contains("event: update\n") && !next.contains("node-1"), "only what changed: {next}");
    drop(viewer);
    // The next frame finds nobody.
    served.notice("i-4", "node-4");
    served.tasks.gone(|kind| kind == TaskKind::StatusConnection).await;
}

#[tokio::test]
async fn viewers_are_bounded_and_others_can_still_ask() {
    let served = Served::start().await;
    let mut viewers = Vec::new();
    for _ in 0..MAX_VIEWERS {
        let mut viewer = served.ask("GET /api/events").await;
        until(&mut viewer, "event: full").await;
        viewers.push(viewer);
    }
    let refused = served.get("/api/events").await;
    assert!(refused.starts_with("HTTP/1.1 503") && refused.contains("too many viewers"), "{refused}");
    assert!(served.get("/api/status").await.starts_with("HTTP/1.1 200"));
    drop(viewers);
    served.notice("i-1", "node-1");
    served.tasks.gone(|kind| kind == TaskKind::StatusConnection).await;
    until(&mut served.ask("GET /api/events").await, "event: full").await;
}

#[tokio::test]
async fn replicas_show_each_others_work_and_name_one_that_is_silent() {
    let other = Served::start_as("other", &[]).await;
    other.notice("i-1", "of-other");
    let served = Served::start_as("this", &[other.address]).await;
    served.notice("i-2", "of-this");
    let nodes = |report: &Report| {
        let rows = report.interruptions.iter().map(|row| (row.replica.clone(), row.node.clone().unwrap()));
        rows.collect::<Vec<_>>()
    };
    let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    let both = served.report("/api/status").await;
    assert_eq!(nodes(&both), [pair("this", "of-this"), pair("other", "of-other")]);
    assert_eq!(
        both.replicas.iter().map(|replica| (&*replica.name, replica.here)).collect::<Vec<_>>(),
        [("this", true), ("other", false)]
    );
    assert_eq!(both.day.notices.iter().sum::<u32>(), 2);
    assert_eq!(nodes(&served.report("/api/status?scope=replica").await), [pair("this", "of-this")]);

    assert!(!served.page.shared.lock().peers.has_changes(), "nobody would ever take the changes");
    let mut viewer = served.ask("GET /api/events").await;
    until(&mut viewer, "of-other").await;
    other.notice("i-3", "later");
    let next = until(&mut viewer, "later").await;
    assert!(next.contains("event: update"), "{next}");
    drop(other);
    let next = until(&mut viewer, "no connection").await;
    assert!(next.contains("\"removed\":[\"other/0\",\"other/1\"]"), "{next}");
}

/// The name of all replicas names this one, too.
#[tokio::test]
async fn a_replica_does_not_count_itself() {
    let same = Served::start_as("this", &[]).await;
    let served = Served::start_as("this", &[same.address]).await;
    assert_eq!(served.report("/api/status").await.replicas.len(), 1);
}

impl Served {
    /// Makes the report large.
    fn remembers_much(&self) {
        let long = "x".repeat(200);
        for n in 0..9000 {
            let (instance, node) = (format!("i-{n:017x}"), format!("{n}{long}"));
            let about =
                NoticeRef { kind: NoticeKind::AsgTerminate, instance: &instance, node: Some(&node), message: "m" };
            let (action, again) = (Action::Drain, false);
            self.history.note(&Fact::NoticeBegun { about, action, until: None, hard: true, again, pool: None });
        }
    }

    /// Asks, and reads nothing.
    async fn ask_slowly(&self, path: &str) -> TcpStream {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let mut stream = socket.connect(self.address).await.unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).await.unwrap();
        // The answer has begun.
        stream.read_exact(&mut [0; 16]).await.unwrap();
        stream
    }
}

/// Each that reads nothing holds a large report in memory.
#[tokio::test]
async fn slow_readers_of_large_reports_are_few() {
    for path in ["/api/status", "/api/status?scope=replica", "/api/events"] {
        let served = Served::start().await;
        served.remembers_much();
        let size = served.get("/api/status").await.len();
        assert!(size > 3 << 20, "{size}");
        let mut slow = Vec::new();
        for _ in 0..MAX_READERS {
            slow.push(served.ask_slowly(path).await);
        }
        let refused = served.get("/api/status").await;
        assert!(refused.starts_with("HTTP/1.1 503") && refused.contains("too many readers"), "{path}");
        drop(slow);
        served.tasks.gone(|kind| kind == TaskKind::StatusConnection).await;
        assert!(served.get("/api/status").await.starts_with("HTTP/1.1 200"), "{path}");
    }
}

#[tokio::test]
#[allow(clippy::disallowed_methods, reason = "the task ends with the test")]
async fn a_peers_report_is_not_read_beyond_the_maximum() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peer = listener.local_addr().unwrap();
    let (report, _) = History::new(Clock::system(), "other", false).report(Since::Ever, 0);
    let body = serde_json::to_string(&report).unwrap() + &" ".repeat(7 << 20);
    let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 1024]).await;
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    let served = Served::start_as("replica", &[peer]).await;
    let silent = served.report("/api/status").await.replicas[1].silent.clone().unwrap();
    assert!(silent.contains("length limit"), "{silent}");
}
