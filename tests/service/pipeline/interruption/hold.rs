//! Hold points: the Node says that others have to act first, and they let the interruption go on.

use crate::harness::{Replica, Stage, instance, node, s};
use crate::nodes::HOLD;
use ebbtide_sim::aws::HookSpec;
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::Pod;
use ebbtide_sim::messages::{Wrapping, lifecycle, rebalance};
use tokio::time::{Instant, sleep};

const RELEASE: &str = "ebbtide/release";

/// Returns the value of an annotation on node 0.
fn annotation(stage: &Stage, name: &str) -> Option<String> {
    stage.world.kube.node(&node(0))?.metadata.annotations?.remove(name)
}

/// Does what a controller does.
fn release(stage: &Stage, says: &str) {
    stage.world.kube.update_node(&node(0), |node| {
        node.metadata.annotations.get_or_insert_default().insert(RELEASE.to_owned(), says.to_owned());
    });
}

async fn until_held(stage: &Stage, point: &str) {
    stage.until("the hold", s(60), || annotation(stage, HOLD).as_deref() == Some(point)).await;
}

/// Returns whether one wait has ended like this.
fn ended(replica: &Replica, wait: &str, outcome: &str) -> bool {
    let metric = format!("ebbtide_waits_seconds_count{{outcome=\"{outcome}\",wait=\"hold-{wait}\"}}");
    (replica.metric(&metric) - 1.0).abs() < 0.5
}

/// Returns how many waits of a point have ended, however that was.
fn ends(replica: &Replica, point: &str) -> usize {
    let outcomes = ["not-needed", "met", "time-over", "cut-short", "denied"];
    outcomes.into_iter().filter(|outcome| ended(replica, point, outcome)).count()
}

#[tokio::test(start_paused = true)]
async fn evictions_begin_when_the_node_is_released() {
    let stage = Stage::new(1, 3);
    let replica = stage.start(&["--hold", "before-drain"]).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    until_held(&stage, "before-drain").await;
    sleep(s(40)).await;
    assert!(stage.cordoned(0) && stage.world.kube.evictions().is_empty());
    release(&stage, "before-completion");
    sleep(s(10)).await;
    assert!(stage.world.kube.evictions().is_empty(), "another point");
    release(&stage, "before-drain");
    stage.until_handled(s(10)).await;
    stage.completed_once(&token);
    replica.ended_once("asg-terminate", "drained");
    assert!(ended(&replica, "before-drain", "met"));
    assert_eq!(annotation(&stage, HOLD), None);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_hook_is_completed_when_the_node_is_released() {
    let stage = Stage::new(1, 3);
    let replica = stage.start(&["--hold", "asg-terminate=both"]).await;
    let token = stage.terminate(0, s(100), Wrapping::Event);
    until_held(&stage, "before-drain").await;
    release(&stage, "before-drain");
    until_held(&stage, "before-completion").await;
    assert!(stage.world.kube.pods_on(&node(0)).is_empty());
    sleep(s(30)).await;
    assert!(stage.world.aws.autoscaling.action(&token).unwrap().completions.is_empty());
    release(&stage, "before-drain,before-completion");
    stage.until_handled(s(10)).await;
    stage.completed_once(&token);
    assert!(ended(&replica, "before-drain", "met") && ended(&replica, "before-completion", "met"));
    stage.rest(&[&replica]).await;
}

/// What nobody releases goes on by itself: evictions halfway to the deadline, the completion at the deadline.
#[tokio::test(start_paused = true)]
async fn a_hold_that_nobody_releases_ends_in_time() {
    let stage = Stage::new(1, 3);
    let replica = stage.start(&["--hold", "both"]).await;
    let begun = Instant::now();
    let token = stage.terminate(0, s(900), Wrapping::Event);
    stage.until("the first eviction", s(450), || !stage.world.kube.evictions().is_empty()).await;
    assert!((s(430)..s(440)).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    stage.until_handled(s(460)).await;
    stage.completed_once(&token);
    replica.ended_once("asg-terminate", "drained");
    assert!(ended(&replica, "before-drain", "time-over") && ended(&replica, "before-completion", "time-over"));
    assert_eq!(annotation(&stage, HOLD), None);
    stage.rest(&[&replica]).await;
}

/// A spot instance goes after two minutes, and a pod needs 100 s of them.
#[tokio::test(start_paused = true)]
async fn the_grace_period_of_a_pod_is_kept_free() {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(90)).stops_in(s(80)));
    let replica = stage.start(&["--hold", "before-drain"]).await;
    let begun = Instant::now();
    stage.spot(0);
    stage.until("the eviction", s(60), || !stage.world.kube.evictions().is_empty()).await;
    assert!(begun.elapsed() < s(25), "{:?}", begun.elapsed());
    stage.until_handled(s(120)).await;
    assert!(stage.ends_of("slow").iter().all(|end| end.grace.is_none()), "its own: {}", stage.story());
    replica.ended_once("spot", "drained");
    stage.rest(&[&replica]).await;
}

