//! Compares the service's parts, on one core, with other ways to do the same work: `cargo bench --bench parts [-- FILTER]`.
//!
//! Criterion chooses the number of iterations, filters by name, and keeps the estimates of our implementation. All implementations of a
//! case take turns of some microseconds each, so that other load on the machine affects all of them. A ratio is the median, over the
//! turns, of our time divided by the other's, with its quartiles. Only ratios matter here. The time includes freeing the results.
//!
//! Without `--bench` every case runs once, as a check that it works.
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, reason = "a benchmark may panic")]
#![allow(clippy::cast_precision_loss, reason = "numbers for people")]

#[allow(dead_code, reason = "the other benchmark uses the rest")]
mod wire;

use criterion::measurement::{Measurement, WallTime};
use criterion::{BenchmarkGroup, Criterion, SamplingMode, Throughput};
use ebbtide::fact::Facts;
use ebbtide::fact::NoticeOutcome;
use ebbtide::pipeline::verdict;
use ebbtide::pipeline::{Index, Node, NodeScope, node_api};
use ebbtide::pipeline::{InstanceId, Parsed};
use ebbtide::pipeline::{SelectionRules, TrimmedPod, parse, select};
use ebbtide_sim::World;
use k8s_openapi::api::core::v1;
use kube::api::{ObjectList, WatchEvent};
use serde::de::IgnoredAny;
use serde_json::Value;
use std::collections::HashMap;
use std::fs;
use std::hint::black_box;
use std::time::Duration;

/// Minimum duration of a turn: longer than reading the clock takes, and shorter than a scheduler's time slice.
const TURN: Duration = Duration::from_micros(20);

/// Maximum size of an SQS message in bytes.
const LARGEST_MESSAGE: usize = 1 << 20;

fn main() {
    let measured = std::env::args().any(|argument| argument == "--bench");
    let mut criterion = Criterion::default()
        .sample_size(30)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(600))
        .configure_from_args();
    let tables = [
        Table::of(&mut criterion, "messages", messages),
        Table::of(&mut criterion, "poison", poison),
        Table::of(&mut criterion, "verdicts", verdicts),
        Table::of(&mut criterion, "pods", pods),
        Table::of(&mut criterion, "nodes", nodes),
        Table::of(&mut criterion, "index", |table| index(table, if measured { 15_000 } else { 100 })),
    ];
    criterion.final_summary();
    if measured {
        tables.iter().for_each(Table::print);
    }
}

/// Messages of every kind, in every wrapping.
fn messages(table: &mut Table<'_>) {
    for (name, body) in fixtures().iter().filter(|(name, _)| !name.starts_with("bad-")) {
        assert!(!matches!(parse(body), Parsed::Malformed(_)), "{name}");
        table.case(name, body.len(), vec![way("ours", || parse(black_box(body))), value(body)]);
    }
}

