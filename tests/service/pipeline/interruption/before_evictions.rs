//! Waits before evictions: takeovers after their end, room for all tiers, what is left on the Node, and whose Nodes count.

use crate::drains::CRITICAL;
use crate::harness::{Stage, instance, node, s};
use crate::nodes::tag;
use ebbtide_sim::aws::GroupSpec;
use ebbtide_sim::kube::Pod;
use ebbtide_sim::messages::Wrapping;
use tokio::time::sleep;

const RELEASE: &str = "ebbtide/release";

/// A hold is over and evictions have begun; then the replicas are updated. docs/waits.md: "A takeover begins the waits that *still
/// run* again". The next replica holds the node once more, for half of what is left (a quarter of an hour here), and evicts nothing.
#[tokio::test(start_paused = true)]
async fn a_takeover_in_a_drain_does_not_begin_a_hold_that_is_over() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let first = stage.start(&["--hold", "before-drain"]).await;
    stage.terminate(0, s(3600), Wrapping::Event);
    stage.until("the end of the hold", s(2000), || !stage.tries_of("web-0-0").is_empty()).await;
    sleep(s(60)).await;
    assert_eq!(stage.held(0), None);
    first.stop().await;
    let second = stage.start(&["--hold", "before-drain"]).await;
    sleep(s(30)).await;
    let again = stage.held(0);
    stage.unblock(0);
    sleep(s(60)).await;
    let stays = stage.has_pod("web-0-0");
    stage.until_handled(s(3600)).await;
    stage.rest(&[&second]).await;
    assert!(!stays && again.is_none(), "held again: {again:?}; the pod stays: {stays}");
}

/// The same later: the node is drained, and a controller is asked to release the completion. After a takeover the node asks for the
/// release of its drain again, hears no release of the completion, and the hook is held for a quarter of an hour more.
#[tokio::test(start_paused = true)]
async fn a_takeover_before_the_completion_does_not_begin_a_hold_that_is_over() {
    let stage = Stage::new(1, 1);
    let first = stage.start(&["--hold", "both"]).await;
    let token = stage.terminate(0, s(3600), Wrapping::Event);
    stage.until("the second hold", s(2000), || stage.held(0).as_deref() == Some("before-completion")).await;
    sleep(s(60)).await;
    first.stop().await;
    let second = stage.start(&["--hold", "both"]).await;
    sleep(s(60)).await;
    let again = stage.held(0);
    stage.annotate(0, RELEASE, "before-completion");
    sleep(s(60)).await;
    let results = stage.results(&token);
    stage.until_handled(s(3600)).await;
    stage.rest(&[&second]).await;
    assert!(again.as_deref() == Some("before-completion") && results.len() == 1, "held at {again:?}, then {results:?}");
}

/// A replacement that never comes was waited for during half an hour, and evictions have begun. Each update of the replicas begins
/// another half hour without evictions.
#[tokio::test(start_paused = true)]
async fn a_takeover_in_a_drain_waits_no_second_time_for_a_replacement_that_did_not_come() {
    let stage = Stage::with_group(3);
    stage.block(0);
    let first = stage.start(&["--on", "rebalance=replace"]).await;
    stage.rebalance(0);
    stage.until("the first try", s(2000), || !stage.tries_of("web-0-0").is_empty()).await;
    sleep(s(60)).await;
    first.stop().await;
    let second = stage.start(&["--on", "rebalance=replace"]).await;
    sleep(s(30)).await;
    stage.unblock(0);
    sleep(s(120)).await;
    let left = stage.world.kube.pods_on(&node(0)).len();
    stage.until_handled(s(4000)).await;
    stage.rest(&[&second]).await;
    assert_eq!(left, 0, "pods were left alone");
}

/// A spot warning, an ordinary pod and a critical one that need 45 s each: without a hold both stop by themselves. The hold leaves
/// room for the longest grace period only, not for the two tiers one after the other, so that the critical pod is cut off.
#[tokio::test(start_paused = true)]
async fn a_hold_leaves_room_for_the_grace_periods_of_all_tiers() {
    for hold in [None, Some("before-drain")] {
        let stage = Stage::new(1, 0);
        stage.world.kube.add_pod(Pod::on(&node(0)).named("web").grace(s(50)).stops_in(s(45)));
        let critical = Pod::on(&node(0)).named("dns").priority(CRITICAL).grace(s(50)).stops_in(s(45));
        stage.world.kube.add_pod(critical);
        let flags: Vec<&str> = hold.into_iter().flat_map(|hold| ["--hold", hold]).collect();
        let replica = stage.start(&flags).await;
        stage.spot(0);
        stage.until_handled(s(130)).await;
        stage.rest(&[&replica]).await;
        for pod in ["web", "dns"] {
            let ends = stage.ends_of(pod);
            assert!(ends.iter().all(|end| end.grace.is_none()), "{hold:?}: {pod} got less than its own: {ends:?}");
        }
    }
}

