//! Bad input, and an API server with troubles of its own.

use crate::harness::{Stage, instance, node, s, seed};
use ebbtide::clients::CALL_TIMEOUT;
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::{Interrupt, Pod};
use ebbtide_sim::messages::Wrapping;

#[tokio::test(start_paused = true)]
async fn poison_costs_itself_alone() {
    let stage = Stage::new(3, 1);
    let sqs = &stage.world.aws.sqs;
    let huge = "x".repeat(200_000);
    let poison = ["", "not json", "[]", "{}", "null", r#"{"source":"aws.ec2"}"#, "{\"detail\":", "\u{0}\u{1}", &huge];
    for (n, body) in poison.iter().enumerate() {
        sqs.send(*body);
        if n < 3 {
            stage.spot(n);
        }
    }
    sqs.send(r#"{"Event":"autoscaling:TEST_NOTIFICATION","Service":"AWS Auto Scaling"}"#);
    let replica = stage.start(&[]).await;
    stage.until_handled(s(20)).await;
    assert_eq!(stage.world.kube.pods().len(), 0);
    let counted: f64 = ["not-json", "unknown-shape", "missing-field", "bad-value"]
        .map(|reason| replica.metric(&format!("ebbtide_messages_malformed_total{{reason=\"{reason}\"}}")))
        .iter()
        .sum();
    assert!((counted - poison.len() as f64).abs() < f64::EPSILON, "{counted}");
    let ignored = replica.metric("ebbtide_messages_ignored_total{reason=\"test-notification\"}");
    assert!((ignored - 1.0).abs() < f64::EPSILON);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_is_denied_is_asked_more_seldom_than_one_that_fails() {
    // In ten minutes: waits of half to all of 30 s, and of 5 s.
    for (status, often) in [(403, 19..=41), (503, 120..=241)] {
        let stage = Stage::new(1, 0);
        let replica = stage.start(&[]).await;
        tokio::time::sleep(s(1)).await;
        stage.world.faults.add(Rule::on("ReceiveMessage", Fault::Status(status)));
        tokio::time::sleep(s(30)).await;
        let before = stage.calls("ReceiveMessage");
        tokio::time::sleep(s(600)).await;
        let calls = stage.calls("ReceiveMessage") - before;
        assert!(often.contains(&calls), "{status}: {calls}");
        stage.world.faults.clear();
        stage.spot(0);
        stage.until_handled(s(60)).await;
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_breaks_in_mid_drain_is_no_matter() {
    for how in [Interrupt::Close, Interrupt::Break] {
        let stage = Stage::new(1, 0);
        stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(100)).stops_in(s(20)));
        let replica = stage.start(&[]).await;
        stage.spot(0);
        tokio::time::sleep(s(10)).await;
        stage.world.kube.interrupt_watches(how);
        stage.until_handled(s(15)).await;
        assert_eq!(stage.calls("create pods/eviction"), 1);
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn deletions_missed_by_an_expired_watch_are_found_by_a_list() {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(100)).stops_in(s(20)));
    let replica = stage.start(&[]).await;
    stage.spot(0);
    tokio::time::sleep(s(10)).await;
    stage.world.faults.add(Rule::on("watch pods", Fault::Disconnect).times(4));
    stage.world.kube.interrupt_watches(Interrupt::Break);
    tokio::time::sleep(s(5)).await;
    stage.world.kube.compact();
    stage.until_handled(s(40)).await;
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_replacement_of_the_same_name_is_another_pod() {
    let stage = Stage::new(2, 0);
    let db = |n: usize| Pod::on(&node(n)).named("db-0").statefulset("db").stops_in(s(5));
    stage.world.kube.add_pod(db(0));
    let replica = stage.start(&[]).await;
    // The list is made, but its answer takes so long that the pod in it has been replaced, on another node, when it comes.
    stage.world.faults.add(Rule::on("list pods", Fault::Slow(s(8))).times(1));
    stage.spot(0);
    tokio::time::sleep(s(2)).await;
    stage.world.kube.remove_pod("default", "db-0");
    stage.world.kube.add_pod(db(1));
    stage.until_handled(s(30)).await;
    assert_eq!(stage.world.kube.evictions().len(), 0, "the replacement is not the pod that was listed");
    assert_eq!(stage.calls("create pods/eviction"), 1);
    assert_eq!(stage.world.kube.pods_on(&node(1)).len(), 1);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_rival_writer_loses_nothing_and_stops_nothing() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&[]).await;
    tokio::time::sleep(s(1)).await;
    // The watch tells of the rival's change only later: our patch meets a newer version.
    stage.world.faults.add(Rule::on("patch nodes", Fault::Slow(s(0))));
    stage.world.kube.interrupt_watches(Interrupt::Freeze);
    stage.world.kube.update_node(&node(0), |node| {
        node.metadata.labels.get_or_insert_default().insert("rival".to_owned(), "was-here".to_owned());
    });
    stage.spot(0);
    stage.until("cordoned", s(20), || stage.cordoned(0)).await;
    let labels = stage.world.kube.node(&node(0)).unwrap().metadata.labels.unwrap();
    assert_eq!(labels.get("rival").map(String::as_str), Some("was-here"));
    assert!(stage.calls("get nodes") >= 1, "a conflict is met by a fresh read\n{}", stage.story());
    stage.until_handled(s(130)).await;
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_cordoned_by_a_person_is_not_called_ours() {
    let stage = Stage::new(1, 1);
    stage.world.kube.update_node(&node(0), |node| node.spec.get_or_insert_default().unschedulable = Some(true));
    let replica = stage.start(&[]).await;
    stage.spot(0);
    stage.until_handled(s(30)).await;
    let annotations = stage.world.kube.node(&node(0)).unwrap().metadata.annotations.unwrap();
    assert!(!annotations.contains_key("ebbtide/cordoned"), "{annotations:?}");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_deleted_in_mid_drain_ends_it() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.start(&["--drain-timeout", "10m"]).await;
    let token = stage.terminate(0, s(60), Wrapping::Event);
    tokio::time::sleep(s(30)).await;
    stage.world.kube.remove_node(&node(0));
    stage.until_handled(s(5)).await;
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_deleted_while_its_pods_linger_ends_the_drain_at_once() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    let replica = stage.start(&["--drain-timeout", "10m"]).await;
    let token = stage.terminate(0, s(60), Wrapping::Event);
    tokio::time::sleep(s(30)).await;
    // By way of the API: the pods are collected only 40 s later.
    let nodes: kube::Api<k8s_openapi::api::core::v1::Node> = kube::Api::all(stage.world.kube.client());
    nodes.delete(&node(0), &kube::api::DeleteParams::default()).await.unwrap();
    stage.until_handled(s(5)).await;
    assert_eq!(stage.world.kube.pods_on(&node(0)).len(), 1);
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_budget_that_asks_for_time_is_given_it() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    stage.world.kube.stall_budget("default", "budget-0", true);
    let replica = stage.start(&[]).await;
    stage.spot(0);
    tokio::time::sleep(s(29)).await;
    let tries = stage.calls("create pods/eviction");
    assert!((2..=3).contains(&tries), "one in ten seconds: {tries}");
    stage.unblock(0);
    stage.until_handled(s(20)).await;
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn an_overloaded_api_server_costs_that_time_and_nothing_more() {
    let stage = Stage::new(30, 2);
    let replica = stage.start(&[]).await;
    stage.world.faults.add(Rule::on("create pods/eviction", Fault::Throttle).chance(0.7).times(200));
    stage.world.faults.add(Rule::on("list pods", Fault::Throttle).chance(0.5).times(30));
    for n in 0..30 {
        stage.spot(n);
    }
    stage.until_handled(s(110)).await;
    assert_eq!(stage.world.kube.pods().len(), 0);
    assert_eq!(stage.world.kube.evictions().len(), 60);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_evicted_before_the_cordon_is_accepted() {
    let stage = Stage::new(1, 1);
    stage.world.faults.add(Rule::on("patch nodes", Fault::Status(403)));
    let replica = stage.start(&[]).await;
    stage.spot(0);
    tokio::time::sleep(s(60)).await;
    assert_eq!((stage.calls("list pods"), stage.calls("create pods/eviction")), (0, 0));
    assert_eq!(stage.world.aws.sqs.in_flight(), 1, "held");
    stage.world.faults.clear();
    stage.until_handled(s(20)).await;
    assert_eq!(stage.world.kube.pods().len(), 0);
    stage.rest(&[&replica]).await;
}

/// Whatever fails, by chance and for a while: every node ends up drained, every hook completed once, every message deleted.
#[tokio::test(start_paused = true)]
async fn a_storm_in_bad_weather() {
    for round in 0..4 {
        let stage = Stage { world: ebbtide_sim::World::new(seed().wrapping_add(round)) };
        let mut tokens = Vec::new();
        for n in 0..30 {
            stage.world.kube.add_node(&node(n), &instance(n));
            for pod in 0..3 {
                stage.world.kube.add_pod(Pod::on(&node(n)).named(&format!("web-{n}-{pod}")).stops_in(s(5)));
            }
        }
        let faults = [
            Fault::Throttle,
            Fault::Status(500),
            Fault::Disconnect,
            Fault::LostResponse,
            Fault::Slow(s(3)),
            Fault::Hang,
        ];
        for fault in faults {
            stage.world.faults.add(Rule::on("*", fault).chance(0.04).times(60));
        }
        stage.world.aws.sqs.duplicate_chance(0.1);
        let first = stage.start(&["--drain-timeout", "20m"]).await;
        let second = stage.start(&["--drain-timeout", "20m"]).await;
        for n in 0..30 {
            tokens.push(stage.terminate(n, s(120), if n % 2 == 0 { Wrapping::Event } else { Wrapping::Bare }));
            if n % 3 == 0 {
                stage.spot(n);
            }
        }
        stage.until_handled(s(1500)).await;
        stage.world.faults.clear();
        assert_eq!(stage.world.kube.pods().len(), 0, "round {round}");
        for token in &tokens {
            let action = stage.world.aws.autoscaling.action(token).unwrap();
            let completed = matches!(action.state, ebbtide_sim::aws::ActionState::Completed { .. });
            assert!(completed, "round {round}: {action:?}");
        }
        // A call that nobody needs any more may hang still, such as the extension of a message that is deleted by now.
        tokio::time::sleep(CALL_TIMEOUT).await;
        stage.rest(&[&first, &second]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_streams_no_lists_is_asked_for_one() {
    let stage = Stage::new(2, 1);
    // As one of Kubernetes 1.33 says it: sendInitialEvents is forbidden.
    stage.world.faults.add(Rule::on("watch nodes", Fault::Status(422)).times(1));
    let replica = stage.start(&[]).await;
    stage.spot(0);
    stage.until_handled(s(20)).await;
    assert_eq!((stage.calls("list nodes"), stage.calls("watch nodes")), (1, 2));
    stage.world.kube.interrupt_watches(Interrupt::Break);
    stage.spot(1);
    stage.until_handled(s(20)).await;
    assert_eq!(stage.calls("list nodes"), 2, "it is asked for another, and not whether it streams now");
    assert_eq!(stage.world.kube.pods().len(), 0);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_breaks_while_it_tells_what_there_is_begins_anew() {
    let stage = Stage::new(1, 1);
    stage.world.faults.add(Rule::on("watch nodes", Fault::Disconnect).times(2));
    let replica = stage.start(&[]).await;
    stage.spot(0);
    stage.until_handled(s(30)).await;
    assert_eq!((stage.calls("list nodes"), stage.calls("watch nodes")), (0, 3));
    assert!(stage.cordoned(0));
    stage.rest(&[&replica]).await;
}
