//! Auto Scaling: heartbeats, both limits, and ended actions.

use super::{Stage, TICK, refused, secs, words};
use crate::aws::{ActionState, HookResult, HookSpec};

const NOT_ACTIVE: &str = "No active Lifecycle Action found with ";

macro_rules! beat {
    ($client:expr, $token:expr) => {
        $client
            .record_lifecycle_action_heartbeat()
            .auto_scaling_group_name("workers")
            .lifecycle_hook_name("drain")
            .lifecycle_action_token($token)
            .send()
            .await
    };
}

macro_rules! complete {
    ($client:expr, $result:literal, $set:ident, $value:expr) => {
        $client
            .complete_lifecycle_action()
            .auto_scaling_group_name("workers")
            .lifecycle_hook_name("drain")
            .lifecycle_action_result($result)
            .$set($value)
            .send()
            .await
    };
}

fn stage(timeout: u64) -> Stage {
    let stage = Stage::new();
    stage.aws.autoscaling.add_hook("workers", "drain", HookSpec::terminating(secs(timeout)));
    stage
}

fn state(stage: &Stage, token: &str) -> ActionState {
    stage.aws.autoscaling.action(token).expect("the action must be known").state
}

#[tokio::test(start_paused = true)]
async fn hooks_are_described_with_both_timeouts() {
    let stage = stage(120);
    stage.aws.autoscaling.add_hook("workers", "join & go", HookSpec::launching(secs(7200)));
    let client = stage.autoscaling();
    let all = client.describe_lifecycle_hooks().auto_scaling_group_name("workers").send().await;
    let all = all.expect("the hooks must be described").lifecycle_hooks.unwrap_or_default();
    let described: Vec<_> = all
        .iter()
        .map(|hook| {
            (hook.lifecycle_hook_name(), hook.heartbeat_timeout(), hook.global_timeout(), hook.default_result())
        })
        .collect();
    assert_eq!(
        described,
        [
            (Some("drain"), Some(120), Some(12_000), Some("CONTINUE")),
            (Some("join & go"), Some(7200), Some(172_800), Some("ABANDON"))
        ]
    );
    assert_eq!(all[0].lifecycle_transition(), Some("autoscaling:EC2_INSTANCE_TERMINATING"));
    assert_eq!(all[1].lifecycle_transition(), Some("autoscaling:EC2_INSTANCE_LAUNCHING"));

    let named = client.describe_lifecycle_hooks().auto_scaling_group_name("workers").lifecycle_hook_names("drain");
    assert_eq!(named.send().await.expect("the hook must be described").lifecycle_hooks().len(), 1);
    let unknown = client.describe_lifecycle_hooks().auto_scaling_group_name("others").send().await;
    assert_eq!(refused(unknown), ("ValidationError".to_owned(), 400));
}

#[tokio::test(start_paused = true)]
async fn an_action_expires_when_heartbeats_stop() {
    let stage = stage(120);
    let client = stage.autoscaling();
    let token = stage.aws.autoscaling.begin("workers", "drain", "i-1");
    assert_eq!(state(&stage, &token), ActionState::Waiting { expires: secs(120) });
    stage.reach(secs(120) - TICK).await;
    beat!(client, &token).expect("a heartbeat before the expiry must count");
    stage.reach(secs(240) - TICK * 2).await;
    assert_eq!(state(&stage, &token), ActionState::Waiting { expires: secs(240) - TICK });
    stage.reach(secs(240) - TICK).await;
    assert_eq!(state(&stage, &token), ActionState::Expired { at: secs(240) - TICK });

    let late = beat!(client, &token);
    assert_eq!(words(late), format!("{NOT_ACTIVE}token {token}"));
    let late = complete!(client, "CONTINUE", lifecycle_action_token, &token);
    assert_eq!(refused(late), ("ValidationError".to_owned(), 400));
    let action = stage.aws.autoscaling.action(&token).expect("the action must be known");
    assert_eq!(action.beats, [secs(120) - TICK]);
    assert_eq!(action.completions, [(secs(240) - TICK, "CONTINUE".to_owned())]);
    assert_eq!((action.spec.default_result, action.instance.as_str()), (HookResult::Continue, "i-1"));
}

