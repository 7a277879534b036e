//! When others have more to do than they can: who goes first, and who waits how long.

use crate::harness::{Stage, instance, node, s};
use ebbtide::clients::Gate;
use ebbtide::fact::Facts;
use ebbtide::pipeline::Hook;
use ebbtide::pipeline::{Completion, Hooks};
use ebbtide::runtime::Clock;
use ebbtide_sim::aws::HookSpec;
use ebbtide_sim::fault::{Fault, Rule};
use futures_util::future::join_all;
use std::time::Duration;
use tokio::time::Instant;

const EVICT: &str = "create pods/eviction";
const BEAT: &str = "RecordLifecycleActionHeartbeat";
const COMPLETE: &str = "CompleteLifecycleAction";

/// How long after an operation's first call the n-th came.
fn after_the_first(stage: &Stage, operation: &str, n: usize) -> Duration {
    let calls = stage.world.calls.of(operation);
    calls[n].at.checked_sub(calls[0].at).expect("calls must be in order")
}

#[tokio::test(start_paused = true)]
async fn an_overloaded_api_server_is_given_the_time_that_it_asks_for() {
    for operation in ["patch nodes", "list pods", EVICT] {
        let stage = Stage::new(1, 1);
        let replica = stage.start(&[]).await;
        stage.world.faults.add(Rule::on(operation, Fault::ThrottleFor(7)).times(1));
        stage.spot(0);
        stage.until_handled(s(30)).await;
        let again = after_the_first(&stage, operation, 1);
        assert!(again >= s(7) && again < s(8), "{operation}: {again:?}\n{}", stage.story());
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_eviction_waits_for_another_nodes_cordon_but_not_for_one_that_hangs() {
    for (fault, at_least) in [(Fault::Slow(s(3)), s(3)), (Fault::Hang, s(5))] {
        let stage = Stage::new(2, 1);
        let replica = stage.start(&[]).await;
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
async fn completions_pass_heartbeats_that_wait_and_the_next_to_expire_is_the_first_of_these() {
    let stage = Stage::new(0, 0);
    let autoscaling = &stage.world.aws.autoscaling;
    autoscaling.add_hook("group", "hook", HookSpec::terminating(s(600)));
    let hook = |n: usize| Hook {
        group: "group".to_owned(),
        name: "hook".to_owned(),
        token: autoscaling.begin("group", "hook", &instance(n)),
        pool: None,
        direct: true,
    };
    let hooks: Vec<_> = (0..20).map(hook).collect();
    let clients = stage.clients(Clock::showing(stage.world.clock.now()));
    let calls = Hooks::new(clients.aws.autoscaling, Gate::new(Facts::to(Vec::new())));
    // Of those that fill the gate one is answered sooner, and its place is the only one to be had.
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
    assert_eq!(order, expected.map(|(operation, n)| (operation.to_owned(), hooks[n].token.clone())));
}
