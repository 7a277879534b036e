//! A machine whose clock is wrong: deadlines are AWS's.

use crate::drains::{ended, held};
use crate::harness::{Stage, instance, s};
use aws_smithy_runtime_api::box_error::BoxError;
use aws_smithy_runtime_api::client::interceptors::context::BeforeDeserializationInterceptorContextRef;
use aws_smithy_runtime_api::client::interceptors::{Intercept, SharedInterceptor};
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::config_bag::ConfigBag;
use ebbtide::clients::connect::Clients;
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::By;
use ebbtide_sim::messages;
use ebbtide_sim::messages::Wrapping;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::time::sleep;

const AHEAD: &str = "ebbtide_clock_ahead_seconds";

#[tokio::test(start_paused = true)]
async fn a_wrong_clock_moves_no_deadline() {
    for ahead in [0, 600, -600] {
        let stage = held(s(30));
        stage.clock_ahead.store(ahead, Ordering::Relaxed);
        let replica = stage.start(&[]).await;
        // Half of the warning's time is over.
        stage.spot_of_age(0, s(60));
        sleep(s(20)).await;
        assert!(ended(&stage).is_empty(), "{ahead}: {:?}", ended(&stage));
        #[allow(clippy::cast_precision_loss, reason = "small")]
        let expected = ahead as f64;
        assert!((replica.metric(AHEAD) - expected).abs() < 1.5, "{ahead}: {}", replica.metric(AHEAD));
        stage.until_handled(s(45)).await;
        let ends = ended(&stage);
        assert!(ends.len() == 1 && matches!(ends[0], (_, 27..=28, Some(29 | 30), By::Delete)), "{ahead}: {ends:?}");
        replica.ended_once("spot", "drained");
        stage.rest(&[&replica]).await;
    }
}

/// The event's time lies after its message, which another receiver has held for a minute.
#[tokio::test(start_paused = true)]
async fn an_event_is_not_later_than_its_message() {
    let stage = held(s(30));
    let at = stage.world.clock.now() + s(600);
    stage.world.aws.ec2.interrupt(&instance(0), stage.world.clock.now());
    stage.world.aws.sqs.send(messages::spot("late", &instance(0), at));
    sleep(s(60)).await;
    let replica = stage.start(&[]).await;
    stage.until_handled(s(62)).await;
    let ends = ended(&stage);
    assert!(ends.len() == 1 && matches!(ends[0], (_, 86..=88, Some(29 | 30), By::Delete)), "{ends:?}");
    replica.ended_once("spot", "drained");
    stage.rest(&[&replica]).await;
}