/// Messages that can't be parsed: those of the tests, and the largest that SQS accepts.
fn poison(table: &mut Table<'_>) {
    let mut bodies = fixtures();
    bodies.retain(|(name, _)| name.starts_with("bad-"));
    let filled =
        |begin: &str, with: &str| format!("{begin}{}", with.repeat((LARGEST_MESSAGE - begin.len()) / with.len()));
    bodies.extend([
        ("1MiB-nested".to_owned(), filled(r#"{"source":"aws.ec2","detail":"#, "[")),
        ("1MiB-of-numbers".to_owned(), filled(r#"{"source":"aws.ec2","detail":[0"#, ",1234567")),
        ("1MiB-of-text".to_owned(), filled(r#"{"source":"aws.ec2","detail":""#, "x")),
        ("1MiB-of-escapes".to_owned(), filled(r#"{"source":""#, r"\u00fc")),
        ("1MiB-of-nothing".to_owned(), filled("", "\u{0}")),
    ]);
    for (name, body) in &bodies {
        assert!(matches!(parse(body), Parsed::Malformed(_)), "{name}");
        table.case(name, body.len(), vec![way("ours", || parse(black_box(body))), value(body)]);
    }
}

/// Deciding whether a message is deleted, from the outcomes of its notices.
fn verdicts(table: &mut Table<'_>) {
    let ends = [Ok(NoticeOutcome::Drained); 100];
    for count in [1, 100] {
        table.case(
            &format!("{count}-notices"),
            0,
            vec![way("ours", || verdict(black_box(&ends[..count]).iter().copied()))],
        );
    }
}

/// A node's pods: parsing the list, and selecting the pods to evict.
fn pods(table: &mut Table<'_>) {
    let rules = SelectionRules::default();
    for count in [5, 30, 110] {
        let wire = wire::list("PodList", &(0..count).map(wire::pod).collect::<Vec<_>>());
        let read = || serde_json::from_str::<ObjectList<TrimmedPod>>(black_box(&wire)).unwrap().items;
        let chosen = select(read(), &rules);
        assert_eq!((chosen.evict.len(), chosen.left_alone.len()), (count - count.div_ceil(10), count.div_ceil(10)));
        let full = way("k8s-openapi", || serde_json::from_str::<ObjectList<v1::Pod>>(black_box(&wire)).unwrap());
        table.case(&format!("{count}-read"), wire.len(), vec![way("ours", read), skipped(&wire), value(&wire), full]);
        let ours = way("ours", || select(read(), &rules));
        table.case(&format!("{count}-read-and-select"), wire.len(), vec![ours, skipped(&wire), value(&wire)]);
        let pods = read();
        let ours = way_with("ours", || pods.clone(), |pods| select(pods, &rules));
        table.case(&format!("{count}-select"), 0, vec![ours, way_with("freed", || pods.clone(), drop)]);
    }
}

/// Watch events about a Node.
fn nodes(table: &mut Table<'_>) {
    let scope = NodeScope::default();
    let whole = wire::node(7);
    let mut object: Value = serde_json::from_str(&whole).unwrap();
    object["metadata"].as_object_mut().unwrap().remove("managedFields");
    for (name, object) in [("modified", whole), ("modified-without-managed-fields", object.to_string())] {
        let wire = wire::modified(&object);
        let read = || {
            let WatchEvent::Modified(object) = serde_json::from_str(black_box(&wire)).unwrap() else {
                panic!("no change")
            };
            Node::from_wire(object, &scope, |_| false, &[], &[]).expect("it must be an instance")
        };
        assert_eq!(read().instance.as_str(), wire::instance(7));
        let full = way("k8s-openapi", || serde_json::from_str::<WatchEvent<v1::Node>>(black_box(&wire)).unwrap());
        table.case(name, wire.len(), vec![way("ours", read), skipped(&wire), value(&wire), full]);
    }
}

/// Look-ups and updates among `count` Nodes.
fn index(table: &mut Table<'_>, count: usize) {
    let index = filled_index(count);
    let ids =
        |from: usize| (from..from + count).map(|n| InstanceId::new(&wire::instance(n)).unwrap()).collect::<Vec<_>>();
    let (known, unknown) = (ids(0), ids(count));
    let plain: HashMap<_, _> = known.iter().map(|id| (id.clone(), index.get(id).expect("it must be known"))).collect();
    assert!(unknown.iter().all(|id| index.get(id).is_none()));
    for (name, ids) in [("hit", &known), ("miss", &unknown)] {
        // Far from the previous Node, like the Node of an interruption.
        let (mut a, mut b) = (ids.iter().cycle().step_by(7919), ids.iter().cycle().step_by(7919));
        let ours = way("ours", || index.get(a.next().unwrap()));
        table.case(name, 0, vec![ours, way("HashMap", || plain.get(b.next().unwrap()).cloned())]);
    }
    let nodes: Vec<Node> = plain.values().map(|node| (**node).clone()).collect();
    let (mut a, mut b) = (nodes.iter().cycle(), nodes.iter().cycle());
    let ours = way_with("ours", || a.next().unwrap().clone(), |node| index.put(node));
    table.case("put", 0, vec![ours, way_with("freed", || b.next().unwrap().clone(), drop)]);
    assert_eq!(index.len(), count);
}

/// An index that has listed a simulated cluster of `count` Nodes.
fn filled_index(count: usize) -> Index {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let index = Index::default();
    runtime.block_on(async {
        let world = World::new(1);
        for n in 0..count {
            world.kube.add_node(&format!("node-{n}"), &wire::instance(n));
        }
        let (synced, listed) = tokio::sync::oneshot::channel();
        let watch = index.clone().watch(node_api(world.kube.client()), Facts::to(Vec::new()), synced);
        tokio::select! {
            () = watch => unreachable!("a watch does not end"),
            listed = listed => listed.expect("the list must come"),
        }
    });
    index
}

/// The messages in `tests/fixtures/events`, by name.
fn fixtures() -> Vec<(String, String)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/events");
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut all: Vec<_> = paths
        .map(|path| (path.file_stem().unwrap().to_string_lossy().into_owned(), fs::read_to_string(&path).unwrap()))
        .collect();
    all.sort();
    all
}

/// One implementation of a case: runs the given number of times, and returns the time taken.
struct Way<'a> {
    name: &'static str,
    run: Box<dyn FnMut(u64) -> Duration + 'a>,
}

fn way<'a, T>(name: &'static str, mut run: impl FnMut() -> T + 'a) -> Way<'a> {
    way_with(name, || (), move |()| run())
}

/// `make` builds the input of each run, outside the measured time.
fn way_with<'a, S, T>(
    name: &'static str,
    mut make: impl FnMut() -> S + 'a,
    mut run: impl FnMut(S) -> T + 'a,
) -> Way<'a> {
    let run = move |times| {
        let made: Vec<S> = (0..times).map(|_| make()).collect();
        let begun = WallTime.start();
        for made in made {
            black_box(run(made));
        }
        WallTime.end(begun)
    };
    Way { name, run: Box::new(run) }
}

/// Parses the whole text into a tree.
fn value(wire: &str) -> Way<'_> {
    way("Value", || serde_json::from_str::<Value>(black_box(wire)))
}

/// Parses nothing and only finds the end of the text.
fn skipped(wire: &str) -> Way<'_> {
    way("skipped", || serde_json::from_str::<IgnoredAny>(black_box(wire)))
}

/// The cases of one part.
struct Table<'a> {
    part: &'static str,
    group: Option<BenchmarkGroup<'a, WallTime>>,
    rows: Vec<Row>,
}

struct Row {
    case: String,
    bytes: usize,
    /// Estimate of our implementation.
    nanoseconds: f64,
    /// Our time divided by each other implementation's, as quartiles.
    ratios: Vec<(&'static str, [f64; 3])>,
}

impl Table<'_> {
    fn of(criterion: &mut Criterion, part: &'static str, measure: impl FnOnce(&mut Table<'_>)) -> Table<'static> {
        let mut group = criterion.benchmark_group(part);
        group.sampling_mode(SamplingMode::Flat);
        let mut table = Table { part, group: Some(group), rows: Vec::new() };
        measure(&mut table);
        Table { part, group: None, rows: table.rows }
    }

    /// Runs the implementations of a case, ours first. `bytes` is the size of the input, or 0.
    fn case(&mut self, case: &str, bytes: usize, mut ways: Vec<Way<'_>>) {
        let group = self.group.as_mut().expect("a table must be open");
        if bytes > 0 {
            group.throughput(Throughput::Bytes(bytes as u64));
        }
        let mut turns: Vec<Vec<f64>> = Vec::new();
        group.bench_function(case, |bencher| {
            // One run to warm up, and one to find the number of runs in a turn.
            (ways[0].run)(1);
            let once = (ways[0].run)(1).as_nanos().max(1);
            let turn = u64::try_from(TURN.as_nanos() / once).map_or(1, |turn| turn.clamp(1, 1000));
            bencher.iter_custom(|times| {
                let mut ours = Duration::ZERO;
                for begun in (0..times).step_by(usize::try_from(turn).unwrap()) {
                    let now = turn.min(times - begun);
                    let took: Vec<_> = ways.iter_mut().map(|way| (way.run)(now)).collect();
                    ours += took[0];
                    turns.push(took.iter().map(|took| took.as_nanos() as f64 / now as f64).collect());
                }
                ours
            });
        });
        // A filter excluded the case.
        if turns.is_empty() {
            return;
        }
        let quartiles = |of: &dyn Fn(&[f64]) -> f64| {
            let mut all: Vec<_> = turns.iter().map(|turn| of(turn)).collect();
            all.sort_by(f64::total_cmp);
            [1, 2, 3].map(|quarter| all[(all.len() - 1) * quarter / 4])
        };
        let ratios = ways.iter().enumerate().skip(1);
        self.rows.push(Row {
            case: case.to_owned(),
            bytes,
            nanoseconds: quartiles(&|turn| turn[0])[1],
            ratios: ratios.map(|(n, way)| (way.name, quartiles(&|turn| turn[0] / turn[n]))).collect(),
        });
    }

    fn print(&self) {
        let Some(first) = self.rows.first() else { return };
        print!("\n{:<36}{:>9}{:>12}{:>9}", self.part, "bytes", "ns", "MB/s");
        for (other, _) in &first.ratios {
            print!(" {:>25}", format!("ours / {other}"));
        }
        println!();
        for Row { case, bytes, nanoseconds, ratios } in &self.rows {
            print!("{case:<36}{bytes:>9}{nanoseconds:>12.0}{:>9.0}", *bytes as f64 / nanoseconds * 1e3);
            for (_, [low, middle, high]) in ratios {
                print!(" {:>25}", format!("{middle:.3} ({low:.3}–{high:.3})"));
            }
            println!();
        }
    }
}
