//! EC2's status checks that fail, which only the polls find.

use crate::harness::{Replica, Stage, instance, metric, node, s};
use ebbtide_sim::fault::{Fault, Rule};
use tokio::time::sleep;

const POLLS: [&str; 2] = ["--ec2-poll-interval", "5m"];
/// Time within which a check that has failed for long is found and acted on.
const ROUND: u64 = 300 + 100;

impl Stage {
    /// Fails a check of the n-th node's instance, as of so many seconds ago.
    pub fn fails(&self, n: usize, check: &str, ago: u64) {
        self.world.aws.ec2.fail_check(&instance(n), check, self.world.clock.now() - s(ago));
    }

    fn passes(&self, n: usize, check: &str) {
        self.world.aws.ec2.pass_check(&instance(n), check);
    }

    fn count_drained(&self, nodes: usize) -> usize {
        (0..nodes).filter(|n| self.world.kube.pods_on(&node(*n)).is_empty()).count()
    }
}

fn held(replica: &Replica) -> f64 {
    let line = "ebbtide_repairs_held{kind=\"status-check\",reason=\"cluster\"}";
    metric(&replica.metrics.render(&replica.tasks), line)
}

#[tokio::test(start_paused = true)]
async fn a_failing_check_is_reported_once() {
    let stage = Stage::new(4, 1);
    stage.world.aws.ec2.set_page_size(1);
    ["system", "instance", "attached-ebs"].into_iter().enumerate().for_each(|(n, check)| stage.fails(n, check, 600));
    let replica = stage.start(&POLLS).await;
    sleep(s(3 * ROUND)).await;
    replica.all_ended("status-check", &[("reported", 3)]);
    assert_eq!((stage.calls("patch nodes"), stage.count_drained(4)), (0, 0));
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_check_drains_after_five_minutes_and_is_undone_when_it_passes() {
    let stage = Stage::new(3, 1);
    let replica = stage.start(&[&POLLS[..], &["--on", "status-check=drain"]].concat()).await;
    stage.fails(1, "system", 0);
    sleep(s(290)).await;
    assert_eq!(stage.calls("patch nodes"), 0);
    stage.until("drained", s(2 * ROUND), || stage.count_drained(3) == 1).await;
    stage.until("noted", s(60), || stage.handled(1) == 1).await;
    assert_eq!([0, 1, 2].map(|n| stage.cordoned(n)), [false, true, false]);
    assert_eq!(stage.notices(1)[0]["kind"], "status-check");
    sleep(s(ROUND)).await;
    stage.passes(1, "system");
    stage.until("undone", s(ROUND), || !stage.cordoned(1) && stage.notices(1).is_empty()).await;
    sleep(s(ROUND)).await;
    replica.all_ended("status-check", &[("drained", 1), ("withdrawn", 1)]);
    // It fails again.
    stage.fails(1, "system", 600);
    stage.until("cordoned", s(ROUND), || stage.cordoned(1)).await;
    stage.until("noted", s(60), || stage.handled(1) == 2).await;
    stage.rest(&[&replica]).await;
}

/// Each has asked at another time. What one knows from an older answer undoes nothing, and drains nothing again.
#[tokio::test(start_paused = true)]
async fn replicas_with_answers_of_different_age_agree() {
    let stage = Stage::new(3, 1);
    let flags = [&POLLS[..], &["--on", "status-check=drain"]].concat();
    let first = stage.start(&flags).await;
    sleep(s(150)).await;
    let second = stage.with_own_queue().start(&flags).await;
    for _ in 0..3 {
        stage.fails(1, "instance", 600);
        stage.until("cordoned", s(ROUND), || stage.cordoned(1)).await;
        sleep(s(ROUND)).await;
        assert!(stage.cordoned(1));
        stage.passes(1, "instance");
        stage.until("undone", s(ROUND), || !stage.cordoned(1)).await;
        for _ in 0..40 {
            sleep(s(10)).await;
            assert!(!stage.cordoned(1), "{}", stage.story());
        }
    }
    assert_eq!(stage.calls("create pods/eviction"), 1);
    stage.rest(&[&first, &second]).await;
}

#[tokio::test(start_paused = true)]
async fn no_work_begins_when_many_fail() {
    let stage = Stage::new(10, 1);
    let replica = stage.start(&[&POLLS[..], &["--on", "status-check=drain"]].concat()).await;
    (0..3).for_each(|n| stage.fails(n, "system", 600));
    sleep(s(2 * ROUND)).await;
    assert_eq!((stage.count_drained(10), stage.calls("patch nodes")), (0, 0));
    assert!((held(&replica) - 3.0).abs() < 0.1);
    stage.passes(2, "system");
    stage.until("drained", s(2 * ROUND), || stage.count_drained(10) == 2).await;
    stage.until("noted", s(60), || stage.handled(0) + stage.handled(1) == 2).await;
    assert!(held(&replica) < 0.1);
    stage.rest(&[&replica]).await;
}

/// The nodes of a failing zone cross the five minutes one by one.
#[tokio::test(start_paused = true)]
async fn those_that_have_failed_for_a_moment_count_too() {
    let stage = Stage::new(10, 1);
    let replica = stage.start(&[&POLLS[..], &["--on", "status-check=drain"]].concat()).await;
    stage.fails(0, "system", 240);
    (1..5).for_each(|n| stage.fails(n, "system", 0));
    sleep(s(ROUND + 50)).await;
    assert_eq!((stage.count_drained(10), stage.calls("patch nodes")), (0, 0), "{}", stage.story());
    (1..5).for_each(|n| stage.passes(n, "system"));
    stage.until("drained", s(2 * ROUND), || stage.count_drained(10) == 1).await;
    stage.until("noted", s(60), || stage.handled(0) == 1).await;
    stage.rest(&[&replica]).await;
}

/// What there was no room for still fails.
#[tokio::test(start_paused = true)]
async fn a_check_that_was_not_admitted_is_acted_on_when_there_is_room() {
    let stage = Stage::new(10, 1);
    (0..2).for_each(|n| stage.block(n));
    let limits = ["--on", "status-check=drain", "--max-draining", "1", "--drain-timeout", "10m"];
    let replica = stage.start(&[&POLLS[..], &limits].concat()).await;
    (0..2).for_each(|n| stage.fails(n, "system", 600));
    let refused = || replica.metric("ebbtide_notices_total{kind=\"status-check\",outcome=\"not-admitted\"}") > 0.5;
    stage.until("not admitted", s(ROUND + 620), refused).await;
    sleep(s(60)).await;
    let begun = usize::from(!stage.cordoned(0));
    assert!(stage.cordoned(begun) && !stage.cordoned(1 - begun));
    stage.world.kube.remove_node(&node(begun));
    stage.unblock(1 - begun);
    stage.until("drained", s(120), || stage.world.kube.pods_on(&node(1 - begun)).is_empty()).await;
    stage.until("noted", s(60), || stage.handled(1 - begun) == 1).await;
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_poll_that_is_refused_takes_nothing_back() {
    let stage = Stage::new(3, 1);
    let replica = stage.start(&[&POLLS[..], &["--on", "status-check=cordon"]].concat()).await;
    stage.fails(1, "instance", 600);
    stage.until("cordoned", s(ROUND), || stage.cordoned(1)).await;
    stage.until("noted", s(60), || stage.handled(1) == 1).await;
    stage.world.faults.add(Rule::on("DescribeInstanceStatus", Fault::Status(503)));
    sleep(s(3 * ROUND)).await;
    assert!(stage.cordoned(1));
    stage.world.faults.clear();
    stage.rest(&[&replica]).await;
}

/// What waits for room has not begun, and EC2 lists it no more.
#[tokio::test(start_paused = true)]
async fn a_check_that_passes_while_it_waits_for_room_is_not_acted_on() {
    let stage = Stage::new(10, 1);
    stage.block(0);
    let limits = ["--on", "status-check=drain", "--max-draining", "1"];
    let replica = stage.start(&[&POLLS[..], &limits].concat()).await;
    stage.fails(0, "system", 600);
    stage.until("the first has the room", s(ROUND), || stage.cordoned(0)).await;
    stage.fails(1, "system", 600);
    sleep(s(ROUND)).await;
    stage.passes(1, "system");
    sleep(s(ROUND)).await;
    stage.world.kube.remove_node(&node(0));
    sleep(s(120)).await;
    assert!(!stage.cordoned(1) && stage.first_eviction(1).is_none(), "{}", stage.story());
    stage.rest(&[&replica]).await;
}

/// EC2 has no data about a check while its host has trouble, and one that fails anew has failed for a short while only.
#[tokio::test(start_paused = true)]
async fn a_check_of_which_nobody_knows_whether_it_passes_stays_marked() {
    let stage = Stage::new(3, 1);
    stage.block(1);
    let replica = stage.start(&[&POLLS[..], &["--on", "status-check=drain"]].concat()).await;
    stage.fails(1, "system", 600);
    stage.until("cordoned", s(ROUND), || stage.cordoned(1)).await;
    stage.world.aws.ec2.doubt_check(&instance(1), "system");
    sleep(s(2 * ROUND)).await;
    assert!(stage.cordoned(1) && stage.notices(1).len() == 1, "{}", stage.story());
    stage.passes(1, "system");
    stage.until("undone", s(ROUND), || !stage.cordoned(1) && stage.notices(1).is_empty()).await;
    stage.rest(&[&replica]).await;
}
