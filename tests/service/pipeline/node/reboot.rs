//! Nodes that reboot, or whose readiness flaps.

use crate::harness::{Stage, instance, node, s};
use crate::nodes::{EXCLUDE, TO_POOL, marks};
use ebbtide_sim::aws::HookResult;
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::Pod;
use ebbtide_sim::messages::{self, Wrapping};
use jiff::Timestamp;
use serde_json::json;
use tokio::time::sleep;

#[tokio::test(start_paused = true)]
async fn a_rebooted_node_is_released_when_it_is_ready_again() {
    let stage = Stage::new(2, 2);
    stage.set_cordon(1, true);
    let flags = ["--taint", "going=soon:NoSchedule", "--exclude-from-load-balancers", "--max-draining=none"];
    let replica = stage.start(&flags).await;
    for n in 0..2 {
        stage.schedule_reboot(n);
    }
    stage.until_handled(s(30)).await;
    assert_eq!(stage.world.kube.pods().len(), 0);
    for n in 0..2 {
        // Off the network for a while, on the same boot: the Node was not rebooted yet.
        stage.set_ready(n, false);
        sleep(s(30)).await;
        stage.set_ready(n, true);
        sleep(s(30)).await;
        assert!(stage.cordoned(n) && !stage.taints(n).is_empty());
        // On a new boot, and not Ready yet.
        stage.set_ready(n, false);
        stage.world.kube.reboot(&node(n));
        sleep(s(60)).await;
        assert!(stage.cordoned(n) && !stage.taints(n).is_empty());
        stage.set_ready(n, true);
        stage.until("released", s(2), || stage.notices(n).is_empty()).await;
        assert_eq!(stage.taints(n), Vec::<String>::new());
        assert_eq!(stage.labelled(n, EXCLUDE), None);
        stage.no_trace(n);
    }
    assert_eq!((stage.cordoned(0), stage.cordoned(1)), (false, true), "a human's cordon stays");
    assert!((replica.released("rebooted") - 2.0).abs() < f64::EPSILON);
    // A later notice is not affected.
    stage.spot(0);
    stage.until_handled(s(10)).await;
    sleep(s(3600)).await;
    assert!(stage.cordoned(0));
    assert_eq!(stage.notices(0).len(), 1);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn the_scheduled_reboot_during_the_drain_ends_it_and_releases_the_node() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.start(&[]).await;
    stage.schedule_reboot(0);
    sleep(s(60)).await;
    stage.reboot_fast(0);
    stage.until("uncordoned", s(3), || !stage.cordoned(0)).await;
    stage.until_handled(s(3)).await;
    replica.ended_as("scheduled-change", "uncordoned", 1);
    sleep(s(600)).await;
    assert!(!stage.cordoned(0));
    stage.no_trace(0);
    stage.rest(&[&replica]).await;
}

/// EC2 may list it only three minutes after its announcement; the restart is judged before it could be the return.
#[tokio::test(start_paused = true)]
async fn a_restart_before_a_change_that_is_announced_shortly_before_it_is_no_return() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&[]).await;
    let start = stage.world.clock.now() + s(233);
    stage.health(0, ("h", "AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED"), start, "upcoming");
    stage.until_handled(s(30)).await;
    sleep(s(150)).await;
    stage.reboot_fast(0);
    sleep(s(75)).await;
    assert!(stage.cordoned(0), "{}", stage.story());
    sleep(s(10)).await;
    stage.reboot_fast(0);
    stage.until("uncordoned", s(30), || !stage.cordoned(0)).await;
    stage.rest(&[&replica]).await;
}

