//! The metrics, for Prometheus. `rows` names the fact that changes each. No label has unbounded values: no names of nodes, pods, groups or messages.
#![allow(
    clippy::expect_used,
    reason = "names and descriptions are fixed: a wrong one is wrong at the first start, whatever the input"
)]

mod blocked;
mod make;
mod zero;

use crate::fact::{DeadlineType, Fact, NoticeKind, TaskKind};
use crate::runtime::task::{TaskOutcome, Tasks};
use crate::telemetry::pools::{PoolKey, Pools};
use blocked::WatchedDrains;
use make::{counter, counters, fractions, gauge, gauges, histograms};
use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{MetricFamily, MetricType};
use prometheus::{
    CounterVec, Encoder, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry, TextEncoder,
};

/// Buckets of calls in seconds: from a fast answer to a long poll.
const CALL_SECONDS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// Buckets of drains in seconds: from an idle node to a long lifecycle hook; a spot notice gives 120 s.
const DRAIN_SECONDS: &[f64] = &[1.0, 5.0, 10.0, 20.0, 30.0, 60.0, 90.0, 120.0, 300.0, 900.0, 3600.0, 14400.0];

/// Buckets of the time from a notice to its cordon in seconds: a second or two, or, after a wait on the queue, a part of a spot notice's 120 s.
const CORDON_SECONDS: &[f64] =
    &[0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0, 75.0, 90.0, 105.0, 120.0, 300.0, 3600.0];

/// Buckets of messages' ages in seconds. A message should be received within a second; an old one waited, or was released before.
const AGE_SECONDS: &[f64] = &[0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 600.0, 3600.0];

/// Buckets of the time left at a drain's end in seconds: nothing, little, or most of a spot notice's two minutes.
const LEFT_SECONDS: &[f64] = &[0.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 90.0, 110.0, 300.0, 3600.0];

/// Number of receives from which a message counts as received often: it comes near to the limit of dead-letter queues.
pub(super) const MIN_OFTEN_RECEIVES: u32 = 5;

/// All metrics.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    pub(super) all: All,
    /// The running drains, and which are blocked.
    drains: WatchedDrains,
    /// The pools that have a series.
    pools: Mutex<Pools>,
    /// Serialises scrapes, which copy the counts of tasks.
    scrape: Mutex<()>,
}

