//! The readings of a healthy set-up, which each test changes.

use super::event_pattern::CommonPattern;
use super::permissions::needed;
use super::read;
use super::read::Trial;
use super::readings::{
    AccessReview, ApiServer, Budgets, CallTrial, CallerIdentity, EventRule, EventRules, HookConfig, MetadataOptions,
    NodeInstance, Nodes, PodGrace, PodOwner, Policies, Policy, ReadError, Readings, ScalingGroup, ScalingGroups,
    SentEvent, TrialAnswer, Workload, Workloads,
};
use super::{Check, Diagnosis, Status, judge, rules};
use crate::cli::flags::{Cli, Command};
use crate::cli::settings::Settings;
use crate::clients::gate::Category;
use crate::pipeline::interruption::Group;
use clap::Parser;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

pub(super) const URL: &str = "https://sqs.eu-west-1.amazonaws.com/123456789012/ebbtide";
pub(super) const QUEUE: &str = "arn:aws:sqs:eu-west-1:123456789012:ebbtide";

pub(super) fn settings(flags: &[&str]) -> Settings {
    let no_queue = flags.windows(2).any(|pair| pair[0] == "--source" && !pair[1].contains("queue"));
    let source = match flags.contains(&"--node-hook") {
        true => &["--source", "nodes"][..],
        false if no_queue => &[],
        false => &["--queue-url", URL],
    };
    let words = [&["ebbtide", "run"], source].concat();
    let Command::Run(run) = Cli::try_parse_from(words.iter().chain(flags)).unwrap().command else { panic!("run") };
    Settings::from_flags(run).unwrap()
}

pub(super) fn denied<T>() -> Result<T, ReadError> {
    Err(ReadError::new(Category::Denied, "AccessDenied: not authorized"))
}

pub(super) fn silent<T>() -> Result<T, ReadError> {
    Err(ReadError::new(Category::TimedOut, "no answer within 3 s"))
}

/// Returns how a pattern matches an event, as the simulated EventBridge answers.
pub(super) fn sent(pattern: &str, event: &Value) -> Option<SentEvent> {
    let CommonPattern { pattern, narrows } = CommonPattern::of(pattern, event)?;
    ebbtide_sim::aws::matches(&pattern, event).unwrap().then(|| SentEvent { event: event.clone(), narrows })
}

/// Returns an enabled rule that has been tried on the events that any settings ask for.
pub(super) fn rule(name: &str, pattern: &str) -> EventRule {
    let flags = [&EVERYTHING[..], &["--health-issue=AWS_EC2_A_FAULT=drain"]].concat();
    EventRule {
        name: name.to_owned(),
        arn: format!("arn:aws:events:eu-west-1:123456789012:rule/{name}"),
        enabled: true,
        sends: Ok(rules::events(&settings(&flags)).iter().filter_map(|event| sent(pattern, event)).collect()),
    }
}

pub(super) fn hook(name: &str, seconds: u64) -> HookConfig {
    HookConfig {
        name: name.to_owned(),
        terminating: true,
        heartbeat: Duration::from_secs(seconds),
        continues: true,
        notifies: None,
        notifying_role: None,
    }
}

pub(super) fn group(name: &str, hooks: Vec<HookConfig>) -> ScalingGroup {
    ScalingGroup {
        name: name.to_owned(),
        rebalances: false,
        retains: false,
        state: Group { max: 1, launches_first: true, ..Group::default() },
        target_groups: Vec::new(),
        hooks: Ok(hooks),
    }
}

/// Returns answers to the call of this check.
pub(super) fn trial(name: &str, answers: Vec<TrialAnswer>) -> CallTrial {
    let Trial { name, action, without, .. } = *read::CALLS.iter().find(|row| row.name == name).unwrap();
    CallTrial { name, action, without, answers }
}

fn answer(answer: Result<(), ReadError>) -> Vec<TrialAnswer> {
    vec![TrialAnswer { subject: "workers".to_owned(), answer }]
}

