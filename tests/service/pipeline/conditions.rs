//! `--on-condition`: a condition that a Node has for longer than it may becomes a notice.

use super::nodes::outcomes;
use crate::harness::{Replica, Stage, instance, metric, node, s};
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::{Interrupt, Pod};
use ebbtide_sim::messages::Wrapping;
use std::time::Duration;
use tokio::time::sleep;

const KERNEL: &str = "KernelReady";
const DRAIN: [&str; 2] = ["--on-condition", "KernelReady=False:10m=drain"];
const TOLERATED: Duration = Duration::from_mins(10);

/// Names of the reasons for which no work begins.
const STOPS: [&str; 3] = ["zones", "group", "cluster"];

/// Returns the number of nodes that are left alone for this reason.
fn held(replica: &Replica, why: &str) -> String {
    let line = format!("ebbtide_repairs_held{{kind=\"node-condition\",reason=\"{why}\"}}");
    metric(&replica.metrics.render(&replica.tasks), &line).to_string()
}

impl Stage {
    fn breaks(&self, n: usize) {
        self.set_condition(n, KERNEL, "False", 0);
    }

    fn mends(&self, n: usize) {
        self.set_condition(n, KERNEL, "True", 0);
    }

    /// Breaks the watch of Nodes, until faults are cleared.
    fn loses_sight(&self) {
        for operation in ["watch nodes", "list nodes"] {
            self.world.faults.add(Rule::on(operation, Fault::Status(500)));
        }
        self.world.kube.interrupt_watches(Interrupt::Break);
    }

    fn count_cordoned(&self, nodes: usize) -> usize {
        (0..nodes).filter(|n| self.cordoned(*n)).count()
    }

    /// Starts a replica that has taken the turn.
    async fn with_rules(&self, pod: &str, flags: &[&str]) -> Replica {
        let replica = self.without_queue(pod, flags).await;
        self.until("its turn", s(5), || self.nodes_holder().is_some()).await;
        replica
    }

    /// Asserts that nothing of a condition is on the n-th Node, and nothing was written.
    fn is_untouched(&self, n: usize) {
        assert!(!self.cordoned(n) && self.notices(n).is_empty() && self.handled(n) == 0, "{}", self.story());
        assert_eq!(self.calls("patch nodes"), 0, "{}", self.story());
    }
}

