//! Urgent notices in a storm: neither hooks nor malformed messages delay them.

use crate::harness::{instance, node, s};
use crate::resilience::storm::busy::{EVICT, PATCH, RECEIVE, all_evicted_once, batched, busy, ms};
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::Pod;
use ebbtide_sim::messages::Wrapping;
use std::time::Duration;
use tokio::time::sleep;

/// Sends a spot notice `wait` after the begin of a storm of hooks. Returns the time to its cordon, and to its last eviction.
async fn heard_after(wait: Duration) -> [Duration; 2] {
    // A tenth of a thousand, and a server that is slower in proportion: 200 calls a second, so the storm takes 4 s.
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
async fn a_spot_notice_in_a_storm_of_hooks_is_not_delayed() {
    // While cordons wait, and while lists and evictions wait.
    for wait in [ms(300), ms(1200)] {
        let [cordoned, evicted] = heard_after(wait).await;
        assert!(
            cordoned <= s(1) && evicted <= s(2),
            "after {wait:?}: cordoned in {cordoned:?}, evicted in {evicted:?}"
        );
    }
}

/// Returns the malformed bodies among the fixtures.
fn malformed() -> Vec<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/events");
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let bad = |path: &std::path::PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("bad-");
    let mut paths: Vec<_> = paths.filter(bad).collect();
    paths.sort();
    paths.into_iter().map(|path| std::fs::read_to_string(path).unwrap()).collect()
}

/// Runs a storm of spot notices, with a malformed message before each one. Returns the times of the cordons.
async fn with_poison(nodes: usize, poison: &[String]) -> Vec<Duration> {
    let stage = busy(nodes, 1);
    // The latency of SQS, so that malformed messages cost time.
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
    // One patch a node: none failed.
    stage.world.calls.of(PATCH).into_iter().map(|call| call.at.saturating_sub(begun)).collect()
}

#[tokio::test(start_paused = true)]
async fn malformed_messages_do_not_delay_the_others() {
    // A fifth of a thousand.
    let nodes = 200;
    let (clean, poisoned) = (with_poison(nodes, &[]).await, with_poison(nodes, &malformed()).await);
    for (n, (clean, poisoned)) in clean.into_iter().zip(poisoned).enumerate() {
        assert!(poisoned <= clean + ms(100), "the cordon number {n}: {poisoned:?}, and {clean:?} without poison");
    }
}
