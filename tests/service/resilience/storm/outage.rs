//! Outages in the middle of a storm: the API server, SQS or the process fails for a while.

use crate::harness::{Stage, instance, node, s, seed};
use crate::resilience::storm::busy::{DELETE, EVICT, EXTEND, LIST, PATCH, RECEIVE, all_evicted_once, busy};
use ebbtide::clients::CALL_TIMEOUT;
use ebbtide::fact::TaskKind;
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::{Interrupt, Pod};
use ebbtide_sim::messages::Wrapping;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::sleep;

/// Duration of an outage.
const OUTAGE: Duration = s(20);

/// Maximum time that a storm takes longer than its outage: no wait between two tries is longer than 5 s.
const TAIL: Duration = s(6);

/// Maximum number of tries of one call in an outage, if the call fails at once each time: after the first few tries the waits take
/// 2.5 to 5 s.
const TRIES: usize = 12;

/// Calls to the API server in a storm.
const ASKED: [&str; 8] = [PATCH, LIST, EVICT, "get nodes", "delete pods", "list nodes", "watch nodes", "watch pods"];

/// Runs a storm, with an outage of 20 s in its middle if there is a fault. Returns the duration of the storm, and the maximum
/// number of failed tries of one call.
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

async fn costs_that_time_and_little_more(fault: Fault, and: Duration, tries: usize) {
    let nodes = 40;
    let (undisturbed, _) = storm(nodes, None).await;
    let (took, most) = storm(nodes, Some(fault)).await;
    assert!(took <= undisturbed + OUTAGE + and + TAIL, "{fault:?}: {took:?}, and {undisturbed:?} without");
    assert!(most <= tries, "{fault:?}: {most} tries of one call");
}

#[tokio::test(start_paused = true)]
async fn throttling_with_retry_after_costs_its_outage() {
    costs_that_time_and_little_more(Fault::ThrottleFor(1), s(0), TRIES).await;
}

#[tokio::test(start_paused = true)]
async fn throttling_without_retry_after_costs_its_outage() {
    costs_that_time_and_little_more(Fault::Status(429), s(0), TRIES).await;
}

#[tokio::test(start_paused = true)]
async fn broken_connections_cost_their_outage() {
    // The watch of pods is restarted after at most 10 s.
    costs_that_time_and_little_more(Fault::Disconnect, s(5), TRIES).await;
}

#[tokio::test(start_paused = true)]
async fn a_hanging_api_server_costs_its_outage_and_a_timeout() {
    // A call made just before the end of the outage times out 10 s later.
    costs_that_time_and_little_more(Fault::Hang, s(10), 3).await;
}

/// Runs a storm on a queue that fails for 20 s, from `from` after the first half of the messages; the others are sent meanwhile.
/// Returns the maximum number of receives of one message, and the time between the outage and the last eviction.
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
    // The second outage begins so late that a visibility of 30 s ends during it.
    for (fault, from, receives) in [(Fault::Throttle, s(2), 1), (Fault::Status(503), s(15), 2)] {
        let (most, late) = on_a_queue_that_fails(fault, from).await;
        assert_eq!(most, receives, "{fault:?} {from:?}");
        assert!(late <= TAIL, "{fault:?} {from:?}: {late:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_storm_of_a_killed_process_is_taken_over_without_repetition() {
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
    // Calls in flight are not counted: they may or may not have had an effect.
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

/// Calls fail at random: every node is still drained, every hook completed once, and every message deleted.
#[tokio::test(start_paused = true)]
async fn random_faults_lose_no_node_hook_or_message() {
    for round in 0..4 {
        let stage = Stage { world: ebbtide_sim::World::new(seed().wrapping_add(round)), ..Stage::new(0, 0) };
        let mut tokens = Vec::new();
        for n in 0..30 {
            stage.world.kube.add_node(&node(n), &instance(n));
            for pod in 0..3 {
                stage.world.kube.add_pod(Pod::on(&node(n)).named(&format!("web-{n}-{pod}")).stops_in(s(5)));
            }
        }
        let faults = [
            Fault::Throttle,
            Fault::Status(500),
            Fault::Disconnect,
            Fault::LostResponse,
            Fault::Slow(s(3)),
            Fault::Hang,
        ];
        for fault in faults {
            stage.world.faults.add(Rule::on("*", fault).chance(0.04).times(60));
        }
        stage.world.aws.sqs.duplicate_chance(0.1);
        let first = stage.start(&["--drain-timeout", "20m"]).await;
        let second = stage.start(&["--drain-timeout", "20m"]).await;
        for n in 0..30 {
            tokens.push(stage.terminate(n, s(120), if n % 2 == 0 { Wrapping::Event } else { Wrapping::Bare }));
            if n % 3 == 0 {
                stage.spot(n);
            }
        }
        stage.until_handled(s(1500)).await;
        stage.world.faults.clear();
        assert_eq!(stage.world.kube.pods().len(), 0, "round {round}");
        for token in &tokens {
            let action = stage.world.aws.autoscaling.action(token).unwrap();
            let completed = matches!(action.state, ebbtide_sim::aws::ActionState::Completed { .. });
            assert!(completed, "round {round}: {action:?}");
        }
        // A call without a use may still hang, such as the extension of a message that has been deleted.
        sleep(CALL_TIMEOUT).await;
        stage.rest(&[&first, &second]).await;
    }
}
