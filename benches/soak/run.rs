//! One run: the fleet, two replicas, their restarts, and what is sampled.

use crate::DAY;
use crate::fleet::Fleet;
use crate::harness::{Replica, Stage, metric, s};
use crate::meter::{self, Meter};
use crate::trend::Trend;
use aws_smithy_runtime_api::client::http::{HttpConnector, HttpConnectorFuture, SharedHttpConnector};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_types::body::SdkBody;
use ebbtide::fact::TaskKind;
use std::time::Duration;
use tokio::time::sleep;

/// Number of notices in an hour.
const HOURLY: u32 = 1_000;

/// Interval between samples.
const SAMPLE: Duration = Duration::from_mins(10);

/// Age from which the simulation forgets: a real API server forgets Events then.
const KEPT: Duration = Duration::from_hours(1);

/// Length of a run from which its heap must not grow.
const SETTLED: Duration = Duration::from_hours(10 * 24);

/// Number of points that a trend is fitted to: the last two thirds of a run, as minima of a day in 30 days.
const POINTS: usize = 20;

/// Maximum growth in bytes a notice. What is kept of each notice is more than that: an id alone has 19.
const BYTES_A_NOTICE: f64 = 1.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restarts {
    /// Each replica once a day, in order and by a kill in turns.
    Daily,
    Never,
}

/// What is counted at one time. The replicas share the process, so one heap is both's, and the simulation's.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub at: Duration,
    pub heap: f64,
    /// Tasks of both replicas, the fixed ones included.
    pub tasks: f64,
    /// Tasks of the runtime: with libraries' and the simulation's.
    pub all_tasks: f64,
    /// Nodes known to the replicas beyond those that are there.
    pub nodes: f64,
    /// Series in the metrics of both replicas.
    pub series: f64,
    pub files: f64,
}

pub struct Run {
    pub restarts: Restarts,
    pub length: Duration,
    pub samples: Vec<Sample>,
    pub notices: usize,
}

/// Takes notifications.
#[derive(Debug)]
struct Receiver;

impl HttpConnector for Receiver {
    fn call(&self, _: HttpRequest) -> HttpConnectorFuture {
        let response = http::Response::new(SdkBody::from("ok"));
        HttpConnectorFuture::ready(Ok(HttpResponse::try_from(response).expect("the answer must be one")))
    }
}

/// Runs and samples the service for this long, on a clock that advances only when there is nothing to do.
pub fn run(restarts: Restarts, length: Duration) -> Run {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build().expect("a runtime must start");
    let meter = Meter::start();
    let run = runtime.block_on(live(restarts, length));
    let cost = meter.stop();
    let rate = run.notices as f64 / cost.real.as_secs_f64();
    println!("\n# {:.1} days, restarts {restarts:?}", length.as_secs_f64() / DAY.as_secs_f64());
    println!("\n{} notices in {:.0} s, {rate:.0} a second", run.notices, cost.real.as_secs_f64());
    run
}

async fn live(restarts: Restarts, length: Duration) -> Run {
    let mut fleet = Fleet::new();
    let mut replicas = [start(&fleet.stage, 0).await, start(&fleet.stage, 1).await];
    sleep(s(30)).await;
    let clock = fleet.stage.world.clock;
    let begun = clock.elapsed();
    // Room for all, so that their own memory is not measured.
    let mut samples = Vec::with_capacity(
        usize::try_from(length.as_secs() / SAMPLE.as_secs()).expect("samples must be countable") + 1,
    );
    let mut restarted = 0;
    // Two restarts in a day, or in a shorter run.
    let between = DAY.min(length) / 2;
    let (mut next_sample, mut next_restart) = (SAMPLE, between / 2);
    loop {
        let due = Duration::from_hours(1) * u32::try_from(fleet.notices).expect("notices must be countable") / HOURLY;
        if due >= length {
            break;
        }
        sleep((begun + due).saturating_sub(clock.elapsed())).await;
        fleet.settle();
        fleet.next();
        if due >= next_restart && restarts == Restarts::Daily {
            // Each of them in order on one day, and by a kill on the next.
            let (which, kill) = (restarted % 2, (restarted + restarted / 2) % 2 == 1);
            let new = start(&fleet.stage, which).await;
            let old = std::mem::replace(&mut replicas[which], new);
            if kill {
                old.kill().await;
            } else {
                old.stop().await;
            }
            restarted += 1;
            next_restart += between;
        }
        if due >= next_sample {
            samples.push(sample(&fleet, &replicas, due));
            next_sample += SAMPLE;
        }
    }
    end(&mut fleet, &replicas).await;
    let world = &fleet.stage.world;
    world.forget_before(world.clock.elapsed());
    let both = meter::heap();
    for replica in replicas {
        replica.stop().await;
    }
    sleep(s(1)).await;
    world.forget_before(world.clock.elapsed());
    let rest = meter::heap();
    println!("\nat the end both replicas hold {} bytes, and the simulation {rest}", both - rest);
    Run { restarts, length, samples, notices: fleet.notices }
}