/// A Node that reboots while it is drained for a termination stays cordoned, and its drain goes on.
#[tokio::test(start_paused = true)]
async fn a_reboot_during_the_drain_does_not_release_a_node_that_terminates() {
    let stage = Stage::new(1, 2);
    stage.block(0);
    let replica = stage.start(&["--drain-timeout", "20m", "--at-deadline", "leave"]).await;
    let token = stage.terminate(0, s(600), Wrapping::Event);
    sleep(s(60)).await;
    stage.world.kube.set_ready(&node(0), false);
    sleep(s(30)).await;
    stage.world.kube.reboot(&node(0));
    stage.world.kube.set_ready(&node(0), true);
    sleep(s(60)).await;
    let action = stage.world.aws.autoscaling.action(&token).unwrap();
    assert!(
        stage.cordoned(0) && action.completions.is_empty(),
        "cordoned {} completions {:?} pods left {} marks {:?}",
        stage.cordoned(0),
        action.completions,
        stage.world.kube.pods_on(&node(0)).len(),
        marks(&stage, 0)
    );
    stage.unblock(0);
    stage.until_handled(s(60)).await;
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

/// A Node restarts after the hook's own timeout, when only the longest grace period of its pods keeps the hook.
#[tokio::test(start_paused = true)]
async fn a_reboot_while_the_longest_grace_period_keeps_the_hook_releases_nothing() {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(300)).stops_in(s(290)));
    stage.block(0);
    let replica = stage.start(&[]).await;
    let token = stage.terminate(0, s(900), Wrapping::Event);
    // Its eviction is not allowed for that long; then its grace period must still fit.
    sleep(s(1065)).await;
    stage.reboot(0).await;
    sleep(s(60)).await;
    assert!(stage.cordoned(0) && stage.has_pod("slow"), "the drain goes on");
    stage.until_handled(s(75)).await;
    stage.completed_once(&token);
    replica.ended_as("asg-terminate", "drained", 1);
    stage.rest(&[&replica]).await;
}

/// As above, but the message came when the hook's time was nearly over.
#[tokio::test(start_paused = true)]
async fn a_reboot_during_the_drain_of_a_late_message_releases_nothing() {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(60)).stops_in(s(55)));
    let token = stage.terminate(0, s(900), Wrapping::Event);
    sleep(s(898)).await;
    let replica = stage.start(&[]).await;
    sleep(s(35)).await;
    stage.world.kube.reboot(&node(0));
    sleep(s(10)).await;
    assert!(stage.cordoned(0) && stage.has_pod("slow"), "the drain goes on");
    stage.until_handled(s(15)).await;
    stage.completed_once(&token);
    replica.ended_as("asg-terminate", "drained", 1);
    stage.rest(&[&replica]).await;
}

/// Readiness flaps while the Node is drained for the warm pool.
#[tokio::test(start_paused = true)]
async fn a_flap_of_readiness_during_the_drain_releases_nothing() {
    let stage = Stage::slow(s(300));
    let replica = stage.start(&["--drain-timeout", "10m"]).await;
    stage.terminate_between(0, s(600), Wrapping::Event, TO_POOL);
    sleep(s(30)).await;
    let before = marks(&stage, 0);
    stage.world.kube.set_ready(&node(0), false);
    sleep(s(20)).await;
    stage.world.kube.set_ready(&node(0), true);
    sleep(s(10)).await;
    let after = marks(&stage, 0);
    let cordoned = stage.cordoned(0);
    let released = replica.metrics.render(&replica.tasks);
    let released: Vec<_> = released.lines().filter(|l| l.contains("released")).map(str::to_owned).collect();
    stage.until_handled(s(600)).await;
    assert!(
        cordoned && before == after,
        "cordoned {cordoned}\n{before:?}\n{after:?}\n{released:?}\nin the end {:?} {}",
        marks(&stage, 0),
        stage.cordoned(0)
    );
    stage.rest(&[&replica]).await;
}

/// A message from before the restart of the Node is read late.
#[tokio::test(start_paused = true)]
async fn what_was_announced_before_the_restart_is_not_acted_on() {
    let spot = |action: &str| {
        let action = format!("\"{action}\"");
        move |at| messages::spot("late", &instance(0), at).replace("\"terminate\"", &action)
    };
    let (stop, hibernate) = (spot("stop"), spot("hibernate"));
    let stopping = |at| messages::state_change("late", &instance(0), "stopping", at);
    let bodies: [&dyn Fn(Timestamp) -> String; 3] = [&stop, &hibernate, &stopping];
    for body in bodies {
        let stage = Stage::new(1, 2);
        let body = body(stage.world.clock.now());
        sleep(s(700)).await;
        // Stopped at 120 s or before, started again at 600 s, while no replica ran.
        stage.world.kube.reboot(&node(0));
        stage.set_ready(0, false);
        stage.set_ready(0, true);
        sleep(s(100)).await;
        stage.block(0);
        stage.world.aws.sqs.send(body.clone());
        let replica = stage.start(&["--on", "state-change=drain"]).await;
        stage.until_handled(s(60)).await;
        sleep(s(3600)).await;
        let (pods, evictions) = (stage.world.kube.pods_on(&node(0)).len(), stage.world.kube.evictions());
        assert!(pods == 2 && evictions.is_empty(), "{body}: {pods} pods left, {evictions:?}");
        assert!(!stage.cordoned(0), "{body}: {}", stage.story());
        stage.rest(&[&replica]).await;
    }
}

