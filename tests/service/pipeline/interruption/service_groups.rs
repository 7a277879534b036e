//! Target groups of the cloud provider's Services: which tags lead to them, and what the search costs.

use super::load_balancers::{DEREGISTER, LOOK, WAIT, completed_at, is_awaited_without_the_right_to_deregister, waited};
use crate::harness::{Stage, instance, s};
use ebbtide_sim::aws::TargetGroupSpec;
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::messages::Wrapping;
use tokio::time::sleep;

const LIST: &str = "DescribeTargetGroups";
const TAGS: &str = "DescribeTags";
const MANAGED: (&str, &str) = ("aws-node-termination-handler/managed", "true");

/// Returns a world of these nodes in the cluster `blue`, as the tags of their instances show; its Service `shop/web` has a target group
/// that lists them all, and no binding or Auto Scaling group names it. Also returns the group's ARN.
fn cluster(nodes: usize) -> (Stage, String) {
    let stage = Stage::new(nodes, 1);
    for n in 0..nodes {
        stage.world.aws.ec2.put(&instance(n), &[MANAGED, ("kubernetes.io/cluster/blue", "owned")]);
        stage.world.aws.autoscaling.join("group", &instance(n));
    }
    let web = add(&stage, TargetGroupSpec::of_service("blue", "shop/web", s(30)), nodes);
    (stage, web)
}

/// Adds a target group that lists these nodes' instances. Returns its ARN.
fn add(stage: &Stage, spec: TargetGroupSpec, nodes: usize) -> String {
    let arn = stage.world.aws.elb.add(spec);
    for n in 0..nodes {
        stage.world.aws.elb.register(&arn, &instance(n), 30_080);
    }
    arn
}

