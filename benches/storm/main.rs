//! Runs the whole service on the simulation, without a network, and measures a storm of notices and ten thousand held drains.
//!
//! The real SDK clients call simulated services on tokio's paused clock, so the real time that passes is the work of one core. Run it
//! on an otherwise idle machine:
//!
//! ```text
//! cargo bench --bench storm                    everything
//! cargo bench --bench storm -- storm 1500      a storm over 1500 nodes, and its roofline
//! cargo bench --bench storm -- said 1500       the same without a queue: each Node says that its instance ends
//! cargo bench --bench storm -- limited 1000    spot warnings under the default limit, whatever AWS answers about them
//! cargo bench --bench storm -- reported 1000   a storm with all that reports it, and without
//! cargo bench --bench storm -- held 1000       1000 drains, held for an hour
//! ```
//!
//! Every run checks its results: the calls for an undisturbed notice, no message lost or received twice, no pod evicted twice, the
//! right number of heartbeats, no task left. `cargo test --bench storm` runs the same with few nodes, and measures nothing.
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, reason = "a run that goes wrong ends there")]
#![allow(clippy::disallowed_methods, reason = "it measures real time, and its tasks end with it")]
#![allow(clippy::cast_precision_loss, clippy::format_collect, reason = "numbers are small")]

#[allow(dead_code, reason = "the tests of the service use all of it")]
#[path = "../../tests/service/harness.rs"]
mod harness;
mod held;
mod limited;
mod meter;
mod mix;
mod reported;
mod roofline;
mod said;
mod storm;

use held::{By, Held};
use limited::Answer;
use meter::{Cost, per_second, per_unit};
use std::time::Duration;
use storm::Storm;

/// Latency of every call, in addition to the machine's own time: a call within a region. Without it a storm would take no virtual time
/// at all.
const LATENCY: Duration = Duration::from_millis(10);

/// Number of runs of each storm and each roofline. The cheapest run counts, because other load on the machine only adds cost.
const TIMES: usize = 3;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let measures = args.iter().any(|arg| arg == "--bench");
    let number = args.iter().find_map(|arg| arg.parse().ok());
    let wants = |name: &str| {
        let mut names = args.iter().filter(|arg| !arg.starts_with('-') && arg.parse::<usize>().is_err()).peekable();
        names.peek().is_none() || names.any(|arg| arg == name)
    };
    if !measures {
        storm(&[160], 1);
        said(&[160], 1);
        limited(80);
        reported(160);
        held(By::Pods, 60);
        held(By::Budget, 40);
        return;
    }
    if wants("storm") {
        storm(&number.map_or_else(|| vec![1_500, 5_000, 15_000], |nodes| vec![nodes]), TIMES);
    }
    if wants("said") {
        said(&number.map_or_else(|| vec![1_500, 5_000, 15_000], |nodes| vec![nodes]), TIMES);
    }
    if wants("limited") {
        limited(number.unwrap_or(1_000));
    }
    if wants("reported") {
        reported(number.unwrap_or(1_000));
    }
    if wants("held") || wants("held-by-pods") {
        held(By::Pods, number.unwrap_or(10_000));
    }
    if wants("held") || wants("held-by-budget") {
        held(By::Budget, number.unwrap_or(10_000));
    }
    if wants("held") || wants("memory") {
        memory(number.unwrap_or(2_000));
    }
}

/// Runs on a paused clock, which stands still while there is work: virtual time is that of the calls, not of the machine.
fn on_a_paused_clock<T>(run: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().start_paused(true).build().expect("a runtime must start").block_on(run)
}

