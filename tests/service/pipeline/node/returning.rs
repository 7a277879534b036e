//! Lifecycle hooks of instances that come back: from the warm pool, or with another root volume.

use crate::harness::{Stage, instance, node, s};
use crate::nodes::TO_POOL;
use ebbtide_sim::aws::HookResult;
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::{Interrupt, Pod};
use ebbtide_sim::messages::{self, Wrapping};
use tokio::time::sleep;

/// Has node 0 drained for its way to the pool by a replica that is killed before it deletes the message. Returns the hook's token.
async fn completed_but_not_deleted(stage: &Stage) -> String {
    let replica = stage.start(&[]).await;
    let token = stage.terminate_between(0, s(3600), Wrapping::Event, TO_POOL);
    stage.world.faults.add(Rule::on("DeleteMessageBatch", Fault::Hang));
    stage.until("deleted", s(60), || stage.calls("DeleteMessageBatch") > 0).await;
    replica.kill().await;
    stage.world.faults.clear();
    token
}

/// Returns a world in which node 0 has come back from a hook whose message, three minutes old, nobody has read.
async fn returned() -> Stage {
    let stage = Stage::new(1, 1);
    let token = stage.replace_root_volume(0, true);
    sleep(s(60)).await;
    stage.world.aws.autoscaling.complete(&token, HookResult::Continue);
    stage.reboot(0).await;
    stage.world.aws.autoscaling.come_back("group", &instance(0));
    sleep(s(60)).await;
    stage
}

/// The drain may go on after the deadline by its mark, to which a short time is not worth a write.
#[tokio::test(start_paused = true)]
async fn a_restart_in_the_last_minute_of_a_drain_is_no_return_from_the_warm_pool() {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(60)).stops_in(s(55)));
    let token = stage.terminate_between(0, s(900), Wrapping::Event, TO_POOL);
    sleep(s(898)).await;
    let replica = stage.start(&[]).await;
    sleep(s(35)).await;
    stage.world.kube.reboot(&node(0));
    sleep(s(10)).await;
    assert!(stage.cordoned(0) && stage.has_pod("slow"), "the drain goes on\n{}", stage.story());
    stage.until_handled(s(15)).await;
    stage.completed_once(&token);
    replica.ended_once("asg-terminate", "drained");
    stage.reboot(0).await;
    stage.until("released", s(5), || !stage.cordoned(0)).await;
    stage.rest(&[&replica]).await;
}

/// A replica takes over a drain that has more time than the hook had at first, on a Node that has restarted meanwhile.
#[tokio::test(start_paused = true)]
async fn a_drain_that_is_taken_over_after_its_first_deadline_goes_on() {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(900)).stops_in(s(890)));
    stage.block(0);
    let first = stage.start(&[]).await;
    let token = stage.terminate_between(0, s(900), Wrapping::Event, TO_POOL);
    sleep(s(40)).await;
    stage.reboot(0).await;
    sleep(s(900)).await;
    assert!(stage.cordoned(0) && stage.results(&token).is_empty(), "{}", stage.story());
    first.kill().await;
    let second = stage.start(&[]).await;
    sleep(s(60)).await;
    assert!(stage.cordoned(0) && stage.results(&token).is_empty(), "{}", stage.story());
    stage.unblock(0);
    stage.until_handled(s(1000)).await;
    stage.completed_once(&token);
    assert!(stage.world.kube.pods().is_empty(), "{}", stage.story());
    second.ended_once("asg-terminate", "drained");
    stage.rest(&[&second]).await;
}

/// The drain is stuck, and somebody completes the action by hand: nobody hears of that before the next heartbeat.
#[tokio::test(start_paused = true)]
async fn a_node_that_came_back_from_a_hook_that_others_completed_is_released_with_its_pods() {
    for fails in [false, true] {
        let stage = Stage::new(1, 1);
        stage.block(0);
        let replica = stage.start(&[]).await;
        let token = stage.replace_root_volume(0, true);
        sleep(s(60)).await;
        stage.world.aws.autoscaling.complete(&token, HookResult::Continue);
        sleep(s(60)).await;
        stage.reboot(0).await;
        if fails {
            // Our own completion may have come through, for all that is known of it alone.
            stage.world.faults.add(Rule::on("CompleteLifecycleAction", Fault::Status(503)).times(1));
        }
        stage.until_handled(s(600)).await;
        stage.until("released", s(120), || !stage.cordoned(0)).await;
        assert!(stage.has_pod("web-0-0"), "{}", stage.story());
        stage.no_trace(0);
        stage.rest(&[&replica]).await;
    }
}

