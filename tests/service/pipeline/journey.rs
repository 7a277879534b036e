//! The main job: from a message to a drained node, a completed hook and a deleted message.

use crate::harness::{Stage, instance, node, s};
use ebbtide_sim::aws::HookSpec;
use ebbtide_sim::kube::Pod;
use ebbtide_sim::messages::{self, Wrapping};

#[tokio::test(start_paused = true)]
async fn a_spot_warning_drains_its_node_with_few_calls() {
    let stage = Stage::new(2, 3);
    let replica = stage.start(&[]).await;
    let message = stage.spot(0);
    stage.until_handled(s(30)).await;
    assert!(stage.cordoned(0) && !stage.cordoned(1));
    assert_eq!(stage.world.kube.pods_on(&node(0)).len(), 0);
    assert_eq!(stage.world.kube.pods_on(&node(1)).len(), 3);
    assert_eq!(stage.world.aws.sqs.deleted(), [message]);
    // One patch, one list, one eviction a pod, one closing list, and the watch that saw them go.
    let counts = ["patch nodes", "list pods", "create pods/eviction", "watch pods", "get nodes", "delete pods"];
    assert_eq!(counts.map(|operation| stage.calls(operation)), [1, 2, 3, 1, 0, 0], "{}", stage.story());
    assert_eq!(stage.calls("DescribeInstances"), 0, "it has a Node");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_drain_ends_though_the_caches_of_the_api_server_are_behind() {
    let stage = Stage::new(1, 3);
    let replica = stage.start(&[]).await;
    stage.world.kube.fall_behind(true);
    let message = stage.spot(0);
    stage.until_handled(s(30)).await;
    assert_eq!(stage.world.kube.pods_on(&node(0)).len(), 0);
    assert_eq!(stage.world.aws.sqs.deleted(), [message]);
    assert_eq!(stage.calls("list pods"), 2, "what the watch has told, a cache must know: {}", stage.story());
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn the_node_tells_who_holds_it() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&[]).await;
    let message = stage.spot(0);
    stage.until_handled(s(30)).await;
    let annotations = stage.world.kube.node("node-0").unwrap().metadata.annotations.unwrap();
    let notices: Vec<_> = annotations.iter().filter(|(key, _)| key.starts_with("ebbtide/notice.")).collect();
    assert_eq!(notices.len(), 1, "{annotations:?}");
    let mark: serde_json::Value = serde_json::from_str(notices[0].1).unwrap();
    assert_eq!((mark["kind"].as_str(), mark["message"].as_str()), (Some("spot"), Some(message.as_str())));
    assert_eq!(annotations.get("ebbtide/undo").map(String::as_str), Some("{\"cordon\":true}"));
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_lifecycle_hook_is_completed_in_each_wrapping() {
    for wrapping in [Wrapping::Event, Wrapping::Sns, Wrapping::Bare] {
        let stage = Stage::new(1, 2);
        let replica = stage.start(&[]).await;
        let token = stage.terminate(0, s(300), wrapping);
        stage.until_handled(s(60)).await;
        stage.completed_once(&token);
        assert_eq!(stage.world.kube.pods_on(&node(0)).len(), 0, "{wrapping:?}");
        assert_eq!(stage.calls("RecordLifecycleActionHeartbeat"), 0, "the drain did not outlast the hook");
        assert_eq!(stage.calls("DescribeLifecycleHooks"), 1);
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_hook_is_completed_only_when_the_pods_are_gone() {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(120)).stops_in(s(100)));
    let replica = stage.start(&[]).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    tokio::time::sleep(s(99)).await;
    assert_eq!(stage.calls("CompleteLifecycleAction"), 0);
    stage.until_handled(s(5)).await;
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn every_kind_leads_to_its_action() {
    let stage = Stage::new(6, 1);
    let replica = stage.start(&[]).await;
    let (sqs, now) = (&stage.world.aws.sqs, stage.world.clock.now());
    sqs.send(messages::rebalance("r", &instance(0), now));
    sqs.send(messages::state_change("s", &instance(1), "stopping", now));
    sqs.send(messages::state_change("t", &instance(2), "terminated", now));
    sqs.send(messages::capacity_reservation("c", &instance(3), now, now + s(180)));
    sqs.send(messages::scheduled_change(
        "h",
        "AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED",
        &[&instance(4)],
        now,
        now + s(86400),
    ));
    stage.world.aws.autoscaling.add_hook("group", "launch", HookSpec::launching(s(300)));
    let token = stage.world.aws.autoscaling.begin("group", "launch", &instance(5));
    sqs.send(messages::lifecycle(Wrapping::Event, false, ("group", "launch", &token), &instance(5), now));
    stage.until_handled(s(30)).await;
    let left: Vec<_> = (0..6).map(|n| (stage.cordoned(n), stage.world.kube.pods_on(&node(n)).len())).collect();
    let expected = [(true, 1), (true, 0), (false, 1), (true, 0), (true, 0), (false, 1)];
    assert_eq!(left, expected, "rebalance cordons, stopping drains, terminated has nothing left, a launch is ignored");
    assert_eq!(stage.calls("CompleteLifecycleAction"), 0);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn the_user_decides_what_a_kind_leads_to() {
    let stage = Stage::new(4, 1);
    let on = [
        "--on",
        "spot=cordon",
        "--on",
        "rebalance=drain",
        "--on",
        "state-change=ignore",
        "--on",
        "asg-terminate=report",
    ];
    let replica = stage.start(&on).await;
    stage.spot(0);
    let (sqs, now) = (&stage.world.aws.sqs, stage.world.clock.now());
    sqs.send(messages::rebalance("r", &instance(1), now));
    sqs.send(messages::state_change("s", &instance(2), "stopping", now));
    let token = stage.terminate(3, s(300), Wrapping::Bare);
    stage.until_handled(s(30)).await;
    let left: Vec<_> = (0..4).map(|n| (stage.cordoned(n), stage.world.kube.pods_on(&node(n)).len())).collect();
    assert_eq!(left, [(true, 1), (true, 0), (false, 1), (false, 1)]);
    assert_eq!(stage.world.aws.autoscaling.action(&token).unwrap().completions, [], "a report never touches the hook");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn four_notices_for_one_node_make_one_drain() {
    let stage = Stage::new(1, 4);
    let replica = stage.start(&["--on", "rebalance=drain"]).await;
    let (sqs, now) = (&stage.world.aws.sqs, stage.world.clock.now());
    sqs.send(messages::rebalance("r", &instance(0), now));
    stage.spot(0);
    let token = stage.terminate(0, s(300), Wrapping::Event);
    sqs.send(messages::state_change("s", &instance(0), "shutting-down", now));
    stage.until_handled(s(60)).await;
    assert_eq!(stage.calls("create pods/eviction"), 4, "one eviction a pod\n{}", stage.story());
    assert_eq!(stage.world.kube.evictions().len(), 4);
    assert_eq!(stage.calls("list pods"), 2, "one drain");
    assert_eq!(stage.calls("patch nodes"), 4, "each leaves its mark, and none runs into another");
    assert_eq!(stage.world.aws.sqs.deleted().len(), 4);
    stage.completed_once(&token);
    assert_eq!(stage.calls("CompleteLifecycleAction"), 1);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_health_event_is_deleted_only_after_its_last_drain() {
    let stage = Stage::new(3, 1);
    stage.world.kube.add_pod(Pod::on(&node(2)).named("slow").grace(s(600)).stops_in(s(400)));
    let replica = stage.start(&[]).await;
    let now = stage.world.clock.now();
    let affected: Vec<String> = (0..3).map(instance).collect();
    let affected: Vec<&str> = affected.iter().map(String::as_str).collect();
    let code = "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED";
    stage.world.aws.sqs.send(messages::scheduled_change("h", code, &affected, now, now + s(86400)));
    tokio::time::sleep(s(399)).await;
    assert_eq!(stage.world.kube.pods().len(), 1, "two are drained, the third waits for its pod");
    assert_eq!(stage.world.aws.sqs.deleted().len(), 0);
    stage.until_handled(s(5)).await;
    assert_eq!(stage.world.aws.sqs.deleted().len(), 1);
    assert_eq!(stage.world.aws.sqs.receive_log().len(), 1, "held all the time");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn pods_that_stay_are_left_alone() {
    let stage = Stage::new(1, 1);
    let kube = &stage.world.kube;
    kube.add_pod(Pod::on(&node(0)).named("agent").daemonset());
    kube.add_pod(Pod::on(&node(0)).named("static").mirror());
    kube.add_pod(Pod::on(&node(0)).named("job").phase("Succeeded"));
    let replica = stage.start(&[]).await;
    stage.spot(0);
    stage.until_handled(s(30)).await;
    let mut left: Vec<_> = kube.pods_on(&node(0)).into_iter().filter_map(|pod| pod.metadata.name).collect();
    left.sort();
    assert_eq!(left, ["agent", "static"]);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_changes_nothing() {
    let stage = Stage::new(1, 2);
    let replica = stage.start(&["--dry-run"]).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    stage.until_handled(s(30)).await;
    assert!(!stage.cordoned(0));
    assert_eq!(stage.world.kube.pods_on(&node(0)).len(), 2);
    assert_eq!(stage.calls("create pods/eviction"), 2, "the API server was asked whether it would");
    assert_eq!(stage.world.aws.autoscaling.action(&token).unwrap().completions, []);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn an_empty_queue_costs_one_call_in_twenty_seconds() {
    let stage = Stage::new(1, 0);
    let replica = stage.start(&[]).await;
    tokio::time::sleep(s(2000)).await;
    let receives = stage.calls("ReceiveMessage");
    assert!((100..=101).contains(&receives), "{receives}");
    assert!(replica.metrics.render(&replica.tasks).contains("ebbtide_ready 1"));
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_backlog_is_received_at_once_and_handled_in_batches() {
    let stage = Stage::new(200, 1);
    for n in 0..200 {
        stage.spot(n);
    }
    let replica = stage.start(&[]).await;
    stage.until_handled(s(60)).await;
    assert_eq!(stage.world.kube.pods().len(), 0);
    let receives = stage.calls("ReceiveMessage");
    assert!((20..=32).contains(&receives), "{receives} receives for 200 messages");
    let deletes = stage.calls("DeleteMessageBatch");
    assert!((20..=24).contains(&deletes), "{deletes} calls for 200 deletions");
    stage.rest(&[&replica]).await;
}
