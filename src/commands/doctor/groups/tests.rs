use super::*;
use crate::clients::gate::Category;
use crate::commands::doctor::Status;
use crate::commands::doctor::readings::ReadError;
use crate::commands::doctor::tests::{QUEUE, denied, found, group, hook, one, policy};

fn with(groups: Vec<ScalingGroup>) -> impl FnOnce(&mut Readings) {
    move |readings: &mut Readings| readings.groups = Ok(ScalingGroups { groups, more: 0, complete: true })
}

fn short(seconds: u64) -> impl FnOnce(&mut Readings) {
    with(vec![group("workers", vec![hook("drain", seconds)])])
}

#[test]
fn a_hook_that_is_shorter_than_a_drain_says_what_fits() {
    for (flags, seconds, said, advised) in [
        // 27 s are not even the default grace period.
        (&["--heartbeat", "off"][..], 30, "leaves a drain 27s", "--heartbeat-timeout 600"),
        (
            &["--pod-grace", "5m", "--drain-timeout", "asg-terminate=5m"],
            300,
            "their grace period of 300 s do not fit",
            "--drain-timeout asg-terminate=10m",
        ),
        (&["--heartbeat", "off", "--drain-timeout", "10m"], 300, "--heartbeat is off", "--heartbeat-timeout 600"),
        (&["--drain-timeout", "asg-terminate=2h"], 60, "ends after 1h 40m", "--heartbeat-timeout 73"),
    ] {
        let (name, status, text) = one(flags, short(seconds));
        assert_eq!((name, status), ("hook", Status::Failure), "{text}");
        assert!(text.contains(said) && text.contains(advised), "{text}");
        assert!(text.contains("Hook drain of group workers"), "{text}");
    }
    // Heartbeats make room; so does a hook of another's.
    assert_eq!(found(&["--drain-timeout", "asg-terminate=10m"], short(30)), Vec::new());
    assert_eq!(found(&["--ignore-hook", "drain"], short(30)), Vec::new());
    assert_eq!(found(&["--on", "asg-terminate=cordon"], short(30)), Vec::new());
    assert_eq!(found(&[], short(30)), Vec::new(), "the default leaves room for a grace period");
    let (_, status, text) = one(&["--drain-timeout", "asg-terminate=1m"], short(60));
    assert_eq!(status, Status::Warning);
    assert!(
        text.contains("1 hook leaves a drain 54s, and pod shop/web-1 has a grace period of 1m: workers/drain."),
        "{text}"
    );
    assert_eq!(
        found(&["--drain-timeout", "asg-terminate=1m", "--pod-grace", "40s"], short(60)),
        Vec::new(),
        "the setting replaces each pod's own grace period"
    );
}

#[test]
fn groups_without_a_hook_are_named_together() {
    let mut bare = group("c", vec![hook("launch", 300)]);
    bare.hooks.as_mut().unwrap()[0].terminating = false;
    let mut rebalanced = group("b", Vec::new());
    rebalanced.rebalances = true;
    let (name, status, text) =
        one(&[], with(vec![group("a", Vec::new()), rebalanced, bare, group("d", vec![hook("x", 300)])]));
    assert_eq!((name, status), ("hook", Status::Warning));
    assert!(text.contains("3 groups are without a terminating hook: a, b, c."), "{text}");
    assert!(text.contains("so does capacity rebalancing") && text.contains("put-lifecycle-hook"), "{text}");
    // EKS drains its managed node groups by itself.
    assert_eq!(found(&[], with(vec![group("eks-a", vec![hook("Terminate-LC-Hook", 300)])])), Vec::new());
    let managed = with(vec![
        ScalingGroup { hooks: denied(), ..group("a", Vec::new()) },
        ScalingGroup { hooks: denied(), ..group("b", Vec::new()) },
    ]);
    assert_eq!(one(&[], managed).1, Status::Skipped);
}