/// A pod needs all of the two minutes: nobody is asked, and that is told.
#[tokio::test(start_paused = true)]
async fn where_no_time_is_left_nobody_is_waited_for() {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(200)).stops_in(s(80)));
    let replica = stage.start(&["--hold", "before-drain"]).await;
    stage.spot(0);
    stage.until("the eviction", s(5), || !stage.world.kube.evictions().is_empty()).await;
    stage.until_handled(s(120)).await;
    assert!(ended(&replica, "before-drain", "time-over"));
    assert_eq!(annotation(&stage, HOLD), None);
    stage.rest(&[&replica]).await;
}

/// A hook waits for its release; then the spot instance itself is interrupted, which nobody holds.
#[tokio::test(start_paused = true)]
async fn another_notice_of_the_node_ends_the_hold() {
    let stage = Stage::new(1, 3);
    let replica = stage.start(&["--hold", "asg-terminate=before-drain"]).await;
    let token = stage.terminate(0, s(600), Wrapping::Event);
    until_held(&stage, "before-drain").await;
    sleep(s(20)).await;
    stage.spot(0);
    stage.until("the evictions", s(5), || stage.world.kube.evictions().len() == 3).await;
    stage.until_handled(s(30)).await;
    stage.completed_once(&token);
    assert!(ended(&replica, "before-drain", "cut-short"));
    assert_eq!(annotation(&stage, HOLD), None);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn another_replica_goes_on_with_the_hold() {
    let stage = Stage::new(1, 3);
    let first = stage.start(&["--hold", "both"]).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    until_held(&stage, "before-drain").await;
    let second = stage.start(&["--hold", "both"]).await;
    let (exit, ..) = first.stop().await;
    assert_eq!(exit, ebbtide::service::Exit::Clean);
    sleep(s(30)).await;
    assert_eq!(annotation(&stage, HOLD).as_deref(), Some("before-drain"), "a shutdown ends no hold");
    assert!(stage.world.kube.evictions().is_empty());
    release(&stage, "true");
    stage.until_handled(s(10)).await;
    stage.completed_once(&token);
    assert!(ended(&second, "before-drain", "met"));
    assert!(ended(&second, "before-completion", "not-needed"), "true is for all points");
    stage.rest(&[&second]).await;
}

/// A takeover in the second hold does not begin the first again.
#[tokio::test(start_paused = true)]
async fn a_takeover_before_the_completion_asks_for_no_second_release() {
    let stage = Stage::new(1, 3);
    let first = stage.start(&["--hold", "both"]).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    until_held(&stage, "before-drain").await;
    release(&stage, "before-drain");
    until_held(&stage, "before-completion").await;
    let second = stage.start(&["--hold", "both"]).await;
    first.kill().await;
    sleep(s(100)).await;
    assert_eq!(annotation(&stage, HOLD).as_deref(), Some("before-completion"));
    release(&stage, "before-drain,before-completion");
    stage.until_handled(s(10)).await;
    stage.completed_once(&token);
    assert!(ended(&second, "before-drain", "not-needed") && ended(&second, "before-completion", "met"));
    stage.rest(&[&second]).await;
}

#[tokio::test(start_paused = true)]
async fn somebody_who_wants_the_node_to_stay_ends_the_hold() {
    let stage = Stage::new(1, 3);
    let replica = stage.start(&["--on", "rebalance=drain", "--hold", "rebalance=before-drain"]).await;
    stage.world.aws.sqs.send(rebalance("rebalance", &instance(0), stage.world.clock.now()));
    until_held(&stage, "before-drain").await;
    release(&stage, "before-completion");
    for _ in 0..2 {
        stage.world.kube.update_node(&node(0), |node| node.spec.get_or_insert_default().unschedulable = None);
        sleep(s(5)).await;
    }
    stage.until_handled(s(10)).await;
    replica.ended_once("rebalance", "uncordoned");
    assert!(stage.world.kube.evictions().is_empty());
    stage.until("the marks' end", s(60), || annotation(&stage, "ebbtide/undo").is_none()).await;
    assert_eq!([HOLD, RELEASE].map(|name| annotation(&stage, name)), [None, None], "the next interruption asks again");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn failed_writes_of_the_hold_are_repeated_and_a_missing_right_delays_nothing() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&["--hold", "before-completion"]).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    stage.until("the evictions", s(10), || !stage.world.kube.evictions().is_empty()).await;
    stage.world.faults.add(Rule::on("patch nodes", Fault::Status(503)).times(3));
    until_held(&stage, "before-completion").await;
    release(&stage, "before-completion");
    stage.until_handled(s(10)).await;
    stage.completed_once(&token);
    stage.world.kube.add_node(&node(1), &instance(1));
    stage.world.kube.add_pod(Pod::on(&node(1)).named("slow").stops_in(s(5)));
    let token = stage.terminate(1, s(300), Wrapping::Event);
    stage.until("the eviction", s(10), || !stage.ends_of("slow").is_empty()).await;
    stage.world.kube.deny("patch nodes");
    stage.until_handled(s(20)).await;
    stage.completed_once(&token);
    assert!(ended(&replica, "before-completion", "denied"));
    stage.rest(&[&replica]).await;
}

