//! The main job in one command, with nothing to install or configure: `cargo run --example sandbox`.
//!
//! The example simulates a small cluster, its API server, SQS, Auto Scaling and EC2 on loopback ports, in real time. The service is the
//! real one, and calls them over HTTP with the real clients. A storm sends notices of every kind, among them a pod that a budget holds
//! back, a drain that must fail, a volume, a load balancer and a controller that are waited for, a duplicate notice, a message that can't
//! be parsed, another cluster's hook, and a spot interruption announced on the Node only. After the storm, two replicas without
//! a queue drain the Node of another simulated cluster, and make no call to AWS.
//!
//! The example prints events as they happen. At the end it prints a summary and compares the results with the plan: the exit code is 0
//! only if everything ended as planned.
//!
//! ```text
//! plan ─▶ world ─▶ storm ─SQS, Nodes─▶ the service ─▶ facts ─▶ printer (lines) · tally (counts)
//!                                                                                 └─▶ summary · check
//! without_queue: another world, two replicas ─▶ facts ─▶ printer · tally ─▶ summary · check
//! ```
#![allow(clippy::expect_used, reason = "a demonstration may panic")]
#![allow(clippy::disallowed_methods, reason = "it prints on a thread of its own, in real time")]
#![allow(
    clippy::format_collect,
    clippy::format_push_string,
    clippy::needless_pass_by_value,
    reason = "text that is printed once need not be fast"
)]

mod check;
mod clients;
mod hold;
mod paint;
mod plan;
mod printer;
mod storm;
mod summary;
mod tally;
mod without_queue;

use check::Checks;
use clap::Parser;
use ebbtide::fact::{Facts, Subscriber};
use ebbtide::runtime::Clock;
use ebbtide::runtime::Tasks;
use ebbtide::service::Inputs;
use ebbtide::service::{Exit, Service};
use ebbtide::service::{Shutdown, signals};
use ebbtide::telemetry::Metrics;
use ebbtide::telemetry::Rows;
use ebbtide_sim::World;
use ebbtide_sim::loopback::Loopback;
use paint::{Paint, Tone};
use plan::Plan;
use printer::Printer;
use std::io::IsTerminal;
use std::net::{SocketAddr, TcpListener};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use storm::Storm;
use tally::Tally;
use tokio::time::sleep;
use without_queue::Scene;

/// Settings of the service, besides the queue and the admin address. With the default settings, the service would keep a hook that is
/// never released alive for an hour: too long to watch.
const SETTINGS: [&str; 10] = [
    "--source",
    "queue,nodes",
    "--drain-timeout",
    "20s",
    "--heartbeat",
    "5s",
    "--hold",
    "state-change=before-drain",
    "--wait-for-load-balancers",
    "deregister",
];

/// Minimum number of nodes.
const MIN_NODES: u16 = 16;

/// Ebbtide against a simulated cluster and a simulated AWS: a storm of notices, reported as it happens.
#[derive(Debug, Parser)]
#[command(name = "sandbox", max_term_width = 110)]
struct Args {
    /// Number of nodes in the cluster; the storm grows with it
    #[arg(long, default_value_t = MIN_NODES, value_parser = clap::value_parser!(u16).range(i64::from(MIN_NODES)..=2000))]
    nodes: u16,

    /// Keep serving after the storm, so that you can look around and send your own notices
    #[arg(long)]
    hold: bool,

    /// Address of the service's metrics and probes; port 0 picks a free port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    admin_address: SocketAddr,

    /// Address of the status page while the sandbox is held; without one 127.0.0.1:8081, or any port if that is taken
    #[arg(long, value_name = "ADDRESS")]
    status_address: Option<SocketAddr>,

    /// Seconds to wait before the storm, so that a metrics scraper sees the counters before they increase
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    calm: u16,

