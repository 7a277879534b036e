//! Validation of the conditions of Nodes that are acted on.

use super::Sources;
use super::problems::Problems;
use crate::cli::flags::Run;
use crate::fact::condition;
use crate::pipeline::event::NoticeKind;
use crate::pipeline::interruption::{Action, Actions};
use crate::pipeline::node::ConditionRule;
use crate::pipeline::node::label::checked_key;
use crate::runtime::duration;
use std::sync::Arc;
use std::time::Duration;

/// Maximum time for which a Node may have a condition.
const MAX_TOLERATION: Duration = Duration::from_hours(24);

/// The actions for a condition, from the one that does least to the one that does most.
const ACTIONS: [Action; 5] = [Action::Report, Action::Cordon, Action::Drain, Action::Reboot, Action::Replace];

const FLAG: &str = "--on-condition";

impl Problems {
    /// Reads the actions, and the rules for conditions, `TYPE=STATUS[/REASON]:TOLERATION=ACTION`. Their kind gets the action that does most, so
    /// that what needs a drain finds one.
    pub(super) fn actions_and_conditions(&mut self, flags: &Run, sources: Sources) -> (Actions, Arc<[ConditionRule]>) {
        let (mut actions, flags) = (self.actions(&flags.on), &flags.sources.on_condition);
        let mut rules: Vec<ConditionRule> = Vec::new();
        for text in flags {
            match rule(text) {
                Err(problem) => self.add(FLAG, problem),
                Ok(rule) if rules.iter().any(|known| known.name == rule.name) => {
                    self.add(FLAG, format!("\"{}\" is given twice; remove one", rule.name));
                }
                Ok(rule) => rules.push(rule),
            }
        }
        let asks_aws = |rule: &&ConditionRule| matches!(rule.action, Action::Reboot | Action::Replace);
        if !flags.is_empty() && !sources.nodes {
            self.add(
                FLAG,
                format!("needs notices from Nodes, and --source is {sources}; write --source {sources},nodes"),
            );
        } else if let Some(rule) = rules.iter().find(asks_aws).filter(|_| !sources.ask_aws()) {
            let action = rule.action;
            self.add(FLAG, format!("{action} needs calls to AWS that are not made with --source nodes alone; write --source queue,nodes and --queue-url, --source nodes,ec2 and --ec2-poll-interval, or another action"));
        }
        let farthest = ACTIONS.into_iter().rfind(|action| rules.iter().any(|rule| rule.action == *action));
        actions.set(NoticeKind::NodeCondition, farthest.unwrap_or(Action::Ignore));
        rules.sort_by_key(ConditionRule::rank);
        (actions, rules.into())
    }
}

fn rule(text: &str) -> Result<ConditionRule, String> {
    let malformed = || {
        format!(
            "\"{text}\" is not TYPE=STATUS:TOLERATION=ACTION; write it like KernelReady=False:30m=replace, or for one reason KernelReady=False/SoftLockup:30m=replace"
        )
    };
    let (name, rest) = text.split_once(':').ok_or_else(malformed)?;
    let (kind, status) = name.split_once('=').ok_or_else(malformed)?;
    let (status, reason) = status.split_once('/').map_or((status, None), |(status, reason)| (status, Some(reason)));
    let (toleration, action) = rest.split_once('=').ok_or_else(malformed)?;
    checked_key(kind).map_err(|_| format!("\"{kind}\" is no type of a condition; kubectl describe node shows them"))?;
    if kind == condition::DRAINING {
        return Err(format!("{kind} is Ebbtide's own condition; remove it"));
    }
    if !matches!(status, "True" | "False" | "Unknown") {
        return Err(format!("\"{status}\" is no status of a condition; write True, False or Unknown"));
    }
    let is_reason = |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'));
    if let Some(reason) =
        reason.filter(|it| !is_reason(it.strip_suffix('*').unwrap_or(it)) || it.trim_end_matches('*').is_empty())
    {
        return Err(format!(
            "\"{reason}\" is no reason of a condition; write it as kubectl describe node shows it, such as NvidiaXID64Error, or its beginning, such as NvidiaXID*"
        ));
    }
    let toleration = duration::parse(toleration).map_err(|error| error.to_string())?;
    if toleration.is_zero() || toleration > MAX_TOLERATION {
        return Err(format!("the toleration in \"{text}\" is not possible; write 1s to 24h"));
    }
    let found = ACTIONS.into_iter().find(|known| known.as_str() == action);
    let names = ACTIONS.map(Action::as_str).join(", ");
    let action = found.ok_or_else(|| format!("\"{action}\" is no action for a condition; choose one of {names}"))?;
    Ok(ConditionRule { name: name.into(), toleration, action })
}

#[cfg(test)]
mod tests {
    use crate::cli::{Cli, Command, Settings};
    use crate::pipeline::event::NoticeKind;
    use crate::pipeline::interruption::Action;
    use std::time::Duration;

    const URL: [&str; 2] = ["--queue-url", "https://sqs.eu-central-1.amazonaws.com/1/q"];
    const POD: [&str; 4] = ["--pod-namespace", "ebbtide", "--pod-name", "ebbtide-1"];

