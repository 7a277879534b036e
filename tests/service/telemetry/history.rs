//! The history: what a status report says while interruptions run, and after.

use crate::harness::{Replica, Stage, instance, node, s};
use ebbtide::telemetry::history::Since;
use ebbtide::telemetry::history::report::{Interruption, Report, State};
use ebbtide_sim::aws::{Ec2, HookSpec};
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::{Interrupt, Pod};
use ebbtide_sim::messages::{self, Wrapping};
use std::collections::BTreeMap;
use tokio::time::sleep;

/// The flags of a replica that gets no message.
const OTHER: [&str; 6] = ["--source", "nodes", "--pod-name", "other", "--pod-namespace", "ebbtide"];

fn report(replica: &Replica) -> Report {
    replica.history.report(Since::Ever, 0).0
}

fn only(replica: &Replica) -> Interruption {
    let mut rows = report(replica).interruptions;
    assert_eq!(rows.len(), 1, "{rows:#?}");
    rows.remove(0)
}

/// Returns state and text of the health.
fn health(replica: &Replica) -> (State, String) {
    let health = report(replica).health;
    (health.state, health.text)
}

#[tokio::test(start_paused = true)]
async fn a_drain_is_shown_from_its_begin_to_its_end() {
    let stage = Stage::new(1, 2);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(60)).stops_in(s(30)));
    let replica = stage.start(&[]).await;
    sleep(s(1)).await;
    // Other replicas may have trouble, and this one asks none.
    let unknown =
        "No node is being drained. What other replicas wait for, and what has failed there, is not known here.";
    assert_eq!(health(&replica), (State::Ok, unknown.to_owned()));
    let message = stage.spot(0);
    sleep(s(10)).await;
    let shown = only(&replica);
    assert_eq!((&*shown.kind, shown.action.as_deref(), &*shown.phase), ("spot", Some("drain"), "draining"));
    assert_eq!((shown.message, shown.instance, shown.node), (message, instance(0), Some(node(0))));
    let left = shown.deadline.expect("a spot warning has a deadline").duration_since(report(&replica).time).as_secs();
    assert!(shown.hard && (100..120).contains(&left), "{left} s are left");
    let [drain] = &shown.drains[..] else { panic!("one drain: {:?}", shown.drains) };
    assert_eq!((&*drain.node, drain.pods, drain.gone, &drain.outcome), (&*node(0), 3, 2, &None));
    assert_eq!(health(&replica), (State::Working, "1 node is being drained. All goes as it should.".to_owned()));

    stage.until_handled(s(60)).await;
    stage.rest(&[&replica]).await;
    let shown = only(&replica);
    let end = shown.ended.expect("it has ended");
    assert_eq!(
        (&*shown.phase, &*end.outcome, end.failed, &*end.report),
        ("ended", "drained", false, "3 of 3 pods gone")
    );
    assert_eq!((shown.drains[0].gone, shown.drains[0].outcome.as_deref()), (3, Some("drained")));
    let (state, text) = health(&replica);
    assert_eq!(state, State::Ok);
    assert!(text.contains("the last interruption, that of node-0, ended"), "{text}");
    assert_eq!(report(&replica).day.notices.iter().sum::<u32>(), 1);
}

