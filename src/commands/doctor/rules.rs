//! EventBridge's rules: whether events of each kind reach the queue. Pure.

mod zonal;

use super::arn::queue_arn;
use super::check::{Area, Check, few};
use super::event_pattern;
use super::event_pattern::Match;
use super::groups;
use super::queue_policy::access;
use super::readings::{EventRule, EventRules, ReadError, Readings};
use crate::cli::settings::Settings;
use crate::pipeline::event::NoticeKind;
use crate::pipeline::interruption::Action;
use serde_json::{Value, json};

/// Returns an event for each variant of a kind that must reach the queue, with only the fields that all such events share. A rule with
/// conditions on other fields is not judged. See [`variants`] for the events left out.
fn samples(kind: NoticeKind, settings: &Settings) -> Vec<Value> {
    let event = |source: &str, kind: &str, detail: Value| json!({ "version": "0", "source": source, "detail-type": kind, "detail": detail });
    match kind {
        NoticeKind::AsgTerminate => {
            let detail = json!({ "LifecycleTransition": "autoscaling:EC2_INSTANCE_TERMINATING" });
            vec![event("aws.autoscaling", "EC2 Instance-terminate Lifecycle Action", detail)]
        }
        NoticeKind::AsgLaunch => {
            let detail = json!({ "LifecycleTransition": "autoscaling:EC2_INSTANCE_LAUNCHING" });
            vec![event("aws.autoscaling", "EC2 Instance-launch Lifecycle Action", detail)]
        }
        NoticeKind::Spot => ["terminate", "stop", "hibernate"]
            .map(|action| {
                event("aws.ec2", "EC2 Spot Instance Interruption Warning", json!({ "instance-action": action }))
            })
            .into(),
        NoticeKind::Rebalance => vec![event("aws.ec2", "EC2 Instance Rebalance Recommendation", json!({}))],
        NoticeKind::StateChange => {
            let gone: &[&str] = if settings.policy.out_of_service_taint { &["stopped", "terminated"] } else { &[] };
            let states = ["stopping", "shutting-down"].iter().chain(gone);
            states
                .map(|state| event("aws.ec2", "EC2 Instance State-change Notification", json!({ "state": state })))
                .collect()
        }
        NoticeKind::ScheduledChange => {
            let planned = json!({ "service": "EC2", "eventTypeCategory": "scheduledChange" });
            let wanted = settings.policy.actions.of(kind) != Action::Ignore;
            let issue = |code| json!({ "service": "EC2", "eventTypeCategory": "issue", "eventTypeCode": code });
            let details = Some(planned).filter(|_| wanted).into_iter();
            let details = details.chain(settings.policy.health_issues.keys().map(issue));
            details.map(|detail| event("aws.health", "AWS Health Event", detail)).collect()
        }
        NoticeKind::CapacityReservation => {
            vec![event("aws.ec2", "EC2 Capacity Reservation Instance Interruption Warning", json!({}))]
        }
        NoticeKind::NodeCondition | NoticeKind::StatusCheck => Vec::new(),
    }
}

/// Returns the sources and detail-types of the kind's other events, for which a set-up gets a hint alone: second names, and events that not
/// every account has. A rule that is older than the events lacks them.
const fn variants(kind: NoticeKind) -> &'static [(&'static str, &'static str)] {
    match kind {
        NoticeKind::Spot => {
            &[("aws.ec2fleet", "EC2 Fleet Instance Change"), ("aws.ec2spotfleet", "EC2 Spot Fleet Instance Change")]
        }
        NoticeKind::Rebalance => &[("aws.ec2", "EC2 Spot Instance Rebalance Recommended")],
        NoticeKind::CapacityReservation => &[
            ("aws.ec2", "Capacity Block Expiration Warning"),
            ("aws.ec2", "Capacity Block Reservation Expiration Warning"),
            ("aws.ec2", "EC2 Interruptible Capacity Reservation Instance Interruption Warning"),
        ],
        NoticeKind::AsgTerminate
        | NoticeKind::AsgLaunch
        | NoticeKind::StateChange
        | NoticeKind::ScheduledChange
        | NoticeKind::NodeCondition
        | NoticeKind::StatusCheck => &[],
    }
}

