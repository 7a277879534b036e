//! The flag of the pools: each names its Nodes, and the flags that differ for them.

use super::Run;
use crate::cli::text::did_you_mean;
use crate::pipeline::node::NodePool;
use crate::pipeline::node::label;
use clap::builder::Resettable;
use clap::{ArgAction, Args, Command, FromArgMatches};

/// The item of a pool that has the labels of its Nodes.
const SELECTOR: &str = "node-selector";

/// Maximum length of a name: records on Nodes have it.
const MAX_NAME: usize = 63;

/// A pool of Nodes, and the flags that differ for them.
#[derive(Clone, Debug)]
pub struct PoolFlag {
    /// The pool.
    pub pool: NodePool,
    /// The names of its flags with their values.
    items: Vec<(String, String)>,
}

impl PoolFlag {
    /// The flags that a pool may have for itself.
    pub const POOLED: [&'static str; 14] = [
        "on",
        "drain-timeout",
        "delay",
        "hold",
        "wave",
        "when",
        "at-deadline",
        "at-timeout",
        "pod-grace",
        "surge",
        "uncordon-after",
        "on-failed-drain",
        "on-uncordon",
        "complete-after",
    ];

    /// Whether the pool has this flag for itself.
    #[must_use]
    pub fn has(&self, flag: &str) -> bool {
        flag.strip_prefix("--").is_some_and(|flag| self.items.iter().any(|(name, _)| name == flag))
    }
}

/// Parses a pool: its name and `FLAG=VALUE`, all separated by semicolons.
///
/// # Errors
/// The item that can't be used.
pub fn pool(text: &str) -> Result<PoolFlag, String> {
    let mut items = text.split(';').map(str::trim);
    let name = items.next().unwrap_or_default();
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(allowed) {
        return Err(format!(
            "\"{name}\" is no name of a pool; write NAME;node-selector=SELECTOR;FLAG=VALUE, with a name of letters, digits, \"-\", \"_\" and \".\""
        ));
    }
    let (mut selector, mut own) = (None, Vec::new());
    for item in items.filter(|item| !item.is_empty()) {
        let (flag, value) = item.split_once('=').map_or((item, ""), |(flag, value)| (flag.trim(), value.trim()));
        let flag = flag.trim_start_matches('-');
        if flag != SELECTOR && !PoolFlag::POOLED.contains(&flag) {
            let near = did_you_mean(flag, &PoolFlag::POOLED);
            return Err(format!(
                "{name}: \"{flag}\" can't differ between pools; possible are {SELECTOR}, {}{near}",
                PoolFlag::POOLED.join(", ")
            ));
        }
        if value.is_empty() {
            return Err(format!("{name}: {flag} has no value; write {flag}=VALUE, or remove it"));
        }
        if own.iter().any(|(known, _)| known == flag) || flag == SELECTOR && selector.is_some() {
            return Err(format!("{name}: {flag} is given twice; give all its values in one, separated by commas"));
        }
        if flag == SELECTOR {
            selector = Some(label::selector(value).map_err(|error| format!("{name}: {SELECTOR}: {error}"))?);
        } else {
            own.push((flag.to_owned(), value.to_owned()));
        }
    }
    let selector = selector.ok_or_else(|| {
        format!("{name}: has no {SELECTOR}; write the labels of its Nodes, such as {name};node-selector=pool={name}")
    })?;
    Ok(PoolFlag { pool: NodePool { name: name.into(), selector }, items: own })
}