#[tokio::test(start_paused = true)]
async fn who_blocks_and_what_to_do_is_shown_and_a_failure_counts_for_an_hour() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.start(&["--at-deadline", "leave"]).await;
    stage.spot(0);
    sleep(s(4)).await;
    assert_eq!(health(&replica).0, State::Working, "most budgets allow an eviction soon");
    sleep(s(6)).await;
    let (state, text) = health(&replica);
    assert_eq!(state, State::Blocked);
    for part in ["The drain of node-0 is blocked. default/web-0-0 is held back: ", "disruption budget"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let [blocked] = &only(&replica).drains[0].blocked[..] else { panic!("one pod is blocked") };
    assert_eq!(blocked.pod, "default/web-0-0");
    assert!(blocked.advice.contains("relax the budget"), "{blocked:?}");

    stage.until_handled(s(150)).await;
    let (state, text) = health(&replica);
    assert_eq!(
        (state, &*text),
        (State::Failed, "1 interruption failed in the last hour. The last was that of node-0 (blocked).")
    );
    let end = only(&replica).ended.expect("it has ended");
    assert!(end.failed && end.report.contains("default/web-0-0 is held back"), "{end:?}");
    assert_eq!(report(&replica).day.failed.iter().sum::<u32>(), 1);
    sleep(s(3700)).await;
    assert_eq!(health(&replica).0, State::Ok);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn waits_and_heartbeats_of_a_hook_are_shown() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&["--complete-after", "80s", "--heartbeat", "10s"]).await;
    stage.terminate(0, s(60), Wrapping::Event);
    sleep(s(45)).await;
    let shown = only(&replica);
    let beats = shown.heartbeats.expect("there were heartbeats");
    assert!(beats.sent >= 4 && beats.failed == 0 && beats.last.is_some(), "{beats:?}");
    assert_eq!(
        (&*shown.phase, shown.hook.as_deref(), &*shown.waits[0].wait),
        ("waiting", Some("open"), "complete-after")
    );
    stage.until_handled(s(120)).await;
    stage.rest(&[&replica]).await;
    let shown = only(&replica);
    assert_eq!((shown.hook.as_deref(), shown.waits.len()), (Some("continue"), 0));
    assert_eq!(shown.ended.expect("it has ended").waited, "complete-after: met after 1m 20s");
}

#[tokio::test(start_paused = true)]
async fn a_storm_is_one_entry_with_its_failures_by_name() {
    let stage = Stage::new(40, 1);
    stage.block(7);
    let replica = stage.start(&["--at-deadline", "leave"]).await;
    stage.spot(0);
    stage.until_handled(s(30)).await;
    sleep(s(120)).await;
    for n in 1..40 {
        stage.spot(n);
    }
    sleep(s(10)).await;
    let shown = report(&replica);
    assert_eq!((shown.storms.len(), shown.storms[0].notices, shown.storms[0].until), (1, 39, None));
    let running = shown.interruptions.iter().filter(|row| row.ended.is_none());
    let running: Vec<_> = running.map(|row| row.node.clone()).collect();
    assert_eq!(running, [Some(node(7))], "what runs is listed");
    stage.until_handled(s(150)).await;
    stage.rest(&[&replica]).await;

    let shown = report(&replica);
    assert_eq!(only(&replica).node, Some(node(0)), "the rest is folded");
    let storm = &shown.storms[0];
    assert_eq!((storm.notices, storm.running, storm.ended, storm.in_time, storm.failed), (39, 0, 39, 38, 1));
    assert_eq!(storm.kinds, BTreeMap::from([("spot".to_owned(), 39)]));
    let [failure] = &storm.failures[..] else { panic!("one failure: {:?}", storm.failures) };
    assert_eq!((&*failure.node, &*failure.outcome, storm.failures_more), (&*node(7), "blocked", 0));
    let slowest = storm.slowest.as_ref().expect("one is the slowest");
    assert!(slowest.node == node(7) && slowest.seconds > 60.0, "{slowest:?}");
    assert!(storm.until.is_some());
    assert_eq!(shown.day.notices.iter().sum::<u32>(), 40);
}

