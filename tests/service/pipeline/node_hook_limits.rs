//! `--node-hook` beside other settings: the limit of drains, `--delay`, marks that are due, and names that Auto Scaling does not know.

use super::node_hook::SEARCH;
use crate::drains::ended;
use crate::harness::{Stage, instance, node, s};
use ebbtide::telemetry::history::Since;
use ebbtide_sim::aws::HookSpec;
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::By;
use std::time::Duration;
use tokio::time::sleep;

const LIMITED: [&str; 6] =
    ["--max-draining", "1", "--on", "rebalance=drain", "--drain-timeout", "rebalance=2d,asg-terminate=1h"];

/// Auto Scaling has just shown that the group terminates the instance: no other word of AWS admits a drain either.
#[tokio::test(start_paused = true)]
async fn an_instance_that_waits_at_the_hook_is_drained_beyond_the_limit() {
    for more in [&[][..], &["--source", "ec2", "--ec2-poll-interval", "5m"]] {
        let stage = Stage::new(3, 1);
        stage.block(0);
        let replica = stage.with_node_hook("a", &[&LIMITED, more].concat()).await;
        stage.says_rebalance(0);
        stage.until("tried", s(10), || !stage.tries_of("web-0-0").is_empty()).await;
        let token = stage.waits_at_hook(1, s(300));
        stage.says_termination(1);
        stage.says_rebalance(2);
        stage.until("completed", s(30), || !stage.action(&token).completions.is_empty()).await;
        stage.completed_once(&token);
        assert!(!stage.has_pod("web-1-0") && stage.has_pod("web-2-0"), "{}", stage.story());
        assert!(!stage.cordoned(2), "what nobody confirms waits for room");
        // A node that was drained takes up room while it is there.
        stage.unblock(0);
        stage.until("noted", s(60), || (0..2).all(|n| stage.handled(n) == 1)).await;
        (0..2).for_each(|n| stage.world.kube.remove_node(&node(n)));
        stage.until("noted", s(60), || stage.handled(2) == 1).await;
        stage.rest(&[&replica]).await;
    }
}

/// What a Node says alone, and Auto Scaling does not show yet, is limited as before.
#[tokio::test(start_paused = true)]
async fn a_termination_waits_for_room_or_for_its_hook() {
    let stage = Stage::new(3, 1);
    stage.block(0);
    let replica = stage.with_node_hook("a", &LIMITED).await;
    stage.says_rebalance(0);
    stage.until("tried", s(10), || !stage.tries_of("web-0-0").is_empty()).await;
    stage.world.aws.autoscaling.add_hook("group", "drain", HookSpec::terminating(s(300)));
    stage.world.aws.autoscaling.leave("group", &instance(1));
    (1..3).for_each(|n| stage.says_termination(n));
    sleep(s(120)).await;
    assert!((1..3).all(|n| !stage.cordoned(n)) && stage.world.kube.evictions().is_empty(), "{}", stage.story());
    let token = stage.waits_at_hook(1, s(300));
    stage.until("noted", s(60), || stage.handled(1) == 1).await;
    stage.completed_once(&token);
    assert!(!stage.cordoned(2));
    stage.unblock(0);
    stage.until("noted", s(60), || stage.handled(0) == 1).await;
    (0..2).for_each(|n| stage.world.kube.remove_node(&node(n)));
    stage.until("noted", s(60), || stage.handled(2) == 1).await;
    stage.rest(&[&replica]).await;
}

/// Only the queue's answers tell AWS's time, for which the removal of marks waits.
#[tokio::test(start_paused = true)]
async fn marks_are_removed_when_they_are_due_where_no_queue_tells_the_time() {
    for more in [&["--node-hook", "drain"][..], &["--source", "ec2", "--ec2-poll-interval", "5m"]] {
        let stage = Stage::new(1, 1);
        let flags = ["--on", "rebalance=cordon", "--uncordon-after", "1m"];
        let replica = stage.without_queue("a", &[&flags, more].concat()).await;
        stage.says_rebalance(0);
        stage.until("cordoned", s(10), || stage.cordoned(0)).await;
        stage.until("uncordoned", s(120), || !stage.cordoned(0)).await;
        stage.rest(&[&replica]).await;
    }
}

/// The hook is found in the middle of the drain, and the work begins again with it.
#[tokio::test(start_paused = true)]
async fn a_hook_that_is_found_later_stops_no_evictions_for_another_delay() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let flags = ["--delay", "asg-terminate=1m", "--drain-timeout", "asg-terminate=30m"];
    let replica = stage.with_node_hook("a", &flags).await;
    stage.world.aws.autoscaling.add_hook("group", "drain", HookSpec::terminating(s(600)));
    stage.world.aws.autoscaling.leave("group", &instance(0));
    let said = stage.world.clock.elapsed();
    stage.says_termination(0);
    sleep(s(75)).await;
    let token = stage.waits_at_hook(0, s(600));
    sleep(s(120)).await;
    let tries: Vec<Duration> = stage.tries_of("web-0-0");
    let first = tries[0] - said;
    assert!(first >= s(59) && first < s(63), "{first:?}");
    let longest = tries.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
    assert!(longest < s(15) && *tries.last().unwrap() > said + s(180), "{longest:?}: {tries:?}");
    stage.unblock(0);
    stage.until("noted", s(60), || stage.handled(0) == 1).await;
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