    fn read(flags: &[&[&str]]) -> Result<Settings, String> {
        let flags = flags.concat();
        let Command::Run(run) = Cli::of(["ebbtide", "run"].iter().chain(&flags)).unwrap().command else {
            panic!("it must be run")
        };
        Settings::from_flags(run).map_err(|problems| problems.to_string())
    }

    fn both(rules: &str) -> Result<Settings, String> {
        read(&[&URL, &POD, &["--source", "queue,nodes", "--on-condition", rules]])
    }

    #[test]
    fn a_rule_has_a_type_a_status_a_toleration_and_an_action() {
        assert!(read(&[&URL]).unwrap().policy().conditions.is_empty());
        let settings =
            both("KernelReady=False:10m=cordon, example.com/Ready=Unknown:90s=drain,Ready=Unknown:1h=report");
        let settings = settings.unwrap();
        let policy = settings.policy();
        let rules: Vec<_> =
            policy.conditions.iter().map(|it| (&*it.name, it.toleration.as_secs(), it.action)).collect();
        assert_eq!(
            rules,
            [
                ("KernelReady=False", 600, Action::Cordon),
                ("example.com/Ready=Unknown", 90, Action::Drain),
                ("Ready=Unknown", 3600, Action::Report)
            ]
        );
        assert_eq!(policy.actions.of(NoticeKind::NodeCondition), Action::Drain, "what does most");
        let waits = both("KernelReady=False:10m=replace").unwrap().policy().waits.clone();
        assert_eq!(waits.delay.of(NoticeKind::NodeCondition), None::<Duration>);
        assert!(read(&[&POD, &["--source", "nodes", "--on-condition", "Ready=Unknown:5m=drain"]]).is_ok());
    }

    #[test]
    fn what_is_no_rule_says_what_to_write() {
        for (rule, what) in [
            ("KernelReady", "is not TYPE=STATUS:TOLERATION=ACTION; write it like"),
            ("KernelReady=False=drain", "is not TYPE=STATUS:TOLERATION=ACTION"),
            ("KernelReady:10m=drain", "is not TYPE=STATUS:TOLERATION=ACTION"),
            ("KernelReady=False:10m", "is not TYPE=STATUS:TOLERATION=ACTION"),
            ("Kernel Ready=False:10m=drain", "\"Kernel Ready\" is no type of a condition"),
            ("KernelReady=false:10m=drain", "\"false\" is no status of a condition; write True, False or Unknown"),
            ("KernelReady=False:soon=drain", "soon"),
            ("KernelReady=False:0s=drain", "is not possible; write 1s to 24h"),
            ("KernelReady=False:25h=drain", "is not possible; write 1s to 24h"),
            ("KernelReady=False:10m=ready", "choose one of report, cordon, drain, reboot, replace"),
            ("KernelReady=False:10m=ignore", "choose one of report, cordon, drain, reboot, replace"),
            ("EbbtideDraining=True:10m=drain", "is Ebbtide's own condition"),
            ("A=True/:10m=drain", "\"\" is no reason of a condition"),
            ("A=True/*:10m=drain", "\"*\" is no reason of a condition"),
            ("A=True/a b:10m=drain", "\"a b\" is no reason of a condition"),
            ("Ready=False:1m=drain,Ready=False:2m=report", "\"Ready=False\" is given twice; remove one"),
        ] {
            let problem = both(rule).unwrap_err();
            assert!(problem.starts_with("--on-condition: ") && problem.contains(what), "{rule}: {problem}");
            assert!(!problem.contains('\n'), "{rule}: {problem}");
        }
        let problem = read(&[&URL, &["--on-condition", "Ready=Unknown:5m=drain"]]).unwrap_err();
        assert!(problem.contains("write --source queue,nodes"), "{problem}");
        let problem = read(&[&POD, &["--source", "nodes", "--on-condition", "Ready=Unknown:5m=replace"]]).unwrap_err();
        assert!(problem.starts_with("--on-condition: replace needs calls to AWS"), "{problem}");
        assert!(problem.ends_with("write --source queue,nodes and --queue-url, --source nodes,ec2 and --ec2-poll-interval, or another action"), "{problem}");
        let problem = both("Ready=Unknown:5m=drain").and_then(|_| {
            let flags = ["--on-condition", "Ready=Unknown:5m=drain", "--on", "node-condition=drain"];
            read(&[&URL, &POD, &["--source", "queue,nodes"], &flags])
        });
        let problem = problem.unwrap_err();
        assert!(problem.starts_with("--on: ") && problem.contains("--on-condition"), "{problem}");
    }

    #[test]
    fn a_replacement_needs_its_time_and_the_hook() {
        let flags = |more: &[&str]| {
            let rule = ["--on-condition", "KernelReady=False:10m=replace"];
            read(&[&URL, &POD, &["--source", "queue,nodes"], &rule, more]).map(drop)
        };
        flags(&["--max-replacements", "2"]).unwrap();
        let problem = flags(&["--drain-timeout", "node-condition=2m"]).unwrap_err();
        assert!(problem.contains("set node-condition=5m or more"), "{problem}");
        let problem = flags(&["--on", "asg-terminate=cordon"]).unwrap_err();
        assert!(problem.contains("asg-terminate is not drained"), "{problem}");
    }
}
