//! `--wave`: at most so many nodes with one value of a label are drained at the same time.

use crate::harness::{Stage, instance, node, s};
use ebbtide::telemetry::history::Since;
use ebbtide_sim::aws::HookSpec;
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::{By, Pod};
use ebbtide_sim::messages::{self, Wrapping};
use std::time::Duration;
use tokio::time::sleep;

const ZONE: &str = "topology.kubernetes.io/zone";
const ONE: [&str; 5] = ["--wave", "topology.kubernetes.io/zone=1", "--on", "rebalance=drain", "--max-draining=none"];
const RETIREMENT: (&str, &str) = ("h", "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED");

/// Returns a world of nodes in these zones, each with a pod that takes 20 s to stop.
fn zones(zones: &str) -> Stage {
    let stage = Stage::new(zones.len(), 0);
    for (n, zone) in zones.chars().enumerate() {
        stage.world.kube.add_pod(Pod::on(&node(n)).named(&format!("web-{n}-0")).grace(s(30)).stops_in(s(20)));
        stage.label(n, ZONE, &zone.to_string());
        if zone == '-' {
            stage.world.kube.update_node(&node(n), |node| {
                node.metadata.labels.as_mut().and_then(|labels| labels.remove(ZONE));
            });
        }
    }
    stage
}

/// Returns the times of the first evictions from these nodes, sorted.
fn begins(stage: &Stage, nodes: impl IntoIterator<Item = usize>) -> Vec<Duration> {
    let mut begins: Vec<_> = nodes.into_iter().filter_map(|n| stage.first_eviction(n)).collect();
    begins.sort();
    begins
}

/// Asserts that the drains began one after the other, each soon after the end of the one before.
fn in_turns(begins: &[Duration]) {
    for pair in begins.windows(2) {
        let apart = pair[1] - pair[0];
        assert!(apart >= s(20) && apart <= s(24), "{begins:?}");
    }
}

