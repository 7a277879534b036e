//! An API server that is away for longer than a lifecycle hook's timeout.

use crate::drains::{ended, terminate};
use crate::harness::{Stage, node, s};
use crate::proxy::start_behind;
use ebbtide::fact::TaskKind;
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::Pod;
use ebbtide_sim::messages::Wrapping;
use http_body_util::Full;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::time::sleep;

/// The calls to the API server. Those of the watches are left: they have connections of their own, and may last.
const CALLS: [&str; 5] = ["patch nodes", "get nodes", "list pods", "create pods/eviction", "delete pods"];

/// The drain of a hook has a minute.
const SHORT: [&str; 2] = ["--drain-timeout", "asg-terminate=60s"];

impl Stage {
    /// Has the API server answer each call so.
    fn away(&self, fault: Fault) {
        for operation in CALLS {
            self.world.faults.add(Rule::on(operation, fault));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_hook_outlives_an_absence_longer_than_its_timeout() {
    for fault in [Fault::Hang, Fault::Status(503), Fault::Disconnect, Fault::Throttle] {
        // Before the cordon, and in the middle of the drain.
        for before in [s(0), s(10)] {
            let stage = Stage::new(1, 1);
            stage.block(0);
            let replica = stage.start(&SHORT).await;
            sleep(s(1)).await;
            if before.is_zero() {
                stage.away(fault);
            }
            let token = stage.terminate(0, s(60), Wrapping::Event);
            sleep(before).await;
            if !before.is_zero() {
                stage.away(fault);
            }
            sleep(s(100)).await;
            assert_eq!(stage.calls("CompleteLifecycleAction"), 0, "{fault:?} {before:?}\n{}", stage.story());
            stage.world.faults.clear();
            sleep(s(1)).await;
            stage.unblock(0);
            stage.until_handled(s(60)).await;
            replica.ended_once("asg-terminate", "drained");
            stage.completed_once(&token);
            // After a third of the time a cordon is forgone.
            assert!(!stage.has_pod("web-0-0") && (stage.cordoned(0) || before.is_zero()), "{fault:?} {before:?}");
            stage.rest(&[&replica]).await;
        }
    }
}

/// Before the end of a hook a pod is deleted past its budget: that end moves by the absence, and by nothing more.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_hook_moves_by_exactly_the_absence() {
    let mut ends = Vec::new();
    for away in [0, 47, 100] {
        let stage = Stage::new(1, 1);
        stage.block(0);
        let replica = stage.start(&[]).await;
        sleep(s(1)).await;
        let token = stage.terminate(0, s(900), Wrapping::Event);
        sleep(s(20)).await;
        stage.away(Fault::Status(503));
        sleep(s(away)).await;
        stage.world.faults.clear();
        stage.until_handled(s(1080)).await;
        stage.completed_once(&token);
        let ended = ended(&stage);
        assert_eq!(ended.len(), 1, "{ended:?}");
        ends.push(ended[0].1);
        stage.rest(&[&replica]).await;
    }
    // Nobody knows of it before the next try of an eviction, within five seconds; a probe notes the return within two.
    let moved = |n: usize| ends[n] - ends[0];
    assert!((42..=49).contains(&moved(1)) && (95..=102).contains(&moved(2)), "{ends:?}");
}

/// A right that is missing, and a Node that is not there, are answers; and so is a failure of one kind of call alone.
#[tokio::test(start_paused = true)]
async fn answers_move_no_end() {
    for status in [401, 403, 404] {
        let stage = Stage::new(1, 1);
        let replica = stage.start(&[]).await;
        sleep(s(1)).await;
        let token = stage.terminate(0, s(900), Wrapping::Event);
        stage.away(Fault::Status(status));
        stage.until("completed", s(900), || stage.calls("CompleteLifecycleAction") == 1).await;
        stage.world.faults.clear();
        stage.until_handled(s(10)).await;
        stage.completed_once(&token);
        stage.rest(&[&replica]).await;
    }
    let stage = Stage::new(1, 1);
    let replica = stage.start(&[]).await;
    stage.world.faults.add(Rule::on("create pods/eviction", Fault::Status(500)));
    let token = stage.terminate(0, s(900), Wrapping::Event);
    stage.until_handled(s(940)).await;
    stage.completed_once(&token);
    let ended = ended(&stage);
    // The hook's timeout is the room for the pod's grace period of 30 s, which begins 2 s earlier.
    assert!(ended.len() == 1 && (897..=900).contains(&ended[0].1), "{ended:?}");
    stage.rest(&[&replica]).await;
}

/// An admission webhook hangs: each such call is without an answer for ten seconds, and nothing else is asked meanwhile.
#[tokio::test(start_paused = true)]
async fn a_webhook_that_hangs_moves_no_end() {
    for operation in ["create pods/eviction", "patch nodes"] {
        let stage = Stage::new(1, 3);
        stage.block(0);
        let replica = stage.start(&[]).await;
        stage.world.faults.add(Rule::on(operation, Fault::Hang));
        let token = stage.terminate(0, s(900), Wrapping::Event);
        stage.until_handled(s(960)).await;
        stage.completed_once(&token);
        let ended = ended(&stage);
        // As above.
        let in_time = ended.iter().all(|(_, at, ..)| (897..=900).contains(at));
        assert!(ended.len() == 3 && in_time, "{operation}: {ended:?}\n{}", stage.story());
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn no_end_moves_past_that_of_the_capacity_or_of_the_hook_s_life() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&SHORT).await;
    sleep(s(1)).await;
    stage.away(Fault::Status(503));
    let token = stage.terminate(0, s(60), Wrapping::Event);
    stage.spot(0);
    sleep(s(110)).await;
    assert_eq!(stage.calls("CompleteLifecycleAction"), 0);
    stage.until("completed", s(20), || stage.calls("CompleteLifecycleAction") == 1).await;
    stage.world.faults.clear();
    stage.until_handled(s(60)).await;
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;

    let stage = Stage::new(1, 1);
    let replica = stage.start(&[]).await;
    sleep(s(1)).await;
    stage.away(Fault::Status(503));
    let token = terminate(&stage, "hook", s(30));
    sleep(s(2980)).await;
    assert_eq!(stage.calls("CompleteLifecycleAction"), 0, "the hook lives for 100 timeouts");
    stage.until("completed", s(20), || stage.calls("CompleteLifecycleAction") == 1).await;
    stage.world.faults.clear();
    stage.until_handled(s(60)).await;
    // It was given back once, and joined its own work.
    replica.all_ended("asg-terminate", &[("failed", 1), ("joined", 1)]);
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

/// One replica is cut off from the API server, the other is not.
#[tokio::test(start_paused = true)]
async fn after_two_minutes_a_replica_that_reaches_the_api_server_may_join() {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("web").stops_in(s(2)));
    let is_cut = Arc::new(AtomicBool::new(false));
    let cut = Arc::clone(&is_cut);
    let first = start_behind(&stage, &SHORT, move |_| {
        let answer = http::Response::builder().status(503).body(Full::new("away".into())).unwrap();
        cut.load(Ordering::Relaxed).then_some(answer)
    })
    .await;
    sleep(s(1)).await;
    is_cut.store(true, Ordering::Relaxed);
    let token = stage.terminate(0, s(60), Wrapping::Event);
    let id = || stage.world.aws.sqs.receive_log()[0].id.clone();
    sleep(s(115)).await;
    assert_eq!(stage.world.aws.sqs.receives(&id()), 1);
    let second = stage.start(&SHORT).await;
    stage.until("given back", s(30), || stage.world.aws.sqs.receives(&id()) == 2).await;
    sleep(s(300)).await;
    assert_eq!(stage.world.aws.sqs.receives(&id()), 2, "once");
    // Whichever has it: the work of the first goes on.
    if stage.has_pod("web") {
        assert_eq!(first.tasks.alive(TaskKind::Interruption), 1);
        is_cut.store(false, Ordering::Relaxed);
    }
    stage.until("drained", s(30), || !stage.has_pod("web")).await;
    is_cut.store(false, Ordering::Relaxed);
    stage.until_handled(s(120)).await;
    stage.completed(&token);
    stage.rest(&[&first, &second]).await;
}