/// Starts a replica; one of the two sends notifications.
async fn start(stage: &Stage, which: usize) -> Replica {
    const NOTIFIES: [&str; 4] = ["--notify-url", "https://hooks.example/services/s3cret", "--notify", "all"];
    let flags: &[&str] = if which == 0 { &NOTIFIES } else { &[] };
    stage.start_with(flags, |clients| clients.webhook = Some(SharedHttpConnector::new(Receiver))).await
}

fn sample(fleet: &Fleet, replicas: &[Replica], at: Duration) -> Sample {
    let world = &fleet.stage.world;
    world.forget_before(world.clock.elapsed().saturating_sub(KEPT));
    let tasks = |replica: &Replica| TaskKind::ALL.map(|kind| replica.tasks.alive(kind) as f64).iter().sum::<f64>();
    let shown: Vec<String> = replicas.iter().map(|replica| replica.metrics.render(&replica.tasks)).collect();
    let series = |text: &String| text.lines().filter(|line| !line.starts_with('#')).count() as f64;
    let nodes = |text: &String| metric(text, "ebbtide_nodes") - fleet.len() as f64;
    Sample {
        at,
        tasks: replicas.iter().map(tasks).sum(),
        all_tasks: tokio::runtime::Handle::current().metrics().num_alive_tasks() as f64,
        nodes: shown.iter().map(nodes).sum(),
        series: shown.iter().map(series).sum(),
        files: std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count) as f64,
        // Last: what the lines above needed is free again.
        heap: meter::heap() as f64,
    }
}

/// Lets everything end, and checks that nothing is left.
async fn end(fleet: &mut Fleet, replicas: &[Replica]) {
    for _ in 0..720 {
        sleep(s(10)).await;
        fleet.settle();
    }
    assert!(fleet.is_at_rest(), "{}", fleet.stage.story());
    let all: Vec<&Replica> = replicas.iter().collect();
    fleet.stage.rest(&all).await;
}

impl Run {
    /// Prints the trends, and panics if one of them grows in a run that is long enough to tell.
    pub fn check(&self) {
        let per_point = self.length.as_secs_f64() / 30.0 / 3600.0 * f64::from(HOURLY);
        println!("\n| {:?} | first of the last {POINTS} points | last | growth a point | at most |", self.restarts);
        println!("| --- | ---: | ---: | ---: | ---: |");
        let mut grown = Vec::new();
        for (name, value, bound) in [
            ("heap, bytes", (|sample| sample.heap) as fn(&Sample) -> f64, BYTES_A_NOTICE * per_point),
            ("the service's tasks", |sample| sample.tasks, 0.1),
            ("all tasks", |sample| sample.all_tasks, 0.1),
            ("known nodes that are gone", |sample| sample.nodes, 0.1),
            ("series of metrics", |sample| sample.series, 0.1),
            ("open files", |sample| sample.files, 0.1),
        ] {
            let trend = Trend::of(&self.minima(value));
            println!("| {name} | {:.0} | {:.0} | {:+.2} | {bound:.1} |", trend.first, trend.last, trend.slope);
            if trend.slope > bound {
                grown.push(name);
            }
        }
        // In its first hours the fleet and its drains become as many as they stay.
        if self.length < DAY {
            return;
        }
        // For most of a day the history fills, up to its 4 MiB.
        grown.retain(|name| !name.starts_with("heap") || self.length >= SETTLED);
        assert!(grown.is_empty(), "grows: {grown:?}");
    }

    /// Returns the least value of each of the last points: of a day, in a run of 30 days.
    pub fn minima(&self, value: fn(&Sample) -> f64) -> Vec<f64> {
        let each = self.samples.len().div_ceil(30).max(1);
        let minima: Vec<f64> =
            self.samples.chunks(each).map(|chunk| chunk.iter().map(value).fold(f64::INFINITY, f64::min)).collect();
        minima[minima.len().saturating_sub(POINTS)..].to_vec()
    }
}