/// Two hooks of one instance are held at one point; the end of one's hold does not end what the Node says of the other's.
#[tokio::test(start_paused = true)]
async fn the_end_of_one_hold_leaves_that_of_another_hook() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&["--hold", "before-completion"]).await;
    let short = stage.terminate(0, s(900), Wrapping::Event);
    stage.world.aws.autoscaling.add_hook("group", "other", HookSpec::terminating(s(1800)));
    let long = stage.world.aws.autoscaling.begin("group", "other", &instance(0));
    let hook = ("group", "other", &*long);
    stage.world.aws.sqs.send(lifecycle(Wrapping::Event, true, hook, &instance(0), stage.world.clock.now()));
    let completions = |token: &str| stage.world.aws.autoscaling.action(token).unwrap().completions.len();
    stage.until("the end of the first", s(900), || completions(&short) == 1).await;
    sleep(s(5)).await;
    assert_eq!((annotation(&stage, HOLD).as_deref(), completions(&long)), (Some("before-completion"), 0));
    release(&stage, "before-completion");
    stage.until_handled(s(10)).await;
    stage.completed_once(&long);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_holds_nothing() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&["--hold", "both", "--dry-run"]).await;
    stage.terminate(0, s(300), Wrapping::Event);
    stage.until_handled(s(20)).await;
    assert_eq!(annotation(&stage, HOLD), None);
    stage.rest(&[&replica]).await;
}