/// The cluster's name is that of the instances' tags, or that of the setting.
#[tokio::test(start_paused = true)]
async fn a_hook_waits_until_the_service_controller_has_deregistered_the_instance() {
    for (named, asked) in [(&["--cluster-name", "blue"][..], 0), (&[], 1)] {
        let (stage, web) = cluster(1);
        let replica = stage.start(&[&WAIT[..], named].concat()).await;
        let token = stage.terminate(0, s(300), Wrapping::Event);
        sleep(s(20)).await;
        assert!(stage.world.aws.autoscaling.action(&token).unwrap().completions.is_empty(), "it is registered");
        // The Service controller has seen the label.
        stage.world.aws.elb.deregister(&web, &instance(0));
        stage.until_handled(s(90)).await;
        let at = completed_at(&stage, &token);
        assert!((s(50)..s(66)).contains(&at), "{at:?}");
        waited(&replica, "met", 1);
        let calls = ["DescribeInstances", LIST, TAGS, "DeregisterTargets"].map(|call| stage.calls(call));
        assert_eq!(calls, [asked, 1, 1, 0]);
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_instance_is_deregistered_from_the_groups_of_services() {
    let (stage, web) = cluster(2);
    let replica = stage.start(&DEREGISTER).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    stage.until_handled(s(60)).await;
    let at = completed_at(&stage, &token);
    assert!((s(30)..s(47)).contains(&at), "{at:?}");
    assert_eq!(stage.world.aws.elb.registered(&web), [instance(1)]);
    waited(&replica, "met", 1);
    stage.rest(&[&replica]).await;
}

/// The Service controller deregisters it all the same.
#[tokio::test(start_paused = true)]
async fn without_the_right_to_deregister_a_service_is_waited_for() {
    let (stage, web) = cluster(1);
    is_awaited_without_the_right_to_deregister(&stage, &web).await;
}

/// Each lists the instance. Only those that may be a Service's are asked for their tags.
#[tokio::test(start_paused = true)]
async fn groups_of_other_clusters_and_of_other_tools_are_left_alone() {
    let (stage, web) = cluster(1);
    let of = TargetGroupSpec::of_service;
    let named = |name: &str, spec: TargetGroupSpec| TargetGroupSpec { name: name.to_owned(), ..spec };
    let asked = [
        // Another cluster of the account has a Service of the same name, and one whose name begins with this one's.
        of("green", "shop/web", s(30)),
        of("blue-2", "shop/web", s(30)),
        // Another tool has tagged it with the cluster.
        named("k8s-api", TargetGroupSpec { protocol: "TCP", ..TargetGroupSpec::new("", s(30)) })
            .tag("kubernetes.io/cluster/blue", "owned"),
    ];
    let unasked = [
        TargetGroupSpec { target_type: "ip", ..named("k8s-ip", of("blue", "shop/api", s(30))) },
        TargetGroupSpec { protocol: "HTTP", ..named("k8s-http", of("blue", "shop/api", s(30))) },
        named("web", of("blue", "shop/api", s(30))),
    ];
    let others: Vec<_> = asked.into_iter().chain(unasked).map(|spec| add(&stage, spec, 1)).collect();
    let replica = stage.start(&DEREGISTER).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    stage.until_handled(s(60)).await;
    completed_at(&stage, &token);
    assert!(stage.world.aws.elb.registered(&web).is_empty());
    for arn in &others {
        assert_eq!(stage.world.aws.elb.registered(arn), [instance(0)], "{arn}");
    }
    assert!(stage.world.calls.of(LOOK).iter().all(|call| call.subject == "k8s-shop-web-blue"));
    assert_eq!((stage.calls(LIST), stage.calls(TAGS)), (1, 1));
    stage.rest(&[&replica]).await;
}

/// Two replicas of two clusters, with one list of target groups: each finds its own.
#[tokio::test(start_paused = true)]
async fn two_clusters_of_an_account_deregister_from_their_own_groups() {
    for (own, foreign) in [("blue", "green"), ("green", "blue")] {
        let stage = Stage::new(1, 1);
        let [own_web, foreign_web] =
            [own, foreign].map(|name| add(&stage, TargetGroupSpec::of_service(name, "shop/web", s(30)), 1));
        let replica = stage.start(&[&DEREGISTER[..], &["--cluster-name", own]].concat()).await;
        let token = stage.terminate(0, s(300), Wrapping::Event);
        stage.until_handled(s(60)).await;
        completed_at(&stage, &token);
        let left = [&own_web, &foreign_web].map(|arn| stage.world.aws.elb.registered(arn).len());
        assert_eq!(left, [0, 1], "of {own}");
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn without_the_clusters_name_no_group_is_searched_by_its_tags() {
    let (stage, web) = cluster(1);
    stage.world.aws.ec2.put(&instance(0), &[MANAGED]);
    let replica = stage.start(&DEREGISTER).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    stage.until_handled(s(30)).await;
    assert!(completed_at(&stage, &token) < s(4));
    waited(&replica, "not-needed", 1);
    assert_eq!((stage.calls(LIST), stage.calls("DescribeInstances")), (0, 1));
    assert_eq!(stage.world.aws.elb.registered(&web), [instance(0)]);
    stage.rest(&[&replica]).await;
}

/// An account with more than a page of groups. 43 may be a Service's: two calls for the list, and three for the tags, which are
/// never read again.
#[tokio::test(start_paused = true)]
async fn a_list_has_pages_of_four_hundred_and_tags_are_read_once_by_twenties() {
    let (stage, web) = cluster(3);
    for n in 0..400 {
        stage.world.aws.elb.add_group(&format!("other-{n}"), s(30));
    }
    for n in 0..42 {
        stage.world.aws.elb.add(TargetGroupSpec::of_service("green", &format!("shop/web-{n}"), s(30)));
    }
    let replica = stage.start(&DEREGISTER).await;
    let handle = async |n: usize| {
        let token = stage.terminate(n, s(300), Wrapping::Event);
        stage.until_handled(s(90)).await;
        completed_at(&stage, &token);
        [stage.calls(LIST), stage.calls(TAGS)]
    };
    assert_eq!(handle(0).await, [2, 3]);
    assert_eq!(handle(1).await, [2, 3], "the answer is kept for five minutes");
    let late = add(&stage, TargetGroupSpec::of_service("blue", "shop/late", s(30)), 3);
    sleep(s(300)).await;
    assert_eq!(handle(2).await, [4, 4], "only the new group's tags are read");
    assert!(stage.world.aws.elb.registered(&web).is_empty());
    assert!(!stage.world.aws.elb.registered(&late).contains(&instance(2)));
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_storm_costs_one_list() {
    const NODES: usize = 100;
    let (stage, web) = cluster(NODES);
    let replica = stage.start(&DEREGISTER).await;
    let tokens: Vec<_> = (0..NODES).map(|n| stage.terminate(n, s(3600), Wrapping::Event)).collect();
    stage.until_handled(s(200)).await;
    for token in &tokens {
        assert!(completed_at(&stage, token) > s(30));
    }
    waited(&replica, "met", 100);
    assert!(stage.world.aws.elb.registered(&web).is_empty());
    assert_eq!(["DescribeInstances", LIST, TAGS].map(|call| stage.calls(call)), [1, 1, 1]);
    stage.rest(&[&replica]).await;
}

/// The other half of the groups is answered, and the deleted one is asked about alone.
#[tokio::test(start_paused = true)]
async fn a_group_that_is_deleted_after_the_list_hides_no_other() {
    let (stage, web) = cluster(1);
    for n in 0..3 {
        stage.world.aws.elb.add(TargetGroupSpec::of_service("green", &format!("shop/web-{n}"), s(30)));
    }
    stage.world.faults.add(Rule::on(TAGS, Fault::Status(404)).subject("k8s-shop-web-0-green"));
    let replica = stage.start(&DEREGISTER).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    stage.until_handled(s(60)).await;
    assert!(completed_at(&stage, &token) > s(30));
    assert!(stage.world.aws.elb.registered(&web).is_empty());
    // About all four, about each half, and about each group of the half with the deleted one, which is the first.
    assert_eq!((stage.calls(LIST), stage.calls(TAGS)), (1, 5));
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_throttled_search_continues_where_it_was() {
    let (stage, web) = cluster(1);
    for n in 0..30 {
        stage.world.aws.elb.add(TargetGroupSpec::of_service("green", &format!("shop/web-{n}"), s(30)));
    }
    stage.world.faults.add(Rule::on(LIST, Fault::Throttle).times(1));
    stage.world.faults.add(Rule::on(TAGS, Fault::Throttle).after(1).times(1));
    let replica = stage.start(&DEREGISTER).await;
    let token = stage.terminate(0, s(300), Wrapping::Event);
    stage.until_handled(s(90)).await;
    assert!(completed_at(&stage, &token) > s(30));
    assert!(stage.world.aws.elb.registered(&web).is_empty());
    // The first batch was answered before the second was throttled.
    assert_eq!((stage.calls(LIST), stage.calls(TAGS)), (3, 3));
    stage.rest(&[&replica]).await;
}

/// A missing right is reported once, leaves out the groups of Services alone, and is not tried again for minutes.
#[tokio::test(start_paused = true)]
async fn a_denied_search_fails_no_drain() {
    for call in [LIST, TAGS, "DescribeInstances"] {
        let (stage, web) = cluster(3);
        stage.world.faults.add(Rule::on(call, Fault::Status(403)));
        let api = add(&stage, TargetGroupSpec::new("api", s(30)), 3);
        stage.world.kube.bind_target_group("shop", "api", &api, "instance");
        let replica = stage.start(&DEREGISTER).await;
        for n in 0..3 {
            let token = stage.terminate(n, s(300), Wrapping::Event);
            let sent = stage.world.clock.elapsed();
            stage.until_handled(s(90)).await;
            let took = completed_at(&stage, &token) - sent;
            assert!((s(30)..s(50)).contains(&took), "{call}: {took:?}");
        }
        replica.all_ended("asg-terminate", &[("drained", 3)]);
        assert_eq!(stage.calls(call), 1, "{call}");
        assert!(stage.world.aws.elb.registered(&api).is_empty());
        assert_eq!(stage.world.aws.elb.registered(&web).len(), 3, "{call}");
        stage.rest(&[&replica]).await;
    }
}

/// Without an answer there may be groups that still send traffic: the hook is kept as for a target that stays.
#[tokio::test(start_paused = true)]
async fn a_search_without_an_answer_holds_no_hook_longer_than_six_minutes() {
    for fault in [Fault::Hang, Fault::Status(503)] {
        let (stage, _) = cluster(1);
        stage.world.faults.add(Rule::on(LIST, fault));
        let replica = stage.start(&WAIT).await;
        let token = stage.terminate(0, s(3600), Wrapping::Event);
        stage.until_handled(s(500)).await;
        let at = completed_at(&stage, &token);
        assert!((s(362)..s(364)).contains(&at), "{fault:?}: {at:?}");
        waited(&replica, "time-over", 1);
        replica.ended_once("asg-terminate", "drained");
        stage.rest(&[&replica]).await;
    }
}