#[tokio::test(start_paused = true)]
async fn no_heartbeat_passes_the_global_limit() {
    // The limits are a hundred timeouts of 30 s, and 48 h for the longest timeout: heartbeats every 25 s and every hour.
    for (timeout, step, limit) in [(30, 25, 3_000), (7_200, 3_600, 48 * 3_600)] {
        let stage = stage(timeout);
        let client = stage.autoscaling();
        let token = stage.aws.autoscaling.begin("workers", "drain", "i-1");
        for at in (step..limit).step_by(usize::try_from(step).expect("a step must be small")) {
            stage.reach(secs(at)).await;
            beat!(client, &token).expect("a heartbeat within the limit must count");
        }
        stage.reach(secs(limit) - TICK).await;
        assert_eq!(state(&stage, &token), ActionState::Waiting { expires: secs(limit) });
        stage.reach(secs(limit)).await;
        assert_eq!(state(&stage, &token), ActionState::Expired { at: secs(limit) });
        assert!(beat!(client, &token).is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn a_completion_counts_once_by_token_or_by_instance() {
    let stage = stage(120);
    let client = stage.autoscaling();
    let first = stage.aws.autoscaling.begin("workers", "drain", "i-1");
    let second = stage.aws.autoscaling.begin("workers", "drain", "i-2");
    assert_ne!(first, second);
    stage.reach(secs(5)).await;
    complete!(client, "CONTINUE", lifecycle_action_token, &first).expect("the action must be completed");
    assert_eq!(state(&stage, &first), ActionState::Completed { result: "CONTINUE".to_owned(), at: secs(5) });
    let again = complete!(client, "ABANDON", lifecycle_action_token, &first);
    assert_eq!(words(again), format!("{NOT_ACTIVE}token {first}"));
    assert_eq!(state(&stage, &first), ActionState::Completed { result: "CONTINUE".to_owned(), at: secs(5) });

    complete!(client, "ABANDON", instance_id, "i-2").expect("the action must be completed");
    assert_eq!(state(&stage, &second), ActionState::Completed { result: "ABANDON".to_owned(), at: secs(5) });
    assert_eq!(words(complete!(client, "ABANDON", instance_id, "i-2")), format!("{NOT_ACTIVE}instance ID i-2"));
    let unknown = complete!(client, "CONTINUE", lifecycle_action_token, "nonsense");
    assert_eq!(words(unknown), format!("{NOT_ACTIVE}token nonsense"));
    let nonsense = complete!(client, "PERHAPS", lifecycle_action_token, &first);
    assert_eq!(refused(nonsense).0, "ValidationError");
    assert_eq!(stage.aws.autoscaling.actions().len(), 2);

    let subjects: Vec<_> = stage.calls.of("CompleteLifecycleAction").into_iter().map(|call| call.subject).collect();
    assert_eq!(subjects[..4], [first.clone(), first, "i-2".to_owned(), "i-2".to_owned()]);
}

#[tokio::test(start_paused = true)]
async fn a_token_is_valid_only_for_its_own_hook() {
    let stage = stage(120);
    stage.aws.autoscaling.add_hook("workers", "other", HookSpec::terminating(secs(60)));
    let client = stage.autoscaling();
    let token = stage.aws.autoscaling.begin("workers", "drain", "i-1");
    for (group, hook, part) in
        [("workers", "other", NOT_ACTIVE), ("workers", "none", "No Lifecycle Hook"), ("none", "drain", "not found")]
    {
        let call = client.record_lifecycle_action_heartbeat().auto_scaling_group_name(group).lifecycle_hook_name(hook);
        let answer = call.lifecycle_action_token(&token).send().await;
        assert!(words(answer).contains(part), "{group}/{hook}");
    }
    assert!(stage.aws.autoscaling.action(&token).is_some_and(|action| action.beats.is_empty()));
}

#[tokio::test(start_paused = true)]
async fn actions_that_ended_long_ago_are_forgotten() {
    let stage = stage(120);
    let client = stage.autoscaling();
    let [ended, expired, waits] = ["i-1", "i-2", "i-3"].map(|id| stage.aws.autoscaling.begin("workers", "drain", id));
    complete!(client, "CONTINUE", lifecycle_action_token, &ended).expect("the action must be completed");
    stage.reach(secs(100)).await;
    beat!(client, &waits).expect("a heartbeat must count");
    stage.reach(secs(130)).await;
    stage.aws.autoscaling.forget_before(secs(110));
    assert_eq!(stage.aws.autoscaling.action(&ended), None);
    assert_eq!(state(&stage, &expired), ActionState::Expired { at: secs(120) });
    complete!(client, "CONTINUE", instance_id, "i-3").expect("the action must be completed");
    assert!(matches!(state(&stage, &waits), ActionState::Completed { .. }));
}
