//! Deadlines: an eviction first, a deletion with a grace period in time where the capacity goes, and none where only patience ends.

use crate::harness::{Replica, Stage, instance, node, s};
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::{By, Limit, Pod};
use ebbtide_sim::messages::{self, Wrapping};
use k8s_openapi::api::core::v1::Pod as FullPod;
use kube::api::DeleteParams;
use serde_json::json;
use std::time::Duration;
use tokio::time::sleep;

const DELETE: &str = "delete pods";

/// On the first node a pod that uses up whatever grace it is given.
fn add(stage: &Stage, name: &str, grace: Duration) {
    stage.world.kube.add_pod(Pod::on(&node(0)).named(name).grace(grace).stops_in(None::<Duration>));
}

/// A node with such a pod, `held`, whose budget lets nothing go.
fn held(grace: Duration) -> Stage {
    let stage = Stage::new(1, 0);
    add(&stage, "held", grace);
    stage.block(0);
    stage
}

fn rebalance(stage: &Stage, n: usize) -> String {
    let body = messages::rebalance(&format!("rebalance-{n}"), &instance(n), stage.world.clock.now());
    stage.world.aws.sqs.send(body)
}

fn deleted(stage: &Stage, message: &str) -> bool {
    stage.world.aws.sqs.deleted().iter().any(|deleted| deleted == message)
}

/// Asserts that a pod was deleted once, that evictions were tried before, and that its grace ended before `deadline`. Gives the grace.
fn deleted_in_time(stage: &Stage, pod: &str, deadline: Duration) -> i64 {
    let (ends, tries) = (stage.ends_of(pod), stage.tries_of(pod));
    let [end] = ends.as_slice() else { panic!("{ends:?}\n{}", stage.story()) };
    let grace = end.grace.expect("a deletion must say how long the pod has");
    assert_eq!(end.by, By::Delete, "{end:?}");
    assert!(tries.first().is_some_and(|first| *first <= end.at), "nobody tried to evict it: {tries:?} {end:?}");
    assert!(grace > 0 && end.at + s(grace.unsigned_abs()) < deadline, "{end:?} for {deadline:?}");
    assert!(!stage.has_pod(pod));
    grace
}

fn blocked_pods(replica: &Replica) -> u64 {
    let text = replica.metrics.render(&replica.tasks);
    let value =
        text.lines().find_map(|line| line.strip_prefix("ebbtide_pods_blocked ")).expect("the gauge must be there");
    value.parse().expect("the gauge must be a whole number")
}