/// The completion is the last call of a replica: its message is taken over when the instance is back.
#[tokio::test(start_paused = true)]
async fn a_node_that_came_back_after_its_replica_was_killed_is_released() {
    for flags in [&[][..], &["--verify", "always"]] {
        let stage = Stage::new(1, 1);
        let first = stage.start(flags).await;
        let token = stage.terminate_between(0, s(3600), Wrapping::Event, TO_POOL);
        stage.until("cordoned", s(10), || stage.cordoned(0)).await;
        stage.world.faults.add(Rule::on("patch nodes", Fault::Hang));
        stage.until("completed", s(60), || !stage.results(&token).is_empty()).await;
        first.kill().await;
        stage.world.faults.clear();
        stage.reboot(0).await;
        let second = stage.start(flags).await;
        stage.until_handled(s(120)).await;
        stage.until("released", s(120), || !stage.cordoned(0)).await;
        stage.no_trace(0);
        second.ended_once("asg-terminate", "stale");
        stage.rest(&[&second]).await;
    }
}

/// The API server is away when the hook is completed.
#[tokio::test(start_paused = true)]
async fn the_note_that_a_hook_is_completed_is_written_a_little_later() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&[]).await;
    let token = stage.replace_root_volume(0, true);
    stage.until("cordoned", s(10), || stage.cordoned(0)).await;
    stage.world.faults.add(Rule::on("patch nodes", Fault::Disconnect));
    stage.until("completed", s(60), || !stage.results(&token).is_empty()).await;
    sleep(s(5)).await;
    stage.world.faults.clear();
    stage.until_handled(s(10)).await;
    stage.reboot(0).await;
    stage.until("released", s(5), || !stage.cordoned(0)).await;
    replica.ended_once("asg-terminate", "drained");
    stage.rest(&[&replica]).await;
}

/// The node restarts during its drain, and the answer to the completion is lost: the next try hears that the action is over.
#[tokio::test(start_paused = true)]
async fn a_restart_before_a_completion_without_an_answer_is_no_return() {
    for is_stale in [false, true] {
        let stage = Stage::new(1, 1);
        stage.block(0);
        let replica = stage.start(&[]).await;
        let token = stage.terminate_between(0, s(3600), Wrapping::Event, TO_POOL);
        stage.until("cordoned", s(10), || stage.cordoned(0)).await;
        if is_stale {
            // No replica sees the restart before it writes.
            stage.world.kube.interrupt_watches(Interrupt::Freeze);
        } else {
            stage.world.faults.add(Rule::on("CompleteLifecycleAction", Fault::LostResponse).times(1));
        }
        stage.world.kube.reboot(&node(0));
        sleep(s(5)).await;
        stage.unblock(0);
        stage.until_handled(s(120)).await;
        assert_eq!(stage.results(&token).len(), if is_stale { 1 } else { 2 }, "{}", stage.story());
        sleep(s(120)).await;
        assert!(stage.cordoned(0), "it waits in its pool\n{}", stage.story());
        if !is_stale {
            stage.reboot(0).await;
            stage.until("released", s(5), || !stage.cordoned(0)).await;
            stage.no_trace(0);
        }
        stage.rest(&[&replica]).await;
    }
}

/// A heartbeat shows that the instance has not gone, so its end is that of its pods.
#[tokio::test(start_paused = true)]
async fn a_restart_before_an_accepted_heartbeat_is_no_return() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.start(&[]).await;
    let token = stage.terminate_between(0, s(300), Wrapping::Event, TO_POOL);
    sleep(s(60)).await;
    stage.world.kube.reboot(&node(0));
    stage.until("a heartbeat", s(120), || stage.calls("RecordLifecycleActionHeartbeat") > 0).await;
    sleep(s(10)).await;
    stage.world.aws.autoscaling.complete(&token, HookResult::Continue);
    stage.until_handled(s(300)).await;
    sleep(s(90)).await;
    assert!(stage.cordoned(0) && stage.world.kube.pods().is_empty(), "{}", stage.story());
    stage.reboot(0).await;
    stage.until("released", s(5), || !stage.cordoned(0)).await;
    stage.rest(&[&replica]).await;
}

/// The message comes again to another replica before the return.
#[tokio::test(start_paused = true)]
async fn a_copy_after_the_completion_leaves_the_return_as_it_was() {
    let stage = Stage::new(1, 1);
    let token = completed_but_not_deleted(&stage).await;
    let second = stage.start(&[]).await;
    stage.until_handled(s(300)).await;
    assert!(stage.cordoned(0), "{}", stage.story());
    stage.world.kube.reboot(&node(0));
    stage.until("released", s(5), || !stage.cordoned(0)).await;
    assert_eq!(stage.results(&token).len(), 2);
    stage.rest(&[&second]).await;
}

