//! `--ec2-poll-interval`: what EC2 lists is acted on once, whether or not a message tells of it.

use crate::harness::{Replica, Stage, instance, node, s};
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::messages;
use tokio::time::sleep;

const POLLS: [&str; 2] = ["--ec2-poll-interval", "5m"];
const REBOOT: (&str, &str) = ("instance-event-0123456789abcdef0", "instance-reboot");
const HEALTH: (&str, &str) = ("h", "AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED");
const BLOCK: &str = "cr-0123456789abcdef0";
/// Time within which a replica has asked EC2 again and acted on the answer.
const ROUND: u64 = 300 + 100;
/// A time in seconds that is far ahead, and no longer: every poll of the queue costs real time.
const FAR: u64 = 4 * 3600;

/// Schedules a reboot of node 0 for a time that is `ahead`, and returns that time.
fn schedule(stage: &Stage, ahead: u64) -> jiff::Timestamp {
    let start = stage.world.clock.now() + s(ahead);
    let start = jiff::Timestamp::from_second(start.as_second()).unwrap();
    schedule_at(stage, start);
    start
}

fn schedule_at(stage: &Stage, start: jiff::Timestamp) {
    stage.world.aws.ec2.schedule(&instance(0), REBOOT, start);
}

/// Returns how often node 0's Node was patched.
fn patches(stage: &Stage) -> usize {
    stage.calls("patch nodes")
}

fn drained(replica: &Replica) -> f64 {
    replica.metric("ebbtide_notices_total{kind=\"scheduled-change\",outcome=\"drained\"}")
}

#[tokio::test(start_paused = true)]
async fn a_change_that_no_message_told_of_is_drained_for_once() {
    let stage = Stage::new(3, 2);
    stage.world.aws.ec2.set_page_size(1);
    stage.world.aws.ec2.schedule(&instance(1), ("instance-event-1", "system-maintenance"), stage.world.clock.now());
    let replica = stage.start(&POLLS).await;
    // Another account's cluster, of which no Node is here.
    stage.world.aws.ec2.put(&instance(7), &[]);
    stage.world.aws.ec2.schedule(&instance(7), ("instance-event-7", "instance-stop"), stage.world.clock.now());
    schedule(&stage, FAR);
    stage.until("drained", s(ROUND), || stage.world.kube.pods().len() == 2).await;
    assert_eq!([0, 1, 2].map(|n| stage.cordoned(n)), [true, true, false]);
    stage.until("noted", s(60), || stage.handled(0) == 1).await;
    let before = patches(&stage);
    sleep(s(3 * ROUND)).await;
    assert_eq!(patches(&stage), before, "{}", stage.story());
    replica.all_ended("scheduled-change", &[("drained", 2)]);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn without_the_setting_ec2_is_not_asked() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&[]).await;
    schedule(&stage, FAR);
    sleep(s(2 * ROUND)).await;
    assert!(!stage.cordoned(0) && stage.calls("DescribeInstanceStatus") == 0);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_user_who_uncordons_is_not_overruled_by_a_list_nor_by_a_late_message() {
    let stage = Stage::new(1, 1);
    let first = stage.start(&POLLS).await;
    let start = schedule(&stage, FAR);
    stage.until("noted", s(ROUND), || stage.handled(0) == 1).await;
    stage.set_cordon(0, false);
    stage.until("marks gone", s(60), || stage.notices(0).is_empty()).await;
    sleep(s(2 * ROUND)).await;
    assert!(!stage.cordoned(0), "{}", stage.story());
    stage.rest(&[&first]).await;
    first.stop().await.2.gone(|_| true).await;
    let second = stage.start(&POLLS).await;
    stage.health(0, HEALTH, start, "upcoming");
    stage.until_handled(s(30)).await;
    sleep(s(2 * ROUND)).await;
    assert!(!stage.cordoned(0) && stage.notices(0).is_empty(), "{}", stage.story());
    second.all_ended("scheduled-change", &[("joined", 1)]);
    stage.rest(&[&second]).await;
}

