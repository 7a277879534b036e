//! Nodes that restart before an announced change: retirement means failing hardware. AWS's documentation: a reboot leaves the instance
//! where it is and the event open; only a stop and start moves it to other hardware.

use crate::harness::{Stage, instance, node, s};
use crate::pipeline::nodes::MAINTENANCE;
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::Pod;
use ebbtide_sim::messages;
use serde_json::json;
use tokio::time::sleep;

const DAY: u64 = 86_400;
const RETIREMENT: (&str, &str) = ("h", "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED");
const LISTED: (&str, &str) = ("instance-event-1", "instance-retirement");
/// Settings with which EC2 is asked, though about nothing usual.
const ASKS_EC2: [&str; 2] = ["--max-draining", "100"];
const ASKS: &str = "DescribeInstanceStatus";

/// Announces node 0's retirement in a week, which EC2 lists, and returns its time.
fn retire(stage: &Stage) -> jiff::Timestamp {
    let start = stage.world.clock.now() + s(7 * DAY);
    stage.world.aws.ec2.schedule(&instance(0), LISTED, start);
    stage.health(0, RETIREMENT, start, "upcoming");
    start
}

#[tokio::test(start_paused = true)]
async fn a_restart_before_its_start_leaves_the_node_cordoned_until_the_retirement() {
    for is_fast in [true, false] {
        let stage = Stage::new(1, 2);
        let replica = stage.start(&ASKS_EC2).await;
        let start = retire(&stage);
        stage.until_handled(s(60)).await;
        for _ in 0..2 {
            sleep(s(1800)).await;
            let asked = stage.calls(ASKS);
            if is_fast {
                stage.reboot_fast(0);
            } else {
                stage.reboot(0).await;
            }
            sleep(s(600)).await;
            assert!(stage.cordoned(0) && stage.notices(0).len() == 1, "{}", stage.story());
            assert_eq!(stage.calls(ASKS), asked + 1, "once for each restart");
        }
        // AWS sends the event again.
        stage.health(0, RETIREMENT, start, "upcoming");
        stage.until_handled(s(60)).await;
        assert!(stage.cordoned(0) && stage.notices(0).len() == 1, "{}", stage.story());
        replica.ended_as("scheduled-change", "stale", 0);
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_restart_at_its_start_is_the_return() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&ASKS_EC2).await;
    let start = stage.world.clock.now() + s(3600);
    stage.world.aws.ec2.schedule(&instance(0), ("instance-event-1", "system-reboot"), start);
    stage.health(0, ("h", "AWS_EC2_SYSTEM_REBOOT_MAINTENANCE_SCHEDULED"), start, "upcoming");
    stage.until_handled(s(60)).await;
    sleep(s(1800)).await;
    stage.reboot(0).await;
    sleep(s(600)).await;
    assert!(stage.cordoned(0), "{}", stage.story());
    // Its clock and AWS's may differ.
    let ahead = start.duration_since(stage.world.clock.now()).unsigned_abs();
    sleep(ahead - s(30)).await;
    stage.reboot_fast(0);
    stage.until("released", s(10), || !stage.cordoned(0)).await;
    assert!((replica.released("rebooted") - 1.0).abs() < f64::EPSILON);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_in_the_middle_of_the_drain_does_not_end_it() {
    let stage = Stage::new(1, 2);
    stage.block(0);
    let replica = stage.start(&ASKS_EC2).await;
    retire(&stage);
    sleep(s(240)).await;
    stage.reboot(0).await;
    sleep(s(600)).await;
    assert!(stage.cordoned(0), "{}", stage.story());
    stage.unblock(0);
    stage.until("drained", s(60), || stage.world.kube.pods().is_empty()).await;
    stage.until_handled(s(60)).await;
    replica.ended_as("scheduled-change", "drained", 1);
    assert!(stage.cordoned(0), "{}", stage.story());
    stage.rest(&[&replica]).await;
}

/// A stop and start moves the instance, and EC2 drops the event.
#[tokio::test(start_paused = true)]
async fn a_stop_and_start_before_its_start_gives_the_node_back() {
    let stage = Stage::new(1, 1);
    let there = stage.with_own_queue();
    let (here, other) = (stage.start(&ASKS_EC2).await, there.start(&ASKS_EC2).await);
    let announced = stage.world.clock.now();
    let start = retire(&stage);
    stage.until_handled(s(60)).await;
    sleep(s(1800)).await;
    stage.set_ready(0, false);
    stage.world.aws.ec2.close(LISTED.0, "Canceled");
    stage.reboot(0).await;
    stage.until("released", s(10), || !stage.cordoned(0)).await;
    stage.no_trace(0);
    // An older copy that another queue has held changes nothing.
    there.world.aws.sqs.send(messages::scheduled_change(RETIREMENT.0, RETIREMENT.1, &[&instance(0)], announced, start));
    there.until_handled(s(60)).await;
    other.ended_as("scheduled-change", "stale", 1);
    assert!(!stage.cordoned(0), "{}", stage.story());
    stage.rest(&[&here, &other]).await;
}

/// EC2 lists a change later than a message announces it.
#[tokio::test(start_paused = true)]
async fn ec2_is_not_asked_about_what_was_announced_just_now() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&ASKS_EC2).await;
    let start = stage.world.clock.now() + s(7 * DAY);
    stage.health(0, RETIREMENT, start, "upcoming");
    stage.until_handled(s(60)).await;
    stage.reboot_fast(0);
    sleep(s(60)).await;
    assert!(stage.cordoned(0) && stage.calls(ASKS) == 0, "{}", stage.story());
    stage.world.aws.ec2.schedule(&instance(0), LISTED, start);
    sleep(s(600)).await;
    assert!(stage.cordoned(0) && stage.calls(ASKS) == 1, "{}", stage.story());
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn an_ec2_that_does_not_answer_is_asked_again_and_one_that_refuses_is_not() {
    for (fault, asks_again) in [(Fault::Status(503), true), (Fault::Status(403), false)] {
        let stage = Stage::new(1, 1);
        let replica = stage.start(&ASKS_EC2).await;
        retire(&stage);
        stage.until_handled(s(60)).await;
        sleep(s(600)).await;
        stage.world.aws.ec2.close(LISTED.0, "Canceled");
        stage.world.faults.add(Rule::on(ASKS, fault));
        stage.reboot_fast(0);
        sleep(s(600)).await;
        assert!(stage.cordoned(0), "{fault:?} {}", stage.story());
        stage.world.faults.clear();
        sleep(s(600)).await;
        assert_eq!(stage.cordoned(0), !asks_again, "{fault:?} {}", stage.story());
        stage.rest(&[&replica]).await;
    }
}

