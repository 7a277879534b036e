//! The values that flags take: parsed into the types that their users have, with the remedy for those that can't be used.

use crate::pipeline::event::NoticeKind;
use crate::pipeline::interruption::{AtMost, DrainLimit, Heartbeats};
use crate::pipeline::node::ManagedTag;
use crate::pipeline::node::label::{self, Taint};
use crate::runtime::duration;
use crate::runtime::duration::Words;
use clap::ValueEnum;
use clap::builder::PossibleValue;
use std::convert::Infallible;
use std::fmt::Display;
use std::time::Duration;

/// The reason why a flag refuses a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// The value is empty, which counts as unset, because charts set empty variables.
    #[error("the value is empty; write one, or remove the flag")]
    Empty,
    /// The value has another form, or exceeds a limit. The text has the remedy.
    #[error("{0}")]
    Refused(String),
}

/// A problem of a flag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The flag.
    pub flag: String,
    /// The problem and the remedy.
    pub what: String,
}

/// Returns the parser of a value: without spaces around it, by this function.
pub fn value<T, E: Display>(
    read: impl Fn(&str) -> Result<T, E> + Clone + Send + Sync + 'static,
) -> impl Fn(&str) -> Result<T, ValueError> + Clone + Send + Sync + 'static {
    move |given| match given.trim() {
        "" => Err(ValueError::Empty),
        text => read(text).map_err(|error| ValueError::Refused(error.to_string())),
    }
}

/// Parses a text: any but an empty one.
///
/// # Errors
/// [`ValueError::Empty`].
pub fn text(given: &str) -> Result<String, ValueError> {
    value(|text| Ok::<_, Infallible>(text.to_owned()))(given)
}

/// Maximum duration of a drain: the longest life of a lifecycle hook.
pub const MAX_DRAIN: Duration = Duration::from_hours(48);

/// Bounds of the interval between polls of EC2. Shorter ones would use up the account's rate of calls; after longer ones the end of a
/// Capacity Block, with its ten minutes of warning, would be found late.
const MIN_POLL_INTERVAL: Duration = Duration::from_mins(1);
const MAX_POLL_INTERVAL: Duration = Duration::from_hours(1);

/// Minimum interval between heartbeats. Shorter ones would exceed the rate limit of the account.
const MIN_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);

/// Minimum heartbeat timeout that AWS allows.
const MIN_HOOK_TIMEOUT: Duration = Duration::from_secs(30);

/// Returns the parser of a duration from one second to `most`.
pub fn up_to(most: Duration) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync + 'static {
    move |text| match zero_up_to(most)(text)? {
        Duration::ZERO => Err("0 is not possible; write at least 1s, or remove the flag".to_owned()),
        duration => Ok(duration),
    }
}

/// Returns the parser of a duration to `most`, which may be 0.
pub fn zero_up_to(most: Duration) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync + 'static {
    move |text| match duration::parse(text).map_err(|error| error.to_string())? {
        duration if duration > most => Err(format!("{text} is too long; the maximum is {}", Words(most))),
        duration => Ok(duration),
    }
}

/// Parses the interval between polls of EC2.
///
/// # Errors
/// The limit that it exceeds.
pub fn poll_interval(text: &str) -> Result<Duration, String> {
    let interval = zero_up_to(MAX_POLL_INTERVAL)(text)?;
    if interval < MIN_POLL_INTERVAL {
        let (interval, least) = (Words(interval), Words(MIN_POLL_INTERVAL));
        return Err(format!("{interval} is too short for the account's rate of calls; the minimum is {least}"));
    }
    Ok(interval)
}

/// Parses when heartbeats are sent.
///
/// # Errors
/// The limit that an interval exceeds.
pub fn heartbeats(text: &str) -> Result<Heartbeats, String> {
    let interval = match text {
        "auto" => return Ok(Heartbeats::Auto),
        "off" => return Ok(Heartbeats::Off),
        text => duration::parse(text).map_err(|error| format!("{error}; or auto, or off"))?,
    };
    if interval.is_zero() {
        return Err("0 is not an interval; write off for no heartbeats".to_owned());
    }
    if interval >= Duration::from_hours(2) {
        let what = "no lifecycle hook lasts 2 h without a heartbeat; choose a shorter interval, or auto";
        return Err(what.to_owned());
    }
    if interval < MIN_HEARTBEAT_INTERVAL {
        let (hook, shortest) = (MIN_HOOK_TIMEOUT.as_secs(), MIN_HEARTBEAT_INTERVAL.as_secs());
        return Err(format!(
            "AWS would throttle heartbeats every {interval:?}, for the whole account; no hook is shorter than {hook} s: choose {shortest}s or more, or auto"
        ));
    }
    Ok(Heartbeats::Every(interval))
}

