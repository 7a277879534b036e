//! `--node-hook`: the lifecycle hook of what a Node says is found by its instance, kept alive and completed, without a queue.

use super::nodes::{TERMINATION, outcomes};
use crate::harness::{Replica, Stage, instance, node, s};
use ebbtide_sim::aws::{ActionState, GroupSpec, HookResult, HookSpec};
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::Pod;
use std::time::Duration;
use tokio::time::sleep;

pub const SEARCH: &str = "DescribeAutoScalingInstances";
pub const BEAT: &str = "RecordLifecycleActionHeartbeat";

impl Stage {
    pub async fn with_node_hook(&self, pod: &str, more: &[&str]) -> Replica {
        self.without_queue(pod, &[&["--node-hook", "drain"], more].concat()).await
    }

    /// Has the n-th node say that its group terminates the instance.
    pub fn says_termination(&self, n: usize) {
        self.annotate(n, TERMINATION, "{\"what\":\"terminate\"}");
    }

    /// Has the n-th node's instance wait at the hook, without a message. Returns the action's token.
    pub fn waits_at_hook(&self, n: usize, timeout: Duration) -> String {
        self.world.aws.autoscaling.add_hook("group", "drain", HookSpec::terminating(timeout));
        self.world.aws.autoscaling.begin("group", "drain", &instance(n))
    }

