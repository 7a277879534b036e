//! Validation of what gives notices, and of what it needs.

use super::problems::Problems;
use crate::cli::flags::{Run, Source};
use crate::pipeline::interruption::{ForLoadBalancers, Heartbeats, HookSource, OnFailed, OnUncordon, Verify};
use std::fmt;

/// The requirement of settings about lifecycle hooks, for [`Problems::idle`].
pub(super) const HOOKS: &str = "queue in --source, or --node-hook";

/// The ends of actions that ask AWS for something.
const ASKING: [&str; 3] = ["=replace", "=reboot", "=ready"];

/// Maximum length of the name of a Lease.
const MAX_NAME: usize = 253;

/// The sources of notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a source of its own")]
pub struct Sources {
    /// The messages of the queue.
    pub queue: bool,
    /// Notices from Nodes.
    pub nodes: bool,
    /// Notices that EC2 lists.
    pub ec2: bool,
    /// Whether the hooks of terminations that Nodes report are completed. They give no notices.
    pub hooks: bool,
}

impl Sources {
    /// Returns where lifecycle hooks come from; `node_hook` is the one that the settings name.
    pub(super) fn hook_source(self, node_hook: Option<String>) -> HookSource {
        match node_hook {
            _ if self.queue => HookSource::Messages,
            Some(name) => HookSource::Setting(name),
            None => HookSource::None,
        }
    }

    /// Whether lifecycle hooks are completed.
    #[must_use]
    pub const fn complete_hooks(self) -> bool {
        self.queue || self.hooks
    }

    /// Whether AWS gives notices, and can be asked about them: not if the Nodes are the only source.
    #[must_use]
    pub const fn ask_aws(self) -> bool {
        self.queue || self.ec2
    }

    /// Whether AWS is called at all.
    #[must_use]
    pub const fn call_aws(self) -> bool {
        self.ask_aws() || self.hooks
    }
}

impl fmt::Display for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [(self.queue, "queue"), (self.nodes, "nodes"), (self.ec2, "ec2")];
        let named: Vec<_> = all.into_iter().filter(|(is_one, _)| *is_one).map(|(_, name)| name).collect();
        f.write_str(&named.join(","))
    }
}

impl Problems {
    /// Returns what gives notices. By default the queue, even without its URL: one that was forgotten must not pass for a wish.
    pub(super) fn sources(&mut self, flags: &Run, needs_queue: bool) -> Sources {
        let named = &flags.sources.source;
        let (url, interval) = (
            flags.sources.queue_url.is_some(),
            flags.ec2_poll_interval.is_some() || self.has_refused("--ec2-poll-interval"),
        );
        if named.is_empty() {
            self.node_hook(flags, false, true);
            return Sources { queue: true, nodes: false, ec2: interval, hooks: false };
        }
        let has = |source| named.contains(&source);
        let (queue, nodes) = (has(Source::Queue), has(Source::Nodes));
        let sources = Sources { queue, nodes, ec2: has(Source::Ec2), hooks: self.node_hook(flags, nodes, queue) };
        if url && !sources.queue && needs_queue {
            self.add(
                "--queue-url",
                format!("has no effect with --source {sources}; write --source queue,{sources}, or remove the URL"),
            );
        }
        if interval && !sources.ec2 {
            let all = Sources { ec2: true, ..sources };
            self.add(
                "--ec2-poll-interval",
                format!("has no effect with --source {sources}; write --source {all}, or remove the interval"),
            );
        }
        if sources.ec2 && !interval {
            self.add(
                "--ec2-poll-interval",
                "is missing, but --source names ec2; set an interval such as 5m, or remove ec2",
            );
        }
        let is_anonymous = flags.pod_namespace.is_none() && flags.pod_name.is_none();
        if sources.nodes && is_anonymous && !flags.dry_run && needs_queue {
            self.add("--source", "nodes needs --pod-namespace and --pod-name, because replicas elect the one that handles it; set both from the downward API");
        }
        sources
    }