/// Returns the recommended pattern of a rule for this kind.
fn wanted(kind: NoticeKind, settings: &Settings) -> &'static str {
    match kind {
        NoticeKind::AsgTerminate => {
            r#"{"source": ["aws.autoscaling"], "detail-type": ["EC2 Instance-terminate Lifecycle Action"]}"#
        }
        NoticeKind::AsgLaunch => {
            r#"{"source": ["aws.autoscaling"], "detail-type": ["EC2 Instance-launch Lifecycle Action"]}"#
        }
        NoticeKind::Spot => {
            r#"{"source": ["aws.ec2", "aws.ec2fleet", "aws.ec2spotfleet"],
     "detail-type": ["EC2 Spot Instance Interruption Warning",
       "EC2 Fleet Instance Change", "EC2 Spot Fleet Instance Change"]}"#
        }
        NoticeKind::Rebalance => {
            r#"{"source": ["aws.ec2"],
     "detail-type": ["EC2 Instance Rebalance Recommendation", "EC2 Spot Instance Rebalance Recommended"]}"#
        }
        NoticeKind::StateChange => {
            r#"{"source": ["aws.ec2"], "detail-type": ["EC2 Instance State-change Notification"]}"#
        }
        NoticeKind::ScheduledChange if !settings.policy.health_issues.is_empty() => {
            r#"{"source": ["aws.health"], "detail-type": ["AWS Health Event"],
     "detail": {"service": ["EC2"], "eventTypeCategory": ["scheduledChange", "issue"]}}"#
        }
        NoticeKind::ScheduledChange => {
            r#"{"source": ["aws.health"], "detail-type": ["AWS Health Event"],
     "detail": {"service": ["EC2"], "eventTypeCategory": ["scheduledChange"]}}"#
        }
        NoticeKind::CapacityReservation => {
            r#"{"source": ["aws.ec2"],
     "detail-type": ["EC2 Capacity Reservation Instance Interruption Warning",
       "EC2 Interruptible Capacity Reservation Instance Interruption Warning",
       "Capacity Block Expiration Warning", "Capacity Block Reservation Expiration Warning"]}"#
        }
        // No event announces them.
        NoticeKind::NodeCondition | NoticeKind::StatusCheck => "",
    }
}

/// Judges the rules.
#[must_use]
pub fn judge(settings: &Settings, readings: &Readings) -> Vec<Check> {
    let area = Area::Rules;
    let unread =
        |error: &ReadError| area.unread("rules", error, "events:ListRuleNamesByTarget and events:DescribeRule");
    let rules = match &readings.rules {
        Ok(rules) => rules,
        Err(error) => return vec![unread(error)],
    };
    let kinds = NoticeKind::ALL.into_iter().filter(|kind| !kind.is_repair() && acts(*kind, settings));
    let checks = kinds.map(|kind| judge_kind(kind, settings, readings, rules));
    let checks = checks.chain(zonal::judge(settings, readings, rules));
    rules.unread.iter().map(unread).chain(checks).collect()
}

/// Returns whether the settings ask for events of this kind.
fn acts(kind: NoticeKind, settings: &Settings) -> bool {
    let issues = kind == NoticeKind::ScheduledChange && !settings.policy.health_issues.is_empty();
    issues || settings.policy.actions.of(kind) != Action::Ignore
}

