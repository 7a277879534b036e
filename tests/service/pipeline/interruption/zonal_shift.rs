//! `--zonal-shift`: while traffic is shifted away from a zone, drains in the others that have time wait.

use crate::harness::{Replica, Stage, instance, node, s};
use crate::nodes::TO_POOL;
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::Pod;
use ebbtide_sim::messages::{self, Wrapping};
use tokio::time::sleep;

const ZONE: &str = "topology.k8s.aws/zone-id";
const CLUSTER: &str = "arn:aws:eks:eu-west-1:123456789012:cluster/here";
const FLAGS: [&str; 4] = ["--zonal-shift", CLUSTER, "--on", "rebalance=drain"];
const RETIREMENT: (&str, &str) = ("h", "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED");

/// Returns a world of a node in each of three zones, `az0`, `az1` and `az2`.
fn three_zones() -> Stage {
    let stage = Stage::new(3, 0);
    for n in 0..3 {
        stage.world.kube.add_pod(Pod::on(&node(n)).named(&format!("web-{n}-0")).grace(s(30)).stops_in(s(20)));
        stage.label(n, ZONE, &format!("euw1-az{n}"));
    }
    stage
}

/// Sends an event of a shift of the cluster away from the first zone.
fn shift(stage: &Stage, kind: &str) {
    send(stage, kind, CLUSTER);
}

fn send(stage: &Stage, kind: &str, resource: &str) {
    stage.world.aws.sqs.send(messages::zonal_shift(kind, resource, "euw1-az0", stage.world.clock.now()));
}

async fn shifted(stage: &Stage, kind: &str) {
    shift(stage, kind);
    stage.until_handled(s(10)).await;
}

fn notes(stage: &Stage) -> usize {
    (0..3).flat_map(|n| stage.annotations(n).into_keys()).filter(|name| name.starts_with("ebbtide/shift.")).count()
}

fn changes(replica: &Replica, change: &str) -> f64 {
    replica.metric(&format!("ebbtide_zonal_shifts_total{{change=\"{change}\"}}"))
}

/// Kills the replica, and returns another that goes on with the evictions from node 1.
async fn taken_over(stage: &Stage, first: Replica) -> Replica {
    first.kill().await.gone(|_| true).await;
    let tries = stage.tries_of("web-1-0").len();
    let second = stage.start(&FLAGS).await;
    stage.until("it goes on", s(60), || stage.tries_of("web-1-0").len() > tries).await;
    second
}

/// Lets the pod of node 1 go, which is all that its hook waits for.
async fn drains_in_the_end(stage: &Stage, token: &str, replica: &Replica) {
    stage.unblock(1);
    stage.until_handled(s(60)).await;
    stage.completed_once(token);
    replica.ended_once("asg-terminate", "drained");
    stage.rest(&[replica]).await;
}

