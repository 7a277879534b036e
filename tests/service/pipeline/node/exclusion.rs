//! Nodes that users exclude, by `--node-selector` or `ebbtide/ignore`.

use crate::harness::{Stage, instance, node, s};
use crate::nodes::TAG;
use ebbtide_sim::aws::ActionState;
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::{Interrupt, Pod};
use ebbtide_sim::messages::Wrapping;
use tokio::time::sleep;

#[tokio::test(start_paused = true)]
async fn only_selected_nodes_are_touched() {
    let stage = Stage::new(3, 1);
    stage.label(0, "pool", "blue");
    stage.label(1, "pool", "green");
    let replica = stage.start(&["--node-selector", "pool in (blue, red)"]).await;
    let tokens: Vec<_> = (0..3).map(|n| stage.terminate(n, s(60), Wrapping::Event)).collect();
    for n in 0..3 {
        stage.rebalance(n);
    }
    stage.until_handled(s(10)).await;
    let left: Vec<_> = (0..3).map(|n| (stage.cordoned(n), stage.world.kube.pods_on(&node(n)).len())).collect();
    assert_eq!(left, [(true, 0), (false, 1), (false, 1)]);
    replica.ended_as("asg-terminate", "excluded", 2);
    replica.ended_as("rebalance", "excluded", 2);
    sleep(s(120)).await;
    stage.completed_once(&tokens[0]);
    for (n, token) in tokens.iter().enumerate().skip(1) {
        stage.no_trace(n);
        let action = stage.action(token);
        assert_eq!((action.beats.len(), action.completions.len()), (0, 0), "left alone");
    }
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn an_ignored_node_is_left_alone() {
    let stage = Stage::new(2, 1);
    stage.annotate(0, "ebbtide/ignore", "true");
    stage.annotate(1, "ebbtide/ignore", "false");
    let replica = stage.start(&[]).await;
    let tokens: Vec<_> = (0..2).map(|n| stage.terminate(n, s(60), Wrapping::Bare)).collect();
    stage.spot(0);
    stage.until_handled(s(10)).await;
    assert_eq!((stage.cordoned(0), stage.cordoned(1)), (false, true));
    assert_eq!(stage.world.kube.pods().len(), 1);
    replica.ended_as("asg-terminate", "excluded", 1);
    replica.ended_as("spot", "excluded", 1);
    sleep(s(120)).await;
    let action = stage.action(&tokens[0]);
    assert_eq!((action.beats.len(), action.completions.len()), (0, 0));
    stage.completed_once(&tokens[1]);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_registers_late_can_be_excluded() {
    let stage = Stage::new(1, 0);
    stage.world.aws.ec2.put(&instance(5), &[(TAG, "")]);
    let replica = stage.start(&["--node-selector", "pool=blue"]).await;
    let token = stage.terminate(5, s(60), Wrapping::Event);
    sleep(s(10)).await;
    stage.world.kube.add_node(&node(5), &instance(5));
    stage.world.kube.add_pod(Pod::on(&node(5)).named("early"));
    stage.until_handled(s(5)).await;
    replica.ended_as("asg-terminate", "excluded", 1);
    stage.no_trace(5);
    assert_eq!((stage.results(&token), stage.world.kube.pods().len()), (Vec::new(), 1));
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_ignored_during_its_drain_is_left() {
    let stage = Stage::slow(s(600));
    let replica = stage.start(&["--drain-timeout", "20m"]).await;
    let token = stage.terminate(0, s(60), Wrapping::Event);
    sleep(s(100)).await;
    assert!(!stage.action(&token).beats.is_empty());
    stage.annotate(0, "ebbtide/ignore", "true");
    stage.until_handled(s(2)).await;
    replica.ended_as("asg-terminate", "uncordoned", 1);
    let beats = stage.action(&token).beats.len();
    sleep(s(300)).await;
    let action = stage.action(&token);
    assert_eq!((action.beats.len(), action.completions.len()), (beats, 0), "its owner takes care of it");
    assert!(matches!(action.state, ActionState::Expired { .. }), "{action:?}");
    // The Node stays excluded, even after a reboot.
    stage.reboot(0).await;
    sleep(s(60)).await;
    assert!(stage.cordoned(0));
    stage.rest(&[&replica]).await;
}

/// A patch that fails or conflicts is repeated with the Node's newest version, and a user may have excluded it since.
#[tokio::test(start_paused = true)]
async fn a_node_that_is_ignored_before_its_cordon_is_accepted_is_not_cordoned() {
    for is_blind in [false, true] {
        let stage = Stage::new(1, 1);
        let replica = stage.start(&[]).await;
        sleep(s(1)).await;
        stage.world.faults.add(Rule::on("patch nodes", Fault::Status(500)));
        let token = stage.terminate(0, s(600), Wrapping::Event);
        sleep(s(10)).await;
        if is_blind {
            stage.world.kube.interrupt_watches(Interrupt::Freeze);
        }
        stage.annotate(0, "ebbtide/ignore", "true");
        stage.world.faults.clear();
        stage.until_handled(s(10)).await;
        replica.ended_once("asg-terminate", "excluded");
        assert!(!stage.cordoned(0) && stage.notices(0).is_empty(), "{}", stage.story());
        assert_eq!(stage.world.kube.pods().len(), 1);
        sleep(s(600)).await;
        let action = stage.action(&token);
        assert_eq!((action.beats.len(), action.completions.len()), (0, 0), "its owner takes care of it");
        stage.rest(&[&replica]).await;
    }
}

/// The first removal of a cordon counts as another controller's mistake, but not that of a node which its user keeps.
#[tokio::test(start_paused = true)]
async fn a_node_that_is_ignored_while_its_cordon_is_restored_stays_uncordoned() {
    let stage = Stage::slow(s(600));
    let replica = stage.start(&["--drain-timeout", "20m"]).await;
    stage.terminate(0, s(600), Wrapping::Event);
    sleep(s(100)).await;
    stage.world.faults.add(Rule::on("patch nodes", Fault::Late(s(2))).times(1));
    stage.set_cordon(0, false);
    sleep(s(1)).await;
    stage.annotate(0, "ebbtide/ignore", "true");
    stage.until_handled(s(5)).await;
    replica.ended_once("asg-terminate", "uncordoned");
    sleep(s(60)).await;
    assert!(!stage.cordoned(0), "{}", stage.story());
    stage.rest(&[&replica]).await;
}
