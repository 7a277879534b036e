//! The index of Nodes: its watch and its lists.

use crate::harness::{Stage, s};
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::Interrupt;
use tokio::time::sleep;

#[tokio::test(start_paused = true)]
async fn a_server_without_streaming_lists_is_asked_for_a_list() {
    let stage = Stage::new(2, 1);
    // The answer of Kubernetes 1.33: sendInitialEvents is forbidden.
    stage.world.faults.add(Rule::on("watch nodes", Fault::Status(422)).times(1));
    let replica = stage.start(&[]).await;
    stage.spot(0);
    stage.until_handled(s(20)).await;
    assert_eq!((stage.calls("list nodes"), stage.calls("watch nodes")), (1, 2));
    stage.world.kube.interrupt_watches(Interrupt::Break);
    stage.spot(1);
    stage.until_handled(s(20)).await;
    assert_eq!(stage.calls("list nodes"), 2, "it is asked for another, and not whether it streams now");
    assert_eq!(stage.world.kube.pods().len(), 0);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_breaks_during_its_initial_list_begins_anew() {
    let stage = Stage::new(1, 1);
    stage.world.faults.add(Rule::on("watch nodes", Fault::Disconnect).times(2));
    let replica = stage.start(&[]).await;
    stage.spot(0);
    stage.until_handled(s(30)).await;
    assert_eq!((stage.calls("list nodes"), stage.calls("watch nodes")), (0, 3));
    assert!(stage.cordoned(0));
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_at_once_is_not_restarted_in_a_tight_loop() {
    let stage = Stage::new(1, 0);
    stage.world.faults.add(Rule::on("watch nodes", Fault::CloseWatch).times(3000));
    let replica = stage.start(&[]).await;
    sleep(s(60)).await;
    let watches = stage.calls("watch nodes");
    assert!(watches <= 61, "{watches} in a minute");
    stage.rest(&[&replica]).await;
}
