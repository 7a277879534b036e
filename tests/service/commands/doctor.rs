//! `ebbtide doctor`: a healthy set-up has no fault, each defect has its own line, and nothing is changed.

use crate::harness::{Replica, Stage, instance, node, s};
use clap::Parser;
use ebbtide::cli::{Cli, Command, Settings};
use ebbtide::clients::connect::{AvailableClients, ConnectError};
use ebbtide::commands::doctor::{Check, Diagnosis, Status, consult};
use ebbtide::runtime::Clock;
use ebbtide_sim::aws::{GroupSpec, HookSpec};
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::{Limit, Pod};
use jiff::SignedDuration;
use serde_json::{Map, Value};
use std::time::Duration;
use tokio::time::Instant;

const RULES: &str = "arn:aws:events:eu-west-1:123456789012:rule/*";

/// Returns a set-up without a defect, with three nodes in two groups.
fn healthy() -> Stage {
    let stage = Stage::new(3, 2);
    let aws = &stage.world.aws;
    let queue = aws.sqs.queue_arn();
    aws.sqs.set_attribute("Policy", &policy(&queue, RULES));
    aws.sqs.set_dead_letter(10);
    aws.sqs.set_attribute("RedriveAllowPolicy", r#"{"redrivePermission": "denyAll"}"#);
    for (kind, spec) in chart_policies() {
        stage.world.kube.put_policy(&kind, &spec);
        stage.world.kube.bind_policy(&kind, "Deny");
    }
    aws.events.put_rule("ec2", r#"{"source": [{"prefix": "aws.ec2"}]}"#, &queue);
    aws.events.put_rule("asg", r#"{"source": ["aws.autoscaling"]}"#, &queue);
    aws.events.put_rule("health", r#"{"source": ["aws.health"]}"#, &queue);
    aws.events.put_rule("other", r#"{"source": ["aws.s3"]}"#, "arn:aws:sqs:eu-west-1:123456789012:other");
    for (group, nodes) in [("blue", vec![0, 1]), ("green", vec![2]), ("others", vec![7])] {
        let instances = nodes.into_iter().map(instance).collect();
        aws.autoscaling.put_group(group, GroupSpec { instances, ..GroupSpec::default() });
        aws.autoscaling.add_hook(group, "drain", HookSpec::terminating(s(300)));
    }
    stage
}

/// Returns the specs of the chart's policies.
fn chart_policies() -> Map<String, Value> {
    let text = include_str!("../../../src/commands/doctor/policies.json");
    // The simulation's agents are in the default namespace.
    serde_json::from_str(&text.replace(":ebbtide:ebbtide-agent", ":default:ebbtide-agent"))
        .expect("they must be an object")
}

fn policy(queue: &str, rules: &str) -> String {
    policy_with_deny(queue, rules, &format!(r#"{{"ArnNotLike": {{"aws:SourceArn": "{rules}"}}}}"#))
}

fn policy_with_deny(queue: &str, rules: &str, condition: &str) -> String {
    format!(
        r#"{{"Statement": [{{"Effect": "Allow", "Principal": {{"Service": "events.amazonaws.com"}}, "Action": "sqs:SendMessage",
            "Resource": "{queue}", "Condition": {{"ArnLike": {{"aws:SourceArn": "{rules}"}}}}}},
            {{"Sid": "Only", "Effect": "Deny", "Principal": "*", "Action": "sqs:SendMessage", "Resource": "{queue}", "Condition": {condition}}}]}}"#
    )
}

fn settings(stage: &Stage, flags: &[&str]) -> Settings {
    let url = stage.world.aws.sqs.queue_url();
    let mut words = vec!["ebbtide", "doctor"];
    if !flags.windows(2).any(|pair| pair[0] == "--source" && !pair[1].contains("queue")) {
        words.extend(["--queue-url", &url]);
    }
    words.extend(flags);
    let Command::Doctor(doctor) = Cli::try_parse_from(words).expect("a test's flags must be flags").command else {
        panic!("doctor was given")
    };
    Settings::from_flags(doctor.borrowed.run).expect("a test's settings must be valid")
}

async fn examined(stage: &Stage, flags: &[&str]) -> Diagnosis {
    let clock = Clock::showing(stage.world.clock.now());
    consult(&settings(stage, flags), stage.clients(clock).into(), clock).await
}

/// The metric of checks that are ok.
const OK: &str = "ebbtide_checks{status=\"ok\"} ";

/// Checks that are always skipped; their line gives the reason.
const ALWAYS: [&str; 2] = ["region", "receive"];

fn faults(report: &Diagnosis) -> Vec<(&'static str, &'static str, &'static str)> {
    let skipped = |check: &&Check| check.status == Status::Skipped && ALWAYS.contains(&check.name);
    let wrong = report.checks().iter().filter(|check| check.status != Status::Ok && !skipped(check));
    wrong.map(|check| (check.area.as_str(), check.name, check.status.as_str())).collect()
}

#[tokio::test(start_paused = true)]
async fn a_healthy_set_up_is_all_ok_and_stays_unchanged() {
    let stage = healthy();
    let id = stage.world.aws.sqs.send("left alone");
    let nodes = stage.world.kube.nodes();
    let pods = stage.world.kube.pods();
    let report = examined(&stage, &[]).await;
    assert_eq!(faults(&report), [], "{}", report.text());
    assert!(!report.failed(false));
    assert_eq!(report.count(Status::Skipped), ALWAYS.len(), "{}", report.text());

    // Nothing has been changed, and no call could have changed anything.
    assert_eq!((stage.world.kube.nodes(), stage.world.kube.pods()), (nodes, pods));
    assert_eq!((stage.world.aws.sqs.receives(&id), stage.world.aws.sqs.visible()), (0, 1));
    assert_eq!(stage.world.aws.autoscaling.actions(), []);
    assert_eq!((stage.world.kube.events().len(), stage.world.kube.evictions().len()), (0, 0));
    let tally = stage.world.calls.tally();
    let called: Vec<(&str, usize)> = tally.iter().map(|(operation, times)| (operation.as_str(), *times)).collect();
    assert_eq!(
        called,
        [
            ("ChangeMessageVisibilityBatch", 1),
            ("CompleteLifecycleAction", 2),
            ("DeleteMessageBatch", 1),
            ("DescribeAutoScalingGroups", 1),
            ("DescribeAutoScalingInstances", 1),
            ("DescribeCapacityReservations", 1),
            ("DescribeInstanceStatus", 1),
            ("DescribeInstances", 2),
            ("DescribeLifecycleHooks", 2),
            ("DescribeRule", 3),
            ("DescribeSpotInstanceRequests", 1),
            ("GetCallerIdentity", 1),
            ("GetQueueAttributes", 1),
            ("ListRuleNamesByTarget", 1),
            ("RecordLifecycleActionHeartbeat", 2),
            // The pattern with a prefix for each event, and those with a list for their own.
            ("TestEventPattern", 17),
            ("create selfsubjectaccessreviews", 19),
            ("create selfsubjectreviews", 1),
            ("get /version", 1),
            ("list nodes", 2),
            ("list poddisruptionbudgets", 1),
            ("list pods", 1),
            ("list validatingadmissionpolicies", 1),
            ("list validatingadmissionpolicybindings", 1),
            // A dry run.
            ("patch nodes", 1),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_cluster_without_the_policies_of_the_chart_is_reported() {
    type State<'a> = (&'a dyn Fn(&Stage), &'a str);
    let edited = |stage: &Stage, kind: &str| {
        let mut spec = chart_policies()[kind].clone();
        spec["validations"][0]["expression"] = "true".into();
        stage.world.kube.put_policy(kind, &spec);
    };
    let states: [State<'_>; 3] = [
        (
            &|stage| stage.world.kube.bind_policy("kubelets", "Audit"),
            "no binding with the action Deny enforces ebbtide-kubelets",
        ),
        (
            &|stage| stage.world.kube.bind_policy("marks", "Audit"),
            "no binding with the action Deny enforces ebbtide-marks",
        ),
        (&|stage| edited(stage, "marks"), "ebbtide-marks is not the policy"),
    ];
    for (state, expected) in states {
        let stage = healthy();
        state(&stage);
        let report = examined(&stage, &[]).await;
        assert_eq!(faults(&report), [("cluster", "policies", "warning")], "{}", report.text());
        let text = report.text().split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(expected) && text.contains("kubeletPolicy: true") && !report.failed(false), "{text}");
    }
    // An API server that has no such policies.
    let stage = healthy();
    stage.world.faults.add(Rule::on("list validatingadmissionpolicies", Fault::Status(404)));
    let report = examined(&stage, &[]).await;
    assert_eq!(faults(&report), [("cluster", "policies", "warning")], "{}", report.text());
    for list in ["list validatingadmissionpolicies", "list validatingadmissionpolicybindings"] {
        let stage = healthy();
        stage.world.kube.deny(list);
        let report = examined(&stage, &[]).await;
        assert_eq!(faults(&report), [("cluster", "policies", "skipped")], "{}", report.text());
    }
    // A policy that refuses what the service writes.
    let stage = healthy();
    stage.world.kube.deny("write marks");
    let report = examined(&stage, &[]).await;
    assert_eq!(faults(&report), [("cluster", "policies", "failure")], "{}", report.text());
    assert!(report.failed(false), "{}", report.text());
}

#[tokio::test(start_paused = true)]
async fn what_marks_write_is_tried_and_a_denial_named() {
    let denied =
        "nodes \"node-0\" is forbidden: ValidatingAdmissionPolicy 'keep' with binding 'keep' denied request: no";
    let flags = ["--taint", "going=soon:NoSchedule", "--exclude-from-load-balancers"];
    for (skip, status, expected) in [
        (0, "failure", "Admission denies the cordon of a node, so nodes are drained without"),
        (1, "warning", "Admission denies the taint going=soon:NoSchedule, the label node.kubernetes.io/exclude"),
        (2, "warning", "Admission denies the label node.kubernetes.io/exclude-from-external-load-balancers, so"),
    ] {
        let stage = healthy();
        stage.world.faults.add(Rule::on("patch nodes", Fault::Refuse(403, denied)).after(skip));
        let nodes = stage.world.kube.nodes();
        let report = examined(&stage, &flags).await;
        assert_eq!(faults(&report), [("cluster", "policies", status)], "{}", report.text());
        let text = report.text().split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(expected) && text.contains("settings.taint"), "{text}");
        assert_eq!((stage.calls("patch nodes"), stage.world.kube.nodes()), (3, nodes), "{}", stage.story());
    }
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_takes_dead_letters_of_other_queues_is_told() {
    let stage = healthy();
    stage.world.aws.sqs.set_attribute("RedriveAllowPolicy", "");
    let report = examined(&stage, &[]).await;
    assert_eq!(faults(&report), [("queue", "other-queues", "warning")], "{}", report.text());
    assert!(report.text().contains("denyAll") && !report.failed(false), "{}", report.text());
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_takes_messages_of_anybody_is_told_and_one_that_refuses_eventbridge_fails() {
    let stage = healthy();
    let sqs = &stage.world.aws.sqs;
    let queue = sqs.queue_arn();
    let deny = |condition: &str| policy_with_deny(&queue, RULES, condition);
    sqs.set_attribute("Policy", &deny(r#"{"Bool": {"aws:SecureTransport": "false"}}"#));
    let report = examined(&stage, &[]).await;
    assert_eq!(faults(&report), [("queue", "senders", "warning")], "{}", report.text());
    assert!(report.text().contains("ArnNotEquals") && !report.failed(false), "{}", report.text());
    sqs.set_attribute(
        "Policy",
        &deny(r#"{"ArnNotEquals": {"aws:PrincipalArn": "arn:aws:iam::123456789012:role/on-call"}}"#),
    );
    let report = examined(&stage, &[]).await;
    assert_eq!(faults(&report), [("queue", "policy", "failure")], "{}", report.text());
    assert!(report.text().contains("refuses EventBridge itself"), "{}", report.text());
    sqs.set_attribute(
        "Policy",
        &deny(r#"{"ArnNotEquals": {"aws:SourceArn": "arn:aws:events:eu-west-1:123456789012:rule/asg"}}"#),
    );
    let report = examined(&stage, &[]).await;
    assert_eq!(faults(&report), [("queue", "policy", "failure")], "{}", report.text());
}

#[tokio::test(start_paused = true)]
async fn a_hop_limit_that_gives_pods_the_role_of_the_node_is_told() {
    let stage = healthy();
    stage.world.aws.ec2.set_hop_limit(&instance(2), 2);
    let report = examined(&stage, &[]).await;
    assert_eq!(faults(&report), [("cluster", "hop-limit", "warning")], "{}", report.text());
    assert!(report.text().contains("agent.hostNetwork=true"), "{}", report.text());
}

#[tokio::test(start_paused = true)]
async fn waiting_actions_are_neither_completed_nor_kept_alive() {
    let stage = healthy();
    let token = stage.world.aws.autoscaling.begin("blue", "drain", &instance(0));
    let before = stage.world.aws.autoscaling.action(&token);
    examined(&stage, &[]).await;
    assert_eq!(stage.world.aws.autoscaling.action(&token), before);
    assert_eq!(stage.calls("CompleteLifecycleAction"), 2, "they were tried");
}

#[tokio::test(start_paused = true)]
async fn each_defect_has_its_own_line() {
    type Defect = fn(&Stage);
    let defects: [(&str, &[&str], Defect, &str); 24] = [
        ("queue policy failure", &[], |s| s.world.aws.sqs.set_attribute("Policy", ""), "Add this statement"),
        (
            "queue policy failure",
            &[],
            |s| {
                let sqs = &s.world.aws.sqs;
                let rest = format!(r#"{{"ArnNotLike": {{"aws:SourceArn": "{RULES}"}}}}"#);
                sqs.set_attribute("Policy", &policy_with_deny(&sqs.queue_arn(), "arn:aws:events:*:*:rule/x", &rest));
            },
            "Add the rule's value to aws:SourceArn",
        ),
        (
            "queue encryption failure",
            &[],
            |s| s.world.aws.sqs.set_attribute("KmsMasterKeyId", "alias/aws/sqs"),
            "SSE-SQS",
        ),
        (
            "queue retention warning",
            &[],
            |s| s.world.aws.sqs.set_retention(Duration::from_mins(5)),
            "MessageRetentionPeriod",
        ),
        ("queue dead-letters warning", &[], |s| s.world.aws.sqs.set_dead_letter(3), "Choose 10"),
        ("rules asg-terminate failure", &[], no_rule_nor_target, "put-rule --name ebbtide-asg-terminate"),
        ("rules scheduled-change warning", &[], |s| s.world.aws.events.remove_rule("health"), "aws.health"),
        (
            "rules scheduled-change warning",
            &[],
            |s| s.world.aws.events.disable_rule("health"),
            "enable-rule --name health",
        ),
        (
            "groups hook failure",
            &["--heartbeat", "off"],
            |s| s.world.aws.autoscaling.add_hook("green", "drain", HookSpec::terminating(Duration::from_secs(30))),
            "--heartbeat-timeout 600",
        ),
        ("groups hook warning", &[], |s| s.world.aws.autoscaling.remove_hook("green", "drain"), "put-lifecycle-hook"),
        ("calls delete failure", &[], |s| deny(s, "DeleteMessageBatch"), "sqs:DeleteMessage"),
        ("calls extend failure", &[], |s| deny(s, "ChangeMessageVisibilityBatch"), "sqs:ChangeMessageVisibility"),
        ("calls instances failure", &[], |s| deny(s, "DescribeInstances"), "ec2:DescribeInstances"),
        (
            "calls scheduled-changes failure",
            &["--ec2-poll-interval", "5m"],
            |s| deny(s, "DescribeInstanceStatus"),
            "\"ec2:DescribeInstanceStatus\"",
        ),
        (
            "calls reservations failure",
            &["--ec2-poll-interval", "5m"],
            |s| deny(s, "DescribeCapacityReservations"),
            "\"ec2:DescribeCapacityReservations\"",
        ),
        (
            "calls heartbeat failure",
            &[],
            |s| deny(s, "RecordLifecycleActionHeartbeat"),
            "RecordLifecycleActionHeartbeat",
        ),
        ("calls complete failure", &[], |s| deny(s, "CompleteLifecycleAction"), "CompleteLifecycleAction"),
        (
            "permissions pods/eviction failure",
            &[],
            |s| s.world.kube.deny("create pods/eviction"),
            "verbs: [\"create\"]",
        ),
        ("permissions pods failure", &[], |s| s.world.kube.deny("delete pods"), "verbs: [\"delete\"]"),
        ("cluster nodes warning", &[], without_provider, "--provider-id"),
        ("cluster budgets warning", &[], |s| s.block(0), "kubectl -n default patch pdb budget-0"),
        ("clock skew warning", &[], |s| s.world.kube.set_clock_ahead(SignedDuration::from_secs(10)), "time server"),
        ("credentials identity failure", &[], |s| deny(s, "GetCallerIdentity"), "Pod Identity"),
        (
            "groups hook failure",
            &["--heartbeat", "off", "--drain-timeout", "asg-terminate=20m"],
            |s| {
                s.world.aws.autoscaling.put_group("green", GroupSpec::default());
            },
            "--heartbeat-timeout 1200",
        ),
    ];
    for (wanted, flags, defect, remedy) in defects {
        let stage = healthy();
        defect(&stage);
        let report = examined(&stage, flags).await;
        let found: Vec<_> =
            faults(&report).iter().map(|(area, check, status)| format!("{area} {check} {status}")).collect();
        assert_eq!(found, [wanted], "{}", report.text());
        assert!(report.text().contains(remedy), "{wanted}: {}", report.text());
        assert_eq!(report.failed(false), wanted.ends_with("failure"));
    }
}

fn deny(stage: &Stage, operation: &str) {
    stage.world.faults.add(Rule::on(operation, Fault::Status(403)));
}

fn no_rule_nor_target(stage: &Stage) {
    stage.world.aws.events.remove_rule("asg");
    stage.world.aws.autoscaling.notify(None);
}

fn without_provider(stage: &Stage) {
    stage.world.kube.add_node("bare", &instance(9));
    stage.world.kube.update_node("bare", |node| node.spec.get_or_insert_default().provider_id = None);
}

#[tokio::test(start_paused = true)]
async fn a_missing_queue_fails_only_its_own_checks() {
    let stage = healthy();
    let mut settings = settings(&stage, &[]);
    settings.queue_url = settings.queue_url.replace("/ebbtide", "/another");
    let clock = Clock::showing(stage.world.clock.now());
    let report = consult(&settings, stage.clients(clock).into(), clock).await;
    let failed: Vec<_> = report.checks().iter().filter(|check| check.status == Status::Failure).collect();
    assert_eq!(failed.len(), 1, "{}", report.text());
    assert!(failed[0].found.starts_with("There is no such queue in eu-west-1"), "{}", failed[0].found);
}

#[tokio::test(start_paused = true)]
async fn a_hanging_call_costs_its_own_lines_and_at_most_ten_seconds() {
    for operation in
        ["GetCallerIdentity", "GetQueueAttributes", "DescribeLifecycleHooks", "list pods", "get /version", "*"]
    {
        let stage = healthy();
        stage.world.faults.add(Rule::on(operation, Fault::Hang));
        let begun = Instant::now();
        let report = examined(&stage, &[]).await;
        assert!(begun.elapsed() <= s(10), "{operation}: {:?}", begun.elapsed());
        let faults = faults(&report);
        assert!(!faults.is_empty(), "{operation}: {}", report.text());
        if operation == "*" {
            continue;
        }
        let good = report.count(Status::Ok);
        assert!(good > 15, "{operation}: {good} are ok\n{}", report.text());
    }
    let stage = healthy();
    stage.world.faults.add(Rule::on("*", Fault::Throttle));
    let begun = Instant::now();
    assert!(examined(&stage, &[]).await.failed(false));
    assert!(begun.elapsed() <= s(10));
}

#[tokio::test(start_paused = true)]
async fn a_hanging_api_server_fails_once_and_aws_is_still_checked() {
    let stage = healthy();
    for operation in
        ["create selfsubjectaccessreviews", "create selfsubjectreviews", "get /version", "list nodes", "list pods"]
    {
        stage.world.faults.add(Rule::on(operation, Fault::Hang));
    }
    let report = examined(&stage, &[]).await;
    let failed: Vec<_> = faults(&report).into_iter().filter(|fault| fault.2 == "failure").collect();
    assert_eq!(failed, [("permissions", "api-server", "failure")], "{}", report.text());
    assert!(report.checks().iter().any(|check| check.name == "policy" && check.status == Status::Ok));
}

#[tokio::test(start_paused = true)]
async fn without_clients_for_one_side_the_other_is_checked() {
    let stage = healthy();
    let clock = Clock::showing(stage.world.clock.now());
    let settings = settings(&stage, &[]);
    let of =
        |report: &Diagnosis, area: &str| report.checks().iter().filter(|check| check.area.as_str() == area).count();
    let everything = examined(&stage, &[]).await;

    let clients = AvailableClients { kube: Err(ConnectError::BadClusterProxy), ..stage.clients(clock).into() };
    let report = consult(&settings, clients, clock).await;
    let failed =
        [("groups", "groups", "skipped"), ("calls", "complete", "skipped"), ("permissions", "settings", "failure")];
    assert_eq!(faults(&report), failed, "{}", report.text());
    assert!(line(&report, "permissions settings").contains("The kubeconfig's proxy-url"), "{}", report.text());
    for area in ["credentials", "queue", "rules"] {
        assert_eq!(of(&report, area), of(&everything, area), "{area}: {}", report.text());
    }
    assert_eq!((of(&report, "cluster"), of(&report, "clock")), (0, 0), "that they can't be seen is said once");

    let clients = AvailableClients { aws: Err(ConnectError::NoRegion), ..stage.clients(clock).into() };
    let report = consult(&settings, clients, clock).await;
    assert_eq!(faults(&report), [("credentials", "settings", "failure")], "{}", report.text());
    // The name in the tags of an instance, and who reads its metadata, come from EC2.
    assert_eq!(of(&report, "cluster") + 2, of(&everything, "cluster"), "{}", report.text());
    for area in ["permissions", "clock"] {
        assert_eq!(of(&report, area), of(&everything, area), "{area}: {}", report.text());
    }

    let clients = AvailableClients { aws: Err(ConnectError::NoRegion), kube: Err(ConnectError::BadClusterProxy) };
    let report = consult(&settings, clients, clock).await;
    let failed = [("credentials", "settings", "failure"), ("permissions", "settings", "failure")];
    assert_eq!((faults(&report), report.checks().len()), (failed.to_vec(), 2), "{}", report.text());
}

#[tokio::test(start_paused = true)]
async fn with_nodes_alone_nothing_is_asked_of_aws() {
    let stage = healthy();
    let unread = ("cluster", "hop-limit", "skipped");
    let flags = ["--source", "nodes", "--pod-namespace", "ebbtide", "--pod-name", "a"];
    let clock = Clock::showing(stage.world.clock.now());
    let clients = || AvailableClients { aws: Err(ConnectError::NotCalled), ..stage.clients(clock).into() };
    let report = consult(&settings(&stage, &flags), clients(), clock).await;
    assert_eq!(faults(&report), [unread, ("cluster", "agents", "failure")], "{}", report.text());
    let repair = [&flags[..], &["--on-condition", "KernelReady=False:30m=drain"]].concat();
    let report = consult(&settings(&stage, &repair), clients(), clock).await;
    assert_eq!(faults(&report), [("cluster", "conditions", "warning"), unread], "{}", report.text());
    assert!(!report.failed(false), "conditions need no agent");
    stage.set_condition(1, "KernelReady", "True", 0);
    let waves = [&repair[..], &["--wave", "topology.kubernetes.io/zone=1,pool=1"]].concat();
    let report = consult(&settings(&stage, &waves), clients(), clock).await;
    assert_eq!(faults(&report), [("cluster", "waves", "warning"), unread], "{}", report.text());
    for n in 0..3 {
        stage.world.kube.add_pod(Pod::on(&node(n)).daemonset().labels([("ebbtide/agent", "true")]));
    }
    let report = consult(&settings(&stage, &flags), clients(), clock).await;
    assert_eq!(faults(&report), [unread], "{}", report.text());
    assert!(report.text().contains("3 nodes have an agent that is ready"), "{}", report.text());
    assert!(line(&report, "queue source").contains("there is no queue"), "{}", report.text());
    let replica = stage.start(&[&flags[..], &["--check-at-start=true"]].concat()).await;
    tokio::time::sleep(s(120)).await;
    let calls = stage.world.calls.all();
    assert!(calls.iter().all(|call| call.operation.contains(' ')), "{}", stage.story());
    assert!(calls.iter().any(|call| call.operation == "create selfsubjectaccessreviews"), "{}", stage.story());
    stage.rest(&[&replica]).await;
}

/// Returns a set-up with agents, in which all calls to AWS are denied but those that a policy in these documents allows.
fn with_policy_of(printed: &str) -> Stage {
    let stage = healthy();
    for n in 0..3 {
        stage.world.kube.add_pod(Pod::on(&node(n)).daemonset().labels([("ebbtide/agent", "true")]));
    }
    for operation in [
        "CompleteLifecycleAction",
        "DescribeAutoScalingGroups",
        "DescribeAutoScalingInstances",
        "DescribeCapacityReservations",
        "DescribeInstances",
        "DescribeInstanceStatus",
        "DescribeLifecycleHooks",
        "DescribeSpotInstanceRequests",
        "RebootInstances",
        "RecordLifecycleActionHeartbeat",
        "SetInstanceHealth",
    ] {
        if !printed.contains(&format!(":{operation}\"")) {
            stage.world.faults.add(Rule::on(operation, Fault::Status(403)));
        }
    }
    stage
}

/// The policy that docs/agent.md prints is enough for all that is tried: every other call is denied.
#[tokio::test(start_paused = true)]
async fn the_policy_for_a_hook_that_nodes_do_not_name_is_enough_to_check_it() {
    let stage = with_policy_of(include_str!("../../../docs/agent.md"));
    let flags = ["--source", "nodes", "--pod-namespace", "ebbtide", "--pod-name", "a", "--node-hook", "drain"];
    let report = examined(&stage, &[&flags[..], &["--max-draining", "1"]].concat()).await;
    assert_eq!(faults(&report), [("cluster", "hop-limit", "skipped")], "{}", report.text());
    for check in ["groups groups", "calls members", "calls hooks", "calls heartbeat", "calls complete"] {
        assert!(line(&report, check).starts_with("ok"), "{check}: {}", report.text());
    }
}

/// The policy that docs/repair.md prints is enough for repair without a queue.
#[tokio::test(start_paused = true)]
async fn the_policy_for_replacements_without_a_queue_is_enough_to_check_them() {
    let stage = with_policy_of(include_str!("../../../docs/repair.md"));
    let flags = ["--source", "nodes,ec2", "--pod-namespace", "ebbtide", "--pod-name", "a", "--node-hook", "drain"];
    let rules =
        ["--ec2-poll-interval", "5m", "--on-condition", "Ready=Unknown:10m=replace", "--on", "status-check=reboot"];
    let report = examined(&stage, &[&flags[..], &rules].concat()).await;
    let calls = report.checks().iter().filter(|check| check.area.as_str() == "calls");
    let calls: Vec<_> = calls.map(|check| (check.name, check.status)).collect();
    let all = [
        "instances",
        "scheduled-changes",
        "reservations",
        "members",
        "hooks",
        "heartbeat",
        "complete",
        "groups",
        "replace",
        "reboot",
    ];
    assert_eq!(calls, all.map(|name| (name, Status::Ok)), "{}", report.text());
}

#[tokio::test(start_paused = true)]
async fn lists_are_read_to_the_last_page() {
    let stage = healthy();
    let aws = &stage.world.aws;
    aws.events.set_page_size(1);
    aws.autoscaling.set_page_size(1);
    for n in 3..600 {
        stage.world.kube.add_node(&node(n), &instance(n + 100));
    }
    let report = examined(&stage, &[]).await;
    assert_eq!(faults(&report), [], "{}", report.text());
    assert!(report.text().contains("2 groups: blue, green"), "{}", report.text());
    assert!(report.text().contains("600 nodes are on EC2\n"), "{}", report.text());
    assert_eq!((stage.calls("ListRuleNamesByTarget"), stage.calls("DescribeAutoScalingGroups")), (3, 3));
    // And the first Nodes once more, to try on one of them what marks write.
    assert_eq!(stage.calls("list nodes"), 6 + 1);
}

#[tokio::test(start_paused = true)]
async fn pages_read_from_a_slow_list_count() {
    let stage = healthy();
    for n in 3..600 {
        stage.world.kube.add_node(&node(n), &instance(n + 100));
    }
    stage.world.faults.add(Rule::on("list nodes", Fault::Slow(s(2))));
    let begun = Instant::now();
    let report = examined(&stage, &[]).await;
    assert!(begun.elapsed() <= s(10), "{:?}", begun.elapsed());
    assert!(line(&report, "cluster nodes").starts_with("ok"), "{}", report.text());
    assert!(line(&report, "cluster nodes").contains("400"), "{}", report.text());

    let stage = healthy();
    stage.world.aws.autoscaling.set_page_size(1);
    for n in 0..9 {
        let instances = vec![instance(100 + n)];
        stage.world.aws.autoscaling.put_group(&format!("more-{n}"), GroupSpec { instances, ..GroupSpec::default() });
    }
    stage.world.faults.add(Rule::on("DescribeAutoScalingGroups", Fault::Slow(s(2))));
    let begun = Instant::now();
    let report = examined(&stage, &[]).await;
    assert!(begun.elapsed() <= s(10), "{:?}", begun.elapsed());
    assert!(line(&report, "groups groups").contains("2 groups: blue, green; not all"), "{}", report.text());
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_rule_does_not_affect_other_rules() {
    for fault in [Fault::Status(403), Fault::Status(500), Fault::Hang] {
        let stage = healthy();
        // The second page of three.
        stage.world.faults.add(Rule::on("DescribeRule", fault).subject("ec2"));
        let report = examined(&stage, &[]).await;
        assert!(!report.failed(false), "{}", report.text());
        for kind in ["asg-terminate", "scheduled-change"] {
            assert!(line(&report, &format!("rules {kind} ")).starts_with("ok"), "{fault:?}: {}", report.text());
        }
        for check in ["rules", "spot", "rebalance"] {
            let line = line(&report, &format!("rules {check} "));
            assert!(line.starts_with("skipped"), "{fault:?}: {}", report.text());
        }
        let said = report.checks().iter().find(|check| check.name == "rules").map(|check| check.found.as_str());
        assert!(said.is_some_and(|said| said.contains("events:DescribeRule")), "{said:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_the_right_to_test_patterns_rules_are_skipped_and_the_right_is_named() {
    for (fault, remedy) in [(Fault::Status(403), Some("events:TestEventPattern.")), (Fault::Hang, None)] {
        let stage = healthy();
        stage.world.faults.add(Rule::on("TestEventPattern", fault));
        let report = examined(&stage, &[]).await;
        assert_eq!(faults(&report), [("rules", "rules", "skipped")], "{}", report.text());
        let check = report.checks().iter().find(|check| check.name == "rules").unwrap();
        assert!(check.found.contains("events:TestEventPattern"), "{}", check.found);
        assert_eq!(check.remedy.as_deref().and_then(|text| text.rsplit(' ').next()), remedy, "{:?}", check.remedy);
        // The queue's policy is judged by the rules' ARNs all the same.
        let only = policy(&stage.world.aws.sqs.queue_arn(), "arn:aws:events:*:*:rule/x");
        stage.world.aws.sqs.set_attribute("Policy", &only);
        assert_eq!(faults(&examined(&stage, &[]).await)[0], ("queue", "policy", "failure"));
    }
}

/// Returns the first line of a check.
fn line(report: &Diagnosis, check: &str) -> String {
    report.text().lines().find(|line| line.contains(check)).map(str::to_owned).unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn calls_without_permission_are_not_made() {
    let stage = healthy();
    stage.world.kube.deny("list poddisruptionbudgets");
    let report = examined(&stage, &[]).await;
    assert_eq!(faults(&report), [("cluster", "budgets", "skipped")], "{}", report.text());
    assert_eq!(stage.calls("list poddisruptionbudgets"), 0);
    let stage = healthy();
    stage.world.kube.deny("patch nodes");
    let report = examined(&stage, &[]).await;
    assert_eq!(faults(&report), [("permissions", "nodes", "failure")], "{}", report.text());
    assert_eq!(stage.calls("patch nodes"), 0);
}

#[tokio::test(start_paused = true)]
async fn pods_that_drains_leave_do_not_count() {
    let stage = healthy();
    stage.world.kube.add_pod(Pod::on(&node(0)).named("agent").owner("DaemonSet", "agent").grace(s(3600)));
    stage.world.kube.add_pod(Pod::on(&node(0)).named("done").phase("Succeeded").grace(s(3600)));
    assert_eq!(faults(&examined(&stage, &[]).await), []);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("db").grace(s(3600)));
    assert_eq!(faults(&examined(&stage, &[]).await), [], "the default leaves room for it");
    let report = examined(&stage, &["--drain-timeout", "asg-terminate=10m"]).await;
    assert_eq!(faults(&report), [("groups", "hook", "warning")], "{}", report.text());
    let told = report.checks().iter().any(|check| check.found.contains("pod default/db has a grace period of 1h"));
    assert!(told, "{}", report.text());
    stage.world.kube.add_budget("default", "db", [("app", "db")], Limit::MaxUnavailable(1));
    assert!(!examined(&stage, &[]).await.failed(false));
}

/// Returns the numbers of warnings, failures and skipped checks at the start.
fn counted(replica: &Replica) -> [String; 3] {
    ["warning", "failure", "skipped"]
        .map(|status| replica.metric(&format!("ebbtide_checks{{status=\"{status}\"}} ")).to_string())
}

#[tokio::test(start_paused = true)]
async fn the_service_checks_once_when_ready() {
    let stage = healthy();
    stage.world.aws.sqs.set_dead_letter(3);
    let replica = stage.start(&["--check-at-start=true"]).await;
    stage.until("the checks are counted", s(15), || replica.metric(OK) > 20.0).await;
    assert_eq!(counted(&replica), ["1", "0", "2"], "the dead-letter queue; and what is always skipped");
    assert_eq!(stage.calls("GetCallerIdentity"), 1);
    // A refusal that the checks expect is not counted as a failure.
    let text = replica.metrics.render(&replica.tasks);
    let mut completions = text.lines().filter(|line| line.contains("operation=\"CompleteLifecycleAction\""));
    assert!(completions.all(|line| line.ends_with(" 0")), "{text}");
    stage.rest(&[&replica]).await;
    assert_eq!(stage.calls("GetCallerIdentity"), 1, "once");
}

#[tokio::test(start_paused = true)]
async fn hanging_start_checks_delay_neither_a_drain_nor_the_shutdown() {
    let stage = healthy();
    for operation in ["GetCallerIdentity", "GetQueueAttributes", "create selfsubjectaccessreviews", "list pods"] {
        stage.world.faults.add(Rule::on(operation, Fault::Hang).subject(""));
    }
    let replica = stage.start(&["--check-at-start=true"]).await;
    stage.until("ready", s(2), || replica.metric("ebbtide_ready ") > 0.0).await;
    stage.spot(0);
    stage.until_handled(s(20)).await;
    assert!(stage.ends_of("web-0-0").len() == 1);
    let late = stage.start(&["--check-at-start=true"]).await;
    stage.until("ready", s(2), || late.metric("ebbtide_ready ") > 0.0).await;
    let (_, took, _) = late.stop().await;
    assert!(took < s(3), "{took:?}");
    stage.until("the checks end", s(15), || replica.metric(OK) > 0.0).await;
    // A missing answer is no defect of the set-up.
    assert_eq!(counted(&replica)[..2], ["0", "0"]);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn replacements_are_checked_where_they_are_wanted() {
    let stage = healthy();
    let wanted = ["--on", "rebalance=replace"];
    let report = examined(&stage, &wanted).await;
    assert_eq!(faults(&report), [("groups", "replace", "warning")], "{}", report.text());
    assert!(
        line(&report, "groups replace").contains("blue, green: no instance maintenance policy"),
        "{}",
        report.text()
    );
    for group in ["blue", "green"] {
        let change = |spec: &mut GroupSpec| (spec.desired, spec.max, spec.maintenance) = (2, 3, Some((100, 110)));
        stage.world.aws.autoscaling.change_group(group, change);
    }
    let report = examined(&stage, &wanted).await;
    assert_eq!(faults(&report), [], "{}", report.text());
    assert_eq!((stage.calls("SetInstanceHealth"), stage.world.aws.autoscaling.unhealthy().len()), (4, 0), "only tried");
    stage.world.faults.add(Rule::on("SetInstanceHealth", Fault::Status(403)).subject(instance(2)));
    let report = examined(&stage, &wanted).await;
    assert_eq!(faults(&report), [("calls", "replace", "failure")]);
    assert!(line(&report, "calls replace").contains("autoscaling:SetInstanceHealth is not allowed on green"));
    stage.world.faults.add(Rule::on("DescribeAutoScalingGroups", Fault::Status(403)));
    let report = examined(&stage, &wanted).await;
    assert!(line(&report, "calls groups").starts_with("failure"), "{}", report.text());
}

#[tokio::test(start_paused = true)]
async fn the_calls_about_target_groups_are_tried_without_an_effect() {
    let stage = healthy();
    let elb = &stage.world.aws.elb;
    let arn = elb.add_group("web", s(300));
    elb.register(&arn, &instance(0), 80);
    let instances = vec![instance(0)];
    let spec = GroupSpec { instances, target_groups: vec![arn.clone()], ..GroupSpec::default() };
    stage.world.aws.autoscaling.put_group("blue", spec);
    for (mode, tried) in [("off", [0, 0, 0, 0]), ("wait", [1, 1, 1, 0]), ("deregister", [2, 2, 2, 1])] {
        let report = examined(&stage, &["--wait-for-load-balancers", mode]).await;
        assert_eq!(faults(&report), [], "{mode}: {}", report.text());
        let calls = ["DescribeTargetHealth", "DescribeTargetGroups", "DescribeTags", "DeregisterTargets"];
        assert_eq!(calls.map(|call| stage.calls(call)), tried, "{mode}");
    }
    examined(&stage, &["--wait-for-load-balancers", "deregister", "--dry-run"]).await;
    assert_eq!(stage.calls("DescribeTargetHealth"), 2);
    assert_eq!(elb.registered(&arn), [instance(0)]);
    for call in ["DescribeTargetHealth", "DescribeTargetGroups", "DescribeTags", "DeregisterTargets"] {
        stage.world.faults.add(Rule::on(call, Fault::Status(403)));
    }
    stage.world.kube.deny("list targetgroupbindings");
    let report = examined(&stage, &["--wait-for-load-balancers", "deregister"]).await;
    let denied = [
        ("calls", "target-health", "failure"),
        ("calls", "target-groups", "failure"),
        ("calls", "target-group-tags", "failure"),
        ("calls", "deregister", "failure"),
        ("permissions", "targetgroupbindings", "failure"),
    ];
    assert_eq!(faults(&report), denied, "{}", report.text());
    let said = line(&report, "calls deregister");
    assert!(said.contains("elasticloadbalancing:DeregisterTargets is not allowed on web"), "{said}");
    stage.world.aws.autoscaling.change_group("blue", |spec| spec.target_groups.clear());
    let report = examined(&stage, &["--wait-for-load-balancers", "deregister"]).await;
    assert!(line(&report, "calls deregister").starts_with("skipped"), "{}", report.text());
}