/// 100 timeouts of 30 s are 50 minutes, whoever counts them.
#[tokio::test(start_paused = true)]
async fn a_takeover_plans_within_the_life_of_the_hook() {
    let flags = ["--drain-timeout", "asg-terminate=45m"];
    let stage = Stage::new(1, 1);
    stage.block(0);
    let first = stage.with_node_hook("a", &flags).await;
    stage.until("its turn", s(5), || stage.nodes_holder().as_deref() == Some("a")).await;
    let begun = stage.world.clock.elapsed();
    let token = stage.waits_at_hook(0, s(30));
    stage.says_termination(0);
    stage.until("tried", s(10), || !stage.tries_of("web-0-0").is_empty()).await;
    sleep(s(1200)).await;
    let second = stage.with_node_hook("b", &flags).await;
    first.kill().await.gone(|_| true).await;
    stage.until("noted", s(2400), || stage.handled(0) == 1).await;
    stage.completed_once(&token);
    let all = ended(&stage);
    assert!(all.iter().any(|(_, at, _, by)| *by == By::Delete && *at > 2400 && *at < 3000), "{begun:?}: {all:?}");
    stage.rest(&[&second]).await;
}

/// In no group; in one without such a hook; at a hook that is over.
#[tokio::test(start_paused = true)]
async fn a_hook_that_auto_scaling_does_not_know_is_told_once_for_each_notice() {
    let stage = Stage::new(4, 1);
    let replica = stage.with_node_hook("a", &[]).await;
    let autoscaling = &stage.world.aws.autoscaling;
    autoscaling.add_hook("group", "other", HookSpec::terminating(s(300)));
    let other = autoscaling.begin("group", "other", &instance(1));
    autoscaling.add_hook("named", "drain", HookSpec::terminating(s(300)));
    let token = autoscaling.begin("named", "drain", &instance(2));
    (0..3).for_each(|n| stage.says_termination(n));
    stage.until("noted", s(90), || (0..3).all(|n| stage.handled(n) == 1)).await;
    let missing = || replica.metric("ebbtide_completions_total{result=\"not-found\"}");
    assert!((missing() - 2.0).abs() < f64::EPSILON, "{}", missing());
    stage.completed_once(&token);
    assert_eq!(stage.action(&other).completions.len(), 0);
    assert!((0..3).all(|n| stage.world.kube.pods_on(&node(n)).is_empty()), "{}", stage.story());
    stage.rest(&[&replica]).await;
}

/// The page shows what the log tells, although the search is over before the work begins.
#[tokio::test(start_paused = true)]
async fn a_search_that_fails_or_finds_nothing_is_shown_in_the_history() {
    for (denied, expected) in [
        (true, "the lifecycle hook can't be searched"),
        (false, "no lifecycle hook drain is completed: group group has no hook"),
    ] {
        let stage = Stage::slow(s(60));
        if denied {
            stage.world.faults.add(Rule::on(SEARCH, Fault::Status(403)));
        } else {
            stage.world.aws.autoscaling.add_hook("group", "other", HookSpec::terminating(s(3600)));
            stage.world.aws.autoscaling.begin("group", "other", &instance(0));
        }
        let replica = stage.with_node_hook("a", &[]).await;
        stage.says_termination(0);
        stage.until("evicted", s(5), || stage.ends_of("slow").len() == 1).await;
        let (report, _) = replica.history.report(Since::Ever, 0);
        let problem = report.interruptions[0].problem.clone().unwrap_or_default();
        assert!(problem.contains(expected), "{problem:?}");
        stage.takes_back(0, super::nodes::TERMINATION);
        stage.until("released", s(120), || !stage.cordoned(0)).await;
        stage.rest(&[&replica]).await;
    }
}

/// The minutes between the drain and the hook, in which the group deregisters the instance, are the likelier time.
#[tokio::test(start_paused = true)]
async fn a_user_who_uncordons_after_the_drain_is_not_overruled_by_a_hook_that_begins_later() {
    let stage = Stage::new(1, 1);
    let replica = stage.with_node_hook("a", &[]).await;
    stage.world.aws.autoscaling.add_hook("group", "drain", HookSpec::terminating(s(300)));
    stage.world.aws.autoscaling.leave("group", &instance(0));
    stage.says_termination(0);
    stage.until("drained", s(30), || !stage.has_pod("web-0-0")).await;
    sleep(s(30)).await;
    for _ in 0..2 {
        stage.until("cordoned", s(30), || stage.cordoned(0)).await;
        sleep(s(5)).await;
        stage.set_cordon(0, false);
    }
    sleep(s(1)).await;
    stage.waits_at_hook(0, s(300));
    stage.until("noted", s(10), || stage.handled(0) == 1).await;
    sleep(s(60)).await;
    assert!(!stage.cordoned(0), "{}", stage.story());
    stage.rest(&[&replica]).await;
}