/// docs/waits.md: `ebbtide/ignore` ends a hold as it ends a drain. The condition becomes `True Draining` at the end of the hold,
/// though no drain follows, and stays so for good: a tool that waits for the end of the drain waits forever.
#[tokio::test(start_paused = true)]
async fn a_node_that_is_ignored_in_a_hold_does_not_stay_draining() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&["--hold", "before-drain"]).await;
    stage.terminate(0, s(600), Wrapping::Event);
    sleep(s(20)).await;
    assert!(stage.condition_text(0).starts_with("True Waiting: "), "{}", stage.condition_text(0));
    stage.annotate(0, "ebbtide/ignore", "true");
    stage.until_handled(s(10)).await;
    replica.ended_once("asg-terminate", "uncordoned");
    stage.rest(&[&replica]).await;
    assert!(stage.condition_text(0).starts_with("False "), "{}", stage.condition_text(0));
}

/// The same by `kubectl uncordon`.
#[tokio::test(start_paused = true)]
async fn a_node_that_is_uncordoned_in_a_hold_does_not_stay_draining() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&["--hold", "before-drain"]).await;
    stage.terminate(0, s(600), Wrapping::Event);
    sleep(s(20)).await;
    for _ in 0..2 {
        stage.set_cordon(0, false);
        sleep(s(10)).await;
    }
    stage.until_handled(s(10)).await;
    let before = stage.condition_text(0);
    stage.rest(&[&replica]).await;
    let after = stage.condition_text(0);
    assert!(before.starts_with("False ") && after.starts_with("False "), "{before}, and later {after}");
}

/// AWS calls fifty changes off while their nodes are held. Then another change's hold is not told on its Node, nor is any wait of any
/// Node until the process ends: the fifty places for Nodes whose waits are announced are taken for good.
#[tokio::test(start_paused = true)]
async fn holds_of_withdrawn_changes_do_not_silence_later_waits() {
    let stage = Stage::new(51, 1);
    let replica = stage.start(&["--hold", "scheduled-change=before-drain", "--max-draining=none"]).await;
    let code = "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED";
    let start = stage.world.clock.now() + s(86_400);
    let ids: Vec<String> = (0..51).map(|n| format!("change-{n}")).collect();
    for (n, id) in ids.iter().enumerate().take(50) {
        stage.health(n, (id, code), start, "upcoming");
    }
    sleep(s(60)).await;
    let told = (0..50).filter(|n| stage.condition_text(*n).starts_with("True Waiting: ")).count();
    assert_eq!(told, 50);
    for (n, id) in ids.iter().enumerate().take(50) {
        stage.health(n, (id, code), start, "closed");
    }
    stage.until_handled(s(60)).await;
    sleep(s(120)).await;
    let stay = (0..50).filter(|n| !stage.condition_text(*n).starts_with("False ")).count();
    stage.health(50, (&ids[50], code), start, "upcoming");
    sleep(s(60)).await;
    assert_eq!(stage.held(50).as_deref(), Some("before-drain"));
    let said = stage.condition_text(50);
    stage.annotate(50, RELEASE, "true");
    stage.until_handled(s(60)).await;
    stage.rest(&[&replica]).await;
    assert!(stay == 0 && said.starts_with("True Waiting: "), "{stay} conditions stay; of the 51st: {said:?}");
}

/// docs/waits.md says of `asg-terminate=replace`: "A group that shrinks has it at once." That must also hold if someone has cordoned one of
/// the other nodes, or if one is not Ready: no instance will be launched, so a hook that waits for one wastes half of its time.
#[tokio::test(start_paused = true)]
async fn a_scale_in_does_not_wait_for_a_node_that_somebody_has_cordoned() {
    let stage = Stage::with_group(3);
    let shrink = |spec: &mut GroupSpec| {
        spec.desired = 2;
        spec.states.insert(instance(0), "Terminating:Wait".to_owned());
    };
    stage.world.aws.autoscaling.change_group("group", shrink);
    stage.set_cordon(1, true);
    let replica = stage.start(&["--on", "asg-terminate=replace"]).await;
    let token = stage.terminate(0, s(3600), Wrapping::Event);
    stage.until_handled(s(3600)).await;
    stage.completed_once(&token);
    let at = stage.first_eviction(0).unwrap();
    stage.rest(&[&replica]).await;
    assert!(at < s(60), "evictions began at {at:?}, though nothing is launched");
}

/// The new Node is Ready, but still carries the taint that the user has named with `--startup-taint`: nothing can run there. Evictions
/// begin all the same, and the pods have no place to go to.
#[tokio::test(start_paused = true)]
async fn a_new_node_with_a_startup_taint_is_no_replacement_yet() {
    let stage = Stage::with_group(3);
    let flags = ["--on", "rebalance=replace", "--startup-taint", "node.cilium.io/*"];
    let replica = stage.start(&flags).await;
    stage.rebalance(0);
    stage.until("unhealthy", s(10), || stage.world.aws.autoscaling.unhealthy() == [instance(0)]).await;
    sleep(s(30)).await;
    tag(&stage.world, 9);
    stage.world.aws.autoscaling.change_group("group", |spec| spec.instances.push(instance(9)));
    stage.world.kube.add_unready_node(&node(9), &instance(9));
    stage.taint(9, "node.cilium.io/agent-not-ready", "", "NoSchedule");
    stage.set_ready(9, true);
    sleep(s(60)).await;
    let early = stage.first_eviction(0);
    stage.untaint(9, "node.cilium.io/agent-not-ready");
    stage.until_handled(s(120)).await;
    stage.rest(&[&replica]).await;
    assert_eq!(early, None, "no pod can run on the new Node");
}
