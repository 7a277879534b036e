//! Waits in a world that is not as it was: other settings, a later hook, a list that fails.

use crate::harness::{Stage, instance, node, s};
use clap::Parser;
use ebbtide::cli::{Cli, Command, Settings};
use ebbtide_sim::aws::GroupSpec;
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::Pod;
use ebbtide_sim::messages::Wrapping;
use tokio::time::sleep;

/// The replacement did not come in time, and the node was drained without it. Hours later the group shrinks, and ends the instance: its
/// hook waits for half of its time for a replacement of a node on which nothing runs.
#[tokio::test(start_paused = true)]
async fn the_hook_of_a_drained_node_does_not_wait_for_a_replacement() {
    let stage = Stage::with_group(3);
    let replica = stage.start(&["--on", "rebalance=replace"]).await;
    stage.rebalance(0);
    stage.until_handled(s(2000)).await;
    replica.ended_once("rebalance", "drained");
    assert!(stage.world.kube.pods_on(&node(0)).is_empty());
    sleep(s(3600)).await;
    let shrink = |spec: &mut GroupSpec| {
        spec.desired = 2;
        spec.states.insert(instance(0), "Terminating:Wait".to_owned());
    };
    stage.world.aws.autoscaling.change_group("group", shrink);
    let begun = stage.world.clock.elapsed();
    let token = stage.terminate(0, s(3600), Wrapping::Event);
    stage.until_handled(s(3600)).await;
    stage.completed_once(&token);
    let took = stage.action(&token).completions[0].0.saturating_sub(begun);
    stage.rest(&[&replica]).await;
    assert!(took < s(60), "an empty node was held for {took:?}");
}

/// A rolling update of the replicas takes `--hold` away while a node is held: nobody waits any more, but the Node says so for as long
/// as it is cordoned.
#[tokio::test(start_paused = true)]
async fn a_replica_without_the_setting_takes_back_what_the_node_says() {
    let stage = Stage::new(1, 1);
    let first = stage.start(&["--on", "rebalance=drain", "--hold", "rebalance=before-drain"]).await;
    stage.rebalance(0);
    stage.until("the hold", s(30), || stage.held(0).is_some()).await;
    sleep(s(30)).await;
    first.stop().await;
    let second = stage.start(&["--on", "rebalance=drain"]).await;
    stage.until_handled(s(60)).await;
    sleep(s(60)).await;
    let (says, said) = (stage.held(0), stage.condition_text(0));
    stage.rest(&[&second]).await;
    assert!(says.is_none() && !said.starts_with("True"), "held at {says:?}, condition {said:?}");
}

/// `asg-terminate=replace` asks no group for anything: a limit of such questions has no effect, and is accepted.
#[test]
fn a_limit_of_replacements_that_are_never_asked_for_is_refused() {
    let flags = ["ebbtide", "run", "--queue-url", "https://sqs.eu-west-1.amazonaws.com/1/q"];
    let read = |more: &[&str]| {
        let all: Vec<&str> = flags.iter().chain(more).copied().collect();
        let Command::Run(run) = Cli::try_parse_from(all).unwrap().command else { panic!("run") };
        Settings::from_flags(run).map(drop).is_err()
    };
    assert!(read(&["--max-replacements", "3"]));
    assert!(read(&["--max-replacements", "3", "--on", "asg-terminate=replace"]));
}

/// A spot warning, and a pod that needs 80 s of its 90 s grace period. One failed list of the pods, as a storm brings, and the hold
/// takes half of the time: the pod loses 30 s. Without the failure it is evicted after 20 s.
#[tokio::test(start_paused = true)]
async fn one_failed_list_does_not_take_a_pod_its_grace_period() {
    for (fault, times) in [(Fault::Status(503), 0), (Fault::Status(503), 1), (Fault::Throttle, 1)] {
        let stage = Stage::new(1, 0);
        stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(90)).stops_in(s(80)));
        stage.world.faults.add(Rule::on("list pods", fault).times(times));
        let replica = stage.start(&["--hold", "before-drain"]).await;
        stage.spot(0);
        stage.until_handled(s(130)).await;
        stage.rest(&[&replica]).await;
        let ends = stage.ends_of("slow");
        assert!(ends.iter().all(|end| end.grace.is_none()), "{fault:?} {times} times: {ends:?}");
    }
}

/// A wait for a target that nobody deregisters: the instance only gets another root volume, and stays in its group. Each one of an
/// instance refresh is held for six minutes in vain.
#[tokio::test(start_paused = true)]
async fn an_instance_that_stays_in_its_target_group_is_not_waited_for() {
    let stage = Stage::new(1, 1);
    let arn = stage.world.aws.elb.add_group("web", s(30));
    stage.world.aws.elb.register(&arn, &instance(0), 30_080);
    stage.world.aws.autoscaling.put_group("group", GroupSpec { target_groups: vec![arn], ..GroupSpec::default() });
    let replica = stage.start(&["--wait-for-load-balancers", "deregister"]).await;
    let token = stage.replace_root_volume(0, true);
    stage.until_handled(s(600)).await;
    let at = stage.action(&token).completions[0].0;
    stage.rest(&[&replica]).await;
    assert!(at < s(60) || !stage.world.aws.elb.deregistered().is_empty(), "completed at {at:?}, never deregistered");
}