fn place(stage: &Stage, n: usize) -> String {
    stage.notices(n)[0]["wave"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test(start_paused = true)]
async fn all_are_cordoned_at_once_and_one_of_a_zone_is_drained_at_a_time() {
    let stage = zones("abcabcabc---");
    let replica = stage.start(&ONE).await;
    for n in 0..12 {
        stage.rebalance(n);
    }
    sleep(s(4)).await;
    assert!((0..12).all(|n| stage.cordoned(n)), "{}", stage.story());
    assert_eq!(begins(&stage, 0..9).len(), 3, "one in each zone\n{}", stage.story());
    assert_eq!(begins(&stage, 9..12).len(), 3, "nodes without the label don't wait\n{}", stage.story());
    let waiting: Vec<_> = (0..9).filter(|n| place(&stage, *n) == "waits").collect();
    assert_eq!((waiting.len(), place(&stage, 9).as_str()), (6, ""));
    stage.until_handled(s(80)).await;
    for zone in 0..3 {
        in_turns(&begins(&stage, [zone, zone + 3, zone + 6]));
    }
    assert!((0..9).all(|n| place(&stage, n) == "over"), "{}", stage.story());
    replica.all_ended("rebalance", &[("drained", 12)]);
    let text = replica.metrics.render(&replica.tasks);
    assert!(text.contains("ebbtide_waits_seconds_count{outcome=\"met\",wait=\"wave\"} 9"), "{text}");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_share_is_of_the_nodes_with_the_value_and_at_least_one() {
    let stage = zones("aaaab");
    let replica = stage.start(&[&ONE[2..], &["--wave", "topology.kubernetes.io/zone=50%"]].concat()).await;
    for n in 0..5 {
        stage.rebalance(n);
    }
    sleep(s(10)).await;
    assert_eq!((begins(&stage, 0..4).len(), begins(&stage, [4]).len()), (2, 1), "{}", stage.story());
    stage.until_handled(s(60)).await;
    stage.rest(&[&replica]).await;
}

/// All labels hold that a Node has.
#[tokio::test(start_paused = true)]
async fn two_labels_hold_together() {
    let stage = zones("ab");
    for n in 0..2 {
        stage.label(n, "team", "blue");
    }
    let replica = stage.start(&[&ONE[..], &["--wave", "team=1"]].concat()).await;
    for n in 0..2 {
        stage.rebalance(n);
    }
    stage.until_handled(s(60)).await;
    in_turns(&begins(&stage, 0..2));
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn the_drains_of_two_replicas_count_together() {
    let one = zones("aaaaaa");
    let other = one.with_own_queue();
    let (first, second) = (one.start(&ONE).await, other.start(&ONE).await);
    for n in 0..6 {
        if n % 2 == 0 {
            one.rebalance(n)
        } else {
            other.rebalance(n)
        };
    }
    one.until_handled(s(160)).await;
    other.until_handled(s(30)).await;
    let begins = begins(&one, 0..6);
    assert_eq!(begins.len(), 6);
    for pair in begins.windows(2) {
        assert!(pair[1] - pair[0] >= s(20) && pair[1] - pair[0] <= s(27), "{begins:?}\n{}", one.story());
    }
    one.rest(&[&first, &second]).await;
}

/// The third waits for four times the time of a drain, and has all of its time for the drain then.
#[tokio::test(start_paused = true)]
async fn a_hook_lives_on_in_the_wave_and_its_time_begins_with_the_place() {
    let stage = zones("aaa");
    for n in 0..3 {
        stage.world.kube.add_pod(Pod::on(&node(n)).named(&format!("slow-{n}")).grace(s(4500)).stops_in(s(1800)));
    }
    let replica = stage.start(&ONE).await;
    let tokens: Vec<_> = (0..3).map(|n| stage.terminate(n, s(90), Wrapping::Event)).collect();
    sleep(s(3000)).await;
    assert_eq!(begins(&stage, 0..3).len(), 2, "{}", stage.story());
    stage.until_handled(s(2500)).await;
    for (n, token) in tokens.iter().enumerate() {
        stage.completed_once(token);
        let slow = stage.ends_of(&format!("slow-{n}"));
        assert_eq!((slow.len(), slow[0].by, slow[0].grace), (1, By::Eviction, None), "its own grace period: {slow:?}");
    }
    let apart: Vec<_> = begins(&stage, 0..3).windows(2).map(|pair| (pair[1] - pair[0]).as_secs()).collect();
    assert!(apart.iter().all(|apart| (1800..=1804).contains(apart)), "{apart:?}");
    replica.all_ended("asg-terminate", &[("drained", 3)]);
    stage.rest(&[&replica]).await;
}

/// Returns a world in which a drain that nothing ends has the place of the zone.
async fn taken(flags: &[&'static str]) -> (Stage, crate::harness::Replica) {
    let stage = zones("aaa");
    stage.block(0);
    let replica = stage.start(&[&ONE[..], &["--drain-timeout", "rebalance=2d"], flags].concat()).await;
    stage.rebalance(0);
    sleep(s(10)).await;
    assert!(place(&stage, 0).ends_with('Z'), "{}", stage.story());
    (stage, replica)
}

async fn released(stage: &Stage) {
    stage.unblock(0);
    stage.until_handled(s(60)).await;
}

#[tokio::test(start_paused = true)]
async fn a_hook_waits_until_its_life_just_leaves_the_time_of_a_drain() {
    let (stage, replica) = taken(&[]).await;
    let token = stage.terminate(1, s(60), Wrapping::Event);
    // Of a life of 6,000 s less the margin of 6 s, the drain keeps its 894 s.
    sleep(s(5098)).await;
    assert_eq!(stage.first_eviction(1), None);
    sleep(s(4)).await;
    assert!(stage.first_eviction(1).is_some(), "{}", stage.story());
    released(&stage).await;
    stage.completed_once(&token);
    stage.beats_apart(&token, s(20));
    stage.rest(&[&replica]).await;
}

/// A pod that needs longer than the hook's own time has it.
#[tokio::test(start_paused = true)]
async fn a_hook_leaves_the_wave_in_time_for_the_grace_periods() {
    let (stage, replica) = taken(&[]).await;
    stage.world.kube.add_pod(Pod::on(&node(1)).named("slow").grace(s(1800)).stops_in(s(1800)));
    let token = stage.terminate(1, s(60), Wrapping::Event);
    // 1800 s, and 12 s to try and to remove it.
    sleep(s(5994 - 1812 - 2)).await;
    assert_eq!(stage.first_eviction(1), None);
    sleep(s(4)).await;
    assert!(stage.first_eviction(1).is_some(), "{}", stage.story());
    sleep(s(1810)).await;
    assert_eq!((stage.ends_of("slow")[0].grace, stage.has_pod("slow")), (None, false));
    released(&stage).await;
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn without_heartbeats_a_hook_waits_for_half_of_its_time() {
    let (stage, replica) = taken(&["--heartbeat", "off"]).await;
    let token = stage.terminate(1, s(300), Wrapping::Event);
    sleep(s(134)).await;
    assert_eq!(stage.first_eviction(1), None);
    sleep(s(3)).await;
    assert!(stage.first_eviction(1).is_some(), "{}", stage.story());
    released(&stage).await;
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn what_has_little_time_does_not_wait_and_a_hard_deadline_bypasses_the_wave() {
    let (stage, replica) = taken(&[]).await;
    let begun = stage.world.clock.now();
    stage.spot(2);
    stage.until("the spot warning waits for nobody", s(2), || stage.first_eviction(2).is_some()).await;
    // A start within the hour is the deadline, and half of the time is the drain's.
    stage.world.aws.ec2.schedule(&instance(1), ("change", "instance-retirement"), begun + s(2400));
    stage.health(1, RETIREMENT, begun + s(2400), "upcoming");
    sleep(s(1195)).await;
    assert_eq!((stage.cordoned(1), stage.first_eviction(1)), (true, None));
    sleep(s(8)).await;
    assert!(stage.first_eviction(1).is_some(), "{}", stage.story());
    released(&stage).await;
    stage.rest(&[&replica]).await;
}

/// The place in the line is on the status page, in the condition, and of the report, and moves up.
#[tokio::test(start_paused = true)]
async fn the_place_in_the_line_is_told() {
    let (stage, replica) = taken(&[]).await;
    for n in [1, 2] {
        stage.rebalance(n);
        sleep(s(10)).await;
    }
    let reasons = || {
        let (report, _) = replica.history.report(Since::Ever, 0);
        let mut all: Vec<_> =
            report.interruptions.iter().flat_map(|row| &row.waits).map(|wait| wait.reason.clone()).collect();
        all.sort();
        all
    };
    let by = "1 of at most 1 nodes with topology.kubernetes.io/zone=a are drained, such as node-0";
    let in_line = |place| format!("number {place} in line: {by}");
    assert_eq!(reasons(), [in_line(1), in_line(2)]);
    let condition = stage.world.kube.node(&node(2)).unwrap().status.unwrap().conditions.unwrap();
    let condition = condition.into_iter().find(|condition| condition.type_ == "EbbtideDraining").unwrap();
    let said = condition.message.unwrap();
    assert!(said.starts_with("wave (until ") && said.ends_with(&in_line(2)), "{said}");
    stage.unblock(0);
    stage.until("the second has its place", s(40), || stage.first_eviction(1).is_some()).await;
    sleep(s(6)).await;
    assert_eq!(reasons(), [in_line(1).replace("node-0", "node-1")]);
    stage.until_handled(s(60)).await;
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_spot_warning_ends_the_wait_of_its_node() {
    let (stage, replica) = taken(&[]).await;
    stage.rebalance(1);
    sleep(s(60)).await;
    assert_eq!((place(&stage, 1).as_str(), stage.first_eviction(1)), ("waits", None));
    stage.spot(1);
    stage.until("drained", s(30), || stage.world.kube.pods_on(&node(1)).is_empty()).await;
    released(&stage).await;
    replica.all_ended("rebalance", &[("drained", 2)]);
    stage.rest(&[&replica]).await;
}

/// The place of a drain that goes with its Node is free at once, without another look.
#[tokio::test(start_paused = true)]
async fn the_next_goes_on_when_the_node_with_the_place_is_gone() {
    let (stage, replica) = taken(&[]).await;
    stage.rebalance(1);
    sleep(s(100)).await;
    assert_eq!(stage.first_eviction(1), None);
    stage.world.kube.remove_node(&node(0));
    stage.until("the next has the place", s(4), || stage.first_eviction(1).is_some()).await;
    stage.until_handled(s(60)).await;
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_takeover_goes_on_in_the_same_order() {
    for graceful in [true, false] {
        let stage = zones("aaa");
        let first = stage.start(&ONE).await;
        let tokens: Vec<_> = (0..3).map(|n| stage.terminate(n, s(300), Wrapping::Event)).collect();
        sleep(s(10)).await;
        let begun: Vec<_> = (0..3).filter(|n| stage.first_eviction(*n).is_some()).collect();
        assert_eq!(begun.len(), 1, "{}", stage.story());
        let second = stage.start(&ONE).await;
        if graceful {
            first.stop().await;
        } else {
            first.kill().await.gone(|_| true).await;
        }
        sleep(s(8)).await;
        assert_eq!(begins(&stage, 0..3).len(), 1, "its place is not free\n{}", stage.story());
        stage.until_handled(s(120)).await;
        let begins = begins(&stage, 0..3);
        assert!(begins.len() == 3 && begins.windows(2).all(|pair| pair[1] - pair[0] >= s(20)), "{begins:?}");
        for token in &tokens {
            stage.completed_once(token);
        }
        stage.rest(&[&second]).await;
    }
}

/// Its own patience begins anew with the takeover, and so the place lasts longer than the first replica's mark says.
#[tokio::test(start_paused = true)]
async fn a_drain_that_is_taken_over_keeps_its_place_to_its_end() {
    let flags = [&ONE[..], &["--drain-timeout", "rebalance=10m"]].concat();
    let stage = zones("aa");
    stage.block(0);
    let first = stage.start(&flags).await;
    stage.rebalance(0);
    sleep(s(300)).await;
    first.kill().await.gone(|_| true).await;
    let second = stage.start(&flags).await;
    sleep(s(60)).await;
    let token = stage.terminate(1, s(300), Wrapping::Event);
    // The first mark's deadline, and the time that it counts after it.
    sleep(s(600 + 60 - 360 + 30)).await;
    assert_eq!(stage.first_eviction(1), None, "{}", stage.story());
    sleep(s(180)).await;
    assert_eq!(stage.first_eviction(1), None, "{}", stage.story());
    stage.until_handled(s(240)).await;
    stage.completed_once(&token);
    assert!(stage.first_eviction(1) >= Some(s(300 + 600)), "{}", stage.story());
    second.all_ended("rebalance", &[("blocked", 1)]);
    stage.rest(&[&second]).await;
}

/// After an hour in the wave another replica goes on: the hook's own time is long over, and the drain has all of it.
#[tokio::test(start_paused = true)]
async fn a_takeover_after_the_hook_s_own_time_leaves_the_drain_its_time() {
    let (stage, first) = taken(&[]).await;
    stage.world.kube.add_pod(Pod::on(&node(1)).named("slow").grace(s(200)).stops_in(s(200)));
    let token = stage.terminate(1, s(300), Wrapping::Event);
    sleep(s(3600)).await;
    let second = stage.start(&[&ONE[..], &["--drain-timeout", "rebalance=2d"]].concat()).await;
    first.kill().await.gone(|_| true).await;
    sleep(s(120)).await;
    assert_eq!(stage.first_eviction(1), None, "{}", stage.story());
    stage.unblock(0);
    stage.until("drained", s(400), || stage.action(&token).completions.len() == 1).await;
    assert_eq!((stage.ends_of("slow")[0].by, stage.ends_of("slow")[0].grace), (By::Eviction, None));
    stage.completed_once(&token);
    stage.rest(&[&second]).await;
}

/// A drain that another notice begins cuts the wait of the hook short, whose time counts from then: a restart before that is over is no
/// return.
#[tokio::test(start_paused = true)]
async fn a_restart_after_a_wait_that_was_cut_short_leaves_the_hook_its_time() {
    let stage = zones("a");
    stage.block(0);
    let replica = stage.start(&[&ONE[..], &["--hold", "both"]].concat()).await;
    let token = stage.terminate(0, s(900), Wrapping::Event);
    sleep(s(30)).await;
    let (code, now) = ("AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED", stage.world.clock.now());
    stage.world.aws.sqs.send(messages::scheduled_change("h", code, &[&instance(0)], now, now + s(420)));
    sleep(s(211)).await;
    assert!(place(&stage, 0).ends_with('Z'), "{}", stage.story());
    sleep(s(240)).await;
    stage.reboot(0).await;
    stage.until("completed", s(1200), || !stage.action(&token).completions.is_empty()).await;
    stage.completed_once(&token);
    stage.until_handled(s(60)).await;
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn who_is_uncordoned_by_hand_leaves_the_wave() {
    let (stage, replica) = taken(&[]).await;
    for n in [1, 2] {
        stage.rebalance(n);
        sleep(s(30)).await;
    }
    stage.set_cordon(1, false);
    sleep(s(10)).await;
    stage.set_cordon(1, false);
    stage
        .until("the second has ended", s(10), || {
            replica.metric("ebbtide_notices_total{kind=\"rebalance\",outcome=\"uncordoned\"}") > 0.0
        })
        .await;
    assert_eq!(place(&stage, 1), "over");
    stage.unblock(0);
    stage.until("the third is not behind it", s(40), || stage.first_eviction(2).is_some()).await;
    stage.until_handled(s(60)).await;
    assert_eq!(stage.first_eviction(1), None);
    replica.all_ended("rebalance", &[("drained", 2), ("uncordoned", 1)]);
    stage.rest(&[&replica]).await;
}

/// Marks whose replicas are gone, and whose messages nobody has, are ahead and take no place.
#[tokio::test(start_paused = true)]
async fn who_is_ahead_and_takes_no_place_is_passed_over() {
    let stage = zones("aaaaaaaa");
    let (since, deadline) = (stage.world.clock.now() - s(600), stage.world.clock.now() + s(600));
    let mark = format!(
        r#"{{"v":1,"kind":"rebalance","since":"{since}","deadline":"{deadline}","message":"m","wave":"waits"}}"#
    );
    for n in 0..6 {
        stage.annotate(n, "ebbtide/notice.0123456789abcdef", &mark);
        stage.set_cordon(n, true);
    }
    let replica = stage.start(&ONE).await;
    stage.rebalance(6);
    stage.rebalance(7);
    sleep(s(9)).await;
    assert!(begins(&stage, 0..8).is_empty(), "{}", stage.story());
    stage.until("they are passed over", s(5), || begins(&stage, 6..8).len() == 1).await;
    sleep(s(15)).await;
    assert_eq!(begins(&stage, 6..8).len(), 1, "one of the zone at a time\n{}", stage.story());
    stage.until_handled(s(60)).await;
    stage.rest(&[&replica]).await;
}

/// Its place is free a while after its deadline, although nobody says so.
#[tokio::test(start_paused = true)]
async fn a_place_whose_end_nobody_notes_is_free_after_its_deadline() {
    let stage = zones("aa");
    let now = stage.world.clock.now();
    let mark = format!(
        r#"{{"v":1,"kind":"rebalance","since":"{now}","deadline":"{}","message":"m","wave":"{now}"}}"#,
        now + s(600)
    );
    stage.annotate(0, "ebbtide/notice.0123456789abcdef", &mark);
    stage.set_cordon(0, true);
    let replica = stage.start(&ONE).await;
    stage.rebalance(1);
    sleep(s(655)).await;
    assert_eq!(stage.first_eviction(1), None);
    stage.until("the place is free", s(10), || stage.first_eviction(1).is_some()).await;
    stage.until_handled(s(30)).await;
    stage.rest(&[&replica]).await;
}

/// The API server takes no patches for a minute, when one drain ends and the next would begin.
#[tokio::test(start_paused = true)]
async fn an_outage_holds_up_a_wave_no_longer_than_it_lasts() {
    let (stage, replica) = taken(&[]).await;
    stage.rebalance(1);
    sleep(s(10)).await;
    stage.world.faults.add(Rule::on("patch nodes", Fault::Status(500)));
    stage.unblock(0);
    sleep(s(60)).await;
    assert_eq!((stage.world.kube.pods_on(&node(0)).len(), stage.first_eviction(1)), (0, None), "{}", stage.story());
    stage.world.faults.clear();
    stage.until("the next has its place", s(10), || stage.first_eviction(1).is_some()).await;
    stage.until_handled(s(60)).await;
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_waits_for_nobody() {
    let stage = zones("aa");
    let replica = stage.start(&[&ONE[..], &["--dry-run"]].concat()).await;
    stage.world.aws.autoscaling.add_hook("group", "hook", HookSpec::terminating(s(300)));
    for n in 0..2 {
        stage.world.aws.sqs.send(messages::rebalance(&format!("r-{n}"), &instance(n), stage.world.clock.now()));
    }
    stage.until_handled(s(30)).await;
    assert!(stage.world.kube.evictions().is_empty());
    stage.rest(&[&replica]).await;
}

/// Each drain has ended, and is tried again while its Node goes on saying the same.
#[tokio::test(start_paused = true)]
async fn drains_that_are_tried_again_wait_for_their_turn_again() {
    let stage = zones("aa");
    let replica = stage.without_queue("a", &[&ONE[..], &["--drain-timeout", "10m"]].concat()).await;
    stage.world.faults.add(Rule::on("create pods/eviction", Fault::Status(500)));
    (0..2).for_each(|n| stage.says_rebalance(n));
    let failed = || replica.metric("ebbtide_notices_total{kind=\"rebalance\",outcome=\"failed\"}") > 1.5;
    stage.until("both have failed", s(1300), failed).await;
    let tries = stage.calls("create pods/eviction");
    stage.world.faults.clear();
    stage.until("the next tries", s(1300), || stage.calls("create pods/eviction") > tries).await;
    sleep(s(19)).await;
    assert_eq!((0..2).filter(|n| !stage.ends_of(&format!("web-{n}-0")).is_empty()).count(), 1, "{}", stage.story());
    stage.until("noted", s(600), || stage.handled(0) + stage.handled(1) == 2).await;
    stage.rest(&[&replica]).await;
}

/// Whoever may write a Node may name any deadline.
#[tokio::test(start_paused = true)]
async fn a_mark_without_end_holds_no_place() {
    let stage = zones("aa");
    let replica = stage.start(&ONE).await;
    let mark =
        r#"{"v":1,"kind":"rebalance","since":"2026-11-21T12:00:00Z","deadline":"9999-01-01T00:00:00Z","message":"m"}"#;
    stage.annotate(1, "ebbtide/notice.0123456789abcdef", mark);
    stage.rebalance(0);
    stage.until_handled(s(60)).await;
    replica.ended_once("rebalance", "drained");
    stage.rest(&[&replica]).await;
}
