//! Drains that can't end: the cost of holding them, and a check that their heartbeats stay on time.

use crate::LATENCY;
use crate::harness::{Replica, Stage, instance, node, s};
use crate::meter::{Cost, Meter, growth_since, heap};
use ebbtide_sim::aws::{Action, HookSpec};
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::{Limit, Pod};
use ebbtide_sim::messages::{self, Wrapping};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::sleep;

/// What keeps the drains from ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The pods take this long to stop.
    Pods,
    /// A budget refuses the eviction of every pod.
    Budget,
}

impl By {
    pub fn words(self) -> &'static str {
        match self {
            Self::Pods => "pods that stop slowly",
            Self::Budget => "a budget",
        }
    }
}

/// Result of holding drains.
pub struct Held {
    pub cost: Cost,
    /// Heap growth in bytes per drain since before the notices, and when it was read. Includes the simulation, except for its record of
    /// calls and its history.
    pub heap_at: Vec<(Duration, f64)>,
    pub late: Late,
    /// Calls made while the drains were held.
    pub calls: BTreeMap<String, usize>,
    /// Time from the end of the hold to the deletion of the last message.
    pub ended_after: Duration,
}

/// Duration of the hold.
const HELD: Duration = Duration::from_hours(1);

/// Heartbeat timeout of a hook; a heartbeat is due at half of it.
const TIMEOUT: Duration = Duration::from_mins(5);
const DUE: Duration = Duration::from_secs(150);

/// Maximum time that jitter sends a heartbeat early: a tenth of `DUE`.
const WINDOW: Duration = Duration::from_secs(15);

/// Time that a slow pod takes to stop: longer than the hold.
const STOPS_IN: Duration = Duration::from_mins(65);

/// Tolerance for a heartbeat's arrival: the duration of calls, and their wait for each other at the gate.
const SLACK: Duration = Duration::from_secs(2);

/// Number of groups, each with one hook.
const GROUPS: usize = 10;

/// Arrival of heartbeats relative to their due times.
pub struct Late {
    pub beats: usize,
    /// Seconds from the end of its window, for each heartbeat; negative within the window.
    after: Vec<f64>,
}

impl Late {
    /// Fractions of the time between two heartbeats, the first counted from the notice.
    fn of(actions: &[Action], until: Duration) -> Self {
        let mut after = Vec::new();
        for action in actions {
            let mut last = action.begun;
            for &beat in action.beats.iter().take_while(|beat| **beat <= until) {
                after.push((beat - last).as_secs_f64() - DUE.as_secs_f64());
                last = beat;
            }
        }
        after.sort_by(f64::total_cmp);
        Self { beats: after.len(), after }
    }

    /// Returns p50, p99 and the maximum; 0 for heartbeats in time.
    pub fn percentiles(&self) -> [f64; 3] {
        let last = self.after.len().saturating_sub(1);
        [last / 2, last * 99 / 100, last].map(|place| self.after.get(place).copied().unwrap_or_default().max(0.0))
    }

    /// Jitter draws each heartbeat's time evenly from its window, so the distance of the mean from the window's middle is the mean delay.
    pub fn mean_against_middle(&self) -> f64 {
        self.after.iter().sum::<f64>() / self.after.len() as f64 + WINDOW.as_secs_f64() / 2.0
    }
}

fn stage(by: By, drains: usize) -> Stage {
    let stage = Stage::new(drains, 0);
    for n in 0..drains {
        let pod = Pod::on(&node(n)).named(&format!("held-{n}"));
        stage.world.kube.add_pod(match by {
            By::Pods => pod.grace(STOPS_IN * 2).stops_in(STOPS_IN),
            By::Budget => pod.labels([("app", "held")]).stops_in(s(2)),
        });
    }
    if by == By::Budget {
        stage.world.kube.add_budget("default", "held", [("app", "held")], Limit::MaxUnavailable(0));
    }
    for group in 0..GROUPS {
        stage.world.aws.autoscaling.add_hook(&format!("group-{group}"), "hook", HookSpec::terminating(TIMEOUT));
    }
    stage.world.faults.add(Rule::on("*", Fault::Slow(LATENCY)));
    stage
}

async fn start(stage: &Stage) -> Replica {
    let replica = stage.start(&["--drain-timeout", "asg-terminate=4h"]).await;
    let receives = stage.calls("ReceiveMessage");
    stage.until("a receive", s(60), || stage.calls("ReceiveMessage") > receives).await;
    replica
}

fn send(stage: &Stage, drains: usize) {
    for n in 0..drains {
        let (group, instance) = (format!("group-{}", n % GROUPS), instance(n));
        let token = stage.world.aws.autoscaling.begin(&group, "hook", &instance);
        let at = stage.world.clock.now();
        let body = messages::lifecycle(Wrapping::Event, true, (&group, "hook", &token), &instance, at);
        stage.world.aws.sqs.send(body);
    }
}

