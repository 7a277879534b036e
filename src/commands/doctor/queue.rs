//! The queue: whether it exists, EventBridge may send to it, and it keeps messages for long enough. Pure.

mod attributes;

use super::arn::{ArnParts, queue_arn};
use super::check::{Area, Check, Status};
use super::queue_policy::{RoleRefusal, SendAccess, SendRefusal, access, refuses_others};
use super::readings::{QueueAttributes, ReadError, Readings};
use super::{credentials, groups};
use crate::cli::settings::Settings;
use crate::clients::gate::Category;
use crate::pipeline::event::NoticeKind;
use crate::pipeline::interruption::Action;
use crate::pipeline::queue::QueueUrl;

/// EventBridge's principal in policies.
pub const EVENTS: &str = "events.amazonaws.com";

/// SNS's principal in policies.
pub const SNS: &str = "sns.amazonaws.com";

/// Judges the queue.
#[must_use]
pub fn judge(settings: &Settings, readings: &Readings) -> Vec<Check> {
    let area = Area::Queue;
    let url = &settings.queue_url;
    let mut checks = vec![region(url, readings.region.as_deref())];
    let attributes = match &readings.queue {
        Ok(attributes) => attributes,
        Err(error) => {
            // A wrong region and missing credentials have been reported already.
            if checks[0].status != Status::Failure && !readings.identity.as_ref().is_err_and(credentials::unusable) {
                checks.push(missing(error, readings.region.as_deref()));
            }
            return checks;
        }
    };
    let known = queue_arn(Some(attributes), url).unwrap_or_default();
    checks.push(area.ok("exists", &known));
    checks.push(judge_policy(settings, readings, attributes, &known));
    checks.extend(senders(readings, attributes, &known));
    checks.extend(attributes::judge(url, attributes, groups::longest_drain(settings, readings)));
    checks
}

fn region(url: &str, ours: Option<&str>) -> Check {
    let (area, name) = (Area::Queue, "region");
    match (QueueUrl::parse(url).and_then(|url| url.region), ours) {
        (Some(queue), Some(ours)) if queue != ours => area.failure(
            name,
            format!("The queue is in {queue}, and calls to AWS go to {ours}: every receive fails."),
            format!("Set AWS_REGION={queue}, if the cluster is there. Otherwise give the queue of {ours}: an EventBridge rule sends to queues of its own region."),
        ),
        (Some(queue), _) => area.ok(name, queue),
        (None, Some(ours)) => area.skipped(name, format!("The queue's URL names no AWS region; calls go to {ours}.")),
        (None, None) => area.skipped(name, "The queue's URL names no AWS region."),
    }
}

fn missing(error: &ReadError, region: Option<&str>) -> Check {
    let (area, name) = (Area::Queue, "exists");
    let region = region.unwrap_or("this region");
    match error.category {
        Category::NotFound => area.failure(
            name,
            format!("There is no such queue in {region}: {}", error.message),
            "Correct --queue-url or AWS_REGION. This command lists the queues:\n  aws sqs list-queues",
        ),
        Category::Denied => area.unread(name, error, "sqs:GetQueueAttributes"),
        Category::Invalid => area.failure(
            name,
            &error.message,
            "Correct --queue-url: its form is https://sqs.REGION.amazonaws.com/ACCOUNT/NAME.",
        ),
        _ => area
            .failure(
                name,
                &error.message,
                "Let this process reach SQS: by a NAT gateway, by a VPC endpoint whose security group allows it, or by the proxy of HTTPS_PROXY.",
            )
            .unreached(),
    }
}