#[tokio::test(start_paused = true)]
async fn changes_make_the_same_picture_as_whole_reports() {
    let stage = Stage::new(30, 2);
    let replica = stage.start(&[]).await;
    let mut rows: BTreeMap<String, Interruption> = BTreeMap::new();
    let mut known = 0;
    for second in 0..40 {
        if second < 30 {
            stage.spot(second);
        }
        sleep(s(1)).await;
        assert!(replica.history.is_known(known));
        let (update, change) = replica.history.report(Since::Change(known), 0);
        known = change;
        rows.extend(update.interruptions.into_iter().map(|row| (row.id.clone(), row)));
        rows.retain(|id, _| !update.removed.contains(id));
        let whole = report(&replica).interruptions.into_iter().map(|row| (row.id.clone(), row)).collect();
        assert_eq!(rows, whole, "after {second} s");
    }
    assert!(replica.history.report(Since::Change(known), 0).0.interruptions.is_empty());
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn two_notices_of_a_node_show_the_drain_that_they_share() {
    let stage = Stage::slow(s(60));
    let replica = stage.start(&[]).await;
    stage.spot(0);
    stage.world.aws.sqs.send(messages::rebalance("r", &instance(0), stage.world.clock.now()));
    stage.terminate(0, s(300), Wrapping::Event);
    sleep(s(10)).await;
    let shown = report(&replica).interruptions;
    let drains: Vec<_> = shown.iter().map(|row| (&*row.kind, row.drains.len(), &*row.phase)).collect();
    assert!(
        drains.contains(&("spot", 1, "draining")) && drains.contains(&("asg-terminate", 1, "draining")),
        "{drains:?}"
    );
    stage.until_handled(s(120)).await;
    stage.rest(&[&replica]).await;
}

/// A second copy of a notice is counted, and its drain is not told twice.
#[tokio::test(start_paused = true)]
async fn copies_are_counted() {
    let stage = Stage::slow(s(30));
    let replica = stage.start(&[]).await;
    stage.spot(0);
    sleep(s(5)).await;
    stage.spot(0);
    sleep(s(5)).await;
    assert_eq!(only(&replica).copies, 1);
    stage.until_handled(s(60)).await;
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_the_marks_on_the_nodes_tell_what_was_done() {
    let stage = Stage::new(2, 1);
    stage.world.aws.autoscaling.add_hook("group", "hook", HookSpec::terminating(s(60)));
    let first = stage.start(&[]).await;
    stage.spot(0);
    stage.until_handled(s(30)).await;
    first.stop().await;

    sleep(s(120)).await;
    let second = stage.start(&[]).await;
    sleep(s(2)).await;
    let shown = only(&second);
    assert_eq!((&*shown.kind, &*shown.phase, shown.node, shown.ended), ("spot", "marked", Some(node(0)), None));
    // The instance is gone.
    stage.world.kube.remove_node(&node(0));
    sleep(s(2)).await;
    assert!(report(&second).interruptions.is_empty());
    stage.rest(&[&second]).await;
}

/// Until the message comes again.
#[tokio::test(start_paused = true)]
async fn after_a_crash_the_condition_tells_who_blocks() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let first = stage.start(&["--at-deadline", "leave"]).await;
    stage.spot(0);
    sleep(s(15)).await;
    drop(first.kill().await);
    let second = stage.start(&["--at-deadline", "leave"]).await;
    sleep(s(2)).await;
    let shown = only(&second);
    assert_eq!(shown.phase, "elsewhere");
    let said = shown.problem.expect("the condition says it");
    assert!(said.contains("default/web-0-0 is held back by"), "{said}");
    stage.unblock(0);
    stage.until_handled(s(120)).await;
    stage.rest(&[&second]).await;
}

#[tokio::test(start_paused = true)]
async fn a_takeover_goes_on_with_the_marked_interruption() {
    let stage = Stage::slow(s(60));
    let first = stage.start(&[]).await;
    stage.spot(0);
    sleep(s(5)).await;
    let history = std::sync::Arc::clone(&first.history);
    first.stop().await;
    let rows = history.report(Since::Ever, 0).0.interruptions;
    assert_eq!(rows[0].phase, "elsewhere", "another replica continues");
    let handed = rows[1].ended.as_ref().expect("it was handed over");
    assert_eq!((&*handed.outcome, handed.failed), ("handed-over", false));
    let second = stage.start(&[]).await;
    sleep(s(5)).await;
    let shown = only(&second);
    assert_eq!((&*shown.phase, shown.ended), ("draining", None));
    stage.until_handled(s(120)).await;
    stage.rest(&[&second]).await;
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_can_t_be_read_is_told() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&[]).await;
    sleep(s(1)).await;
    stage.world.faults.add(Rule::on("ReceiveMessage", Fault::Status(500)));
    sleep(s(60)).await;
    let (state, text) = health(&replica);
    assert_eq!((state, &*text), (State::Failed, "The queue can't be read. New notices are not seen (unavailable)."));
    stage.rest(&[&replica]).await;
}

