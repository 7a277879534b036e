//! Whether the Auto Scaling groups launch before they terminate, and can replace nodes for the action `replace`. Pure.

use super::aws_calls::replaces;
use super::check::{Area, Check, count, few};
use super::readings::{Readings, ScalingGroup};
use crate::cli::settings::Settings;
use crate::fact::Replacement;
use crate::pipeline::interruption::Group;

/// Judges the groups.
#[must_use]
pub fn judge(settings: &Settings, readings: &Readings) -> Vec<Check> {
    let groups = readings.groups.as_ref().map(|groups| groups.groups.as_slice()).unwrap_or_default();
    let mut checks: Vec<Check> = maintenance(groups).into_iter().collect();
    if !replaces(settings) || groups.is_empty() {
        return checks;
    }
    let reason = |group: &ScalingGroup| {
        let hooks = group.hooks.as_ref().ok()?.iter().filter(|hook| hook.terminating);
        let group = Group { hooks: hooks.map(|hook| hook.name.clone()).collect(), ..group.state.clone() };
        group.replaces(|hook| settings.policy().completes(hook)).err()
    };
    let judged: Vec<(&str, Replacement)> =
        groups.iter().filter_map(|group| Some((group.name.as_str(), reason(group)?))).collect();
    for cause in Replacement::ALL {
        let names: Vec<&str> = judged.iter().filter(|(_, reason)| *reason == cause).map(|(name, _)| *name).collect();
        if let Some((what, remedy)) = names.first().and_then(|first| explained(cause, first)) {
            let found = format!("{}: {what}, so its nodes are drained without a replacement first.", few(&names));
            checks.push(Area::Groups.warning("replace", found, remedy));
        }
    }
    if judged.is_empty() {
        let able = count(groups.len(), "group can", "groups can");
        checks.push(Area::Groups.ok("replace", format!("{able} replace a node before its drain")));
    }
    checks
}

/// Reports groups that terminate before they launch.
fn maintenance(groups: &[ScalingGroup]) -> Option<Check> {
    let names = |wanted: fn(&Group) -> bool| {
        groups.iter().filter(|group| wanted(&group.state)).map(|group| group.name.as_str()).collect::<Vec<_>>()
    };
    let first = names(|state| !state.launches_first);
    let expiring = names(|state| !state.launches_first && state.max_lifetime);
    let found = if first.is_empty() {
        "every group launches an instance before it replaces another".to_owned()
    } else {
        let lifetime = match expiring.as_slice() {
            [] => ", as would a maximum instance lifetime".to_owned(),
            some => format!(", and so does the maximum instance lifetime of {}", few(some)),
        };
        format!(
            "without an instance maintenance policy from 100%, an instance refresh terminates first{lifetime}: {}",
            few(&first)
        )
    };
    (!groups.is_empty()).then(|| Area::Groups.ok("maintenance", found))
}

/// Returns why a group can't replace a node, and the remedy.
fn explained(cause: Replacement, group: &str) -> Option<(&'static str, String)> {
    let aws = |command: &str| format!("  aws autoscaling {command} --auto-scaling-group-name {group}");
    Some(match cause {
        Replacement::NoHook => {
            ("no terminating hook that Ebbtide completes", "Give it one, see the check of hooks.".to_owned())
        }
        Replacement::TerminatesFirst => (
            "no instance maintenance policy that launches first",
            format!(
                "Set one:\n{} \\\n    --instance-maintenance-policy MinHealthyPercentage=100,MaxHealthyPercentage=110",
                aws("update-auto-scaling-group")
            ),
        ),
        Replacement::Suspended => {
            ("a process that replaces instances is suspended", format!("Resume it:\n{}", aws("resume-processes")))
        }
        Replacement::AtMaximum => (
            "the group has its maximum size",
            format!("Raise it:\n{} --max-size NUMBER", aws("update-auto-scaling-group")),
        ),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::Status;
    use crate::commands::doctor::readings::ScalingGroups;
    use crate::commands::doctor::tests::{found, group, hook, one};

    fn with(change: impl FnOnce(&mut ScalingGroup)) -> impl FnOnce(&mut Readings) {
        let mut workers = group("workers", vec![hook("drain", 300)]);
        change(&mut workers);
        move |readings| readings.groups = Ok(ScalingGroups { groups: vec![workers], more: 0, complete: true })
    }

    type Change = fn(&mut ScalingGroup);

    #[test]
    fn a_group_that_can_not_replace_says_why_if_replacements_are_wanted() {
        let flags = &["--on", "rebalance=replace"];
        assert_eq!(found(flags, with(|_| {})), Vec::new());
        assert_eq!(found(&[], with(|group| group.state.launches_first = false)), Vec::new());
        assert_eq!(found(&["--on", "rebalance=replace", "--dry-run"], with(|group| group.state.max = 0)), Vec::new());
        let cases: [(Change, &str, &str); 3] = [
            (|group| group.state.launches_first = false, "workers: no instance maintenance policy", "=100,Max"),
            (|group| group.state.suspended = vec!["Launch".to_owned()], "is suspended", "resume-processes"),
            (|group| group.state.max = 0, "maximum size", "--max-size"),
        ];
        for (change, said, advised) in cases {
            let (name, status, text) = one(flags, with(change));
            assert_eq!((name, status), ("replace", Status::Warning));
            assert!(text.contains(said) && text.contains(advised), "{text}");
        }
    }

    #[test]
    fn who_terminates_first_is_told() {
        let said = |change: Change| {
            let mut workers = group("workers", Vec::new());
            change(&mut workers);
            maintenance(&[workers]).unwrap().found
        };
        assert!(said(|_| {}).starts_with("every group launches"));
        assert!(
            said(|group| group.state.launches_first = false).ends_with("as would a maximum instance lifetime: workers")
        );
        let expires = said(|group| {
            group.state.launches_first = false;
            group.state.max_lifetime = true;
        });
        assert!(expires.contains("and so does the maximum instance lifetime of workers"), "{expires}");
        assert_eq!(maintenance(&[]), None);
    }
}
