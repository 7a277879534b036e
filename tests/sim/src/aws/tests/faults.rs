//! Planned faults, as the SDK clients see them.

use super::{Stage, refused, secs};
use crate::aws::HookSpec;
use crate::fault::{Fault, Rule};
use aws_sdk_sqs::error::SdkError;
use aws_smithy_types::timeout::TimeoutConfig;

const URL: &str = "http://sqs.sim/123456789012/ebbtide";

#[tokio::test(start_paused = true)]
async fn each_service_refuses_with_its_own_error() {
    for (fault, sqs, autoscaling, ec2) in [
        (Fault::Throttle, ("RequestThrottled", 400), ("Throttling", 400), ("RequestLimitExceeded", 503)),
        (Fault::Expired, ("ExpiredToken", 403), ("ExpiredToken", 403), ("RequestExpired", 400)),
        (Fault::Status(403), ("AccessDenied", 403), ("AccessDenied", 403), ("UnauthorizedOperation", 403)),
        (Fault::Status(500), ("InternalFailure", 500), ("InternalFailure", 500), ("InternalError", 500)),
        (Fault::Status(503), ("ServiceUnavailable", 503), ("ServiceUnavailable", 503), ("Unavailable", 503)),
    ] {
        let stage = Stage::new();
        stage.faults.add(Rule::on("*", fault));
        let answer = refused(stage.sqs().receive_message().queue_url(URL).send().await);
        assert_eq!((answer.0.as_str(), answer.1), sqs);
        let answer = stage.autoscaling().describe_lifecycle_hooks().auto_scaling_group_name("workers").send().await;
        let answer = refused(answer);
        assert_eq!((answer.0.as_str(), answer.1), autoscaling);
        let answer = refused(stage.ec2().describe_instances().send().await);
        assert_eq!((answer.0.as_str(), answer.1), ec2);
        let statuses: Vec<u16> = stage.calls.all().iter().map(|call| call.status).collect();
        assert_eq!(statuses, [sqs.1, autoscaling.1, ec2.1]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_broken_connection_is_a_dispatch_failure_with_or_without_effect() {
    let stage = Stage::new();
    stage.aws.autoscaling.add_hook("workers", "drain", HookSpec::terminating(secs(60)));
    let token = stage.aws.autoscaling.begin("workers", "drain", "i-1");
    let call = stage.autoscaling().record_lifecycle_action_heartbeat().auto_scaling_group_name("workers");
    let call = call.lifecycle_hook_name("drain").lifecycle_action_token(&token);
    let beats = || stage.aws.autoscaling.action(&token).map(|action| action.beats.len());
    for (fault, effects) in [(Fault::Disconnect, 0), (Fault::LostResponse, 1)] {
        stage.faults.add(Rule::on("RecordLifecycleActionHeartbeat", fault).subject(&token).times(1));
        match call.clone().send().await {
            Err(SdkError::DispatchFailure(failure)) => assert!(failure.is_io()),
            other => panic!("the connection must break: {other:?}"),
        }
        assert_eq!(beats(), Some(effects));
    }
    call.send().await.expect("the next call must succeed");
    assert_eq!(beats(), Some(2));
}

#[tokio::test(start_paused = true)]
async fn a_hang_and_a_slow_answer_end_at_the_callers_timeouts() {
    let stage = Stage::new();
    let id = stage.aws.sqs.send("slow");
    let client = stage.sqs();
    let config = |timeouts| aws_sdk_sqs::Config::builder().timeout_config(timeouts);
    let whole = || config(TimeoutConfig::builder().operation_timeout(secs(10)).build());
    let read = || config(TimeoutConfig::builder().read_timeout(secs(4)).build());

    stage.faults.add(Rule::on("ReceiveMessage", Fault::Hang).times(1));
    let answer = client.receive_message().queue_url(URL).customize().config_override(whole()).send().await;
    assert!(matches!(answer, Err(SdkError::TimeoutError(_))), "{answer:?}");
    assert_eq!((stage.clock.elapsed(), stage.aws.sqs.receives(&id)), (secs(10), 0));

    stage.faults.add(Rule::on("ReceiveMessage", Fault::Slow(secs(5))).times(2));
    let answer = client.receive_message().queue_url(URL).customize().config_override(read()).send().await;
    assert!(matches!(&answer, Err(SdkError::DispatchFailure(failure)) if failure.is_timeout()), "{answer:?}");
    // The call had its effect: the message is in flight.
    assert_eq!((stage.clock.elapsed(), stage.aws.sqs.receives(&id)), (secs(14), 1));
    stage.reach(secs(40)).await;
    let answer = client.receive_message().queue_url(URL).send().await.expect("the receive must succeed");
    assert_eq!((answer.messages().len(), stage.clock.elapsed()), (1, secs(45)));
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_poll_takes_nothing() {
    let stage = Stage::new();
    let client = stage.sqs();
    let poll = client.receive_message().queue_url(URL).wait_time_seconds(20).send();
    assert!(tokio::time::timeout(secs(5), poll).await.is_err());
    let id = stage.aws.sqs.send("later");
    tokio::time::sleep(secs(60)).await;
    assert_eq!((stage.aws.sqs.receives(&id), stage.aws.sqs.visible()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_panic_unwinds_the_caller_and_leaves_the_service_intact() {
    let stage = Stage::new();
    stage.aws.sqs.send("sound");
    stage.faults.add(Rule::on("ReceiveMessage", Fault::Panic).subject("ebbtide").times(1));
    let client = stage.sqs();
    let call = client.receive_message().queue_url(URL);
    let caller = tokio::spawn(call.clone().send());
    assert!(caller.await.is_err_and(|error| error.is_panic()));
    assert_eq!(call.send().await.expect("the next call must succeed").messages().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn unknown_operations_are_refused() {
    let stage = Stage::new();
    let request = http::Request::post("http://x/").body(bytes::Bytes::from("Action=Unheard&Version=1")).expect("valid");
    let response = stage.aws.serve(request).await.expect("the request must be answered");
    assert_eq!(response.status(), 400);
    assert!(stage.calls.all().is_empty());
    let answer = stage.sqs().list_queues().send().await;
    assert_eq!(refused(answer).0, "UnknownOperationException");
}