    /// Returns the name of the Lease for the election that notices from Nodes need, if it is set.
    pub(super) fn nodes_lease(&mut self, name: Option<String>) -> Option<&'static str> {
        let name = name?;
        let is_name = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-.".contains(&b));
        if !is_name || name.len() > MAX_NAME {
            self.add("--nodes-lease", format!("{name} can't be the name of a Lease; write a-z, 0-9, - and . only"));
        }
        // For the life of the process, like the name that is not set.
        Some(name.leak())
    }

    /// Returns whether hooks are completed for terminations that Nodes report.
    fn node_hook(&mut self, flags: &Run, nodes: bool, queue: bool) -> bool {
        let Some(name) = &flags.sources.node_hook else { return false };
        let flag = "--node-hook";
        if queue {
            self.add(flag, "is for --source nodes: with a queue the hook's own message names it; remove it, or leave the queue out");
        } else if !nodes {
            self.add(flag, "is for notices from Nodes; write --source nodes, or remove it");
        } else if flags.ignore_hook.contains(name) {
            self.add(
                flag,
                format!("{name} is one of --ignore-hook, which others complete; remove it from one of the two"),
            );
        }
        true
    }

    /// Adds a problem for each setting that needs another source.
    pub(super) fn of_other_sources(&mut self, flags: &Run, sources: Sources) {
        let of_checks = |pair: &String| {
            pair.strip_prefix("status-check=").is_some_and(|action| !matches!(action, "ignore" | "report"))
        };
        if !sources.ec2 && flags.on.iter().any(of_checks) {
            self.add("--on", "status-check needs the EC2 poll; set --ec2-poll-interval, and name ec2 in --source if that is set, or remove it");
        }
        if !sources.complete_hooks() {
            self.idle("--heartbeat", flags.heartbeat != Heartbeats::Auto, HOOKS);
            self.idle("--on-failed-drain", flags.on_failed_drain != OnFailed::Continue, HOOKS);
            self.idle("--on-uncordon", flags.on_uncordon != OnUncordon::Leave, HOOKS);
        }
        if sources.queue {
            return;
        }
        for (flag, is_set) in [
            ("--zonal-shift", !flags.waits.zonal_shift.is_empty()),
            ("--out-of-service-taint", flags.out_of_service_taint),
            ("--health-issue", !flags.health_issue.is_empty()),
        ] {
            if is_set {
                let all = Sources { queue: true, ..sources };
                self.add(flag, format!("is about events that come by the queue, and --source is {sources}; write --source {all} and --queue-url, or remove it"));
            }
        }
    }

    /// Adds a problem for each setting that needs AWS, if the Nodes are the only source.
    pub(super) fn without_aws(&mut self, flags: &Run, sources: Sources) {
        if sources.ask_aws() {
            return;
        }
        let waits = flags.waits.wait_for_load_balancers != ForLoadBalancers::Nothing;
        for (flag, is_set) in [
            ("--require-tag", flags.require_tag),
            ("--collect-nodes", flags.collect_nodes),
            ("--verify", flags.admission.verify == Verify::Always),
            ("--wait-for-load-balancers", waits),
            ("--on", flags.on.iter().any(|pair| ASKING.iter().any(|action| pair.ends_with(action)))),
        ] {
            if is_set {
                let needs = if flag == "--on" { "replace, reboot and ready need" } else { "needs" };
                self.add(flag, format!("{needs} calls to AWS that are not made with --source nodes alone; write --source queue,nodes and --queue-url, --source nodes,ec2 and --ec2-poll-interval, or remove it"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::cli::{Cli, Command, Settings};

    const URL: [&str; 2] = ["--queue-url", "https://sqs.eu-central-1.amazonaws.com/1/q"];
    const POD: [&str; 4] = ["--pod-namespace", "ebbtide", "--pod-name", "ebbtide-1"];

    fn read(flags: &[&[&str]]) -> Result<String, String> {
        let flags = flags.concat();
        let Command::Run(run) = Cli::of(["ebbtide", "run"].iter().chain(&flags)).unwrap().command else {
            panic!("it must be run")
        };
        Settings::from_flags(run).map(|settings| settings.sources.to_string()).map_err(|problems| problems.to_string())
    }

    /// Returns the one problem with these flags where only Nodes give notices: it begins with the first flag.
    fn refused_with_nodes(flags: &[&str]) -> String {
        let problem = read(&[&POD, &["--source", "nodes"], flags]).unwrap_err();
        assert!(problem.starts_with(flags[0]) && !problem.contains('\n'), "{problem}");
        problem
    }

    #[test]
    fn by_default_what_is_configured_gives_notices() {
        assert_eq!(read(&[&URL]).unwrap(), "queue");
        assert_eq!(read(&[&URL, &["--ec2-poll-interval", "5m"]]).unwrap(), "queue,ec2");
        assert_eq!(read(&[&URL, &POD, &["--source", "nodes,queue"]]).unwrap(), "queue,nodes");
        assert_eq!(read(&[&POD, &["--source", "nodes"]]).unwrap(), "nodes");
        assert_eq!(read(&[&["--source", "nodes", "--dry-run"]]).unwrap(), "nodes");
        assert_eq!(read(&[&["--source", "ec2", "--ec2-poll-interval", "5m"]]).unwrap(), "ec2");
    }

    #[test]
    fn a_contradiction_says_what_to_write() {
        for (flags, expected) in [
            (
                vec![],
                "--queue-url: is missing; give the queue's URL, or set EBBTIDE_QUEUE_URL; without a queue write --source nodes",
            ),
            (vec!["--source", "queue"], "--queue-url: is missing; "),
            (vec!["--ec2-poll-interval", "5m"], "--queue-url: is missing; "),
            (vec!["--source", "nodes"], "--source: nodes needs --pod-namespace and --pod-name"),
            (vec!["--source", "nodes", "--dry-run", "--nodes-lease", "a/b"], "--nodes-lease: a/b can't be"),
            (vec!["--source", "ec2"], "--ec2-poll-interval: is missing, but"),
        ] {
            let problem = read(&[&flags]).unwrap_err();
            assert!(problem.starts_with(expected) && !problem.contains('\n'), "{flags:?}: {problem}");
        }
        let problem = read(&[&URL, &POD, &["--source", "nodes"]]).unwrap_err();
        assert!(
            problem.starts_with("--queue-url: ") && problem.contains("write --source queue,nodes, or"),
            "{problem}"
        );
        let problem = read(&[&URL, &["--source", "queue", "--ec2-poll-interval", "5m"]]).unwrap_err();
        assert!(
            problem.starts_with("--ec2-poll-interval: ") && problem.contains("--source queue,ec2, or"),
            "{problem}"
        );
    }

    #[test]
    fn a_hook_is_named_for_what_nodes_say_alone() {
        const HOOK: [&str; 2] = ["--node-hook", "drain"];
        let sources = |flags: &[&[&str]]| {
            let flags = flags.concat();
            let Command::Run(run) = Cli::of(["ebbtide", "run"].iter().chain(&flags)).unwrap().command else {
                panic!("it must be run")
            };
            Settings::from_flags(run)
                .map(|it| (it.sources.call_aws(), it.policy().completes("drain"), it.policy().completes("b")))
        };
        let nodes: &[&str] = &["--source", "nodes"];
        assert_eq!(sources(&[&POD, nodes]), Ok((false, false, false)));
        assert_eq!(sources(&[&POD, nodes, &HOOK]), Ok((true, true, false)));
        assert_eq!(sources(&[&URL]), Ok((true, true, true)));
        let ec2 = ["--source", "ec2", "--ec2-poll-interval", "5m"];
        assert_eq!(sources(&[&ec2]), Ok((true, false, false)), "no message comes");
        for (flags, expected) in [
            (&[&URL[..], &HOOK][..], "with a queue the hook's own message names it"),
            (&[&URL, &POD, &["--source", "queue,nodes"], &HOOK], "with a queue the hook's own message names it"),
            (&[&ec2, &HOOK], "is for notices from Nodes; write --source nodes"),
            (&[&POD, nodes, &HOOK, &["--ignore-hook", "a,drain"]], "drain is one of --ignore-hook"),
            (&[&POD, nodes, &HOOK, &["--on", "asg-terminate=cordon"]], "--on asg-terminate=drain"),
        ] {
            let problem = read(flags).unwrap_err();
            assert!(problem.starts_with("--node-hook: ") && problem.contains(expected), "{problem}");
        }
        assert!(read(&[&URL, &["--on", "status-check=drain"]]).unwrap_err().contains("set --ec2-poll-interval"));
    }

    #[test]
    fn what_is_about_hooks_is_refused_where_none_is_completed() {
        let about: [&[&str]; 7] = [
            &["--heartbeat", "30s"],
            &["--on-failed-drain", "leave"],
            &["--on-uncordon", "at-deadline"],
            &["--complete-after", "30s"],
            &["--wait-for-volumes", "2m"],
            &["--hold", "before-completion"],
            &["--hold", "asg-terminate=both"],
        ];
        for flags in about {
            let problem = refused_with_nodes(flags);
            assert!(problem.contains("has no effect without queue in --source, or --node-hook; "), "{problem}");
            read(&[&URL, flags]).unwrap();
            read(&[&POD, &["--source", "nodes", "--node-hook", "drain"], flags]).unwrap();
        }
        read(&[&POD, &["--source", "nodes", "--hold", "both", "--wait-for-volumes", "0s"]]).unwrap();
    }

    /// Nobody knows when the hook ends.
    #[test]
    fn a_termination_without_a_known_end_waits_in_no_wave() {
        let waves = ["--source", "nodes", "--wave", "zone=1", "--on", "scheduled-change=cordon"];
        let problem = read(&[&POD, &waves]).unwrap_err();
        assert!(problem.starts_with("--wave: has no effect without --drain-timeout asg-terminate=10m, "), "{problem}");
        let more: [&[&str]; 4] = [
            &["--drain-timeout", "asg-terminate=10m"],
            &["--drain-timeout", "10m"],
            &["--node-hook", "drain"],
            &["--on", "rebalance=drain"],
        ];
        for flags in more {
            read(&[&POD, &waves, flags]).unwrap();
        }
    }

    #[test]
    fn what_needs_aws_is_refused_with_nodes_alone() {
        let needs: [&[&str]; 9] = [
            &["--require-tag"],
            &["--collect-nodes"],
            &["--verify", "always"],
            &["--wait-for-load-balancers", "wait"],
            &["--health-issue", "AWS_EC2_A_FAULT=drain"],
            &["--zonal-shift", "any"],
            &["--out-of-service-taint"],
            &["--on", "asg-launch=ready"],
            &["--on", "asg-terminate=replace"],
        ];
        for flags in needs {
            let problem = refused_with_nodes(flags);
            assert!(problem.contains("--source queue,nodes"), "{problem}");
            read(&[&URL, &POD, &["--source", "queue,nodes"], flags]).unwrap();
        }
    }
}
