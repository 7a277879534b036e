//! A machine whose clock is wrong: deadlines are AWS's.

use crate::drains::{ended, held};
use crate::harness::{instance, s};
use ebbtide_sim::kube::By;
use ebbtide_sim::messages;
use std::sync::atomic::Ordering;
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
    stage.world.aws.sqs.send(messages::spot("late", &instance(0), at));
    sleep(s(60)).await;
    let replica = stage.start(&[]).await;
    stage.until_handled(s(62)).await;
    let ends = ended(&stage);
    assert!(ends.len() == 1 && matches!(ends[0], (_, 86..=88, Some(29 | 30), By::Delete)), "{ends:?}");
    replica.ended_once("spot", "drained");
    stage.rest(&[&replica]).await;
}
