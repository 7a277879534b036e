//! What a healthy set-up looks like once it is read; tests change it.

use super::aws_calls::{Trial, Tried};
use super::clock_skew::Server;
use super::cluster::{Budgets, Nodes, Owned, Workloads};
use super::credentials::Identity;
use super::groups::{Group, Groups, Hook};
use super::rules::{Rule, Rules};
use super::{Check, Failed, Seen, Status, judge, needs};
use crate::cli::flags::{Cli, Command};
use crate::cli::settings::Settings;
use crate::clients::gate::Category;
use clap::Parser;
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;

pub(super) const URL: &str = "https://sqs.eu-west-1.amazonaws.com/123456789012/ebbtide";
pub(super) const QUEUE: &str = "arn:aws:sqs:eu-west-1:123456789012:ebbtide";

pub(super) fn settings(flags: &[&str]) -> Settings {
    let words = ["ebbtide", "run", "--queue-url", URL];
    let Command::Run(run) = Cli::try_parse_from(words.iter().chain(flags)).unwrap().command else { panic!("run") };
    Settings::from_flags(run).unwrap()
}

pub(super) fn denied<T>() -> Result<T, Failed> {
    Err(Failed { category: Category::Denied, what: "AccessDenied: not authorized".to_owned() })
}

pub(super) fn silent<T>() -> Result<T, Failed> {
    Err(Failed { category: Category::TimedOut, what: "no answer within 3 s".to_owned() })
}

pub(super) fn rule(name: &str, pattern: &str) -> Rule {
    Rule {
        name: name.to_owned(),
        arn: format!("arn:aws:events:eu-west-1:123456789012:rule/{name}"),
        enabled: true,
        pattern: Some(pattern.to_owned()),
    }
}

pub(super) fn hook(name: &str, seconds: u64) -> Hook {
    Hook {
        name: name.to_owned(),
        terminating: true,
        heartbeat: Duration::from_secs(seconds),
        continues: true,
        notifies: None,
    }
}

pub(super) fn group(name: &str, hooks: Vec<Hook>) -> Group {
    Group { name: name.to_owned(), rebalances: false, retains: false, hooks: Ok(hooks) }
}

pub(super) fn policy() -> String {
    json!({ "Version": "2012-10-17", "Statement": [{
        "Effect": "Allow", "Principal": { "Service": "events.amazonaws.com" }, "Action": "sqs:SendMessage",
        "Resource": QUEUE, "Condition": { "ArnLike": { "aws:SourceArn": "arn:aws:events:eu-west-1:123456789012:rule/*" } },
    }] })
    .to_string()
}

pub(super) fn healthy(settings: &Settings) -> Seen {
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
        ("ApproximateNumberOfMessages", "0".to_owned()),
        ("ApproximateNumberOfMessagesNotVisible", "1".to_owned()),
    ];
    let now = "2026-11-21T12:00:00Z".parse().unwrap();
    let mut nodes = Nodes { all: true, ..Nodes::default() };
    nodes.add("node-0".to_owned(), Some("aws:///eu-west-1a/i-00000000000000001"));
    let web = Owned { pods: 2, labels: BTreeMap::from([("app".to_owned(), "web".to_owned())]) };
    let tried = [Tried::Delete, Tried::Extend, Tried::Instances, Tried::Hooks, Tried::Heartbeat, Tried::Complete];
    Seen {
        no_aws: None,
        no_cluster: None,
        region: Some("eu-west-1".to_owned()),
        identity: Ok(Identity { account: "123456789012".to_owned(), arn: "arn:aws:sts::123456789012:role".to_owned() }),
        queue: Ok(attributes.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()),
        rules: Ok(Rules {
            rules: vec![
                rule("all-ec2", r#"{"source": ["aws.ec2"]}"#),
                rule("asg", r#"{"source": ["aws.autoscaling"], "detail-type": [{"prefix": "EC2 Instance-"}]}"#),
                rule("health", r#"{"source": ["aws.health"], "detail-type": ["AWS Health Event"]}"#),
            ],
            unread: None,
            all: true,
        }),
        groups: Ok(Groups { groups: vec![group("workers", vec![hook("drain", 300)])], more: 0, all: true }),
        ready_here: true,
        trials: tried.map(|tried| Trial { tried, answers: vec![("workers".to_owned(), Ok(()))] }).into(),
        server: Ok(Server { version: "v1.34.1".to_owned(), date: Some(now), ours: (now, now) }),
        who: Some("system:serviceaccount:ebbtide:ebbtide".to_owned()),
        reviews: needs(settings).into_iter().map(|need| (need, Ok(true))).collect(),
        nodes: Ok(nodes),
        workloads: Ok(Workloads {
            owners: BTreeMap::from([(("shop".to_owned(), "ReplicaSet".to_owned(), "web".to_owned()), web)]),
            longest_grace: Some(("pod shop/web-1".to_owned(), Duration::from_mins(1))),
            all: true,
        }),
        budgets: Ok(Budgets { budgets: Vec::new(), all: true }),
    }
}

/// The findings that are not ok, once something has been changed.
pub(super) fn found(flags: &[&str], change: impl FnOnce(&mut Seen)) -> Vec<Check> {
    let settings = settings(flags);
    let mut seen = healthy(&settings);
    change(&mut seen);
    let report = judge(&settings, &seen);
    report.checks().iter().filter(|check| check.status != Status::Ok).cloned().collect()
}

/// The one finding that a change leads to: its name, its status, and what is said.
pub(super) fn one(flags: &[&str], change: impl FnOnce(&mut Seen)) -> (&'static str, Status, String) {
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
fn where_nobody_answers_each_area_says_so_once() {
    let found = found(&[], |seen| {
        seen.identity = silent();
        seen.queue = silent();
        seen.rules = silent();
        seen.groups = silent();
        seen.trials = Vec::new();
        seen.server = silent();
        seen.reviews = seen.reviews.iter().map(|(need, _)| (need.clone(), silent())).collect();
        seen.nodes = silent();
        seen.workloads = silent();
        seen.budgets = silent();
    });
    let said: Vec<_> = found.iter().map(|check| (check.area.as_str(), check.name, check.status.as_str())).collect();
    assert_eq!(
        said,
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
    // At the start of the service that is no fault of the set-up.
    assert!(found.iter().all(|check| check.status_at_start() == Status::Skipped));
}

#[test]
fn what_may_not_be_read_is_skipped_and_says_what_to_allow() {
    let found = found(&[], |seen| {
        seen.queue = denied();
        seen.rules = denied();
        seen.groups = denied();
        seen.budgets = denied();
        seen.trials.truncate(3);
    });
    let said: Vec<_> = found.iter().map(|check| (check.name, check.status.as_str(), check.remedy.as_deref())).collect();
    let allow = |what| Some(what);
    assert_eq!(
        said,
        [
            ("exists", "skipped", allow("To have it checked, allow sqs:GetQueueAttributes.")),
            (
                "rules",
                "skipped",
                allow("To have it checked, allow events:ListRuleNamesByTarget and events:DescribeRule.")
            ),
            ("groups", "skipped", allow("To have it checked, allow autoscaling:DescribeAutoScalingGroups.")),
            ("complete", "skipped", None),
            ("budgets", "skipped", allow("To have it checked, allow list of poddisruptionbudgets in policy.")),
        ]
    );
}
