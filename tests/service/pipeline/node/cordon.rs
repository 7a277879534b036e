//! The cordon: nothing is evicted before it, failures are retried, and an uncordon by somebody else counts.

use crate::drains::ended;
use crate::harness::{Stage, instance, node, s};
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::Interrupt;
use ebbtide_sim::messages::{self, Wrapping};
use tokio::time::sleep;

const PATCH: &str = "patch nodes";

#[tokio::test(start_paused = true)]
async fn nothing_is_evicted_before_the_cordon_is_accepted() {
    let stage = Stage::new(1, 1);
    stage.world.faults.add(Rule::on("patch nodes", Fault::Status(403)));
    let replica = stage.start(&[]).await;
    stage.spot(0);
    sleep(s(34)).await;
    assert_eq!((stage.calls("list pods"), stage.calls("create pods/eviction")), (0, 0));
    assert_eq!(stage.world.aws.sqs.in_flight(), 1, "held");
    stage.world.faults.clear();
    stage.until_handled(s(20)).await;
    assert_eq!(stage.world.kube.pods().len(), 0);
    stage.rest(&[&replica]).await;
}

/// A pod on a node that goes is worth more than the order of cordon and eviction.
#[tokio::test(start_paused = true)]
async fn before_a_hard_deadline_pods_are_evicted_even_if_the_cordon_keeps_failing() {
    let stage = Stage::new(1, 2);
    stage.world.faults.add(Rule::on("patch nodes", Fault::Status(403)));
    let replica = stage.start(&[]).await;
    stage.spot(0);
    stage.until("evicted", s(42), || stage.world.kube.pods().is_empty()).await;
    stage.until_handled(s(3)).await;
    replica.ended_once("spot", "drained");
    assert!(stage.world.kube.evictions().iter().all(|evicted| evicted.at >= s(35)), "{}", stage.story());
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn an_uncordoned_node_that_is_drained_is_cordoned_as_soon_as_that_works() {
    let stage = Stage::slow(s(25));
    stage.world.faults.add(Rule::on("patch nodes", Fault::Status(403)));
    let replica = stage.start(&[]).await;
    stage.spot(0);
    stage.until("evicted", s(42), || !stage.world.kube.evictions().is_empty()).await;
    stage.world.faults.clear();
    stage.until("cordoned", s(3), || stage.cordoned(0)).await;
    stage.until_handled(s(30)).await;
    replica.ended_once("spot", "drained");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn an_admission_policy_that_refuses_the_cordon_holds_everything() {
    for (code, category) in [(403, "denied"), (422, "invalid")] {
        let stage = Stage::new(1, 2);
        stage.world.faults.add(Rule::on(PATCH, Fault::Status(code)));
        let replica = stage.start(&[]).await;
        let token = stage.terminate(0, s(600), Wrapping::Event);
        sleep(s(120)).await;
        assert_eq!((stage.calls("list pods"), stage.calls("create pods/eviction")), (0, 0), "{code}");
        assert_eq!((stage.world.aws.sqs.in_flight(), stage.world.aws.sqs.receive_log().len()), (1, 1), "held");
        let tries = stage.calls(PATCH);
        assert!((24..=60).contains(&tries), "one every 2.5 to 5 s: {tries}");
        let told = replica.metric(&format!("ebbtide_retries_total{{category=\"{category}\",step=\"cordon\"}}"));
        assert!((told - tries as f64).abs() < f64::EPSILON, "{told} of {tries}");
        stage.world.faults.clear();
        stage.until_handled(s(15)).await;
        assert_eq!(stage.world.kube.evictions().len(), 2);
        stage.completed_once(&token);
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_cordon_that_is_never_accepted_ends_at_a_soft_deadline_without_an_eviction() {
    let stage = Stage::new(1, 2);
    stage.world.faults.add(Rule::on(PATCH, Fault::Status(422)));
    let replica = stage.start(&["--drain-timeout", "50s"]).await;
    let token = stage.terminate(0, s(60), Wrapping::Event);
    sleep(s(35)).await;
    assert_eq!(stage.calls("CompleteLifecycleAction"), 0);
    stage.until_handled(s(10)).await;
    assert_eq!((stage.world.kube.pods().len(), stage.calls("create pods/eviction")), (2, 0));
    replica.ended_as("asg-terminate", "failed", 1);
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_hibernating_node_whose_cordon_fails_once_is_still_evicted() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&[]).await;
    stage.world.faults.add(Rule::on("patch nodes", Fault::Status(500)).times(1));
    let detail = serde_json::json!({ "instance-id": instance(0), "instance-action": "hibernate" });
    let now = stage.world.clock.now();
    stage.world.aws.ec2.set_spot_request(&instance(0), "marked-for-stop", "hibernate", now);
    stage.world.aws.sqs.send(messages::event("aws.ec2", "EC2 Spot Instance Interruption Warning", "h", now, &detail));
    sleep(s(20)).await;
    assert_eq!(ended(&stage).len(), 1, "{}", stage.story());
    stage.rest(&[&replica]).await;
}

/// The cordon fails once for a notice that arrives at its deadline; pods are evicted all the same.
#[tokio::test(start_paused = true)]
async fn a_cordon_that_fails_once_at_the_deadline_still_leads_to_evictions() {
    let stage = Stage::new(1, 2);
    let replica = stage.start(&[]).await;
    let now = stage.world.clock.now();
    stage.world.faults.add(Rule::on("patch nodes", Fault::Status(500)).times(1));
    stage.world.aws.ec2.set_spot_request(&instance(0), "marked-for-stop", "hibernate", now);
    stage.world.aws.sqs.send(messages::spot("h", &instance(0), now).replace("\"terminate\"", "\"hibernate\""));
    stage.until_handled(s(30)).await;
    assert!(stage.calls("create pods/eviction") > 0 && stage.cordoned(0), "{}", stage.story());
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_cordon_removed_during_the_drain_is_set_again_once() {
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
    assert!(stage.results(&token).is_empty(), "a completion would end the instance with its pod");
    sleep(s(35)).await;
    stage.no_trace(0);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_and_a_lagging_watch_are_not_taken_for_an_uncordon() {
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
async fn a_cordon_that_always_conflicts_is_forgone_before_a_hard_deadline() {
    let stage = Stage::new(1, 2);
    stage.world.faults.add(Rule::on("patch nodes", Fault::Status(409)));
    let replica = stage.start(&[]).await;
    stage.spot(0);
    sleep(s(60)).await;
    assert_eq!(stage.world.kube.evictions().len(), 2, "{}", stage.story());
    stage.world.faults.clear();
    stage.until_handled(s(70)).await;
    stage.rest(&[&replica]).await;
}

/// Another replica cordons for a recommendation that expires at once: that is no uncordon by hand.
#[tokio::test(start_paused = true)]
async fn marks_of_others_that_come_and_go_do_not_end_a_drain_whose_cordon_is_forgone() {
    let stage = Stage::slow(s(60));
    stage.world.faults.add(Rule::on("patch nodes", Fault::Status(403)));
    let replica = stage.start(&[]).await;
    stage.spot(0);
    sleep(s(50)).await;
    for comes in [true, false] {
        stage.world.kube.update_node(&node(0), |node| {
            node.spec.get_or_insert_default().unschedulable = comes.then_some(true);
            let annotations = node.metadata.annotations.get_or_insert_default();
            annotations.clear();
            if comes {
                let mark = r#"{"kind":"rebalance-recommendation","message":"m"}"#;
                annotations.insert("ebbtide/notice.0123456789abcdef".into(), mark.into());
                annotations.insert("ebbtide/undo".into(), r#"{"cordon":true}"#.into());
            }
        });
        sleep(s(1)).await;
    }
    stage.world.faults.clear();
    stage.until_handled(s(70)).await;
    replica.ended_once("spot", "drained");
    assert!(stage.cordoned(0), "the drain's own cordon came as soon as it could");
    stage.rest(&[&replica]).await;
}

/// The mark comes with the cordon, or nobody would know to remove that.
#[tokio::test(start_paused = true)]
async fn a_forgone_cordon_that_is_set_later_is_undone_after_the_reboot() {
    let stage = Stage::slow(s(100));
    stage.world.faults.add(Rule::on("patch nodes", Fault::Status(403)));
    let replica = stage.start(&[]).await;
    stage.replace_root_volume(0, true);
    sleep(s(260)).await;
    assert!(!stage.cordoned(0));
    stage.world.faults.clear();
    stage.until_handled(s(200)).await;
    assert!(stage.cordoned(0), "{}", stage.story());
    stage.reboot(0).await;
    stage.until("uncordoned", s(300), || !stage.cordoned(0)).await;
    stage.no_trace(0);
    stage.rest(&[&replica]).await;
}
