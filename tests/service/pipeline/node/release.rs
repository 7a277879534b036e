//! What was left on a Node is taken back when it is over: once, by whoever lives then, and only what is ours.

use crate::harness::{Stage, node, s};
use crate::nodes::EXCLUDE;
use ebbtide_sim::aws::ActionState;
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::Interrupt;
use ebbtide_sim::messages::Wrapping;
use tokio::time::{Instant, sleep, sleep_until};

const PATCH: &str = "patch nodes";

/// Patches of Nodes that were accepted.
fn written(stage: &Stage) -> usize {
    stage.world.calls.of(PATCH).iter().filter(|call| call.status == 200).count()
}

#[tokio::test(start_paused = true)]
async fn a_cordon_that_nothing_followed_is_taken_back() {
    let table: [(&[&str], Option<u64>); 5] = [
        (&[], Some(1200)),
        (&["--uncordon-after", "5m"], Some(300)),
        (&["--uncordon-after", "0s"], None),
        (&["--on", "rebalance=drain"], None),
        (&["--on", "rebalance=drain", "--drain-timeout", "rebalance=10m", "--uncordon-after", "5m"], Some(900)),
    ];
    for (flags, after) in table {
        let stage = Stage::new(1, 0);
        let replica = stage.start(flags).await;
        let begun = Instant::now();
        stage.rebalance(0);
        stage.until_handled(s(10)).await;
        sleep_until(begun + s(after.unwrap_or(7200) - 1)).await;
        assert!(stage.cordoned(0), "{flags:?}");
        if after.is_some() {
            // It looks with up to a second and a half of chance.
            sleep(s(3)).await;
            assert!(!stage.cordoned(0), "{flags:?}");
            stage.no_trace(0);
        }
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn only_a_kind_that_cordons_is_taken_back() {
    let stage = Stage::new(2, 0);
    let replica = stage.start(&["--on", "asg-terminate=cordon", "--uncordon-after", "5m"]).await;
    stage.terminate(0, s(300), Wrapping::Event);
    stage.spot(1);
    stage.until_handled(s(10)).await;
    assert!(stage.cordoned(0) && stage.cordoned(1));
    sleep(s(310)).await;
    assert!(!stage.cordoned(0));
    sleep(s(7200)).await;
    assert!(stage.cordoned(1), "a drained node is about to go");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_humans_cordon_stays() {
    let stage = Stage::new(1, 0);
    stage.set_cordon(0, true);
    let replica = stage.start(&["--uncordon-after", "5m"]).await;
    stage.rebalance(0);
    stage.until_handled(s(10)).await;
    assert_eq!(stage.notices(0).len(), 1);
    sleep(s(310)).await;
    assert!(stage.cordoned(0));
    stage.no_trace(0);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_cordon_that_a_human_took_away_is_given_up_with_all_that_came_with_it() {
    let stage = Stage::new(1, 0);
    let replica = stage.start(&["--taint", "going=soon:NoSchedule", "--exclude-from-load-balancers"]).await;
    stage.rebalance(0);
    stage.until_handled(s(10)).await;
    // Taken away, and back before that was meant.
    stage.set_cordon(0, false);
    sleep(s(20)).await;
    stage.set_cordon(0, true);
    sleep(s(60)).await;
    assert_eq!((stage.notices(0).len(), stage.taints(0).len()), (1, 1));
    stage.set_cordon(0, false);
    sleep(s(28)).await;
    assert_eq!(stage.notices(0).len(), 1);
    sleep(s(6)).await;
    assert_eq!((stage.cordoned(0), stage.taints(0), stage.labelled(0, EXCLUDE)), (false, Vec::new(), None));
    stage.no_trace(0);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn another_notice_holds_the_node() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&["--exclude-from-load-balancers"]).await;
    stage.rebalance(0);
    sleep(s(600)).await;
    stage.spot(0);
    stage.until_handled(s(30)).await;
    assert_eq!(stage.notices(0).len(), 2);
    sleep(s(605)).await;
    let kinds: Vec<_> = stage.notices(0).into_iter().map(|notice| notice["kind"].clone()).collect();
    assert_eq!(kinds, ["spot"], "the recommendation's mark is over");
    sleep(s(7200)).await;
    assert!(stage.cordoned(0));
    assert_eq!(stage.labelled(0, "ebbtide/kind").as_deref(), Some("spot"));
    assert_eq!(stage.labelled(0, EXCLUDE).as_deref(), Some("true"));
    stage.reboot(0).await;
    stage.until("uncordoned", s(3), || !stage.cordoned(0)).await;
    assert_eq!(stage.labelled(0, EXCLUDE), None, "what the first notice brought was kept in mind");
    stage.no_trace(0);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_forgets_nothing() {
    // Back before the cordon's time is over, and after it.
    for back_at in [900, 1800] {
        let stage = Stage::new(2, 0);
        stage.set_cordon(1, true);
        let first = stage.start(&[]).await;
        let begun = Instant::now();
        for n in 0..2 {
            stage.rebalance(n);
        }
        stage.until_handled(s(10)).await;
        sleep(s(600)).await;
        first.kill().await;
        sleep_until(begun + s(back_at)).await;
        assert!(stage.cordoned(0));
        // Another setting now: what counts is what was promised then.
        let second = stage.start(&["--uncordon-after", "0s"]).await;
        sleep_until(begun + s(1199)).await;
        assert!(stage.cordoned(0) || back_at > 1200);
        sleep_until(begun + s(back_at.max(1200) + 3)).await;
        assert!(!stage.cordoned(0), "back at {back_at} s");
        assert!(stage.cordoned(1), "a human's stays");
        for n in 0..2 {
            stage.no_trace(n);
        }
        stage.rest(&[&second]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn two_replicas_take_it_back_once() {
    let stage = Stage::new(20, 0);
    let (first, second) = (stage.start(&[]).await, stage.start(&[]).await);
    for n in 0..20 {
        stage.rebalance(n);
    }
    stage.until_handled(s(10)).await;
    assert_eq!(written(&stage), 20);
    sleep(s(600)).await;
    // From now on neither hears of what the other writes: the slower one's patches meet conflicts.
    stage.world.kube.interrupt_watches(Interrupt::Freeze);
    stage.until("uncordoned", s(605), || (0..20).all(|n| !stage.cordoned(n))).await;
    // In between a human cordons one: the slower replica must not take that for ours.
    stage.set_cordon(7, true);
    sleep(s(60)).await;
    assert!(stage.cordoned(7));
    assert_eq!(written(&stage), 40, "one a node\n{}", stage.story());
    let conflicts = stage.calls(PATCH) - 40;
    assert!((1..=20).contains(&conflicts), "both tried, and none again and again: {conflicts}");
    let told = first.released("expired") + second.released("expired");
    assert!((told - 20.0).abs() < f64::EPSILON, "{told} told");
    stage.rest(&[&first, &second]).await;
}

#[tokio::test(start_paused = true)]
async fn what_can_not_be_taken_back_now_is_tried_again() {
    let stage = Stage::new(1, 0);
    let replica = stage.start(&["--uncordon-after", "5m"]).await;
    stage.rebalance(0);
    stage.until_handled(s(10)).await;
    stage.world.faults.add(Rule::on(PATCH, Fault::Status(403)));
    sleep(s(400)).await;
    assert!(stage.cordoned(0));
    let tries = stage.calls(PATCH) - 1;
    assert!((3..=10).contains(&tries), "after 5 s, and then ever later: {tries}");
    stage.world.faults.clear();
    stage.until("uncordoned", s(302), || !stage.cordoned(0)).await;
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_rebooted_node_is_released_when_it_is_ready_again() {
    let stage = Stage::new(2, 2);
    stage.set_cordon(1, true);
    let replica = stage.start(&["--taint", "going=soon:NoSchedule", "--exclude-from-load-balancers"]).await;
    for n in 0..2 {
        stage.schedule_reboot(n);
    }
    stage.until_handled(s(30)).await;
    assert_eq!(stage.world.kube.pods().len(), 0);
    for n in 0..2 {
        // Off the network for a while, but on the same boot: nothing has happened yet.
        stage.set_ready(n, false);
        sleep(s(30)).await;
        stage.set_ready(n, true);
        sleep(s(30)).await;
        assert!(stage.cordoned(n) && !stage.taints(n).is_empty());
        // On its new boot, and not Ready yet.
        stage.set_ready(n, false);
        stage.world.kube.reboot(&node(n));
        sleep(s(60)).await;
        assert!(stage.cordoned(n) && !stage.taints(n).is_empty());
        stage.set_ready(n, true);
        stage.until("released", s(2), || stage.annotations(n).is_empty()).await;
        assert_eq!(stage.taints(n), Vec::<String>::new());
        assert_eq!(stage.labelled(n, EXCLUDE), None);
        stage.no_trace(n);
    }
    assert_eq!((stage.cordoned(0), stage.cordoned(1)), (false, true), "a human's cordon stays");
    assert!((replica.released("rebooted") - 2.0).abs() < f64::EPSILON);
    // What comes after is another matter.
    stage.spot(0);
    stage.until_handled(s(10)).await;
    sleep(s(3600)).await;
    assert!(stage.cordoned(0));
    assert_eq!(stage.notices(0).len(), 1);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_reboot_in_mid_drain_ends_the_drain_and_its_marks() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.start(&[]).await;
    stage.schedule_reboot(0);
    sleep(s(60)).await;
    stage.reboot(0).await;
    stage.until("uncordoned", s(3), || !stage.cordoned(0)).await;
    stage.until_handled(s(3)).await;
    replica.ended_as("scheduled-change", "uncordoned", 1);
    sleep(s(600)).await;
    assert!(!stage.cordoned(0));
    stage.no_trace(0);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn an_instance_from_the_warm_pool_is_released_on_the_same_boot() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&["--on", "asg-launch=ready", "--taint", "going=soon:NoSchedule"]).await;
    let token = stage.terminate_between(0, s(300), Wrapping::Event, ("AutoScalingGroup", "WarmPool"));
    stage.until_handled(s(30)).await;
    stage.completed_once(&token);
    assert_eq!(stage.world.kube.pods().len(), 0);
    stage.set_ready(0, false);
    sleep(s(3600)).await;
    assert!(stage.cordoned(0));
    let token = stage.launch_between(0, s(300), Wrapping::Event, ("WarmPool", "AutoScalingGroup"));
    sleep(s(30)).await;
    assert!(stage.cordoned(0) && stage.results(&token).is_empty());
    stage.set_ready(0, true);
    stage.until_handled(s(2)).await;
    stage.completed_once(&token);
    assert!(!stage.cordoned(0));
    assert_eq!(stage.taints(0), Vec::<String>::new());
    stage.no_trace(0);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_cordon_taken_away_in_mid_drain_is_set_again_once() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.start(&["--drain-timeout", "20m"]).await;
    let token = stage.terminate(0, s(60), Wrapping::Event);
    sleep(s(30)).await;
    stage.set_cordon(0, false);
    stage.until("cordoned again", s(2), || stage.cordoned(0)).await;
    sleep(s(300)).await;
    assert!(stage.cordoned(0) && stage.results(&token).is_empty(), "the drain goes on");
    assert_eq!(stage.calls(PATCH), 2, "the mark, and one cordon more");
    stage.set_cordon(0, false);
    stage.until_handled(s(2)).await;
    replica.ended_as("asg-terminate", "uncordoned", 1);
    assert!(!stage.cordoned(0), "somebody means it");
    assert_eq!((stage.calls(PATCH), stage.world.kube.pods().len()), (2, 1));
    stage.completed_once(&token);
    sleep(s(35)).await;
    stage.no_trace(0);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_to_be_ignored_from_now_on_is_left() {
    let stage = Stage::slow(s(600));
    let replica = stage.start(&["--drain-timeout", "20m"]).await;
    let token = stage.terminate(0, s(60), Wrapping::Event);
    sleep(s(100)).await;
    assert!(!stage.action(&token).beats.is_empty());
    stage.annotate(0, "ebbtide/ignore", "true");
    stage.until_handled(s(2)).await;
    replica.ended_as("asg-terminate", "uncordoned", 1);
    let beats = stage.action(&token).beats.len();
    sleep(s(300)).await;
    let action = stage.action(&token);
    assert_eq!((action.beats.len(), action.completions.len()), (beats, 0), "its owner takes care of it");
    assert!(matches!(action.state, ActionState::Expired { .. }), "{action:?}");
    // And so it stays, whatever happens to it.
    stage.reboot(0).await;
    sleep(s(60)).await;
    assert!(stage.cordoned(0));
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_cordon_that_is_set_again_is_ours() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    stage.set_cordon(0, true);
    let replica = stage.start(&["--drain-timeout", "2m"]).await;
    stage.schedule_reboot(0);
    sleep(s(30)).await;
    // The human who cordoned it before us is done with it.
    stage.set_cordon(0, false);
    stage.until("cordoned again", s(2), || stage.cordoned(0)).await;
    stage.until_handled(s(120)).await;
    stage.reboot(0).await;
    stage.until("uncordoned", s(3), || !stage.cordoned(0)).await;
    stage.no_trace(0);
    stage.rest(&[&replica]).await;
}
