//! Work that failed while its change is ahead: a message comes once, so it is kept, and tried again.

use crate::harness::{Replica, Stage, instance, node, s};
use ebbtide::fact::TaskKind;
use ebbtide_sim::fault::{Fault, Rule};
use tokio::time::sleep;

const RETIREMENT: (&str, &str) = ("r", "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED");
/// A minute after which a drain has failed.
const BRIEF: [&str; 2] = ["--drain-timeout", "scheduled-change=1m"];
/// A time in seconds that is far ahead, and no longer: every poll of the queue costs real time.
const FAR: u64 = 4 * 3600;
/// Longest pause between two tries, and the time of a drain, in seconds.
const PAUSE: u64 = 660;

fn ended(replica: &Replica, outcome: &str) -> f64 {
    replica.metric(&format!("ebbtide_notices_total{{kind=\"scheduled-change\",outcome=\"{outcome}\"}}"))
}

/// Sends the message of a retirement of the first node, and returns its start.
fn retires(stage: &Stage) -> jiff::Timestamp {
    let start = jiff::Timestamp::from_second(stage.world.clock.now().as_second() + FAR.cast_signed()).unwrap();
    stage.health(0, RETIREMENT, start, "upcoming");
    start
}

/// Returns a world in which calls like this one fail, with a replica whose first try of a retirement has failed; and the start of that.
async fn pausing(flags: &[&str], failing: &str) -> (Stage, Replica, jiff::Timestamp) {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&[&BRIEF, flags].concat()).await;
    stage.world.faults.add(Rule::on(failing, Fault::Status(500)));
    let start = retires(&stage);
    stage.until("failed", s(400), || ended(&replica, "failed") > 0.5).await;
    assert!(!stage.world.aws.sqs.is_empty(), "the message is kept");
    (stage, replica, start)
}

/// A policy engine denies all writes of Nodes for longer than the drain's patience.
#[tokio::test(start_paused = true)]
async fn a_change_ahead_outlives_calls_that_fail_for_long() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&BRIEF).await;
    stage.world.faults.add(Rule::on("patch nodes", Fault::Refuse(403, "a policy denies it")));
    retires(&stage);
    sleep(s(2 * 3600)).await;
    let tries = ended(&replica, "failed");
    assert!(!stage.cordoned(0) && (8.0..25.0).contains(&tries), "the pauses grow to ten minutes: {tries} tries");
    assert_eq!(stage.world.aws.sqs.receive_log().len(), 1, "the message is held");
    // Between two tries: a cordon at the end of one leaves no time to drain.
    stage.until("another try has failed", s(2 * PAUSE), || ended(&replica, "failed") > tries).await;
    stage.world.faults.clear();
    stage.until("drained", s(PAUSE), || stage.world.kube.pods().is_empty()).await;
    stage.until_handled(s(5)).await;
    assert!((ended(&replica, "drained") - 1.0).abs() < f64::EPSILON);
    stage.rest(&[&replica]).await;
}

/// After its start nothing is left to try.
#[tokio::test(start_paused = true)]
async fn work_that_fails_until_the_change_starts_has_ended() {
    let (stage, replica, _) = pausing(&[], "create pods/eviction").await;
    sleep(s(FAR - 1800)).await;
    assert!(!stage.world.aws.sqs.is_empty());
    stage.until_handled(s(1800 + 60)).await;
    stage.rest(&[&replica]).await;
}

/// No answer of EC2 shows whose instance it is. Its list of changes must not be silenced by the message.
#[tokio::test(start_paused = true)]
async fn a_change_that_ec2_lists_too_is_not_noted_as_handled_while_its_work_fails() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&[&BRIEF[..], &["--require-tag", "--ec2-poll-interval", "5m"]].concat()).await;
    stage.world.faults.add(Rule::on("DescribeInstances", Fault::Status(500)));
    let start = retires(&stage);
    sleep(s(60)).await;
    stage.world.aws.ec2.schedule(&instance(0), ("instance-event-1", "instance-retirement"), start);
    sleep(s(3600)).await;
    assert!(ended(&replica, "failed") > 0.5 && stage.handled(0) == 0, "{}", stage.story());
    stage.world.faults.clear();
    stage.until("drained", s(PAUSE), || stage.world.kube.pods().is_empty()).await;
    // The other of the two pauses, too.
    stage.until_handled(s(PAUSE)).await;
    stage.until("noted", s(60), || stage.handled(0) > 0).await;
    stage.until("what EC2 lists has ended, too", s(PAUSE), || replica.tasks.alive(TaskKind::Interruption) == 0).await;
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_cancellation_or_another_start_ends_the_pause() {
    for status in ["closed", "upcoming"] {
        let (stage, replica, start) = pausing(&[], "patch nodes").await;
        stage.world.faults.clear();
        stage.health(0, RETIREMENT, start + s(3600), status);
        stage.until_handled(s(10)).await;
        let is_moved = status == "upcoming";
        assert_eq!((stage.cordoned(0), stage.world.kube.pods().is_empty()), (is_moved, is_moved), "{status}");
        sleep(s(2 * PAUSE)).await;
        assert_eq!(stage.cordoned(0), is_moved, "{status}");
        stage.rest(&[&replica]).await;
    }
}