/// Also in the metrics, which are read over years.
#[tokio::test(start_paused = true)]
async fn interruptions_are_counted_by_pool_of_capacity() {
    let stage = Stage::new(3, 1);
    for n in 0..2 {
        stage.world.kube.update_node(&node(n), |node| {
            let labels = node.metadata.labels.get_or_insert_default();
            labels.insert("node.kubernetes.io/instance-type".to_owned(), "m7g.large".to_owned());
            labels.insert("topology.kubernetes.io/zone".to_owned(), "eu-west-1a".to_owned());
            labels.insert("karpenter.sh/nodepool".to_owned(), "blue".to_owned());
        });
    }
    let replica = stage.start(&[]).await;
    (0..3).for_each(|n| drop(stage.spot(n)));
    // A second copy is no second interruption.
    stage.spot(0);
    stage.until_handled(s(60)).await;
    stage.rest(&[&replica]).await;
    let pools = report(&replica).pools;
    let most = (&*pools[0].kind, &*pools[0].instance_type, &*pools[0].zone, &*pools[0].group, pools[0].interruptions);
    assert_eq!(most, ("spot", "m7g.large", "eu-west-1a", "blue", 2));
    assert_eq!((&*pools[1].group, pools[1].interruptions), ("unknown", 1));
    let series =
        "ebbtide_interruptions_total{group=\"blue\",instance_type=\"m7g.large\",kind=\"spot\",zone=\"eu-west-1a\"}";
    assert!((replica.metric(series) - 2.0).abs() < 0.1);
}

/// What another replica drains, a replica knows from the Node's record, until it ends; a blocked drain from its condition.
#[tokio::test(start_paused = true)]
async fn what_another_replica_drains_is_known_from_the_record_on_its_node() {
    let stage = Stage::new(2, 1);
    stage.block(0);
    let one = stage.start(&["--at-deadline", "leave"]).await;
    let other = stage.start(&OTHER).await;
    sleep(s(1)).await;
    stage.spot(0);
    sleep(s(3)).await;
    let shown = only(&other);
    assert_eq!((&*shown.kind, &*shown.phase, shown.node, shown.problem), ("spot", "elsewhere", Some(node(0)), None));
    let (state, text) = health(&other);
    assert_eq!(state, State::Working, "{text}");
    assert!(text.starts_with("This replica drains nothing; 1 node is drained by other replicas"), "{text}");

    sleep(s(10)).await;
    let (state, text) = health(&other);
    assert_eq!(state, State::Blocked, "{text}");
    let start = "The drain of node-0 is blocked; another replica acts on it, or did. default/web-0-0 is held back by";
    assert!(text.starts_with(start), "{text}");
    let mut all = report(&other);
    all.add(report(&one));
    all.is_of_all();
    let phases: Vec<_> = all.interruptions.iter().map(|row| &*row.phase).collect();
    assert_eq!(
        (phases, all.health.basis.recorded.len()),
        (vec!["draining"], 0),
        "the replica that acts on it shows more"
    );

    stage.unblock(0);
    stage.until_handled(s(120)).await;
    sleep(s(2)).await;
    // The record does not show that the drain has ended; the replica that has ended it knows.
    assert_eq!(only(&other).phase, "elsewhere");
    let mut all = report(&other);
    all.add(report(&one));
    all.is_of_all();
    let phases: Vec<_> = all.interruptions.iter().map(|row| &*row.phase).collect();
    assert_eq!((phases, all.health.state), (vec!["ended"], State::Ok), "{}", all.health.text);
    sleep(s(120)).await;
    assert_eq!(only(&other).phase, "marked", "the node stays cordoned");
    assert_eq!(health(&other).0, State::Ok);
    assert_eq!(only(&one).phase, "ended", "a replica's own record is no second row");
    stage.world.kube.remove_node(&node(0));
    sleep(s(2)).await;
    assert!(report(&other).interruptions.is_empty());
    stage.rest(&[&one, &other]).await;
}

