//! The service's present and past work, in bounded memory: interruptions with their drains and waits, storms, the last day.
//!
//! [`History`] is a subscriber of facts, and answers with a [`Report`]. An interruption takes 1 kB at most, and all of them
//! [`MAX_BYTES`]: beyond that the oldest that have ended are forgotten. A storm is one entry; those of its interruptions that run are
//! listed until they end. What other replicas act on, and what was done before a restart, the records on the Nodes show.

mod changes;
mod day;
mod entry;
mod failures;
mod merge;
mod records;
pub mod report;
mod state;
pub(super) mod storm;
mod words;

use crate::fact::{Category, Fact, HeartbeatResult, NoticeKind, NoticeRef, Subscriber, Unusual, WatchedResource};
use crate::runtime::clock::Clock;
use crate::telemetry::pools::{PoolKey, Pools};
use entry::{Deadline, Hook, Outcome};
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use report::{Replica, Report};
use state::State;
use std::collections::HashMap;
use std::time::Duration;
use words::Condition;

/// Maximum size of all interruptions, in bytes.
pub const MAX_BYTES: usize = 4 << 20;

/// Maximum number of pools in a report.
const MAX_POOLS: usize = 50;

/// Maximum number of instances with a remembered hook search.
const MAX_UNHOOKED: usize = 1024;

/// The history of one replica.
#[derive(Debug)]
pub struct History {
    clock: Clock,
    replica: Box<str>,
    dry_run: bool,
    started: Timestamp,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    state: State,
    condition: Condition,
    nodes: usize,
    /// Whether the watch of Nodes has failed, and has not listed them again.
    nodes_failing: bool,
    queue: QueueState,
    pools: Pools,
    /// Problems of the search for hooks, by instance, until the notice has ended.
    unhooked: HashMap<Box<str>, String>,
}

/// How the queue is read.
#[derive(Debug, Default)]
struct QueueState {
    failing: Option<Category>,
    /// The oldest message of the last minute: when it was received, and its age then.
    oldest: Option<(Timestamp, Duration)>,
}

/// The part of the history that a report leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// Nothing.
    Ever,
    /// Interruptions and storms that have not changed after this count of changes.
    Change(u64),
}

impl History {
    /// An empty history. `replica` is the name of this process's pod.
    #[must_use]
    pub fn new(clock: Clock, replica: &str, dry_run: bool) -> Self {
        let started = millis(clock.now());
        let inner = Inner {
            state: State::new(started),
            condition: Condition::Starting,
            nodes: 0,
            nodes_failing: false,
            queue: QueueState::default(),
            pools: Pools::default(),
            unhooked: HashMap::new(),
        };
        Self { clock, replica: replica.into(), dry_run, started, inner: Mutex::new(inner) }
    }

    /// Returns the report, and the count of changes that it shows. `held` is the number of messages that the process holds.
    ///
    /// A report since a change that is too long ago is a whole one: see [`History::is_known`].
    #[must_use]
    pub fn report(&self, since: Since, held: usize) -> (Report, u64) {
        let now = millis(self.clock.now());
        let mut inner = self.inner.lock();
        let Inner { state, condition, nodes, nodes_failing, queue, pools, .. } = &mut *inner;
        let oldest = queue.oldest.filter(|(at, _)| now.duration_since(*at) <= SignedDuration::from_mins(1));
        let replica = Replica {
            name: self.replica.to_string(),
            here: true,
            ready: Some(*condition == Condition::Ready),
            started: Some(self.started),
            nodes: Some(*nodes),
            queue: Some(report::Queue {
                held,
                oldest_seconds: oldest.map(|(_, age)| (age.as_secs_f64() * 1000.0).round() / 1000.0),
                failing: queue.failing.map(|category| category.to_string()),
            }),
            silent: None,
        };
        let (interruptions, storms, removed) = state.rows(since, &self.replica, now);
        let report = Report {
            version: report::VERSION,
            time: now,
            program: env!("CARGO_PKG_VERSION").to_owned(),
            dry_run: self.dry_run,
            health: words::health(words::basis(state, *condition, (queue.failing, *nodes_failing), now)),
            replicas: vec![replica],
            interruptions,
            storms,
            day: state.day.report(now),
            pools: pools.most(MAX_POOLS).into_iter().map(pool).collect(),
            removed,
        };
        (report, state.changes.count())
    }

    /// Whether everything that was removed after this count of changes is still known.
    #[must_use]
    pub fn is_known(&self, change: u64) -> bool {
        self.inner.lock().state.changes.knows(change)
    }

