//! The ends of repairs: `reboot`, and `--terminate-first`.

use super::replacement::annotation;
use crate::harness::{Replica, Stage, instance, node, s};
use ebbtide_sim::aws::GroupSpec;
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::Pod;
use ebbtide_sim::messages::Wrapping;
use std::time::Duration;
use tokio::time::sleep;

const REBOOT: [&str; 2] = ["--on-condition", "KernelReady=False:10m=reboot"];
const REPLACE: [&str; 2] = ["--on-condition", "KernelReady=False:10m=replace"];

impl Stage {
    /// The kernel of the n-th node fails, or works again.
    fn kernel(&self, n: usize, works: bool) {
        self.set_condition(n, "KernelReady", if works { "True" } else { "False" }, 0);
    }

    fn note(&self, n: usize) -> Option<String> {
        annotation(self, n, "ebbtide/reboot")
    }

    fn unhealthy(&self) -> Vec<String> {
        self.world.aws.autoscaling.unhealthy()
    }

    /// Breaks the n-th node until it is drained and rebooted, which is this `time`.
    async fn breaks_and_reboots(&self, n: usize, time: usize) {
        self.kernel(n, false);
        self.until("rebooted", s(660), || self.calls("RebootInstances") == time).await;
        assert!(self.cordoned(n) && self.world.kube.pods_on(&node(n)).is_empty(), "{}", self.story());
    }
}

impl Replica {
    /// Waits until a notice of a condition has ended like this.
    async fn until_condition_ended(&self, stage: &Stage, outcome: &str, within: Duration) {
        let line = format!("ebbtide_notices_total{{kind=\"node-condition\",outcome=\"{outcome}\"}}");
        stage.until(outcome, within, || self.metric(&line) > 0.0).await;
    }
}

fn remedies(replica: &Replica, remedy: &str, result: &str) -> f64 {
    replica.metric(&format!("ebbtide_remedies_total{{remedy=\"{remedy}\",result=\"{result}\"}}"))
}

