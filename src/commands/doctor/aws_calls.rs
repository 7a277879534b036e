//! Every call to AWS that the service makes: whether we may. Pure.
//!
//! Each is tried in a form that can't have an effect, and the answer tells: a refusal for want of permission, or any other.

use super::check::{Area, Check, Failed, Read, few};
use super::read::Seen;
use crate::cli::settings::Settings;
use crate::pipeline::event::Kind;
use crate::pipeline::interruption::Action;

/// A call that is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tried {
    /// Deleting a message, by a receipt that is none.
    Delete,
    /// Extending a message, likewise.
    Extend,
    /// Asking for instances, dry.
    Instances,
    /// Asking for the hooks of a group.
    Hooks,
    /// A heartbeat, for a token that is none.
    Heartbeat,
    /// A completion, likewise.
    Complete,
}

impl Tried {
    const fn name(self) -> &'static str {
        match self {
            Self::Delete => "delete",
            Self::Extend => "extend",
            Self::Instances => "instances",
            Self::Hooks => "hooks",
            Self::Heartbeat => "heartbeat",
            Self::Complete => "complete",
        }
    }

    /// The IAM action.
    #[must_use]
    pub const fn action(self) -> &'static str {
        match self {
            Self::Delete => "sqs:DeleteMessage",
            Self::Extend => "sqs:ChangeMessageVisibility",
            Self::Instances => "ec2:DescribeInstances",
            Self::Hooks => "autoscaling:DescribeLifecycleHooks",
            Self::Heartbeat => "autoscaling:RecordLifecycleActionHeartbeat",
            Self::Complete => "autoscaling:CompleteLifecycleAction",
        }
    }

    const fn without(self) -> &'static str {
        match self {
            Self::Delete => "messages come back for ever",
            Self::Extend => "other replicas receive a message while it is worked on",
            Self::Instances => "instances without a Node can't be told from other clusters'",
            Self::Hooks => "every hook is taken for one of 30 s",
            Self::Heartbeat => "hooks expire in mid-drain",
            Self::Complete => "instances wait for the hook's timeout after each drain",
        }
    }

    /// Whether the action is granted on the queue.
    const fn on_queue(self) -> bool {
        matches!(self, Self::Delete | Self::Extend)
    }
}

/// How a call was answered, for each thing it was tried on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trial {
    /// Which.
    pub tried: Tried,
    /// The queue, or groups; with the refusal, if it was refused.
    pub answers: Vec<(String, Read<()>)>,
}

/// Which calls about lifecycle hooks the settings lead to.
#[must_use]
pub fn lifecycle(settings: &Settings) -> bool {
    let policy = &settings.policy;
    let acts = |kind| matches!(policy.actions.of(kind), Action::Drain | Action::Ready);
    !policy.dry_run && (acts(Kind::AsgTerminate) || acts(Kind::AsgLaunch))
}

/// What is found of them.
#[must_use]
pub fn judge(settings: &Settings, seen: &Seen) -> Vec<Check> {
    let area = Area::Calls;
    let mut checks = vec![if seen.ready_here {
        area.ok("receive", "sqs:ReceiveMessage: the service here is ready, so it was answered")
    } else {
        area.skipped(
            "receive",
            "sqs:ReceiveMessage is not tried: a receive counts. A service that is ready has had an answer; none is at --admin-address here.",
        )
    }];
    checks.extend(seen.trials.iter().map(judge_one));
    if lifecycle(settings) && !seen.trials.iter().any(|trial| trial.tried == Tried::Complete) {
        checks.push(
            area.skipped(
                "complete",
                "No group with a hook of ours is known with which lifecycle calls could be tried.",
            ),
        );
    }
    checks
}

fn judge_one(Trial { tried, answers }: &Trial) -> Check {
    let (area, name, action) = (Area::Calls, tried.name(), tried.action());
    let denied: Vec<&(String, Read<()>)> =
        answers.iter().filter(|(_, answer)| answer.as_ref().is_err_and(Failed::denied)).collect();
    if let Some((_, Err(failed))) = denied.first() {
        let on: Vec<&str> = denied.iter().map(|(on, _)| on.as_str()).collect();
        let resource = if tried.on_queue() { on[0] } else { "*" };
        let on = if *tried == Tried::Instances { String::new() } else { format!(" on {}", few(&on)) };
        return area.failure(
            name,
            format!("{action} is not allowed{on}: {}. {}", tried.without(), failed.what),
            format!(
                "Add to the role's policy (one that asks for a tag: check that the group carries it):\n  \
                 {{\"Effect\": \"Allow\", \"Action\": \"{action}\",\n   \"Resource\": \"{resource}\"}}"
            ),
        );
    }
    match answers.iter().find_map(|(_, answer)| answer.as_ref().err().filter(|failed| !failed.answered())) {
        Some(failed) => area.skipped(name, &failed.what),
        None => area.ok(name, action),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::gate::Category;
    use crate::commands::doctor::Status;

    fn trial(tried: Tried, answers: &[(&str, Option<Category>)]) -> Check {
        let answer = |category: &Option<Category>| match category {
            None => Ok(()),
            Some(category) => Err(Failed { category: *category, what: "said so".to_owned() }),
        };
        judge_one(&Trial {
            tried,
            answers: answers.iter().map(|(on, said)| ((*on).to_owned(), answer(said))).collect(),
        })
    }

    #[test]
    fn a_refusal_for_another_reason_is_a_permission() {
        for said in [None, Some(Category::Invalid), Some(Category::NotFound), Some(Category::Conflict)] {
            assert_eq!(trial(Tried::Complete, &[("a", said)]).status, Status::Ok, "{said:?}");
        }
        for said in [Category::TimedOut, Category::Unreachable, Category::Throttled, Category::Unavailable] {
            assert_eq!(trial(Tried::Delete, &[("q", Some(said))]).status, Status::Skipped, "{said:?}");
        }
    }

    #[test]
    fn one_group_that_is_denied_is_enough() {
        let answers = [("a", Some(Category::Invalid)), ("b", Some(Category::Denied)), ("c", Some(Category::Denied))];
        let check = trial(Tried::Heartbeat, &answers);
        assert_eq!((check.status, check.name), (Status::Failure, "heartbeat"));
        assert!(check.found.contains("not allowed on b, c: hooks expire in mid-drain"), "{}", check.found);
        assert!(check.remedy.unwrap().contains("autoscaling:RecordLifecycleActionHeartbeat"));
        let queue = trial(Tried::Delete, &[("arn:queue", Some(Category::Denied))]);
        assert!(queue.remedy.unwrap().contains("\"Resource\": \"arn:queue\""));
    }
}
