//! `--pool`: settings of its own for a pool of Nodes.

use crate::harness::{Stage, instance, node, s};
use crate::nodes::TAG;
use ebbtide_sim::kube::{By, Pod};
use ebbtide_sim::messages::Wrapping;
use std::time::Duration;
use tokio::time::{Instant, sleep};

const GPU: &str = "--pool=gpu;node-selector=accelerator;";
/// All are drained at once.
const ALL: &str = "--max-draining=none";

const RETIREMENT: (&str, &str) = ("h", "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED");

/// Returns a flag that defines the pool of the nodes with the label `accelerator`.
fn gpu(own: &str) -> String {
    format!("{GPU}{own}")
}

/// Returns a world in which the first of these nodes is in the pool, and the others are in none.
fn stage(nodes: usize, pods: usize) -> Stage {
    let stage = Stage::new(nodes, pods);
    stage.label(0, "accelerator", "nvidia");
    stage
}

#[tokio::test(start_paused = true)]
async fn each_pool_has_its_actions_and_the_rest_the_defaults() {
    let stage = stage(3, 1);
    stage.label(2, "tier", "web");
    let web = "--pool=web;node-selector=tier=web;on=rebalance=ignore,spot=cordon";
    let replica = stage.start(&[ALL, &gpu("on=rebalance=drain"), web]).await;
    for n in 0..3 {
        stage.rebalance(n);
    }
    stage.until_handled(s(30)).await;
    let left: Vec<_> = (0..3).map(|n| (stage.cordoned(n), stage.world.kube.pods_on(&node(n)).len())).collect();
    assert_eq!(left, [(true, 0), (true, 1), (false, 1)], "{}", stage.story());
    replica.all_ended("rebalance", &[("cordoned", 1), ("drained", 1), ("ignored", 1)]);
    let pools: Vec<_> = (0..2).map(|n| stage.notices(n)[0]["pool"].as_str().map(str::to_owned)).collect();
    assert_eq!(pools, [Some("gpu".to_owned()), None]);
    for n in 0..3 {
        stage.spot(n);
    }
    stage.until_handled(s(30)).await;
    replica.all_ended("spot", &[("cordoned", 1), ("drained", 2)]);
    stage.rest(&[&replica]).await;
}

/// A budget holds the pods back.
#[tokio::test(start_paused = true)]
async fn a_pool_has_its_times_and_its_treatment_of_pods() {
    let stage = stage(2, 0);
    for n in 0..2 {
        stage.world.kube.add_pod(Pod::on(&node(n)).named(&format!("held-{n}")).grace(s(20)));
        stage.block(n);
    }
    let flags = [ALL, &gpu("at-deadline=leave;delay=asg-terminate=1m"), "--drain-timeout=asg-terminate=10m"];
    let replica = stage.start(&flags).await;
    let tokens: Vec<_> = (0..2).map(|n| stage.terminate(n, s(300), Wrapping::Event)).collect();
    sleep(s(50)).await;
    let tried: Vec<_> = (0..2).map(|n| !stage.tries_of(&format!("held-{n}")).is_empty()).collect();
    assert_eq!(tried, [false, true], "{}", stage.story());
    stage.until_handled(s(600)).await;
    let ended: Vec<Vec<By>> =
        (0..2).map(|n| stage.ends_of(&format!("held-{n}")).into_iter().map(|it| it.by).collect()).collect();
    assert_eq!(ended, [vec![], vec![By::Delete]], "{}", stage.story());
    for token in &tokens {
        stage.completed_once(token);
    }
    stage.rest(&[&replica]).await;
}

