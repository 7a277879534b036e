//! Hundreds of interruptions at once: what they cost, who waits for whom, and what is left of a server's bad moment.
//!
//! The API server does a bounded number of calls at a time here, so that a storm takes virtual time and can be disturbed in its
//! middle. Sizes are a part of what is promised for thousands, for each of these tests is to take a second or two.

use crate::harness::{Stage, instance, node, s};
use ebbtide::fact::TaskKind;
use ebbtide::runtime::random;
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::{Interrupt, Pod};
use ebbtide_sim::messages::{self, Wrapping};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::sleep;

const PATCH: &str = "patch nodes";
const LIST: &str = "list pods";
const EVICT: &str = "create pods/eviction";
const RECEIVE: &str = "ReceiveMessage";
const DELETE: &str = "DeleteMessageBatch";
const EXTEND: &str = "ChangeMessageVisibilityBatch";

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// A world whose API server does 500 calls a second, 10 at a time: a hundred nodes are drained in about a second.
fn busy(nodes: usize, pods: usize) -> Stage {
    let stage = Stage::new(nodes, pods);
    // Waits are jittered, and what is measured depends on them.
    random::seed(1);
    stage.world.kube.busy(10, ms(20));
    stage
}

/// How many calls of an operation each subject has seen.
fn of_each(stage: &Stage, operation: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for call in stage.world.calls.of(operation) {
        *counts.entry(call.subject).or_default() += 1;
    }
    counts
}

/// How many calls a service was asked; watches, which stay open, apart.
fn calls_to(stage: &Stage, service: &str) -> usize {
    let calls = stage.world.calls.all();
    calls.iter().filter(|call| call.service == service && !call.operation.starts_with("watch ")).count()
}

/// Asserts that every pod of the first `nodes` nodes was evicted, by one call that was accepted, and that it is gone.
fn all_evicted_once(stage: &Stage, nodes: usize, pods: usize) {
    let mut ends: BTreeMap<String, usize> = BTreeMap::new();
    for ended in stage.world.kube.evictions() {
        *ends.entry(ended.name).or_default() += 1;
    }
    let expected = (0..nodes).flat_map(|n| (0..pods).map(move |pod| (format!("web-{n}-{pod}"), 1)));
    assert_eq!(ends, expected.collect(), "{}", stage.story());
    assert_eq!(stage.world.kube.pods().len(), 0);
}

/// A share of so many, rounded up.
fn share(of: usize, hundredths: usize) -> usize {
    (of * hundredths).div_ceil(100)
}

/// Asserts that the calls to SQS since `begun` are as few as batches of ten make them: a quarter for each of these messages, and
/// a tenth for each 20 s that it was held.
fn batched(stage: &Stage, messages: usize, begun: Duration) {
    let took = stage.world.clock.elapsed().saturating_sub(begun);
    let spans = usize::try_from(took.as_secs() / 20).expect("it must end");
    let calls = [RECEIVE, DELETE, EXTEND].map(|operation| stage.calls(operation));
    // An empty queue is asked every 20 s, whoever waits.
    let polls = spans;
    assert!(calls.iter().sum::<usize>() <= polls + share(messages, 25 + 10 * spans), "{calls:?} in {took:?}");
}

