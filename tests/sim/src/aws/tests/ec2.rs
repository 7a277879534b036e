//! EC2: filters, ids, their limits, and pages.

use super::{Stage, refused, words};
use aws_sdk_ec2::Client;
use aws_sdk_ec2::types::{Filter, Instance, InstanceStateName};

fn filter(name: &str, values: impl IntoIterator<Item = String>) -> Filter {
    Filter::builder().name(name).set_values(Some(values.into_iter().collect())).build()
}

async fn find(client: &Client, filters: Vec<Filter>) -> Vec<Instance> {
    let answer = client.describe_instances().set_filters(Some(filters)).send().await.expect("the call must succeed");
    answer.reservations.unwrap_or_default().into_iter().flat_map(|one| one.instances.unwrap_or_default()).collect()
}

fn id(n: usize) -> String {
    format!("i-{n:017x}")
}

#[tokio::test(start_paused = true)]
async fn an_instance_is_described_with_its_tags_and_state() {
    let stage = Stage::new();
    let client = stage.ec2();
    stage.aws.ec2.put(&id(1), &[("Name", "a <b> & \"c\""), ("managed", "")]);
    let found = find(&client, vec![filter("instance-id", [id(1), id(2)])]).await;
    let [instance] = found.as_slice() else { panic!("one must be found: {found:?}") };
    assert_eq!(instance.instance_id(), Some(id(1).as_str()));
    assert_eq!(instance.state().and_then(|state| state.name()), Some(&InstanceStateName::Running));
    assert_eq!(instance.private_dns_name(), Some("ip-10-0-0-1.eu-west-1.compute.internal"));
    assert_eq!(instance.placement().and_then(|placement| placement.availability_zone()), Some("eu-west-1a"));
    let tags: Vec<_> = instance.tags().iter().map(|tag| (tag.key(), tag.value())).collect();
    assert_eq!(tags, [(Some("Name"), Some("a <b> & \"c\"")), (Some("managed"), Some(""))]);
    assert_eq!(stage.calls.of("DescribeInstances")[0].subject, id(1));

    stage.aws.ec2.set_state(&id(1), "terminated");
    assert!(find(&client, vec![filter("instance-state-name", ["running".to_owned()])]).await.is_empty());
    let both =
        vec![filter("instance-state-name", ["terminated".to_owned()]), filter("tag-key", ["managed".to_owned()])];
    assert_eq!(find(&client, both).await.len(), 1);
    assert!(find(&client, vec![filter("tag:Name", ["b".to_owned()])]).await.is_empty());
    stage.aws.ec2.remove(&id(1));
    assert!(find(&client, vec![filter("instance-id", [id(1)])]).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn more_than_two_hundred_filter_values_are_refused() {
    let stage = Stage::new();
    let client = stage.ec2();
    for n in 0..300 {
        stage.aws.ec2.put(&id(n), &[]);
    }
    assert_eq!(find(&client, vec![filter("instance-id", (0..200).map(id))]).await.len(), 200);
    let over = filter("instance-id", (0..201).map(id));
    let answer = client.describe_instances().filters(over).send().await;
    assert_eq!(refused(answer), ("FilterLimitExceeded".to_owned(), 400));
    // The limit is on all filters together, not on each.
    let answer = client.describe_instances().filters(filter("instance-id", (0..200).map(id)));
    let answer = answer.filters(filter("instance-state-name", ["running".to_owned()])).send().await;
    assert_eq!(refused(answer).0, "FilterLimitExceeded");
    let answer = client.describe_instances().filters(filter("colour", ["red".to_owned()])).send().await;
    assert_eq!(words(answer), "The filter 'colour' is invalid");
}

#[tokio::test(start_paused = true)]
async fn one_bad_id_fails_the_whole_call() {
    let stage = Stage::new();
    let client = stage.ec2();
    stage.aws.ec2.put(&id(1), &[]);
    let ids = async |ids: Vec<String>| client.describe_instances().set_instance_ids(Some(ids)).send().await;
    assert!(ids(vec![id(1)]).await.is_ok());
    assert_eq!(refused(ids(vec![id(1), id(2)]).await), ("InvalidInstanceID.NotFound".to_owned(), 400));
    assert_eq!(words(ids(vec![id(2)]).await), format!("The instance ID '{}' does not exist", id(2)));
    assert_eq!(refused(ids(vec![id(1), "i-xyz".to_owned()]).await).0, "InvalidInstanceID.Malformed");
    assert!(ids((0..1001).map(id).collect()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn answers_come_in_pages() {
    let stage = Stage::new();
    let client = stage.ec2();
    for n in 0..1_001 {
        stage.aws.ec2.put(&id(n), &[]);
    }
    let pages = async |max: Option<i32>| {
        let (mut token, mut sizes) = (None, Vec::new());
        loop {
            let call = client.describe_instances().set_max_results(max).set_next_token(token);
            let answer = call.send().await.expect("the call must succeed");
            sizes.push(answer.reservations().len());
            token = answer.next_token().map(str::to_owned);
            if token.is_none() {
                return sizes;
            }
        }
    };
    assert_eq!(pages(None).await, [1_000, 1]);
    assert_eq!(pages(Some(500)).await, [500, 500, 1]);
    stage.aws.ec2.set_page_size(400);
    assert_eq!(pages(Some(500)).await, [400, 400, 201]);
    assert!(client.describe_instances().max_results(4).send().await.is_err());
}
