//! Target groups: targets by ID and port, their states, and their deregistration.

use super::{Stage, refused};
use crate::aws::TargetGroupSpec;
use aws_sdk_elasticloadbalancingv2::Client;
use aws_sdk_elasticloadbalancingv2::types::TargetDescription;
use std::time::Duration;

const DELAY: Duration = Duration::from_secs(30);

/// Returns ID, port and state of the group's targets.
async fn targets(client: &Client, arn: &str) -> Vec<(String, i32, String)> {
    let answer = client.describe_target_health().target_group_arn(arn).send().await.expect("the call must succeed");
    let described = answer.target_health_descriptions.unwrap_or_default().into_iter();
    let target = described.map(|described| {
        let target = described.target.expect("it must have a target");
        let state = described.target_health.and_then(|health| health.state);
        let state = state.map(|state| state.as_str().to_owned()).unwrap_or_default();
        (target.id.unwrap_or_default(), target.port.unwrap_or_default(), state)
    });
    target.collect()
}

fn target(id: &str, port: i32, state: &str) -> (String, i32, String) {
    (id.to_owned(), port, state.to_owned())
}

#[tokio::test(start_paused = true)]
async fn a_target_drains_on_the_port_that_is_named_and_is_gone_after_the_delay() {
    let stage = Stage::new();
    let client = stage.elb();
    let arn = stage.aws.elb.add_group("web", DELAY);
    stage.aws.elb.register(&arn, "i-1", 80);
    stage.aws.elb.register(&arn, "i-1", 443);
    stage.aws.elb.set_state(&arn, "i-2", 80, None);
    let described = [target("i-1", 80, "healthy"), target("i-1", 443, "healthy"), target("i-2", 80, "")];
    assert_eq!(targets(&client, &arn).await, described);
    for port in [None, Some(443)] {
        let named = TargetDescription::builder().id("i-1").set_port(port).build();
        client.deregister_targets().target_group_arn(&arn).targets(named).send().await.expect("the call must succeed");
    }
    let drains = [target("i-1", 80, "healthy"), target("i-1", 443, "draining"), target("i-2", 80, "")];
    assert_eq!(targets(&client, &arn).await, drains);
    assert_eq!(stage.aws.elb.deregistered().iter().map(|gone| gone.port).collect::<Vec<_>>(), [443]);
    assert_eq!(stage.aws.elb.registered(&arn), ["i-1", "i-2"]);
    tokio::time::sleep(DELAY).await;
    assert_eq!(targets(&client, &arn).await.len(), 2);
    assert_eq!(stage.calls.of("DescribeTargetHealth")[0].subject, "web");
}

#[tokio::test(start_paused = true)]
async fn a_group_that_is_removed_is_not_found() {
    let stage = Stage::new();
    let arn = stage.aws.elb.add_group("web", DELAY);
    stage.aws.elb.remove_group(&arn);
    let error = refused(stage.elb().describe_target_health().target_group_arn(&arn).send().await);
    assert_eq!(error, ("TargetGroupNotFound".to_owned(), 400));
}

#[tokio::test(start_paused = true)]
async fn groups_are_listed_in_pages_and_their_tags_told_for_twenty_at_most() {
    let stage = Stage::new();
    let client = stage.elb();
    let arns: Vec<_> = (0..21).map(|n| stage.aws.elb.add_group(&format!("web-{n:02}"), DELAY)).collect();
    let service = stage.aws.elb.add(TargetGroupSpec::of_service("blue", "shop/web", DELAY));
    let (mut listed, mut marker, mut pages) = (Vec::new(), None, 0);
    loop {
        let page = client.describe_target_groups().page_size(10).set_marker(marker.take());
        let page = page.send().await.expect("the call must succeed");
        listed.extend(page.target_groups.unwrap_or_default());
        pages += 1;
        marker = page.next_marker;
        if marker.is_none() {
            break;
        }
    }
    assert_eq!((listed.len(), pages), (22, 3));
    let of_service = listed.iter().find(|group| group.target_group_arn.as_ref() == Some(&service));
    let of_service = of_service.expect("it must be listed");
    assert_eq!(of_service.target_group_name(), Some("k8s-shop-web-blue"));
    assert_eq!(of_service.protocol().map(|protocol| protocol.as_str()), Some("TCP"));
    assert_eq!(of_service.target_type().map(|of| of.as_str()), Some("instance"));
    let tags = client.describe_tags().resource_arns(&service).resource_arns(&arns[0]).send().await;
    let tags: Vec<_> = tags.expect("the call must succeed").tag_descriptions.unwrap_or_default();
    let keys: Vec<_> = tags.iter().map(|of| of.tags().iter().filter_map(|tag| tag.key()).collect::<Vec<_>>()).collect();
    assert_eq!(keys, [vec!["kubernetes.io/cluster/blue", "kubernetes.io/service-name"], vec![]]);
    let many = refused(client.describe_tags().set_resource_arns(Some(arns.clone())).send().await);
    assert_eq!(many, ("ValidationError".to_owned(), 400));
    stage.aws.elb.remove_group(&arns[0]);
    let gone = refused(client.describe_tags().resource_arns(&service).resource_arns(&arns[0]).send().await);
    assert_eq!(gone, ("TargetGroupNotFound".to_owned(), 400));
    for size in [0, 401] {
        let refusal = refused(client.describe_target_groups().page_size(size).send().await);
        assert_eq!(refusal, ("ValidationError".to_owned(), 400));
    }
}
