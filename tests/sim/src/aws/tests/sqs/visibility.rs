//! SQS: how long a message stays invisible, and what a receipt is valid for.

use super::super::{Stage, TICK, refused, secs, words};
use super::{HOUR, URL, delete, extend, handle, one, receive};

#[tokio::test(start_paused = true)]
async fn a_visibility_timeout_can_be_extended_and_ended() {
    let stage = Stage::new();
    let client = stage.sqs();
    stage.aws.sqs.send("held");
    let message = one(&client).await;
    stage.reach(secs(30) - TICK).await;
    assert!(receive(&client, 1).await.is_empty());
    extend(&client, &message, 30).await.expect("the timeout must be extended");
    stage.reach(secs(60) - TICK * 2).await;
    assert!(receive(&client, 1).await.is_empty());
    stage.reach(secs(60) - TICK).await;
    let message = one(&client).await;
    // Visibility set to 0: visible at once.
    extend(&client, &message, 0).await.expect("the message must be released");
    assert_eq!(stage.aws.sqs.visible(), 1);
    // A receive can set its own visibility timeout.
    let own = client.receive_message().queue_url(URL).visibility_timeout(5).send().await.expect("it must succeed");
    assert_eq!(own.messages().len(), 1);
    stage.reach(secs(65) - TICK * 2).await;
    assert_eq!(stage.aws.sqs.visible(), 0);
    stage.reach(secs(65) - TICK).await;
    assert_eq!(stage.aws.sqs.visible(), 1);
}

#[tokio::test(start_paused = true)]
async fn no_message_stays_invisible_beyond_twelve_hours_from_its_receive() {
    let stage = Stage::new();
    let client = stage.sqs();
    stage.aws.sqs.send("long");
    tokio::time::sleep(secs(100)).await;
    let message = one(&client).await;
    let over = |seconds| {
        client.change_message_visibility().queue_url(URL).receipt_handle(handle(&message)).visibility_timeout(seconds)
    };
    over(43_200).send().await.expect("twelve hours must be allowed");
    stage.reach(secs(100 + 11 * HOUR)).await;
    assert_eq!(
        words(over(3_601).send().await),
        "Value 3601 for parameter VisibilityTimeout is invalid. Reason: Total VisibilityTimeout for the message is \
         beyond the limit [43200 seconds]"
    );
    assert_eq!(refused(over(3_601).send().await), ("InvalidParameterValue".to_owned(), 400));
    over(3_600).send().await.expect("a total of twelve hours must be allowed");
    stage.reach(secs(100 + 12 * HOUR) - TICK).await;
    assert_eq!(stage.aws.sqs.in_flight(), 1);
    assert_eq!(extend(&client, &message, 1).await, Err("InvalidParameterValue".to_owned()));
    stage.reach(secs(100 + 12 * HOUR)).await;
    assert_eq!(stage.aws.sqs.visible(), 1);
    assert_eq!(refused(over(43_201).send().await).0, "InvalidParameterValue");
}

#[tokio::test(start_paused = true)]
async fn an_old_receipt_neither_deletes_nor_extends() {
    let stage = Stage::new();
    let client = stage.sqs();
    stage.aws.sqs.send("twice");
    let old = one(&client).await;

    // Visible again, not yet received again: the receipt still deletes, but no longer extends.
    stage.reach(secs(30)).await;
    assert_eq!(extend(&client, &old, 30).await, Err("AWS.SimpleQueueService.MessageNotInflight".to_owned()));
    stage.aws.sqs.silent_late_changes(true);
    assert_eq!(extend(&client, &old, 30).await, Ok(()));
    assert_eq!(stage.aws.sqs.visible(), 1);

    let new = one(&client).await;
    assert_ne!(handle(&old), handle(&new));
    assert_eq!(extend(&client, &old, 30).await, Err("InvalidParameterValue".to_owned()));
    let answer = client.delete_message_batch().queue_url(URL).entries(delete("old", handle(&old)));
    let answer = answer.entries(delete("odd", "nonsense")).send().await.expect("the batch must be answered");
    assert_eq!(answer.successful()[0].id(), "old");
    assert_eq!((answer.failed()[0].id(), answer.failed()[0].code()), ("odd", "ReceiptHandleIsInvalid"));
    assert!(stage.aws.sqs.deleted().is_empty());

    // Expired again: the receipt can delete the message until another receive, and a second delete is no error.
    stage.reach(secs(60)).await;
    for _ in 0..2 {
        let answer = client.delete_message().queue_url(URL).receipt_handle(handle(&new)).send().await;
        answer.expect("the delete must succeed");
    }
    assert_eq!(stage.aws.sqs.deleted().len(), 1);
    assert_eq!(extend(&client, &new, 30).await, Err("InvalidParameterValue".to_owned()));
    let nonsense = client.change_message_visibility().queue_url(URL).receipt_handle("nonsense").visibility_timeout(1);
    let error = nonsense.send().await.expect_err("nonsense must be refused").into_service_error();
    assert!(error.is_receipt_handle_is_invalid());
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_has_two_receivers_and_a_stale_receipt() {
    let stage = Stage::new();
    let client = stage.sqs();
    stage.aws.sqs.duplicate_chance(1.0);
    let id = stage.aws.sqs.send("double");
    let first = one(&client).await;
    stage.aws.sqs.duplicate_chance(0.0);
    let second = one(&client).await;
    assert!(receive(&client, 1).await.is_empty());
    let log = stage.aws.sqs.receive_log();
    assert_eq!([&log[0].id, &log[1].id], [&id, &id]);
    assert_eq!([log[0].duplicate, log[1].duplicate], [true, false]);
    assert_eq!(log[0].receipt, handle(&first));
    client
        .delete_message()
        .queue_url(URL)
        .receipt_handle(handle(&first))
        .send()
        .await
        .expect("the deletion must seem to succeed");
    assert!(!stage.aws.sqs.is_empty());
    client.delete_message().queue_url(URL).receipt_handle(handle(&second)).send().await.expect("it must succeed");
    assert!(stage.aws.sqs.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_message_received_too_often_becomes_a_dead_letter() {
    let stage = Stage::new();
    let client = stage.sqs();
    stage.aws.sqs.set_dead_letter(2);
    let id = stage.aws.sqs.send("poison");
    for _ in 0..2 {
        extend(&client, &one(&client).await, 0).await.expect("the message must be released");
    }
    assert!(stage.aws.sqs.dead_letters().is_empty());
    assert!(receive(&client, 10).await.is_empty());
    assert_eq!(stage.aws.sqs.dead_letters(), [id]);
    assert!(stage.aws.sqs.is_empty());
}

#[tokio::test(start_paused = true)]
async fn retention_drops_a_message_even_in_flight() {
    let stage = Stage::new();
    let client = stage.sqs();
    stage.aws.sqs.set_retention(secs(300));
    let id = stage.aws.sqs.send("short-lived");
    let call = client.receive_message().queue_url(URL).visibility_timeout(600).send().await;
    let message = call.expect("the receive must succeed").messages.unwrap_or_default().remove(0);
    stage.reach(secs(300) - TICK).await;
    assert_eq!((stage.aws.sqs.in_flight(), stage.aws.sqs.expired()), (1, Vec::new()));
    stage.reach(secs(300)).await;
    assert_eq!((stage.aws.sqs.is_empty(), stage.aws.sqs.expired()), (true, vec![id]));
    assert_eq!(extend(&client, &message, 30).await, Err("InvalidParameterValue".to_owned()));
}