/// The restart was a scheduled one, and the spot instance is stopped all the same.
#[tokio::test(start_paused = true)]
async fn a_spot_warning_from_before_a_restart_that_was_another_event_is_acted_on() {
    let stage = Stage::new(1, 2);
    stage.block(0);
    let replica = stage.start(&[]).await;
    let (code, now) = ("AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED", stage.world.clock.now());
    stage.world.aws.sqs.send(messages::scheduled_change("h", code, &[&instance(0)], now, now + s(10)));
    stage.until_handled(s(30)).await;
    stage.world.kube.reboot(&node(0));
    stage.until("released", s(5), || !stage.cordoned(0)).await;
    stage.unblock(0);
    stage.world.aws.sqs.send(messages::spot("late", &instance(0), now).replace("\"terminate\"", "\"stop\""));
    stage.until_handled(s(60)).await;
    replica.all_ended("spot", &[("drained", 1)]);
    assert!(stage.cordoned(0), "{}", stage.story());
    stage.rest(&[&replica]).await;
}

/// AWS repeats its Health events, also after the change.
#[tokio::test(start_paused = true)]
async fn a_scheduled_change_that_is_sent_again_after_the_reboot_does_not_cordon_the_node_for_good() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&[]).await;
    let start = stage.world.clock.now() + s(60);
    let send = || {
        let (code, now) = ("AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED", stage.world.clock.now());
        stage.world.aws.sqs.send(messages::scheduled_change("h", code, &[&instance(0)], now, start))
    };
    send();
    stage.until_handled(s(30)).await;
    sleep(s(60)).await;
    stage.reboot(0).await;
    stage.until("released", s(5), || !stage.cordoned(0)).await;
    sleep(s(1800)).await;
    send();
    stage.until_handled(s(30)).await;
    replica.all_ended("scheduled-change", &[("drained", 1), ("stale", 1)]);
    assert!(!stage.cordoned(0), "{}", stage.story());
    stage.rest(&[&replica]).await;
}

/// A copy of the announcement comes to another replica right after the restart, which may be earlier than the change.
#[tokio::test(start_paused = true)]
async fn a_copy_that_comes_right_after_the_reboot_does_not_cordon_the_node_for_good() {
    for (begins, restarts) in [(60, 60), (3600, 300)] {
        let stage = Stage::new(1, 1);
        let there = stage.with_own_queue();
        let flags = ["--max-draining", "100"];
        let (here, other) = (stage.start(&flags).await, there.start(&flags).await);
        let (code, now) = ("AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED", stage.world.clock.now());
        let body = |at| messages::scheduled_change("h", code, &[&instance(0)], at, now + s(begins));
        stage.world.aws.sqs.send(body(now));
        stage.until_handled(s(30)).await;
        sleep(s(restarts)).await;
        stage.reboot_fast(0);
        // The early one was a stop and start, for EC2 lists no change.
        stage.until("released", s(5), || !stage.cordoned(0)).await;
        there.world.aws.sqs.send(body(now));
        there.until_handled(s(30)).await;
        other.all_ended("scheduled-change", &[("stale", 1)]);
        assert!(!stage.cordoned(0), "{}", stage.story());
        if begins > restarts {
            // AWS announces it again later: the restart did not settle it.
            sleep(s(1000)).await;
            there.world.aws.sqs.send(body(stage.world.clock.now()));
            stage.until("cordoned", s(30), || stage.cordoned(0)).await;
            there.until_handled(s(30)).await;
        }
        stage.rest(&[&here, &other]).await;
    }
}

/// Nobody has removed the mark yet: a replica that begins finds both, the mark and a copy of the warning.
#[tokio::test(start_paused = true)]
async fn a_copy_of_a_hibernation_that_is_over_does_not_cordon_the_node_for_good() {
    for age in [0, 130] {
        let stage = Stage::new(1, 1);
        let first = stage.start(&[]).await;
        let at = stage.world.clock.now() - s(age);
        let body = messages::spot("h", &instance(0), at).replace("\"terminate\"", "\"hibernate\"");
        stage.world.aws.ec2.set_spot_request(&instance(0), "marked-for-stop", "hibernate", at);
        stage.world.aws.sqs.send(body.clone());
        stage.until_handled(s(30)).await;
        first.kill().await;
        stage.reboot(0).await;
        stage.world.aws.sqs.send(body);
        let second = stage.start(&[]).await;
        stage.until("released", s(10), || !stage.cordoned(0)).await;
        stage.until_handled(s(30)).await;
        sleep(s(60)).await;
        assert!(!stage.cordoned(0), "{}", stage.story());
        stage.rest(&[&second]).await;
    }
}

