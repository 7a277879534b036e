//! Changes that are acted on shortly before they begin: until then their notices are kept on the Nodes.

use crate::harness::{Stage, instance, node, s};
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::{Interrupt, Pod};
use ebbtide_sim::messages;
use tokio::time::sleep;

const REBOOT: (&str, &str) = ("h", "AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED");
/// A time in seconds that is far ahead, and no longer: every poll of the queue costs real time.
const FAR: u64 = 6 * 3600;
const BEFORE: [&str; 2] = ["--when", "scheduled-change=2h-before"];

#[tokio::test(start_paused = true)]
async fn a_change_far_ahead_is_drained_for_shortly_before_it_begins_though_replicas_come_and_go() {
    let stage = Stage::new(1, 2);
    let first = stage.start(&BEFORE).await;
    let begins = stage.world.clock.now() + s(2 * FAR);
    stage.health(0, REBOOT, begins, "upcoming");
    stage.until_handled(s(30)).await;
    first.ended_once("scheduled-change", "planned");
    assert!(!stage.cordoned(0) && stage.plans(0).len() == 1, "{:?}", stage.annotations(0));
    stage.rest(&[&first]).await;
    first.stop().await.2.gone(|_| true).await;
    let (a, b) = (stage.start(&BEFORE).await, stage.start(&BEFORE).await);
    let left = begins.duration_since(stage.world.clock.now()).unsigned_abs();
    sleep(left - s(2 * 3600 + 100)).await;
    assert!(!stage.cordoned(0) && stage.world.kube.pods().len() == 2);
    sleep(s(300)).await;
    assert!(stage.cordoned(0) && stage.world.kube.pods().is_empty(), "{}", stage.story());
    assert_eq!(stage.plans(0), Vec::<String>::new());
    let drained = |replica: &crate::harness::Replica| {
        replica.metric("ebbtide_notices_total{kind=\"scheduled-change\",outcome=\"drained\"}")
    };
    assert!((drained(&a) + drained(&b) - 1.0).abs() < f64::EPSILON, "one of the two drained it");
    sleep(s(7200)).await;
    stage.reboot(0).await;
    stage.until("released", s(5), || !stage.cordoned(0)).await;
    stage.no_trace(0);
    stage.rest(&[&a, &b]).await;
}

/// AWS has sent the event again, and the second one has come first, shortly before the drain is due.
#[tokio::test(start_paused = true)]
async fn an_older_message_that_says_the_same_as_the_plan_leaves_it() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&BEFORE).await;
    let now = stage.world.clock.now();
    for at in [now, now - s(60)] {
        stage.world.aws.sqs.send(messages::scheduled_change(REBOOT.0, REBOOT.1, &[&instance(0)], at, now + s(7500)));
        stage.until_handled(s(30)).await;
    }
    assert!(!stage.cordoned(0) && stage.plans(0).len() == 1, "{}", stage.story());
    stage.until("drained", s(600), || stage.world.kube.pods().is_empty()).await;
    replica.all_ended("scheduled-change", &[("drained", 1), ("planned", 2)]);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_planned_change_is_put_off_and_called_off_on_the_node() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&BEFORE).await;
    let begun = stage.world.clock.now();
    stage.health(0, REBOOT, begun + s(FAR), "upcoming");
    stage.until_handled(s(30)).await;
    sleep(s(60)).await;
    stage.health(0, REBOOT, begun + s(3 * FAR), "upcoming");
    stage.until_handled(s(30)).await;
    assert_eq!(stage.plans(0).len(), 1);
    sleep(s(2 * FAR)).await;
    assert!(!stage.cordoned(0), "it begins later");
    stage.health(0, REBOOT, begun + s(3 * FAR), "closed");
    stage.until_handled(s(30)).await;
    stage.no_trace(0);
    sleep(s(2 * FAR)).await;
    assert!(!stage.cordoned(0) && stage.world.kube.pods().len() == 1);
    replica.all_ended("scheduled-change", &[("planned", 2), ("withdrawn", 1)]);
    stage.rest(&[&replica]).await;
}