#[tokio::test(start_paused = true)]
async fn a_budget_without_room_under_a_spot_notice_with_twenty_seconds_left() {
    let stage = held(s(30));
    let replica = stage.start(&[]).await;
    stage.spot_of_age(0, s(100));
    sleep(Duration::from_millis(4900)).await;
    assert!(stage.tries_of("held").len() >= 3, "{}", stage.story());
    assert_eq!(stage.calls(DELETE), 0, "a quarter of the time belongs to evictions");
    stage.until_handled(s(15)).await;
    let grace = deleted_in_time(&stage, "held", s(20));
    assert!(grace >= 12, "as much of its 30 s as there is: {grace}");
    assert_eq!(stage.calls(DELETE), 1);
    replica.ended_once("spot", "drained");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn with_time_enough_a_held_pod_is_deleted_as_late_as_its_grace_allows() {
    let stage = held(s(30));
    let replica = stage.start(&[]).await;
    stage.spot(0);
    sleep(s(87)).await;
    assert_eq!(stage.calls(DELETE), 0);
    assert_eq!(blocked_pods(&replica), 1);
    stage.until_handled(s(33)).await;
    let grace = deleted_in_time(&stage, "held", s(120));
    assert!((29..=30).contains(&grace), "its own: {grace}");
    replica.ended_once("spot", "drained");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_grace_period_longer_than_the_time_is_shortened_with_the_eviction() {
    let stage = Stage::new(1, 0);
    add(&stage, "slow", s(300));
    let replica = stage.start(&[]).await;
    stage.spot(0);
    stage.until_handled(s(120)).await;
    let ends = stage.ends_of("slow");
    assert_eq!(ends.len(), 1, "{ends:?}");
    assert_eq!(ends[0].by, By::Eviction);
    assert!(matches!(ends[0].grace, Some(117..=118)), "{ends:?}");
    assert_eq!((stage.calls("create pods/eviction"), stage.calls(DELETE)), (1, 0));
    replica.ended_once("spot", "drained");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_spot_warning_hurries_the_pods_of_a_lifecycle_drain_once() {
    let stage = Stage::new(1, 0);
    add(&stage, "slow", s(600));
    let replica = stage.start(&[]).await;
    let token = stage.terminate(0, s(3600), Wrapping::Event);
    sleep(s(60)).await;
    let ends: Vec<_> = stage.ends_of("slow").into_iter().map(|end| (end.by, end.grace)).collect();
    assert_eq!(ends, [(By::Eviction, None)]);
    stage.spot(0);
    stage.until_handled(s(120)).await;
    let ends = stage.ends_of("slow");
    assert_eq!((ends.len(), ends[1].by), (2, By::Delete), "{ends:?}");
    assert!(matches!(ends[1].grace, Some(116..=118)), "{ends:?}");
    assert_eq!((stage.calls(DELETE), stage.tries_of("slow").len()), (1, 1));
    stage.completed_once(&token);
    replica.ended_once("spot", "drained");
    replica.ended_once("asg-terminate", "drained");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_somebody_else_deleted_with_a_long_grace_is_hurried_once() {
    let stage = Stage::new(1, 0);
    add(&stage, "slow", s(900));
    add(&stage, "quick", s(40));
    let replica = stage.start(&[]).await;
    let pods: kube::Api<FullPod> = kube::Api::namespaced(stage.world.kube.client(), "default");
    for name in ["slow", "quick"] {
        pods.delete(name, &DeleteParams::default()).await.unwrap();
    }
    sleep(s(10)).await;
    stage.spot(0);
    stage.until_handled(s(120)).await;
    let ours = |name| stage.ends_of(name).into_iter().skip(1).map(|end| (end.by, end.grace)).collect::<Vec<_>>();
    assert!(matches!(ours("slow").as_slice(), [(By::Delete, Some(116..=118))]), "{:?}", ours("slow"));
    assert_eq!(ours("quick"), [], "in time by itself");
    assert_eq!(stage.calls("create pods/eviction"), 0);
    replica.ended_once("spot", "drained");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_soft_deadline_never_deletes_past_a_budget() {
    let stage = held(s(30));
    add(&stage, "slow", s(600));
    let replica = stage.start(&["--on", "rebalance=drain", "--drain-timeout", "rebalance=60s"]).await;
    rebalance(&stage, 0);
    sleep(s(59)).await;
    assert_eq!((stage.world.aws.sqs.in_flight(), blocked_pods(&replica)), (1, 1));
    stage.until_handled(s(2)).await;
    assert_eq!(stage.calls(DELETE), 0);
    assert_eq!(stage.ends_of("held"), []);
    let graces: Vec<_> = stage.ends_of("slow").into_iter().map(|end| end.grace).collect();
    assert_eq!(graces, [None], "its own: the node does not go away");
    assert!(stage.has_pod("held") && stage.has_pod("slow"));
    replica.ended_once("rebalance", "blocked");
    stage.rest(&[&replica]).await;
    assert!(stage.has_pod("held") && stage.calls(DELETE) == 0);
}

#[tokio::test(start_paused = true)]
async fn who_wants_it_so_has_pods_left_at_the_deadline() {
    let stage = held(s(30));
    let replica = stage.start(&["--at-deadline", "leave"]).await;
    stage.spot(0);
    sleep(s(119)).await;
    assert_eq!(blocked_pods(&replica), 1);
    stage.until_handled(s(2)).await;
    assert!(stage.has_pod("held"));
    assert_eq!((stage.ends_of("held").len(), stage.calls(DELETE)), (0, 0));
    replica.ended_once("spot", "blocked");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn with_no_time_left_evictions_come_first_and_then_deletions_with_a_second_of_grace() {
    let hibernate = json!({ "instance-id": instance(0), "instance-action": "hibernate" });
    let (kind, now) = ("EC2 Spot Instance Interruption Warning", Duration::ZERO);
    for (age, action) in [(now, Some(hibernate)), (s(119), None), (s(170), None)] {
        let stage = held(s(30));
        add(&stage, "free", s(300));
        stage.world.kube.add_pod(Pod::on(&node(0)).named("critical").priority(2_000_000_000));
        let replica = stage.start(&[]).await;
        match &action {
            Some(hibernate) => {
                let at = stage.world.clock.now();
                stage.world.aws.sqs.send(messages::event("aws.ec2", kind, "hibernate", at, hibernate))
            }
            None => stage.spot_of_age(0, age),
        };
        stage.until_handled(s(4)).await;
        let ends = |name| stage.ends_of(name).into_iter().map(|end| (end.by, end.grace)).collect::<Vec<_>>();
        assert_eq!(ends("free"), [(By::Eviction, Some(1))], "{age:?}");
        assert_eq!(ends("held"), [(By::Delete, Some(1))], "{age:?}");
        assert_eq!(ends("critical"), [(By::Eviction, Some(1))], "{age:?}");
        assert_eq!(deleted_in_time(&stage, "held", s(3)), 1);
        replica.ended_once("spot", "drained");
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_moves_nearer_reaches_a_pod_that_is_held_back() {
    let stage = held(s(30));
    let replica = stage.start(&[]).await;
    let token = stage.terminate(0, s(3600), Wrapping::Event);
    sleep(s(300)).await;
    stage.spot(0);
    sleep(s(87)).await;
    assert_eq!(stage.calls(DELETE), 0);
    stage.until_handled(s(33)).await;
    let grace = deleted_in_time(&stage, "held", s(420));
    assert!((29..=30).contains(&grace), "{grace}");
    stage.completed_once(&token);
    replica.ended_once("spot", "drained");
    replica.ended_once("asg-terminate", "drained");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_soft_deadline_ends_its_own_notice_only() {
    for spot_after in [s(0), s(20)] {
        let stage = held(s(30));
        let replica = stage.start(&["--on", "rebalance=drain", "--drain-timeout", "rebalance=30s"]).await;
        let first = rebalance(&stage, 0);
        sleep(spot_after).await;
        let second = stage.spot(0);
        sleep(s(29) - spot_after).await;
        assert!(!deleted(&stage, &first));
        stage.until("the first ended", s(2), || deleted(&stage, &first)).await;
        replica.ended_once("rebalance", "blocked");
        assert!(!deleted(&stage, &second) && stage.has_pod("held"));
        let tries = stage.tries_of("held").len();
        sleep(s(20)).await;
        assert!(stage.tries_of("held").len() > tries, "the second goes on");
        assert_eq!(blocked_pods(&replica), 1);
        stage.until_handled(s(70) + spot_after).await;
        let grace = deleted_in_time(&stage, "held", spot_after + s(120));
        assert!((29..=30).contains(&grace), "{grace}");
        replica.ended_once("spot", "drained");
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_soft_deadline_just_before_a_hard_one_takes_no_pods_grace_away() {
    let stage = held(s(30));
    add(&stage, "slow", s(300));
    let replica = stage.start(&["--on", "rebalance=drain", "--drain-timeout", "rebalance=115s"]).await;
    rebalance(&stage, 0);
    stage.spot(0);
    stage.until_handled(s(121)).await;
    let grace = deleted_in_time(&stage, "held", s(120));
    assert!((29..=30).contains(&grace), "its own: {grace}");
    let slow = stage.ends_of("slow");
    assert!(slow.len() <= 2 && slow.last().is_some_and(|end| matches!(end.grace, Some(117..=118))), "{slow:?}");
    replica.ended_once("spot", "drained");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn each_kind_has_its_own_timeout() {
    let stage = Stage::new(3, 1);
    (0..3).for_each(|n| stage.block(n));
    let timeouts = ["--drain-timeout", "5m", "--drain-timeout", "rebalance=45s,asg-terminate=90s"];
    let flags = [&["--on", "rebalance=drain", "--at-deadline", "leave"], timeouts.as_slice()].concat();
    let replica = stage.start(&flags).await;
    let first = rebalance(&stage, 0);
    let token = stage.terminate(1, s(60), Wrapping::Event);
    let now = stage.world.clock.now();
    let code = "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED";
    let last = messages::scheduled_change("h", code, &[&instance(2)], now, now + s(86400));
    let last = stage.world.aws.sqs.send(last);
    sleep(s(44)).await;
    assert_eq!(stage.world.aws.sqs.deleted().len(), 0);
    stage.until("the recommendation's end", s(2), || deleted(&stage, &first)).await;
    // A hook's has a tenth of its timeout as a margin.
    sleep(s(37)).await;
    assert_eq!(stage.calls("CompleteLifecycleAction"), 0);
    stage.until("the hook's end", s(2), || stage.calls("CompleteLifecycleAction") == 1).await;
    stage.completed_once(&token);
    sleep(s(213)).await;
    assert!(!deleted(&stage, &last));
    stage.until_handled(s(4)).await;
    for kind in ["rebalance", "asg-terminate", "scheduled-change"] {
        replica.ended_once(kind, "blocked");
    }
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_fails_is_tried_again_until_the_deadline() {
    let stage = held(s(30));
    stage.world.faults.add(Rule::on(DELETE, Fault::Status(500)).times(3));
    stage.world.faults.add(Rule::on(DELETE, Fault::Throttle).times(3));
    let replica = stage.start(&[]).await;
    stage.spot(0);
    stage.until_handled(s(120)).await;
    assert_eq!(stage.calls(DELETE), 7);
    let grace = deleted_in_time(&stage, "held", s(120));
    assert!((10..30).contains(&grace), "what is left of its time: {grace}");
    replica.ended_once("spot", "drained");
    stage.rest(&[&replica]).await;

    let stage = held(s(30));
    stage.world.faults.add(Rule::on(DELETE, Fault::Status(500)));
    let replica = stage.start(&[]).await;
    stage.spot(0);
    sleep(s(119)).await;
    assert_eq!(stage.world.aws.sqs.in_flight(), 1);
    stage.until_handled(s(2)).await;
    let tries = stage.world.calls.of(DELETE);
    assert!((8..40).contains(&tries.len()), "{}", stage.story());
    assert!(tries.last().is_some_and(|last| last.at >= s(115)), "up to the end: {tries:?}");
    replica.ended_once("spot", "blocked");
    stage.rest(&[&replica]).await;
    assert_eq!(stage.world.calls.of(DELETE).len(), tries.len(), "and not after it");
}

#[tokio::test(start_paused = true)]
async fn an_eviction_that_is_never_answered_uses_up_no_pods_time() {
    for age in [s(0), s(100), s(112), s(116)] {
        let stage = held(s(30));
        stage.world.faults.add(Rule::on("create pods/eviction", Fault::Hang));
        let replica = stage.start(&[]).await;
        stage.spot_of_age(0, age);
        stage.until_handled(s(121)).await;
        deleted_in_time(&stage, "held", s(120) - age);
        replica.ended_once("spot", "drained");
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_goes_or_is_replaced_ends_its_drain() {
    for replaced in [false, true] {
        let stage = held(s(30));
        let replica = stage.start(&[]).await;
        let token = stage.terminate(0, s(3600), Wrapping::Event);
        sleep(s(10)).await;
        stage.world.kube.remove_node(&node(0));
        if replaced {
            sleep(s(1)).await;
            stage.world.kube.add_node(&node(0), &instance(0));
            add(&stage, "held", s(30));
            add(&stage, "new", s(30));
        }
        // The same instance under a new Node goes all the same, with what runs there now.
        if replaced {
            stage.until("the new Node's drain", s(5), || stage.cordoned(0)).await;
            stage.unblock(0);
        }
        stage.until_handled(s(if replaced { 60 } else { 3 })).await;
        stage.completed_once(&token);
        replica.ended_once("asg-terminate", "drained");
        stage.rest(&[&replica]).await;
        assert_eq!(stage.world.kube.evictions().len(), if replaced { 2 } else { 0 });
        assert_eq!(stage.cordoned(0), replaced);
        assert_eq!(stage.world.kube.pods_on(&node(0)).len(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stateful_sets_new_pod_of_the_same_name_is_never_ended() {
    for (operation, room) in [("create pods/eviction", 1), (DELETE, 0)] {
        let stage = Stage::new(2, 0);
        let db = Pod::on(&node(0)).named("db-0").statefulset("db").labels([("app", "db")]);
        stage.world.kube.add_pod(db);
        stage.world.kube.add_budget("default", "db", [("app", "db")], Limit::MaxUnavailable(room));
        stage.world.kube.replace(Duration::ZERO);
        // It works, but we are not told, neither by the answer nor by the watch: so it is tried again.
        stage.world.faults.add(Rule::on(operation, Fault::LostResponse).times(1));
        stage.world.faults.add(Rule::on("watch pods", Fault::Hang));
        let old = stage.world.kube.pod("default", "db-0").and_then(|pod| pod.metadata.uid).unwrap();
        let replica = stage.start(&[]).await;
        stage.spot_of_age(0, s(100));
        stage.until_handled(s(21)).await;
        let new = stage.world.kube.pod("default", "db-0").unwrap();
        assert_eq!(new.spec.and_then(|spec| spec.node_name).as_deref(), Some("node-1"));
        assert_eq!(new.metadata.deletion_timestamp, None);
        let ended: Vec<_> = stage.ends_of("db-0").into_iter().map(|end| end.uid).collect();
        assert_eq!(ended, [old], "{operation}");
        let refused = stage.world.calls.of(operation).into_iter().filter(|call| call.status == 409);
        assert_eq!(refused.count(), 1, "the second try meant the old pod\n{}", stage.story());
        replica.ended_once("spot", "drained");
        stage.rest(&[&replica]).await;
    }
}