/// The metrics by name.
#[derive(Debug)]
pub(super) struct All {
    pub(super) messages: IntCounterVec,
    pub(super) messages_malformed: IntCounterVec,
    pub(super) messages_ignored: IntCounterVec,
    pub(super) message_age: HistogramVec,
    pub(super) receive_failures: IntCounterVec,
    pub(super) notices: IntCounterVec,
    pub(super) interruptions: IntCounterVec,
    pub(super) notice_duration: HistogramVec,
    pub(super) cordon_delay: HistogramVec,
    pub(super) drain_duration: HistogramVec,
    pub(super) drain_time_left: HistogramVec,
    pub(super) wait_duration: HistogramVec,
    pub(super) evictions: IntCounterVec,
    pub(super) deletions: IntCounterVec,
    pub(super) surges: IntCounterVec,
    pub(super) pods_blocked: IntGauge,
    pub(super) drains_at_risk: IntGaugeVec,
    pub(super) releases: IntCounterVec,
    pub(super) node_refusals: IntCounterVec,
    pub(super) unusual: IntCounterVec,
    pub(super) zonal_shifts: IntCounterVec,
    pub(super) replacements: IntCounterVec,
    pub(super) remedies: IntCounterVec,
    pub(super) repairs_held: IntGaugeVec,
    pub(super) leases_collected: IntCounter,
    pub(super) nodes_collected: IntCounter,
    pub(super) events: IntCounterVec,
    pub(super) notifications: IntCounterVec,
    pub(super) traces: IntCounterVec,
    pub(super) retries: IntCounterVec,
    pub(super) heartbeats: IntCounterVec,
    pub(super) completions: IntCounterVec,
    pub(super) aws_calls: IntCounterVec,
    pub(super) aws_call_duration: HistogramVec,
    pub(super) kube_calls: IntCounterVec,
    pub(super) kube_call_duration: HistogramVec,
    pub(super) watch_failures: IntCounterVec,
    pub(super) checks: IntGaugeVec,
    pub(super) panics: IntCounter,
    pub(super) nodes: IntGauge,
    pub(super) nodes_turn: IntGaugeVec,
    pub(super) clock_ahead: IntGauge,
    pub(super) ready: IntGauge,
    pub(super) tasks: IntGaugeVec,
    pub(super) tasks_started: IntCounterVec,
    pub(super) tasks_ended: IntCounterVec,
    pub(super) runtime_workers: IntGauge,
    pub(super) runtime_alive_tasks: IntGauge,
    pub(super) runtime_queue_depth: IntGauge,
    pub(super) runtime_busy: CounterVec,
    pub(super) build: IntGaugeVec,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Registers every metric, at 0.
    ///
    /// # Panics
    /// When two metrics have one name, or a name is not one: known at the first start, whatever the input.
    #[must_use]
    #[allow(clippy::too_many_lines, reason = "one entry for each metric")]
    pub fn new() -> Self {
        let all = All {
            messages: counters("messages_total", "Messages by outcome.", &["outcome"]),
            messages_malformed: counters("messages_malformed_total", "Messages that can't be read.", &["reason"]),
            messages_ignored: counters("messages_ignored_total", "Messages that need no action.", &["reason"]),
            message_age: histograms(
                "message_age_seconds",
                "Age of messages at their receipt.",
                AGE_SECONDS,
                &["receipt"],
            ),
            receive_failures: counters("receive_failures_total", "Receives that failed.", &["category"]),
            notices: counters("notices_total", "Notices by outcome.", &["kind", "outcome"]),
            interruptions: counters(
                "interruptions_total",
                "Interruptions that began, by the pool of capacity.",
                &["kind", "instance_type", "zone", "group"],
            ),
            notice_duration: histograms(
                "notice_duration_seconds",
                "From the start of a notice to its end.",
                DRAIN_SECONDS,
                &["kind"],
            ),
            cordon_delay: histograms(
                "cordon_delay_seconds",
                "From a notice's time, as AWS wrote it, to the cordon of its node.",
                CORDON_SECONDS,
                &["kind"],
            ),
            drain_duration: histograms(
                "drain_duration_seconds",
                "Duration of drains.",
                DRAIN_SECONDS,
                &["deadline", "outcome"],
            ),
            drain_time_left: histograms(
                "drain_time_left_seconds",
                "Time left at the end of a drain until its deadline.",
                LEFT_SECONDS,
                &["deadline"],
            ),
            wait_duration: histograms(
                "waits_seconds",
                "Waits before and after drains.",
                DRAIN_SECONDS,
                &["wait", "outcome"],
            ),
            evictions: counters("evictions_total", "Answers to evictions.", &["result"]),
            deletions: counters("deletions_total", "Answers to deletions before a hard deadline.", &["result"]),
            surges: counters("surges_total", "Surges of Deployments by outcome.", &["outcome"]),
            pods_blocked: gauge("pods_blocked", "Pods that a disruption budget, or an annotation, holds back now."),
            drains_at_risk: gauges(
                "drains_at_risk",
                "Drains that a pod has blocked for 5 s or longer, with at most half of their time left.",
                &["deadline"],
            ),
            releases: counters("releases_total", "Nodes whose marks were removed.", &["why"]),
            node_refusals: counters(
                "node_refusals_total",
                "Content of Nodes that is ignored, such as foreign taints in the list of entries to remove.",
                &["what"],
            ),
            unusual: counters("unusual_notices_total", "Unusual notices, by reason.", &["reason"]),
            zonal_shifts: counters("zonal_shifts_total", "Events of zonal shifts that count.", &["change"]),
            replacements: counters("replacements_total", "Replacement requests by result.", &["result"]),
            remedies: counters(
                "remedies_total",
                "Ends of repairs requested from AWS, by result.",
                &["remedy", "result"],
            ),
            repairs_held: gauges(
                "repairs_held",
                "Unhealthy nodes whose repair is held back, because too many are unhealthy for the nodes to be the cause.",
                &["kind", "reason"],
            ),
            leases_collected: counter("leases_collected_total", "Leases without a Node that were deleted."),
            nodes_collected: counter(
                "nodes_collected_total",
                "Nodes that were deleted because their instances have ended.",
            ),
            events: counters("events_total", "Kubernetes Events by result.", &["result"]),
            traces: counters("traces_total", "Traces by result.", &["result"]),
            notifications: counters("notifications_total", "Notifications by result.", &["result"]),
            retries: counters("retries_total", "Failures that were retried, by step.", &["step", "category"]),
            heartbeats: counters("heartbeats_total", "Lifecycle heartbeats by answer.", &["result"]),
            completions: counters("completions_total", "Lifecycle completions by answer.", &["result"]),
            aws_calls: counters("aws_calls_total", "Calls to AWS.", &["service", "operation", "outcome"]),
            aws_call_duration: histograms(
                "aws_call_duration_seconds",
                "Duration of calls to AWS.",
                CALL_SECONDS,
                &["service", "operation"],
            ),
            kube_calls: counters("kube_calls_total", "Calls to the API server.", &["verb", "resource", "outcome"]),
            kube_call_duration: histograms(
                "kube_call_duration_seconds",
                "Duration of calls to the API server.",
                CALL_SECONDS,
                &["verb", "resource"],
            ),
            watch_failures: counters("watch_failures_total", "Watches that failed.", &["resource"]),
            checks: gauges("checks", "Checks of the set-up at the start, by result.", &["status"]),
            panics: counter("panics_total", "Tasks that panicked: bugs."),
            nodes: gauge("nodes", "Nodes in the index."),
            nodes_turn: gauges(
                "nodes_turn",
                "Whether this replica handles notices from Nodes. Absent if no replica does.",
                &[],
            ),
            clock_ahead: gauge(
                "clock_ahead_seconds",
                "How far the machine's clock is ahead of AWS's, or without a queue of the API server's; 0 within 5 s.",
            ),
            ready: gauge("ready", "1 while the service does its work."),
            tasks: gauges(
                "tasks",
                "Tasks that live now. At rest all but poller, node-watch, undo, sources, admin, teller, notifier, tracer, collector, admin-connection, status, status-connection and batcher are 0.",
                &["kind"],
            ),
            tasks_started: counters("tasks_started_total", "Tasks that were started.", &["kind"]),
            tasks_ended: counters("tasks_ended_total", "Tasks that ended.", &["kind", "outcome"]),
            runtime_workers: gauge("runtime_workers", "Threads of the tokio runtime."),
            runtime_alive_tasks: gauge(
                "runtime_alive_tasks",
                "Tasks that the tokio runtime holds, those of libraries too.",
            ),
            runtime_queue_depth: gauge(
                "runtime_queue_depth",
                "Tasks that wait for a thread in the runtime's global queue.",
            ),
            runtime_busy: fractions("runtime_busy_seconds_total", "Time the runtime's threads were busy.", &["worker"]),
            build: gauges("build_info", "Always 1; the version is a label.", &["version"]),
        };
        all.build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        all.begin_at_zero();
        let registry = Registry::new();
        for metric in all.collectors() {
            registry.register(metric).expect("metric names must differ");
        }
        // Metrics of the process exist on Linux only.
        #[cfg(target_os = "linux")]
        let _ = registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()));
        Self { registry, all, drains: WatchedDrains::default(), pools: Mutex::default(), scrape: Mutex::default() }
    }

    /// Returns name, type and labels of every metric, including those without a sample.
    #[must_use]
    pub fn described(&self) -> Vec<(String, &'static str, Vec<String>)> {
        let described = |metric: Box<dyn Collector>| {
            let kind = match metric.collect().first().map(MetricFamily::get_field_type) {
                Some(MetricType::COUNTER) => "counter",
                Some(MetricType::GAUGE) => "gauge",
                Some(MetricType::HISTOGRAM) => "histogram",
                _ => "",
            };
            let of = |desc: &Desc| (desc.fq_name.clone(), kind, desc.variable_labels.clone());
            metric.desc().into_iter().map(of).collect::<Vec<_>>()
        };
        self.all.collectors().into_iter().flat_map(described).collect()
    }

    /// Returns the text for Prometheus, with the current counts of `tasks`.
    #[must_use]
    pub fn render(&self, tasks: &Tasks) -> String {
        let _scrape = self.scrape.lock();
        self.copy_tasks(tasks);
        self.copy_runtime();
        for kind in DeadlineType::ALL {
            let at_risk = i64::try_from(self.drains.at_risk(kind)).unwrap_or(i64::MAX);
            self.all.drains_at_risk.with_label_values(&[kind.as_str()]).set(at_risk);
        }
        let mut text = Vec::new();
        // Writing to a Vec can't fail, and registration has checked every metric.
        let _ = TextEncoder::new().encode(&self.registry.gather(), &mut text);
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Follows the facts from which metrics are made by more than one fact: the running drains, and the pools that have a series.
    pub(super) fn follow(&self, fact: &Fact<'_>) {
        if let Fact::NoticeBegun { about, again: false, pool, .. } = fact
            && about.kind != NoticeKind::AsgLaunch
        {
            let PoolKey { kind, instance_type, zone, group } = self.pools.lock().count(about.kind, *pool);
            self.all.interruptions.with_label_values(&[kind.as_str(), &instance_type, &zone, &group]).inc();
        }
        self.drains.note(fact);
    }

    fn copy_tasks(&self, tasks: &Tasks) {
        for kind in TaskKind::ALL {
            let name = kind.as_str();
            self.all.tasks.with_label_values(&[name]).set(tasks.alive(kind));
            raise(&self.all.tasks_started.with_label_values(&[name]), tasks.started(kind));
            for outcome in TaskOutcome::ALL {
                let ended = self.all.tasks_ended.with_label_values(&[name, outcome.as_str()]);
                raise(&ended, tasks.ended(kind, outcome));
            }
        }
    }

    fn copy_runtime(&self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let figures = runtime.metrics();
        let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        self.all.runtime_workers.set(number(figures.num_workers()));
        self.all.runtime_alive_tasks.set(number(figures.num_alive_tasks()));
        self.all.runtime_queue_depth.set(number(figures.global_queue_depth()));
        for worker in 0..figures.num_workers() {
            let busy = self.all.runtime_busy.with_label_values(&[&worker.to_string()]);
            let now = figures.worker_total_busy_duration(worker).as_secs_f64();
            busy.inc_by((now - busy.get()).max(0.0));
        }
    }
}

