//! Measures the heap bytes that the service holds, counted by the allocator: `cargo bench --bench memory [-- CASE]`.
//!
//! Bytes are the requested sizes. An allocator adds overhead to each block (glibc: 8 bytes, rounded up to 16), so the number of blocks
//! is counted, too. `-- CASE --profile FILE` instead writes the allocations of an idle case to a file for DHAT's viewer.
//!
//! Without `--bench` every case runs with few Nodes and notices, as a check that it works.
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, reason = "a benchmark may panic")]
#![allow(clippy::cast_precision_loss, reason = "numbers for people")]
#![allow(clippy::disallowed_methods, reason = "the service's task ends with the benchmark")]

#[allow(dead_code, clippy::format_collect, reason = "the tests use the rest")]
#[path = "../tests/service/harness.rs"]
mod harness;
#[allow(dead_code, reason = "the other benchmark uses the rest")]
mod wire;

use bytes::Bytes;
use dhat::{HeapStats, Profiler};
use ebbtide::fact::{Facts, TaskKind};
use ebbtide::pipeline::Deliverer;
use ebbtide::pipeline::Drainer;
use ebbtide::pipeline::Interrupter;
use ebbtide::pipeline::{Index, Node, node_api};
use ebbtide::service::Service;
use ebbtide_sim::aws::HookSpec;
use ebbtide_sim::kube::{Limit, Pod};
use ebbtide_sim::messages::{self, Wrapping};
use futures_util::{Stream, StreamExt, stream};
use harness::{Replica, Stage, instance, node, s};
use http::{Request, Response};
use http_body_util::StreamBody;
use hyper::body::Frame;
use kube::client::Body;
use std::convert::Infallible;
use std::iter;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::time::timeout;

#[global_allocator]
static HEAP: dhat::Alloc = dhat::Alloc;

/// Notices that wait for something.
struct Case {
    name: &'static str,
    /// Number of pods that a budget keeps on each node.
    pods: usize,
    flags: &'static [&'static str],
    /// Sends the n-th node's notice.
    send: fn(&Stage, usize),
    /// Tasks that run for each notice.
    tasks: &'static [TaskKind],
    /// Number of notices; the result is compared with that for twice as many.
    count: usize,
}

const CASES: [Case; 5] = [
    Case {
        name: "launch",
        pods: 0,
        flags: &["--on", "asg-launch=ready"],
        send: launch,
        tasks: &[TaskKind::Message, TaskKind::Interruption, TaskKind::Heartbeat],
        count: 1000,
    },
    Case {
        name: "spot",
        pods: 1,
        flags: &[],
        send: |stage, n| _ = stage.spot(n),
        tasks: &[TaskKind::Message, TaskKind::Interruption, TaskKind::Drain],
        count: 1000,
    },
    Case {
        name: "hook",
        pods: 1,
        flags: &[],
        send: |stage, n| _ = stage.terminate(n, s(3600), Wrapping::Event),
        tasks: &[TaskKind::Message, TaskKind::Interruption, TaskKind::Heartbeat, TaskKind::Drain],
        count: 1000,
    },
    Case {
        name: "hook-longest-names",
        pods: 1,
        flags: &[],
        send: longest_names,
        tasks: &[TaskKind::Message, TaskKind::Interruption, TaskKind::Heartbeat, TaskKind::Drain],
        count: 1000,
    },
    Case {
        name: "hook-30-pods",
        pods: 30,
        flags: &[],
        send: |stage, n| _ = stage.terminate(n, s(3600), Wrapping::Event),
        tasks: &[TaskKind::Message, TaskKind::Interruption, TaskKind::Heartbeat, TaskKind::Drain],
        count: 100,
    },
];

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let measured = arguments.iter().any(|argument| argument == "--bench");
    let chosen = |name: &str| {
        let mut names = arguments.iter().filter(|argument| !argument.starts_with("--")).peekable();
        names.peek().is_none() || names.any(|argument| argument == name)
    };
    if let Some(at) = arguments.iter().position(|argument| argument == "--profile") {
        let file = arguments.get(at + 1).expect("--profile needs a file");
        for case in CASES.iter().filter(|case| chosen(case.name)) {
            profile(case, case.count, file);
        }
        return;
    }
    if chosen("futures") {
        futures();
    }
    if chosen("index") {
        // Warm-up, for allocations that are made once per process.
        for tells in [Tells::InWatch, Tells::InList] {
            runtime().block_on(first_nodes(&Index::default(), 1, tells));
        }
        nodes(if measured { 15_000 } else { 100 });
    }
    if chosen("worst-message") {
        let (instances, drains) = if measured { (35_500, 1_000) } else { (300, 100) };
        for (nodes, copies) in [(0, 1), (drains, 1), (drains, 4)] {
            runtime().block_on(WorstMessage { instances, nodes, copies }.measure());
        }
    }
    let _profiler = profiler();
    println!("\n{:<36}{:>12}{:>12}", "an idle interruption", "bytes", "blocks");
    for case in CASES.iter().filter(|case| chosen(case.name)) {
        let count = if measured { case.count } else { 10 };
        let (one, two) = (held(case, count), held(case, 2 * count));
        println!("{:<36}{:>12.0}{:>12.1}", case.name, one.bytes_of_one(two, count), one.blocks_of_one(two, count));
    }
}