fn storm(sizes: &[usize], times: usize) {
    println!("\n# The storm ({LATENCY:?} a call; the cheapest of {times} runs)\n");
    println!(
        "| nodes | messages/s | messages per CPU second | CPU per message | of the bare clients | ratio | last cordon | last eviction | queue empty |"
    );
    println!("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    let mut last = None;
    for &nodes in sizes {
        let mut storms = Vec::new();
        let mut bare = Vec::new();
        for _ in 0..times {
            bare.push(on_a_paused_clock(roofline::run(nodes)));
            storms.push(on_a_paused_clock(storm::run(nodes)));
        }
        let bare = bare.iter().copied().min_by_key(Cost::key).expect("there must be a run");
        let storm = storms.into_iter().min_by_key(|storm| storm.cost.key()).expect("there must be a run");
        let Storm { messages, cost, virtually, .. } = &storm;
        println!(
            "| {nodes} | {:.0} | {:.0} | {:.1} µs | {:.1} µs | {:.2} | {:.2} s | {:.2} s | {:.2} s |",
            per_second(*messages, cost.real),
            per_second(*messages, cost.cpu),
            per_unit(cost.cpu, *messages),
            per_unit(bare.cpu, *messages),
            cost.cpu.as_secs_f64() / bare.cpu.as_secs_f64(),
            virtually.last_cordon.as_secs_f64(),
            virtually.last_eviction.as_secs_f64(),
            virtually.empty.as_secs_f64(),
        );
        last = Some(storm);
    }
    let Some(Storm { messages, calls, .. }) = last else { return };
    println!("\n| call | {messages} messages | per message |");
    println!("| --- | ---: | ---: |");
    for (operation, count) in calls {
        println!("| {operation} | {count} | {:.3} |", count as f64 / messages as f64);
    }
}

fn said(sizes: &[usize], times: usize) {
    println!("\n# What Nodes say, without a queue ({LATENCY:?} a call; the cheapest of {times} runs)\n");
    println!("| nodes | CPU per node | last eviction | all noted | API calls per node |");
    println!("| ---: | ---: | ---: | ---: | ---: |");
    for &nodes in sizes {
        let storms = (0..times).map(|_| on_a_paused_clock(said::run(nodes)));
        let Some(storm) = storms.min_by_key(|storm| storm.cost.key()) else { return };
        println!(
            "| {nodes} | {:.1} µs | {:.2} s | {:.2} s | {:.3} |",
            per_unit(storm.cost.cpu, nodes),
            storm.last_eviction.as_secs_f64(),
            storm.noted.as_secs_f64(),
            storm.calls.values().sum::<usize>() as f64 / nodes as f64,
        );
    }
}

fn limited(nodes: usize) {
    println!("\n# The default limit: {nodes} spot warnings, pods that take 20 s ({LATENCY:?} a call)\n");
    println!("| AWS | drained | last cordon | last eviction | last pod gone | AWS calls a notice |");
    println!("| --- | ---: | ---: | ---: | ---: | ---: |");
    for answer in Answer::ALL {
        let storm = on_a_paused_clock(limited::run(nodes, answer));
        println!(
            "| {} | {} | {:.1} s | {:.1} s | {:.1} s | {:.3} |",
            answer.words(),
            storm.drained,
            storm.last_cordon.as_secs_f64(),
            storm.last_eviction.as_secs_f64(),
            storm.last_pod.as_secs_f64(),
            storm.aws_calls as f64 / nodes as f64,
        );
    }
}

fn held(by: By, drains: usize) {
    println!("\n# {drains} drains, held for an hour by {}\n", by.words());
    let held = on_a_paused_clock(held::run(by, drains));
    let Held { cost, heap_at, late, calls, ended_after } = held;
    println!("| | |");
    println!("| --- | ---: |");
    println!("| CPU per drain and hour, the simulation's included | {:.0} µs |", per_unit(cost.cpu, drains));
    println!("| real time of the hour | {:.1} s |", cost.real.as_secs_f64());
    for (when, bytes) in heap_at {
        println!(
            "| heap that was added per drain, {} min after the notices | {:.1} kB |",
            when.as_secs() / 60,
            bytes / 1e3
        );
    }
    let [median, high, most] = late.percentiles();
    println!("| heartbeats | {} |", late.beats);
    println!("| heartbeats after the end of their window: p50, p99, max | {median:.3} s, {high:.3} s, {most:.3} s |");
    println!("| heartbeats, mean against the middle of their window | {:+.3} s |", late.mean_against_middle());
    println!("| all ended, after the hold | {:.1} s |", ended_after.as_secs_f64());
    for (operation, count) in calls {
        println!("| {operation} per drain | {:.2} |", count as f64 / drains as f64);
    }
}

fn reported(nodes: usize) {
    println!("\n# A storm with status page, notifications, traces and Events, and without ({nodes} nodes)\n");
    println!("| | calls to AWS and the API server | most bytes on the heap |");
    println!("| --- | ---: | ---: |");
    let [off, on] = [false, true].map(|is_on| on_a_paused_clock(reported::run(nodes, is_on)));
    for (words, cost) in [("without", off), ("with", on)] {
        println!("| {words} | {} | {:.1} MiB |", cost.calls, cost.peak as f64 / f64::from(1 << 20));
    }
    assert!(on.calls * 20 <= off.calls * 21, "5 % more calls at most: {on:?}, {off:?}");
    assert!(on.peak <= off.peak + (8 << 20), "8 MiB more at most: {on:?}, {off:?}");
}

fn memory(drains: usize) {
    println!("\n# What the service itself holds, shown by what its end gives back ({drains} drains)\n");
    println!("| held by | kB per drain |");
    println!("| --- | ---: |");
    for by in [By::Pods, By::Budget] {
        let bytes = on_a_paused_clock(held::memory(by, drains));
        println!("| {} | {:.1} |", by.words(), bytes / 1e3);
    }
}
