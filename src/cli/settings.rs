//! The settings of the service, validated once. Types have units, rules across flags are in one place, and all errors are reported
//! together.

mod admission;
mod agent;
mod conditions;
mod hook;
mod notifications;
mod policy;
mod problems;
mod replacements;
mod servers;
mod sources;
mod traces;
mod waits;

pub use agent::AgentSettings;
pub use hook::lifecycle_hook;
pub use notifications::notifications;
pub use sources::Sources;

use crate::cli::flags;
use crate::cli::flags::{Problem, Run};
use crate::pipeline::drain::SelectionRules;
use crate::pipeline::event::NoticeKind;
use crate::pipeline::interruption::{Action, Policy};
use crate::pipeline::node::{ManagedTag, NodeScope, PerPool};
use crate::telemetry::http::HostNames;
use crate::telemetry::kube_events::Scope;
use crate::telemetry::notify::NotifySettings;
use crate::telemetry::traces::TraceSettings;
use problems::Problems;
use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;
use tracing_subscriber::filter::Targets;

/// The settings of `ebbtide run`.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The sources of notices.
    pub sources: Sources,
    /// The queue's URL; empty without a queue.
    pub queue_url: String,
    /// The address of probes and metrics.
    pub admin_address: SocketAddr,
    /// Address of the status page, if there is one.
    pub status_address: Option<SocketAddr>,
    /// The names and ports of the other replicas, for the status page.
    pub status_peers: Vec<String>,
    /// Host names under which clients may ask for metrics and the status page.
    pub host_names: HostNames,
    /// What the user has decided, for each pool of Nodes.
    pub policies: PerPool<Policy>,
    /// The tag of this cluster's instances.
    pub managed_tag: ManagedTag,
    /// The name of this cluster; by default that in the tags of a Node's instance.
    pub cluster_name: Option<String>,
    /// The Nodes to act on, and their pools.
    pub scope: NodeScope,
    /// The pods to evict.
    pub selection_rules: SelectionRules,
    /// The label selector of the pods to evict, in the API server's syntax.
    pub pod_selector: Option<String>,
    /// The drains that are reported by Events and by the Node's condition.
    pub reported: Scope,
    /// The receiver of notifications, if there is one.
    pub notify: Option<NotifySettings>,
    /// The collector of traces, if there is one.
    pub traces: Option<TraceSettings>,
    /// Interval between two polls of EC2; `None` for no polls.
    pub ec2_poll_interval: Option<Duration>,
    /// Whether the service checks the set-up at its start.
    pub check_at_start: bool,
    /// The name of the Lease for the election that notices from Nodes need, if it is set.
    pub nodes_lease: Option<&'static str>,
    /// Whether the service collects leaked Leases. Then its own pod is known.
    pub collect_leases: bool,
    /// Whether the service deletes the Nodes of instances that have ended. Then its own pod is known.
    pub collect_nodes: bool,
    /// The filter of the log.
    pub log: Targets,
}

/// All problems of the settings.
#[derive(Debug, PartialEq, Eq)]
pub struct SettingsError(pub Vec<Problem>);

impl SettingsError {
    fn of(flag: &str, what: impl Into<String>) -> Self {
        Self(vec![Problem { flag: flag.to_owned(), what: what.into() }])
    }
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, Problem { flag, what }) in self.0.iter().enumerate() {
            if n > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{flag}: {what}")?;
        }
        Ok(())
    }
}

impl std::error::Error for SettingsError {}

/// Maximum time before a scheduled change at which its Node is drained. AWS announces most changes two weeks ahead.
const MAX_LEAD: Duration = Duration::from_hours(30 * 24);

impl Settings {
    /// Returns the policy for all Nodes, and for those that are in no pool.
    #[must_use]
    pub const fn policy(&self) -> &Policy {
        self.policies.rest()
    }