/// No trace of the change is on a Node, or there is none.
#[tokio::test(start_paused = true)]
async fn a_cancellation_ends_the_pause_without_a_node() {
    let (stage, replica, start) = pausing(&["--require-tag"], "DescribeInstances").await;
    stage.world.kube.remove_node(&node(0));
    sleep(s(5)).await;
    stage.health(0, RETIREMENT, start, "closed");
    sleep(s(1)).await;
    stage.world.kube.add_node(&node(0), &instance(0));
    stage.world.faults.clear();
    stage.until_handled(s(30)).await;
    sleep(s(2 * PAUSE)).await;
    assert!(!stage.cordoned(0), "{}", stage.story());
    stage.rest(&[&replica]).await;
}

/// Another replica has received the cancellation.
#[tokio::test(start_paused = true)]
async fn a_cancellation_at_another_replica_ends_the_pause() {
    let stage = Stage::new(1, 1);
    let other = stage.with_own_queue();
    let (first, second) = (stage.start(&BRIEF).await, other.start(&BRIEF).await);
    stage.world.faults.add(Rule::on("patch nodes", Fault::Status(500)));
    let start = retires(&stage);
    stage.until("failed", s(400), || ended(&first, "failed") > 0.5).await;
    stage.world.faults.clear();
    other.health(0, RETIREMENT, start, "closed");
    other.until_handled(s(10)).await;
    stage.until_handled(s(5)).await;
    assert!(!stage.cordoned(0) && stage.has_pod("web-0-0"));
    stage.rest(&[&first, &second]).await;
}

/// Once is enough: no drain runs.
#[tokio::test(start_paused = true)]
async fn a_user_s_uncordon_ends_the_pause() {
    let (stage, replica, _) = pausing(&[], "create pods/eviction").await;
    assert!(stage.cordoned(0));
    stage.set_cordon(0, false);
    stage.until_handled(s(5)).await;
    stage.world.faults.clear();
    sleep(s(2 * PAUSE)).await;
    assert!(!stage.cordoned(0) && stage.has_pod("web-0-0"), "{}", stage.story());
    replica.ended_as("scheduled-change", "uncordoned", 1);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_the_pause_and_another_replica_tries_again() {
    let (stage, first, _) = pausing(&[], "patch nodes").await;
    let (_, took, tasks) = first.stop().await;
    assert!(took < s(3), "{took:?}");
    tasks.gone(|_| true).await;
    stage.world.faults.clear();
    let second = stage.start(&BRIEF).await;
    stage.until("drained", s(10), || stage.world.kube.pods().is_empty()).await;
    stage.until_handled(s(5)).await;
    second.ended_once("scheduled-change", "drained");
    stage.rest(&[&second]).await;
}

/// The next receiver tries again, and two that try would overrule a user who uncordons after the first drain.
#[tokio::test(start_paused = true)]
async fn a_message_that_is_lost_in_the_pause_is_left_to_its_next_receiver() {
    let (stage, replica, _) = pausing(&[], "patch nodes").await;
    stage.world.faults.add(Rule::on("ChangeMessageVisibilityBatch", Fault::Status(403)).times(40));
    stage.world.faults.add(Rule::on("ReceiveMessage", Fault::Status(500)).times(60));
    stage.until("left", s(90), || replica.tasks.alive(TaskKind::Interruption) == 0).await;
    assert!(!stage.world.aws.sqs.is_empty(), "the message is still there");
    stage.world.faults.clear();
    stage.until("drained", s(PAUSE), || stage.world.kube.pods().is_empty()).await;
    stage.until_handled(s(60)).await;
    stage.rest(&[&replica]).await;
}
