//! EventBridge's rules: whether each kind that leads to something reaches the queue. Pure.

use super::check::{Area, Check, Failed};
use super::event_pattern;
use super::event_pattern::Match;
use super::queue_policy::admission;
use super::read::Seen;
use super::{groups, queue};
use crate::cli::settings::Settings;
use crate::pipeline::event::Kind;
use crate::pipeline::interruption::Action;
use serde_json::{Value, json};

/// The rules whose target is the queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Each that could be read.
    pub rules: Vec<Rule>,
    /// Why one could not.
    pub unread: Option<Failed>,
    /// Whether these are all of them: none was cut off, and each could be read.
    pub all: bool,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its name.
    pub name: String,
    /// Its ARN.
    pub arn: String,
    /// Whether it works.
    pub enabled: bool,
    /// Which events it lets through; a schedule has no pattern.
    pub pattern: Option<String>,
}

/// What is the same for every event of a kind, once for each that counts: a rule that narrows more is not judged.
fn samples(kind: Kind, settings: &Settings) -> Vec<Value> {
    let event = |source: &str, kind: &str, detail: Value| json!({ "version": "0", "source": source, "detail-type": kind, "detail": detail });
    match kind {
        Kind::AsgTerminate => {
            let detail = json!({ "LifecycleTransition": "autoscaling:EC2_INSTANCE_TERMINATING" });
            vec![event("aws.autoscaling", "EC2 Instance-terminate Lifecycle Action", detail)]
        }
        Kind::AsgLaunch => {
            let detail = json!({ "LifecycleTransition": "autoscaling:EC2_INSTANCE_LAUNCHING" });
            vec![event("aws.autoscaling", "EC2 Instance-launch Lifecycle Action", detail)]
        }
        Kind::Spot => ["terminate", "stop", "hibernate"]
            .map(|action| {
                event("aws.ec2", "EC2 Spot Instance Interruption Warning", json!({ "instance-action": action }))
            })
            .into(),
        Kind::Rebalance => vec![event("aws.ec2", "EC2 Instance Rebalance Recommendation", json!({}))],
        Kind::StateChange => {
            let gone: &[&str] = if settings.policy.out_of_service_taint { &["stopped", "terminated"] } else { &[] };
            let states = ["stopping", "shutting-down"].iter().chain(gone);
            states
                .map(|state| event("aws.ec2", "EC2 Instance State-change Notification", json!({ "state": state })))
                .collect()
        }
        Kind::ScheduledChange => {
            let detail = json!({ "service": "EC2", "eventTypeCategory": "scheduledChange" });
            vec![event("aws.health", "AWS Health Event", detail)]
        }
        Kind::CapacityReservation => {
            vec![event("aws.ec2", "EC2 Capacity Reservation Instance Interruption Warning", json!({}))]
        }
    }
}

/// The pattern that a rule for this kind is made with.
fn wanted(kind: Kind) -> &'static str {
    match kind {
        Kind::AsgTerminate => {
            r#"{"source": ["aws.autoscaling"], "detail-type": ["EC2 Instance-terminate Lifecycle Action"]}"#
        }
        Kind::AsgLaunch => {
            r#"{"source": ["aws.autoscaling"], "detail-type": ["EC2 Instance-launch Lifecycle Action"]}"#
        }
        Kind::Spot => r#"{"source": ["aws.ec2"], "detail-type": ["EC2 Spot Instance Interruption Warning"]}"#,
        Kind::Rebalance => r#"{"source": ["aws.ec2"], "detail-type": ["EC2 Instance Rebalance Recommendation"]}"#,
        Kind::StateChange => r#"{"source": ["aws.ec2"], "detail-type": ["EC2 Instance State-change Notification"]}"#,
        Kind::ScheduledChange => {
            r#"{"source": ["aws.health"], "detail-type": ["AWS Health Event"],
     "detail": {"service": ["EC2"], "eventTypeCategory": ["scheduledChange"]}}"#
        }
        Kind::CapacityReservation => {
            r#"{"source": ["aws.ec2"],
     "detail-type": ["EC2 Capacity Reservation Instance Interruption Warning"]}"#
        }
    }
}