/// Clears the simulation's record of calls, and returns its counts.
fn forget(stage: &Stage, counted: &mut BTreeMap<String, usize>) {
    for (operation, count) in stage.world.calls.tally() {
        *counted.entry(operation).or_default() += count;
    }
    stage.world.calls.forget();
    stage.world.kube.compact();
}

/// Holds `drains` drains for an hour, then lets them end.
pub async fn run(by: By, drains: usize) -> Held {
    let stage = stage(by, drains);
    let replica = start(&stage).await;
    let mut calls = BTreeMap::new();
    forget(&stage, &mut calls);
    calls.clear();
    let before = heap();
    send(&stage, drains);
    let begun = stage.world.clock.elapsed();
    let meter = Meter::start();
    let mut heap_at = Vec::new();
    for minute in 1..=HELD.as_secs() / 60 {
        let end = begun + Duration::from_mins(minute);
        sleep(end.saturating_sub(stage.world.clock.elapsed())).await;
        forget(&stage, &mut calls);
        if [10, 60].contains(&minute) {
            heap_at.push((Duration::from_mins(minute), growth_since(before) / drains as f64));
        }
    }
    let cost = meter.stop();
    let until = begun + HELD;
    let late = check_held(&stage, by, drains, &calls, until);
    if by == By::Budget {
        stage.world.kube.remove_budget("default", "held");
    }
    stage.until_handled(s(1800)).await;
    let ended_after = stage.world.clock.elapsed() - until;
    check_ended(&stage, &replica, by, drains).await;
    Held { cost, heap_at, late, calls, ended_after }
}

fn check_held(stage: &Stage, by: By, drains: usize, calls: &BTreeMap<String, usize>, until: Duration) -> Late {
    let sqs = &stage.world.aws.sqs;
    assert_eq!((sqs.visible(), sqs.in_flight()), (0, drains), "every message is kept");
    let ids: BTreeSet<_> = sqs.receive_log().into_iter().map(|received| received.id).collect();
    assert_eq!((sqs.receive_log().len(), ids.len()), (drains, drains), "and none was received twice");

    let count = |operation: &str| calls.get(operation).copied().unwrap_or_default();
    assert_eq!((count("patch nodes"), count("list pods")), (drains, drains));
    assert_eq!(count("DescribeLifecycleHooks"), GROUPS.min(drains));
    let tries = count("create pods/eviction");
    match by {
        By::Pods => assert_eq!(tries, drains, "a pod that goes is not told again"),
        // Every 1 to 5 s.
        By::Budget => assert!((720..=1800).contains(&(tries / drains)), "{tries}"),
    }

    let actions = stage.world.aws.autoscaling.actions();
    let late = Late::of(&actions, until);
    assert_eq!((actions.len(), late.beats), (drains, count("RecordLifecycleActionHeartbeat")));
    for action in &actions {
        let mut last = action.begun;
        for &beat in &action.beats {
            let apart = beat - last;
            assert!(apart + SLACK > DUE - WINDOW && apart < DUE + SLACK, "{apart:?} between beats: {action:?}");
            last = beat;
        }
        assert!(until - last < DUE + SLACK, "a beat is missing: {action:?}");
    }
    late
}

async fn check_ended(stage: &Stage, replica: &Replica, by: By, drains: usize) {
    for action in stage.world.aws.autoscaling.actions() {
        stage.completed_once(&action.token);
    }
    assert_eq!(stage.world.aws.sqs.deleted().len(), drains);
    assert_eq!(stage.world.aws.sqs.receive_log().len(), drains, "none was received twice");
    let evictions = stage.world.kube.evictions();
    let pods: BTreeSet<_> = evictions.iter().map(|evicted| &evicted.uid).collect();
    assert_eq!((evictions.len(), pods.len()), (drains, drains), "each pod is evicted once, by {}", by.words());
    replica.all_ended("asg-terminate", &[("drained", drains)]);
    stage.rest(&[replica]).await;
}

/// Returns the heap bytes that the service holds per drain: the bytes freed by dropping it mid-drain, less those freed by dropping an
/// idle service.
pub async fn memory(by: By, drains: usize) -> f64 {
    let stage = stage(by, drains);
    let idle = given_back(&stage, start(&stage).await).await;
    let replica = start(&stage).await;
    send(&stage, drains);
    sleep(Duration::from_mins(10)).await;
    assert_eq!(stage.world.aws.sqs.in_flight(), drains);
    (given_back(&stage, replica).await - idle) / drains as f64
}

async fn given_back(stage: &Stage, replica: Replica) -> f64 {
    stage.world.calls.forget();
    stage.world.kube.compact();
    let before = heap();
    replica.kill().await;
    // The runtime drops aborted tasks when it next runs them.
    sleep(Duration::from_millis(1)).await;
    -growth_since(before)
}