fn judge_kind(kind: NoticeKind, settings: &Settings, readings: &Readings, rules: &EventRules) -> Check {
    let (area, name) = (Area::Rules, kind.as_str());
    let patterns: Vec<(&EventRule, Value)> = rules
        .rules
        .iter()
        .filter_map(|rule| Some((rule, serde_json::from_str(rule.pattern.as_deref()?).ok()?)))
        .collect();
    let (mut through, mut open) = (Vec::new(), None);
    let mut missing = Vec::new();
    for sample in samples(kind, settings) {
        let judge = |rule: &EventRule, pattern: &Value| (rule.name.clone(), event_pattern::judge(pattern, &sample));
        let enabled = patterns.iter().filter(|(rule, _)| rule.enabled);
        let matches: Vec<(String, Match)> = enabled.map(|(rule, pattern)| judge(rule, pattern)).collect();
        if let Some((rule, _)) = matches.iter().find(|(_, found)| *found == Match::Yes) {
            through.push(rule.clone());
        } else if let Some((rule, Match::NotJudged(why))) = matches.into_iter().find(|(_, found)| *found != Match::No) {
            open = Some(format!("Not judged: rule {rule} may send these events, but {why}."));
        } else {
            missing.push(sample);
        }
    }
    through.dedup();
    if missing.is_empty() {
        return match open {
            Some(open) => area.skipped(name, open),
            None => judge_variants(kind, settings, readings, &patterns, &through.join(", ")),
        };
    }
    let off = patterns
        .iter()
        .find(|(rule, pattern)| !rule.enabled && event_pattern::judge(pattern, &missing[0]) == Match::Yes);
    if let Some((rule, _)) = off {
        let found = format!("Rule {} would send these events, but it is disabled.", rule.name);
        return missing_events(
            kind,
            readings,
            found,
            format!("Enable it:\n  aws events enable-rule --name {}", rule.name),
        );
    }
    if !rules.complete {
        return area.skipped(name, "None of the rules that could be read sends these events.");
    }
    let direct = matches!(kind, NoticeKind::AsgTerminate | NoticeKind::AsgLaunch) && groups::all_direct(kind, readings);
    if direct {
        return area.ok(name, "no rule; the hooks notify the queue directly");
    }
    let arn = queue_arn(readings.queue.as_ref().ok(), &settings.queue_url).unwrap_or_default();
    if sns_may_send(readings, &arn) {
        return area.skipped(name, "No rule sends these events directly to the queue; whether SNS does is not judged.");
    }
    let found = if through.is_empty() {
        "No rule sends these events to the queue.".to_owned()
    } else {
        let detail = &missing[0]["detail"];
        let which = detail.as_object().and_then(|detail| detail.iter().next());
        let which =
            which.map(|(key, value)| format!("{key} {}", value.as_str().unwrap_or_default())).unwrap_or_default();
        format!("Rule {} sends only some of these events; those with {which} are missing.", through.join(", "))
    };
    let commands = commands(kind.as_str(), wanted(kind, settings), &arn);
    missing_events(kind, readings, found, format!("Create one, or set --on {kind}=ignore:\n{commands}"))
}

/// Returns the check of a kind whose main events reach the queue `through` a rule: whether its other events do, too.
fn judge_variants(
    kind: NoticeKind,
    settings: &Settings,
    readings: &Readings,
    patterns: &[(&EventRule, Value)],
    through: &str,
) -> Check {
    let (area, name) = (Area::Rules, kind.as_str());
    let arn = queue_arn(readings.queue.as_ref().ok(), &settings.queue_url).unwrap_or_default();
    let may_come = |source: &str, kind: &str| {
        let sample = json!({ "version": "0", "source": source, "detail-type": kind, "detail": {} });
        patterns.iter().any(|(rule, pattern)| rule.enabled && event_pattern::judge(pattern, &sample) != Match::No)
    };
    let missing = variants(kind).iter().filter(|(source, kind)| !may_come(source, kind));
    let (mut sources, names): (Vec<_>, Vec<_>) = missing.copied().unzip();
    let all_read = readings.rules.as_ref().is_ok_and(|rules| rules.complete);
    if names.is_empty() || !all_read || sns_may_send(readings, &arn) {
        return area.ok(name, format!("rule {through}"));
    }
    sources.dedup();
    let pattern = json!({ "source": sources, "detail-type": names }).to_string();
    area.warning(
        name,
        format!("Rule {through} sends the most common events, but no rule sends: {}.", few(&names)),
        format!(
            "Update the stack or the module, whose rules have them, or create a rule for them:\n{}",
            commands(&format!("{kind}-more"), &pattern, &arn)
        ),
    )
}

/// Returns the commands that create a rule of this name with the queue as its target.
fn commands(name: &str, pattern: &str, arn: &str) -> String {
    format!(
        "  aws events put-rule --name ebbtide-{name} --event-pattern \\\n    '{pattern}'\n  \
         aws events put-targets --rule ebbtide-{name} --targets \\\n    Id=queue,Arn={arn}"
    )
}

/// Whether the events may come by way of SNS, which is not judged.
fn sns_may_send(readings: &Readings, arn: &str) -> bool {
    let policy = readings.queue.as_ref().ok().and_then(|attributes| attributes.get("Policy"));
    policy.is_some_and(|policy| access(policy, "sns.amazonaws.com", arn).is_ok())
}

/// Returns a failure for kinds without which nodes go undrained: spot warnings, and the actions of hooks. The other kinds only bring
/// earlier notice, or do not occur everywhere.
fn missing_events(kind: NoticeKind, readings: &Readings, found: String, remedy: String) -> Check {
    let hooked = matches!(kind, NoticeKind::AsgTerminate | NoticeKind::AsgLaunch) && groups::any_hook(kind, readings);
    if kind == NoticeKind::Spot || hooked {
        Area::Rules.failure(kind.as_str(), found, remedy)
    } else {
        Area::Rules.warning(kind.as_str(), found, remedy)
    }
}

#[cfg(test)]
mod tests;