/// Parses a number of nodes, or a share of all.
///
/// # Errors
/// How to write one.
pub fn at_most(text: &str) -> Result<AtMost, String> {
    let read = match text.strip_suffix('%') {
        Some(share) => share.parse().ok().filter(|share| (1..=100).contains(share)).map(AtMost::Percent),
        None => text.parse().ok().filter(|number| *number > 0).map(AtMost::Number),
    };
    read.ok_or_else(|| {
        format!("\"{text}\" is no number of nodes; write a number such as 2, or a share from 1% to 100%")
    })
}

/// Parses the limit of drains at the same time, or `none`.
///
/// # Errors
/// How to write one.
pub fn drain_limit(text: &str) -> Result<DrainLimit, String> {
    if text == "none" {
        return Ok(DrainLimit::None);
    }
    at_most(text).map(DrainLimit::Strict).map_err(|error| format!("{error}, or none"))
}

/// Parses the priority of pods.
///
/// # Errors
/// How to write one.
pub fn priority(text: &str) -> Result<i32, String> {
    text.parse().map_err(|_| match text.split_once(':') {
        // As Cluster Autoscaler has it.
        Some((priority, _)) => {
            format!("\"{text}\" is no priority; write {priority} alone: tiers have equal shares of the time")
        }
        None => format!("\"{text}\" is no priority; write a whole number up to {}, such as 10000", i32::MAX),
    })
}

/// Parses a taint that is set with the cordon.
///
/// # Errors
/// The part that is not valid, or whose taint it is.
pub fn taint(text: &str) -> Result<Taint, String> {
    let taint = label::taint(text).map_err(|error| error.to_string())?;
    if taint.key.starts_with("node.kubernetes.io/") {
        let key = taint.key;
        return Err(format!(
            "\"{key}\" is a taint of Kubernetes, which sets and removes it itself; choose another key"
        ));
    }
    Ok(taint)
}

/// Parses the tag of the cluster's instances.
///
/// # Errors
/// The tag, if it has no key.
pub fn managed_tag(text: &str) -> Result<ManagedTag, String> {
    let (key, value) = match text.split_once('=') {
        Some((key, value)) => (key, Some(value.to_owned())),
        None => (text, None),
    };
    if key.is_empty() {
        return Err(format!("\"{text}\" has no key; write KEY or KEY=VALUE"));
    }
    Ok(ManagedTag { key: key.to_owned(), value })
}

/// Parses the name of a cluster.
///
/// # Errors
/// The name, if it is not valid.
pub fn cluster_name(text: &str) -> Result<String, String> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    if text.bytes().all(allowed) {
        Ok(text.to_owned())
    } else {
        Err(format!("\"{text}\" is no cluster's name; write the name alone, such as blue"))
    }
}

impl ValueEnum for NoticeKind {
    fn value_variants<'a>() -> &'a [Self] {
        &Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.as_str()))
    }
}

/// The hooks of EKS managed node groups, which EKS itself completes.
pub const EKS_HOOKS: &str = "Terminate-LC-Hook,Launch-LC-Hook";

/// Signs that another tool works on a node now, not only wants to: of Karpenter, Cluster Autoscaler, the Node Maintenance Operator, the
/// remediations of medik8s, kured with `--annotate-nodes`, Flatcar's update operator, and the Machine Config Operator.
pub const WORK_SIGNS: &str = "karpenter.sh/disrupted,ToBeDeletedByClusterAutoscaler,medik8s.io/drain,medik8s.io/remediation,\
    weave.works/kured-reboot-in-progress,flatcar-linux-update.v1.flatcar-linux.net/reboot-in-progress=true,\
    machineconfiguration.openshift.io/state=Working";

/// The format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Text, for people.
    Text,
    /// One JSON object per line.
    Json,
}