    /// Returns the name of this replica.
    #[must_use]
    pub fn replica(&self) -> &str {
        &self.replica
    }

    /// Returns the count of changes.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.inner.lock().state.changes.count()
    }
}

impl Subscriber for History {
    fn note(&self, fact: &Fact<'_>) {
        // Most facts change nothing here, and need no lock.
        if let Fact::KubeCall { .. } | Fact::Eviction { .. } | Fact::AwsCall { result: Ok(()), .. } = fact
            && !matches!(fact, Fact::AwsCall { operation: "ReceiveMessage", .. })
        {
            return;
        }
        let now = millis(self.clock.now());
        self.inner.lock().note(fact, now);
    }
}

impl Inner {
    #[allow(clippy::too_many_lines, reason = "an arm for each fact")]
    fn note(&mut self, fact: &Fact<'_>, now: Timestamp) {
        let state = &mut self.state;
        match *fact {
            // The service.
            Fact::Ready => self.change_condition(Condition::Ready),
            Fact::ShutdownBegun { .. } => self.change_condition(Condition::Stopping),
            Fact::NodesSynced { nodes } => {
                (self.nodes, self.nodes_failing) = (nodes, false);
                state.changes.add();
            }
            Fact::NodesKnown { nodes } => self.nodes = nodes,
            Fact::WatchFailed { resource: WatchedResource::Nodes, .. } => {
                self.nodes_failing = true;
                state.changes.add();
            }
            Fact::ReceiveFailed { category, .. } => self.queue.failing = Some(category),
            Fact::AwsCall { operation: "ReceiveMessage", result: Ok(()), .. } => self.queue.failing = None,
            Fact::MessageReceived { age: Some(age), .. } => {
                let older = self
                    .queue
                    .oldest
                    .filter(|(at, oldest)| now.duration_since(*at) <= SignedDuration::from_mins(1) && *oldest > age);
                if older.is_none() {
                    self.queue.oldest = Some((now, age));
                }
            }

            // Notices.
            Fact::NoticeBegun { about, action, until, hard, again, pool } => {
                if about.kind != NoticeKind::AsgLaunch && !again {
                    self.pools.count(about.kind, pool);
                }
                let deadline = until.map(|until| Deadline { at: after(now, until), hard });
                state.begins(&about, action, deadline, now);
                if let Some(problem) = known(&self.unhooked, &about) {
                    state.change(&about, |entry| entry.fails(problem));
                }
            }
            Fact::NoticeJoined { about } => state.joins(&about),
            Fact::NoticeEnded { about, outcome, took, waited } => {
                if about.kind == NoticeKind::AsgTerminate {
                    self.unhooked.remove(about.instance);
                }
                let since = now.checked_sub(took).unwrap_or(now);
                state.ends(&about, outcome, waited, (since, now));
            }
            Fact::NodeRecorded { on, notices, blocked } => {
                if notices.is_empty() {
                    self.unhooked.remove(on.instance);
                }
                state.is_recorded(&on, (notices, blocked), now);
            }
            Fact::NoticeUnusual { about, why: Unusual::NotConfirmed, .. } => state.change(&about, |entry| {
                entry.is_denied = true;
                entry.fails(&"AWS does not confirm it");
            }),
            Fact::NodeCordoned { about, .. } => state.change(&about, |entry| {
                entry.names_node(about.node);
                (entry.problem, entry.is_denied) = (None, false);
                if let Some(problem) = known(&self.unhooked, &about) {
                    entry.fails(problem);
                }
            }),
            Fact::ConfirmationFailed { about, error, .. } => {
                state.change(&about, |entry| entry.fails(&format_args!("AWS can't be asked to confirm it: {error}")));
            }
            Fact::CordonFailed { about, error, .. } => {
                state.change(&about, |entry| entry.fails(&format_args!("the cordon fails: {error}")));
            }
            Fact::CordonForgone { about } => {
                state.change(&about, |entry| entry.fails(&"pods are evicted without a cordon, which still fails"));
            }
            Fact::WaitBegun { about, wait, reason, at_most, .. }
            | Fact::WaitChanged { about, wait, reason, at_most } => {
                state.change(&about, |entry| {
                    entry.names_node(about.node);
                    entry.waits(wait, reason, now, after(now, at_most));
                });
            }
            Fact::WaitEnded { about, wait, .. } | Fact::WaitAbandoned { about, wait, .. } => {
                state.change(&about, |entry| entry.waits_no_more(wait));
            }

            // Drains.
            Fact::DrainBegun { on, pods, left_alone, until, hard } => {
                let deadline = Deadline { at: after(now, until), hard };
                state.drain_begins(&on, entry::Drain::new(&on, now, deadline, pods, left_alone));
            }
            Fact::DrainProgress { on, pods, gone } => {
                state.change_drain(&on, |drain| (drain.pods, drain.gone) = (pods, gone));
            }
            Fact::DrainDeadlineMoved { on, until, hard } => {
                state.change_drain(&on, |drain| drain.deadline = Deadline { at: after(now, until), hard });
            }
            Fact::PodBlocked { on, pod, by, .. } => state.change_drain(&on, |drain| drain.holds(&pod, by, now)),
            Fact::PodUnblocked { on, pod } => state.change_drain(&on, |drain| drain.frees(&pod)),
            Fact::DrainBlocked { on, .. } => state.change_drain(&on, |drain| drain.is_blocked = true),
            Fact::DrainUnblocked { on } => state.change_drain(&on, |drain| drain.is_blocked = false),
            Fact::DrainRetried { on, step, error, .. } => state.change_all(&on, |entry| {
                entry.fails(&format_args!("{step} fails: {error}"));
            }),
            Fact::DrainEnded { on, outcome, gone, report, .. } => {
                state.change_drain(&on, |drain| {
                    drain.gone = gone;
                    drain.ends(Outcome::Of(outcome), report);
                });
            }
            Fact::DrainAbandoned { on } => state.change_drain(&on, |drain| drain.ends(Outcome::Abandoned, &"")),

            // Lifecycle hooks.
            Fact::HookUnknown { about, error } => {
                state.change(&about, |entry| entry.fails(&format_args!("the hook's timeout is unknown: {error}")));
            }
            Fact::HookSearchFailed { about, error } => {
                self.is_without_hook(&about, format!("the lifecycle hook can't be searched: {error}"));
            }
            Fact::HookNotFound { why, .. } if why.is_usual() => {}
            Fact::HookNotFound { about, hook, why } => {
                self.is_without_hook(&about, format!("no lifecycle hook {hook} is completed: {why}"));
            }
            Fact::Heartbeat { about, result, error } => state.change(&about, |entry| {
                entry.beats(result, now);
                if let (HeartbeatResult::Failed(category), error) = (result, error) {
                    let why: &dyn std::fmt::Display = error.unwrap_or(&category);
                    entry.fails(&format_args!("a heartbeat failed: {why}"));
                }
            }),
            Fact::HookCompleted { about, result } => state.change(&about, |entry| {
                entry.hook = Some(Hook::Completed(result));
                entry.problem = None;
            }),
            Fact::HookLeft { about } | Fact::HookUnproven { about } => {
                state.change(&about, |entry| entry.hook = Some(Hook::Left));
            }
            Fact::CompletionRetried { about, error, .. } => {
                state.change(&about, |entry| entry.fails(&format_args!("completing the hook fails: {error}")));
            }
            Fact::CompletionFailed { about, error } => state.change(&about, |entry| {
                entry.hook = Some(Hook::Failed);
                entry.fails(&format_args!("the hook could not be completed: {error}"));
            }),
            _ => {}
        }
    }

