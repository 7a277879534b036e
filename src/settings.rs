//! What the user decided, validated once. Units live in types, rules across flags in one place, and all errors are shown together.

use crate::cli::Run;
use crate::event::Kind;
use crate::interruption::{Action, Actions, Heartbeats, Policy};
use crate::node::ManagedTag;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

/// The settings of `ebbtide run`.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The queue.
    pub queue_url: String,
    /// Where probes and metrics are served.
    pub admin_address: SocketAddr,
    /// What notices lead to.
    pub policy: Policy,
    /// A grace period for every pod, instead of its own.
    pub pod_grace: Option<Duration>,
    /// The tag that marks instances as managed.
    pub managed_tag: ManagedTag,
    /// Namespace and name of the pod that this process runs in.
    pub own_pod: Option<(String, String)>,
}

/// Everything that is wrong with the settings, each with what to do.
#[derive(Debug, PartialEq, Eq)]
pub struct Invalid(pub Vec<Problem>);

/// One thing that is wrong.
#[derive(Debug, PartialEq, Eq)]
pub struct Problem {
    /// The flag it is about.
    pub flag: &'static str,
    /// What is wrong, and what to do.
    pub what: String,
}

impl fmt::Display for Invalid {
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

impl std::error::Error for Invalid {}

/// A lifecycle hook lives 48 h at the longest.
const LONGEST_DRAIN: Duration = Duration::from_hours(48);

/// AWS's shortest heartbeat timeout: an interval must be shorter.
const SHORTEST_HOOK: Duration = Duration::from_secs(30);

/// Kubernetes takes grace periods of any length; one of more than a day is a typing error.
const LONGEST_GRACE: Duration = Duration::from_hours(24);

impl Settings {
    /// Checks the flags, all of them.
    ///
    /// # Errors
    /// Every problem found.
    pub fn from_flags(flags: Run) -> Result<Self, Invalid> {
        let mut problems = Problems::default();
        let queue_url = problems.queue_url(flags.queue_url);
        let admin_address = problems.admin_address(&flags.admin_address);
        let actions = problems.actions(&flags.on);
        let heartbeats = problems.heartbeats(&flags.heartbeat);
        let drain_timeout = problems.duration("--drain-timeout", flags.drain_timeout.as_deref(), LONGEST_DRAIN);
        let pod_grace = problems.duration("--pod-grace", flags.pod_grace.as_deref(), LONGEST_GRACE);
        let registration_grace =
            problems.duration("--registration-grace", Some(&flags.registration_grace), LONGEST_DRAIN);
        let managed_tag = problems.managed_tag(&flags.managed_tag);
        let own_pod = problems.own_pod(flags.pod_namespace, flags.pod_name);
        if !problems.0.is_empty() {
            return Err(Invalid(problems.0));
        }
        let policy = Policy {
            actions,
            drain_timeout,
            heartbeats,
            registration_grace: registration_grace.unwrap_or_default(),
            require_tag: flags.require_tag,
            ignored_hooks: flags.ignore_hook,
            dry_run: flags.dry_run,
        };
        Ok(Self { queue_url, admin_address, policy, pod_grace, managed_tag, own_pod })
    }
}

/// A duration as users write it: `30s`, `5m`, `1h30m`.
///
/// # Errors
/// What is wrong, and how to write it.
pub fn duration(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(duration) if duration.subsec_nanos() == 0 => Ok(duration),
        Ok(_) => Err(format!("\"{text}\" is finer than a second; write whole seconds, such as 30s")),
        Err(_) => Err(format!("\"{text}\" is not a duration; write it as 30s, 5m or 1h30m")),
    }
}

#[derive(Default)]
struct Problems(Vec<Problem>);

impl Problems {
    fn add(&mut self, flag: &'static str, what: impl Into<String>) {
        self.0.push(Problem { flag, what: what.into() });
    }

    fn admin_address(&mut self, text: &str) -> SocketAddr {
        text.parse().unwrap_or_else(|_| {
            self.add(
                "--admin-address",
                format!("\"{text}\" is no address; write IP:PORT, such as 0.0.0.0:8080 or [::]:8080"),
            );
            SocketAddr::from(([0, 0, 0, 0], 0))
        })
    }

    fn queue_url(&mut self, url: Option<String>) -> String {
        let url = url.unwrap_or_default();
        self.check_queue_url(&url);
        url
    }