/// What EC2 listed is handled, which says nothing of another change.
#[tokio::test(start_paused = true)]
async fn a_message_of_another_change_than_the_listed_one_is_acted_on() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&POLLS).await;
    schedule(&stage, FAR);
    stage.until("noted", s(ROUND), || stage.handled(0) == 1).await;
    stage.set_cordon(0, false);
    stage.until("marks gone", s(60), || stage.notices(0).is_empty()).await;
    let later = stage.world.clock.now() + s(FAR);
    stage.health(0, ("r", "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED"), later, "upcoming");
    stage.until_handled(s(30)).await;
    assert!(stage.cordoned(0), "{}", stage.story());
    replica.all_ended("scheduled-change", &[("drained", 2)]);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_message_before_is_enough_even_for_a_user_who_uncordons() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&POLLS).await;
    let start = schedule(&stage, FAR);
    stage.health(0, HEALTH, start, "upcoming");
    stage.until_handled(s(30)).await;
    stage.until("noted", s(ROUND), || stage.handled(0) == 1).await;
    assert_eq!(stage.notices(0).len(), 1, "one mark");
    stage.set_cordon(0, false);
    stage.until("marks gone", s(60), || stage.notices(0).is_empty()).await;
    sleep(s(2 * ROUND)).await;
    assert!(!stage.cordoned(0), "{}", stage.story());
    replica.ended_once("scheduled-change", "drained");
    stage.rest(&[&replica]).await;
}

/// The message's receipt keeps it safe: it takes part in the drain, and in its mark.
#[tokio::test(start_paused = true)]
async fn a_message_in_mid_drain_joins_and_leaves_one_mark() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.start(&POLLS).await;
    let start = schedule(&stage, FAR);
    stage.until("cordoned", s(ROUND), || stage.cordoned(0)).await;
    stage.health(0, HEALTH, start, "upcoming");
    sleep(s(60)).await;
    assert_eq!((stage.world.aws.sqs.in_flight(), stage.notices(0).len()), (1, 1), "{}", stage.story());
    stage.unblock(0);
    stage.until_handled(s(60)).await;
    stage.until("noted", s(ROUND), || stage.handled(0) == 1).await;
    replica.all_ended("scheduled-change", &[("drained", 1), ("joined", 1)]);
    assert_eq!(stage.ends_of("web-0-0").len(), 1);
    // Its end takes the mark along.
    sleep(s(60)).await;
    stage.health(0, HEALTH, start, "closed");
    stage.until_handled(s(30)).await;
    assert!(!stage.cordoned(0) && stage.notices(0).is_empty(), "{:?}", stage.annotations(0));
    sleep(s(2 * ROUND)).await;
    assert!(!stage.cordoned(0), "EC2 lists it still");
    stage.rest(&[&replica]).await;
}