#[tokio::test(start_paused = true)]
async fn a_condition_drains_its_node_when_it_has_lasted_too_long() {
    for (condition, status) in [
        ("KernelReady", "False"),
        ("NetworkingReady", "False"),
        ("AcceleratedHardwareReady", "False"),
        ("example.com/ReadonlyFilesystem", "True"),
        ("StorageReady", "Unknown"),
    ] {
        let stage = Stage::new(3, 2);
        let rule = format!("{condition}={status}:10m=drain");
        let replica = stage.with_rules("a", &["--on-condition", &rule]).await;
        stage.set_condition(1, condition, status, 0);
        sleep(TOLERATED - s(1)).await;
        stage.is_untouched(1);
        stage.until("cordoned", s(2), || stage.cordoned(1)).await;
        stage.until("drained", s(10), || stage.world.kube.pods_on(&node(1)).is_empty()).await;
        stage.until("noted", s(10), || stage.handled(1) == 1).await;
        let mark = &stage.notices(1)[0];
        assert_eq!(mark["kind"], "node-condition");
        assert_eq!(mark["message"], format!("node/condition/{condition}={status}"));
        sleep(s(1200)).await;
        assert_eq!((stage.calls("create pods/eviction"), stage.count_cordoned(3)), (2, 1), "once");
        replica.ended_once("node-condition", "drained");
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn each_action_does_what_it_does_for_other_kinds() {
    let stage = Stage::new(10, 1);
    let rules = "A=False:1m=report,B=False:1m=cordon,C=False:1m=drain";
    let replica = stage.with_rules("a", &["--on-condition", rules]).await;
    for (n, kind) in ["A", "B", "C"].into_iter().enumerate() {
        stage.set_condition(n, kind, "False", 0);
    }
    // Another status, or another condition.
    stage.set_condition(3, "A", "Unknown", 0);
    stage.set_condition(4, "D", "False", 0);
    sleep(s(90)).await;
    assert_eq!((0..5).map(|n| stage.cordoned(n)).collect::<Vec<_>>(), [false, true, true, false, false]);
    assert_eq!((0..5).map(|n| stage.world.kube.pods_on(&node(n)).len()).collect::<Vec<_>>(), [1, 1, 0, 1, 1]);
    replica.all_ended("node-condition", &[("cordoned", 1), ("drained", 1), ("reported", 1)]);
    sleep(s(600)).await;
    replica.all_ended("node-condition", &[("cordoned", 1), ("drained", 1), ("reported", 1)]);
    stage.rest(&[&replica]).await;
}

/// The whole reason comes before its beginning, and that before none, however the rules are ordered.
#[tokio::test(start_paused = true)]
async fn a_rule_may_be_for_a_reason() {
    let stage = Stage::new(12, 1);
    let rules = "A=False:1m=report,A=False/Xid*:1m=cordon,A=False/Xid64:1m=drain,B=False/Xid64:1m=drain";
    let replica = stage.with_rules("a", &["--on-condition", rules]).await;
    for (n, (kind, reason)) in
        [("A", "Other"), ("A", "Xid13"), ("A", "Xid64"), ("B", "Xid64"), ("B", "Xid6")].into_iter().enumerate()
    {
        stage.set_condition(n, kind, "False", 0);
        stage.set_reason(n, kind, reason);
    }
    sleep(s(90)).await;
    assert_eq!((0..5).map(|n| stage.cordoned(n)).collect::<Vec<_>>(), [false, true, true, true, false]);
    replica.all_ended("node-condition", &[("cordoned", 1), ("drained", 2), ("reported", 1)]);
    assert_eq!(stage.notices(1)[0]["message"], "node/condition/A=False/Xid*");
    // It has another reason now, for which nothing is done.
    stage.set_reason(3, "B", "Other");
    sleep(s(90)).await;
    assert!(!stage.cordoned(3) && stage.cordoned(2), "{}", stage.story());
    stage.rest(&[&replica]).await;
}

/// Otherwise a budget holds the repair up for ever.
#[tokio::test(start_paused = true)]
async fn a_repair_ends_in_spite_of_a_budget_if_the_user_wants_that() {
    let timeout = ["--drain-timeout", "node-condition=10m"];
    let delete = ["--at-timeout", "node-condition=delete"];
    let left = [&delete[..], &["--pool", "left; node-selector=!gpu; at-deadline=leave"]].concat();
    for (own, outcome, ends) in [(&[][..], "blocked", 0), (&delete, "drained", 1), (&left, "blocked", 0)] {
        let stage = Stage::new(1, 0);
        stage.world.kube.add_pod(Pod::on(&node(0)).named("held").grace(s(40)).stops_in(s(20)));
        stage.block(0);
        let replica = stage.with_rules("a", &[&DRAIN[..], &timeout, own].concat()).await;
        stage.breaks(0);
        sleep(TOLERATED + s(500)).await;
        assert!(stage.ends_of("held").is_empty(), "not before its grace period must begin\n{}", stage.story());
        sleep(s(200)).await;
        let found = stage.ends_of("held");
        assert_eq!(found.len(), ends, "{found:?}\n{}", stage.story());
        assert!(found.iter().all(|end| end.at + s(40) < TOLERATED + s(610)), "{found:?}");
        replica.ended_once("node-condition", outcome);
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_condition_that_goes_back_in_time_leaves_nothing() {
    let stage = Stage::new(1, 1);
    let replica = stage.with_rules("a", &DRAIN).await;
    for _ in 0..3 {
        stage.breaks(0);
        sleep(TOLERATED - s(5)).await;
        stage.mends(0);
        sleep(s(3)).await;
    }
    sleep(TOLERATED * 2).await;
    stage.is_untouched(0);
    let text = replica.metrics.render(&replica.tasks);
    assert!(!text.contains("ebbtide_notices_total{kind=\"node-condition\""), "no notice\n{text}");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_condition_that_goes_back_late_is_undone_and_may_come_again() {
    let stage = Stage::new(3, 0);
    for pod in ["a", "b"] {
        stage.world.kube.add_pod(Pod::on(&node(0)).named(pod).grace(s(60)).stops_in(s(2)));
    }
    let replica = stage.with_rules("a", &DRAIN).await;
    for _ in 0..2 {
        // In the middle of a drain that is blocked.
        stage.block(0);
        stage.breaks(0);
        stage.until("tried", TOLERATED + s(10), || !stage.tries_of("a").is_empty() && stage.cordoned(0)).await;
        stage.mends(0);
        stage.until("uncordoned", s(10), || !stage.cordoned(0)).await;
        stage.until("forgotten", s(10), || stage.notices(0).is_empty() && stage.handled(0) == 0).await;
        stage.unblock(0);
    }
    assert_eq!(stage.world.kube.evictions().len(), 0);
    // After the drain.
    stage.breaks(0);
    stage.until("noted", TOLERATED + s(30), || stage.handled(0) == 1).await;
    stage.mends(0);
    stage.until("uncordoned", s(10), || !stage.cordoned(0) && stage.handled(0) == 0).await;
    assert_eq!(stage.world.kube.evictions().len(), 2);
    assert_eq!(outcomes(&replica, "node-condition", "withdrawn"), "3");
    stage.rest(&[&replica]).await;
}

/// The toleration begins anew each time; a drain is not begun more often than that.
#[tokio::test(start_paused = true)]
async fn a_flapping_condition_drains_only_when_it_has_lasted() {
    let stage = Stage::new(1, 1);
    let replica = stage.with_rules("a", &["--on-condition", "KernelReady=False:30s=cordon"]).await;
    for _ in 0..60 {
        stage.breaks(0);
        sleep(s(25)).await;
        stage.mends(0);
        sleep(s(5)).await;
    }
    stage.is_untouched(0);
    for _ in 0..5 {
        stage.breaks(0);
        sleep(s(35)).await;
        assert!(stage.cordoned(0));
        stage.mends(0);
        sleep(s(25)).await;
        assert!(!stage.cordoned(0));
    }
    replica.all_ended("node-condition", &[("cordoned", 5), ("withdrawn", 5)]);
    stage.rest(&[&replica]).await;
}

/// The time of the transition is on the Node.
#[tokio::test(start_paused = true)]
async fn the_toleration_goes_on_over_a_restart() {
    let stage = Stage::new(1, 1);
    let first = stage.with_rules("first", &DRAIN).await;
    stage.breaks(0);
    sleep(TOLERATED / 2).await;
    let (_, _, tasks) = first.stop().await;
    tasks.gone(|_| true).await;
    let second = stage.with_rules("second", &DRAIN).await;
    sleep(TOLERATED / 2 - s(10)).await;
    stage.is_untouched(0);
    stage.until("cordoned", s(15), || stage.cordoned(0)).await;
    stage.until("noted", s(30), || stage.handled(0) == 1).await;
    second.ended_once("node-condition", "drained");
    stage.rest(&[&second]).await;
}

/// Whoever wrote the condition has a clock that is wrong by hours.
#[tokio::test(start_paused = true)]
async fn a_wrong_clock_of_the_writer_hardly_matters() {
    for ago in [-7200, 7200] {
        let stage = Stage::new(1, 1);
        let replica = stage.with_rules("a", &DRAIN).await;
        // The Node's age hides nothing.
        sleep(s(3600)).await;
        stage.set_condition(0, KERNEL, "False", ago);
        sleep(TOLERATED - s(1)).await;
        stage.is_untouched(0);
        stage.until("cordoned", s(2), || stage.cordoned(0)).await;
        stage.until("noted", s(30), || stage.handled(0) == 1).await;
        stage.rest(&[&replica]).await;
    }
    // Nobody has seen it begin: a time ahead counts as the time at which it is seen, one before the Node as the Node's.
    for (ago, within) in [(-7200, TOLERATED), (7200, TOLERATED - s(60))] {
        let stage = Stage::new(1, 1);
        stage.set_condition(0, KERNEL, "False", ago);
        sleep(s(60)).await;
        let replica = stage.with_rules("a", &DRAIN).await;
        sleep(within - s(10)).await;
        stage.is_untouched(0);
        stage.until("cordoned", s(15), || stage.cordoned(0)).await;
        stage.until("noted", s(30), || stage.handled(0) == 1).await;
        stage.rest(&[&replica]).await;
    }
}

/// Not the whole age of the Node: nobody knows since when.
#[tokio::test(start_paused = true)]
async fn a_condition_without_a_time_counts_from_when_it_is_seen() {
    let stage = Stage::new(1, 1);
    sleep(s(3600)).await;
    stage.set_condition(0, KERNEL, "False", 0);
    stage.world.kube.update_node(&node(0), |node| {
        let conditions = node.status.get_or_insert_default().conditions.get_or_insert_default();
        conditions.iter_mut().filter(|it| it.type_ == KERNEL).for_each(|it| it.last_transition_time = None);
    });
    let replica = stage.with_rules("a", &DRAIN).await;
    sleep(TOLERATED - s(10)).await;
    stage.is_untouched(0);
    stage.until("cordoned", s(15), || stage.cordoned(0)).await;
    stage.until("noted", s(30), || stage.handled(0) == 1).await;
    stage.rest(&[&replica]).await;
}

/// A writer that renews the time of the transition without one does not put off the drain.
#[tokio::test(start_paused = true)]
async fn a_condition_whose_time_is_renewed_is_the_same() {
    let stage = Stage::new(1, 1);
    let replica = stage.with_rules("a", &DRAIN).await;
    for _ in 0..20 {
        stage.breaks(0);
        sleep(s(29)).await;
    }
    stage.is_untouched(0);
    stage.breaks(0);
    stage.until("drained", s(30), || stage.world.kube.pods().is_empty()).await;
    stage.until("noted", s(30), || stage.handled(0) == 1).await;
    replica.ended_once("node-condition", "drained");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn nonsense_is_no_condition() {
    let stage = Stage::new(4, 1);
    let replica = stage.with_rules("a", &["--on-condition", "KernelReady=False:1m=drain,Ready=Unknown:1m=drain"]).await;
    stage.set_condition(0, KERNEL, "false", 0);
    stage.set_condition(1, KERNEL, "", 0);
    stage.set_condition(2, "KernelReady=False", "True", 0);
    stage.set_condition(3, "kernelready", "False", 0);
    sleep(s(600)).await;
    assert_eq!((stage.count_cordoned(4), stage.calls("patch nodes")), (0, 0));
    // A Node that is no EC2 instance.
    stage.world.kube.update_node(&node(3), |node| node.spec.get_or_insert_default().provider_id = None);
    stage.breaks(3);
    // One that its owner excludes.
    stage.annotate(2, "ebbtide/ignore", "true");
    stage.breaks(2);
    sleep(s(600)).await;
    assert_eq!((stage.count_cordoned(4), stage.calls("patch nodes")), (0, 0));
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn two_replicas_drain_once() {
    let stage = Stage::new(1, 2);
    let first = stage.with_rules("first", &DRAIN).await;
    let second = stage.without_queue("second", &DRAIN).await;
    stage.breaks(0);
    stage.until("noted", TOLERATED + s(60), || stage.handled(0) == 1).await;
    sleep(s(300)).await;
    assert_eq!((stage.calls("create pods/eviction"), stage.notices(0).len()), (2, 1));
    let drained = [&first, &second].map(|replica| outcomes(replica, "node-condition", "drained"));
    assert_eq!(drained, ["1", "0"]);
    stage.rest(&[&first, &second]).await;
}

/// By the clock that wrote the condition, its time is ahead: to the second replica it is new, but the work goes on.
#[tokio::test(start_paused = true)]
async fn a_takeover_in_mid_drain_goes_on() {
    for ago in [0, -7200] {
        let stage = Stage::new(1, 0);
        stage.world.kube.add_pod(Pod::on(&node(0)).named("a").grace(s(60)).stops_in(s(2)));
        stage.block(0);
        let first = stage.with_rules("first", &DRAIN).await;
        stage.set_condition(0, KERNEL, "False", ago);
        stage.until("tried", TOLERATED + s(10), || !stage.tries_of("a").is_empty()).await;
        let second = stage.without_queue("second", &DRAIN).await;
        sleep(s(10)).await;
        first.kill().await.gone(|_| true).await;
        let tries = stage.tries_of("a").len();
        stage.until("taken over", s(12), || stage.tries_of("a").len() > tries).await;
        assert!(stage.cordoned(0) && stage.nodes_holder().as_deref() == Some("second"));
        stage.unblock(0);
        stage.until("noted", s(60), || stage.handled(0) == 1).await;
        assert_eq!((stage.ends_of("a").len(), stage.notices(0).len()), (1, 1));
        second.ended_once("node-condition", "drained");
        stage.rest(&[&second]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_deleted_meanwhile_needs_nothing() {
    let stage = Stage::new(3, 1);
    stage.block(1);
    let replica = stage.with_rules("a", &DRAIN).await;
    stage.breaks(0);
    sleep(TOLERATED - s(1)).await;
    stage.world.kube.remove_node(&node(0));
    stage.breaks(1);
    stage.until("tried", TOLERATED + s(10), || stage.cordoned(1)).await;
    stage.world.kube.remove_node(&node(1));
    sleep(s(120)).await;
    assert_eq!(stage.world.kube.evictions().len(), 0);
    stage.rest(&[&replica]).await;
    // It registers again, with another pod, and is still broken.
    stage.world.kube.add_node(&node(1), &instance(1));
    stage.world.kube.add_pod(Pod::on(&node(1)).named("late").stops_in(s(2)));
    stage.breaks(1);
    stage.until("drained", TOLERATED + s(30), || !stage.has_pod("late")).await;
    stage.until("noted", s(30), || stage.handled(1) == 1).await;
    stage.rest(&[&replica]).await;
}

/// A user who uncordons is not overruled while the condition stays.
#[tokio::test(start_paused = true)]
async fn an_uncordon_lasts_until_the_condition_comes_again() {
    let stage = Stage::new(1, 1);
    let replica = stage.with_rules("a", &["--on-condition", "KernelReady=False:1m=cordon"]).await;
    stage.breaks(0);
    stage.until("noted", s(90), || stage.handled(0) == 1).await;
    stage.set_cordon(0, false);
    stage.until("released", s(60), || stage.notices(0).is_empty()).await;
    sleep(s(600)).await;
    assert!(!stage.cordoned(0) && stage.handled(0) == 1);
    stage.mends(0);
    stage.until("forgotten", s(60), || stage.handled(0) == 0).await;
    stage.breaks(0);
    stage.until("cordoned", s(90), || stage.cordoned(0)).await;
    stage.until("noted", s(90), || stage.handled(0) == 1).await;
    stage.rest(&[&replica]).await;
}

/// A kubelet that was renamed leaves its former Node, which stays Unknown for ever.
#[tokio::test(start_paused = true)]
async fn the_former_node_of_an_instance_says_nothing() {
    let stage = Stage::new(1, 1);
    stage.world.kube.add_unready_node("former", &instance(0));
    let replica = stage.with_rules("a", &["--on-condition", "Ready=Unknown:5m=drain"]).await;
    sleep(s(1200)).await;
    stage.is_untouched(0);
    // Until the new one is as silent.
    stage.set_ready(0, false);
    stage.until("cordoned", s(310), || stage.cordoned(0)).await;
    stage.set_ready(0, true);
    stage.until("uncordoned", s(30), || !stage.cordoned(0)).await;
    stage.rest(&[&replica]).await;
}

/// The kubelet is silent: nobody will report the end of its pods.
#[tokio::test(start_paused = true)]
async fn a_silent_kubelet_ends_its_drain_when_the_grace_periods_are_over() {
    let stage = Stage::new(3, 2);
    let replica = stage.with_rules("a", &["--on-condition", "Ready=Unknown:5m=drain"]).await;
    stage.set_ready(2, false);
    sleep(s(299)).await;
    stage.is_untouched(2);
    stage.until("noted", s(120), || stage.handled(2) == 1).await;
    assert_eq!((stage.calls("create pods/eviction"), stage.cordoned(2)), (2, true));
    replica.ended_once("node-condition", "node-dead");
    stage.set_ready(2, true);
    stage.until("uncordoned", s(60), || !stage.cordoned(2) && stage.handled(2) == 0).await;
    stage.rest(&[&replica]).await;
}

/// Only who says that the node is broken knows whether it still is.
#[tokio::test(start_paused = true)]
async fn a_reboot_alone_takes_nothing_back() {
    let stage = Stage::new(1, 1);
    let replica = stage.with_rules("a", &DRAIN).await;
    stage.breaks(0);
    stage.until("noted", TOLERATED + s(60), || stage.handled(0) == 1).await;
    sleep(s(3700)).await;
    stage.reboot(0).await;
    sleep(s(300)).await;
    assert!(stage.cordoned(0), "{}", stage.story());
    stage.mends(0);
    stage.until("uncordoned", s(10), || !stage.cordoned(0) && stage.handled(0) == 0).await;
    stage.rest(&[&replica]).await;
}

/// What is drained for another reason needs no repair, and does not count as broken.
#[tokio::test(start_paused = true)]
async fn a_node_that_goes_anyway_is_left_to_that() {
    let stage = Stage::new(2, 1);
    let flags = ["--source", "queue,nodes", "--pod-namespace", "ebbtide", "--pod-name", "a"];
    let replica = stage.start(&[&flags[..], &DRAIN].concat()).await;
    stage.block(0);
    stage.breaks(0);
    sleep(TOLERATED - s(30)).await;
    stage.spot(0);
    stage.breaks(1);
    sleep(s(60)).await;
    assert_eq!(stage.notices(0).len(), 1);
    stage.until("drained", TOLERATED + s(10), || stage.world.kube.pods_on(&node(1)).is_empty()).await;
    stage.until("noted", s(30), || stage.handled(1) == 1).await;
    assert_eq!(STOPS.map(|why| held(&replica, why)), ["0"; 3]);
    replica.ended_once("node-condition", "drained");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn work_stops_when_more_than_a_fifth_is_broken_and_begins_when_fewer_are() {
    let stage = Stage::new(10, 1);
    (0..10).for_each(|n| stage.label(n, "eks.amazonaws.com/nodegroup", if n < 5 { "a" } else { "b" }));
    let replica = stage.with_rules("a", &DRAIN).await;
    // One of group b, and two of group a, a little later.
    stage.breaks(9);
    sleep(s(60)).await;
    stage.breaks(0);
    sleep(s(540)).await;
    stage.breaks(1);
    sleep(s(5)).await;
    // Three of ten are over the limit of all, too, but the first has begun before.
    assert_eq!((stage.count_cordoned(10), stage.cordoned(9)), (1, true), "{}", stage.story());
    sleep(s(60)).await;
    assert_eq!(STOPS.map(|why| held(&replica, why)), ["0", "1", "0"], "long enough broken, but not begun");
    sleep(TOLERATED).await;
    assert_eq!(STOPS.map(|why| held(&replica, why)), ["0", "2", "0"]);
    assert_eq!((stage.count_cordoned(10), stage.calls("create pods/eviction")), (1, 1), "what has begun goes on");
    stage.mends(1);
    stage.until("begun", s(5), || stage.cordoned(0)).await;
    stage.until("noted", s(60), || stage.handled(0) == 1).await;
    assert_eq!(STOPS.map(|why| held(&replica, why)), ["0"; 3]);
    replica.all_ended("node-condition", &[("drained", 2)]);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn work_stops_when_two_of_three_zones_are_hit() {
    let stage = Stage::new(30, 1);
    (0..30).for_each(|n| stage.label(n, "topology.kubernetes.io/zone", ["a", "b", "c"][n % 3]));
    let replica = stage.with_rules("a", &DRAIN).await;
    // Two of ten in the first two zones: four of thirty.
    for n in [0, 3, 1, 4] {
        stage.breaks(n);
    }
    sleep(TOLERATED + s(60)).await;
    assert_eq!((stage.count_cordoned(30), &*held(&replica, "zones")), (0, "4"));
    stage.mends(4);
    stage.until("begun", s(5), || stage.count_cordoned(30) == 3).await;
    stage.until("noted", s(60), || [0, 1, 3].into_iter().all(|n| stage.handled(n) == 1)).await;
    assert_eq!(STOPS.map(|why| held(&replica, why)), ["0"; 3]);
    stage.rest(&[&replica]).await;
}

/// All conditions come at once; a report is no work.
#[tokio::test(start_paused = true)]
async fn a_dead_network_drains_nothing_and_is_told_once() {
    let stage = Stage::new(20, 1);
    let rules = "NetworkingReady=False:10m=drain,KernelReady=False:1m=report";
    let first = stage.with_rules("first", &["--on-condition", rules]).await;
    (0..20).for_each(|n| stage.set_condition(n, "NetworkingReady", "False", 0));
    stage.breaks(3);
    sleep(TOLERATED * 3).await;
    assert_eq!((stage.count_cordoned(20), stage.calls("patch nodes")), (0, 0));
    assert_eq!(held(&first, "cluster"), "20");
    first.ended_once("node-condition", "reported");
    // Another replica takes over, and only it holds them.
    let second = stage.without_queue("second", &["--on-condition", rules]).await;
    sleep(s(5)).await;
    assert_eq!(held(&second, "cluster"), "0");
    first.kill().await.gone(|_| true).await;
    stage.until("taken over", s(12), || held(&second, "cluster") == "20").await;
    (0..20).for_each(|n| stage.set_condition(n, "NetworkingReady", "True", 0));
    stage.until("told", s(5), || held(&second, "cluster") == "0").await;
    assert_eq!(stage.calls("patch nodes"), 0);
    stage.rest(&[&second]).await;
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_writes_nothing() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&[&["--source", "nodes", "--dry-run"][..], &DRAIN].concat()).await;
    stage.breaks(0);
    stage.until("ended", TOLERATED + s(60), || outcomes(&replica, "node-condition", "drained") == "1").await;
    sleep(s(300)).await;
    assert!(!stage.cordoned(0) && outcomes(&replica, "node-condition", "drained") == "1");
    stage.mends(0);
    sleep(s(60)).await;
    stage.rest(&[&replica]).await;
}

/// Nothing is on the Node of a spot instance while no call to mark it succeeds, and so many others are broken that no repair begins.
#[tokio::test(start_paused = true)]
async fn the_brake_does_not_stop_what_aws_announces() {
    let stage = Stage::new(6, 1);
    let replica = stage.with_rules("a", &DRAIN).await;
    (1..6).for_each(|n| stage.breaks(n));
    stage.world.faults.add(Rule::on("patch nodes", Fault::Throttle));
    stage.says_spot(0, 120);
    sleep(s(60)).await;
    assert!(!stage.has_pod("web-0-0"), "{}", stage.story());
    stage.world.faults.clear();
    stage.until("noted", s(60), || stage.handled(0) == 1).await;
    assert_eq!(outcomes(&replica, "spot", "drained"), "1");
    stage.rest(&[&replica]).await;
}

/// One cause breaks nodes in different ways.
#[tokio::test(start_paused = true)]
async fn conditions_and_status_checks_have_one_brake() {
    let stage = Stage::new(10, 1);
    let flags = ["--source", "queue,nodes,ec2", "--pod-namespace", "ebbtide", "--pod-name", "a"];
    let checks = ["--ec2-poll-interval", "5m", "--on", "status-check=drain"];
    let replica = stage.start(&[&flags[..], &DRAIN, &checks].concat()).await;
    stage.fails(0, "system", 600);
    stage.fails(1, "instance", 600);
    stage.breaks(2);
    stage.breaks(3);
    sleep(TOLERATED * 2).await;
    assert_eq!((stage.count_cordoned(10), stage.calls("patch nodes")), (0, 0), "{}", stage.story());
    let checks = replica.metric("ebbtide_repairs_held{kind=\"status-check\",reason=\"cluster\"}");
    assert_eq!((&*held(&replica, "cluster"), checks.to_string().as_str()), ("2", "2"));
    // A fifth is left.
    stage.mends(2);
    stage.mends(3);
    stage.until("begun", s(300), || stage.count_cordoned(10) == 2).await;
    stage.until("noted", s(60), || stage.handled(0) + stage.handled(1) == 2).await;
    replica.all_ended("status-check", &[("drained", 2)]);
    stage.rest(&[&replica]).await;
}

/// Its group ends the instance because of the repair.
#[tokio::test(start_paused = true)]
async fn a_node_that_goes_because_of_its_repair_counts_as_broken() {
    let stage = Stage::new(10, 1);
    let replica = stage.with_both("a", &DRAIN).await;
    stage.until("its turn", s(5), || stage.nodes_holder().is_some()).await;
    for n in [0, 1] {
        stage.breaks(n);
    }
    stage.until("noted", TOLERATED + s(60), || stage.handled(0) + stage.handled(1) == 2).await;
    for n in [0, 1] {
        stage.terminate(n, s(300), Wrapping::Event);
    }
    stage.until_handled(s(60)).await;
    for n in [2, 3] {
        stage.breaks(n);
    }
    sleep(TOLERATED + s(60)).await;
    assert_eq!((stage.count_cordoned(10), &*held(&replica, "cluster")), (2, "2"), "{}", stage.story());
    stage.world.kube.remove_node(&node(0));
    stage.world.kube.remove_node(&node(1));
    stage.until("begun", s(60), || stage.cordoned(2) && stage.cordoned(3)).await;
    stage.until("noted", s(60), || stage.handled(2) + stage.handled(3) == 2).await;
    stage.rest(&[&replica]).await;
}

/// A replica starts after all of them broke: what EC2 says counts from the start.
#[tokio::test(start_paused = true)]
async fn a_new_replica_begins_no_repair_before_it_knows_the_failing_checks() {
    let flags = ["--source", "queue,nodes,ec2", "--pod-namespace", "ebbtide", "--pod-name", "a"];
    let checks = ["--ec2-poll-interval", "5m", "--on", "status-check=cordon"];
    let flags = [&flags[..], &DRAIN, &checks].concat();
    let stage = Stage::new(10, 1);
    for n in [0, 1] {
        stage.fails(n, "system", 0);
        stage.breaks(n + 2);
    }
    sleep(s(1200)).await;
    stage.world.faults.add(Rule::on("DescribeInstanceStatus", Fault::Slow(s(5))).times(2));
    let replica = stage.start(&flags).await;
    sleep(s(600)).await;
    assert_eq!((stage.count_cordoned(10), stage.calls("patch nodes")), (0, 0), "{}", stage.story());
    stage.mends(2);
    stage.mends(3);
    stage.until("begun", s(300), || stage.count_cordoned(10) == 2).await;
    drop(replica);
    // Without the right to ask, the conditions alone count.
    let stage = Stage::new(10, 1);
    stage.breaks(2);
    sleep(s(1200)).await;
    stage.world.faults.add(Rule::on("DescribeInstanceStatus", Fault::Status(403)));
    let replica = stage.start(&flags).await;
    stage.until("begun", s(60), || stage.cordoned(2)).await;
    stage.until("noted", s(60), || stage.handled(2) == 1).await;
    stage.rest(&[&replica]).await;
}

/// Nobody can tell whose instance it is for longer than the drain's patience, and the node stays broken.
#[tokio::test(start_paused = true)]
async fn a_repair_is_tried_again_after_calls_have_failed_for_long() {
    let stage = Stage::new(3, 1);
    let replica =
        stage.with_both("a", &[&DRAIN[..], &["--require-tag", "--drain-timeout", "node-condition=5m"]].concat()).await;
    stage.world.faults.add(Rule::on("DescribeInstances", Fault::Status(500)));
    stage.set_condition(1, KERNEL, "False", 3600);
    sleep(s(1200)).await;
    assert!(!stage.cordoned(1));
    replica.ended_as("node-condition", "failed", 1);
    stage.world.faults.clear();
    stage.until("drained", s(1200), || stage.world.kube.pods_on(&node(1)).is_empty()).await;
    stage.until("noted", s(60), || stage.handled(1) == 1).await;
    stage.rest(&[&replica]).await;
}

/// Returns a world in which one node may be drained at a time, and the first is, for its condition.
async fn without_room() -> (Stage, Replica) {
    let stage = Stage::new(10, 1);
    stage.block(0);
    let flags = [&DRAIN[..], &["--max-draining", "1", "--on", "rebalance=drain"]].concat();
    let replica = stage.with_rules("a", &flags).await;
    stage.breaks(0);
    stage.until("the first has the room", TOLERATED + s(5), || stage.cordoned(0)).await;
    (stage, replica)
}

/// What waits for room has not begun.
#[tokio::test(start_paused = true)]
async fn what_goes_back_or_is_no_longer_said_while_it_waits_for_room_is_not_begun() {
    let (stage, replica) = without_room().await;
    stage.breaks(1);
    stage.says_rebalance(2);
    sleep(TOLERATED + s(60)).await;
    stage.mends(1);
    stage.takes_back(2, super::nodes::REBALANCE);
    sleep(s(5)).await;
    stage.world.kube.remove_node(&node(0));
    sleep(s(120)).await;
    assert_eq!(stage.count_cordoned(10), 0, "{}", stage.story());
    assert!([1, 2].iter().all(|n| stage.first_eviction(*n).is_none()), "{}", stage.story());
    stage.rest(&[&replica]).await;
}

/// It was taken up before so many others were broken.
#[tokio::test(start_paused = true)]
async fn what_waits_for_room_is_left_alone_when_many_are_broken() {
    let (stage, replica) = without_room().await;
    stage.breaks(1);
    sleep(TOLERATED + s(60)).await;
    (2..6).for_each(|n| stage.breaks(n));
    sleep(s(10)).await;
    stage.world.kube.remove_node(&node(0));
    sleep(s(120)).await;
    assert_eq!(stage.count_cordoned(10), 0, "{}", stage.story());
    assert_eq!(held(&replica, "cluster"), "1");
    (2..6).for_each(|n| stage.mends(n));
    stage.until("drained", s(120), || stage.world.kube.pods_on(&node(1)).is_empty()).await;
    stage.until("noted", s(60), || stage.handled(1) == 1).await;
    stage.rest(&[&replica]).await;
}

/// A drain that has failed is tried again, but not against whoever wants the node to stay.
#[tokio::test(start_paused = true)]
async fn an_uncordon_after_a_drain_that_failed_lasts() {
    let stage = Stage::new(3, 1);
    let replica = stage.with_rules("a", &[&DRAIN[..], &["--drain-timeout", "node-condition=5m"]].concat()).await;
    stage.world.faults.add(Rule::on("create pods/eviction", Fault::Status(500)));
    stage.breaks(0);
    let failed = || replica.metric("ebbtide_notices_total{kind=\"node-condition\",outcome=\"failed\"}") > 0.5;
    stage.until("failed", TOLERATED + s(330), failed).await;
    stage.set_cordon(0, false);
    stage.until("noted", s(60), || stage.notices(0).is_empty() && stage.handled(0) == 1).await;
    sleep(s(3600)).await;
    assert!(!stage.cordoned(0), "{}", stage.story());
    stage.world.faults.clear();
    stage.rest(&[&replica]).await;
}

/// No Node is seen for minutes, and the Lease is kept meanwhile.
#[tokio::test(start_paused = true)]
async fn a_condition_that_goes_back_unseen_leaves_nothing() {
    let stage = Stage::new(3, 1);
    let replica = stage.with_rules("a", &DRAIN).await;
    stage.breaks(0);
    sleep(TOLERATED - s(60)).await;
    stage.loses_sight();
    sleep(s(30)).await;
    stage.mends(0);
    sleep(TOLERATED).await;
    stage.is_untouched(0);
    stage.world.faults.clear();
    sleep(s(60)).await;
    stage.is_untouched(0);
    let text = replica.metrics.render(&replica.tasks);
    assert!(!text.contains("ebbtide_notices_total{kind=\"node-condition\""), "no notice\n{text}");
    stage.breaks(0);
    stage.until("noted", TOLERATED + s(30), || stage.handled(0) == 1).await;
    stage.rest(&[&replica]).await;
}

/// The connection of the watch is dead, and looks alive. A cordon that names an old version of the Node shows the new one.
#[tokio::test(start_paused = true)]
async fn a_condition_that_only_a_dead_watch_still_shows_leaves_nothing() {
    let stage = Stage::new(3, 1);
    let replica = stage.with_rules("a", &DRAIN).await;
    stage.breaks(0);
    sleep(TOLERATED - s(5)).await;
    stage.world.kube.interrupt_watches(Interrupt::Freeze);
    stage.mends(0);
    stage.until("tried", s(20), || stage.calls("patch nodes") > 0).await;
    sleep(s(60)).await;
    assert!(stage.ends_of("web-0-0").is_empty() && !stage.cordoned(0), "{}", stage.story());
    assert!(stage.notices(0).is_empty() && stage.handled(0) == 0, "{:?}", stage.annotations(0));
    assert_eq!(stage.calls("patch nodes"), 1, "{}", stage.story());
    stage.rest(&[&replica]).await;
}

/// The answer to a patch shows the condition, but not that it went and came meanwhile.
#[tokio::test(start_paused = true)]
async fn a_condition_that_goes_and_comes_unseen_begins_anew_though_its_node_is_patched() {
    let stage = Stage::new(3, 1);
    let replica = stage.with_both("a", &DRAIN).await;
    stage.until("its turn", s(5), || stage.nodes_holder().is_some()).await;
    stage.breaks(0);
    sleep(s(60)).await;
    stage.loses_sight();
    sleep(s(30)).await;
    stage.mends(0);
    sleep(s(30)).await;
    stage.breaks(0);
    stage.rebalance(0);
    stage.until("cordoned", s(10), || stage.cordoned(0)).await;
    stage.world.faults.clear();
    sleep(TOLERATED - s(30)).await;
    assert_eq!(stage.first_eviction(0), None, "{}", stage.story());
    stage.until("drained", s(60), || stage.world.kube.pods_on(&node(0)).is_empty()).await;
    stage.until_handled(s(60)).await;
    stage.until("noted", s(60), || stage.handled(0) == 1).await;
    stage.rest(&[&replica]).await;
}

/// The owner has changed their mind while it waited for room, and again.
#[tokio::test(start_paused = true)]
async fn a_node_that_was_excluded_for_a_while_is_drained_then() {
    let (stage, replica) = without_room().await;
    stage.says_rebalance(1);
    sleep(s(60)).await;
    stage.annotate(1, "ebbtide/ignore", "true");
    stage.world.kube.remove_node(&node(0));
    sleep(s(120)).await;
    assert!(!stage.cordoned(1));
    stage.takes_back(1, "ebbtide/ignore");
    stage.until("drained", s(60), || stage.world.kube.pods_on(&node(1)).is_empty()).await;
    stage.until("noted", s(60), || stage.handled(1) == 1).await;
    stage.rest(&[&replica]).await;
}