/// A queue keeps no order: AWS has put the change off, and the message about that comes first.
#[tokio::test(start_paused = true)]
async fn an_older_message_about_a_change_that_the_node_keeps_drains_nothing() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&["--when", "scheduled-change=4h-before"]).await;
    let now = stage.world.clock.now();
    let send = |at, start| {
        stage.world.aws.sqs.send(messages::scheduled_change(REBOOT.0, REBOOT.1, &[&instance(0)], at, start));
    };
    send(now, now + s(4 * FAR));
    stage.until_handled(s(30)).await;
    send(now - s(60), now + s(3 * 3600));
    stage.until_handled(s(30)).await;
    assert!(!stage.cordoned(0) && stage.plans(0).len() == 1, "{}", stage.story());
    replica.all_ended("scheduled-change", &[("planned", 1), ("stale", 1)]);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_retirement_and_a_change_that_is_near_are_drained_for_at_once() {
    let stage = Stage::new(2, 1);
    let replica = stage.start(&[&BEFORE[..], &["--max-draining=none"]].concat()).await;
    let now = stage.world.clock.now();
    stage.health(0, ("r", "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED"), now + s(2 * FAR), "upcoming");
    stage.health(1, REBOOT, now + s(7000), "upcoming");
    stage.until_handled(s(30)).await;
    replica.all_ended("scheduled-change", &[("drained", 2)]);
    stage.rest(&[&replica]).await;
}

/// A replica that is killed in the middle of the drain leaves the plan; another one continues after half of the time that the first one had.
#[tokio::test(start_paused = true)]
async fn another_replica_continues_after_a_crash() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let first = stage.start(&BEFORE).await;
    stage.health(0, REBOOT, stage.world.clock.now() + s(FAR), "upcoming");
    stage.until_handled(s(30)).await;
    stage.until("cordoned", s(FAR), || stage.cordoned(0)).await;
    first.kill().await.gone(|_| true).await;
    let second = stage.start(&BEFORE).await;
    stage.unblock(0);
    sleep(s(60)).await;
    assert_eq!(stage.world.kube.pods_on(&node(0)).len(), 1, "the first may still be at work");
    stage.until("drained", s(1900), || stage.world.kube.pods().is_empty()).await;
    stage.until("carried out", s(60), || stage.plans(0).is_empty()).await;
    second.ended_once("scheduled-change", "drained");
    stage.rest(&[&second]).await;
}

/// Tokio's clock stands still while the machine is suspended, and the change begins all the same.
#[tokio::test(start_paused = true)]
async fn a_suspended_machine_drains_until_the_change_begins() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.start(&["--when", BEFORE[1], "--drain-timeout", "scheduled-change=3h"]).await;
    let start = stage.world.clock.elapsed() + s(FAR);
    stage.health(0, REBOOT, stage.world.clock.now() + s(FAR), "upcoming");
    stage.until_handled(s(30)).await;
    stage.until("cordoned", s(FAR), || stage.cordoned(0)).await;
    stage.world.clock.skip(s(3600));
    stage.until("carried out", s(3700), || stage.plans(0).is_empty()).await;
    let ended = stage.world.clock.elapsed();
    assert!((start..start + s(40)).contains(&ended), "{start:?}: {ended:?}");
    assert!(stage.has_pod("web-0-0"), "patience ends there, and overrides no budget");
    replica.all_ended("scheduled-change", &[("blocked", 1), ("planned", 1)]);
    stage.rest(&[&replica]).await;
}

/// Nothing but its message tells of the change until the Node keeps it.
#[tokio::test(start_paused = true)]
async fn a_change_that_no_node_can_keep_stays_in_its_message() {
    for (lasts, outcome) in [(300, "planned"), (630, "drained")] {
        let stage = Stage::new(1, 1);
        let flags = ["--when", "scheduled-change=300s-before", "--drain-timeout", "scheduled-change=1m"];
        let replica = stage.start(&flags).await;
        sleep(s(1)).await;
        stage.world.faults.add(Rule::on("patch nodes", Fault::Disconnect));
        let begin = stage.world.clock.now() + s(900);
        stage.health(0, ("h", "AWS_EC2_INSTANCE_STOP_SCHEDULED"), begin, "upcoming");
        sleep(s(lasts)).await;
        assert_eq!(stage.world.aws.sqs.in_flight(), 1, "{}", stage.story());
        stage.world.faults.clear();
        stage.until_handled(s(100)).await;
        replica.ended_once("scheduled-change", outcome);
        assert_eq!(stage.has_pod("web-0-0"), outcome == "planned");
        if outcome == "planned" {
            stage.until("drained", s(900), || !stage.has_pod("web-0-0")).await;
        }
        stage.rest(&[&replica]).await;
    }
}

/// `kubectl delete node` and a restart of the kubelet are the usual cure for a stuck node.
#[tokio::test(start_paused = true)]
async fn a_change_whose_node_is_deleted_before_it_is_planned_is_planned_on_the_next() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&BEFORE).await;
    sleep(s(1)).await;
    stage.world.faults.add(Rule::on("patch nodes", Fault::Disconnect));
    stage.health(0, REBOOT, stage.world.clock.now() + s(FAR), "upcoming");
    sleep(s(30)).await;
    stage.world.kube.remove_node(&node(0));
    stage.world.kube.add_node(&node(0), &instance(0));
    stage.world.faults.clear();
    stage.until_handled(s(100)).await;
    assert_eq!(stage.plans(0).len(), 1, "{}", stage.story());
    replica.ended_once("scheduled-change", "planned");
    stage.rest(&[&replica]).await;
}