/// The last answer stands until the next poll, which may be an hour later.
#[tokio::test(start_paused = true)]
async fn a_change_that_a_message_cancels_is_not_acted_on_from_ec2s_last_answer() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&["--ec2-poll-interval", "1h"]).await;
    let start = stage.world.clock.now() + s(FAR);
    let start = jiff::Timestamp::from_second(start.as_second()).unwrap();
    stage.health(0, HEALTH, start, "upcoming");
    stage.until_handled(s(30)).await;
    // The drain is over when EC2 lists the change.
    schedule_at(&stage, start);
    sleep(s(3600 + 100)).await;
    assert!(stage.cordoned(0), "{}", stage.story());
    stage.health(0, HEALTH, start, "closed");
    stage.until_handled(s(30)).await;
    let before = patches(&stage);
    sleep(s(600)).await;
    assert!(!stage.cordoned(0) && patches(&stage) == before, "{}", stage.story());
    // The next answer lists it still: AWS has announced it again.
    stage.until("cordoned again", s(FAR), || stage.cordoned(0)).await;
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn the_mark_goes_with_the_reboot_or_when_the_change_is_over() {
    for (reboots, word) in [(true, "Completed"), (false, "Canceled"), (false, "Completed")] {
        let stage = Stage::new(1, 1);
        let replica = stage.start(&POLLS).await;
        schedule(&stage, 3600);
        stage.until("noted", s(ROUND), || stage.handled(0) == 1).await;
        if reboots {
            sleep(s(3600)).await;
            stage.reboot(0).await;
            stage.until("released", s(10), || !stage.cordoned(0)).await;
            sleep(s(2 * ROUND)).await;
            assert!(!stage.cordoned(0), "EC2 does not say yet that it is over: {}", stage.story());
        }
        stage.world.aws.ec2.close(REBOOT.0, word);
        sleep(s(2 * ROUND)).await;
        assert!(!stage.cordoned(0), "{}", stage.story());
        stage.no_trace(0);
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancellation_whose_writes_failed_is_tried_again() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&POLLS).await;
    schedule(&stage, FAR);
    stage.until("noted", s(ROUND), || stage.handled(0) == 1).await;
    stage.world.faults.add(Rule::on("patch nodes", Fault::Status(403)));
    stage.world.aws.ec2.close(REBOOT.0, "Canceled");
    let failed = "ebbtide_notices_total{kind=\"scheduled-change\",outcome=\"failed\"}";
    stage.until("failed", s(FAR), || replica.metric(failed) > 0.5).await;
    assert!(stage.cordoned(0), "{}", stage.story());
    stage.world.faults.clear();
    stage.until("released", s(2 * ROUND), || !stage.cordoned(0)).await;
    stage.no_trace(0);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_change_that_is_over_is_nothing() {
    let stage = Stage::new(1, 1);
    schedule(&stage, FAR);
    stage.world.aws.ec2.close(REBOOT.0, "Completed");
    let replica = stage.start(&POLLS).await;
    sleep(s(2 * ROUND)).await;
    assert_eq!((patches(&stage), stage.world.kube.pods().len()), (0, 1));
    replica.all_ended("scheduled-change", &[]);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_change_that_is_put_off_keeps_one_mark_with_its_new_begin() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&POLLS).await;
    schedule(&stage, FAR);
    stage.until("noted", s(ROUND), || stage.handled(0) == 1).await;
    let later = schedule(&stage, 2 * FAR).to_string();
    stage.until("moved", s(2 * ROUND), || stage.notices(0).iter().any(|mark| mark["start"] == later.as_str())).await;
    assert_eq!(stage.notices(0).len(), 1);
    stage.until("noted", s(60), || stage.notices(0)[0]["start"] == later.as_str() && stage.handled(0) == 1).await;
    assert_eq!(stage.handled(0), 1);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_change_far_ahead_is_planned_like_that_of_a_message() {
    let stage = Stage::new(1, 1);
    let flags = [POLLS[0], POLLS[1], "--when", "scheduled-change=2h-before"];
    let (a, b) = (stage.start(&flags).await, stage.start(&flags).await);
    let start = schedule(&stage, FAR);
    stage.until("planned", s(ROUND), || !stage.plans(0).is_empty()).await;
    // The message comes after all.
    stage.health(0, HEALTH, start, "upcoming");
    stage.until_handled(s(30)).await;
    assert_eq!((stage.cordoned(0), stage.plans(0).len()), (false, 1), "{:?}", stage.annotations(0));
    stage.until("drained", s(FAR - 7200 + 200), || stage.world.kube.pods().is_empty()).await;
    assert!(stage.world.clock.now() > start - s(7200), "not before");
    stage.until("noted", s(60), || stage.handled(0) == 1 && stage.plans(0).is_empty()).await;
    sleep(s(2 * ROUND)).await;
    assert!((drained(&a) + drained(&b) - 1.0).abs() < f64::EPSILON, "{}", stage.story());
    stage.rest(&[&a, &b]).await;
}

#[tokio::test(start_paused = true)]
async fn a_plan_that_a_message_brought_is_carried_out_once() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&[POLLS[0], POLLS[1], "--when", "scheduled-change=2h-before"]).await;
    let start = schedule(&stage, FAR);
    stage.health(0, HEALTH, start, "upcoming");
    stage.until_handled(s(30)).await;
    stage.until("joined", s(ROUND), || stage.joined(0) == 1).await;
    assert!(!stage.cordoned(0) && stage.handled(0) == 0);
    stage.until("drained", s(FAR - 7200 + 200), || stage.world.kube.pods().is_empty()).await;
    sleep(s(2 * ROUND)).await;
    replica.all_ended("scheduled-change", &[("drained", 1), ("planned", 1)]);
    assert_eq!(stage.notices(0).len(), 1);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn two_replicas_drain_once() {
    let stage = Stage::new(1, 2);
    let (a, b) = (stage.start(&POLLS).await, stage.start(&POLLS).await);
    schedule(&stage, FAR);
    stage.until("noted", s(ROUND), || stage.handled(0) == 1).await;
    sleep(s(3 * ROUND)).await;
    assert!((drained(&a) + drained(&b) - 1.0).abs() < f64::EPSILON, "{}", stage.story());
    assert_eq!((stage.notices(0).len(), stage.world.kube.evictions().len()), (1, 2));
    stage.rest(&[&a, &b]).await;
}