/// The mark is gone already, and only the note of the restart tells that the copy is late.
#[tokio::test(start_paused = true)]
async fn a_copy_of_a_hibernation_that_comes_right_after_it_does_not_cordon_the_node_for_good() {
    let stage = Stage::new(1, 1);
    let there = stage.with_own_queue();
    let (here, other) = (stage.start(&[]).await, there.start(&[]).await);
    let at = stage.world.clock.now();
    let body = messages::spot("h", &instance(0), at).replace("\"terminate\"", "\"hibernate\"");
    stage.world.aws.ec2.set_spot_request(&instance(0), "marked-for-stop", "hibernate", at);
    stage.world.aws.sqs.send(body.clone());
    stage.until_handled(s(30)).await;
    // Sooner than a message counts as late.
    stage.reboot_fast(0);
    stage.until("released", s(5), || !stage.cordoned(0)).await;
    there.world.aws.sqs.send(body);
    there.until_handled(s(30)).await;
    other.ended_once("spot", "stale");
    assert!(!stage.cordoned(0), "{}", stage.story());
    stage.rest(&[&here, &other]).await;
}

/// An instance refresh that replaces root volumes: the instance comes back by a reboot, and its launch action follows.
#[tokio::test(start_paused = true)]
async fn the_replacement_of_a_root_volume_drains_the_node_and_gives_it_back() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&["--on", "asg-launch=ready"]).await;
    let before = stage.replace_root_volume(0, true);
    stage.until_handled(s(30)).await;
    stage.completed_once(&before);
    replica.ended_once("asg-terminate", "drained");
    assert!(stage.cordoned(0) && stage.world.kube.pods().is_empty());
    // The instance reboots. Nobody has noticed the kubelet's silence when the launch action comes.
    let after = stage.replace_root_volume(0, false);
    sleep(s(30)).await;
    assert_eq!(stage.results(&after), Vec::<String>::new(), "still the kernel from before");
    assert!(stage.cordoned(0));
    // The new kernel may report before anybody has missed the old one.
    stage.world.kube.reboot(&node(0));
    stage.until("completed", s(2), || !stage.results(&after).is_empty()).await;
    stage.completed_once(&after);
    stage.until("released", s(3), || !stage.cordoned(0)).await;
    assert_eq!(stage.notices(0).len(), 0);
    stage.until_handled(s(3)).await;
    stage.rest(&[&replica]).await;
}

