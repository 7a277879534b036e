//! An API server that throttles, hangs or answers slowly, when little time is left.

use crate::drains::ended;
use crate::harness::{Stage, node, s};
use crate::proxy::start_behind;
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::Pod;
use http_body_util::Full;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

const EVICT: &str = "create pods/eviction";

/// Returns the time between the first call of an operation and call number `n`, counted from 0.
fn after_the_first(stage: &Stage, operation: &str, n: usize) -> Duration {
    let calls = stage.world.calls.of(operation);
    calls[n].at.checked_sub(calls[0].at).expect("calls must be in order")
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_respected() {
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
async fn an_overloaded_api_server_delays_drains_and_nothing_more() {
    let stage = Stage::new(30, 2);
    let replica = stage.start(&[]).await;
    stage.world.faults.add(Rule::on("create pods/eviction", Fault::Throttle).chance(0.7).times(200));
    stage.world.faults.add(Rule::on("list pods", Fault::Throttle).chance(0.5).times(30));
    for n in 0..30 {
        stage.spot(n);
    }
    stage.until_handled(s(110)).await;
    assert_eq!(stage.world.kube.pods().len(), 0);
    assert_eq!(stage.world.kube.evictions().len(), 60);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_throttled_eviction_with_20_s_left_ends_in_one_end_of_the_pod() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&[]).await;
    stage.world.faults.add(Rule::on(EVICT, Fault::ThrottleFor(32)));
    stage.spot_of_age(0, s(100));
    sleep(s(40)).await;
    assert_eq!(ended(&stage).len(), 1, "{:?}\n{}", ended(&stage), stage.story());
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_throttled_deletion_is_retried_in_time() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.start(&[]).await;
    stage.spot(0);
    sleep(s(80)).await;
    stage.world.faults.add(Rule::on("delete pods", Fault::ThrottleFor(32)).times(1));
    sleep(s(50)).await;
    assert_eq!(ended(&stage).len(), 1, "{:?}\n{}", ended(&stage), stage.story());
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_hanging_eviction_with_9_s_left_ends_in_a_deletion() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&[]).await;
    stage.world.faults.add(Rule::on(EVICT, Fault::Hang));
    stage.spot_of_age(0, s(111));
    sleep(s(40)).await;
    assert_eq!(ended(&stage).len(), 1, "{:?}\n{}", ended(&stage), stage.story());
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_throttled_cordon_or_list_leaves_time_for_the_rest() {
    for operation in ["patch nodes", "list pods"] {
        let stage = Stage::new(1, 1);
        let replica = stage.start(&[]).await;
        stage.world.faults.add(Rule::on(operation, Fault::ThrottleFor(32)).times(1));
        stage.spot_of_age(0, s(100));
        sleep(s(40)).await;
        assert_eq!(ended(&stage).len(), 1, "{operation}\n{}", stage.story());
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn slow_answers_do_not_double_the_calls() {
    let stage = Stage::new(1, 0);
    for pod in 0..5 {
        stage.world.kube.add_pod(Pod::on(&node(0)).named(&format!("long-{pod}")).grace(s(300)).stops_in(s(60)));
    }
    let _replica = stage.start(&[]).await;
    stage.world.faults.add(Rule::on(EVICT, Fault::Slow(Duration::from_millis(1600))));
    stage.spot(0);
    stage.until_handled(s(100)).await;
    assert_eq!((stage.calls(EVICT), stage.calls("delete pods")), (5, 0), "{:?}", ended(&stage));
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_of_an_hour_does_not_stop_a_drain() {
    let stage = Stage::new(1, 1);
    let once = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let replica = start_behind(&stage, &[], move |request| {
        let list = request.method() == http::Method::GET && request.uri().path() == "/api/v1/pods";
        (list && once.swap(false, std::sync::atomic::Ordering::SeqCst)).then(|| {
            http::Response::builder()
                .status(503)
                .header("retry-after", "3600")
                .body(Full::new("maintenance".into()))
                .unwrap()
        })
    })
    .await;
    stage.spot(0);
    sleep(s(125)).await;
    assert_eq!(ended(&stage).len(), 1, "{}", stage.story());
    stage.rest(&[&replica]).await;
}