/// Starts counting allocations.
fn profiler() -> Profiler {
    // Backtraces are not needed here, and few frames are quicker.
    Profiler::builder().testing().trim_backtraces(Some(4)).build()
}

/// Prints the sizes of the futures that live as long as a message, a notice or a drain.
fn futures() {
    fn of_three<A, B, C, F>(_: impl FnOnce(A, B, C) -> F) -> usize {
        size_of::<F>()
    }
    fn of_four<A, B, C, D, F>(_: impl FnOnce(A, B, C, D) -> F) -> usize {
        size_of::<F>()
    }
    fn of_one<A, F>(_: impl FnOnce(A) -> F) -> usize {
        size_of::<F>()
    }
    println!("\n{:<36}{:>12}", "a future", "bytes");
    for (name, bytes) in [
        ("Deliverer::deliver, a message's", of_three(Deliverer::deliver)),
        ("Interrupter::act, a notice's", of_four(Interrupter::act)),
        ("Drainer::run, a drain's", of_three(Drainer::run)),
        ("Index::watch, one in a process", of_four(Index::watch)),
        ("Service::run, one in a process", of_one(Service::run)),
    ] {
        println!("{name:<36}{bytes:>12}");
    }
}

/// How an API server sends the initial Nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tells {
    /// One by one, at the beginning of a watch.
    InWatch,
    /// In a list, because the server can't begin a watch with them.
    InList,
}

/// Prints the heap use of the index for each of `count` Nodes, and the peak while they arrive.
fn nodes(count: usize) {
    let wire = (0..count).map(|n| wire::node(n).len()).sum::<usize>();
    let each = |bytes: usize| bytes as f64 / count as f64;
    println!("\n{:<36}{:>12}{:>12}", format!("{count} Nodes"), "bytes each", "blocks each");
    println!("{:<36}{:>12.0}", "on the wire", each(wire));
    println!("{:<36}{:>12}{:>12}", "the struct in the index", size_of::<Node>(), 1);
    for (tells, name) in [(Tells::InWatch, "a watch"), (Tells::InList, "a list")] {
        // A new profiler for each run, because the peak is the maximum since its start.
        let _profiler = profiler();
        let before = Heap::now();
        let index = Index::default();
        runtime().block_on(first_nodes(&index, count, tells));
        let (after, peak) = (Heap::now(), HeapStats::get().max_bytes);
        assert_eq!(index.len(), count);
        drop(index);
        assert_eq!(Heap::now(), before, "nothing of them is kept anywhere else");
        let (bytes, blocks) = (each(after.bytes - before.bytes), each(after.blocks - before.blocks));
        println!("{:<36}{bytes:>12.0}{blocks:>12.1}", format!("in the index, after {name}"));
        println!("{:<36}{:>12.0}", format!("at the peak, by {name}"), each(peak - before.bytes));
    }
}

/// Fills the index with `count` Nodes from an API server that serves nothing else.
async fn first_nodes(index: &Index, count: usize, tells: Tells) {
    let serve = move |request: Request<Body>| async move {
        let asked = |what: &str| request.uri().query().is_some_and(|query| query.split('&').any(|part| part == what));
        Ok::<_, Infallible>(match (asked("watch=true"), tells) {
            (true, Tells::InWatch) => {
                assert!(asked("sendInitialEvents=true"), "it begins with all that there are: {}", request.uri());
                watched(count)
            }
            (true, Tells::InList) => refused(),
            (false, Tells::InList) => listed(count),
            (false, Tells::InWatch) => panic!("what a watch tells is not asked for again: {}", request.uri()),
        })
    };
    let client = kube::Client::new(tower::service_fn(serve), "default");
    let (synced, known) = oneshot::channel();
    let watch = index.clone().watch(node_api(client), Facts::to(Vec::new()), synced);
    tokio::select! {
        () = watch => unreachable!("a watch does not end"),
        // The paused clock advances only when all tasks are idle, so this does not slow the run.
        known = timeout(s(60), known) => known.expect("the Nodes must arrive").expect("the watch must say so"),
    }
}