    fn calls_but(&self, expected: &[&str]) -> Vec<String> {
        let all = self.world.calls.all().into_iter().map(|call| call.operation.clone());
        all.filter(|call| !call.contains(' ') && !expected.contains(&&**call)).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn a_hook_is_found_by_the_instance_kept_alive_and_completed() {
    let stage = Stage::slow(s(100));
    let replica = stage.with_node_hook("a", &["--drain-timeout", "asg-terminate=10m"]).await;
    let token = stage.waits_at_hook(0, s(60));
    // Nobody says when the action began.
    sleep(s(40)).await;
    stage.says_termination(0);
    stage.until("drained", s(150), || !stage.has_pod("slow")).await;
    stage.until("completed", s(10), || !stage.action(&token).completions.is_empty()).await;
    stage.completed_once(&token);
    let first = stage.action(&token).beats[0];
    assert!(first < s(45), "the first heartbeat is for what has passed: {first:?}");
    stage.until("noted", s(10), || stage.handled(0) == 1).await;
    assert_eq!(outcomes(&replica, "asg-terminate", "drained"), "1");
    let expected = [SEARCH, BEAT, "DescribeLifecycleHooks", "CompleteLifecycleAction"];
    assert_eq!((stage.calls(SEARCH), stage.calls_but(&expected)), (1, Vec::new()));
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_storm_is_searched_by_a_few_calls() {
    let stage = Stage::new(120, 1);
    let replica = stage.with_node_hook("a", &[]).await;
    let tokens: Vec<_> = (0..120).map(|n| stage.waits_at_hook(n, s(300))).collect();
    (0..120).for_each(|n| stage.says_termination(n));
    stage.until("noted", s(120), || (0..120).all(|n| stage.handled(n) == 1)).await;
    for token in &tokens {
        stage.completed_once(token);
    }
    assert!(stage.calls(SEARCH) <= 6, "{}", stage.calls(SEARCH));
    assert_eq!(stage.calls("DescribeLifecycleHooks"), 1);
    stage.rest(&[&replica]).await;
}

/// A group deregisters the instance from its load balancers before it waits.
#[tokio::test(start_paused = true)]
async fn a_hook_that_begins_later_is_found_in_the_middle_of_the_drain_and_after_it() {
    for takes in [s(60), s(2)] {
        let stage = Stage::slow(takes);
        let replica = stage.with_node_hook("a", &[]).await;
        stage.world.aws.autoscaling.add_hook("group", "drain", HookSpec::terminating(s(300)));
        stage.world.aws.autoscaling.leave("group", &instance(0));
        stage.says_termination(0);
        stage.until("evicted", s(5), || stage.ends_of("slow").len() == 1).await;
        sleep(s(30)).await;
        assert_eq!((stage.handled(0), stage.calls("CompleteLifecycleAction")), (0, 0));
        let token = stage.waits_at_hook(0, s(300));
        stage.until("noted", s(90), || stage.handled(0) == 1).await;
        stage.completed_once(&token);
        assert_eq!((stage.ends_of("slow").len(), stage.has_pod("slow")), (1, false), "{}", stage.story());
        stage.rest(&[&replica]).await;
    }
}

/// The drain waits for its next try, and the hook for nobody.
#[tokio::test(start_paused = true)]
async fn a_hook_that_begins_after_a_drain_that_failed_is_found() {
    let stage = Stage::new(1, 1);
    let replica = stage.with_node_hook("a", &["--drain-timeout", "asg-terminate=1m"]).await;
    stage.world.faults.add(Rule::on("create pods/eviction", Fault::Status(500)));
    stage.world.aws.autoscaling.add_hook("group", "drain", HookSpec::terminating(s(120)));
    stage.world.aws.autoscaling.leave("group", &instance(0));
    stage.says_termination(0);
    let failed = || replica.metric("ebbtide_notices_total{kind=\"asg-terminate\",outcome=\"failed\"}") > 0.5;
    stage.until("failed", s(120), failed).await;
    sleep(s(60)).await;
    let token = stage.waits_at_hook(0, s(120));
    stage.until("completed", s(130), || !stage.action(&token).completions.is_empty()).await;
    stage.completed_once(&token);
    stage.world.faults.clear();
    // Its outcome is remembered for a quarter of an hour.
    stage.until("noted", s(1500), || stage.handled(0) == 1).await;
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_drain_does_not_wait_for_aws_and_its_hook_is_found_later() {
    for fault in [Fault::Hang, Fault::Status(403), Fault::Disconnect] {
        let stage = Stage::slow(s(100));
        let replica = stage.with_node_hook("a", &[]).await;
        stage.world.faults.add(Rule::on(SEARCH, fault).times(3));
        let token = stage.waits_at_hook(0, s(120));
        stage.says_termination(0);
        stage.until("evicted", s(5), || stage.ends_of("slow").len() == 1).await;
        stage.until("noted", s(120), || stage.handled(0) == 1).await;
        stage.completed_once(&token);
        assert_eq!(stage.ends_of("slow").len(), 1, "{}", stage.story());
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_instance_without_such_a_hook_is_drained_all_the_same() {
    let stage = Stage::new(2, 1);
    let replica = stage.with_node_hook("a", &[]).await;
    // In no group, as far as Auto Scaling shows by now, and in one with another hook.
    stage.world.aws.autoscaling.add_hook("group", "other", HookSpec::terminating(s(300)));
    let token = stage.world.aws.autoscaling.begin("group", "other", &instance(1));
    (0..2).for_each(|n| stage.says_termination(n));
    stage.until("noted", s(30), || stage.handled(1) == 1).await;
    stage.until("noted", s(90), || stage.handled(0) == 1).await;
    assert_eq!((stage.calls(BEAT), stage.action(&token).completions.len()), (0, 0));
    assert!((0..2).all(|n| stage.cordoned(n) && stage.world.kube.pods_on(&node(n)).is_empty()));
    stage.rest(&[&replica]).await;
}

/// A managed node group of EKS has a hook of EKS, which drains its nodes itself: docs/agent.md, "Without the hook".
#[tokio::test(start_paused = true)]
async fn a_group_whose_hook_others_complete_is_no_mistake() {
    for (flags, own, told) in [(&[][..], false, 0.0), (&[][..], true, 1.0), (&["--ignore-hook="][..], false, 1.0)] {
        let stage = Stage::new(1, 1);
        let replica = stage.with_node_hook("a", flags).await;
        stage.world.aws.autoscaling.add_hook("group", "Terminate-LC-Hook", HookSpec::terminating(s(300)));
        if own {
            // Perhaps the one that is meant.
            stage.world.aws.autoscaling.add_hook("group", "drian", HookSpec::terminating(s(300)));
        }
        stage.world.aws.autoscaling.begin("group", "Terminate-LC-Hook", &instance(0));
        stage.says_termination(0);
        stage.until("noted", s(30), || stage.handled(0) == 1).await;
        let counted = replica.metric("ebbtide_completions_total{result=\"not-found\"}");
        assert!((counted - told).abs() < 0.1 && stage.calls(BEAT) == 0, "{counted}");
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_taken_back_leaves_no_heartbeat_and_no_mark() {
    let stage = Stage::slow(s(100));
    let replica = stage.with_node_hook("a", &[]).await;
    let token = stage.waits_at_hook(0, s(30));
    stage.says_termination(0);
    stage.until("beaten", s(30), || stage.calls(BEAT) > 0).await;
    stage.takes_back(0, TERMINATION);
    stage.until("released", s(30), || !stage.cordoned(0)).await;
    stage.no_trace(0);
    stage.until("expired", s(120), || matches!(stage.action(&token).state, ActionState::Expired { .. })).await;
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn another_replica_goes_on_with_the_hook_after_a_silent_death() {
    let stage = Stage::slow(s(120));
    let first = stage.with_node_hook("a", &[]).await;
    stage.until("its turn", s(5), || stage.nodes_holder().as_deref() == Some("a")).await;
    let token = stage.waits_at_hook(0, s(30));
    stage.says_termination(0);
    stage.until("evicted", s(10), || stage.ends_of("slow").len() == 1).await;
    let second = stage.with_node_hook("b", &["--drain-timeout", "asg-terminate=10m"]).await;
    first.kill().await.gone(|_| true).await;
    stage.until("noted", s(150), || stage.handled(0) == 1).await;
    stage.completed_once(&token);
    assert_eq!(stage.ends_of("slow").len(), 1);
    stage.rest(&[&second]).await;
}

const ZONE: &str = "topology.kubernetes.io/zone";

/// A world of two nodes in a zone whose wave has one place, which the first node has for as long as its pod is blocked.
async fn taken_wave() -> (Stage, Replica) {
    let stage = Stage::new(2, 1);
    (0..2).for_each(|n| stage.label(n, ZONE, "a"));
    stage.block(0);
    let flags =
        ["--wave", "topology.kubernetes.io/zone=1", "--on", "rebalance=drain", "--drain-timeout", "rebalance=2d"];
    let replica = stage.with_node_hook("a", &flags).await;
    let rebalance = format!("{{\"what\":\"rebalance\",\"at\":\"{}\"}}", stage.world.clock.now());
    stage.annotate(0, "ebbtide/says.rebalance", &rebalance);
    stage.until("tried", s(10), || !stage.tries_of("web-0-0").is_empty()).await;
    (stage, replica)
}

/// In a wave whose place is taken: a hook that is kept alive has time, and one of which nobody knows has none.
#[tokio::test(start_paused = true)]
async fn a_termination_waits_in_a_wave_only_if_its_hook_is_kept_alive() {
    for hook in [true, false] {
        let (stage, replica) = taken_wave().await;
        let token = hook.then(|| stage.waits_at_hook(1, s(60)));
        stage.says_termination(1);
        stage.until("cordoned", s(10), || stage.cordoned(1)).await;
        sleep(s(1200)).await;
        assert_eq!(stage.first_eviction(1).is_none(), hook, "{}", stage.story());
        stage.unblock(0);
        stage.until("noted", s(60), || (0..2).all(|n| stage.handled(n) == 1)).await;
        if let Some(token) = token {
            stage.completed_once(&token);
        }
        stage.rest(&[&replica]).await;
    }
}

/// Nobody knows when its hook ends.
#[tokio::test(start_paused = true)]
async fn a_termination_waits_in_no_wave_if_aws_does_not_answer() {
    let (stage, replica) = taken_wave().await;
    stage.world.faults.add(Rule::on(SEARCH, Fault::Status(403)));
    let token = stage.waits_at_hook(1, s(60));
    stage.says_termination(1);
    stage.until("evicted", s(60), || stage.first_eviction(1).is_some()).await;
    stage.unblock(0);
    stage.world.faults.clear();
    stage.until("noted", s(60), || (0..2).all(|n| stage.handled(n) == 1)).await;
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

/// Each answer takes longer than a drain waits for its hook.
#[tokio::test(start_paused = true)]
async fn a_hook_that_is_found_late_is_not_sought_again() {
    let stage = Stage::slow(s(100));
    let replica = stage.with_node_hook("a", &[]).await;
    stage.world.faults.add(Rule::on(SEARCH, Fault::Slow(s(3))));
    stage.world.faults.add(Rule::on("DescribeLifecycleHooks", Fault::Slow(s(3))));
    let token = stage.waits_at_hook(0, s(60));
    stage.says_termination(0);
    stage.until("noted", s(150), || stage.handled(0) == 1).await;
    stage.completed_once(&token);
    assert_eq!(outcomes(&replica, "asg-terminate", "handed-over"), "1", "the drain begins anew once");
    assert_eq!(stage.ends_of("slow").len(), 1);
    stage.rest(&[&replica]).await;
}

/// It waits at another hook of its group. Of ours it is told that its action is over, which says nothing of the instance's end.
#[tokio::test(start_paused = true)]
async fn an_instance_that_waits_at_another_hook_is_drained_within_its_budgets() {
    let other = HookSpec::terminating(s(7200));
    for (ours, begins, sees_it) in [
        (Some(HookSpec::launching(s(3600))), false, true),
        (Some(HookSpec::terminating(s(3600))), false, true),
        (Some(HookSpec::terminating(s(3600))), true, true),
        // Whether there is such a hook at all, only a heartbeat says.
        (None, false, false),
    ] {
        let stage = Stage::new(1, 1);
        let replica = stage.with_node_hook("a", &[]).await;
        let scaling = &stage.world.aws.autoscaling;
        if !sees_it {
            stage.world.faults.add(Rule::on("DescribeLifecycleHooks", Fault::Status(403)));
        }
        if let Some(ours) = ours {
            scaling.add_hook("group", "drain", ours);
        }
        if begins {
            let token = scaling.begin("group", "drain", &instance(0));
            scaling.complete(&token, HookResult::Continue);
        }
        scaling.add_hook("group", "other", other);
        let token = scaling.begin("group", "other", &instance(0));
        stage.block(0);
        stage.says_termination(0);
        stage.until("tried", s(10), || !stage.tries_of("web-0-0").is_empty()).await;
        sleep(s(60)).await;
        assert!(stage.has_pod("web-0-0"), "{ours:?} {begins}\n{}", stage.story());
        stage.unblock(0);
        stage.until("noted", s(60), || stage.handled(0) == 1).await;
        assert_eq!((stage.results(&token), stage.calls("CompleteLifecycleAction")), (Vec::new(), 0));
        replica.ended_once("asg-terminate", "drained");
        stage.rest(&[&replica]).await;
    }
}

/// Nobody knows how much of a timeout is left.
/// Its pods' owners wait for the end of the instance, which the named hook would set.
#[tokio::test(start_paused = true)]
async fn a_hook_at_which_the_instance_does_not_wait_disturbs_no_pod_that_asks_for_peace() {
    let stage = Stage::new(1, 0);
    let pod = Pod::on(&node(0)).named("peace").grace(s(60)).annotations([("ebbtide/ignore", "true")]);
    stage.world.kube.add_pod(pod);
    stage.world.aws.autoscaling.add_hook("group", "drain", HookSpec::terminating(s(60)));
    let replica = stage.with_node_hook("a", &["--drain-timeout", "77s"]).await;
    stage.world.aws.autoscaling.add_hook("group", "other", HookSpec::terminating(s(600)));
    stage.world.aws.autoscaling.begin("group", "other", &instance(0));
    stage.says_termination(0);
    stage.until("noted", s(120), || stage.handled(0) == 1).await;
    assert!(stage.has_pod("peace"), "{}", stage.story());
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_first_heartbeat_that_fails_is_tried_again_at_once() {
    let stage = Stage::slow(s(100));
    let replica = stage.with_node_hook("a", &[]).await;
    let token = stage.waits_at_hook(0, s(600));
    sleep(s(540)).await;
    stage.world.faults.add(Rule::on(BEAT, Fault::Status(503)).times(1));
    stage.says_termination(0);
    stage.until("noted", s(150), || stage.handled(0) == 1).await;
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_hook_whose_times_are_not_told_is_kept_alive_and_completed() {
    let stage = Stage::slow(s(100));
    let replica = stage.with_node_hook("a", &["--drain-timeout", "asg-terminate=10m"]).await;
    stage.world.faults.add(Rule::on("DescribeLifecycleHooks", Fault::Status(403)));
    let token = stage.waits_at_hook(0, s(60));
    stage.says_termination(0);
    stage.until("noted", s(150), || stage.handled(0) == 1).await;
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

/// The turn goes after the drain, and comes again when the instance waits at its hook.
#[tokio::test(start_paused = true)]
async fn a_hook_that_begins_while_another_replica_had_the_turn_is_completed() {
    let stage = Stage::new(1, 1);
    let replica = stage.with_node_hook("a", &[]).await;
    stage.world.aws.autoscaling.add_hook("group", "drain", HookSpec::terminating(s(300)));
    stage.world.aws.autoscaling.leave("group", &instance(0));
    stage.until("its turn", s(5), || stage.nodes_holder().as_deref() == Some("a")).await;
    stage.says_termination(0);
    stage.until("drained", s(10), || stage.world.kube.pods_on(&node(0)).is_empty()).await;
    sleep(s(5)).await;
    stage.holds_nodes("other");
    sleep(s(3)).await;
    let token = stage.waits_at_hook(0, s(300));
    stage.until("its turn", s(60), || stage.nodes_holder().as_deref() == Some("a")).await;
    stage.until("noted", s(60), || stage.handled(0) == 1).await;
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

/// After its drain, and before the next search.
#[tokio::test(start_paused = true)]
async fn what_is_said_again_soon_after_it_was_taken_back_is_drained_again() {
    let stage = Stage::new(1, 1);
    let replica = stage.with_node_hook("a", &[]).await;
    stage.world.aws.autoscaling.add_hook("group", "drain", HookSpec::terminating(s(300)));
    stage.world.aws.autoscaling.leave("group", &instance(0));
    stage.says_termination(0);
    stage.until("searched again", s(30), || stage.calls(SEARCH) == 2).await;
    stage.takes_back(0, TERMINATION);
    stage.until("uncordoned", s(3), || !stage.cordoned(0)).await;
    stage.says_termination(0);
    stage.until("cordoned", s(3), || stage.cordoned(0)).await;
    let token = stage.waits_at_hook(0, s(300));
    stage.until("noted", s(60), || stage.handled(0) == 1).await;
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

/// A user wants the node to stay, before its instance waits at the hook.
#[tokio::test(start_paused = true)]
async fn a_user_who_uncordons_is_not_overruled_by_a_hook_that_begins_later() {
    let stage = Stage::new(1, 1);
    let replica = stage.with_node_hook("a", &[]).await;
    stage.world.aws.autoscaling.add_hook("group", "drain", HookSpec::terminating(s(300)));
    stage.world.aws.autoscaling.leave("group", &instance(0));
    stage.block(0);
    stage.says_termination(0);
    for _ in 0..2 {
        stage.until("cordoned", s(30), || stage.cordoned(0)).await;
        sleep(s(5)).await;
        stage.set_cordon(0, false);
    }
    stage.until("ended", s(30), || outcomes(&replica, "asg-terminate", "uncordoned") == "1").await;
    let token = stage.waits_at_hook(0, s(300));
    stage.until("noted", s(10), || stage.handled(0) == 1).await;
    sleep(s(30)).await;
    assert!(!stage.cordoned(0) && stage.has_pod("web-0-0"), "{}", stage.story());
    stage.until("expired", s(300), || matches!(stage.action(&token).state, ActionState::Expired { .. })).await;
    stage.rest(&[&replica]).await;
}

/// Auto Scaling's answer follows its decision after a while: until then it shows the state before, or none.
#[tokio::test(start_paused = true)]
async fn a_hook_is_found_though_auto_scaling_shows_an_older_state_at_first() {
    for state in [Some("InService"), Some("Standby"), Some("Pending:Proceed"), None] {
        let stage = Stage::new(1, 0);
        let replica = stage.with_node_hook("a", &[]).await;
        stage.world.aws.autoscaling.add_hook("group", "drain", HookSpec::terminating(s(300)));
        if let Some(state) = state {
            let states = [(instance(0), state.to_owned())].into();
            stage.world.aws.autoscaling.put_group("group", GroupSpec { states, ..GroupSpec::default() });
            stage.world.aws.autoscaling.join("group", &instance(0));
        }
        stage.says_termination(0);
        sleep(s(5)).await;
        assert_eq!(stage.handled(0), 0, "{state:?}");
        let token = stage.waits_at_hook(0, s(300));
        stage.until("noted", s(60), || stage.handled(0) == 1).await;
        stage.completed_once(&token);
        stage.rest(&[&replica]).await;
    }
}

/// The group keeps it, or its hook is over.
#[tokio::test(start_paused = true)]
async fn a_hook_that_does_not_begin_is_not_waited_for_longer_than_a_minute() {
    for (state, takes) in [("InService", 60), ("Terminating:Proceed", 0)] {
        let stage = Stage::new(1, 1);
        let replica = stage.with_node_hook("a", &[]).await;
        let states = [(instance(0), state.to_owned())].into();
        stage.world.aws.autoscaling.put_group("group", GroupSpec { states, ..GroupSpec::default() });
        stage.world.aws.autoscaling.add_hook("group", "drain", HookSpec::terminating(s(300)));
        stage.world.aws.autoscaling.join("group", &instance(0));
        stage.says_termination(0);
        sleep(s(takes)).await;
        assert_eq!(stage.handled(0), 0, "{state}");
        stage.until("noted", s(20), || stage.handled(0) == 1).await;
        replica.ended_once("asg-terminate", "drained");
        let searches = stage.calls(SEARCH);
        sleep(s(60)).await;
        assert_eq!((stage.calls(SEARCH), stage.calls(BEAT)), (searches, 0), "{state}");
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_first_heartbeat_is_tried_until_it_is_accepted() {
    // An outage of most of the time that is left, and an answer that says nothing of the hook.
    for (fault, lasts) in [(Fault::Status(503), 50), (Fault::Status(408), 5)] {
        let stage = Stage::slow(s(100));
        let replica = stage.with_node_hook("a", &[]).await;
        let token = stage.waits_at_hook(0, s(600));
        sleep(s(540)).await;
        stage.world.faults.add(Rule::on(BEAT, fault));
        stage.says_termination(0);
        sleep(s(lasts)).await;
        stage.world.faults.clear();
        stage.until("noted", s(150), || stage.handled(0) == 1).await;
        stage.completed_once(&token);
        stage.rest(&[&replica]).await;
    }
}

/// The instance is going now, and its pods with it.
#[tokio::test(start_paused = true)]
async fn a_hook_that_is_over_before_its_first_heartbeat_ends_the_drain() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.with_node_hook("a", &[]).await;
    let token = stage.waits_at_hook(0, s(60));
    sleep(s(55)).await;
    stage.world.faults.add(Rule::on(BEAT, Fault::Status(503)));
    stage.says_termination(0);
    stage.until("expired", s(20), || matches!(stage.action(&token).state, ActionState::Expired { .. })).await;
    stage.world.faults.clear();
    stage.until("deleted", s(15), || !stage.has_pod("web-0-0")).await;
    stage.until("noted", s(60), || stage.handled(0) == 1).await;
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn slow_answers_tell_that_an_instance_waits_at_another_hook() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.with_node_hook("a", &[]).await;
    let scaling = &stage.world.aws.autoscaling;
    scaling.add_hook("group", "drain", HookSpec::terminating(s(60)));
    scaling.add_hook("group", "other", HookSpec::terminating(s(7200)));
    scaling.begin("group", "other", &instance(0));
    stage.world.faults.add(Rule::on(BEAT, Fault::Slow(s(3))));
    stage.says_termination(0);
    sleep(s(120)).await;
    assert!(stage.has_pod("web-0-0") && stage.calls(BEAT) == 1, "{}", stage.story());
    stage.unblock(0);
    stage.until("noted", s(60), || stage.handled(0) == 1).await;
    stage.rest(&[&replica]).await;
}

/// The first heartbeat is accepted by nobody until then: what AWS says of the action is our own doing.
#[tokio::test(start_paused = true)]
async fn a_hook_that_is_being_completed_is_not_given_up() {
    let stage = Stage::new(1, 1);
    let replica = stage.with_node_hook("a", &[]).await;
    stage.world.faults.add(Rule::on(BEAT, Fault::Status(503)).times(3));
    stage.world.faults.add(Rule::on("CompleteLifecycleAction", Fault::Slow(s(8))));
    let token = stage.waits_at_hook(0, s(300));
    stage.says_termination(0);
    stage.until("noted", s(60), || stage.handled(0) == 1).await;
    stage.completed_once(&token);
    let text = replica.metrics.render(&replica.tasks);
    assert!(text.contains("ebbtide_completions_total{result=\"continue\"} 1"), "{}", stage.story());
    assert!(stage.calls(BEAT) > 3, "{}", stage.story());
    stage.rest(&[&replica]).await;
}