    /// Notes the result of the search for a hook, even before the work that continues without it begins.
    fn is_without_hook(&mut self, about: &NoticeRef<'_>, problem: String) {
        self.state.change(about, |entry| entry.fails(&problem));
        if self.unhooked.len() < MAX_UNHOOKED {
            self.unhooked.insert(about.instance.into(), problem);
        }
    }

    fn change_condition(&mut self, condition: Condition) {
        self.condition = condition;
        self.state.changes.add();
    }
}

fn known<'a>(unhooked: &'a HashMap<Box<str>, String>, about: &NoticeRef<'_>) -> Option<&'a String> {
    unhooked.get(about.instance).filter(|_| about.kind == NoticeKind::AsgTerminate)
}

fn pool((key, interruptions): (&PoolKey, u64)) -> report::Pool {
    report::Pool {
        kind: key.kind.to_string(),
        instance_type: key.instance_type.to_string(),
        zone: key.zone.to_string(),
        group: key.group.to_string(),
        interruptions,
    }
}

/// Returns the time in whole milliseconds.
fn millis(at: Timestamp) -> Timestamp {
    Timestamp::from_millisecond(at.as_millisecond()).unwrap_or(at)
}

fn after(now: Timestamp, time: Duration) -> Timestamp {
    now.checked_add(time).map_or(now, millis)
}

#[cfg(test)]
mod tests;