    fn check_queue_url(&mut self, url: &str) {
        let flag = "--queue-url";
        if url.is_empty() {
            return self.add(flag, "is missing; give the queue's URL, or set EBBTIDE_QUEUE_URL");
        }
        if let Some(arn) = url.strip_prefix("arn:") {
            let parts: Vec<&str> = arn.split(':').collect();
            let hint = match parts.as_slice() {
                [_, "sqs", region, account, name] => {
                    format!("; this queue's is https://sqs.{region}.amazonaws.com/{account}/{name}")
                }
                _ => String::new(),
            };
            return self.add(flag, format!("\"{url}\" is an ARN; the queue's URL is wanted{hint}"));
        }
        let parsed = url.parse::<http::Uri>().ok().filter(|uri| matches!(uri.scheme_str(), Some("http" | "https")));
        match parsed {
            None => self.add(
                flag,
                format!(
                    "\"{url}\" is not a URL; the SQS console shows it, as https://sqs.REGION.amazonaws.com/ACCOUNT/NAME"
                ),
            ),
            Some(uri) if uri.path().trim_matches('/').is_empty() => {
                self.add(flag, format!("\"{url}\" names no queue; its path is /ACCOUNT/NAME"));
            }
            Some(_) => {}
        }
    }

    fn actions(&mut self, flags: &[String]) -> Actions {
        let flag = "--on";
        let mut actions = Actions::default();
        let mut seen = Vec::new();
        for pair in flags {
            let Some((kind, action)) = pair.split_once('=') else {
                self.add(flag, format!("\"{pair}\" is not KIND=ACTION; write for instance spot=drain"));
                continue;
            };
            let Some(kind) = Kind::ALL.into_iter().find(|known| known.as_str() == kind) else {
                let kinds = Kind::ALL.map(Kind::as_str).join(", ");
                self.add(flag, format!("there is no kind \"{kind}\"; the kinds are {kinds}"));
                continue;
            };
            if seen.contains(&kind) {
                self.add(flag, format!("\"{kind}\" is given twice; leave one"));
            }
            seen.push(kind);
            if let Some(action) = self.action(kind, action) {
                actions.set(kind, action);
            }
        }
        actions
    }

    fn action(&mut self, kind: Kind, action: &str) -> Option<Action> {
        let allowed: &[Action] = match kind {
            Kind::AsgLaunch => &[Action::Report, Action::Ignore],
            _ => &[Action::Drain, Action::Cordon, Action::Report, Action::Ignore],
        };
        let found = allowed.iter().copied().find(|known| known.as_str() == action);
        if found.is_none() {
            let names: Vec<_> = allowed.iter().map(|action| action.as_str()).collect();
            let later =
                if (kind, action) == (Kind::AsgLaunch, "ready") { " (ready comes with a later version)" } else { "" };
            self.add(
                "--on",
                format!("\"{kind}={action}\" can't be; for {kind} choose one of {}{later}", names.join(", ")),
            );
        }
        found
    }

    fn heartbeats(&mut self, text: &str) -> Heartbeats {
        let flag = "--heartbeat";
        match text {
            "auto" => Heartbeats::Auto,
            "off" => Heartbeats::Off,
            interval => match duration(interval) {
                Ok(interval) if interval.is_zero() => {
                    self.add(flag, "0 is not an interval; write \"off\" for no heartbeats");
                    Heartbeats::Off
                }
                Ok(interval) if interval >= Duration::from_hours(2) => {
                    self.add(
                        flag,
                        "no lifecycle hook lives for 2 h without a heartbeat; choose a shorter interval, or auto",
                    );
                    Heartbeats::Off
                }
                Ok(interval) => {
                    if interval < Duration::from_secs(5) {
                        let shortest = SHORTEST_HOOK.as_secs();
                        self.add(flag, format!("heartbeats every {interval:?} would be throttled, for all of the account; no hook is shorter than {shortest} s: choose 5s or more, or auto"));
                    }
                    Heartbeats::Every(interval)
                }
                Err(what) => {
                    self.add(flag, format!("{what}; or auto, or off"));
                    Heartbeats::Off
                }
            },
        }
    }

    fn duration(&mut self, flag: &'static str, text: Option<&str>, most: Duration) -> Option<Duration> {
        let text = text?;
        match duration(text) {
            Ok(duration) if duration > most => {
                self.add(flag, format!("{text} is too long; {} is the most", humantime::format_duration(most)));
                None
            }
            Ok(duration) if duration.is_zero() => {
                self.add(flag, "0 is not possible; write at least 1s, or leave the flag out");
                None
            }
            Ok(duration) => Some(duration),
            Err(what) => {
                self.add(flag, what);
                None
            }
        }
    }

