//! Validation of what the action `replace` needs.

use super::problems::Problems;
use crate::pipeline::event::NoticeKind;
use crate::pipeline::interruption::{Action, Actions, MIN_TIME, MaxReplacements, PerKind};
use crate::runtime::duration::Words;
use std::collections::BTreeMap;
use std::time::Duration;

impl Problems {
    /// Reports drains that are too short to be replaced first.
    pub(super) fn too_short_for_replacements(&mut self, actions: Actions, drain_timeout: &PerKind<Option<Duration>>) {
        let least = MIN_TIME * 2;
        for kind in NoticeKind::ALL.into_iter().filter(|kind| actions.of(*kind) == Action::Replace) {
            if let Some(timeout) = drain_timeout.of(kind).filter(|timeout| *timeout < least) {
                let (timeout, least) = (Words(timeout), Words(least));
                self.add("--drain-timeout", format!("{timeout} leaves no time for --on {kind}=replace, which waits for half of it; set {kind}={least} or more, or {kind}=drain"));
            }
        }
    }

    /// Reads the maximum number of replacements. Replaced instances end under the group's terminating hook, which must lead to a drain.
    pub(super) fn replacements(
        &mut self,
        actions: Actions,
        health_issues: &BTreeMap<String, Action>,
        text: Option<&str>,
    ) -> MaxReplacements {
        let flag = "--max-replacements";
        let by_kind = NoticeKind::ALL.into_iter().find(|kind| actions.of(*kind) == Action::Replace);
        let by_issue = || health_issues.iter().find(|(_, action)| **action == Action::Replace);
        let replaces = by_kind.map(|kind| format!("{kind}=replace"));
        let replaces = replaces.or_else(|| Some(format!("{}=replace", by_issue()?.0)));
        self.idle(flag, text.is_some() && replaces.is_none(), "--on rebalance=replace");
        if let Some(pair) = replaces.filter(|_| !actions.of(NoticeKind::AsgTerminate).drains()) {
            self.add("--on", format!("{pair} ends in the group's terminating hook, and asg-terminate is not drained; set asg-terminate=drain, or another action than replace"));
        }
        let Some(text) = text else { return MaxReplacements::default() };
        let read = match text.strip_suffix('%') {
            Some(share) => share.parse().ok().filter(|share| (1..=100).contains(share)).map(MaxReplacements::Percent),
            None => text.parse().ok().filter(|number| *number > 0).map(MaxReplacements::Number),
        };
        read.unwrap_or_else(|| {
            self.add(
                flag,
                format!("\"{text}\" is no number of nodes; write a number such as 2, or a share from 1% to 100%"),
            );
            MaxReplacements::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(NoticeKind, Action)], text: Option<&str>) -> (MaxReplacements, Vec<String>) {
        let mut actions = Actions::default();
        for (kind, action) in pairs {
            actions.set(*kind, *action);
        }
        let mut problems = Problems::default();
        let read = problems.replacements(actions, &BTreeMap::new(), text);
        (read, problems.0.into_iter().map(|problem| format!("{}: {}", problem.flag, problem.what)).collect())
    }

    #[test]
    fn a_number_or_a_share() {
        let on = [(NoticeKind::Rebalance, Action::Replace)];
        let ok = |text| {
            let (read, problems) = read(&on, text);
            assert!(problems.is_empty(), "{problems:?}");
            [1, 9, 50].map(|desired| read.of(desired))
        };
        assert_eq!(ok(None), [1, 1, 5], "a tenth, and at least one");
        assert_eq!(ok(Some("3")), [3, 3, 3]);
        assert_eq!(ok(Some("50%")), [1, 4, 25]);
        for wrong in ["0", "0%", "101%", "-1", "many", "%", ""] {
            let (_, problems) = read(&on, Some(wrong));
            assert!(problems.len() == 1 && problems[0].starts_with("--max-replacements"), "{wrong}: {problems:?}");
        }
    }

    #[test]
    fn a_replacement_needs_five_minutes() {
        let mut actions = Actions::default();
        actions.set(NoticeKind::Rebalance, Action::Replace);
        let problems = |seconds| {
            let mut problems = Problems::default();
            let timeout = PerKind::all(Some(Duration::from_secs(seconds)));
            problems.too_short_for_replacements(actions, &timeout);
            problems.0.into_iter().map(|problem| problem.what).collect::<Vec<_>>()
        };
        assert!(problems(300).is_empty());
        let [problem] = &problems(299)[..] else { panic!("one problem, for the kind that is replaced") };
        assert!(problem.contains("4m 59s leaves no time for --on rebalance=replace"), "{problem}");
    }

    #[test]
    fn it_needs_a_replace_and_a_replace_needs_the_hook() {
        assert!(read(&[], Some("3")).1[0].contains("has no effect without"));
        let without = [(NoticeKind::Rebalance, Action::Replace), (NoticeKind::AsgTerminate, Action::Cordon)];
        assert!(read(&without, None).1[0].starts_with("--on: rebalance=replace ends in"));
        let replaced = [(NoticeKind::Rebalance, Action::Replace), (NoticeKind::AsgTerminate, Action::Replace)];
        assert!(read(&replaced, None).1.is_empty());
    }
}