/// A replica that is killed in the middle of the drain leaves its mark; another one continues after half of the time that it had.
#[tokio::test(start_paused = true)]
async fn another_replica_continues_after_a_crash() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let first = stage.start(&POLLS).await;
    schedule(&stage, FAR);
    stage.until("cordoned", s(ROUND), || stage.cordoned(0)).await;
    first.kill().await.gone(|_| true).await;
    let second = stage.start(&POLLS).await;
    stage.unblock(0);
    sleep(s(120)).await;
    assert_eq!(stage.world.kube.pods_on(&node(0)).len(), 1, "the first may still be at work");
    stage.until("drained", s(2000), || stage.world.kube.pods().is_empty()).await;
    stage.until("noted", s(60), || stage.handled(0) == 1).await;
    second.ended_once("scheduled-change", "drained");
    stage.rest(&[&second]).await;
}

#[tokio::test(start_paused = true)]
async fn a_missing_right_is_told_once_and_breaks_nothing() {
    let stage = Stage::new(2, 1);
    stage.world.faults.add(Rule::on("DescribeInstanceStatus", Fault::Status(403)));
    stage.world.faults.add(Rule::on("DescribeCapacityReservations", Fault::Throttle).times(3));
    stage.world.aws.ec2.reserve(&instance(1), BLOCK);
    let ends = stage.world.clock.now() + s(2400);
    stage.world.aws.ec2.add_reservation(BLOCK, true, "p5.48xlarge", ends);
    let replica = stage.start(&POLLS).await;
    schedule(&stage, FAR);
    stage.until("the block is drained", s(ROUND), || stage.world.kube.pods_on(&node(1)).is_empty()).await;
    sleep(s(3 * ROUND)).await;
    assert!(!stage.cordoned(0) && stage.calls("DescribeInstanceStatus") >= 3);
    let told = replica.metric("ebbtide_retries_total{category=\"denied\",step=\"poll\"}");
    assert!((told - 2.0).abs() < f64::EPSILON, "for scheduled changes and for status checks: {told}");
    stage.spot(0);
    stage.until_handled(s(200)).await;
    // The right is granted.
    stage.world.faults.clear();
    sleep(s(ROUND)).await;
    replica.all_ended("capacity-reservation", &[("drained", 1)]);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_block_is_found_and_not_that_of_another_reservation() {
    let stage = Stage::new(3, 1);
    let ends = stage.world.clock.now() + s(7200);
    for (n, id, is_block) in [(0, BLOCK, true), (1, "cr-1", false)] {
        stage.world.aws.ec2.reserve(&instance(n), id);
        stage.world.aws.ec2.add_reservation(id, is_block, "p5.48xlarge", ends);
    }
    stage.block(0);
    let (a, b) = (stage.start(&POLLS).await, stage.start(&POLLS).await);
    sleep(s(7200 - 2400 - 30)).await;
    assert!(!stage.cordoned(0), "AWS would not warn yet");
    stage.until("cordoned", s(150), || stage.cordoned(0)).await;
    sleep(s(600)).await;
    assert!(stage.world.kube.pods_on(&node(0)).is_empty(), "deleted before the terminations begin: {}", stage.story());
    assert!(!stage.cordoned(1) && !stage.cordoned(2));
    stage.until("noted", s(60), || stage.handled(0) == 1).await;
    // The message comes late.
    let now = stage.world.clock.now();
    stage.world.aws.sqs.send(messages::capacity_block("e", BLOCK, now, ends));
    stage.until_handled(s(60)).await;
    let ended = |replica: &Replica, outcome: &str| {
        replica.metric(&format!("ebbtide_notices_total{{kind=\"capacity-reservation\",outcome=\"{outcome}\"}}"))
    };
    assert!((ended(&a, "joined") + ended(&b, "joined") - 1.0).abs() < f64::EPSILON);
    assert_eq!(stage.notices(0).len(), 1);
    stage.rest(&[&a, &b]).await;
}

#[tokio::test(start_paused = true)]
async fn a_block_of_which_a_message_told_is_drained_once() {
    let stage = Stage::new(1, 1);
    stage.world.aws.ec2.reserve(&instance(0), BLOCK);
    let now = jiff::Timestamp::from_second(stage.world.clock.now().as_second()).unwrap();
    let ends = now + s(2400);
    stage.world.aws.ec2.add_reservation(BLOCK, true, "p5.48xlarge", ends);
    let replica = stage.start(&POLLS).await;
    stage.world.aws.sqs.send(messages::capacity_block("e", BLOCK, now, ends));
    stage.until_handled(s(30)).await;
    stage.until("noted", s(ROUND), || stage.handled(0) == 1).await;
    sleep(s(ROUND)).await;
    replica.ended_once("capacity-reservation", "drained");
    assert_eq!(stage.notices(0).len(), 1);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn the_actions_of_the_kinds_apply() {
    let cases: [(&str, bool, usize, &str); 3] =
        [("cordon", true, 1, "cordoned"), ("report", false, 1, "reported"), ("ignore", false, 1, "")];
    for (action, cordoned, pods, outcome) in cases {
        let stage = Stage::new(1, 1);
        let on = format!("scheduled-change={action},status-check=ignore");
        let replica = stage.start(&[POLLS[0], POLLS[1], "--on", &on]).await;
        schedule(&stage, FAR);
        sleep(s(3 * ROUND)).await;
        assert_eq!((stage.cordoned(0), stage.world.kube.pods().len()), (cordoned, pods), "{action}");
        assert_eq!(stage.calls("DescribeInstanceStatus") == 0, outcome.is_empty());
        let wanted: &[(&str, usize)] = if outcome.is_empty() { &[] } else { &[(outcome, 1)] };
        replica.all_ended("scheduled-change", wanted);
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_excluded_node_is_left_alone_and_a_dry_run_changes_nothing() {
    let stage = Stage::new(2, 1);
    stage.annotate(1, "ebbtide/ignore", "true");
    let replica = stage.start(&[POLLS[0], POLLS[1], "--dry-run"]).await;
    schedule(&stage, FAR);
    stage.world.aws.ec2.schedule(&instance(1), ("instance-event-1", "instance-stop"), stage.world.clock.now());
    sleep(s(4 * ROUND)).await;
    assert!(!stage.cordoned(0) && stage.world.kube.pods().len() == 2);
    assert_eq!(stage.calls("create pods/eviction"), 1, "the API server was asked once: {}", stage.story());
    replica.ended_once("scheduled-change", "drained");
    stage.no_trace(0);
    stage.rest(&[&replica]).await;
}

/// The user is faster than the next poll.
#[tokio::test(start_paused = true)]
async fn a_change_of_which_a_message_told_is_not_drained_for_after_an_uncordon_before_the_poll() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&POLLS).await;
    sleep(s(5)).await;
    let start = schedule(&stage, FAR);
    stage.health(0, HEALTH, start, "upcoming");
    stage.until("cordoned", s(30), || stage.cordoned(0)).await;
    // The note of the drain meets another writer's, and is made anew.
    stage.world.kube.rival_taints(1);
    stage.until_handled(s(30)).await;
    stage.set_cordon(0, false);
    stage.until("marks gone", s(60), || stage.notices(0).is_empty()).await;
    sleep(s(2 * ROUND)).await;
    assert!(!stage.cordoned(0), "{}", stage.story());
    replica.ended_once("scheduled-change", "drained");
    stage.rest(&[&replica]).await;
}

/// A message says when the change begins now, before EC2 is asked again, and the Node keeps it.
#[tokio::test(start_paused = true)]
async fn a_planned_change_that_a_message_puts_off_is_not_drained_for_at_its_old_time() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&[&POLLS[..], &["--when", "scheduled-change=2h-before"]].concat()).await;
    schedule(&stage, FAR);
    stage.until("planned", s(ROUND), || !stage.plans(0).is_empty()).await;
    let later = schedule(&stage, 3 * FAR);
    stage.health(0, HEALTH, later, "upcoming");
    sleep(s(FAR)).await;
    assert!(!stage.cordoned(0) && !stage.plans(0).is_empty(), "{}", stage.story());
    stage.until("drained", s(2 * FAR), || stage.world.kube.pods().is_empty()).await;
    stage.rest(&[&replica]).await;
}