    fn managed_tag(&mut self, text: &str) -> ManagedTag {
        let (key, value) = match text.split_once('=') {
            Some((key, value)) => (key, Some(value.to_owned())),
            None => (text, None),
        };
        if key.is_empty() {
            self.add("--managed-tag", format!("\"{text}\" has no key; write KEY or KEY=VALUE"));
        }
        ManagedTag { key: key.to_owned(), value }
    }

    fn own_pod(&mut self, namespace: Option<String>, name: Option<String>) -> Option<(String, String)> {
        match (namespace, name) {
            (Some(namespace), Some(name)) => Some((namespace, name)),
            (None, None) => None,
            (Some(_), None) => {
                self.add("--pod-name", "is missing, though --pod-namespace is given; give both, or neither");
                None
            }
            (None, Some(_)) => {
                self.add("--pod-namespace", "is missing, though --pod-name is given; give both, or neither");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn settings(flags: &[&str]) -> Result<Settings, Invalid> {
        let mut all = vec!["ebbtide", "run"];
        if !flags.contains(&"--queue-url") {
            all.extend(["--queue-url", "https://sqs.eu-west-1.amazonaws.com/123456789012/ebbtide"]);
        }
        all.extend(flags);
        let crate::cli::Command::Run(run) = crate::cli::Cli::try_parse_from(all).unwrap().command;
        Settings::from_flags(run)
    }

    fn problems(flags: &[&str]) -> Vec<&'static str> {
        settings(flags).unwrap_err().0.into_iter().map(|problem| problem.flag).collect()
    }

    #[test]
    fn defaults() {
        let settings = settings(&[]).unwrap();
        let Policy { actions, drain_timeout, heartbeats, registration_grace, require_tag, ignored_hooks, dry_run } =
            settings.policy;
        let on = Kind::ALL.map(|kind| actions.of(kind).as_str());
        assert_eq!(on, ["drain", "ignore", "drain", "cordon", "drain", "drain", "drain"]);
        assert_eq!((drain_timeout, heartbeats, registration_grace), (None, Heartbeats::Auto, Duration::from_secs(30)));
        assert_eq!(ignored_hooks, ["Terminate-LC-Hook", "Launch-LC-Hook"]);
        assert!(!require_tag && !dry_run);
        assert_eq!(settings.admin_address.to_string(), "0.0.0.0:8080");
        let tag = ManagedTag { key: "aws-node-termination-handler/managed".to_owned(), value: None };
        assert_eq!((settings.managed_tag, settings.pod_grace, settings.own_pod), (tag, None, None));
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
            "--pod-grace",
            "45s",
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
        ])
        .unwrap();
        assert_eq!(settings.policy.actions.of(Kind::Rebalance), Action::Drain);
        assert_eq!(settings.policy.actions.of(Kind::AsgLaunch), Action::Report);
        assert_eq!(settings.policy.drain_timeout, Some(Duration::from_mins(10)));
        assert_eq!(settings.policy.heartbeats, Heartbeats::Every(Duration::from_secs(20)));
        assert_eq!(settings.pod_grace, Some(Duration::from_secs(45)));
        assert_eq!(settings.managed_tag, ManagedTag { key: "team".to_owned(), value: Some("blue".to_owned()) });
        assert!(settings.policy.require_tag && settings.policy.dry_run);
        assert_eq!(settings.policy.ignored_hooks, ["theirs"]);
        assert_eq!(settings.own_pod, Some(("kube-system".to_owned(), "ebbtide-1".to_owned())));
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
            ["--queue-url", "--on", "--on", "--heartbeat", "--drain-timeout", "--managed-tag", "--pod-namespace"];
        assert_eq!(problems(&flags), told);
        let text = settings(&flags).unwrap_err().to_string();
        assert!(text.contains("https://sqs.eu-west-1.amazonaws.com/123456789012/ebbtide"), "{text}");
        assert!(text.contains("for spot choose one of drain, cordon, report, ignore"), "{text}");
    }

    #[test]
    fn each_bound_is_held() {
        for (flag, bad) in [
            ("--on", "spot"),
            ("--on", "asg-launch=ready"),
            ("--on", "asg-launch=drain"),
            ("--queue-url", "ebbtide"),
            ("--queue-url", "https://sqs.eu-west-1.amazonaws.com/"),
            ("--drain-timeout", "49h"),
            ("--drain-timeout", "0s"),
            ("--pod-grace", "500ms"),
            ("--heartbeat", "4s"),
            ("--heartbeat", "2h"),
            ("--registration-grace", "0s"),
            ("--admin-address", "8080"),
            ("--queue-url", ""),
        ] {
            assert_eq!(problems(&[flag, bad]), [flag], "{bad}");
        }
        assert_eq!(problems(&["--on", "spot=drain", "--on", "spot=ignore"]), ["--on"]);
    }
}