    /// Seed for everything random: pods, how long they take to stop, the order of the notices
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Also write the service's log to standard error
    #[arg(long)]
    log: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    if args.log {
        let colours = std::io::stderr().is_terminal();
        tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(colours).with_target(false).init();
    }
    let paint = Paint::for_stdout();
    let world = World::new(args.seed);
    let plan = Plan::new(args.nodes.into(), args.seed);
    plan.build(&world);
    let loopback = match world.bind().await {
        Ok(loopback) => loopback,
        Err(error) => return refuse(&format!("no loopback port is free: {error}")),
    };
    let (printer, tally) = (Arc::new(Printer::start(&plan, paint)), Arc::new(Tally::default()));
    let status = args.hold.then(|| args.status_address.unwrap_or_else(free_address));
    if let Some(status) = status {
        printer.print(paint.tone(Tone::Head, &format!("Status page: http://{status}/\n")));
    }
    printer.print(plan.programme(&SETTINGS, paint));
    let metrics = Arc::new(Metrics::new());
    let subscribers: Vec<Arc<dyn Subscriber>> =
        vec![printer.clone(), tally.clone(), Arc::new(Rows::counted(metrics.clone()))];
    let clock = Clock::showing(world.clock.now());
    let queue_url = format!("{}/{}/ebbtide", loopback.aws_url, ebbtide_sim::aws::ACCOUNT);
    let flags = [&["--queue-url", &queue_url], &SETTINGS[..]].concat();
    let settings = clients::settings("sandbox", (args.admin_address, status), &flags);
    let shutdown = Shutdown::default();
    let _signals = match signals::listen(shutdown.clone()) {
        Ok(signals) => signals,
        Err(error) => return refuse(&format!("can't listen for Ctrl-C: {error}")),
    };
    let clients = clients::on(&loopback, clock);
    let facts = Facts::to(subscribers);
    let (start_checks, shutdown_tokens) = (None, shutdown.clone());
    let log_filter = None;
    let inputs =
        Inputs { settings, clients, clock, facts, metrics, log_filter, shutdown: shutdown_tokens, start_checks };
    let service = match Service::start(inputs).await {
        Ok(service) => service,
        Err(error) => return refuse(&error.to_string()),
    };

    let admin = format!("http://{}", service.admin_address());
    let tasks = service.tasks();
    let stage =
        Stage { args: &args, paint, world: &world, loopback: &loopback, plan: &plan, printer: &printer, tally: &tally };
    let play = async {
        let checks = stage.play(&tasks, (&queue_url, &admin), &shutdown).await;
        shutdown.ordered.cancel();
        checks
    };
    let (exit, checks) = tokio::join!(service.run(), play);
    let code = stage.end(exit, checks, &tasks);
    printer.close();
    code
}

/// Everything that the storm, its summary and its checks need.
struct Stage<'a> {
    args: &'a Args,
    paint: Paint,
    world: &'a World,
    loopback: &'a Loopback,
    plan: &'a Plan,
    printer: &'a Arc<Printer>,
    tally: &'a Tally,
}

impl Stage<'_> {
    /// Runs the storm and its summary, and holds the sandbox afterwards if asked to. Returns `None` if interrupted.
    async fn play(&self, tasks: &Tasks, (queue_url, admin): (&str, &str), shutdown: &Shutdown) -> Option<Checks> {
        let calm = Duration::from_secs(self.args.calm.into());
        let storm = Storm { world: self.world, plan: self.plan, printer: self.printer, tally: self.tally, tasks, calm };
        let course = async {
            let sent = storm.rage().await;
            let (scene, ()) = tokio::join!(Scene::play(self.printer, self.args.seed), sleep(storm::LISTENED));
            (sent, scene)
        };
        let (sent, scene) = tokio::select! {
            biased;
            () = shutdown.ordered.cancelled() => return None,
            ended = course => ended,
        };
        let mut checks = Checks::after(self.plan, self.world, self.tally, tasks, sent);
        checks.without_queue(&scene);
        self.printer.print(summary::of(self.plan, self.world, self.tally, tasks, sent, &scene, self.paint));
        if self.args.hold {
            self.printer.print(checks.report(self.paint));
            let kubeconfig = hold::Kubeconfig::write(self.loopback);
            self.printer.print(hold::what_to_try(
                self.plan,
                (queue_url, admin),
                self.loopback,
                &kubeconfig,
                self.paint,
            ));
            self.printer.show_all();
            shutdown.ordered.cancelled().await;
        }
        Some(checks)
    }

    /// Prints the result of the checks after the service has ended.
    fn end(&self, exit: Exit, checks: Option<Checks>, tasks: &Tasks) -> ExitCode {
        let Some(mut checks) = checks else {
            self.printer
                .print(self.paint.tone(Tone::Warn, "Interrupted before the end of the storm: nothing was checked."));
            return ExitCode::from(130);
        };
        checks.shutdown(exit, tasks);
        self.printer.print(checks.report(self.paint));
        if checks.all_held() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// Returns a free address, if possible the service's default.
fn free_address() -> SocketAddr {
    let usual = SocketAddr::from(([127, 0, 0, 1], 8081));
    let bound = TcpListener::bind(usual).or_else(|_| TcpListener::bind("127.0.0.1:0"));
    bound.and_then(|listener| listener.local_addr()).unwrap_or(usual)
}

fn refuse(problem: &str) -> ExitCode {
    eprintln!("sandbox: {problem}");
    ExitCode::FAILURE
}
