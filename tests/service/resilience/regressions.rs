//! What a hostile review found: each of these once lost a message, completed a hook wrongly, waited for nothing, or asked too often.

use crate::harness::{Stage, instance, node, s};
use ebbtide::service::Exit;
use ebbtide_sim::aws::ActionState;
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::{Interrupt, Pod};
use ebbtide_sim::messages::Wrapping;
use k8s_openapi::api::core::v1::Pod as FullPod;
use kube::api::DeleteParams;
use std::time::Duration;
use tokio::time::{Instant, sleep};

const COMPLETE: &str = "CompleteLifecycleAction";
const BEAT: &str = "RecordLifecycleActionHeartbeat";

/// The API server can't be watched for a while, and a Node joins meanwhile.
async fn blind(stage: &Stage) {
    sleep(s(30)).await;
    stage.world.faults.add(Rule::on("watch nodes", Fault::Status(500)));
    stage.world.kube.interrupt_watches(Interrupt::Break);
    sleep(s(5)).await;
    stage.world.kube.add_node(&node(5), &instance(5));
    stage.world.kube.add_pod(Pod::on(&node(5)).named("late"));
    sleep(s(5)).await;
}

#[tokio::test(start_paused = true)]
async fn a_blind_index_makes_nothing_another_clusters() {
    let stage = Stage::new(1, 0);
    let replica = stage.start(&[]).await;
    blind(&stage).await;
    stage.world.aws.ec2.put(&instance(5), &[("other", "")]);
    stage.spot(5);
    sleep(s(20)).await;
    assert_eq!(stage.world.aws.sqs.in_flight(), 1, "held");
    stage.world.faults.clear();
    stage.until_handled(s(60)).await;
    assert!(stage.cordoned(5));
    assert_eq!(stage.world.kube.pods_on(&node(5)).len(), 0);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_blind_index_does_not_complete_the_hook_of_a_full_node() {
    let stage = Stage::new(1, 0);
    let replica = stage.start(&[]).await;
    blind(&stage).await;
    let token = stage.terminate(5, s(3600), Wrapping::Bare);
    sleep(s(120)).await;
    assert_eq!(stage.calls(COMPLETE), 0);
    stage.world.faults.clear();
    stage.until_handled(s(60)).await;
    assert_eq!(stage.world.kube.pods_on(&node(5)).len(), 0);
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_part_that_dies_ends_the_service_in_order() {
    for place in ["ReceiveMessage", "watch nodes"] {
        let stage = Stage::new(1, 0);
        stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(300)).stops_in(s(200)));
        let replica = stage.start(&[]).await;
        let token = stage.terminate(0, s(600), Wrapping::Event);
        sleep(s(30)).await;
        stage.world.faults.add(Rule::on(place, Fault::Panic).times(1));
        stage.world.kube.interrupt_watches(Interrupt::Close);
        let (exit, tasks) = replica.ended().await;
        assert_eq!(exit, Exit::Broken, "{place}");
        tasks.gone(|_| true).await;
        assert_eq!(stage.world.aws.sqs.visible(), 1, "released for the next process");
        let second = stage.start(&[]).await;
        stage.until_handled(s(300)).await;
        stage.completed_once(&token);
        stage.rest(&[&second]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_receive_that_fails_holds_no_other_up() {
    let stage = Stage::new(80, 0);
    for n in 0..80 {
        stage.spot(n);
    }
    // The lanes grow to eight: one answers late, the others fail.
    stage.world.faults.add(Rule::on("ReceiveMessage", Fault::Slow(s(8))).after(7).times(1));
    stage.world.faults.add(Rule::on("ReceiveMessage", Fault::Status(500)).after(7).times(7));
    let replica = stage.start(&[]).await;
    stage.until_handled(s(15)).await;
    assert_eq!(stage.world.aws.sqs.receive_log().len(), 80, "none was received twice");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_list_from_before_the_watch_began_is_made_again() {
    let stage = Stage::new(2, 0);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("going").stops_in(s(2)));
    stage.world.kube.add_pod(Pod::on(&node(1)).named("other").grace(s(300)).stops_in(s(60)));
    let replica = stage.start(&[]).await;
    sleep(s(1)).await;
    let pods: kube::Api<FullPod> = kube::Api::namespaced(stage.world.kube.client(), "default");
    pods.delete("going", &DeleteParams::default()).await.unwrap();
    // This list is answered late; meanwhile another drain's begins the watch, at a newer version.
    stage.world.faults.add(Rule::on("list pods", Fault::Slow(s(5))).times(1));
    let first = stage.spot(0);
    sleep(s(3)).await;
    stage.spot(1);
    stage.until("the first drained", s(10), || stage.world.aws.sqs.deleted().contains(&first)).await;
    stage.until_handled(s(70)).await;
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn without_a_watch_of_pods_lists_have_to_do() {
    let stage = Stage::new(1, 2);
    stage.world.faults.add(Rule::on("watch pods", Fault::Status(403)));
    let replica = stage.start(&[]).await;
    let token = stage.terminate(0, s(600), Wrapping::Event);
    stage.until_handled(s(30)).await;
    stage.completed_once(&token);
    assert_eq!(stage.calls("create pods/eviction"), 2, "a new list does not begin the evictions anew");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_expires_for_ever_costs_few_lists() {
    let stage = Stage::new(20, 0);
    for n in 0..20 {
        stage.world.kube.add_pod(Pod::on(&node(n)).named(&format!("slow-{n}")).grace(s(300)).stops_in(s(60)));
    }
    stage.world.faults.add(Rule::on("watch pods", Fault::ExpireWatch));
    let replica = stage.start(&[]).await;
    for n in 0..20 {
        stage.spot(n);
    }
    stage.until_handled(s(100)).await;
    let lists = stage.calls("list pods");
    assert!(lists < 20 * 20, "{lists} lists by 20 drains in a minute");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn after_an_expired_watch_a_new_drain_costs_what_it_should() {
    let stage = Stage::new(4, 3);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(300)).stops_in(s(100)));
    let replica = stage.start(&[]).await;
    stage.spot(0);
    sleep(s(5)).await;
    stage.world.faults.add(Rule::on("watch pods", Fault::ExpireWatch).times(1));
    stage.world.kube.interrupt_watches(Interrupt::Close);
    sleep(s(5)).await;
    let before = (stage.calls("list pods"), stage.calls("create pods/eviction"));
    for n in 1..4 {
        stage.spot(n);
    }
    sleep(s(20)).await;
    let made = (stage.calls("list pods") - before.0, stage.calls("create pods/eviction") - before.1);
    assert_eq!(made, (6, 9));
    stage.until_handled(s(120)).await;
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_at_once_is_not_begun_in_a_tight_loop() {
    let stage = Stage::new(1, 0);
    stage.world.faults.add(Rule::on("watch nodes", Fault::CloseWatch).times(3000));
    let replica = stage.start(&[]).await;
    sleep(s(60)).await;
    let watches = stage.calls("watch nodes");
    assert!(watches <= 61, "{watches} in a minute");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_conflict_does_not_mean_that_the_pod_is_gone() {
    let stage = Stage::new(1, 2);
    stage.world.faults.add(Rule::on("create pods/eviction", Fault::Status(409)).times(1));
    let replica = stage.start(&[]).await;
    stage.spot(0);
    stage.until_handled(s(30)).await;
    assert_eq!(stage.world.kube.pods_on(&node(0)).len(), 0);
    assert!(stage.calls("list pods") <= 4, "{}", stage.story());
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_with_an_absurd_grace_period_costs_itself_alone() {
    let stage = Stage::new(1, 3);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("absurd").stops_in(s(1)));
    stage.world.kube.update_pod("default", "absurd", |pod| {
        pod.spec.get_or_insert_default().termination_grace_period_seconds = Some(5_000_000_000);
    });
    let replica = stage.start(&[]).await;
    stage.spot(0);
    stage.until_handled(s(30)).await;
    assert_eq!(stage.world.kube.evictions().len(), 4);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn the_gauge_of_blocked_pods_comes_back_when_a_list_finds_them_gone() {
    let stage = Stage::new(1, 2);
    stage.block(0);
    let replica = stage.start(&[]).await;
    stage.spot(0);
    sleep(s(10)).await;
    stage.world.faults.add(Rule::on("watch pods", Fault::Disconnect).times(4));
    stage.world.faults.add(Rule::on("create pods/eviction", Fault::Hang));
    stage.world.kube.interrupt_watches(Interrupt::Break);
    sleep(Duration::from_millis(100)).await;
    stage.world.kube.remove_pod("default", "web-0-0");
    stage.world.kube.remove_pod("default", "web-0-1");
    stage.world.kube.compact();
    stage.until_handled(s(130)).await;
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_direct_copy_makes_a_foreign_looking_action_ours() {
    let stage = Stage::new(1, 0);
    stage.world.aws.ec2.put(&instance(5), &[("other", "")]);
    let replica = stage.start(&["--registration-grace", "5s"]).await;
    sleep(s(1)).await;
    stage.world.faults.add(Rule::on("DescribeInstances", Fault::Slow(Duration::from_millis(300))));
    let token = stage.terminate(5, s(300), Wrapping::Event);
    stage.send_terminate(5, &token, Wrapping::Bare);
    stage.until_handled(s(60)).await;
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_completion_that_is_not_permitted_does_not_keep_the_instance_alive() {
    let stage = Stage::new(1, 1);
    stage.world.faults.add(Rule::on(COMPLETE, Fault::Status(403)));
    let replica = stage.start(&["--drain-timeout", "3h"]).await;
    let token = stage.terminate(0, s(3600), Wrapping::Event);
    stage.until_handled(s(2 * 3600)).await;
    assert!(stage.calls(COMPLETE) <= 62, "{} tries", stage.calls(COMPLETE));
    let failed = replica.metric("ebbtide_notices_total{kind=\"asg-terminate\",outcome=\"hook-failed\"}");
    assert!((failed - 1.0).abs() < f64::EPSILON);
    sleep(s(120)).await;
    let action = stage.world.aws.autoscaling.action(&token).unwrap();
    assert!(matches!(action.state, ActionState::Expired { .. }), "its own timeout ended it: {action:?}");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn an_interval_longer_than_the_hook_is_cut_to_what_it_bears() {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(600)).stops_in(s(200)));
    let replica = stage.start(&["--heartbeat", "2m", "--drain-timeout", "10m"]).await;
    let token = stage.terminate(0, s(60), Wrapping::Event);
    stage.until_handled(s(220)).await;
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn refused_heartbeats_are_few() {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(20_000)).stops_in(s(9_000)));
    stage.world.faults.add(Rule::on(BEAT, Fault::Status(403)));
    let replica = stage.start(&["--drain-timeout", "10h"]).await;
    stage.terminate(0, s(3600), Wrapping::Event);
    stage.until_handled(s(9_100)).await;
    assert!((5..50).contains(&stage.calls(BEAT)), "{}", stage.calls(BEAT));
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn heartbeats_whose_answers_are_lost_are_not_a_flood() {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(600)).stops_in(s(300)));
    stage.world.faults.add(Rule::on(BEAT, Fault::LostResponse).times(3));
    let replica = stage.start(&["--drain-timeout", "10m"]).await;
    let token = stage.terminate(0, s(120), Wrapping::Event);
    stage.until_handled(s(400)).await;
    stage.beats_apart(&token, s(5));
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_is_refused_is_told() {
    let stage = Stage::new(1, 1);
    stage.world.faults.add(Rule::on("DeleteMessageBatch", Fault::Status(403)));
    let replica = stage.start(&[]).await;
    stage.spot(0);
    sleep(s(30)).await;
    let told = replica.metric("ebbtide_retries_total{category=\"denied\",step=\"delete\"}");
    assert!((told - 1.0).abs() < f64::EPSILON, "{told}");
    stage.world.faults.clear();
    stage.until_handled(s(10)).await;
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_start_on_an_empty_queue_is_ready_at_once() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&[]).await;
    let begun = Instant::now();
    stage.until("ready", s(30), || replica.metric("ebbtide_ready ") > 0.5).await;
    assert!(begun.elapsed() < s(1), "{:?}", begun.elapsed());
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_cache_that_stays_behind_is_not_asked_for_ever() {
    let stage = Stage::new(2, 1);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(300)).stops_in(s(60)));
    let replica = stage.start(&[]).await;
    stage.spot(0);
    sleep(s(2)).await;
    stage.world.faults.add(Rule::on("list pods", Fault::Status(504)).times(1));
    let second = stage.spot(1);
    stage.until("the second drained", s(10), || stage.world.aws.sqs.deleted().contains(&second)).await;
    stage.until_handled(s(70)).await;
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn ten_true_redeliveries_double_no_heartbeat() {
    for place in ["patch nodes", "list pods", "create pods/eviction"] {
        let stage = Stage::new(1, 0);
        stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(300)).stops_in(s(60)));
        stage.world.faults.add(Rule::on(place, Fault::Panic).times(10));
        let replica = stage.start(&["--drain-timeout", "400s"]).await;
        let token = stage.terminate(0, s(60), Wrapping::Event);
        stage.until_handled(s(7200)).await;
        let id = stage.world.aws.sqs.receive_log()[0].id.clone();
        assert_eq!(stage.world.aws.sqs.receives(&id), 11, "{place}");
        stage.beats_apart(&token, s(25));
        stage.completed_once(&token);
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_to_the_cordon_and_a_watch_that_lags_are_no_uncordon() {
    let stage = Stage::new(1, 2);
    let replica = stage.start(&[]).await;
    sleep(s(1)).await;
    stage.world.kube.interrupt_watches(Interrupt::Freeze);
    stage.world.faults.add(Rule::on("patch nodes", Fault::LostResponse).times(1));
    let token = stage.terminate(0, s(300), Wrapping::Event);
    stage.until_handled(s(30)).await;
    assert_eq!(stage.world.kube.pods_on(&node(0)).len(), 0, "{}", stage.story());
    stage.completed_once(&token);
    replica.ended_once("asg-terminate", "drained");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_second_signal_aborts() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.start(&[]).await;
    stage.spot(0);
    sleep(s(5)).await;
    stage.world.faults.add(Rule::on("ChangeMessageVisibilityBatch", Fault::Hang));
    let (exit, took, tasks) = replica.stop_then_abort(s(1)).await;
    assert_eq!(exit, Exit::Aborted);
    assert!(took < s(2), "{took:?}");
    tasks.gone(|_| true).await;
}