/// There was no room for it until the time that its hook usually gives was over.
#[tokio::test(start_paused = true)]
async fn a_hook_that_begins_after_a_drain_was_not_admitted_is_completed() {
    let flags = ["--max-draining", "1", "--on", "rebalance=drain", "--drain-timeout", "rebalance=2d,asg-terminate=1m"];
    let stage = Stage::new(2, 1);
    stage.block(0);
    let replica = stage.with_node_hook("a", &flags).await;
    stage.says_rebalance(0);
    stage.until("tried", s(10), || !stage.tries_of("web-0-0").is_empty()).await;
    stage.world.aws.autoscaling.add_hook("group", "drain", HookSpec::terminating(s(120)));
    stage.world.aws.autoscaling.leave("group", &instance(1));
    stage.says_termination(1);
    sleep(s(75)).await;
    let token = stage.waits_at_hook(1, s(120));
    stage.until("completed", s(60), || !stage.action(&token).completions.is_empty()).await;
    stage.completed_once(&token);
    stage.unblock(0);
    stage.until("noted", s(60), || (0..2).all(|n| stage.handled(n) == 1)).await;
    stage.rest(&[&replica]).await;
}

/// A renamed kubelet leaves a Node that says it still; the new one's agent speaks later.
#[tokio::test(start_paused = true)]
async fn what_an_older_node_of_the_instance_says_is_not_worked_on() {
    let stage = Stage::new(1, 0);
    let replica = stage.with_node_hook("a", &[]).await;
    stage.world.aws.autoscaling.add_hook("group", "drain", HookSpec::terminating(s(300)));
    stage.world.aws.autoscaling.leave("group", &instance(0));
    stage.set_ready(0, false);
    stage.world.kube.add_node("renamed", &instance(0));
    sleep(s(5)).await;
    stage.says_termination(0);
    let said = stage.annotations(0);
    sleep(s(60)).await;
    assert_eq!(stage.calls(SEARCH), 0, "{}", stage.story());
    stage.world.kube.update_node("renamed", |node| node.metadata.annotations.get_or_insert_default().extend(said));
    sleep(s(60)).await;
    assert!((1..9).contains(&stage.calls(SEARCH)), "{} searches", stage.calls(SEARCH));
    let token = stage.waits_at_hook(0, s(300));
    let noted = |node: k8s_openapi::api::core::v1::Node| {
        let annotations = node.metadata.annotations.unwrap_or_default();
        annotations.values().any(|text| text.contains("\"work\":\"ended\"") || text.contains("\"work\":\"handled\""))
    };
    stage.until("noted", s(60), || stage.world.kube.node("renamed").is_some_and(noted)).await;
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

/// The note on the Node failed, and its hook is over: that is no mistake in the settings.
#[tokio::test(start_paused = true)]
async fn a_hook_that_was_completed_is_not_missed_when_the_note_is_written_late() {
    let stage = Stage::new(1, 1);
    let replica = stage.with_node_hook("a", &[]).await;
    // The first is the mark.
    stage.world.faults.add(Rule::on("patch nodes", Fault::Status(500)).after(1).times(3));
    let token = stage.waits_at_hook(0, s(300));
    stage.says_termination(0);
    stage.until("noted", s(60), || stage.handled(0) == 1).await;
    stage.completed_once(&token);
    replica.ended_once("asg-terminate", "drained");
    assert!(stage.calls("patch nodes") > 2, "the note was late");
    let text = replica.metrics.render(&replica.tasks);
    assert!(text.contains("ebbtide_completions_total{result=\"not-found\"} 0"), "{text}");
    stage.rest(&[&replica]).await;
}

/// Its mark names the end of the drain without the hook, and a restart long after that end would release the Node.
#[tokio::test(start_paused = true)]
async fn a_drain_that_a_hook_found_later_prolongs_is_not_ended_by_a_restart() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    stage.world.aws.autoscaling.add_hook("group", "drain", HookSpec::terminating(s(30)));
    stage.world.aws.autoscaling.leave("group", &instance(0));
    let replica = stage.with_node_hook("a", &["--drain-timeout", "240s", "--pod-grace", "1s"]).await;
    stage.says_termination(0);
    sleep(s(90)).await;
    let token = stage.world.aws.autoscaling.begin("group", "drain", &instance(0));
    sleep(s(200)).await;
    stage.world.kube.reboot(&node(0));
    stage.until("noted", s(60), || stage.handled(0) == 1).await;
    stage.completed_once(&token);
    assert!(!stage.has_pod("web-0-0"), "{}", stage.story());
    stage.rest(&[&replica]).await;
}