#[tokio::test(start_paused = true)]
async fn a_node_that_a_reboot_mends_is_uncordoned_and_within_an_hour_it_is_replaced() {
    for minutes in [30, 49, 61] {
        let stage = Stage::with_group(3);
        let replica = stage.with_both("a", &REBOOT).await;
        stage.breaks_and_reboots(0, 1).await;
        let noted = stage.note(0).expect("it is noted before the call");
        stage.world.kube.reboot(&node(0));
        sleep(s(120)).await;
        assert!(stage.cordoned(0), "a boot alone mends nothing");
        stage.kernel(0, true);
        stage.until("uncordoned", s(60), || !stage.cordoned(0)).await;
        assert_eq!(stage.note(0), Some(noted), "it outlives the marks");
        sleep(s(minutes * 60 - 12 * 60)).await;
        stage.kernel(0, false);
        stage.until("drained", s(660), || stage.cordoned(0)).await;
        sleep(s(60)).await;
        let again = if minutes > 60 { (2, vec![]) } else { (1, vec![instance(0)]) };
        assert_eq!((stage.calls("RebootInstances"), stage.unhealthy()), again, "{minutes}\n{}", stage.story());
        if minutes > 60 {
            stage.kernel(0, true);
            stage.until("uncordoned", s(60), || !stage.cordoned(0)).await;
        }
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_stays_broken_is_replaced_ten_minutes_after_its_reboot() {
    let stage = Stage::with_group(3);
    // The group can't launch first, and has no hook.
    stage.world.aws.autoscaling.change_group("group", |spec| spec.maintenance = None);
    let replica = stage.with_both("a", &REBOOT).await;
    stage.breaks_and_reboots(0, 1).await;
    let asked = stage.world.clock.elapsed();
    stage.world.kube.reboot(&node(0));
    stage.until("unhealthy", s(660), || stage.unhealthy() == [instance(0)]).await;
    let took = stage.world.clock.elapsed() - asked;
    assert!((s(595)..s(610)).contains(&took), "{took:?}");
    replica.until_condition_ended(&stage, "drained", s(10)).await;
    assert_eq!((remedies(&replica, "reboot", "asked"), remedies(&replica, "terminate", "asked")), (1.0, 1.0));
    sleep(s(3600)).await;
    assert_eq!((stage.calls("RebootInstances"), stage.calls("SetInstanceHealth")), (1, 1));
    // It is terminated, whatever its condition is.
    stage.kernel(0, true);
    sleep(s(60)).await;
    assert!(stage.cordoned(0), "{}", stage.story());
    stage.rest(&[&replica]).await;
}

/// The API server takes the note of the reboot seconds late.
#[tokio::test(start_paused = true)]
async fn a_reboot_that_is_noted_late_keeps_no_broken_node() {
    let stage = Stage::with_group(3);
    let replica = stage.with_both("a", &REBOOT).await;
    stage.kernel(0, false);
    stage.until("cordoned", s(660), || stage.cordoned(0)).await;
    stage.world.faults.add(Rule::on("patch nodes", Fault::Status(503)).subject(node(0)).times(3));
    stage.until("rebooted", s(60), || stage.calls("RebootInstances") == 1).await;
    stage.world.kube.reboot(&node(0));
    stage.until("unhealthy", s(660), || stage.unhealthy() == [instance(0)]).await;
    replica.until_condition_ended(&stage, "drained", s(10)).await;
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn another_replica_reboots_no_node_again() {
    for after in [0, 200, 700] {
        let stage = Stage::with_group(3);
        let first = stage.with_both("a", &REBOOT).await;
        stage.until("its turn", s(5), || stage.nodes_holder().as_deref() == Some("a")).await;
        if after == 0 {
            // It ends between its note and its call.
            stage.world.faults.add(Rule::on("RebootInstances", Fault::Hang));
        }
        stage.kernel(0, false);
        stage.until("noted", s(660), || stage.note(0).is_some()).await;
        sleep(s(after)).await;
        first.kill().await.gone(|_| true).await;
        stage.world.faults.clear();
        let second = stage.with_both("b", &REBOOT).await;
        stage.until("unhealthy", s(900), || stage.unhealthy() == [instance(0)]).await;
        assert_eq!((stage.calls("RebootInstances"), stage.calls("SetInstanceHealth")), (1, 1), "{}", stage.story());
        stage.rest(&[&second]).await;
    }
}

/// The first ends between its note and its call.
#[tokio::test(start_paused = true)]
async fn another_replica_asks_the_group_of_a_node_on_which_only_the_note_is() {
    for flags in [REBOOT.to_vec(), [&REPLACE[..], &["--terminate-first"]].concat()] {
        let stage = Stage::with_group(3);
        stage.world.aws.autoscaling.change_group("group", |spec| spec.maintenance = None);
        stage.world.faults.add(Rule::on("SetInstanceHealth", Fault::Hang));
        let first = stage.with_both("a", &flags).await;
        stage.until("its turn", s(5), || stage.nodes_holder().as_deref() == Some("a")).await;
        stage.kernel(0, false);
        stage.until("asking", s(1400), || stage.calls("SetInstanceHealth") == 1).await;
        let note = annotation(&stage, 0, "ebbtide/replacement").expect("it is noted before the call");
        assert!(note.contains("\"asking\":true") && stage.unhealthy().is_empty(), "{note}");
        first.kill().await.gone(|_| true).await;
        stage.world.faults.clear();
        let second = stage.with_both("b", &flags).await;
        stage.until("unhealthy", s(120), || stage.unhealthy() == [instance(0)]).await;
        assert_eq!(stage.calls("SetInstanceHealth"), 2, "{}", stage.story());
        stage.rest(&[&second]).await;
    }
}

/// An answer that is lost may have been to a request that EC2 has taken.
#[tokio::test(start_paused = true)]
async fn a_reboot_that_ec2_refuses_leaves_the_node_drained_and_a_lost_answer_counts() {
    for (fault, calls, result) in
        [(Fault::Status(403), 1, "denied"), (Fault::Status(400), 1, "refused"), (Fault::LostResponse, 3, "asked")]
    {
        let stage = Stage::with_group(3);
        stage.world.faults.add(Rule::on("RebootInstances", fault));
        let replica = stage.with_both("a", &REBOOT).await;
        stage.kernel(0, false);
        stage.until("tried", s(700), || remedies(&replica, "reboot", result) > 0.0).await;
        sleep(s(300)).await;
        let is_asked = result == "asked";
        assert_eq!((stage.calls("RebootInstances"), stage.note(0).is_some()), (calls, is_asked), "{}", stage.story());
        sleep(s(600)).await;
        assert_eq!(stage.calls("SetInstanceHealth"), usize::from(is_asked), "{}", stage.story());
        assert!(stage.cordoned(0));
        stage.kernel(0, true);
        stage.until("uncordoned", s(60), || is_asked || !stage.cordoned(0)).await;
        stage.rest(&[&replica]).await;
    }
}

/// A node that was not rebooted must not be terminated for that.
#[tokio::test(start_paused = true)]
async fn a_reboot_that_ec2_is_too_busy_to_take_is_asked_for_again() {
    for (times, result) in [(4, "asked"), (99, "unknown")] {
        let stage = Stage::with_group(3);
        stage.world.faults.add(Rule::on("RebootInstances", Fault::Throttle).times(times));
        let replica = stage.with_both("a", &REBOOT).await;
        stage.kernel(0, false);
        stage.until("asked", s(1000), || remedies(&replica, "reboot", result) > 0.0).await;
        let is_asked = result == "asked";
        assert!(!is_asked || stage.calls("RebootInstances") == 5, "{}", stage.story());
        assert_eq!(stage.note(0).is_some(), is_asked, "{}", stage.story());
        if is_asked {
            stage.kernel(0, true);
            stage.until("uncordoned", s(60), || !stage.cordoned(0)).await;
        }
        sleep(s(1200)).await;
        assert_eq!(stage.calls("SetInstanceHealth"), 0, "{}", stage.story());
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn only_a_drained_node_is_rebooted() {
    let stage = Stage::with_group(10);
    stage.block(0);
    let replica = stage.with_both("a", &[&REBOOT[..], &["--drain-timeout", "node-condition=10m"]].concat()).await;
    stage.kernel(0, false);
    replica.until_condition_ended(&stage, "blocked", s(1300)).await;
    // A user keeps it, and says so twice.
    stage.kernel(1, false);
    stage.until("cordoned", s(610), || stage.cordoned(1)).await;
    stage.until("rebooted", s(60), || stage.calls("RebootInstances") == 1).await;
    stage.set_cordon(1, false);
    stage.until("restored", s(30), || stage.cordoned(1)).await;
    stage.set_cordon(1, false);
    replica.until_condition_ended(&stage, "uncordoned", s(60)).await;
    sleep(s(1200)).await;
    assert_eq!((stage.calls("RebootInstances"), stage.calls("SetInstanceHealth")), (1, 0), "{}", stage.story());
    stage.rest(&[&replica]).await;
}

/// A reboot would cut off what its hook waits for.
#[tokio::test(start_paused = true)]
async fn a_node_that_its_group_terminates_meanwhile_is_not_rebooted() {
    let stage = Stage::with_group(10);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(300)).stops_in(s(120)));
    let replica = stage.with_both("a", &[&REBOOT[..], &["--complete-after", "3m"]].concat()).await;
    stage.kernel(0, false);
    stage.until("cordoned", s(660), || stage.cordoned(0)).await;
    let token = stage.terminate(0, s(900), Wrapping::Event);
    replica.until_condition_ended(&stage, "drained", s(200)).await;
    stage.until_handled(s(300)).await;
    assert_eq!((stage.calls("RebootInstances"), stage.note(0)), (0, None), "{}", stage.story());
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

/// AWS is asked about a notice beyond a quarter of the nodes: here beyond one.
#[tokio::test(start_paused = true)]
async fn a_node_that_reboots_takes_no_room_from_drains() {
    let stage = Stage::with_group(4);
    let replica = stage.with_both("a", &REBOOT).await;
    stage.breaks_and_reboots(0, 1).await;
    stage.spot(1);
    stage.until_handled(s(30)).await;
    assert_eq!(stage.calls("DescribeSpotInstanceRequests"), 0, "{}", stage.story());
    replica.ended_once("spot", "drained");
    stage.kernel(0, true);
    stage.until("uncordoned", s(60), || !stage.cordoned(0)).await;
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_reboots_nothing() {
    let stage = Stage::with_group(3);
    let replica = stage.with_both("a", &[&REBOOT[..], &["--dry-run"]].concat()).await;
    stage.kernel(0, false);
    replica.until_condition_ended(&stage, "drained", s(700)).await;
    assert_eq!((stage.calls("RebootInstances"), stage.note(0), stage.cordoned(0)), (0, None, false));
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_status_check_that_passes_after_a_reboot_undoes_the_work() {
    let stage = Stage::with_group(3);
    let flags = ["--ec2-poll-interval", "5m", "--on", "status-check=reboot"];
    let replica = stage.start(&flags).await;
    stage.fails(0, "instance", 600);
    stage.until("rebooted", s(700), || stage.calls("RebootInstances") == 1).await;
    stage.world.aws.ec2.pass_check(&instance(0), "instance");
    stage.until("uncordoned", s(400), || !stage.cordoned(0)).await;
    sleep(s(1200)).await;
    assert_eq!((stage.calls("RebootInstances"), stage.calls("SetInstanceHealth")), (1, 0), "{}", stage.story());
    stage.rest(&[&replica]).await;
}

/// EC2 is asked every quarter of an hour.
#[tokio::test(start_paused = true)]
async fn a_node_whose_check_passes_is_not_terminated_before_ec2_is_asked() {
    let stage = Stage::with_group(3);
    let replica = stage.start(&["--ec2-poll-interval", "15m", "--on", "status-check=reboot"]).await;
    stage.fails(0, "instance", 600);
    stage.until("rebooted", s(1100), || stage.calls("RebootInstances") == 1).await;
    sleep(s(180)).await;
    stage.world.aws.ec2.pass_check(&instance(0), "instance");
    stage.until("uncordoned", s(1200), || !stage.cordoned(0)).await;
    assert_eq!((stage.calls("RebootInstances"), stage.calls("SetInstanceHealth")), (1, 0), "{}", stage.story());
    stage.rest(&[&replica]).await;
}

/// Where a group can't launch first, a repair ends all the same, if the user wants that; and not where the group would not replace it.
#[tokio::test(start_paused = true)]
async fn a_group_that_cannot_launch_first_terminates_after_the_drain() {
    type Change = fn(&mut GroupSpec);
    let first: Change = |spec| spec.maintenance = None;
    let full: Change = |spec| spec.max = spec.desired;
    let protected: Change = |spec| {
        spec.maintenance = None;
        spec.protected = spec.instances.clone();
    };
    let suspended: Change = |spec| {
        spec.maintenance = None;
        spec.suspended = vec!["Launch".to_owned()];
    };
    for (change, flag, asked) in [
        (first, true, "asked"),
        (full, true, "asked"),
        (first, false, ""),
        (protected, true, "protected"),
        (suspended, true, "suspended"),
    ] {
        let stage = Stage::with_group(3);
        stage.world.aws.autoscaling.change_group("group", change);
        let flags = if flag { &["--terminate-first"][..] } else { &[] };
        let replica = stage.with_both("a", &[&REPLACE[..], flags].concat()).await;
        stage.kernel(0, false);
        replica.until_condition_ended(&stage, "drained", s(900)).await;
        assert!(stage.world.kube.pods_on(&node(0)).is_empty() && stage.cordoned(0), "{}", stage.story());
        let is_asked = asked == "asked";
        assert_eq!(stage.unhealthy().len(), usize::from(is_asked), "{asked}\n{}", stage.story());
        if !asked.is_empty() {
            assert_eq!(remedies(&replica, "terminate", asked).to_string(), "1", "{}", stage.story());
        }
        let evicted = stage.world.kube.evictions().last().expect("it was drained").at;
        let asked_at = stage.world.calls.of("SetInstanceHealth").first().map(|call| call.at);
        assert!(asked_at.is_none_or(|at| at >= evicted), "{}", stage.story());
        stage.rest(&[&replica]).await;
    }
}

/// As many at once as may be replaced.
#[tokio::test(start_paused = true)]
async fn terminations_wait_for_others_of_the_group() {
    let stage = Stage::with_group(30);
    stage.world.aws.autoscaling.change_group("group", |spec| spec.maintenance = None);
    let flags = ["--terminate-first", "--max-replacements", "1"];
    let replica = stage.with_both("a", &[&REPLACE[..], &flags].concat()).await;
    (0..3).for_each(|n| stage.kernel(n, false));
    stage.until("one", s(700), || stage.unhealthy().len() == 1).await;
    sleep(s(120)).await;
    assert_eq!(stage.unhealthy().len(), 1, "{}", stage.story());
    let gone = stage.unhealthy()[0].clone();
    stage.world.aws.autoscaling.change_group("group", |spec| spec.instances.retain(|id| *id != gone));
    let n = (0..3).find(|n| instance(*n) == gone).expect("it is one of them");
    stage.world.kube.remove_node(&node(n));
    stage.until("another", s(120), || stage.calls("SetInstanceHealth") == 2).await;
    sleep(s(900)).await;
    assert_eq!(stage.calls("SetInstanceHealth"), 2, "the third waited for too long\n{}", stage.story());
    assert_eq!(remedies(&replica, "terminate", "queued").to_string(), "1");
    stage.rest(&[&replica]).await;
}