/// Its message was deleted when it was planned.
#[tokio::test(start_paused = true)]
async fn a_planned_change_whose_node_is_deleted_is_planned_on_the_next() {
    for is_seen in [true, false] {
        let stage = Stage::new(1, 1);
        let replicas = [stage.start(&BEFORE).await, stage.start(&BEFORE).await];
        stage.health(0, REBOOT, stage.world.clock.now() + s(FAR), "upcoming");
        stage.until_handled(s(30)).await;
        let plans = stage.plans(0);
        if !is_seen {
            stage.world.faults.add(Rule::on("watch nodes", Fault::Status(500)));
            stage.world.kube.interrupt_watches(Interrupt::Break);
        }
        stage.world.kube.remove_node(&node(0));
        sleep(s(600)).await;
        stage.world.kube.add_node(&node(0), &instance(0));
        stage.world.faults.clear();
        stage.until("planned", s(130), || stage.plans(0) == plans).await;
        stage.until("drained", s(FAR), || stage.cordoned(0) && stage.plans(0).is_empty()).await;
        assert_eq!(stage.world.clock.elapsed().as_secs() / 600, (FAR - 7200) / 600, "two hours before the start");
        stage.rest(&replicas.each_ref()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_registers_again_is_drained_for_its_planned_change() {
    for pause in [0, 5, 300] {
        let stage = Stage::new(1, 1);
        stage.block(0);
        let replica = stage.start(&BEFORE).await;
        stage.health(0, REBOOT, stage.world.clock.now() + s(FAR), "upcoming");
        stage.until_handled(s(30)).await;
        stage.until("cordoned", s(FAR), || stage.cordoned(0)).await;
        sleep(s(30)).await;
        stage.world.kube.remove_node(&node(0));
        sleep(s(pause)).await;
        stage.world.kube.add_node(&node(0), &instance(0));
        stage.world.kube.add_pod(Pod::on(&node(0)).named("again"));
        stage
            .until("drained again", s(300), || stage.cordoned(0) && stage.world.kube.pods_on(&node(0)).is_empty())
            .await;
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_planned_change_that_is_cancelled_or_over_is_not_planned_on_the_next_node() {
    for is_cancelled in [true, false] {
        let stage = Stage::new(1, 1);
        let replicas = [stage.start(&BEFORE).await, stage.start(&BEFORE).await];
        let start = stage.world.clock.now() + s(7200 + 600);
        stage.health(0, REBOOT, start, "upcoming");
        stage.until_handled(s(30)).await;
        stage.world.kube.remove_node(&node(0));
        if is_cancelled {
            stage.health(0, REBOOT, start, "closed");
            sleep(s(60)).await;
        } else {
            sleep(s(7200 + 600)).await;
        }
        stage.world.kube.add_node(&node(0), &instance(0));
        stage.until_handled(s(30)).await;
        sleep(s(1000)).await;
        assert!(!stage.cordoned(0) && stage.plans(0).is_empty(), "{}", stage.story());
        stage.rest(&replicas.each_ref()).await;
    }
}

/// Its message is deleted when no Node has registered in time. The other replica has not seen it, and plans the change on the next Node.
#[tokio::test(start_paused = true)]
async fn a_planned_change_that_is_cancelled_without_a_node_is_not_drained_for_on_the_next() {
    let stage = Stage::new(1, 1);
    let replicas = [stage.start(&BEFORE).await, stage.start(&BEFORE).await];
    let start = stage.world.clock.now() + s(FAR);
    stage.health(0, REBOOT, start, "upcoming");
    stage.until_handled(s(30)).await;
    stage.world.kube.remove_node(&node(0));
    stage.health(0, REBOOT, start, "closed");
    stage.until_handled(s(16 * 60)).await;
    stage.world.kube.add_node(&node(0), &instance(0));
    sleep(s(200)).await;
    stage.no_trace(0);
    // An older copy, which SQS delivers late.
    let at = stage.world.clock.now() - s(30 * 60);
    stage.world.aws.sqs.send(messages::scheduled_change(REBOOT.0, REBOOT.1, &[&instance(0)], at, start));
    stage.until_handled(s(30)).await;
    sleep(s(FAR)).await;
    stage.no_trace(0);
    assert!(!stage.cordoned(0), "{}", stage.story());
    stage.rest(&replicas.each_ref()).await;
}
