//! SQS: messages, long polls, batches, attributes.

use super::{Stage, refused, secs, words};
use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::{
    ChangeMessageVisibilityBatchRequestEntry, DeleteMessageBatchRequestEntry, Message, MessageSystemAttributeName,
    QueueAttributeName,
};
use std::time::Duration;

mod visibility;

const URL: &str = "http://sqs.sim/123456789012/ebbtide";
const HOUR: u64 = 3600;

async fn receive(client: &Client, max: i32) -> Vec<Message> {
    let call = client.receive_message().queue_url(URL).max_number_of_messages(max);
    call.send().await.expect("the receive must succeed").messages.unwrap_or_default()
}

async fn one(client: &Client) -> Message {
    receive(client, 1).await.pop().expect("a message must be visible")
}

fn handle(message: &Message) -> &str {
    message.receipt_handle().expect("a message must have a receipt")
}

fn change(id: &str, message: &Message, seconds: i32) -> ChangeMessageVisibilityBatchRequestEntry {
    ChangeMessageVisibilityBatchRequestEntry::builder()
        .id(id)
        .receipt_handle(handle(message))
        .visibility_timeout(seconds)
        .build()
        .expect("the entry must be complete")
}

fn delete(id: &str, receipt: &str) -> DeleteMessageBatchRequestEntry {
    DeleteMessageBatchRequestEntry::builder()
        .id(id)
        .receipt_handle(receipt)
        .build()
        .expect("the entry must be complete")
}