/// Work stays in the pool in which it began, in another replica, too.
#[tokio::test(start_paused = true)]
async fn a_node_that_changes_its_labels_keeps_the_pool_that_its_work_began_in() {
    let stage = stage(2, 0);
    for n in 0..2 {
        stage.world.kube.add_pod(Pod::on(&node(n)).named(&format!("held-{n}")));
        stage.block(n);
    }
    let pool = gpu("drain-timeout=20m");
    let begun = Instant::now();
    let replica = stage.start(&[ALL, &pool]).await;
    for n in 0..2 {
        stage.health(n, RETIREMENT, stage.world.clock.now() + s(7200), "upcoming");
    }
    sleep(s(60)).await;
    // The nodes change their places.
    stage
        .world
        .kube
        .update_node(&node(0), |node| drop(node.metadata.labels.as_mut().and_then(|it| it.remove("accelerator"))));
    stage.label(1, "accelerator", "nvidia");
    sleep(s(10)).await;
    replica.kill().await;
    let replica = stage.start(&[ALL, &pool]).await;
    let tries = || [0, 1].map(|n| stage.tries_of(&format!("held-{n}")).len());
    stage.until("the end of a drain", s(1300), || stage.world.aws.sqs.deleted().len() == 1).await;
    assert!(begun.elapsed() > s(1190), "{}", stage.story());
    let before = tries();
    sleep(s(60)).await;
    let after = tries();
    assert!(after[0] == before[0] && after[1] > before[1], "{before:?} {after:?}\n{}", stage.story());
    stage.until_handled(s(2500)).await;
    stage.rest(&[&replica]).await;
}

/// Until then, the settings for all count.
#[tokio::test(start_paused = true)]
async fn a_node_that_registers_late_has_the_settings_of_its_pool() {
    for (action, outcome, is_cordoned) in
        [("report", "reported", false), ("cordon", "cordoned", true), ("drain", "drained", true)]
    {
        let stage = Stage::new(1, 0);
        stage.world.aws.ec2.put(&instance(5), &[(TAG, "")]);
        let replica = stage.start(&[&gpu(&format!("on=asg-terminate={action}"))]).await;
        let token = stage.terminate(5, s(60), Wrapping::Event);
        sleep(s(10)).await;
        stage.world.kube.add_labelled_node(&node(5), &instance(5), [("accelerator", "nvidia")]);
        stage.world.kube.add_pod(Pod::on(&node(5)).named("early"));
        stage.until_handled(s(30)).await;
        replica.ended_as("asg-terminate", outcome, 1);
        assert_eq!(stage.cordoned(5), is_cordoned, "{action}\n{}", stage.story());
        let beats = stage.action(&token).beats.len();
        sleep(s(300)).await;
        let found = stage.action(&token);
        assert_eq!((found.completions.len(), found.beats.len()), (usize::from(action == "drain"), beats), "{action}");
        stage.rest(&[&replica]).await;
    }
}

/// A wave of a pool counts its Nodes alone; one that is given for all counts the others together.
#[tokio::test(start_paused = true)]
async fn a_pool_with_waves_of_its_own_counts_its_nodes_alone() {
    for (own, first) in [("wave=zone=2", [2, 1]), ("delay=rebalance=1s", [1, 0])] {
        let stage = Stage::new(6, 0);
        for n in 0..6 {
            stage.world.kube.add_pod(Pod::on(&node(n)).named(&format!("web-{n}")).grace(s(30)).stops_in(s(20)));
            stage.label(n, "zone", "a");
            if n < 3 {
                stage.label(n, "accelerator", "nvidia");
            }
        }
        let replica = stage.start(&["--wave=zone=1", "--on=rebalance=drain", ALL, &gpu(own)]).await;
        for n in 0..6 {
            stage.rebalance(n);
        }
        sleep(s(15)).await;
        let begun = |nodes: std::ops::Range<usize>| nodes.filter(|n| stage.first_eviction(*n).is_some()).count();
        let found = [begun(0..3), begun(3..6)];
        let expected = if own.starts_with("wave") { found == first } else { found.iter().sum::<usize>() == 1 };
        assert!(expected, "{own}: {found:?}\n{}", stage.story());
        stage.until_handled(Duration::from_mins(5)).await;
        replica.all_ended("rebalance", &[("drained", 6)]);
        stage.rest(&[&replica]).await;
    }
}

/// What is off costs nothing, and what is on no call.
#[tokio::test(start_paused = true)]
async fn a_drain_in_a_pool_takes_the_calls_of_any_drain() {
    let mut calls = Vec::new();
    for flags in [vec![], vec![gpu("drain-timeout=10m")]] {
        let stage = stage(1, 2);
        let replica = stage.start(&flags.iter().map(String::as_str).collect::<Vec<_>>()).await;
        stage.spot(0);
        stage.until_handled(s(30)).await;
        replica.ended_once("spot", "drained");
        calls.push(["patch nodes", "list pods", "create pods/eviction"].map(|call| stage.calls(call)));
        stage.rest(&[&replica]).await;
    }
    assert_eq!(calls[0], calls[1]);
}
