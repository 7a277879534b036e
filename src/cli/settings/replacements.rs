//! Validation of what the action `replace` needs.

use super::problems::Problems;
use crate::pipeline::event::NoticeKind;
use crate::pipeline::interruption::{Action, Actions, AtMost, MAX_MARGIN, MIN_DRAIN, PerKind};
use crate::runtime::duration::Words;
use std::collections::BTreeMap;
use std::time::Duration;

/// Default maximum number of replacements of one group at the same time.
const DEFAULT_REPLACEMENTS: AtMost = AtMost::Percent(10);

impl Problems {
    /// Reports drains that are too short to be replaced first.
    pub(super) fn too_short_for_replacements(
        &mut self,
        actions: Actions,
        health_issues: &BTreeMap<String, Action>,
        drain_timeout: &PerKind<Option<Duration>>,
        lead: Option<Duration>,
    ) {
        let is_replaced = |kind| actions.of(kind) == Action::Replace;
        let fault = health_issues.iter().find(|(_, action)| **action == Action::Replace);
        for kind in NoticeKind::ALL {
            let setting = match fault {
                _ if is_replaced(kind) => format!("--on {kind}=replace"),
                // A fault is a scheduled change to all other settings.
                Some((code, _)) if kind == NoticeKind::ScheduledChange => format!("--health-issue {code}=replace"),
                _ => continue,
            };
            // The drain ends before its hook.
            let least = if kind == NoticeKind::AsgTerminate { MIN_DRAIN + MAX_MARGIN } else { MIN_DRAIN };
            if let Some(timeout) = drain_timeout.of(kind).filter(|timeout| *timeout < least) {
                let (timeout, least) = (Words(timeout), Words(least));
                self.add("--drain-timeout", format!("{timeout} leaves no time for {setting}, which waits for half of it; set {kind}={least} or more, or the action drain instead of replace"));
            }
        }
        let kind = NoticeKind::ScheduledChange;
        if let Some(lead) = lead.filter(|lead| *lead < MIN_DRAIN && is_replaced(kind)) {
            let (lead, least) = (Words(lead), Words(MIN_DRAIN));
            self.add("--when", format!("{lead} before the change there is no time for --on {kind}=replace; set {kind}={least}-before or earlier, or the action drain instead of replace"));
        }
    }