/// With these settings AWS is not asked: AWS Health closes the event.
#[tokio::test(start_paused = true)]
async fn without_questions_the_change_stands_until_health_closes_it() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&["--verify=never"]).await;
    let start = retire(&stage);
    stage.until_handled(s(60)).await;
    sleep(s(600)).await;
    stage.reboot(0).await;
    sleep(s(600)).await;
    assert!(stage.cordoned(0) && stage.calls(ASKS) == 0, "{}", stage.story());
    stage.health(0, RETIREMENT, start, "closed");
    stage.until("released", s(30), || !stage.cordoned(0)).await;
    stage.until_handled(s(60)).await;
    stage.no_trace(0);
    stage.rest(&[&replica]).await;
}

/// Only the agent knows that the change is off.
#[tokio::test(start_paused = true)]
async fn without_aws_the_change_stands_until_the_agent_withdraws_it() {
    let stage = Stage::new(1, 1);
    let replica = stage.without_queue("a", &[]).await;
    let start = stage.world.clock.now() + s(7 * DAY);
    let change = json!({ "what": LISTED.1, "at": start, "id": LISTED.0 });
    stage.annotate(0, MAINTENANCE, &change.to_string());
    stage.until("drained", s(60), || stage.world.kube.pods().is_empty()).await;
    sleep(s(600)).await;
    stage.reboot_fast(0);
    sleep(s(600)).await;
    assert!(stage.cordoned(0) && stage.calls(ASKS) == 0, "{}", stage.story());
    stage.takes_back(0, MAINTENANCE);
    stage.until("released", s(60), || !stage.cordoned(0)).await;
    stage.rest(&[&replica]).await;
}

/// The restart ended a recommendation, and left a note on the Node. The plan knows nothing of it.
#[tokio::test(start_paused = true)]
async fn a_plan_survives_a_restart_that_ends_a_recommendation() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&["--when", "scheduled-change=30m-before"]).await;
    let start = stage.world.clock.now() + s(7200);
    stage.health(0, ("h", "AWS_EC2_INSTANCE_STOP_SCHEDULED"), start, "upcoming");
    stage.until_handled(s(60)).await;
    stage.rebalance(0);
    stage.until("cordoned", s(60), || stage.cordoned(0)).await;
    stage.reboot_fast(0);
    stage.until("released", s(60), || !stage.cordoned(0)).await;
    stage.world.kube.add_pod(Pod::on(&node(0)).named("later"));
    sleep(s(4000)).await;
    assert!(!stage.cordoned(0) && stage.has_pod("later"), "{}", stage.story());
    sleep(s(1800)).await;
    assert!(stage.cordoned(0) && !stage.has_pod("later"), "{}", stage.story());
    stage.rest(&[&replica]).await;
}

/// Both replicas see the restart, and a kill of one of them changes nothing.
#[tokio::test(start_paused = true)]
async fn a_restart_that_no_replica_saw_is_judged_by_the_next() {
    let stage = Stage::new(1, 1);
    let first = stage.start(&ASKS_EC2).await;
    retire(&stage);
    stage.until_handled(s(60)).await;
    first.kill().await;
    stage.reboot_fast(0);
    sleep(s(600)).await;
    let second = stage.start(&ASKS_EC2).await;
    sleep(s(600)).await;
    assert!(stage.cordoned(0) && stage.calls(ASKS) == 1, "{}", stage.story());
    stage.rest(&[&second]).await;
}
