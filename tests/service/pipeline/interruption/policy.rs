//! Actions and timeouts of each kind of notice, by default and by `--on` and `--drain-timeout`.

use crate::harness::{Stage, instance, node, s};
use ebbtide_sim::aws::HookSpec;
use ebbtide_sim::messages::{self, Wrapping};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

const COMPLETE: &str = "CompleteLifecycleAction";

#[tokio::test(start_paused = true)]
async fn every_kind_has_its_default_action() {
    let stage = Stage::new(6, 1);
    let replica = stage.start(&["--max-draining=none"]).await;
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
async fn flags_change_the_action_of_a_kind() {
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
async fn a_timeout_for_one_kind_overrides_the_general_one() {
    let stage = Stage::new(2, 1);
    stage.block(0);
    stage.block(1);
    let timeouts = ["--drain-timeout", "30s", "--drain-timeout", "asg-terminate=10m", "--at-deadline", "leave"];
    let replica = stage.start(&timeouts).await;
    let begun = Instant::now();
    let token = stage.terminate(0, s(60), Wrapping::Event);
    let spot = stage.spot(1);
    sleep_until(begun + s(29)).await;
    assert_eq!(stage.world.aws.sqs.deleted(), Vec::<String>::new());
    stage.until("the general one", s(3), || stage.world.aws.sqs.deleted() == [spot.clone()]).await;
    // 600 s less a margin of 6.
    sleep_until(begun + s(593)).await;
    assert_eq!(stage.calls(COMPLETE), 0);
    stage.until_handled(s(3)).await;
    stage.completed_once(&token);
    stage.beats_apart(&token, Duration::from_secs(27));
    replica.ended_as("spot", "blocked", 1);
    stage.rest(&[&replica]).await;
}