pub(super) fn policy() -> String {
    json!({ "Version": "2012-10-17", "Statement": [{
        "Effect": "Allow", "Principal": { "Service": "events.amazonaws.com" }, "Action": "sqs:SendMessage",
        "Resource": QUEUE, "Condition": { "ArnLike": { "aws:SourceArn": "arn:aws:events:eu-west-1:123456789012:rule/*" } },
    }, {
        "Sid": "Only", "Effect": "Deny", "Principal": "*", "Action": "sqs:SendMessage",
        "Resource": QUEUE, "Condition": { "ArnNotLike": { "aws:SourceArn": "arn:aws:events:eu-west-1:123456789012:rule/*" } },
    }] })
    .to_string()
}

pub(super) fn healthy(settings: &Settings) -> Readings {
    let attributes = [
        ("QueueArn", QUEUE.to_owned()),
        ("Policy", policy()),
        ("SqsManagedSseEnabled", "true".to_owned()),
        ("MessageRetentionPeriod", "345600".to_owned()),
        ("VisibilityTimeout", "30".to_owned()),
        ("DelaySeconds", "0".to_owned()),
        (
            "RedrivePolicy",
            json!({ "deadLetterTargetArn": "arn:aws:sqs:eu-west-1:123456789012:dead", "maxReceiveCount": 10 })
                .to_string(),
        ),
        ("RedriveAllowPolicy", json!({ "redrivePermission": "denyAll" }).to_string()),
        ("ApproximateNumberOfMessages", "0".to_owned()),
        ("ApproximateNumberOfMessagesNotVisible", "1".to_owned()),
    ];
    let now = "2026-11-21T12:00:00Z".parse().unwrap();
    let mut nodes = Nodes { complete: true, ..Nodes::default() };
    let labels = [("topology.kubernetes.io/zone".to_owned(), "eu-west-1a".to_owned())].into();
    nodes.add("node-0".to_owned(), Some("aws:///eu-west-1a/i-00000000000000001"), labels);
    nodes.add_conditions(["Ready".to_owned()]);
    let web = Workload { pods: 2, labels: BTreeMap::from([("app".to_owned(), "web".to_owned())]) };
    let owner = PodOwner { namespace: "shop".to_owned(), kind: "ReplicaSet".to_owned(), name: "web".to_owned() };
    Readings {
        no_aws: None,
        no_cluster: None,
        region: Some("eu-west-1".to_owned()),
        identity: Ok(CallerIdentity {
            account: "123456789012".to_owned(),
            arn: "arn:aws:sts::123456789012:role".to_owned(),
        }),
        queue: Ok(attributes.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()),
        rules: Ok(EventRules {
            rules: vec![
                rule("all-ec2", r#"{"source": [{"prefix": "aws.ec2"}]}"#),
                rule("asg", r#"{"source": ["aws.autoscaling"], "detail-type": [{"prefix": "EC2 Instance-"}]}"#),
                rule("health", r#"{"source": ["aws.health"], "detail-type": ["AWS Health Event"]}"#),
            ],
            unread: None,
            complete: true,
        }),
        groups: Ok(ScalingGroups { groups: vec![group("workers", vec![hook("drain", 300)])], more: 0, complete: true }),
        ready_here: true,
        trials: ["delete", "extend", "instances", "hooks", "heartbeat", "complete"]
            .map(|name| trial(name, answer(Ok(()))))
            .into(),
        server: Ok(ApiServer { version: "v1.34.1".to_owned(), date: Some(now), asked_at: now, answered_at: now }),
        username: Some("system:serviceaccount:ebbtide:ebbtide".to_owned()),
        reviews: needed(settings)
            .into_iter()
            .map(|permission| AccessReview { permission, allowed: Ok(true) })
            .collect(),
        nodes: Ok(nodes),
        instances: Ok(vec![NodeInstance {
            id: "i-00000000000000001".to_owned(),
            clusters: vec!["blue".to_owned()],
            metadata: Some(MetadataOptions { on: true, without_token: false, hop_limit: 1 }),
        }]),
        workloads: Ok(Workloads {
            workloads: BTreeMap::from([(owner, web)]),
            longest_grace: Some(PodGrace { pod: "pod shop/web-1".to_owned(), period: Duration::from_mins(1) }),
            complete: true,
        }),
        budgets: Ok(Budgets { budgets: Vec::new(), complete: true }),
        marks: Vec::new(),
        policies: Ok(Some(chart_policies())),
        agents: None,
    }
}

/// Returns the chart's policies, of a release `ebbtide`, in force.
pub(super) fn chart_policies() -> Policies {
    let specs: BTreeMap<String, _> = serde_json::from_str(include_str!("policies.json")).unwrap();
    let policy = |(kind, spec)| Policy { name: format!("ebbtide-{kind}"), kind, spec };
    let policies: Vec<Policy> = specs.into_iter().map(policy).collect();
    let enforced = policies.iter().map(|policy| policy.name.clone()).collect();
    Policies { policies, enforced }
}

/// Returns the findings that are not ok after a change.
pub(super) fn found(flags: &[&str], change: impl FnOnce(&mut Readings)) -> Vec<Check> {
    let settings = settings(flags);
    let mut readings = healthy(&settings);
    change(&mut readings);
    let diagnosis = judge(&settings, &readings);
    diagnosis.checks().iter().filter(|check| check.status != Status::Ok).cloned().collect()
}

/// Returns the one finding after a change: its name, its status and its text.
pub(super) fn one(flags: &[&str], change: impl FnOnce(&mut Readings)) -> (&'static str, Status, String) {
    let found = found(flags, change);
    let [check] = found.as_slice() else { panic!("one finding is expected: {found:#?}") };
    assert!(check.remedy.is_some() || check.status == Status::Skipped, "{check:?}");
    (check.name, check.status, format!("{}\n{}", check.found, check.remedy.as_deref().unwrap_or_default()))
}

#[test]
fn a_healthy_set_up_has_no_fault() {
    assert_eq!(found(&[], |_| {}), Vec::new());
    assert_eq!(found(&["--on", "asg-launch=ready", "--heartbeat", "off"], |_| {}), Vec::new());
}

#[test]
fn each_area_reports_once_that_nobody_answers() {
    let silent_review =
        |review: &AccessReview| AccessReview { permission: review.permission.clone(), allowed: silent() };
    let found = found(&[], |readings| {
        readings.identity = silent();
        readings.queue = silent();
        readings.rules = silent();
        readings.groups = silent();
        readings.trials = Vec::new();
        readings.server = silent();
        readings.reviews = readings.reviews.iter().map(silent_review).collect();
        readings.nodes = silent();
        readings.workloads = silent();
        readings.budgets = silent();
    });
    let names: Vec<_> = found.iter().map(|check| (check.area.as_str(), check.name, check.status.as_str())).collect();
    assert_eq!(
        names,
        [
            ("credentials", "identity", "warning"),
            ("queue", "exists", "failure"),
            ("rules", "rules", "skipped"),
            ("groups", "groups", "skipped"),
            ("calls", "complete", "skipped"),
            ("permissions", "api-server", "failure"),
            ("clock", "skew", "skipped"),
        ]
    );
    // At the start of the service this is no problem of the set-up.
    assert!(found.iter().all(|check| check.status_at_start() == Status::Skipped));
}

#[test]
fn a_denied_read_is_skipped_and_names_the_permission() {
    let found = found(&[], |readings| {
        readings.queue = denied();
        readings.rules = denied();
        readings.groups = denied();
        readings.budgets = denied();
        readings.trials.truncate(3);
    });
    let names: Vec<_> =
        found.iter().map(|check| (check.name, check.status.as_str(), check.remedy.as_deref())).collect();
    let allow = |what| Some(what);
    assert_eq!(
        names,
        [
            ("exists", "skipped", allow("To have it checked, allow sqs:GetQueueAttributes.")),
            (
                "rules",
                "skipped",
                allow(
                    "To have it checked, allow events:ListRuleNamesByTarget, events:DescribeRule and events:TestEventPattern."
                )
            ),
            ("groups", "skipped", allow("To have it checked, allow autoscaling:DescribeAutoScalingGroups.")),
            ("complete", "skipped", None),
            ("budgets", "skipped", allow("To have it checked, allow list of poddisruptionbudgets in policy.")),
        ]
    );
}

/// Settings for which every call, right and rule is needed.
const EVERYTHING: [&str; 19] = [
    "--source",
    "queue,nodes,ec2",
    "--pod-namespace",
    "ops",
    "--pod-name",
    "ebbtide-1",
    "--collect-leases",
    "--collect-nodes",
    "--ec2-poll-interval",
    "5m",
    "--verify",
    "always",
    "--wait-for-load-balancers",
    "deregister",
    "--on",
    "rebalance=replace,asg-launch=ready",
    "--zonal-shift",
    "any",
    "--out-of-service-taint",
];

/// Returns trials of every call, all with this answer.
fn all_trials(given: &Result<(), ReadError>) -> Vec<CallTrial> {
    read::CALLS.iter().map(|row| trial(row.name, answer(given.clone()))).collect()
}

type Change = Box<dyn Fn(&mut Readings)>;

fn attribute(name: &'static str, value: &'static str) -> Change {
    Box::new(move |readings| drop(readings.queue.as_mut().unwrap().insert(name.to_owned(), value.to_owned())))
}

/// The words of the findings are those of the fixture: what a user reads is changed on purpose only.
#[test]
fn findings_read_as_in_the_fixture() {
    let no_rules = || EventRules { complete: true, ..EventRules::default() };
    let scenarios: Vec<(&str, &[&str], Change)> = vec![
        ("ok, everything", &EVERYTHING, Box::new(|readings| readings.trials = all_trials(&Ok(())))),
        (
            "denied, everything",
            &EVERYTHING,
            Box::new(move |readings| {
                readings.trials = all_trials(&denied());
                readings.reviews.iter_mut().for_each(|review| review.allowed = Ok(false));
                readings.rules = Ok(no_rules());
            }),
        ),
        (
            "unanswered, everything",
            &EVERYTHING,
            Box::new(|readings| {
                readings.trials = all_trials(&silent());
                readings.reviews.iter_mut().for_each(|review| review.allowed = silent());
                readings.rules = silent();
                readings.ready_here = false;
            }),
        ),
        ("nothing tried, everything", &EVERYTHING, Box::new(|readings| readings.trials.clear())),
        ("no policy", &[], attribute("Policy", "")),
        (
            "a policy for everybody",
            &[],
            attribute(
                "Policy",
                r#"{"Statement": {"Effect": "Allow", "Principal": "*", "Action": "sqs:*", "Resource": "*"}}"#,
            ),
        ),
        (
            "a custom policy",
            &[],
            Box::new(|readings| {
                let custom = policy().replace("ArnNotLike", "ArnNotLikeIfExists");
                readings.queue.as_mut().unwrap().insert("Policy".to_owned(), custom);
            }),
        ),
        ("AWS's key", &[], attribute("KmsMasterKeyId", "alias/aws/sqs")),
        ("an own key", &[], attribute("KmsMasterKeyId", "alias/mine")),
        ("retention below a drain", &[], attribute("MessageRetentionPeriod", "300")),
        ("retention of hours", &[], attribute("MessageRetentionPeriod", "7200")),
        ("retention unknown", &[], attribute("MessageRetentionPeriod", "")),
        ("a delay", &[], attribute("DelaySeconds", "60")),
        ("no dead letters", &[], attribute("RedrivePolicy", "")),
        (
            "few receives",
            &[],
            attribute("RedrivePolicy", r#"{"deadLetterTargetArn": "arn:dead", "maxReceiveCount": "3"}"#),
        ),
        ("any other queue", &[], attribute("RedriveAllowPolicy", "")),
        (
            "some other queues",
            &[],
            attribute(
                "RedriveAllowPolicy",
                r#"{"redrivePermission": "byQueue", "sourceQueueArns": ["arn:a", "arn:b"]}"#,
            ),
        ),
        ("many wait", &[], attribute("ApproximateNumberOfMessages", "1001")),
    ];
    let mut text = String::new();
    for (title, flags, change) in scenarios {
        let settings = settings(flags);
        let mut readings = healthy(&settings);
        change(&mut readings);
        let checks = judge(&settings, &readings).checks().to_vec();
        let shown = checks.into_iter().filter(|check| title.starts_with("ok") || check.status != Status::Ok).collect();
        writeln!(text, "# {title}\n\n{}", Diagnosis::new(shown).text()).unwrap();
    }
    if text != include_str!("../../../tests/fixtures/doctor/findings.txt") {
        let made = std::env::temp_dir().join("findings.txt");
        std::fs::write(&made, &text).unwrap();
        panic!("compare tests/fixtures/doctor/findings.txt with {}", made.display());
    }
}