fn judge_policy(settings: &Settings, readings: &Readings, attributes: &QueueAttributes, arn: &str) -> Check {
    let (area, name) = (Area::Queue, "policy");
    // Lifecycle hooks may notify the queue directly, with a role of their own. All other notices come from EventBridge.
    let needed = !settings.policy().health_issues.is_empty()
        || NoticeKind::ALL.into_iter().any(|kind| {
            settings.policy().actions.of(kind) != Action::Ignore
                && !kind.is_repair()
                && !matches!(kind, NoticeKind::AsgTerminate | NoticeKind::AsgLaunch)
        });
    let ArnParts { partition, region, account } = ArnParts::of(arn);
    let statement = format!(
        "Add this statement to the queue's policy; the SQS console shows it under Access policy:\n  \
         {{\"Effect\": \"Allow\", \"Principal\": {{\"Service\": \"{EVENTS}\"}},\n   \
         \"Action\": \"sqs:SendMessage\", \"Resource\": \"{arn}\",\n   \
         \"Condition\": {{\"ArnLike\": {{\n     \"aws:SourceArn\": \"arn:{partition}:events:{region}:{account}:rule/*\"}}}}}}"
    );
    let policy = attributes.get("Policy").map(String::as_str).filter(|policy| !policy.is_empty());
    let refusal = match policy.map(|policy| access(policy, EVENTS, arn)) {
        Some(Ok(access)) => return judge_access(readings, &access, &statement),
        Some(Err(refusal)) => refusal,
        None => SendRefusal::Principal,
    };
    let refusal = match (refusal, policy.map(|policy| access(policy, SNS, arn))) {
        (SendRefusal::Principal, Some(Ok(sns))) => return judge_topics(&sns),
        (SendRefusal::Principal, Some(Err(custom @ SendRefusal::Custom(_)))) => custom,
        (refusal, _) => refusal,
    };
    let (found, remedy) = match refusal {
        SendRefusal::Principal if policy.is_none() => {
            ("The queue has no policy: EventBridge can't send to it.".to_owned(), statement)
        }
        SendRefusal::Principal => {
            (format!("No statement names {EVENTS}: EventBridge can't send to the queue."), statement)
        }
        SendRefusal::Action => (format!("{EVENTS} is named, but sqs:SendMessage is not allowed."), statement),
        SendRefusal::Resource => (format!("{EVENTS} may send to another queue: Resource is not {arn}."), statement),
        SendRefusal::Denied(sid) => (
            format!("A Deny statement refuses EventBridge itself{}: no condition leaves the rules out.", named(&sid)),
            format!(
                "Remove that statement, or leave the rules out by this condition on top of its own:\n  {}",
                sources(readings, arn)
            ),
        ),
        SendRefusal::Custom(sid) => {
            return custom(name, &sid).remedied(
                "Check that it lets EventBridge send. The requests have aws:SourceArn, which is the rule's ARN, and aws:SourceAccount.",
            );
        }
        SendRefusal::Unreadable => {
            return area.skipped(name, "The attribute Policy is not a policy.");
        }
    };
    if needed { area.failure(name, found, remedy) } else { area.warning(name, found, remedy) }
}

/// Judges whether the topics that a policy names may send, where only SNS may.
fn judge_topics(sns: &SendAccess) -> Check {
    let (area, name) = (Area::Queue, "policy");
    let mut topics = sns.grants.iter().flat_map(|grant| &grant.sources).filter(|topic| !topic.contains(['*', '?']));
    match topics.find_map(|topic| Some((topic, sns.denial_of(topic, ArnParts::of(topic).account)?))) {
        None => area.ok(name, "SNS may send; EventBridge itself may not."),
        Some((topic, denial)) => area.failure(
            name,
            format!("A Deny statement refuses the SNS topic {topic}{}.", named(&denial.sid)),
            "Add the topic's ARN to aws:SourceArn in that statement's ArnNotEquals.",
        ),
    }
}

/// Returns the note about a statement whose form is neither the templates' nor that of AWS's documentation.
fn custom(name: &'static str, sid: &str) -> Check {
    Area::Queue.skipped(name, format!("Custom policy, not judged: a statement has a form of its own{}.", named(sid)))
}

fn named(sid: &str) -> String {
    if sid.is_empty() { String::new() } else { format!(": \"{sid}\"") }
}