/// Has a stop of node 0 put off by a week during its drain, which a budget blocks. Returns the replica, and the new begin.
async fn put_off_during_the_drain(stage: &Stage) -> (Replica, jiff::Timestamp) {
    stage.block(0);
    let stop = ("instance-event-0123456789abcdef0", "instance-stop");
    let start = |ahead| jiff::Timestamp::from_second((stage.world.clock.now() + s(ahead)).as_second()).unwrap();
    stage.world.aws.ec2.schedule(&instance(0), stop, start(2400));
    let replica = stage.start(&POLLS).await;
    stage.until("cordoned", s(ROUND), || stage.cordoned(0)).await;
    let later = start(7 * 86_400);
    stage.world.aws.ec2.schedule(&instance(0), stop, later);
    (replica, later)
}

/// A message says when the change begins now, before EC2 is asked again.
#[tokio::test(start_paused = true)]
async fn a_listed_change_that_a_message_puts_off_during_the_drain_moves_the_deadline() {
    let stage = Stage::new(1, 1);
    let (replica, later) = put_off_during_the_drain(&stage).await;
    stage.health(0, ("h", "AWS_EC2_INSTANCE_STOP_SCHEDULED"), later, "upcoming");
    sleep(s(2700)).await;
    assert!(stage.world.kube.evictions().is_empty(), "the budget holds after the first start\n{}", stage.story());
    stage.unblock(0);
    stage.until("handled", s(ROUND), || stage.world.kube.pods().is_empty()).await;
    stage.until_handled(s(60)).await;
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_listed_change_that_is_put_off_during_the_drain_moves_the_deadline() {
    let stage = Stage::new(1, 1);
    let (replica, _) = put_off_during_the_drain(&stage).await;
    sleep(s(2700)).await;
    assert!(stage.world.kube.evictions().is_empty(), "the budget holds after the first start\n{}", stage.story());
    stage.unblock(0);
    stage.until("noted", s(ROUND), || stage.handled(0) == 1).await;
    sleep(s(2 * ROUND)).await;
    assert_eq!((stage.world.kube.pods().len(), stage.handled(0)), (0, 1));
    stage.rest(&[&replica]).await;
}