/// A spot instance has no hook that keeps it: it is back before its mark, which was written late, is a minute old.
#[tokio::test(start_paused = true)]
async fn a_late_copy_of_a_spot_stop_drains_no_node_that_has_come_back() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let at = stage.world.clock.now();
    let body = messages::spot("s", &instance(0), at).replace("\"terminate\"", "\"stop\"");
    stage.world.aws.ec2.set_state(&instance(0), "stopped");
    sleep(s(590)).await;
    stage.set_ready(0, false);
    stage.world.aws.sqs.send(body);
    let first = stage.start(&[]).await;
    stage.until("cordoned", s(10), || stage.cordoned(0)).await;
    first.kill().await;
    sleep(s(15)).await;
    stage.world.aws.ec2.set_state(&instance(0), "running");
    stage.world.kube.reboot(&node(0));
    stage.set_ready(0, true);
    let second = stage.start(&[]).await;
    stage.until_handled(s(120)).await;
    second.ended_once("spot", "stale");
    stage.until("released", s(5), || !stage.cordoned(0)).await;
    stage.rest(&[&second]).await;
}

/// Nobody ran while the instance went and came back, and with this setting its drain would have time still.
#[tokio::test(start_paused = true)]
async fn a_message_that_is_read_after_the_return_drains_nothing() {
    let limited = ["--max-draining", "1", "--drain-timeout", "asg-terminate=30m"];
    for (flags, failures) in [(&limited[2..], 0), (&limited, 0), (&limited, 5)] {
        let stage = returned().await;
        // With a limit, the hook of an old message asks for itself, too, and hears the answer first.
        let fails = || Rule::on("RecordLifecycleActionHeartbeat", Fault::Disconnect);
        stage.world.faults.add(fails().times(1));
        stage.world.faults.add(fails().after(1).times(failures));
        let replica = stage.start(flags).await;
        stage.until_handled(s(60)).await;
        assert!(
            !stage.cordoned(0) && stage.world.kube.evictions().is_empty(),
            "{flags:?} {failures}\n{}",
            stage.story()
        );
        replica.ended_once("asg-terminate", "stale");
        stage.rest(&[&replica]).await;
    }
}

/// Auto Scaling says too late that the action is over, or never does. What is drained by then is drained within its budgets.
#[tokio::test(start_paused = true)]
async fn a_node_that_had_come_back_before_an_unanswered_question_is_given_back() {
    let off = ["--heartbeat", "off"];
    let cases = [(503, &[][..], 0), (503, &["--max-draining", "1"], 0), (403, &[], 0), (503, &off, 0), (503, &off, 1)];
    for (status, flags, failed_completions) in cases {
        let stage = returned().await;
        let answers = status == 503 && flags != off;
        if answers {
            stage.block(0);
        }
        stage.world.faults.add(Rule::on("RecordLifecycleActionHeartbeat", Fault::Status(status)));
        let replica = stage.start(flags).await;
        stage.until("cordoned", s(60), || stage.cordoned(0)).await;
        if answers {
            stage.world.faults.clear();
        }
        // Our own completion may have come through, for all that is known of it alone.
        let fails = Rule::on("CompleteLifecycleAction", Fault::Status(503));
        stage.world.faults.add(fails.times(failed_completions));
        stage.until_handled(s(600)).await;
        stage.until("released", s(120), || !stage.cordoned(0)).await;
        assert_eq!(stage.has_pod("web-0-0"), answers, "{status} {flags:?}\n{}", stage.story());
        stage.no_trace(0);
        stage.rest(&[&replica]).await;
    }
}

/// As above, but the node has only flapped: a heartbeat that is accepted later tells.
#[tokio::test(start_paused = true)]
async fn a_node_that_flapped_before_an_unanswered_question_goes_with_its_hook() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let token = stage.terminate_between(0, s(300), Wrapping::Event, TO_POOL);
    sleep(s(10)).await;
    stage.flap(0).await;
    stage.world.faults.add(Rule::on("RecordLifecycleActionHeartbeat", Fault::Status(503)));
    let replica = stage.start(&[]).await;
    stage.until("cordoned", s(60), || stage.cordoned(0)).await;
    stage.world.faults.clear();
    // A heartbeat later.
    sleep(s(240)).await;
    stage.unblock(0);
    stage.until_handled(s(60)).await;
    stage.completed_once(&token);
    replica.ended_once("asg-terminate", "drained");
    sleep(s(300)).await;
    assert!(stage.cordoned(0), "it waits in its pool\n{}", stage.story());
    stage.reboot(0).await;
    stage.until("released", s(5), || !stage.cordoned(0)).await;
    stage.rest(&[&replica]).await;
}