fn judge_access(readings: &Readings, access: &SendAccess, statement: &str) -> Check {
    let (area, name) = (Area::Queue, "policy");
    if access.to_everybody && access.denials.is_empty() {
        return area.failure(
            name,
            "Everybody may send, from any account, and so may drain nodes: a statement allows it without a condition.",
            format!("Replace that statement. {statement}"),
        );
    }
    let rules = || readings.rules.iter().flat_map(|rules| &rules.rules);
    let denied = rules().find_map(|rule| Some((rule, access.denial_of(&rule.arn, ArnParts::of(&rule.arn).account)?)));
    if let Some((rule, denial)) = denied {
        return area.failure(
            name,
            format!("A Deny statement refuses EventBridge's rule {}{}.", rule.name, named(&denial.sid)),
            format!("Add the rule's ARN to aws:SourceArn in that statement's ArnNotEquals: {}", rule.arn),
        );
    }
    let mut rules = rules();
    let excluded =
        rules.find_map(|rule| Some((rule, access.excluding_condition(&rule.arn, ArnParts::of(&rule.arn).account)?)));
    if let Some((rule, condition)) = excluded {
        let value: &str = if condition == "aws:SourceArn" { &rule.arn } else { ArnParts::of(&rule.arn).account };
        return area.failure(
            name,
            format!("EventBridge may send, but not for rule {}: {condition} has another value.", rule.name),
            format!(
                "Add the rule's value to {condition}: {value}\nOr allow all rules:\n{}",
                statement.split_once('\n').map_or(statement, |(_, json)| json)
            ),
        );
    }
    if access.is_open() {
        return area.warning(
            name,
            "EventBridge may send for any rule of any account: aws:SourceArn is missing.",
            format!("Narrow it. {statement}"),
        );
    }
    let sources: Vec<String> = access.grants.iter().map(ToString::to_string).collect();
    area.ok(name, format!("EventBridge may send, for {}", sources.join(", ")))
}

/// Returns a condition that holds for all senders but the rules of the queue, or without known ones all rules of the account.
fn sources(readings: &Readings, arn: &str) -> String {
    let ArnParts { partition, region, account } = ArnParts::of(arn);
    let known = readings.rules.iter().flat_map(|rules| &rules.rules).map(|rule| format!("\"{}\"", rule.arn));
    let mut arns: Vec<String> = known.collect();
    if arns.is_empty() {
        arns.push(format!("\"arn:{partition}:events:{region}:{account}:rule/*\""));
    }
    format!("{{\"ArnNotEquals\": {{\"aws:SourceArn\": [\n     {}]}}}}", arns.join(",\n     "))
}

/// Judges the other senders. An IAM policy alone is enough for a role or user of the queue's account, unless the queue's policy denies it.
fn senders(readings: &Readings, attributes: &QueueAttributes, arn: &str) -> Option<Check> {
    let (area, name) = (Area::Queue, "senders");
    let policy = attributes.get("Policy").filter(|policy| !policy.is_empty())?;
    let statement = format!(
        "Add this statement to the queue's policy:\n  \
         {{\"Effect\": \"Deny\", \"Principal\": \"*\", \"Action\": \"sqs:SendMessage\",\n   \"Resource\": \"{arn}\",\n   \
         \"Condition\": {}}}\n\
         Add an SNS topic that sends to the list, and to \"aws:PrincipalArn\" in the same ArnNotEquals the role with which hooks \
         notify the queue directly, and who uses ebbtide send or redrives. Ebbtide's CloudFormation template and Terraform \
         module of this version have the statement.",
        sources(readings, arn)
    );
    Some(match refuses_others(policy, arn) {
        RoleRefusal::Refused => area.ok(name, "A Deny statement refuses all senders that it does not name."),
        RoleRefusal::Custom(sid) => custom(name, &sid).remedied(format!(
            "Check that it refuses the roles and users of this account that have sqs:SendMessage by IAM alone. If it does not:\n{statement}"
        )),
        RoleRefusal::Admitted => area.warning(
            name,
            "Every role and user of this account with sqs:SendMessage by IAM may send, and so may drain nodes.",
            statement,
        ),
    })
}

#[cfg(test)]
mod tests;