/// Changes one message's visibility with a batch call; returns the entry's error code if it failed.
async fn extend(client: &Client, message: &Message, seconds: i32) -> Result<(), String> {
    let answer = client.change_message_visibility_batch().queue_url(URL).entries(change("only", message, seconds));
    let answer = answer.send().await.expect("the batch must be answered");
    match answer.failed() {
        [] => Ok(()),
        [failed, ..] => {
            assert!(failed.sender_fault());
            Err(failed.code().to_owned())
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_is_received_with_all_fields_and_deleted() {
    let stage = Stage::new();
    let client = stage.sqs();
    let id = stage.aws.sqs.send("{\"text\":\"wörds <&>\"}");
    tokio::time::sleep(secs(5)).await;

    let plain = one(&client).await;
    assert_eq!(plain.message_id(), Some(id.as_str()));
    assert_eq!(plain.body(), Some("{\"text\":\"wörds <&>\"}"));
    assert_eq!(plain.md5_of_body(), Some("7df4d685c1a56c94b4ba4628b1cf56fd"));
    assert_eq!(plain.attributes(), None);
    assert_eq!((stage.aws.sqs.visible(), stage.aws.sqs.in_flight()), (0, 1));

    tokio::time::sleep(secs(30)).await;
    let call = client.receive_message().queue_url("http://127.0.0.1:9/123456789012/ebbtide");
    let answer = call.message_system_attribute_names(MessageSystemAttributeName::All).send().await;
    let full = answer.expect("any host must be accepted").messages.unwrap_or_default().remove(0);
    let attribute = |name| full.attributes().and_then(|all| all.get(&name)).and_then(|value| value.parse::<i64>().ok());
    let sent = (stage.clock.now() - stage.clock.elapsed()).as_millisecond();
    assert_eq!(attribute(MessageSystemAttributeName::SentTimestamp), Some(sent));
    assert_eq!(attribute(MessageSystemAttributeName::ApproximateFirstReceiveTimestamp), Some(sent + 5_000));
    assert_eq!(attribute(MessageSystemAttributeName::ApproximateReceiveCount), Some(2));

    client.delete_message().queue_url(URL).receipt_handle(handle(&full)).send().await.expect("the delete must succeed");
    assert!(stage.aws.sqs.is_empty());
    assert_eq!(stage.aws.sqs.deleted(), [id.as_str()]);
    assert_eq!(stage.aws.sqs.receives(&id), 2);
}

#[tokio::test(start_paused = true)]
async fn a_long_poll_ends_with_a_message_or_at_its_timeout() {
    let stage = Stage::new();
    let client = stage.sqs();
    let poll = async |client: &Client| {
        let answer = client.receive_message().queue_url(URL).wait_time_seconds(20).send().await;
        answer.expect("the poll must succeed").messages.unwrap_or_default().len()
    };
    assert_eq!(poll(&client).await, 0);
    assert_eq!(stage.clock.elapsed(), secs(20));

    // A message that is sent during a poll ends it at once; only one of two polls gets the message.
    let (first, second) = (
        tokio::spawn({
            let client = client.clone();
            async move { poll(&client).await }
        }),
        poll(&client),
    );
    let sender = stage.aws.sqs.clone();
    let sent = async {
        tokio::time::sleep(secs(7)).await;
        sender.send("late")
    };
    let (second, _) = tokio::join!(second, sent);
    let first = first.await.expect("the poll must not panic");
    assert_eq!(first + second, 1);
    assert_eq!(stage.aws.sqs.receive_log()[0].at, secs(27));
    assert_eq!(stage.clock.elapsed(), secs(40));

    // The end of a visibility timeout (27 + 30) and of a delay end the poll.
    assert_eq!(poll(&client).await, 1);
    assert_eq!(stage.clock.elapsed(), secs(57));
    stage.aws.sqs.send_delayed("later", secs(3));
    assert_eq!((stage.aws.sqs.visible(), stage.aws.sqs.in_flight()), (0, 1));
    assert_eq!(poll(&client).await, 1);
    assert_eq!(stage.clock.elapsed(), secs(60));
}

#[tokio::test(start_paused = true)]
async fn batches_have_limits_and_their_entries_fail_alone() {
    let stage = Stage::new();
    let client = stage.sqs();
    for n in 0..11 {
        stage.aws.sqs.send(n.to_string());
    }
    let held = receive(&client, 10).await;
    assert_eq!(held.len(), 10);
    let entries = |ids: std::ops::Range<usize>| ids.map(|n| delete(&n.to_string(), handle(&held[n % 10]))).collect();
    let batch =
        async |entries: Vec<_>| client.delete_message_batch().queue_url(URL).set_entries(Some(entries)).send().await;

    let error = batch(Vec::new()).await.expect_err("an empty batch must be refused").into_service_error();
    assert!(error.is_empty_batch_request());
    let error = batch(entries(0..11)).await.expect_err("eleven must be refused").into_service_error();
    assert!(error.is_too_many_entries_in_batch_request());
    let twice = vec![delete("a", handle(&held[0])), delete("a", handle(&held[1]))];
    let error = batch(twice).await.expect_err("ids must be distinct").into_service_error();
    assert!(error.is_batch_entry_ids_not_distinct());
    assert!(stage.aws.sqs.deleted().is_empty());

    stage.aws.sqs.fail_entries(2);
    let answer = batch(entries(0..10)).await.expect("ten must be accepted");
    assert_eq!(answer.failed().len(), 2);
    assert!(answer.failed().iter().all(|failed| failed.code() == "InternalError" && !failed.sender_fault()));
    assert_eq!(answer.successful().len(), 8);
    assert_eq!(stage.aws.sqs.deleted().len(), 8);
    assert_eq!((stage.aws.sqs.visible(), stage.aws.sqs.in_flight()), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn the_queue_returns_its_attributes_and_its_url_by_name() {
    let stage = Stage::new();
    let client = stage.sqs();
    let url = client.get_queue_url().queue_name("ebbtide").send().await.expect("the queue must be found");
    assert_eq!(url.queue_url(), Some(URL));
    assert_eq!(stage.aws.sqs.queue_url(), URL);
    stage.aws.sqs.set_dead_letter(3);
    stage.aws.sqs.send("one");
    let answer = client.get_queue_attributes().queue_url(URL).attribute_names(QueueAttributeName::All).send().await;
    let attributes = answer.expect("the attributes must be returned").attributes.unwrap_or_default();
    let attribute = |name| attributes.get(&name).map(String::as_str);
    assert_eq!(attribute(QueueAttributeName::QueueArn), Some("arn:aws:sqs:eu-west-1:123456789012:ebbtide"));
    assert_eq!(attribute(QueueAttributeName::VisibilityTimeout), Some("30"));
    assert_eq!(attribute(QueueAttributeName::MessageRetentionPeriod), Some("345600"));
    assert_eq!(attribute(QueueAttributeName::ApproximateNumberOfMessages), Some("1"));
    assert!(
        attribute(QueueAttributeName::RedrivePolicy).is_some_and(|policy| policy.contains("\"maxReceiveCount\":3"))
    );

    let elsewhere = client.receive_message().queue_url("http://sqs.sim/123456789012/other").send().await;
    let error = elsewhere.expect_err("another queue must be unknown");
    assert_eq!(refused::<(), _>(Err(error)), ("AWS.SimpleQueueService.NonExistentQueue".to_owned(), 400));
    let elsewhere = client.receive_message().queue_url("http://sqs.sim/123456789012/other").send().await;
    assert!(elsewhere.expect_err("another queue must be unknown").into_service_error().is_queue_does_not_exist());

    let many = client.receive_message().queue_url(URL).max_number_of_messages(11).send().await;
    assert!(words(many).contains("Must be between 1 and 10"));
    let long = client.receive_message().queue_url(URL).wait_time_seconds(21).send().await;
    assert_eq!(refused(long).0, "InvalidParameterValue");
    let sent = client.send_message().queue_url(URL).message_body("two").delay_seconds(9).send().await;
    assert_eq!(sent.expect("the message must be sent").md5_of_message_body(), Some("b8a9f715dbb64fd5c56e7783c6820a61"));
    stage.reach(secs(9)).await;
    assert_eq!(stage.aws.sqs.visible(), 2);
}

#[tokio::test(start_paused = true)]
async fn thousands_of_messages_and_twelve_hours_take_little_real_time() {
    let stage = Stage::new();
    let client = stage.sqs();
    for n in 0..5_000 {
        stage.aws.sqs.send(format!("{n}"));
    }
    let mut received = 0;
    while !stage.aws.sqs.is_empty() {
        let messages = receive(&client, 10).await;
        received += messages.len();
        let entries = messages.iter().enumerate().map(|(n, message)| delete(&n.to_string(), handle(message))).collect();
        client.delete_message_batch().queue_url(URL).set_entries(Some(entries)).send().await.expect("it must succeed");
    }
    assert_eq!(received, 5_000);
    assert_eq!(stage.clock.elapsed(), Duration::ZERO);
    for _ in 0..(12 * HOUR / 20) {
        let poll = client.receive_message().queue_url(URL).wait_time_seconds(20).send().await;
        assert!(poll.expect("the poll must succeed").messages().is_empty());
    }
    assert_eq!(stage.clock.elapsed(), secs(12 * HOUR));
}

#[tokio::test(start_paused = true)]
async fn what_left_the_queue_long_ago_is_forgotten() {
    let stage = Stage::new();
    let client = stage.sqs();
    let queue = &stage.aws.sqs;
    for _ in 0..2 {
        queue.send("body");
    }
    let old = one(&client).await;
    client.delete_message().queue_url(URL).receipt_handle(handle(&old)).send().await.expect("the delete must succeed");
    stage.reach(secs(60)).await;
    let kept = one(&client).await;
    queue.forget_before(secs(60));
    assert_eq!((queue.deleted().len(), queue.receive_log().len()), (0, 1));
    let again = client.delete_message().queue_url(URL).receipt_handle(handle(&old)).send().await;
    assert_eq!(refused(again).0, "ReceiptHandleIsInvalid");
    client.delete_message().queue_url(URL).receipt_handle(handle(&kept)).send().await.expect("it is still known");
    assert_eq!(queue.deleted().len(), 1);
}
