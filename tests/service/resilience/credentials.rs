//! Credentials that AWS calls expired before their time.

use crate::harness::{Stage, s};
use ebbtide_sim::messages::Wrapping;
use tokio::time::sleep;

const RECEIVE: &str = "ReceiveMessage";
const COMPLETE: &str = "CompleteLifecycleAction";

#[tokio::test(start_paused = true)]
async fn a_spot_warning_is_not_late_because_credentials_have_expired() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&[]).await;
    // In the middle of a long poll: the next receive is the first call that is refused.
    sleep(s(30)).await;
    let (loads, refused) = (stage.world.aws.key_loads(), || stage.refused(RECEIVE));
    stage.world.aws.expire_keys();
    stage.world.aws.renew_key();
    stage.until("refused", s(25), || refused() == 1).await;
    stage.spot(0);
    stage.until("evicted", s(2), || !stage.ends_of("web-0-0").is_empty()).await;
    stage.until_handled(s(60)).await;
    assert_eq!((refused(), stage.world.aws.key_loads() - loads), (1, 1), "one renewal for all clients");
    assert!(replica.metric("ebbtide_receive_failures_total{category=\"expired\"}") < 1.0);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_hook_is_completed_at_once_with_new_credentials() {
    let stage = Stage::slow(s(5));
    let replica = stage.start(&[]).await;
    let token = stage.terminate(0, s(600), Wrapping::Event);
    stage.until("evicted", s(5), || !stage.ends_of("slow").is_empty()).await;
    stage.world.aws.expire_keys();
    stage.world.aws.renew_key();
    stage.until("gone", s(10), || !stage.has_pod("slow")).await;
    stage.until("refused", s(2), || stage.refused(COMPLETE) == 1).await;
    stage.until("completed", s(1), || stage.calls(COMPLETE) == 2).await;
    stage.until_handled(s(10)).await;
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

/// The source gives the expired credentials again for a minute: no right is missing, and a person need not act.
#[tokio::test(start_paused = true)]
async fn credentials_that_stay_expired_are_loaded_at_most_every_5_s_and_cost_no_hook() {
    let stage = Stage::slow(s(90));
    let replica = stage.start(&["--heartbeat", "10s"]).await;
    let token = stage.terminate(0, s(600), Wrapping::Event);
    stage.until("evicted", s(5), || !stage.ends_of("slow").is_empty()).await;
    sleep(s(20)).await;
    let loads = stage.world.aws.key_loads();
    stage.world.aws.expire_keys();
    sleep(s(60)).await;
    let loaded = stage.world.aws.key_loads() - loads;
    assert!((5..=13).contains(&loaded), "{loaded} in a minute");
    assert!(replica.metric("ebbtide_receive_failures_total{category=\"expired\"}") > 1.0);
    stage.world.aws.renew_key();
    let before = stage.calls(RECEIVE) - stage.refused(RECEIVE);
    stage.until("receives", s(11), || stage.calls(RECEIVE) - stage.refused(RECEIVE) > before).await;
    stage.until_handled(s(120)).await;
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

impl Stage {
    /// Returns the number of calls of an operation that AWS refused because of their credentials.
    fn refused(&self, operation: &str) -> usize {
        let calls = self.world.calls.of(operation).into_iter();
        calls.filter(|call| call.fault == Some(ebbtide_sim::fault::Fault::Expired)).count()
    }
}