#[test]
fn the_hook_that_nodes_do_not_name_is_missed_by_its_name() {
    let flags = ["--node-hook", "drain", "--pod-namespace", "ebbtide", "--pod-name", "ebbtide-1"];
    let text = one(&flags, with(vec![group("a", vec![hook("x", 300)]), group("b", vec![hook("drain", 300)])])).2;
    assert!(text.contains("1 group is without a terminating hook drain (--node-hook): a."), "{text}");
    // EKS drains its managed node groups here, too.
    let managed = || group("eks-a", vec![hook("Terminate-LC-Hook", 300)]);
    assert_eq!(found(&flags, with(vec![managed()])), Vec::new());
    let text = one(&flags, with(vec![managed(), group("a", Vec::new())])).2;
    assert!(text.contains("1 group is without") && !text.contains("eks-a"), "{text}");
}

#[test]
fn instances_that_are_kept_are_told() {
    let kept = |continues| {
        let mut kept = group("workers", vec![HookConfig { continues, ..hook("drain", 300) }]);
        kept.retains = true;
        with(vec![kept])
    };
    let (name, _, text) = one(&[], kept(false));
    assert_eq!(name, "default-result");
    assert!(text.contains("--default-result CONTINUE"), "{text}");
    assert_eq!(found(&[], kept(true)), Vec::new());
    assert_eq!(one(&["--on-failed-drain", "abandon"], kept(true)).0, "retention");
    let abandons = with(vec![group("workers", vec![HookConfig { continues: false, ..hook("drain", 300) }])]);
    assert_eq!(found(&[], abandons), Vec::new(), "both results terminate where nothing is kept");
}

#[test]
fn launch_hooks_let_no_unready_node_in() {
    let launch = |continues| {
        let launch = HookConfig { terminating: false, continues, ..hook("launch", 300) };
        with(vec![group("workers", vec![hook("drain", 300), launch])])
    };
    let ready = ["--on", "asg-launch=ready"];
    assert_eq!(one(&ready, launch(true)).0, "default-result");
    assert_eq!(found(&ready, launch(false)), Vec::new());
    assert_eq!(found(&[], launch(true)), Vec::new());
}

#[test]
fn each_group_has_one_hook_for_trials() {
    let settings = crate::commands::doctor::tests::settings(&[]);
    let failed = ScalingGroup { hooks: Err(ReadError::new(Category::Denied, "")), ..group("d", Vec::new()) };
    let groups = [
        group("a", vec![hook("Terminate-LC-Hook", 300), hook("mine", 300)]),
        group("b", Vec::new()),
        group("c", vec![hook("Terminate-LC-Hook", 300)]),
        failed,
    ];
    let hooks: Vec<_> = groups.iter().map(|group| trial_hook(&settings, group)).collect();
    assert_eq!(hooks, [Some("mine"), None, None, None]);
}

#[test]
fn a_role_of_hooks_that_the_queue_refuses_is_named() {
    let role = "arn:aws:iam::123456789012:role/notifies";
    let notifying = |target: &str| {
        let (notifies, notifying_role) = (Some(target.to_owned()), Some(role.to_owned()));
        with(vec![group("workers", vec![HookConfig { notifies, notifying_role, ..hook("drain", 300) }])])
    };
    let (name, status, text) = one(&[], notifying(QUEUE));
    assert_eq!((name, status), ("target", Status::Failure));
    assert!(text.contains(role) && text.contains("aws:PrincipalArn"), "{text}");
    let named = |readings: &mut Readings| {
        notifying(QUEUE)(readings);
        let mut policy: serde_json::Value = serde_json::from_str(&policy()).unwrap();
        policy["Statement"][1]["Condition"]["ArnNotLike"]["aws:PrincipalArn"] = role.into();
        readings.queue.as_mut().unwrap().insert("Policy".to_owned(), policy.to_string());
    };
    assert_eq!(found(&[], named), Vec::new());
    assert_eq!(found(&[], notifying("arn:aws:sqs:eu-west-1:123456789012:other")), Vec::new(), "a rule sends here");
}
