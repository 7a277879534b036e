//! Constructors of metrics, all in one namespace.

use prometheus::{CounterVec, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts};

fn opts(name: &str, help: &str) -> Opts {
    Opts::new(name, help).namespace("ebbtide")
}

pub(super) fn counter(name: &str, help: &str) -> IntCounter {
    IntCounter::with_opts(opts(name, help)).expect("metric descriptions must be valid")
}

pub(super) fn counters(name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
    IntCounterVec::new(opts(name, help), labels).expect("metric descriptions must be valid")
}

pub(super) fn fractions(name: &str, help: &str, labels: &[&str]) -> CounterVec {
    CounterVec::new(opts(name, help), labels).expect("metric descriptions must be valid")
}

pub(super) fn gauge(name: &str, help: &str) -> IntGauge {
    IntGauge::with_opts(opts(name, help)).expect("metric descriptions must be valid")
}

pub(super) fn gauges(name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
    IntGaugeVec::new(opts(name, help), labels).expect("metric descriptions must be valid")
}

pub(super) fn histograms(name: &str, help: &str, buckets: &[f64], labels: &[&str]) -> HistogramVec {
    let opts = HistogramOpts { common_opts: opts(name, help), buckets: buckets.to_vec() };
    HistogramVec::new(opts, labels).expect("metric descriptions must be valid")
}