/// The hook's times can't be read at first, so that its deadline is only assumed, at 50 minutes.
#[tokio::test(start_paused = true)]
async fn a_deadline_that_moves_nearer_shortens_both_holds() {
    let stage = Stage::new(1, 1);
    stage.world.faults.add(Rule::on("DescribeLifecycleHooks", Fault::Status(403)));
    let replica = stage.start(&["--hold", "both"]).await;
    let begun = Instant::now();
    let token = stage.terminate(0, s(900), Wrapping::Event);
    until_held(&stage, "before-drain").await;
    sleep(s(20)).await;
    stage.world.faults.clear();
    stage.until("the first eviction", s(900), || !stage.world.kube.evictions().is_empty()).await;
    assert!((s(430)..s(450)).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    stage.until_handled(s(450)).await;
    assert!((s(865)..s(880)).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

/// A hook is held before its completion, and another notice of the instance before its drain.
#[tokio::test(start_paused = true)]
async fn two_interruptions_at_different_points_do_not_write_in_a_loop() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&["--hold", "both"]).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    until_held(&stage, "before-drain").await;
    release(&stage, "before-drain");
    until_held(&stage, "before-completion").await;
    // What was said before is taken back, so that the second asks again.
    release(&stage, "nothing");
    stage.spot(0);
    sleep(s(50)).await;
    assert!(stage.calls("patch nodes") < 40, "{} writes", stage.calls("patch nodes"));
    release(&stage, "true");
    stage.until_handled(s(30)).await;
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

/// The hook's times are known when its deadline is over: there is no second wait that could take back what the first has said.
#[tokio::test(start_paused = true)]
async fn a_hold_whose_time_is_over_when_it_is_known_leaves_nothing_behind() {
    for point in ["before-drain", "before-completion"] {
        let stage = Stage::new(1, 1);
        stage.world.faults.add(Rule::on("DescribeLifecycleHooks", Fault::Status(403)));
        let replica = stage.start(&["--hold", point]).await;
        let token = stage.terminate(0, s(45), Wrapping::Event);
        until_held(&stage, point).await;
        sleep(s(20)).await;
        stage.world.faults.clear();
        stage.until_handled(s(900)).await;
        stage.completed_once(&token);
        assert_eq!(annotation(&stage, HOLD), None, "{point}");
        assert_eq!(ends(&replica, point), 1, "{point}");
        stage.rest(&[&replica]).await;
    }
}

/// The end of a hold can't be written at the last moment for evictions.
#[tokio::test(start_paused = true)]
async fn what_the_node_says_delays_no_eviction() {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(90)).stops_in(s(80)));
    let replica = stage.start(&["--hold", "before-drain"]).await;
    stage.spot(0);
    until_held(&stage, "before-drain").await;
    stage.world.faults.add(Rule::on("patch nodes", Fault::Hang));
    let begun = Instant::now();
    stage.until("the over hold", s(60), || ends(&replica, "before-drain") == 1).await;
    let over = begun.elapsed();
    stage.until("the eviction", s(60), || !stage.world.kube.evictions().is_empty()).await;
    assert!(begun.elapsed() < over + s(1), "{:?} after the wait\n{}", begun.elapsed() - over, stage.story());
    stage.world.faults.clear();
    stage.until_handled(s(120)).await;
    replica.ended_once("spot", "drained");
    stage.rest(&[&replica]).await;
}

/// Two notices of one node wait for the same; AWS withdraws one of them, which says nothing of the other.
#[tokio::test(start_paused = true)]
async fn the_end_of_one_hold_does_not_end_that_of_another_notice() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&["--on", "rebalance=drain", "--hold", "before-drain"]).await;
    let start = stage.world.clock.now() + s(86_400);
    stage.health(0, ("h", "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED"), start, "upcoming");
    until_held(&stage, "before-drain").await;
    stage.rebalance(0);
    sleep(s(20)).await;
    stage.health(0, ("h", "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED"), start, "closed");
    sleep(s(60)).await;
    assert_eq!((annotation(&stage, HOLD).as_deref(), stage.world.kube.evictions().len()), (Some("before-drain"), 0));
    release(&stage, "before-drain");
    stage.until_handled(s(30)).await;
    replica.ended_once("rebalance", "drained");
    replica.all_ended("scheduled-change", &[("joined", 1), ("withdrawn", 1)]);
    stage.rest(&[&replica]).await;
}
