//! Calls that wait in the gate: the urgent ones go first, and no call keeps a place for ever.

use crate::drains::ended;
use crate::harness::{Stage, instance, node, s};
use ebbtide::clients::Gate;
use ebbtide::fact::Facts;
use ebbtide::pipeline::{Completion, GroupLookup, Hook, Hooks};
use ebbtide::runtime::{Clock, Tasks};
use ebbtide_sim::aws::HookSpec;
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::Pod;
use ebbtide_sim::messages::Wrapping;
use futures_util::future::join_all;
use std::time::Duration;
use tokio::time::{Instant, sleep};

const BEAT: &str = "RecordLifecycleActionHeartbeat";
const COMPLETE: &str = "CompleteLifecycleAction";
const EVICT: &str = "create pods/eviction";

#[tokio::test(start_paused = true)]
async fn an_eviction_waits_for_another_nodes_cordon_but_not_for_one_that_hangs() {
    for (fault, at_least) in [(Fault::Slow(s(3)), s(3)), (Fault::Hang, s(5))] {
        let stage = Stage::new(2, 1);
        let replica = stage.start(&["--max-draining=none"]).await;
        stage.world.faults.add(Rule::on("patch nodes", fault).subject(node(1)).times(1));
        stage.spot(0);
        stage.spot(1);
        stage.until("the first eviction", s(20), || stage.calls(EVICT) > 0).await;
        let cordons = stage.world.calls.of("patch nodes");
        let first = stage.world.calls.of(EVICT)[0].at;
        let waited = first.checked_sub(cordons[0].at).expect("a cordon must come first");
        assert!(waited >= at_least && waited < at_least + s(1), "{fault:?}: {waited:?}\n{}", stage.story());
        stage.until_handled(s(60)).await;
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn completions_go_before_heartbeats_and_heartbeats_by_expiry() {
    let stage = Stage::new(0, 0);
    let autoscaling = &stage.world.aws.autoscaling;
    autoscaling.add_hook("group", "hook", HookSpec::terminating(s(600)));
    let hook = |n: usize| Hook {
        group: "group".to_owned(),
        name: "hook".to_owned(),
        token: Some(autoscaling.begin("group", "hook", &instance(n))),
        pool: None,
        replaces_root_volume: false,
        direct: true,
    };
    let hooks: Vec<_> = (0..20).map(hook).collect();
    let clients = stage.clients(Clock::showing(stage.world.clock.now()));
    let facts = Facts::to(Vec::new());
    let group_lookup = GroupLookup::new(clients.aws.autoscaling.clone(), &Tasks::new(facts.clone()), facts.clone());
    let calls = Hooks::new(clients.aws.autoscaling, Gate::new(facts), group_lookup);
    // One of the calls that fill the gate is answered sooner: its place is the only free one.
    stage.world.faults.add(Rule::on(BEAT, Fault::Slow(s(1))).times(1));
    stage.world.faults.add(Rule::on(BEAT, Fault::Slow(s(5))).times(15));
    let now = Instant::now();
    let beat = async |n: usize, expires: Duration| calls.beat(&hooks[n], &instance(n), now + expires).await.map(drop);
    let done = instance(16);
    let complete = calls.complete(&hooks[16], &done, Completion::Continue, now + s(900));
    let full = join_all((0..16).map(|n| beat(n, s(60))));
    let queued = async { tokio::join!(beat(17, s(300)), beat(18, s(20)), beat(19, s(30)), complete) };
    let (full, (last, first, second, completed)) = tokio::join!(biased; full, queued);
    assert!(full.into_iter().chain([last, first, second]).all(|beat| beat.is_ok()) && completed.is_ok());
    let order: Vec<_> =
        stage.world.calls.all().into_iter().skip(16).map(|call| (call.operation, call.subject)).collect();
    let expected = [(COMPLETE, 16), (BEAT, 18), (BEAT, 19), (BEAT, 17)];
    assert_eq!(order, expected.map(|(operation, n)| (operation.to_owned(), hooks[n].token.clone().unwrap())));
}

#[tokio::test(start_paused = true)]
async fn urgent_deletions_do_not_wait_for_calls_that_keep_places() {
    let stage = Stage::new(3, 0);
    for pod in 0..80 {
        stage.world.kube.add_pod(Pod::on(&node(0)).named(&format!("many-{pod}")));
        stage.world.faults.add(Rule::on(EVICT, Fault::ThrottleFor(60)).subject(format!("default/many-{pod}")).times(1));
    }
    stage.world.kube.add_pod(Pod::on(&node(1)).named("guarded").stops_in(s(25)));
    stage.world.kube.add_pod(Pod::on(&node(2)).named("plain").stops_in(s(2)));
    stage.block(1);
    let _replica = stage.start(&[]).await;
    stage.spot(1);
    sleep(s(80)).await;
    stage.terminate(0, s(3600), Wrapping::Event);
    sleep(s(2)).await;
    stage.spot(2);
    sleep(s(43)).await;
    let all: Vec<_> = ended(&stage).into_iter().filter(|(name, ..)| !name.starts_with("many")).collect();
    println!(
        "r04 by 125 s: {all:?}; cordon of node-2: {:?}",
        stage.world.calls.of("patch nodes").iter().map(|c| (c.subject.clone(), c.at.as_secs())).collect::<Vec<_>>()
    );
    assert!(all.iter().any(|(name, at, ..)| name == "guarded" && *at <= 92), "{all:?}");
    assert!(all.iter().any(|(name, at, ..)| name == "plain" && *at <= 92), "{all:?}");
}

#[tokio::test(start_paused = true)]
async fn a_deletion_behind_hanging_evictions_is_made_once_and_in_time() {
    let stage = Stage::new(2, 0);
    for pod in 0..80 {
        stage.world.kube.add_pod(Pod::on(&node(0)).named(&format!("many-{pod}")));
        stage.world.faults.add(Rule::on(EVICT, Fault::Hang).subject(format!("default/many-{pod}")));
    }
    stage.world.kube.add_pod(Pod::on(&node(1)).named("guarded").stops_in(s(25)));
    stage.block(1);
    let _replica = stage.start(&[]).await;
    stage.spot(1);
    sleep(s(84)).await;
    stage.terminate(0, s(3600), Wrapping::Event);
    sleep(s(41)).await;
    let all: Vec<_> = ended(&stage).into_iter().filter(|(name, ..)| !name.starts_with("many")).collect();
    assert!(all.len() == 1 && all[0].1 <= 89, "{all:?}");
}

/// The calls in flight of a drain whose Node was deleted must not keep places in the gate.
#[tokio::test(start_paused = true)]
async fn a_drain_whose_node_was_deleted_keeps_no_places() {
    let stage = Stage::new(2, 0);
    for n in 0..70 {
        stage.world.kube.add_pod(Pod::on(&node(0)).named(&format!("many-{n}")));
    }
    stage.world.kube.add_pod(Pod::on(&node(1)).named("other").stops_in(s(1)));
    let replica = stage.start(&[]).await;
    stage.world.faults.add(Rule::on(EVICT, Fault::Hang).times(64));
    stage.terminate(0, s(3600), Wrapping::Event);
    stage.until("they are on their way", s(5), || stage.calls(EVICT) >= 64).await;
    stage.world.kube.remove_node(&node(0));
    sleep(s(1)).await;
    stage.spot(1);
    stage.until("the other is evicted", s(20), || ended(&stage).iter().any(|(name, ..)| name == "other")).await;
    stage.until_handled(s(20)).await;
    stage.rest(&[&replica]).await;
}
