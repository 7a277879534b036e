//! Messages that somebody has made so that they meet the marks of others, fill a Node with marks, or press a real drain.

use super::admission::{MARKED, VERIFIED, request};
use crate::harness::{Stage, instance, node, s};
use ebbtide_sim::aws::HookSpec;
use ebbtide_sim::messages::{self, Wrapping};
use jiff::Timestamp;
use tokio::time::sleep;

const STOP: &str = "AWS_EC2_INSTANCE_STOP_SCHEDULED";

fn now(stage: &Stage) -> Timestamp {
    stage.world.clock.now()
}

fn drained(stage: &Stage, n: usize) -> bool {
    stage.world.kube.pods_on(&node(n)).is_empty()
}

fn hibernation(stage: &Stage, n: usize, id: &str) {
    let body = messages::spot(id, &instance(n), now(stage));
    stage.world.aws.sqs.send(body.replace("\"terminate\"", "\"hibernate\""));
}

/// A mark is named after the identity of its notice, which for some has parts that a message chooses.
#[tokio::test(start_paused = true)]
async fn no_message_has_the_identity_of_what_a_node_says() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.with_both("a", &VERIFIED).await;
    stage.world.aws.autoscaling.join("group", &instance(0));
    stage.world.aws.autoscaling.add_hook("group", "hook", HookSpec::terminating(s(3600)));
    stage.world.aws.autoscaling.begin("group", "hook", &instance(0));
    stage.says_termination(0);
    stage.until("cordoned", s(60), || stage.cordoned(0)).await;
    let real = messages::scheduled_change("c-0", STOP, &[&instance(0)], now(&stage), now(&stage));
    let mut event: serde_json::Value = serde_json::from_str(&real).unwrap();
    let detail = event["detail"].as_object_mut().unwrap();
    detail.insert("eventArn".to_owned(), "node/asg-terminate".into());
    detail.insert("statusCode".to_owned(), "closed".into());
    detail.remove("startTime");
    stage.world.aws.sqs.send(event.to_string());
    let id = instance(0);
    for token in [id.clone(), format!("x/{id}")] {
        let names = ("node", "asg-terminate", &*token);
        stage.world.aws.sqs.send(messages::lifecycle(Wrapping::Event, true, names, &id, now(&stage)));
    }
    stage.world.aws.sqs.send(messages::capacity_block("b", "node/asg-terminate", now(&stage), now(&stage)));
    sleep(s(300)).await;
    assert!(stage.cordoned(0), "{}", stage.story());
    assert_eq!(stage.notices(0).len(), 1, "{}", stage.story());
    let bad = "reason=\"bad-value\"} 4";
    let text = replica.metrics.render(&replica.tasks);
    assert!(text.contains(bad), "{text}");
    stage.unblock(0);
    stage.until("drained", s(60), || drained(&stage, 0)).await;
    drop(replica);
}

/// All annotations of a Node share 256 KiB, and all replicas hold them.
#[tokio::test(start_paused = true)]
async fn planned_changes_leave_room_for_marks() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.start(&["--when", "scheduled-change=2h-before", "--on", "rebalance=drain"]).await;
    let start = now(&stage) + s(25 * 24 * 3600);
    for n in 0..60 {
        let body = messages::scheduled_change(&format!("c-{n}"), STOP, &[&instance(0)], now(&stage), start + s(n));
        let mut event: serde_json::Value = serde_json::from_str(&body).unwrap();
        for field in ["eventArn", "eventTypeCode"] {
            let text = event["detail"][field].as_str().unwrap();
            // Two bytes each in JSON.
            event["detail"][field] = format!("{text}{}", "\\".repeat(2048 - text.len())).into();
        }
        stage.world.aws.sqs.send(event.to_string());
    }
    sleep(s(300)).await;
    let bytes = stage.annotations(0).iter().map(|(key, value)| key.len() + value.len()).sum::<usize>();
    assert!(bytes < 128 * 1024, "{bytes} bytes of annotations");
    drop(replica);
}

/// EC2 marks the request of an instance that it terminates in two minutes. Others press its drain.
#[tokio::test(start_paused = true)]
async fn a_real_interruption_confirms_none_that_ends_sooner() {
    for is_dated_back in [false, true] {
        let stage = Stage::new(1, 1);
        stage.block(0);
        let there = stage.with_own_queue();
        let (replica, other) = (stage.start(&VERIFIED).await, there.start(&VERIFIED).await);
        request(&stage, 0, MARKED);
        stage.spot(0);
        stage.until("confirmed", s(10), || stage.cordoned(0)).await;
        for (n, stage) in [&stage, &there].into_iter().enumerate() {
            let id = format!("forged-{n}");
            if is_dated_back {
                stage.world.aws.sqs.send(messages::spot(&id, &instance(0), now(stage) - s(118)));
            } else {
                hibernation(stage, 0, &id);
            }
        }
        sleep(s(60)).await;
        assert!(stage.has_pod("web-0-0"), "dated back: {is_dated_back}\n{}", stage.story());
        stage.until("drained in time", s(58), || drained(&stage, 0)).await;
        drop((replica, other));
    }
}

/// What an instance that hibernates has is confirmed at once.
#[tokio::test(start_paused = true)]
async fn a_hibernation_is_confirmed_by_what_the_request_says() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&VERIFIED).await;
    stage.world.aws.ec2.set_spot_request(&instance(0), "marked-for-stop", "hibernate", now(&stage));
    hibernation(&stage, 0, "h-0");
    stage.until("drained", s(10), || drained(&stage, 0)).await;
    stage.until_handled(s(60)).await;
    stage.rest(&[&replica]).await;
}

/// One replica drains for a reboot that EC2 lists; a message that another receives has the same begin, and another end.
#[tokio::test(start_paused = true)]
async fn a_listed_reboot_confirms_no_stop() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let there = stage.with_own_queue();
    let start = now(&stage) + s(900);
    stage.world.aws.ec2.schedule(&instance(0), ("change-0", "system-reboot"), start);
    let flags = [&VERIFIED[..], &["--ec2-poll-interval", "1m"]].concat();
    let replica = stage.start(&flags).await;
    stage.until("EC2 lists it", s(200), || stage.cordoned(0)).await;
    let other = there.start(&flags).await;
    there.health(0, ("c-1", STOP), start, "upcoming");
    while now(&stage) < start - s(1) {
        sleep(s(1)).await;
    }
    assert!(stage.has_pod("web-0-0"), "a budget is overridden\n{}", stage.story());
    drop((replica, other));
}