/// Another replica had the message before, so that SQS's times of it say nothing about now.
#[tokio::test(start_paused = true)]
async fn a_wrong_clock_moves_no_deadline_at_a_takeover() {
    for ahead in [600, -600] {
        let stage = held(s(30));
        let first = stage.start(&[]).await;
        stage.spot(0);
        sleep(s(5)).await;
        first.kill().await;
        stage.clock_ahead.store(ahead, Ordering::Relaxed);
        let replica = stage.start(&[]).await;
        stage.until_handled(s(125)).await;
        let ends = ended(&stage);
        assert!(ends.len() == 1 && matches!(ends[0], (_, 86..=88, Some(29 | 30), By::Delete)), "{ahead}: {ends:?}");
        replica.ended_once("spot", "drained");
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_wrong_clock_is_shown_before_a_message_comes_and_long_polls_do_not_move_it() {
    let stage = held(s(30));
    stage.clock_ahead.store(600, Ordering::Relaxed);
    let replica = stage.start(&[]).await;
    stage.until("shown", s(5), || (replica.metric(AHEAD) - 600.0).abs() < 1.5).await;
    let shown = replica.metric(AHEAD);
    for _ in 0..30 {
        sleep(s(7)).await;
        assert!((replica.metric(AHEAD) - shown).abs() < 0.5, "{shown} became {}", replica.metric(AHEAD));
    }
    stage.clock_ahead.store(0, Ordering::Relaxed);
    stage.until("set right", s(10), || replica.metric(AHEAD).abs() < 0.5).await;
    stage.rest(&[&replica]).await;
}

/// SQS refuses signatures of a clock that is too wrong, and dates the refusal.
#[tokio::test(start_paused = true)]
async fn a_wrong_clock_is_shown_by_a_refusal() {
    let stage = held(s(30));
    stage.clock_ahead.store(-1200, Ordering::Relaxed);
    stage.world.faults.add(Rule::on("ReceiveMessage", Fault::Status(403)));
    let replica = stage.start(&[]).await;
    stage.until("shown", s(5), || (replica.metric(AHEAD) + 1200.0).abs() < 1.5).await;
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_wrong_during_a_drain_moves_no_deadline() {
    let mut lists = Vec::new();
    for by in [0, 60, -60] {
        let stage = held(s(30));
        let replica = stage.start(&[]).await;
        stage.spot(0);
        sleep(s(10)).await;
        stage.clock_ahead.store(by, Ordering::Relaxed);
        #[allow(clippy::cast_precision_loss, reason = "small")]
        let expected = by as f64;
        stage.until("shown", s(10), || (replica.metric(AHEAD) - expected).abs() < 1.5).await;
        stage.until_handled(s(120)).await;
        let ends = ended(&stage);
        assert!(ends.len() == 1 && matches!(ends[0], (_, 86..=88, Some(29 | 30), By::Delete)), "{by}: {ends:?}");
        lists.push(stage.calls("list pods"));
        replica.ended_once("spot", "drained");
        stage.rest(&[&replica]).await;
    }
    assert!(lists.iter().all(|n| *n == lists[0]), "no drain begins again: {lists:?}");
}

/// Tokio's clock stands still while the machine is suspended, and AWS's does not.
#[tokio::test(start_paused = true)]
async fn a_drain_that_was_suspended_ends_at_its_deadline() {
    let stage = held(s(30));
    let replica = stage.start(&[]).await;
    stage.spot(0);
    sleep(s(10)).await;
    stage.world.clock.skip(s(45));
    stage.until_handled(s(70)).await;
    let ends = ended(&stage);
    assert!(ends.len() == 1 && matches!(ends[0], (_, 86..=88, Some(29 | 30), By::Delete)), "{ends:?}");
    assert!((replica.metric("ebbtide_notices_total{kind=\"spot\",outcome=\"drained\"}") - 1.0).abs() < 0.5);
    assert!(replica.metric(AHEAD).abs() < 0.5);
    stage.rest(&[&replica]).await;
}

/// Long polls say little about a clock that a time server slews, and the first quick answer comes when the drain runs.
#[tokio::test(start_paused = true)]
async fn a_running_drain_gets_back_the_time_that_a_fast_clock_took() {
    let stage = held(s(30));
    let replica = stage.start(&[]).await;
    for ahead in 1..=20 {
        sleep(s(10)).await;
        stage.clock_ahead.store(ahead, Ordering::Relaxed);
    }
    sleep(s(18)).await;
    assert!(replica.metric(AHEAD).abs() < 0.5);
    let sent = stage.world.clock.elapsed();
    stage.spot(0);
    sleep(s(1)).await;
    stage.world.aws.sqs.send("{}".to_owned());
    stage.until_handled(s(120)).await;
    let ends = stage.ends_of("held");
    assert!(ends.len() == 1 && (s(84)..s(89)).contains(&(ends[0].at - sent)), "{sent:?} {ends:?}");
    stage.rest(&[&replica]).await;
}

/// Suspends the machine once, between the arrival of an answer with messages and what follows.
#[derive(Debug)]
struct Suspension(ebbtide_sim::clock::Clock, AtomicBool);

impl Intercept for Suspension {
    fn name(&self) -> &'static str {
        "Suspension"
    }

    fn read_after_transmit(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let body = context.response().body().bytes().unwrap_or_default();
        if body.windows(9).any(|part| part == b"MessageId") && !self.1.swap(true, Ordering::Relaxed) {
            self.0.skip(s(45));
        }
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_suspension_at_an_answer_leaves_no_wrong_correction() {
    let stage = held(s(30));
    let suspension = SharedInterceptor::new(Suspension(stage.world.clock, AtomicBool::new(false)));
    let change = |clients: &mut Clients| {
        let config = clients.aws.sqs.config().to_builder().interceptor(suspension);
        clients.aws.sqs = aws_sdk_sqs::Client::from_conf(config.build());
    };
    let replica = stage.start_with(&[], change).await;
    sleep(s(3)).await;
    stage.spot(0);
    stage.until_handled(s(120)).await;
    assert!(replica.metric(AHEAD).abs() < 0.5, "{}", replica.metric(AHEAD));
    let ends = ended(&stage);
    assert!(ends.len() == 1 && matches!(ends[0], (_, 89..=91, Some(29 | 30), By::Delete)), "{ends:?}");
    stage.rest(&[&replica]).await;
}

/// A hook is kept alive over the jump, and completed when the pods are gone.
#[tokio::test(start_paused = true)]
async fn a_hook_outlives_a_suspension() {
    let stage = held(s(30));
    let replica = stage.start(&["--drain-timeout", "400s"]).await;
    let token = stage.terminate(0, s(120), Wrapping::Event);
    for _ in 0..3 {
        sleep(s(60)).await;
        stage.world.clock.skip(s(30));
    }
    stage.until_handled(s(400)).await;
    stage.completed_once(&token);
    assert_eq!(stage.ends_of("held").len(), 1, "{:?}", stage.ends_of("held"));
    assert!((replica.metric("ebbtide_notices_total{kind=\"asg-terminate\",outcome=\"drained\"}") - 1.0).abs() < 0.5);
    stage.rest(&[&replica]).await;
}

/// All drains begin again at once, and all end in time, whether or not their messages have become visible meanwhile.
#[tokio::test(start_paused = true)]
async fn a_storm_survives_a_suspension() {
    const NODES: u8 = 200;
    for suspended in [15, 45] {
        let stage = Stage::new(NODES.into(), 1);
        let replica = stage.start(&[]).await;
        (0..NODES).for_each(|n| stage.block(n.into()));
        (0..NODES).for_each(|n| drop(stage.spot(n.into())));
        // Messages have just been extended.
        sleep(s(24)).await;
        stage.world.clock.skip(s(suspended));
        stage.until_handled(s(100 - suspended)).await;
        let ends = stage.world.kube.evictions();
        assert_eq!(ends.len(), usize::from(NODES), "each pod is told once");
        for end in &ends {
            let grace = s(end.grace.unwrap_or_default().unsigned_abs());
            assert!((s(80)..s(120)).contains(&end.at) && end.at + grace <= s(120), "{suspended}: {end:?}");
        }
        let drained = replica.metric("ebbtide_notices_total{kind=\"spot\",outcome=\"drained\"}");
        assert!((drained - f64::from(NODES)).abs() < 0.5, "{drained}");
        stage.rest(&[&replica]).await;
    }
}