type Parts = Box<dyn Stream<Item = Result<Frame<Bytes>, Infallible>> + Send + Unpin>;

/// Returns a response whose parts are made one at a time, as the client reads them.
fn answer(status: u16, parts: impl Stream<Item = String> + Send + Unpin + 'static) -> Response<StreamBody<Parts>> {
    let frames: Parts = Box::new(parts.map(|part| Ok(Frame::data(Bytes::from(part)))));
    let response = Response::builder().status(status).header("content-type", "application/json");
    response.body(StreamBody::new(frames)).expect("a response must be one")
}

/// A watch that sends `count` Nodes and the bookmark that ends the initial list, and then stays open.
fn watched(count: usize) -> Response<StreamBody<Parts>> {
    let lines = (0..count).map(|n| wire::added(&wire::node(n))).chain(iter::once_with(wire::all_nodes_told));
    answer(200, stream::iter(lines.map(|line| line + "\n")).chain(stream::pending()))
}

/// Response of a server that can't begin a watch with the initial objects.
fn refused() -> Response<StreamBody<Parts>> {
    let status = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422,"message":
        "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"}"#;
    answer(422, stream::iter([status.to_owned()]))
}

fn listed(count: usize) -> Response<StreamBody<Parts>> {
    let begin = r#"{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"1000000"},"items":["#.to_owned();
    let items = (0..count).map(|n| if n == 0 { wire::node(n) } else { format!(",{}", wire::node(n)) });
    answer(200, stream::iter(iter::once(begin).chain(items).chain(iter::once("]}".to_owned()))))
}

/// Maximum heap that a message of a MiB may take, with the drains that it begins.
const WORST_MESSAGE: usize = 40 << 20;

/// A message of a MiB, which names as many instances as it has room for.
struct WorstMessage {
    instances: usize,
    /// Number of the instances that have a Node, whose drain a budget holds.
    nodes: usize,
    /// Number of copies of the message that come at once.
    copies: usize,
}

impl WorstMessage {
    /// Prints the heap of the service at the peak, and while the drains are held.
    async fn measure(&self) {
        let Self { instances, nodes, copies } = *self;
        let stage = Stage::new(nodes, 0);
        for n in 0..nodes {
            stage.world.kube.add_pod(Pod::on(&node(n)).labels([("app", "web")]));
        }
        stage.world.kube.add_budget("default", "web", [("app", "web")], Limit::MaxUnavailable(0));
        let body = naming(&stage, instances, nodes);
        // Only now, because a peak would contain the making of the message.
        let _profiler = profiler();
        let replica = stage.start(&["--max-draining=none"]).await;
        tokio::time::sleep(s(5)).await;
        let before = Heap::now().bytes;
        for _ in 0..copies {
            stage.world.aws.sqs.send(body.clone());
        }
        tokio::time::sleep(s(10)).await;
        let (now, peak) = (Heap::now().bytes, HeapStats::get().max_bytes);
        assert_eq!(usize::try_from(replica.tasks.alive(TaskKind::Drain)), Ok(nodes), "{}", stage.story());
        end(replica).await;
        let after = Heap::now().bytes;
        println!("\n{:<36}{:>12}{:>12}", format!("{copies} x {} bytes of message", body.len()), "bytes", "each");
        // The service's end frees what it held; the rest is the simulation's.
        for (name, bytes) in [("at the peak", peak - after.max(before)), ("held", now - after)] {
            let name = format!("{name}, {instances} instances, {nodes} drains");
            println!("{name:<48}{bytes:>12}{:>12.0}", bytes as f64 / instances as f64);
        }
        assert!(peak - after.max(before) < WORST_MESSAGE, "{peak} bytes");
    }
}

/// Returns a Health event that names the instances of the first `nodes` Nodes, and others. Those have the short ids of EC2's first years,
/// and no status, so that as many as possible fit into a message.
fn naming(stage: &Stage, instances: usize, nodes: usize) -> String {
    let now = stage.world.clock.now();
    let code = "AWS_EC2_SYSTEM_REBOOT_MAINTENANCE_SCHEDULED";
    let body = messages::scheduled_change("worst", code, &["ID"], now, now + s(86_400));
    let ids = (0..nodes).map(instance).chain((nodes..instances).map(|n| format!("i-{n:08x}")));
    let entities: Vec<String> = ids.map(|id| format!("{{\"entityValue\":\"{id}\"}}")).collect();
    let one = "{\"entityValue\":\"ID\",\"status\":\"IMPAIRED\"}";
    assert!(body.contains(one), "{body}");
    body.replace(one, &entities.join(","))
}