#[tokio::test(start_paused = true)]
async fn drains_in_other_zones_wait_for_the_end_of_the_shift() {
    let kinds = [
        ("Autoshift In Progress", "Autoshift Completed"),
        ("Manual Shift Started", "Manual Shift Canceled"),
        ("FIS Experiment Autoshift In Progress", "FIS Experiment Autoshift Canceled"),
    ];
    for (begins, ends) in kinds {
        let stage = three_zones();
        let replica = stage.start(&FLAGS).await;
        shifted(&stage, begins).await;
        assert_eq!((notes(&stage), changes(&replica, "began")), (3, 1.0), "{}", stage.story());
        let tokens: Vec<_> = (0..2).map(|n| stage.terminate(n, s(300), Wrapping::Event)).collect();
        stage.until("in the zone itself", s(60), || !stage.action(&tokens[0]).completions.is_empty()).await;
        sleep(s(2 * 3600)).await;
        assert_eq!((stage.cordoned(1), stage.first_eviction(1)), (true, None), "{}", stage.story());
        shift(&stage, ends);
        stage.until("the drain goes on", s(12), || stage.first_eviction(1).is_some()).await;
        stage.until_handled(s(60)).await;
        for token in &tokens {
            stage.completed_once(token);
        }
        assert_eq!((stage.ends_of("web-1-0").len(), changes(&replica, "ended")), (1, 1.0));
        let text = replica.metrics.render(&replica.tasks);
        assert!(text.contains("ebbtide_waits_seconds_count{outcome=\"met\",wait=\"zonal-shift\"} 1"), "{text}");
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_has_little_time_does_not_wait_and_a_hard_deadline_bypasses_the_shift() {
    let stage = three_zones();
    let replica = stage.start(&FLAGS).await;
    shifted(&stage, "Autoshift In Progress").await;
    let begun = stage.world.clock.now();
    stage.spot(2);
    stage.until("the spot warning waits for nobody", s(3), || stage.first_eviction(2).is_some()).await;
    stage.world.aws.ec2.schedule(&instance(1), ("change", "instance-retirement"), begun + s(2400));
    stage.health(1, RETIREMENT, begun + s(2400), "upcoming");
    sleep(s(1190)).await;
    assert_eq!((stage.cordoned(1), stage.first_eviction(1)), (true, None), "{}", stage.story());
    sleep(s(12)).await;
    assert!(stage.first_eviction(1).is_some(), "{}", stage.story());
    stage.until_handled(s(60)).await;
    stage.rest(&[&replica]).await;
}

/// One replica receives the message; another one, and one that starts later, know it, too.
#[tokio::test(start_paused = true)]
async fn all_replicas_know_it_and_it_survives_a_restart() {
    let one = three_zones();
    let other = one.with_own_queue();
    let (first, second) = (one.start(&FLAGS).await, other.start(&FLAGS).await);
    shifted(&one, "Autoshift In Progress").await;
    let token = other.terminate(1, s(300), Wrapping::Event);
    sleep(s(600)).await;
    assert_eq!(one.first_eviction(1), None);
    first.kill().await.gone(|_| true).await;
    second.kill().await.gone(|_| true).await;
    // The Node with one of the notes goes.
    one.world.kube.remove_node(&node(0));
    let third = other.start(&FLAGS).await;
    sleep(s(600)).await;
    assert_eq!((one.cordoned(1), one.first_eviction(1)), (true, None), "{}", one.story());
    shift(&other, "Autoshift Completed");
    other.until_handled(s(90)).await;
    other.completed_once(&token);
    other.rest(&[&third]).await;
}

/// Nothing tells that a manual shift has expired.
#[tokio::test(start_paused = true)]
async fn a_shift_whose_end_is_never_told_holds_for_six_hours_after_the_last_event() {
    let stage = three_zones();
    let replica = stage.start(&FLAGS).await;
    shifted(&stage, "Manual Shift Started").await;
    let token = stage.terminate(1, s(3600), Wrapping::Event);
    sleep(s(3600)).await;
    shift(&stage, "Manual Shift Updated");
    sleep(s(6 * 3600 - 10)).await;
    assert_eq!(stage.first_eviction(1), None, "{}", stage.story());
    sleep(s(20)).await;
    assert!(stage.first_eviction(1).is_some(), "{}", stage.story());
    stage.until_handled(s(60)).await;
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_shift_of_something_else_and_a_practice_run_hold_back_nothing() {
    let ours =
        [("Practice Run Started", CLUSTER), ("Autoshift In Progress", ""), ("Autoshift In Progress", "arn:aws:eks:x")];
    for (flags, events) in [(&FLAGS[..], &ours[..]), (&FLAGS[2..], &[("Autoshift In Progress", CLUSTER)])] {
        let stage = three_zones();
        let replica = stage.start(flags).await;
        for (kind, resource) in events {
            send(&stage, kind, resource);
        }
        stage.until_handled(s(10)).await;
        assert_eq!((notes(&stage), stage.calls("patch nodes")), (0, 0), "{}", stage.story());
        let token = stage.terminate(1, s(300), Wrapping::Event);
        stage.until_handled(s(60)).await;
        stage.completed_once(&token);
        assert_eq!(stage.calls("patch nodes"), 1, "without a shift nothing more is written");
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_message_is_held_until_the_nodes_have_noted_it() {
    let stage = three_zones();
    let replica = stage.start(&FLAGS).await;
    stage.world.faults.add(Rule::on("patch nodes", Fault::Status(500)));
    shift(&stage, "Autoshift In Progress");
    sleep(s(60)).await;
    assert!(!stage.world.aws.sqs.is_empty() && notes(&stage) == 0, "{}", stage.story());
    stage.world.faults.clear();
    stage.until_handled(s(20)).await;
    assert_eq!(notes(&stage), 3);
    assert!(
        stage.world.kube.node(&node(1)).is_some_and(|node| node.spec.is_some_and(|spec| spec.unschedulable.is_none()))
    );

    stage.rest(&[&replica]).await;
}

/// A drain that runs is not stopped, whichever replica goes on with it.
#[tokio::test(start_paused = true)]
async fn a_takeover_goes_on_with_a_drain_that_began_before_the_shift() {
    let stage = three_zones();
    stage.block(1);
    let first = stage.start(&FLAGS).await;
    let token = stage.terminate(1, s(300), Wrapping::Event);
    stage.until("it runs", s(30), || !stage.tries_of("web-1-0").is_empty()).await;
    shift(&stage, "Autoshift In Progress");
    stage.until("noted", s(10), || notes(&stage) == 3).await;
    let second = taken_over(&stage, first).await;
    drains_in_the_end(&stage, &token, &second).await;
}

/// The time that a hook gives the drain begins with the end of the wait, by whichever replica, and no second shift stops it.
#[tokio::test(start_paused = true)]
async fn a_takeover_goes_on_with_a_drain_that_has_waited_for_a_shift() {
    for restarts in [false, true] {
        let stage = three_zones();
        stage.block(1);
        let first = stage.start(&FLAGS).await;
        shifted(&stage, "Autoshift In Progress").await;
        let token = stage.terminate_between(1, s(300), Wrapping::Event, TO_POOL);
        sleep(s(2 * 3600)).await;
        assert_eq!((stage.tries_of("web-1-0").len(), &stage.notices(1)[0]["wave"]), (0, &"waits".into()));
        shift(&stage, "Autoshift Completed");
        stage.until("it runs", s(12), || !stage.tries_of("web-1-0").is_empty()).await;
        if restarts {
            // The hook keeps the instance.
            stage.world.kube.reboot(&node(1));
        } else {
            shift(&stage, "Autoshift In Progress");
        }
        sleep(s(5)).await;
        let second = taken_over(&stage, first).await;
        sleep(s(120)).await;
        assert!(stage.has_pod("web-1-0"), "{restarts}\n{}", stage.story());
        drains_in_the_end(&stage, &token, &second).await;
    }
}

/// EventBridge says whole seconds, and delivers in any order.
#[tokio::test(start_paused = true)]
async fn of_one_second_the_end_counts_and_what_is_old_begins_nothing() {
    let stage = three_zones();
    let replica = stage.start(&FLAGS).await;
    let at = stage.world.clock.now();
    let told = |kind: &str, at| stage.world.aws.sqs.send(messages::zonal_shift(kind, CLUSTER, "euw1-az0", at));
    for (kind, at) in [
        ("Manual Shift Started", at),
        ("Manual Shift Canceled", at),
        ("Manual Shift Started", at),
        ("Manual Shift Updated", at - s(60)),
    ] {
        told(kind, at);
        stage.until_handled(s(10)).await;
    }
    let stale = replica.metric("ebbtide_messages_ignored_total{reason=\"stale-shift\"}");
    let told = [changes(&replica, "began"), changes(&replica, "ended"), stale].map(|count| count.to_string());
    assert_eq!(told, ["1", "1", "2"], "{}", stage.story());
    let token = stage.terminate(1, s(300), Wrapping::Event);
    stage.until_handled(s(60)).await;
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_shift_that_no_node_can_note_has_not_begun() {
    let stage = Stage::new(0, 0);
    let replica = stage.start(&FLAGS).await;
    shifted(&stage, "Autoshift In Progress").await;
    assert!(changes(&replica, "began") < 0.5, "{}", stage.story());
    stage.rest(&[&replica]).await;
}

/// No event tells that a manual shift has expired; the next shift of the resource does.
#[tokio::test(start_paused = true)]
async fn a_shift_ends_the_one_before_of_its_resource() {
    let stage = three_zones();
    let replica = stage.start(&FLAGS).await;
    shifted(&stage, "Manual Shift Started").await;
    sleep(s(3600)).await;
    let now = stage.world.clock.now();
    stage.world.aws.sqs.send(messages::zonal_shift("Manual Shift Started", CLUSTER, "euw1-az1", now));
    stage.until_handled(s(10)).await;
    let tokens: Vec<_> = (0..2).map(|n| stage.terminate(n, s(300), Wrapping::Event)).collect();
    stage.until("in the zone itself", s(60), || !stage.action(&tokens[1]).completions.is_empty()).await;
    sleep(s(600)).await;
    assert_eq!((stage.cordoned(0), stage.first_eviction(0)), (true, None), "{}", stage.story());
    let now = stage.world.clock.now();
    stage.world.aws.sqs.send(messages::zonal_shift("Manual Shift Canceled", CLUSTER, "euw1-az1", now));
    stage.world.aws.sqs.send(messages::zonal_shift("Manual Shift Canceled", CLUSTER, "euw1-az0", now));
    stage.until_handled(s(60)).await;
    for token in &tokens {
        stage.completed_once(token);
    }
    stage.rest(&[&replica]).await;
}

/// Of two nodes in a healthy zone one has the place, and the other waits for it when the shift begins.
#[tokio::test(start_paused = true)]
async fn a_shift_that_begins_while_a_node_waits_for_its_place_holds_it_back() {
    let stage = three_zones();
    stage.label(2, ZONE, "euw1-az1");
    stage.block(1);
    let wave = ["--wave", "topology.k8s.aws/zone-id=1"];
    let replica = stage.start(&[&FLAGS[..], &wave].concat()).await;
    let tokens: Vec<_> = (1..3).map(|n| stage.terminate(n, s(300), Wrapping::Event)).collect();
    stage.until("one has the place", s(30), || !stage.tries_of("web-1-0").is_empty()).await;
    shift(&stage, "Autoshift In Progress");
    sleep(s(30)).await;
    stage.unblock(1);
    stage.until("the first goes on", s(60), || !stage.action(&tokens[0]).completions.is_empty()).await;
    stage.world.kube.remove_node(&node(1));
    sleep(s(3600)).await;
    assert_eq!((stage.cordoned(2), stage.first_eviction(2)), (true, None), "{}", stage.story());
    shift(&stage, "Autoshift Completed");
    stage.until("the second goes on", s(12), || stage.first_eviction(2).is_some()).await;
    stage.until_handled(s(60)).await;
    for token in &tokens {
        stage.completed_once(token);
    }
    stage.rest(&[&replica]).await;
}

/// Whoever may write a Node may note a shift of any time, which no event has told.
#[tokio::test(start_paused = true)]
async fn a_note_of_a_later_time_holds_no_drain_back() {
    let stage = three_zones();
    let replica = stage.start(&FLAGS).await;
    let now = stage.world.clock.now();
    let note = |at: &str, until: &str| {
        format!(r#"{{"until":"{until}","away_from":"euw1-az0","resource":"{CLUSTER}","at":"{at}"}}"#)
    };
    stage.annotate(1, "ebbtide/shift.x", &note("9999-01-01T00:00:00Z", &(now + s(3600)).to_string()));
    stage.annotate(1, "ebbtide/shift.y", &note(&(now - s(20 * 3600)).to_string(), &(now + s(3600)).to_string()));
    stage.rebalance(2);
    stage.until_handled(s(60)).await;
    replica.ended_once("rebalance", "drained");
    stage.rest(&[&replica]).await;
}
