//! Every call to AWS that the service makes: whether it is allowed. Pure.
//!
//! Each call is made in a form that cannot have an effect. Every answer except a missing permission means that the call is allowed.

use super::check::{Area, Check, few};
use super::readings::{CallTrial, ReadError, Readings, TrialAnswer};
use crate::cli::settings::Settings;
use crate::pipeline::event::NoticeKind;
use crate::pipeline::interruption::{Action, ForLoadBalancers};

/// Whether the settings lead to calls about lifecycle hooks.
#[must_use]
pub fn lifecycle(settings: &Settings) -> bool {
    let acts = |kind| settings.acts_on(kind, |action| action.drains() || action == Action::Ready);
    !settings.policy().dry_run && (acts(NoticeKind::AsgTerminate) || acts(NoticeKind::AsgLaunch))
}

/// Whether the settings lead to calls for replacements.
#[must_use]
pub fn replaces(settings: &Settings) -> bool {
    !settings.policy().dry_run && settings.has_any(&[Action::Replace, Action::Reboot])
}

/// Whether the settings lead to reboots.
#[must_use]
pub fn reboots(settings: &Settings) -> bool {
    !settings.policy().dry_run && settings.has_any(&[Action::Reboot])
}

/// Returns the work for load balancers; none if the settings rule it out.
#[must_use]
pub fn for_load_balancers(settings: &Settings) -> ForLoadBalancers {
    let policy = settings.policy();
    if policy.dry_run || !settings.has_any(&Action::DRAINS) {
        ForLoadBalancers::Nothing
    } else {
        policy.waits.load_balancers
    }
}

/// Judges the calls.
#[must_use]
pub fn judge(settings: &Settings, readings: &Readings) -> Vec<Check> {
    let area = Area::Calls;
    let receive = || {
        if readings.ready_here {
            area.ok("receive", "sqs:ReceiveMessage: the service on this machine is ready, so SQS has answered it")
        } else {
            let found = "sqs:ReceiveMessage is not called, because a receive counts. A ready service has had an answer; none is at --admin-address on this machine.";
            area.skipped("receive", found)
        }
    };
    let mut checks: Vec<Check> = settings.sources.queue.then(receive).into_iter().collect();
    checks.extend(readings.trials.iter().map(judge_trial));
    let is_tried = |call| readings.trials.iter().any(|trial| trial.name == call);
    if for_load_balancers(settings) == ForLoadBalancers::Deregister && !is_tried("deregister") {
        checks.push(area.skipped(
            "deregister",
            "No Auto Scaling group is known with a target group, so a deregistration could not be tried. Where a TargetGroupBinding or a Service leads to one, its controller deregisters the instance, too.",
        ));
    }
    if lifecycle(settings) && !is_tried("complete") {
        checks.push(area.skipped(
            "complete",
            "No group is known with a hook that Ebbtide completes, so lifecycle calls could not be tried.",
        ));
    }
    checks
}

fn judge_trial(CallTrial { name, action, without, answers }: &CallTrial) -> Check {
    let area = Area::Calls;
    let denied: Vec<(&str, &ReadError)> = answers
        .iter()
        .filter_map(|TrialAnswer { subject, answer }| Some((subject.as_str(), answer.as_ref().err()?)))
        .filter(|(_, error)| error.denied())
        .collect();
    if let Some((_, error)) = denied.first() {
        let subjects: Vec<&str> = denied.iter().map(|(subject, _)| *subject).collect();
        let resource = if action.service == "sqs" { subjects[0] } else { "*" };
        let on = if subjects[0].is_empty() { String::new() } else { format!(" on {}", few(&subjects)) };
        return area.failure(
            name,
            format!("{action} is not allowed{on}: {without}. {}", error.message),
            format!(
                "Add this statement to the role's policy. If the policy has a condition on a tag, check that the group carries the tag:\n  \
                 {{\"Effect\": \"Allow\", \"Action\": \"{action}\",\n   \"Resource\": \"{resource}\"}}"
            ),
        );
    }
    match answers.iter().find_map(|trial| trial.answer.as_ref().err().filter(|error| !error.answered())) {
        Some(error) => area.skipped(name, &error.message),
        None => area.ok(name, action.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::gate::Category;
    use crate::commands::doctor::Status;
    use crate::commands::doctor::tests::trial;

    fn check(name: &str, answers: &[(&str, Option<Category>)]) -> Check {
        let answer = |category: &Option<Category>| match category {
            None => Ok(()),
            Some(category) => Err(ReadError::new(*category, "refused")),
        };
        let answers = answers.iter();
        let answers = answers.map(|(on, category)| TrialAnswer { subject: (*on).to_owned(), answer: answer(category) });
        judge_trial(&trial(name, answers.collect()))
    }

    #[test]
    fn a_refusal_for_another_reason_is_a_permission() {
        for category in [None, Some(Category::Invalid), Some(Category::NotFound), Some(Category::Conflict)] {
            assert_eq!(check("complete", &[("a", category)]).status, Status::Ok, "{category:?}");
        }
        for category in
            [Category::TimedOut, Category::Unreachable, Category::Throttled, Category::Unavailable, Category::Expired]
        {
            assert_eq!(check("delete", &[("q", Some(category))]).status, Status::Skipped, "{category:?}");
        }
    }

    #[test]
    fn one_group_that_is_denied_is_enough() {
        let answers = [("a", Some(Category::Invalid)), ("b", Some(Category::Denied)), ("c", Some(Category::Denied))];
        let denied = check("heartbeat", &answers);
        assert_eq!((denied.status, denied.name), (Status::Failure, "heartbeat"));
        assert!(denied.found.contains("not allowed on b, c: hooks expire during a drain"), "{}", denied.found);
        assert!(denied.remedy.unwrap().contains("autoscaling:RecordLifecycleActionHeartbeat"));
        let queue = check("delete", &[("arn:queue", Some(Category::Denied))]);
        assert!(queue.remedy.unwrap().contains("\"Resource\": \"arn:queue\""));
    }
}