/// As above, and the completion fails for longer than the drain would have had.
#[tokio::test(start_paused = true)]
async fn a_node_that_flapped_stays_cordoned_until_its_hook_can_be_completed() {
    let stage = Stage::new(1, 1);
    let token = stage.terminate_between(0, s(3600), Wrapping::Event, TO_POOL);
    sleep(s(10)).await;
    stage.flap(0).await;
    stage.world.faults.add(Rule::on("RecordLifecycleActionHeartbeat", Fault::Status(503)));
    stage.world.faults.add(Rule::on("CompleteLifecycleAction", Fault::Status(503)));
    let replica = stage.start(&["--drain-timeout", "asg-terminate=2m"]).await;
    stage.until("drained", s(60), || stage.world.kube.pods().is_empty()).await;
    sleep(s(900)).await;
    assert!(stage.cordoned(0), "pods would come, and go with it\n{}", stage.story());
    stage.world.faults.clear();
    stage.until_handled(s(60)).await;
    stage.completed_once(&token);
    sleep(s(300)).await;
    assert!(stage.cordoned(0), "it waits in its pool\n{}", stage.story());
    stage.reboot(0).await;
    stage.until("released", s(65), || !stage.cordoned(0)).await;
    stage.rest(&[&replica]).await;
}

/// It restarted for a scheduled change, and its hook waits, as a heartbeat shows.
#[tokio::test(start_paused = true)]
async fn a_restart_for_another_event_is_no_return_if_the_hook_waits() {
    let stage = Stage::new(1, 0);
    let replica = stage.start(&[]).await;
    let start = stage.world.clock.now() + s(60);
    stage.health(0, ("h", "AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED"), start, "upcoming");
    stage.until_handled(s(30)).await;
    stage.world.faults.add(Rule::on("ReceiveMessage", Fault::Hang));
    // The receive that is under way ends.
    sleep(s(25)).await;
    let token = stage.terminate_between(0, s(600), Wrapping::Event, TO_POOL);
    sleep(s(40)).await;
    stage.world.kube.reboot(&node(0));
    stage.until("released", s(5), || !stage.cordoned(0)).await;
    stage.world.kube.add_pod(Pod::on(&node(0)).named("new"));
    stage.world.faults.clear();
    stage.until_handled(s(300)).await;
    stage.completed_once(&token);
    assert!(stage.world.kube.pods().is_empty(), "{}", stage.story());
    replica.ended_once("asg-terminate", "drained");
    stage.rest(&[&replica]).await;
}

/// The deletion of its message has failed.
#[tokio::test(start_paused = true)]
async fn a_copy_that_comes_after_the_release_drains_nothing() {
    let stage = Stage::new(1, 1);
    completed_but_not_deleted(&stage).await;
    stage.world.faults.add(Rule::on("ReceiveMessage", Fault::Hang));
    stage.reboot(0).await;
    let second = stage.start(&[]).await;
    stage.until("released", s(400), || !stage.cordoned(0)).await;
    stage.world.kube.add_pod(Pod::on(&node(0)).named("new"));
    stage.world.faults.clear();
    stage.until_handled(s(300)).await;
    assert!(!stage.cordoned(0) && stage.has_pod("new"), "{}", stage.story());
    second.ended_once("asg-terminate", "stale");
    stage.rest(&[&second]).await;
}

/// A Node that has only flapped is drained: its hook waits, as a heartbeat shows.
#[tokio::test(start_paused = true)]
async fn a_node_that_became_ready_since_its_notice_is_drained_if_its_hook_waits() {
    let stage = Stage::new(1, 1);
    let token = stage.terminate_between(0, s(3600), Wrapping::Event, TO_POOL);
    sleep(s(10)).await;
    stage.reboot(0).await;
    let replica = stage.start(&[]).await;
    stage.until_handled(s(60)).await;
    stage.completed_once(&token);
    assert!(stage.cordoned(0) && stage.world.kube.pods().is_empty(), "{}", stage.story());
    replica.ended_once("asg-terminate", "drained");
    stage.rest(&[&replica]).await;
}

/// The hook is left, and its end stays what others made of it.
#[tokio::test(start_paused = true)]
async fn a_node_whose_hook_others_completed_is_released_after_its_return_though_the_hook_was_left() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.start(&["--on-failed-drain", "leave", "--at-deadline", "leave"]).await;
    let token = stage.terminate_between(0, s(3600), Wrapping::Event, TO_POOL);
    // Before the first heartbeat, which goes out at half-time or somewhat earlier.
    sleep(s(1500)).await;
    stage.world.aws.autoscaling.complete(&token, HookResult::Continue);
    stage.until_handled(s(400)).await;
    stage.reboot(0).await;
    stage.until("released", s(65), || !stage.cordoned(0)).await;
    stage.rest(&[&replica]).await;
}