/// All is well only if all replicas say so, and nothing that a Node has on record is left over.
#[tokio::test(start_paused = true)]
async fn a_drain_that_no_replica_acts_on_is_told() {
    let stage = Stage::slow(s(60));
    let first = stage.start(&[]).await;
    let other = stage.start(&OTHER).await;
    stage.spot(0);
    sleep(s(5)).await;
    drop(first.kill().await);
    let mut all = report(&other);
    all.is_of_all();
    assert_eq!(all.health.state, State::Working);
    let told = "No replica acts on a drain on record: node-0. It ended before a restart, or continues when its notice is received again.";
    assert_eq!(all.health.text, told);

    let second = stage.start(&[]).await;
    stage.until_handled(s(120)).await;
    let mut all = report(&second);
    all.is_of_all();
    assert_eq!(all.health.state, State::Ok);
    assert!(all.health.text.starts_with("All is well. Nothing is being drained; the last"), "{}", all.health.text);
    stage.rest(&[&second, &other]).await;
}

#[tokio::test(start_paused = true)]
async fn nodes_that_can_t_be_watched_are_told() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&[]).await;
    sleep(s(1)).await;
    stage.world.faults.add(Rule::on("watch nodes", Fault::Status(500)));
    stage.world.faults.add(Rule::on("list nodes", Fault::Status(500)));
    stage.world.kube.interrupt_watches(Interrupt::Break);
    sleep(s(10)).await;
    assert_eq!(health(&replica).0, State::Failed, "{}", health(&replica).1);
    stage.world.faults.clear();
    sleep(s(60)).await;
    assert_eq!(health(&replica).0, State::Ok, "{}", health(&replica).1);
    stage.rest(&[&replica]).await;
}

/// Nothing else is wrong, and yet their nodes end undrained if they are real.
#[tokio::test(start_paused = true)]
async fn notices_that_aws_denies_are_told_while_they_wait() {
    let stage = Stage::new(8, 0);
    for n in 0..8 {
        stage.world.kube.add_pod(Pod::on(&node(n)).named(&format!("web-{n}")).stops_in(s(30)));
        stage.world.aws.ec2.set_spot_request(&instance(n), "fulfilled", "terminate", stage.world.clock.now());
    }
    let replica = stage.start(&[]).await;
    (0..8).for_each(|n| drop(stage.spot(n)));
    sleep(s(15)).await;
    let told = "6 notices are not confirmed by AWS. Until it confirms them, their nodes are not drained.";
    assert_eq!(health(&replica), (State::Blocked, told.to_owned()));
    let waiting = report(&replica).interruptions.into_iter().filter(|row| row.phase == "waiting").collect::<Vec<_>>();
    assert_eq!(waiting.len(), 6);
    assert!(waiting.iter().all(|row| row.problem.as_deref() == Some("AWS does not confirm it")), "{waiting:#?}");
    stage.world.aws.ec2.set_spot_request(&instance(7), Ec2::INTERRUPTED, "terminate", stage.world.clock.now());
    sleep(s(10)).await;
    assert!(health(&replica).1.starts_with("5 notices are"), "{}", health(&replica).1);
    stage.until_handled(s(130)).await;
    assert_eq!(health(&replica).0, State::Failed);
    stage.rest(&[&replica]).await;
}