impl Run {
    /// Returns the flags as they are for the Nodes of a pool: what it has for itself replaces what is given for all. Of values for a kind or
    /// a code, those of other kinds and codes stay, unless the pool has one for all kinds.
    ///
    /// # Errors
    /// The first value that a flag refuses.
    pub fn of_pool(&self, pool: &PoolFlag) -> Result<Self, clap::Error> {
        // Only what the pool has is read: no variable, no default.
        let bare = |arg: clap::Arg| {
            let arg = arg.env(Resettable::Reset).default_value(Resettable::Reset);
            if matches!(arg.get_action(), ArgAction::SetTrue) { arg.action(ArgAction::Set) } else { arg }
        };
        let command = Self::augment_args(Command::new("ebbtide run").no_binary_name(true)).mut_args(bare);
        let mut matches =
            command.try_get_matches_from(pool.items.iter().map(|(flag, value)| format!("--{flag}={value}")))?;
        let mut own = self.clone();
        own.update_from_arg_matches_mut(&mut matches)?;
        for (of_pool, of_all) in [
            (&mut own.on, &self.on),
            (&mut own.drain_timeout, &self.drain_timeout),
            (&mut own.at_timeout, &self.at_timeout),
            (&mut own.waits.delay, &self.waits.delay),
            (&mut own.waits.hold, &self.waits.hold),
        ] {
            keep_others(of_pool, of_all);
        }
        Ok(own)
    }
}

/// Adds the values that are given for all pools, and for which the pool has none: neither for their key, nor for all.
fn keep_others(of_pool: &mut Vec<String>, of_all: &[String]) {
    if of_pool.iter().any(|value| !value.contains('=')) {
        return;
    }
    let key = |value: &str| value.split_once('=').map(|(key, _)| key.to_owned());
    let keys: Vec<_> = of_pool.iter().map(|value| key(value)).collect();
    of_pool.extend(of_all.iter().filter(|value| !keys.contains(&key(value))).cloned());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::flags::{Cli, Command as Chosen};

    fn run(args: &[&str]) -> Run {
        let Chosen::Run(run) = Cli::of([&["ebbtide", "run"], args].concat()).unwrap().command else { panic!() };
        run
    }

    #[test]
    fn a_pool_has_what_differs_and_the_rest_of_all() {
        let flags = run(&[
            "--on=rebalance=drain,spot=cordon",
            "--drain-timeout=20m,spot=90s",
            "--delay=rebalance=2m",
            "--dry-run",
            "--pod-grace=10s",
            "--pool=gpu; node-selector=gpu in (a, b),!old; on=spot=drain; drain-timeout=asg-terminate=1h; at-deadline=leave",
            "--pool=web;node-selector=tier=web;drain-timeout=5m",
        ]);
        assert_eq!(flags.pool.len(), 2);
        let of = |n: usize| flags.of_pool(&flags.pool[n]).unwrap();
        let (gpu, web) = (of(0), of(1));
        assert_eq!(gpu.on, ["spot=drain", "rebalance=drain"]);
        assert_eq!(gpu.drain_timeout, ["asg-terminate=1h", "20m", "spot=90s"]);
        assert_eq!(format!("{:?} {:?}", gpu.at_deadline, web.at_deadline), "Leave Delete");
        assert_eq!((web.on, web.drain_timeout), (flags.on.clone(), vec!["5m".to_owned()]));
        assert!(gpu.dry_run && web.dry_run && gpu.check_at_start);
        assert_eq!((gpu.pod_grace, gpu.waits.delay), (flags.pod_grace, flags.waits.delay.clone()));
    }

    #[test]
    fn what_a_pool_can_t_have_is_refused_with_what_to_write() {
        for (text, expected) in [
            ("", "is no name of a pool"),
            ("a b;node-selector=c", "is no name of a pool"),
            ("gpu", "gpu: has no node-selector; write"),
            ("gpu;node-selector=", "node-selector has no value"),
            ("gpu;node-selector=a in (b", "leaves a parenthesis open"),
            ("gpu;node-selector=a;max-draining=3", "\"max-draining\" can't differ between pools"),
            ("gpu;node-selector=a;drain-timout=3m", "did you mean drain-timeout"),
            ("gpu;node-selector=a;on=spot=drain;on=rebalance=drain", "on is given twice"),
        ] {
            let error = pool(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let flags = run(&["--pool=gpu;node-selector=a;pod-grace=x"]);
        assert!(flags.of_pool(&flags.pool[0]).is_err());
    }
}