    /// Returns the policy of each pool, after that for Nodes that are in none.
    pub fn all_policies(&self) -> impl Iterator<Item = &Policy> {
        self.policies.iter().map(|(_, policy)| policy)
    }

    /// Whether the notices of this kind have one of these actions, in any pool.
    #[must_use]
    pub fn acts_on(&self, kind: NoticeKind, is_wanted: impl Fn(Action) -> bool) -> bool {
        self.all_policies().any(|policy| is_wanted(policy.actions.of(kind)))
    }

    /// Whether some notice has one of these actions, in any pool.
    #[must_use]
    pub fn has_any(&self, wanted: &[Action]) -> bool {
        self.all_policies().any(|policy| policy.has_any(wanted))
    }

    /// Returns the labels that waits read, in any pool.
    #[must_use]
    pub fn labels(&self) -> Vec<Box<str>> {
        let all: BTreeSet<_> = self.all_policies().flat_map(Policy::labels).collect();
        all.into_iter().collect()
    }

    /// Validates the flags.
    ///
    /// # Errors
    /// All problems.
    pub fn from_flags(mut flags: Run) -> Result<Self, SettingsError> {
        let mut problems = Problems::of(std::mem::take(&mut flags.refused));
        let sources = problems.sources(&flags, true);
        let named = flags.sources.queue_url.take();
        if sources.queue && named.is_none() {
            let what =
                "is missing; give the queue's URL, or set EBBTIDE_QUEUE_URL; without a queue write --source nodes";
            problems.add("--queue-url", what);
        }
        let queue_url = named.map(|url| problems.queue_url(Some(url))).unwrap_or_default();
        Self::checked(flags, sources, queue_url, problems)
    }

    /// Validates the flags of a command that reads no queue, so that the queue may be unset.
    ///
    /// # Errors
    /// As [`Settings::from_flags`].
    pub fn without_queue(mut flags: Run) -> Result<Self, SettingsError> {
        let mut problems = Problems::of(std::mem::take(&mut flags.refused));
        let sources = problems.sources(&flags, false);
        let named = flags.sources.queue_url.take();
        let queue_url = named.map(|url| problems.queue_url(Some(url))).unwrap_or_default();
        Self::checked(flags, sources, queue_url, problems)
    }

    fn checked(flags: Run, sources: Sources, queue_url: String, mut problems: Problems) -> Result<Self, SettingsError> {
        problems.of_other_sources(&flags, sources);
        problems.without_aws(&flags, sources);
        let (scope, policies) = policy::policies(&mut problems, &flags, sources);
        let (admin_address, status_address, host_names) = servers::checked(&mut problems, &flags.servers);
        let status_peers = problems.status_peers(flags.servers.status_peers, flags.pod_name.is_some());
        let notify = problems.notifications(flags.notifications, flags.cluster_name.clone(), flags.pod_name.clone());
        let traces = problems.traces(flags.traces, flags.cluster_name.clone(), flags.pod_name.clone());
        let notify = notify.map(|notify| NotifySettings { traces: traces.is_some(), ..notify });
        let tiers = policy::tiers(&mut problems, flags.priority_tier);
        let own_pod = problems.own_pod(flags.pod_namespace, flags.pod_name);
        problems.without_own_pod("--collect-leases", flags.collect_leases && own_pod.is_none());
        problems.without_own_pod("--collect-nodes", flags.collect_nodes && own_pod.is_none());
        let nodes_lease = problems.nodes_lease(flags.sources.nodes_lease);
        problems.idle_polls(flags.ec2_poll_interval, &policies);
        problems.end()?;
        let selection_rules = SelectionRules {
            tiers,
            evict_daemonsets: flags.evict_daemonsets,
            keep_empty_dir: flags.keep_empty_dir,
            keep_unmanaged: flags.keep_unmanaged,
            respect_do_not_disrupt: flags.respect_do_not_disrupt,
            surges: policies.iter().any(|(_, policy)| policy.drain.surge.is_some()),
            own_pod,
        };
        let pod_selector = flags.pod_selector.filter(|selector| !selector.selects_all());
        Ok(Self {
            sources,
            queue_url,
            admin_address,
            status_address,
            status_peers,
            host_names,
            policies,
            notify,
            traces,
            managed_tag: flags.managed_tag,
            cluster_name: flags.cluster_name,
            scope,
            selection_rules,
            pod_selector: pod_selector.map(|selector| selector.to_string()),
            reported: flags.reporting.events,
            ec2_poll_interval: flags.ec2_poll_interval,
            check_at_start: flags.check_at_start,
            nodes_lease,
            collect_leases: flags.collect_leases,
            collect_nodes: flags.collect_nodes,
            log: flags.log,
        })
    }
}