/// The kernel panics while the hook waits: the instance goes to its pool afterwards all the same.
#[tokio::test(start_paused = true)]
async fn a_restart_before_the_hook_is_completed_is_no_return_from_the_warm_pool() {
    for is_killed in [false, true] {
        let stage = Stage::new(1, 1);
        stage.block(0);
        let mut replica = stage.start(&[]).await;
        let token = stage.terminate_between(0, s(3600), Wrapping::Event, TO_POOL);
        sleep(s(60)).await;
        if is_killed {
            replica.kill().await;
            replica = stage.start(&[]).await;
        }
        // Nobody has missed the kubelet.
        stage.world.kube.reboot(&node(0));
        sleep(s(100)).await;
        stage.reboot(0).await;
        sleep(s(100)).await;
        assert!(stage.cordoned(0) && stage.results(&token).is_empty(), "{is_killed}\n{}", stage.story());
        stage.unblock(0);
        stage.until_handled(s(60)).await;
        stage.completed_once(&token);
        sleep(s(20)).await;
        assert!(stage.cordoned(0) && stage.world.kube.pods().is_empty(), "{is_killed}\n{}", stage.story());
        stage.reboot(0).await;
        stage.until("released", s(3), || !stage.cordoned(0)).await;
        stage.no_trace(0);
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_spot_instance_that_restarts_before_it_is_stopped_is_not_released() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.start(&[]).await;
    let body = messages::spot("s", &instance(0), stage.world.clock.now()).replace("\"terminate\"", "\"stop\"");
    stage.world.aws.sqs.send(body);
    sleep(s(10)).await;
    stage.reboot(0).await;
    sleep(s(20)).await;
    assert!(stage.cordoned(0), "{}", stage.story());
    stage.until_handled(s(60)).await;
    sleep(s(600)).await;
    stage.reboot(0).await;
    stage.until("released", s(3), || !stage.cordoned(0)).await;
    stage.rest(&[&replica]).await;
}

/// Nobody ran while the instance went and came back, and its message waited.
#[tokio::test(start_paused = true)]
async fn a_late_message_of_a_hook_leaves_the_node_that_has_come_back() {
    for root_volume in [true, false] {
        let stage = Stage::new(1, 2);
        let token = if root_volume {
            stage.replace_root_volume(0, true)
        } else {
            stage.terminate_between(0, s(300), Wrapping::Event, TO_POOL)
        };
        sleep(s(700)).await;
        stage.world.aws.autoscaling.complete(&token, HookResult::Continue);
        stage.reboot(0).await;
        sleep(s(100)).await;
        stage.block(0);
        let replica = stage.start(&[]).await;
        stage.until_handled(s(60)).await;
        sleep(s(1000)).await;
        assert!(stage.world.kube.evictions().is_empty() && !stage.cordoned(0), "{root_volume}\n{}", stage.story());
        replica.ended_once("asg-terminate", "stale");
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_restarts_while_its_cordon_is_tried_stays_in_service() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&[]).await;
    sleep(s(1)).await;
    stage.world.faults.add(Rule::on("patch nodes", Fault::Hang));
    stage.schedule_reboot(0);
    sleep(s(35)).await;
    stage.reboot_fast(0);
    stage.world.faults.clear();
    stage.until_handled(s(120)).await;
    assert!(!stage.cordoned(0) && stage.notices(0).is_empty(), "{}", stage.story());
    stage.rest(&[&replica]).await;
}

/// Somebody had cordoned the node before, so that it stays cordoned.
#[tokio::test(start_paused = true)]
async fn a_node_that_restarts_while_its_drain_waits_for_others_is_not_drained() {
    const ZONE: &str = "topology.kubernetes.io/zone";
    let stage = Stage::new(2, 1);
    (0..2).for_each(|n| stage.label(n, ZONE, "a"));
    stage.block(0);
    stage.set_cordon(1, true);
    let flags =
        ["--wave", "topology.kubernetes.io/zone=1", "--on", "rebalance=drain", "--drain-timeout", "rebalance=1h"];
    let replica = stage.start(&[&flags[..], &["--max-draining=none"]].concat()).await;
    stage.rebalance(0);
    stage.until("tried", s(10), || !stage.tries_of("web-0-0").is_empty()).await;
    stage.schedule_reboot(1);
    stage.until("marked", s(10), || !stage.notices(1).is_empty()).await;
    sleep(s(30)).await;
    stage.reboot_fast(1);
    stage.until("released", s(10), || stage.notices(1).is_empty()).await;
    stage.unblock(0);
    stage.until_handled(s(120)).await;
    assert_eq!((stage.first_eviction(1), stage.notices(1).len()), (None, 0), "{}", stage.story());
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_drain_whose_cordon_is_forgone_ends_with_the_restart() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.start(&[]).await;
    sleep(s(1)).await;
    stage.world.faults.add(Rule::on("patch nodes", Fault::Status(500)));
    let begin = stage.world.clock.now() + s(70);
    stage.health(0, ("h", "AWS_EC2_INSTANCE_STOP_SCHEDULED"), begin, "upcoming");
    stage.until("forgone", s(60), || !stage.tries_of("web-0-0").is_empty()).await;
    stage.reboot_fast(0);
    stage.world.faults.clear();
    stage.until_handled(s(30)).await;
    let tries = stage.tries_of("web-0-0").len();
    sleep(s(120)).await;
    assert!(!stage.cordoned(0) && stage.has_pod("web-0-0"), "{}", stage.story());
    assert_eq!(stage.tries_of("web-0-0").len(), tries);
    stage.rest(&[&replica]).await;
}

/// The mark of the hook at which another replica's drain waits keeps the cordon until that replica is long gone.
#[tokio::test(start_paused = true)]
async fn a_restart_ends_no_drain_for_a_hook_that_goes_on_for_another() {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("long").grace(s(300)).stops_in(s(290)));
    stage.block(0);
    let since = stage.world.clock.now();
    let boot = stage.world.kube.node(&node(0)).and_then(|node| Some(node.status?.node_info?.boot_id)).unwrap();
    let mark = json!({"v": 1, "kind": "asg-terminate", "since": since, "deadline": since + s(1800), "message": "m", "boot": boot});
    stage.annotate(0, "ebbtide/notice.d5b09660fdc9cfa3", &mark.to_string());
    let replica = stage.start(&[]).await;
    let token = stage.terminate(0, s(120), Wrapping::Event);
    sleep(s(100)).await;
    stage.world.kube.reboot(&node(0));
    stage.until_handled(s(2100)).await;
    assert!(stage.cordoned(0), "{}", stage.story());
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}