    /// Reads the maximum number of replacements. Replaced instances end under the group's terminating hook, which must lead to a drain.
    pub(super) fn replacements(
        &mut self,
        actions: Actions,
        health_issues: &BTreeMap<String, Action>,
        at_most: Option<AtMost>,
    ) -> AtMost {
        let flag = "--max-replacements";
        let by_kind = NoticeKind::ALL.into_iter().find(|kind| actions.of(*kind) == Action::Replace);
        let by_issue = || health_issues.iter().find(|(_, action)| **action == Action::Replace);
        let replaces = by_kind.map(|kind| format!("{kind}=replace"));
        let replaces = replaces.or_else(|| Some(format!("{}=replace", by_issue()?.0)));
        // The group terminates the instance of a hook already: it is not asked.
        let asks = NoticeKind::ALL.into_iter().any(|kind| {
            matches!(actions.of(kind), Action::Replace | Action::Reboot) && kind != NoticeKind::AsgTerminate
        });
        self.idle(flag, at_most.is_some() && !asks && by_issue().is_none(), "--on rebalance=replace");
        if let Some(pair) = replaces.filter(|_| !actions.of(NoticeKind::AsgTerminate).drains()) {
            self.add("--on", format!("{pair} ends in the group's terminating hook, and asg-terminate is not drained; set asg-terminate=drain, or another action than replace"));
        }
        at_most.unwrap_or(DEFAULT_REPLACEMENTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::flags::at_most;

    fn read(pairs: &[(NoticeKind, Action)], given: Option<AtMost>) -> (AtMost, Vec<String>) {
        let mut actions = Actions::default();
        for (kind, action) in pairs {
            actions.set(*kind, *action);
        }
        let mut problems = Problems::default();
        let read = problems.replacements(actions, &BTreeMap::new(), given);
        (
            read,
            problems
                .end()
                .map_or_else(|error| error.0, |()| Vec::new())
                .into_iter()
                .map(|problem| format!("{}: {}", problem.flag, problem.what))
                .collect(),
        )
    }

    #[test]
    fn a_number_or_a_share() {
        let on = [(NoticeKind::Rebalance, Action::Replace)];
        let ok = |given: Option<&str>| {
            let (read, problems) = read(&on, given.map(|text| at_most(text).unwrap()));
            assert!(problems.is_empty(), "{problems:?}");
            [1, 9, 50].map(|desired| read.of(desired))
        };
        assert_eq!(ok(None), [1, 1, 5], "a tenth, and at least one");
        assert_eq!(ok(Some("3")), [3, 3, 3]);
        assert_eq!(ok(Some("50%")), [1, 4, 25]);
        for wrong in ["0", "0%", "101%", "-1", "many", "%", ""] {
            assert!(at_most(wrong).unwrap_err().starts_with(&format!("\"{wrong}\" is no number of nodes")));
        }
    }

    #[test]
    fn a_replacement_needs_five_minutes() {
        let mut actions = Actions::default();
        actions.set(NoticeKind::Rebalance, Action::Replace);
        let problems = |actions, faults: &BTreeMap<_, _>, timeout, lead: Option<u64>| {
            let mut problems = Problems::default();
            let timeout = PerKind::all(Some(Duration::from_secs(timeout)));
            problems.too_short_for_replacements(actions, faults, &timeout, lead.map(Duration::from_secs));
            problems
                .end()
                .map_or_else(|error| error.0, |()| Vec::new())
                .into_iter()
                .map(|problem| format!("{}: {}", problem.flag, problem.what))
                .collect::<Vec<_>>()
        };
        let none = BTreeMap::new();
        assert!(problems(actions, &none, 300, Some(60)).is_empty());
        let one = "--drain-timeout: 4m 59s leaves no time for --on rebalance=replace, which waits for half of it; \
                   set rebalance=5m or more, or the action drain instead of replace";
        assert_eq!(problems(actions, &none, 299, None), [one], "for the kind that is replaced");
        let faults = [("AWS_EC2_A", Action::Cordon), ("AWS_EC2_B", Action::Replace)];
        let faults = faults.map(|(code, action)| (code.to_owned(), action)).into();
        let [_, fault] = &problems(actions, &faults, 299, None)[..] else { panic!("a fault has a timeout, too") };
        assert!(fault.contains("--health-issue AWS_EC2_B=replace") && fault.contains("scheduled-change=5m"), "{fault}");
        actions.set(NoticeKind::AsgTerminate, Action::Replace);
        let [hook] = &problems(actions, &none, 329, None)[..] else { panic!("its completion comes before its end") };
        assert!(hook.contains("asg-terminate=5m 30s or more"), "{hook}");
        actions.set(NoticeKind::ScheduledChange, Action::Replace);
        assert!(problems(actions, &none, 330, Some(300)).is_empty());
        let [lead] = &problems(actions, &none, 330, Some(240))[..] else { panic!("the change is the deadline") };
        assert!(
            lead.starts_with("--when: 4m before the change") && lead.contains("scheduled-change=5m-before"),
            "{lead}"
        );
    }

    #[test]
    fn it_needs_a_replace_and_a_replace_needs_the_hook() {
        assert!(read(&[], Some(AtMost::Number(3))).1[0].contains("has no effect without"));
        let without = [(NoticeKind::Rebalance, Action::Replace), (NoticeKind::AsgTerminate, Action::Cordon)];
        assert!(read(&without, None).1[0].starts_with("--on: rebalance=replace ends in"));
        let replaced = [(NoticeKind::Rebalance, Action::Replace), (NoticeKind::AsgTerminate, Action::Replace)];
        assert!(read(&replaced, None).1.is_empty());
    }
}