/// Validates a queue's URL alone.
///
/// # Errors
/// The problem.
pub fn queue_url(url: Option<String>) -> Result<String, SettingsError> {
    let mut problems = Problems::default();
    let url = problems.queue_url(url);
    problems.end().map(|()| url)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fact::NotificationPhase;
    use crate::pipeline::drain::{AtDeadline, Tiers};
    use crate::pipeline::interruption::{AtMost, Holds};
    use crate::pipeline::interruption::{Heartbeats, OnFailed, OnUncordon};

    fn settings(flags: &[&str]) -> Result<Settings, SettingsError> {
        let mut all = vec!["ebbtide", "run"];
        if !flags.contains(&"--queue-url") {
            all.extend(["--queue-url", "https://sqs.eu-west-1.amazonaws.com/123456789012/ebbtide"]);
        }
        all.extend(flags);
        let flags::Command::Run(run) = flags::Cli::of(all).unwrap().command else { panic!("it is run") };
        Settings::from_flags(run)
    }

    fn problems(flags: &[&str]) -> Vec<String> {
        settings(flags).unwrap_err().0.into_iter().map(|problem| problem.flag).collect()
    }

    #[test]
    fn defaults() {
        let settings = settings(&[]).unwrap();
        let policy = settings.policy().clone();
        let on = NoticeKind::ALL.map(|kind| policy.actions.of(kind).as_str());
        assert_eq!(on, ["drain", "ignore", "drain", "cordon", "drain", "drain", "drain", "ignore", "report"]);
        assert_eq!(NoticeKind::ALL.map(|kind| policy.drain_timeout.of(kind)), [None; 9]);
        assert_eq!(NoticeKind::ALL.map(|kind| policy.waits.delay.of(kind)), [None; 9]);
        let stands =
            NoticeKind::ALL.map(|kind| policy.stands(kind, policy.actions.of(kind)).map(|stands| stands.as_secs()));
        assert_eq!(stands, [None, None, None, Some(1200), None, None, None, None, None]);
        assert_eq!((policy.heartbeats, policy.registration_grace), (Heartbeats::Auto, Duration::from_secs(30)));
        assert_eq!(policy.ignored_hooks, ["Terminate-LC-Hook", "Launch-LC-Hook"]);
        assert_eq!((policy.on_failed_drain, policy.on_failed_launch), (OnFailed::Continue, OnFailed::Leave));
        assert_eq!(policy.on_uncordon, OnUncordon::Leave);
        assert!(!policy.require_tag && !policy.dry_run && !policy.out_of_service_taint);
        assert!(policy.waits.complete_after.is_zero() && policy.mark_settings.taints.is_empty());
        assert_eq!(settings.admin_address.to_string(), "[::]:8080");
        let tag = ManagedTag { key: "aws-node-termination-handler/managed".to_owned(), value: None };
        assert_eq!(
            (settings.managed_tag, policy.drain.pod_grace, settings.selection_rules),
            (tag, None, SelectionRules::default())
        );
        assert_eq!((settings.pod_selector, policy.drain.at_deadline), (None, AtDeadline::Delete));
        assert_eq!((settings.reported, settings.check_at_start), (Scope::Blocked, true));
        assert_eq!(settings.log.to_string(), "info");
        assert!(!settings.collect_leases && !settings.collect_nodes && settings.ec2_poll_interval.is_none());
    }

    #[test]
    fn what_is_given_takes_effect() {
        let settings = settings(&[
            "--on",
            "rebalance=drain",
            "--on",
            "asg-launch=report",
            "--drain-timeout",
            "10m",
            "--drain-timeout",
            "asg-terminate=30m",
            "--delay",
            "spot=90s",
            "--uncordon-after",
            "0s",
            "--taint",
            "going=soon:NoSchedule",
            "--pod-selector",
            "app notin (db, cache)",
            "--at-deadline",
            "leave",
            "--pod-grace",
            "45s",
            "--surge",
            "5m",
            "--heartbeat",
            "20s",
            "--managed-tag",
            "team=blue",
            "--require-tag",
            "--ignore-hook",
            "theirs",
            "--dry-run",
            "--pod-namespace",
            "kube-system",
            "--pod-name",
            "ebbtide-1",
            "--events",
            "all",
            "--check-at-start=false",
            "--collect-leases",
            "--collect-nodes",
        ])
        .unwrap();
        assert_eq!(settings.policy().actions.of(NoticeKind::Rebalance), Action::Drain);
        assert_eq!(settings.policy().actions.of(NoticeKind::AsgLaunch), Action::Report);
        let timeouts =
            [NoticeKind::Spot, NoticeKind::AsgTerminate].map(|kind| settings.policy().drain_timeout.of(kind));
        assert_eq!(timeouts, [Some(Duration::from_mins(10)), Some(Duration::from_mins(30))]);
        assert_eq!(settings.policy().waits.delay.of(NoticeKind::Spot), Some(Duration::from_secs(90)));
        assert_eq!(settings.policy().stands(NoticeKind::Rebalance, Action::Cordon), None);
        assert_eq!(settings.policy().mark_settings.taints[0].key, "going");
        assert_eq!(settings.pod_selector.as_deref(), Some("app notin (cache,db)"));
        assert_eq!(settings.policy().drain.at_deadline, AtDeadline::Leave);
        assert_eq!(settings.policy().heartbeats, Heartbeats::Every(Duration::from_secs(20)));
        assert_eq!(settings.policy().drain.pod_grace, Some(Duration::from_secs(45)));
        assert_eq!(settings.policy().drain.surge, Some(Duration::from_mins(5)));
        assert!(settings.selection_rules.surges);
        assert_eq!(settings.managed_tag, ManagedTag { key: "team".to_owned(), value: Some("blue".to_owned()) });
        assert!(settings.policy().require_tag && settings.policy().dry_run);
        assert_eq!((settings.reported, settings.check_at_start), (Scope::All, false));
        assert!(settings.collect_leases && settings.collect_nodes);
        assert_eq!(settings.policy().ignored_hooks, ["theirs"]);
        assert_eq!(settings.selection_rules.own_pod, Some(("kube-system".to_owned(), "ebbtide-1".to_owned())));
    }

    #[test]
    fn an_empty_value_says_as_much_as_none() {
        let flags = [
            "on",
            "on-condition",
            "drain-timeout",
            "delay",
            "taint",
            "former-taint",
            "startup-taint",
            "priority-tier",
            "pod-grace",
            "complete-after",
            "uncordon-after",
        ];
        let more = ["ec2-poll-interval", "nodes-lease", "node-selector", "pod-selector", "pod-name", "pod-namespace"];
        let empty: Vec<String> = flags.iter().chain(&more).map(|flag| format!("--{flag}=")).collect();
        let empty: Vec<&str> = empty.iter().map(String::as_str).collect();
        assert_eq!(format!("{:?}", settings(&empty).unwrap()), format!("{:?}", settings(&[]).unwrap()));
        assert_eq!(settings(&["--ignore-hook="]).unwrap().policy().ignored_hooks, Vec::<String>::new());
        assert!(settings(&["--keep-cordon-while="]).unwrap().policy().work_signs.is_empty());
    }

    #[test]
    fn notifications_need_a_receiver_and_show_no_secret() {
        assert!(settings(&[]).unwrap().notify.is_none());
        let url = ["--notify-url", "https://hooks.example/t0ken"];
        let with = |flags: &[&str]| settings(&[&url, flags].concat()).map(|settings| settings.notify.unwrap());
        let header = ["--notify-header", "Authorization=t0ken", "--notify-secret", "t0ken", "--notify-proxy"];
        let all =
            with(&[&header[..], &["http://me:t0ken@proxy:3128", "--pod-name", "a", "--pod-namespace", "b"]].concat());
        let all = all.unwrap();
        assert_eq!((all.receiver.host(), all.replica.as_str(), all.headers.len()), ("hooks.example", "a", 1));
        assert!(!format!("{all:?}").contains("t0ken"), "{all:?}");
        let pager =
            settings(&["--notify-format", "pagerduty", "--notify-routing-key", "t0ken"]).unwrap().notify.unwrap();
        assert_eq!(pager.receiver.host(), "events.pagerduty.com");
        let phases = |notify: &NotifySettings, kind| {
            notify.phases.of(kind).iter().map(NotificationPhase::as_str).collect::<Vec<_>>().join("+")
        };
        assert_eq!(phases(&pager, NoticeKind::Spot), "blocked+done+failed");
        let some = with(&["--notify", "none,spot=done+notice"]).unwrap();
        assert_eq!([phases(&some, NoticeKind::Spot), phases(&some, NoticeKind::Rebalance)], ["notice+done", ""]);
        assert_eq!(phases(&with(&[]).unwrap(), NoticeKind::AsgLaunch), "blocked+failed");
        for (flag, value) in [
            ("--notify", "spot=begun"),
            ("--notify", "weather=done"),
            ("--notify", "none"),
            ("--notify-header", "t0ken"),
            ("--notify-header", "Host=t0ken"),
            ("--notify-timeout", "31s"),
            ("--notify-timeout", "0s"),
            ("--notify-proxy", "socks5://me:t0ken@proxy"),
            ("--notify-routing-key", "t0ken"),
            ("--notify-template", "no/such/file"),
        ] {
            let refused = with(&[flag, value]).unwrap_err();
            assert!(refused.0.len() == 1 && refused.0[0].flag == flag, "{refused}");
            assert!(!refused.to_string().contains("t0ken"), "{refused}");
            assert_eq!(problems(&[flag, value]), [flag], "without a receiver");
        }
        assert_eq!(problems(&["--notify-format", "slack"]), ["--notify-format"]);
        assert_eq!(problems(&["--notify-format", "pagerduty"]), ["--notify-routing-key"]);
        assert_eq!(problems(&["--notify-url", "hooks.example/t0ken", "--notify", "done"]), ["--notify-url"]);
    }

    #[test]
    fn no_variable_with_a_secret_is_shown() {
        let cli = <flags::Cli as clap::CommandFactory>::command();
        for command in ["run", "notify", "doctor", "simulate"] {
            let command = cli.find_subcommand(command).unwrap();
            for id in ["notify_url", "notify_header", "notify_secret", "notify_routing_key", "notify_proxy"] {
                assert!(command.get_arguments().any(|arg| arg.get_id() == id && arg.is_hide_env_values_set()), "{id}");
            }
        }
    }

    #[test]
    fn a_mistaken_action_is_one_problem() {
        for on in ["asg-launch=replace", "rebalance=replaced"] {
            assert_eq!(problems(&["--on", on, "--max-replacements", "2"]), ["--on"]);
        }
        for (on, near) in
            [("spto=drain", "; did you mean spot?"), ("spot=drian", "report, ignore; did you mean drain?")]
        {
            let told = settings(&["--on", on]).unwrap_err().to_string();
            assert!(told.ends_with(near), "{told}");
        }
        assert_eq!(problems(&["--max-replacements", "2"]), ["--max-replacements"]);
    }

    #[test]
    fn all_problems_are_told_at_once() {
        let flags = [
            "--queue-url",
            "arn:aws:sqs:eu-west-1:123456789012:ebbtide",
            "--on",
            "spot=explode",
            "--on",
            "weather=drain",
            "--drain-timeout",
            "soon",
            "--heartbeat",
            "0s",
            "--managed-tag",
            "=x",
            "--pod-name",
            "me",
        ];
        let told =
            ["--heartbeat", "--managed-tag", "--queue-url", "--on", "--on", "--drain-timeout", "--pod-namespace"];
        assert_eq!(problems(&flags), told);
        let text = settings(&flags).unwrap_err().to_string();
        assert!(text.contains("https://sqs.eu-west-1.amazonaws.com/123456789012/ebbtide"), "{text}");
        assert!(text.contains("for spot choose one of drain, cordon, report, ignore"), "{text}");
    }

    #[test]
    fn an_arn_is_answered_with_its_queues_url() {
        for (partition, host) in
            [("aws", "amazonaws.com"), ("aws-us-gov", "amazonaws.com"), ("aws-cn", "amazonaws.com.cn")]
        {
            let said = queue_url(Some(format!("arn:{partition}:sqs:r-1:123456789012:q"))).unwrap_err().to_string();
            assert!(said.ends_with(&format!("; for this queue it is https://sqs.r-1.{host}/123456789012/q")), "{said}");
        }
        for other in ["arn:aws-iso:sqs:us-iso-east-1:123456789012:q", "arn:aws:sns:eu-west-1:123456789012:t"] {
            let said = queue_url(Some(other.to_owned())).unwrap_err().to_string();
            assert!(said.ends_with("is an ARN; give the queue's URL"), "{said}");
        }
    }

    #[test]
    fn a_fifo_queue_is_refused_with_the_reason() {
        let url = |name: &str| Some(format!("https://sqs.eu-west-1.amazonaws.com/123456789012/{name}"));
        assert!(queue_url(url("fifo")).is_ok());
        let said = queue_url(url("ebbtide.fifo")).unwrap_err().to_string();
        assert!(
            said.contains("is a FIFO queue, which hands out no other message of a group while one is worked on"),
            "{said}"
        );
        assert!(said.ends_with("give a standard queue"), "{said}");
    }

    #[test]
    fn each_bound_is_held() {
        for (flag, bad) in [
            ("--on", "spot"),
            ("--on", "spot=ready"),
            ("--health-issue", "AWS_EC2_A_FAULT"),
            ("--health-issue", "AWS_EC2_A_FAULT=ignore"),
            ("--health-issue", "AWS_EC2_A_FAULT=drain,AWS_EC2_A_FAULT=cordon"),
            ("--health-issue", "degraded=drain"),
            ("--drain-timeout", "weather=1m"),
            ("--drain-timeout", "spot=soon"),
            ("--delay", "10s"),
            ("--hold", "never"),
            ("--hold", "before-drain,before-completion"),
            ("--hold", "spot=both"),
            ("--hold", "before-drain,spot=before-completion"),
            ("--wave", "zone"),
            ("--wave", "zone=0"),
            ("--wave", "zone=all"),
            ("--wave", "a b=1"),
            ("--wave", "zone=1,zone=2"),
            ("--zonal-shift", "cluster"),
            ("--zonal-shift", "any,arn:aws:eks:eu-west-1:1:cluster/a"),
            ("--when", "2h-before"),
            ("--when", "spot=2h-before"),
            ("--when", "scheduled-change=2h"),
            ("--when", "scheduled-change=31d-before"),
            ("--when", "scheduled-change=now,scheduled-change=1h-before"),
            ("--delay", "spot=0s"),
            ("--complete-after", "0s"),
            ("--uncordon-after", "soon"),
            ("--taint", "going"),
            ("--startup-taint", "*"),
            ("--startup-taint", "*/not-ready"),
            ("--startup-taint", "a b"),
            ("--priority-tier", "high"),
            ("--priority-tier", "2147483648"),
            ("--priority-tier", "10000:20"),
            ("--priority-tier", "0,10000,0"),
            ("--keep-cordon-while", "a b=c"),
            ("--node-selector", "a in (b"),
            ("--pod-selector", "a b"),
            ("--on", "asg-launch=drain"),
            ("--queue-url", "ebbtide"),
            ("--queue-url", "https://sqs.eu-west-1.amazonaws.com/"),
            ("--drain-timeout", "49h"),
            ("--drain-timeout", "0s"),
            ("--drain-timeout", "spot=121s"),
            ("--drain-timeout", "state-change=1d"),
            ("--pod-grace", "500ms"),
            ("--heartbeat", "4s"),
            ("--heartbeat", "2h"),
            ("--registration-grace", "0s"),
            ("--admin-address", "8080"),
            ("--log", "a=b=c"),
            ("--log", "ebbtide=loud"),
            ("--queue-url", ""),
        ] {
            assert_eq!(problems(&[flag, bad]), [flag], "{bad}");
        }
        assert_eq!(problems(&["--on", "spot=drain", "--on", "spot=ignore"]), ["--on"]);
        assert_eq!(problems(&["--drain-timeout", "1m", "--drain-timeout", "2m"]), ["--drain-timeout"]);
        assert_eq!(problems(&["--taint", "a=b:NoSchedule,a=c:NoSchedule"]), ["--taint"]);
        let tiers = |flags: &[&str]| settings(flags).unwrap().selection_rules.tiers;
        assert_eq!(
            tiers(&["--priority-tier", "1000000,0", "--priority-tier", "-10"]),
            Tiers::from(vec![-10, 0, 1_000_000])
        );
        assert_eq!(problems(&["--taint", "node.kubernetes.io/unschedulable:NoSchedule"]), ["--taint"]);
        for idle in [
            ["--delay", "rebalance=5m"],
            ["--delay", "asg-launch=5m"],
            ["--hold", "rebalance=before-drain"],
            ["--hold", "asg-launch=before-drain"],
            ["--startup-taint", "cni"],
            ["--on-failed-launch", "abandon"],
        ] {
            assert_eq!(problems(&idle), [idle[0]], "{idle:?}");
        }
        let held = |flags: &[&str], kind| settings(flags).unwrap().policy().waits.hold.of(kind);
        let flags = ["--hold", "both,spot=none"];
        assert_eq!(held(&flags, NoticeKind::AsgTerminate), Holds { before_drain: true, before_completion: true });
        assert_eq!(held(&flags, NoticeKind::StateChange), Holds { before_drain: true, before_completion: false });
        assert_eq!(held(&flags, NoticeKind::Spot), Holds::default());
        let waves = settings(&["--wave", "zone=1, example.com/pool=10%"]).unwrap().policy().waits.waves.clone();
        let waves: Vec<_> = waves.iter().map(|wave| (&*wave.label, wave.at_most)).collect();
        assert_eq!(waves, [("zone", AtMost::Number(1)), ("example.com/pool", AtMost::Percent(10))]);
        let undrained = ["--on", "asg-terminate=cordon,scheduled-change=cordon", "--wave", "zone=1"];
        assert_eq!(problems(&undrained), ["--wave"], "no other kind waits");
        for (flag, value) in
            [("--hold", "before-completion"), ("--wait-for-volumes", "2m"), ("--wait-for-load-balancers", "wait")]
        {
            assert_eq!(problems(&["--on", "asg-terminate=cordon", flag, value]), [flag]);
        }
    }

    #[test]
    fn a_flag_that_needs_another_is_refused_without_it() {
        assert_eq!(problems(&["--collect-leases"]), ["--collect-leases"]);
        assert_eq!(problems(&["--collect-nodes"]), ["--collect-nodes"]);
        let flag = "--ec2-poll-interval";
        for wrong in ["59s", "2h", "0s", "often"] {
            assert_eq!(problems(&[flag, wrong]), [flag], "{wrong}");
        }
        let ignored = ["--on", "scheduled-change=ignore,capacity-reservation=ignore,status-check=ignore", flag, "5m"];
        assert_eq!(problems(&ignored), [flag]);
        assert_eq!(settings(&[flag, "5m"]).unwrap().ec2_poll_interval, Some(Duration::from_mins(5)));
        assert_eq!(problems(&["--collect-leases", "--pod-namespace", "kube-system"]), ["--pod-name"]);
        assert_eq!(problems(&["--on", "asg-terminate=cordon", "--complete-after", "1m"]), ["--complete-after"]);
        assert_eq!(problems(&["--on", "state-change=report", "--out-of-service-taint"]), ["--out-of-service-taint"]);
        assert_eq!(problems(&["--at-timeout", "delete", "--at-deadline", "leave"]), ["--at-timeout"]);
        assert_eq!(problems(&["--at-timeout", "rebalance=delete"]), ["--at-timeout"], "it is only cordoned");
    }

    #[test]
    fn the_values_of_a_pool_are_checked_as_those_for_all_nodes() {
        let pool = |own: &str| format!("--pool=gpu;node-selector=gpu;{own}");
        let said = |flags: &[&str]| settings(flags).map(drop).map_err(|error| error.to_string());
        for (own, why) in [
            ("drain-timeout=49h", "gpu: --drain-timeout: "),
            ("pod-grace=x", "gpu: --pod-grace: "),
            ("on=spot=ready", "gpu: --on: \"spot=ready\" is not possible"),
            ("on=spot=report;delay=spot=1m", "gpu: --delay: has no effect without --on spot=drain"),
            ("at-deadline=leave;at-timeout=delete", "gpu: --at-timeout: has no effect without --at-deadline delete"),
            ("on=status-check=drain", "gpu: --on: status-check needs the EC2 poll"),
        ] {
            let problem = said(&[&pool(own)]).unwrap_err();
            assert!(problem.starts_with(&format!("--pool: {why}")) && !problem.contains('\n'), "{own}: {problem}");
        }
        // Of what is given for all Nodes, a pool may make no use, or the only one.
        assert_eq!(said(&["--delay", "spot=1m", &pool("on=spot=report")]), Ok(()));
        assert_eq!(said(&["--startup-taint", "cni", &pool("on=asg-launch=ready")]), Ok(()));
        assert_eq!(said(&["--drain-timeout", "49h", &pool("drain-timeout=1h")]).unwrap_err().lines().count(), 1);
        assert_eq!(problems(&[&pool("at-deadline=leave"), &pool("pod-grace=1s")]), ["--pool"], "the same name");
        let settings = settings(&["--drain-timeout", "10m", &pool("drain-timeout=spot=1m;wave=zone=1")]).unwrap();
        let gpu = settings.policies.of(Some("gpu"));
        let timeouts = [NoticeKind::Spot, NoticeKind::Rebalance].map(|kind| gpu.drain_timeout.of(kind));
        assert_eq!(timeouts, [Some(Duration::from_mins(1)), Some(Duration::from_mins(10))]);
        assert!(gpu.waits.own_waves && settings.policy().waits.waves.is_empty());
        assert_eq!(settings.labels(), [Box::<str>::from("zone")]);
    }
}