/// Returns the heap use of a service with `count` waiting notices: what its end frees. The simulation's memory is not counted.
fn held(case: &Case, count: usize) -> Heap {
    runtime().block_on(async {
        let (stage, replica) = idle(case, count).await;
        let before = Heap::now();
        end(replica).await;
        let after = Heap::now();
        drop(stage);
        Heap { bytes: before.bytes - after.bytes, blocks: before.blocks - after.blocks }
    })
}

/// Writes a heap profile of a service with `count` waiting notices. The profile includes the simulation.
fn profile(case: &Case, count: usize, file: &str) {
    runtime().block_on(async {
        let profiler = Profiler::builder().file_name(file).trim_backtraces(Some(60)).build();
        let waiting = idle(case, count).await;
        drop(profiler);
        drop(waiting);
    });
}

/// Starts a service with `count` waiting notices.
async fn idle(case: &Case, count: usize) -> (Stage, Replica) {
    let stage = Stage::new(count, 0);
    for n in 0..count {
        for pod in 0..case.pods {
            let pod = Pod::on(&node(n)).named(&format!("web-5d4f8b7c9-{n:05}-{pod}"));
            stage.world.kube.add_pod(pod.labels([("app", "web")]));
        }
    }
    stage.world.kube.add_budget("default", "web", [("app", "web")], Limit::MaxUnavailable(0));
    // Without the limit all are worked on at once.
    let replica = stage.start(&[case.flags, &["--max-draining=none"]].concat()).await;
    tokio::time::sleep(s(5)).await;
    for n in 0..count {
        (case.send)(&stage, n);
    }
    tokio::time::sleep(s(45)).await;
    for &kind in case.tasks {
        assert_eq!(usize::try_from(replica.tasks.alive(kind)), Ok(count), "{kind:?}\n{}", stage.story());
    }
    (stage, replica)
}

/// Kills a service, and waits until all its tasks are gone.
async fn end(replica: Replica) {
    let tasks = replica.kill().await;
    tasks.gone(|_| true).await;
    drop(tasks);
    // The clients' own tasks end once the clients are dropped.
    tokio::time::sleep(s(1)).await;
}

/// Launches the n-th node's instance; the node is not Ready yet.
fn launch(stage: &Stage, n: usize) {
    let world = &stage.world;
    world.kube.set_ready(&node(n), false);
    world.aws.autoscaling.add_hook("group", "launch-hook", HookSpec::launching(s(3600)));
    let token = world.aws.autoscaling.begin("group", "launch-hook", &instance(n));
    let names = ("group", "launch-hook", token.as_str());
    world.aws.sqs.send(messages::lifecycle(Wrapping::Event, false, names, &instance(n), world.clock.now()));
}

/// Sends a message about a hook whose names have as many bytes as a name may have, as if to fill the memory. The hook must exist: one that
/// Auto Scaling does not know has no heartbeat.
fn longest_names(stage: &Stage, n: usize) {
    let name = |of: &str| format!("{}{of}{n:05}", "界".repeat(249));
    let (group, hook, autoscaling) = (name("g"), name("h"), &stage.world.aws.autoscaling);
    autoscaling.add_hook(&group, &hook, HookSpec::terminating(s(3600)));
    let token = autoscaling.begin(&group, &hook, &instance(n));
    let names = (group.as_str(), hook.as_str(), token.as_str());
    stage.world.aws.sqs.send(messages::lifecycle(Wrapping::Bare, true, names, &instance(n), stage.world.clock.now()));
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime must start")
}

/// Allocated bytes and blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Heap {
    bytes: usize,
    blocks: usize,
}

impl Heap {
    fn now() -> Self {
        let stats = HeapStats::get();
        Self { bytes: stats.curr_bytes, blocks: stats.curr_blocks }
    }

    /// Returns the bytes that one more notice adds, if `self` holds `count` notices and `two` holds twice as many.
    fn bytes_of_one(self, two: Self, count: usize) -> f64 {
        (two.bytes as f64 - self.bytes as f64) / count as f64
    }

    fn blocks_of_one(self, two: Self, count: usize) -> f64 {
        (two.blocks as f64 - self.blocks as f64) / count as f64
    }
}
