//! EventBridge's rules: whether events of each kind reach the queue, by EventBridge's answers about events like them. Pure.

mod zonal;

use super::arn::queue_arn;
use super::check::{Area, Check, few};
use super::groups;
use super::queue::SNS;
use super::queue_policy::{SendRefusal, access};
use super::readings::{EventRule, EventRules, ReadError, Readings};
use crate::cli::settings::Settings;
use crate::pipeline::event::NoticeKind;
use crate::pipeline::interruption::Action;
use serde_json::{Value, json};

/// Returns the events about which EventBridge is asked for each rule.
#[must_use]
pub fn events(settings: &Settings) -> Vec<Value> {
    let kinds = NoticeKind::ALL.into_iter().filter(|kind| acts(*kind, settings));
    let events =
        kinds.flat_map(|kind| [samples(kind, settings), variants(kind).iter().map(variant).collect()].concat());
    events.chain(zonal::events(settings)).collect()
}

fn event(source: &str, kind: &str, detail: &Value) -> Value {
    json!({ "version": "0", "source": source, "detail-type": kind, "detail": detail })
}

fn variant((source, kind): &(&str, &str)) -> Value {
    event(source, kind, &json!({}))
}

/// Returns an event for each variant of a kind that must reach the queue, with only the fields that all such events share. A rule with
/// conditions on other fields is not judged. See [`variants`] for the events left out.
fn samples(kind: NoticeKind, settings: &Settings) -> Vec<Value> {
    let policy = settings.policy();
    let hook = |transition| vec![json!({ "LifecycleTransition": format!("autoscaling:EC2_INSTANCE_{transition}") })];
    let (source, name, details) = match kind {
        NoticeKind::AsgTerminate => ("aws.autoscaling", "EC2 Instance-terminate Lifecycle Action", hook("TERMINATING")),
        NoticeKind::AsgLaunch => ("aws.autoscaling", "EC2 Instance-launch Lifecycle Action", hook("LAUNCHING")),
        NoticeKind::Spot => {
            let details = ["terminate", "stop", "hibernate"].map(|action| json!({ "instance-action": action }));
            ("aws.ec2", "EC2 Spot Instance Interruption Warning", details.into())
        }
        NoticeKind::Rebalance => ("aws.ec2", "EC2 Instance Rebalance Recommendation", vec![json!({})]),
        NoticeKind::StateChange => {
            let gone: &[&str] = if policy.out_of_service_taint { &["stopped", "terminated"] } else { &[] };
            let states = ["stopping", "shutting-down"].iter().chain(gone);
            let details = states.map(|state| json!({ "state": state })).collect();
            ("aws.ec2", "EC2 Instance State-change Notification", details)
        }
        NoticeKind::ScheduledChange => {
            let planned = json!({ "service": "EC2", "eventTypeCategory": "scheduledChange" });
            let issue = |code| json!({ "service": "EC2", "eventTypeCategory": "issue", "eventTypeCode": code });
            let planned = settings.acts_on(kind, |action| action != Action::Ignore).then_some(planned);
            let details = planned.into_iter().chain(policy.health_issues.keys().map(issue)).collect();
            ("aws.health", "AWS Health Event", details)
        }
        NoticeKind::CapacityReservation => {
            ("aws.ec2", "EC2 Capacity Reservation Instance Interruption Warning", vec![json!({})])
        }
        NoticeKind::NodeCondition | NoticeKind::StatusCheck => return Vec::new(),
    };
    details.iter().map(|detail| event(source, name, detail)).collect()
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
        NoticeKind::ScheduledChange if !settings.policy().health_issues.is_empty() => {
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
    let unread = |error: &ReadError| {
        area.unread("rules", error, "events:ListRuleNamesByTarget, events:DescribeRule and events:TestEventPattern")
    };
    let rules = match &readings.rules {
        Ok(EventRules { rules, unread: Some(error), .. }) if rules.iter().all(|rule| rule.sends.is_err()) => {
            return vec![unread(error)];
        }
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
    let issues = kind == NoticeKind::ScheduledChange && !settings.policy().health_issues.is_empty();
    issues || settings.acts_on(kind, |action| action != Action::Ignore)
}

fn judge_kind(kind: NoticeKind, settings: &Settings, readings: &Readings, rules: &EventRules) -> Check {
    let (area, name) = (Area::Rules, kind.as_str());
    let (mut through, mut open) = (Vec::new(), None);
    let mut missing = Vec::new();
    for sample in samples(kind, settings) {
        let sent = || enabled(rules).filter_map(|rule| Some((&*rule.name, rule.sends(&sample)?.narrows.as_ref())));
        if let Some((rule, _)) = sent().find(|(_, narrows)| narrows.is_none()) {
            through.push(rule);
        } else if let Some((rule, Some(path))) = sent().next() {
            open = Some(format!("Not judged: rule {rule} may send these events, but it narrows {path}."));
        } else {
            missing.push(sample);
        }
    }
    through.dedup();
    if missing.is_empty() {
        return match open {
            Some(open) => area.skipped(name, open),
            None => judge_variants(kind, settings, readings, rules, &through.join(", ")),
        };
    }
    let sends = |rule: &&EventRule| rule.sends(&missing[0]).is_some_and(|sent| sent.narrows.is_none());
    if let Some(rule) = rules.rules.iter().filter(|rule| !rule.enabled).find(sends) {
        let found = format!("Rule {} would send these events, but it is disabled.", rule.name);
        let remedy = format!("Enable it:\n  aws events enable-rule --name {}", rule.name);
        return missing_events(kind, readings, found, remedy);
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

fn enabled(rules: &EventRules) -> impl Iterator<Item = &EventRule> {
    rules.rules.iter().filter(|rule| rule.enabled)
}

/// Whether a rule may send this event.
fn may_come(rules: &EventRules, event: &Value) -> bool {
    enabled(rules).any(|rule| rule.sends(event).is_some())
}

/// Returns the check of a kind whose main events reach the queue `through` a rule: whether its other events do, too.
fn judge_variants(
    kind: NoticeKind,
    settings: &Settings,
    readings: &Readings,
    rules: &EventRules,
    through: &str,
) -> Check {
    let (area, name) = (Area::Rules, kind.as_str());
    let arn = queue_arn(readings.queue.as_ref().ok(), &settings.queue_url).unwrap_or_default();
    let missing = variants(kind).iter().filter(|event| !may_come(rules, &variant(event)));
    let (mut sources, names): (Vec<_>, Vec<_>) = missing.copied().unzip();
    if names.is_empty() || !rules.complete || sns_may_send(readings, &arn) {
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
    policy.is_some_and(|policy| matches!(access(policy, SNS, arn), Ok(_) | Err(SendRefusal::Custom(_))))
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