#[tokio::test(start_paused = true)]
async fn every_spot_notice_costs_what_it_would_alone() {
    // 300 of several hundred.
    let (nodes, pods) = (300, 2);
    let stage = busy(nodes, pods);
    let replica = stage.start(&[]).await;
    sleep(s(1)).await;
    let (before, begun) = (calls_to(&stage, "kube"), stage.world.clock.elapsed());
    for n in 0..nodes {
        stage.spot(n);
    }
    stage.until_handled(s(60)).await;
    assert_eq!(calls_to(&stage, "kube") - before, nodes * (pods + 3), "{}", stage.story());
    assert_eq!((calls_to(&stage, "ec2"), calls_to(&stage, "autoscaling")), (0, 0));
    batched(&stage, nodes, begun);
    replica.all_ended("spot", &[("drained", nodes)]);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn drains_that_end_one_by_one_are_acknowledged_in_batches() {
    let nodes = 300;
    let stage = busy(nodes, 0);
    for n in 0..nodes {
        let takes = ms(200 * n as u64);
        stage.world.kube.add_pod(Pod::on(&node(n)).named(&format!("web-{n}-0")).grace(s(90)).stops_in(takes));
    }
    let replica = stage.start(&[]).await;
    let begun = stage.world.clock.elapsed();
    for n in 0..nodes {
        stage.spot(n);
    }
    stage.until_handled(s(110)).await;
    batched(&stage, nodes, begun);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_lifecycle_notice_costs_one_completion_more() {
    let (nodes, pods) = (250, 1);
    let stage = busy(nodes, 0);
    for n in 0..nodes {
        stage.world.kube.add_pod(Pod::on(&node(n)).named(&format!("web-{n}-0")).grace(s(90)).stops_in(s(45)));
    }
    let replica = stage.start(&[]).await;
    sleep(s(1)).await;
    let (before, begun) = (calls_to(&stage, "kube"), stage.world.clock.elapsed());
    for n in 0..nodes {
        stage.terminate(n, s(300), Wrapping::Event);
    }
    stage.until_handled(s(100)).await;
    assert_eq!(calls_to(&stage, "kube") - before, nodes * (pods + 3), "{}", stage.story());
    let calls =
        ["DescribeLifecycleHooks", "CompleteLifecycleAction", "RecordLifecycleActionHeartbeat", "DescribeInstances"];
    assert_eq!(calls.map(|operation| stage.calls(operation)), [1, nodes, 0, 0]);
    batched(&stage, nodes, begun);
    stage.rest(&[&replica]).await;
}

/// Beside drains that a budget blocks, hooks that need heartbeats, other clusters' instances, and copies.
#[tokio::test(start_paused = true)]
async fn an_undisturbed_drain_costs_the_same_whatever_else_goes_on() {
    let (nodes, pods) = (120, 3);
    let stage = busy(nodes, pods);
    let blocked = (0..nodes).filter(|n| n % 4 == 1);
    blocked.for_each(|n| stage.block(n));
    let replica = stage.start(&[]).await;
    for n in 0..nodes {
        match n % 4 {
            0 | 1 => drop(stage.spot(n)),
            2 => drop(stage.terminate(n, s(60), Wrapping::Event)),
            _ => {
                stage.world.aws.sqs.send("{}");
                // Nobody's.
                stage.spot(nodes + n);
                // Of a node that another notice drains.
                let at = stage.world.clock.now();
                stage.world.aws.sqs.send(messages::state_change(
                    &format!("state-{n}"),
                    &instance(n - 1),
                    "shutting-down",
                    at,
                ));
            }
        }
    }
    stage.until_handled(s(130)).await;
    let [patches, lists, evictions] = [PATCH, LIST, EVICT].map(|operation| of_each(&stage, operation));
    for n in (0..nodes).step_by(4) {
        let evictions = (0..pods).map(|pod| evictions[&format!("default/web-{n}-{pod}")]);
        assert_eq!((patches[&node(n)], lists[&node(n)], evictions.collect::<Vec<_>>()), (1, 2, vec![1; pods]), "{n}");
    }
    assert_eq!(["get nodes", "get pods"].map(|operation| stage.calls(operation)), [0, 0]);
    stage.rest(&[&replica]).await;
}

/// A storm of lifecycle notices, `copies` of each, of which some are delivered more than once. Gives how many calls the API server,
/// Auto Scaling and SQS were asked, and how many deliveries there were.
async fn with_copies(nodes: usize, copies: usize, redelivered: f64) -> [usize; 4] {
    let stage = busy(nodes, 2);
    stage.world.aws.sqs.duplicate_chance(redelivered);
    let replica = stage.start(&[]).await;
    let tokens: Vec<_> = (0..nodes).map(|n| stage.terminate(n, s(300), Wrapping::Event)).collect();
    for _ in 1..copies {
        for (n, token) in tokens.iter().enumerate() {
            stage.send_terminate(n, token, Wrapping::Event);
        }
    }
    stage.until_handled(s(60)).await;
    for token in &tokens {
        stage.completed_once(token);
    }
    all_evicted_once(&stage, nodes, 2);
    assert_eq!(replica.tasks.started(TaskKind::Interruption), nodes as u64);
    let received = stage.world.aws.sqs.receive_log().len();
    let counts = ["kube", "autoscaling", "sqs"].map(|service| calls_to(&stage, service));
    stage.rest(&[&replica]).await;
    [counts[0], counts[1], counts[2], received]
}

#[tokio::test(start_paused = true)]
async fn copies_cost_their_receipts_and_no_more() {
    let nodes = 80;
    let [kube, autoscaling, sqs, _] = with_copies(nodes, 1, 0.0).await;
    let [kube_10, autoscaling_10, sqs_10, received] = with_copies(nodes, 10, 0.2).await;
    assert!(received > nodes * 11, "some came twice: {received}");
    assert_eq!((kube_10, autoscaling_10), (kube, autoscaling));
    assert!(sqs_10 <= share(received, 25), "{sqs_10} calls for {received} deliveries");
    assert!(autoscaling_10 + sqs_10 < 10 * (autoscaling + sqs) / 2, "{autoscaling_10} {sqs_10} {autoscaling} {sqs}");
}

#[tokio::test(start_paused = true)]
async fn two_replicas_share_a_storm() {
    let (nodes, pods) = (200, 2);
    let stage = busy(nodes, pods);
    // As long as SQS takes: in no time at all, one of them would have everything.
    stage.world.faults.add(Rule::on(RECEIVE, Fault::Slow(ms(15))));
    let (first, second) = (stage.start(&[]).await, stage.start(&[]).await);
    for n in 0..nodes {
        stage.spot(n);
    }
    stage.until_handled(s(60)).await;
    let received: Vec<_> = stage.world.aws.sqs.receive_log().into_iter().map(|received| received.id).collect();
    assert_eq!((received.len(), received.iter().collect::<BTreeSet<_>>().len()), (nodes, nodes));
    all_evicted_once(&stage, nodes, pods);
    assert_eq!([PATCH, LIST, EVICT].map(|operation| stage.calls(operation)), [nodes, 2 * nodes, pods * nodes]);
    let shares = [&first, &second].map(|replica| replica.tasks.started(TaskKind::Interruption));
    assert!(shares.iter().all(|share| *share >= nodes as u64 / 4), "{shares:?}");
    stage.rest(&[&first, &second]).await;
}

/// Sends a spot notice so long after a storm of hooks began, and tells how long the cordon took, and all evictions.
async fn heard_after(wait: Duration) -> [Duration; 2] {
    // 100 of a thousand, and a server that is slower in proportion: 200 calls a second, so all of it takes 4 s.
    let nodes = 100;
    let stage = busy(nodes, 0);
    stage.world.kube.busy(4, ms(20));
    for n in 0..nodes {
        for pod in 0..6 {
            let pod = Pod::on(&node(n)).named(&format!("long-{n}-{pod}")).grace(s(600)).stops_in(s(240));
            stage.world.kube.add_pod(pod);
        }
    }
    let (name, web) = (node(nodes), ["web-0", "web-1", "web-2"]);
    stage.world.kube.add_node(&name, &instance(nodes));
    for pod in web {
        stage.world.kube.add_pod(Pod::on(&name).named(pod).stops_in(s(2)));
    }
    let replica = stage.start(&[]).await;
    for n in 0..nodes {
        stage.terminate(n, s(3600), Wrapping::Event);
    }
    sleep(wait).await;
    assert!(stage.calls(EVICT) < 3 * nodes, "it is in full swing: {}", stage.calls(EVICT));
    let sent = stage.world.clock.elapsed();
    stage.spot(nodes);
    stage.until("cordoned", s(10), || stage.cordoned(nodes)).await;
    let cordoned = stage.world.clock.elapsed().saturating_sub(sent);
    stage.until("evicted", s(20), || web.iter().all(|pod| !stage.ends_of(pod).is_empty())).await;
    let evicted = stage.world.clock.elapsed().saturating_sub(sent);
    stage.until_handled(s(300)).await;
    stage.rest(&[&replica]).await;
    [cordoned, evicted]
}

#[tokio::test(start_paused = true)]
async fn a_spot_notice_is_heard_in_the_middle_of_a_storm_of_hooks() {
    // While cordons queue, and while lists and evictions do.
    for wait in [ms(300), ms(1200)] {
        let [cordoned, evicted] = heard_after(wait).await;
        assert!(
            cordoned <= s(1) && evicted <= s(2),
            "after {wait:?}: cordoned in {cordoned:?}, evicted in {evicted:?}"
        );
    }
}

/// The bodies that can't be read, each of which is a fixture.
fn malformed() -> Vec<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/events");
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let bad = |path: &std::path::PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("bad-");
    let mut paths: Vec<_> = paths.filter(bad).collect();
    paths.sort();
    paths.into_iter().map(|path| std::fs::read_to_string(path).unwrap()).collect()
}

/// A storm of as many spot notices as nodes, after each of which comes one that can't be read. Gives when the nodes were cordoned.
async fn with_poison(nodes: usize, poison: &[String]) -> Vec<Duration> {
    let stage = busy(nodes, 1);
    // As long as SQS takes: the poison is to cost something.
    stage.world.faults.add(Rule::on(RECEIVE, Fault::Slow(ms(15))));
    let replica = stage.start(&[]).await;
    sleep(s(1)).await;
    let begun = stage.world.clock.elapsed();
    for n in 0..nodes {
        if let Some(body) = poison.get(n % poison.len().max(1)) {
            stage.world.aws.sqs.send(body.clone());
        }
        stage.spot(n);
    }
    stage.until_handled(s(60)).await;
    all_evicted_once(&stage, nodes, 1);
    let messages = if poison.is_empty() { nodes } else { 2 * nodes };
    assert_eq!((stage.world.aws.sqs.receive_log().len(), stage.world.aws.sqs.deleted().len()), (messages, messages));
    let reasons = ["not-json", "unknown-shape", "missing-field", "bad-value"];
    let counted = reasons.map(|why| replica.metric(&format!("ebbtide_messages_malformed_total{{reason=\"{why}\"}}")));
    assert!((counted.iter().sum::<f64>() - (messages - nodes) as f64).abs() < f64::EPSILON, "{counted:?}");
    assert!(poison.is_empty() || counted.iter().all(|times| *times > 0.0), "{counted:?}");
    batched(&stage, messages, begun);
    stage.rest(&[&replica]).await;
    // One for each node: nothing failed.
    stage.world.calls.of(PATCH).into_iter().map(|call| call.at.saturating_sub(begun)).collect()
}

#[tokio::test(start_paused = true)]
async fn as_many_poison_messages_as_good_ones_delay_nobody() {
    // 200 of a thousand.
    let nodes = 200;
    let (clean, poisoned) = (with_poison(nodes, &[]).await, with_poison(nodes, &malformed()).await);
    for (n, (clean, poisoned)) in clean.into_iter().zip(poisoned).enumerate() {
        assert!(poisoned <= clean + ms(100), "the cordon number {n}: {poisoned:?}, and {clean:?} without poison");
    }
}

/// How long a bad moment lasts.
const OUTAGE: Duration = s(20);

/// What the API server is asked in a storm.
const ASKED: [&str; 8] = [PATCH, LIST, EVICT, "get nodes", "delete pods", "list nodes", "watch nodes", "watch pods"];

/// A storm; with a fault the API server answers with nothing else for 20 s in its middle. Gives how long it all took, and how often the
/// same call was made in vain at the most.
async fn storm(nodes: usize, fault: Option<Fault>) -> (Duration, usize) {
    let pods = 2;
    let stage = busy(nodes, pods);
    let replica = stage.start(&[]).await;
    sleep(s(1)).await;
    let begun = stage.world.clock.elapsed();
    for n in 0..nodes {
        stage.spot(n);
    }
    let mut in_vain: BTreeMap<(String, String), usize> = BTreeMap::new();
    if let Some(fault) = fault {
        stage.until("the middle of it", s(10), || stage.calls(EVICT) > nodes * pods / 2).await;
        for operation in ASKED {
            stage.world.faults.add(Rule::on(operation, fault));
        }
        if fault == Fault::Disconnect {
            stage.world.kube.interrupt_watches(Interrupt::Break);
        }
        let before = stage.world.calls.all().len();
        sleep(OUTAGE).await;
        stage.world.faults.clear();
        for call in stage.world.calls.all().split_off(before).into_iter().filter(|call| call.service == "kube") {
            *in_vain.entry((call.operation, call.subject)).or_default() += 1;
        }
        assert!(in_vain.len() > nodes, "it is in full swing: {in_vain:?}");
    }
    stage.until_handled(s(110)).await;
    let took = stage.world.clock.elapsed().saturating_sub(begun);
    all_evicted_once(&stage, nodes, pods);
    replica.all_ended("spot", &[("drained", nodes)]);
    stage.rest(&[&replica]).await;
    (took, in_vain.into_values().max().unwrap_or_default())
}

/// How much longer than the outage a storm takes that has one: no wait between two tries is longer than 5 s.
const TAIL: Duration = s(6);

/// How often the same call is made in vain in an outage at the most, if it fails at once each time: after the first few tries it waits for
/// 2.5 to 5 s.
const TRIES: usize = 12;

async fn costs_that_time_and_little_more(fault: Fault, and: Duration, tries: usize) {
    let nodes = 40;
    let (undisturbed, _) = storm(nodes, None).await;
    let (took, most) = storm(nodes, Some(fault)).await;
    assert!(took <= undisturbed + OUTAGE + and + TAIL, "{fault:?}: {took:?}, and {undisturbed:?} without");
    assert!(most <= tries, "{fault:?}: {most} tries of one call");
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_refuses_everything_costs_that_time() {
    costs_that_time_and_little_more(Fault::ThrottleFor(1), s(0), TRIES).await;
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_refuses_everything_and_does_not_say_for_how_long_costs_that_time() {
    costs_that_time_and_little_more(Fault::Status(429), s(0), TRIES).await;
}

#[tokio::test(start_paused = true)]
async fn an_api_server_whose_connections_break_costs_that_time() {
    // The watch of pods is begun again after 10 s at most.
    costs_that_time_and_little_more(Fault::Disconnect, s(5), TRIES).await;
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_hangs_costs_that_time_and_a_timeout() {
    // What began just before it answers again is given up 10 s later.
    costs_that_time_and_little_more(Fault::Hang, s(10), 3).await;
}

/// A storm on a queue that fails for 20 s, which begin so long after the first half of the messages came; the others come meanwhile. Gives
/// how often each message was received at the most, and how long after the outage the last pod was evicted.
async fn on_a_queue_that_fails(fault: Fault, from: Duration) -> (usize, Duration) {
    let nodes = 100;
    let stage = busy(nodes, 0);
    for n in 0..nodes {
        stage.world.kube.add_pod(Pod::on(&node(n)).named(&format!("web-{n}-0")).grace(s(60)).stops_in(s(30)));
    }
    let replica = stage.start(&[]).await;
    (0..nodes / 2).for_each(|n| drop(stage.spot(n)));
    sleep(from).await;
    for operation in [RECEIVE, DELETE, EXTEND] {
        stage.world.faults.add(Rule::on(operation, fault));
    }
    sleep(OUTAGE / 2).await;
    (nodes / 2..nodes).for_each(|n| drop(stage.spot(n)));
    sleep(OUTAGE / 2).await;
    stage.world.faults.clear();
    let over = stage.world.clock.elapsed();
    stage.until_handled(s(110)).await;
    all_evicted_once(&stage, nodes, 1);
    let last = stage.world.kube.evictions().into_iter().map(|ended| ended.at).max().unwrap_or_default();
    let mut receives: BTreeMap<String, usize> = BTreeMap::new();
    for received in stage.world.aws.sqs.receive_log() {
        *receives.entry(received.id).or_default() += 1;
    }
    assert_eq!((receives.len(), stage.world.aws.sqs.deleted().len()), (nodes, nodes));
    stage.rest(&[&replica]).await;
    (receives.into_values().max().unwrap_or_default(), last.saturating_sub(over))
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_fails_for_a_while_loses_nothing() {
    // The second begins so late that a visibility of 30 s ends before it does.
    for (fault, from, receives) in [(Fault::Throttle, s(2), 1), (Fault::Status(503), s(15), 2)] {
        let (most, late) = on_a_queue_that_fails(fault, from).await;
        assert_eq!(most, receives, "{fault:?} {from:?}");
        assert!(late <= TAIL, "{fault:?} {from:?}: {late:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_storm_whose_process_is_killed_is_taken_over_as_it_stands() {
    let (nodes, pods) = (100, 2);
    let stage = busy(nodes, 0);
    for n in 0..nodes {
        for pod in 0..pods {
            let pod = Pod::on(&node(n)).named(&format!("web-{n}-{pod}")).grace(s(90)).stops_in(s(60));
            stage.world.kube.add_pod(pod);
        }
    }
    let first = stage.start(&[]).await;
    let tokens: Vec<_> = (0..nodes).map(|n| stage.terminate(n, s(600), Wrapping::Event)).collect();
    stage.until("the middle of it", s(10), || stage.calls(EVICT) > nodes * pods / 2).await;
    let second = stage.start(&[]).await;
    first.kill().await.gone(|_| true).await;
    // Calls that were in flight are not counted: they may or may not have had their effect.
    let (evicted, tried) = (stage.world.kube.evictions().len(), stage.calls(EVICT));
    assert!((nodes..nodes * pods).contains(&tried), "it is in full swing: {tried}");
    sleep(s(25)).await;
    assert_eq!(stage.calls(EVICT), tried, "the messages are not yet visible");
    stage.until("all evicted", s(10), || stage.world.kube.evictions().len() == nodes * pods).await;
    stage.until_handled(s(70)).await;
    all_evicted_once(&stage, nodes, pods);
    assert_eq!(stage.calls(EVICT) - tried, nodes * pods - evicted, "what was on its way was left alone");
    assert!(stage.world.aws.sqs.receive_log().len() <= 2 * nodes);
    assert_eq!(second.tasks.started(TaskKind::Interruption), nodes as u64);
    for token in &tokens {
        stage.completed_once(token);
    }
    stage.rest(&[&second]).await;
}