/// Raises a counter to a count kept elsewhere.
fn raise(counter: &IntCounter, to: u64) {
    counter.inc_by(to.saturating_sub(counter.get()));
}

impl All {
    /// Returns every metric. A field that is not named here is a compile error.
    fn collectors(&self) -> Vec<Box<dyn Collector>> {
        macro_rules! all {
            ($($field:ident),* $(,)?) => {{
                let Self { $($field),* } = self;
                vec![$(Box::new($field.clone()) as Box<dyn Collector>),*]
            }};
        }
        all!(
            messages,
            messages_malformed,
            messages_ignored,
            message_age,
            receive_failures,
            notices,
            interruptions,
            notice_duration,
            cordon_delay,
            drain_duration,
            drain_time_left,
            wait_duration,
            evictions,
            deletions,
            surges,
            pods_blocked,
            drains_at_risk,
            releases,
            node_refusals,
            unusual,
            zonal_shifts,
            replacements,
            remedies,
            repairs_held,
            leases_collected,
            nodes_collected,
            events,
            notifications,
            traces,
            retries,
            heartbeats,
            completions,
            aws_calls,
            aws_call_duration,
            kube_calls,
            kube_call_duration,
            watch_failures,
            checks,
            panics,
            nodes,
            nodes_turn,
            clock_ahead,
            ready,
            tasks,
            tasks_started,
            tasks_ended,
            runtime_workers,
            runtime_alive_tasks,
            runtime_queue_depth,
            runtime_busy,
            build,
        )
    }
}