/// What is found of them.
#[must_use]
pub fn judge(settings: &Settings, seen: &Seen) -> Vec<Check> {
    let area = Area::Rules;
    let unread = |failed| area.unread("rules", failed, "events:ListRuleNamesByTarget and events:DescribeRule");
    let rules = match &seen.rules {
        Ok(rules) => rules,
        Err(failed) => return vec![unread(failed)],
    };
    let kinds = Kind::ALL.into_iter().filter(|kind| settings.policy.actions.of(*kind) != Action::Ignore);
    let judged = kinds.map(|kind| judge_kind(kind, settings, seen, rules));
    rules.unread.iter().map(unread).chain(judged).collect()
}

fn judge_kind(kind: Kind, settings: &Settings, seen: &Seen, rules: &Rules) -> Check {
    let (area, name) = (Area::Rules, kind.as_str());
    let patterns: Vec<(&Rule, Value)> = rules
        .rules
        .iter()
        .filter_map(|rule| Some((rule, serde_json::from_str(rule.pattern.as_deref()?).ok()?)))
        .collect();
    let (mut through, mut open) = (Vec::new(), None);
    let mut missing = Vec::new();
    for sample in samples(kind, settings) {
        let says = |rule: &Rule, pattern: &Value| (rule.name.clone(), event_pattern::judge(pattern, &sample));
        let said: Vec<_> = patterns.iter().filter(|(rule, _)| rule.enabled).map(|(rule, p)| says(rule, p)).collect();
        if let Some((rule, _)) = said.iter().find(|(_, said)| *said == Match::Yes) {
            through.push(rule.clone());
        } else if let Some((rule, Match::NotJudged(why))) = said.into_iter().find(|(_, said)| *said != Match::No) {
            open = Some(format!("Not judged: rule {rule} may let them through, but {why}."));
        } else {
            missing.push(sample);
        }
    }
    through.dedup();
    if missing.is_empty() {
        return match open {
            Some(open) => area.skipped(name, open),
            None => area.ok(name, format!("rule {}", through.join(", "))),
        };
    }
    let off = patterns
        .iter()
        .find(|(rule, pattern)| !rule.enabled && event_pattern::judge(pattern, &missing[0]) == Match::Yes);
    if let Some((rule, _)) = off {
        let found = format!("Rule {} would send these events, but it is disabled.", rule.name);
        return severe(kind, seen, found, format!("Enable it:\n  aws events enable-rule --name {}", rule.name));
    }
    if !rules.all {
        return area.skipped(name, "No rule was found among those that could be read.");
    }
    let direct = matches!(kind, Kind::AsgTerminate | Kind::AsgLaunch) && groups::all_direct(kind, seen);
    if direct {
        return area.ok(name, "no rule; the hooks notify the queue directly");
    }
    let arn = queue::arn(seen.queue.as_ref().ok(), &settings.queue_url).unwrap_or_default();
    let policy = seen.queue.as_ref().ok().and_then(|attributes| attributes.get("Policy"));
    if policy.is_some_and(|policy| admission(policy, "sns.amazonaws.com", &arn).is_ok()) {
        return area.skipped(name, "No rule sends these events to the queue itself; whether SNS does is not judged.");
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
    let remedy = format!(
        "Make one, or set --on {kind}=ignore:\n  aws events put-rule --name ebbtide-{kind} --event-pattern \\\n    '{}'\n  \
         aws events put-targets --rule ebbtide-{kind} --targets \\\n    Id=queue,Arn={arn}",
        wanted(kind)
    );
    severe(kind, seen, found, remedy)
}

/// Without spot warnings, and without the actions of hooks that there are, nodes go undrained. The others only come earlier, or not
/// everywhere.
fn severe(kind: Kind, seen: &Seen, found: String, remedy: String) -> Check {
    let hooked = matches!(kind, Kind::AsgTerminate | Kind::AsgLaunch) && groups::any_hook(kind, seen);
    if kind == Kind::Spot || hooked {
        Area::Rules.failure(kind.as_str(), found, remedy)
    } else {
        Area::Rules.warning(kind.as_str(), found, remedy)
    }
}

#[cfg(test)]
mod tests;
