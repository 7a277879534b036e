//! Parses the command line, runs a command, and returns its exit code.

use ebbtide::agent::{Agent, AgentMetrics, AgentPages, Metadata};
use ebbtide::cli::Answer;
use ebbtide::cli::{AgentFlags, AgentSettings, Settings};
use ebbtide::cli::{Cli, Command, LogFormat, Run};
use ebbtide::cli::{Doctor, ServiceFlags};
use ebbtide::clients::connect;
use ebbtide::clients::connect::ClusterChoice;
use ebbtide::commands::cluster::chosen;
use ebbtide::commands::{completion, doctor, migrate, notify, send, simulate, status, undo};
use ebbtide::fact::{Facts, Subscriber};
use ebbtide::pipeline::QueueUrl;
use ebbtide::runtime::Clock;
use ebbtide::service::{Exit, Service};
use ebbtide::service::{Inputs, StartChecks};
use ebbtide::service::{Shutdown, signals};
use ebbtide::telemetry::{LogFilter, Metrics, Rows};
use std::io::{stderr, stdout};
use std::process::ExitCode;
use std::sync::Arc;
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, reload};

/// Maximum number of log lines that wait for a slow reader: as many as a storm of a thousand notices writes. Memory for all is allocated
/// at the start, 40 bytes each: the library's default of 128,000 would be a quarter of the memory of an idle process.
const MAX_LOG_LINES: usize = 16_384;

/// The same for the agent, which writes a line now and then.
const MAX_AGENT_LINES: usize = 256;

fn main() -> ExitCode {
    let cli = match Cli::read() {
        Ok(cli) => cli,
        Err(answer) => return print(answer),
    };
    match cli.command {
        Command::Run(flags) => run_service(flags),
        Command::Agent(flags) => run_agent(&flags),
        Command::Doctor(flags) => run_doctor(flags),
        Command::Simulate(flags) => run_command(simulate::simulate(*flags)),
        Command::Send(flags) => run_command(send::send(flags)),
        Command::Status(flags) => run_command(status::status(flags)),
        Command::Undo(flags) => run_command(undo::undo(flags)),
        Command::Notify(flags) => run_command(notify::notify(flags)),
        Command::Migrate(arguments) => print(migrate::run(&arguments)),
        Command::Completion(flags) => print(completion::completion(&flags)),
    }
}

/// Runs a command that ends with an answer.
fn run_command(work: impl Future<Output = Answer>) -> ExitCode {
    block_on(async { print(work.await) })
}

fn print(answer: Answer) -> ExitCode {
    ExitCode::from(answer.print(&mut stdout(), &mut stderr()))
}

fn run_service(flags: Run) -> ExitCode {
    let format = flags.log_format;
    let settings = match Settings::from_flags(flags) {
        Ok(settings) => settings,
        Err(problems) => return refuse(2, &problems.to_string()),
    };
    let (_log, filter) = start_log(format, &settings.log, MAX_LOG_LINES);
    block_on(serve(settings, filter))
}

/// Runs the agent on one thread: it mostly waits.
fn run_agent(flags: &AgentFlags) -> ExitCode {
    let settings = match AgentSettings::from_flags(flags) {
        Ok(settings) => settings,
        Err(problems) => return refuse(2, &problems.to_string()),
    };
    let (_log, _filter) = start_log(flags.log_format, &settings.log, MAX_AGENT_LINES);
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(agent(settings, &chosen(flags.cluster.clone()))),
        Err(error) => refuse(1, &format!("the system gives no events: {error}")),
    }
}

async fn agent(settings: AgentSettings, cluster: &ClusterChoice) -> ExitCode {
    let shutdown = Shutdown::default();
    let _signals = match signals::listen(shutdown.clone()) {
        Ok(signals) => signals,
        Err(error) => return refuse(1, &format!("can't listen for signals: {error}")),
    };
    let clients = connect::cluster_client(Clock::system(), cluster).await;
    let clients = clients.and_then(|kube| Ok((kube, connect::metadata_client(settings.metadata_endpoint)?)));
    let (kube, metadata) = match clients {
        Ok(clients) => clients,
        Err(error) => return refuse(1, &error.to_string()),
    };
    let metrics = Arc::new(AgentMetrics::default());
    let facts = Facts::to(vec![Arc::new(Rows::default()) as Arc<dyn Subscriber>, Arc::clone(&metrics) as _]);
    let work = Agent::new(Metadata::new(metadata), kube, facts.clone(), settings.node_name).run();
    let served = AgentPages::serve(settings.address, settings.host_names, metrics, facts);
    tokio::select! {
        biased;
        // Nothing has to be ended in order: a patch is written as a whole, or not at all.
        () = shutdown.ordered.cancelled() => ExitCode::SUCCESS,
        Err(error) = served => refuse(1, &error.to_string()),
        () = work => ExitCode::SUCCESS,
    }
}

fn block_on(work: impl Future<Output = ExitCode>) -> ExitCode {
    match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(work),
        Err(error) => refuse(1, &format!("the system gives no threads: {error}")),
    }
}

fn run_doctor(Doctor { strict, borrowed }: Doctor) -> ExitCode {
    let ServiceFlags { output, cluster, run, .. } = borrowed;
    let settings = match Settings::from_flags(run) {
        Ok(settings) => settings,
        Err(problems) => return refuse(2, &problems.to_string()),
    };
    run_command(async move {
        let clock = Clock::system();
        let region = QueueUrl::region_of(&settings.queue_url);
        let calls_aws = settings.sources.call_aws();
        let clients = connect::available_clients(clock, region, &chosen(cluster), calls_aws).await;
        let report = doctor::consult(&settings, clients, clock).await;
        Answer { code: u8::from(report.failed(strict)), ..Answer::well(output.of(&report.object(), || report.text())) }
    })
}

/// Turns the log of kube's client off, unless the user asks for it: it repeats failed calls, and the content of malformed answers. The
/// client for notifications logs nothing below INFO: it shows URLs, which are secrets.
fn without_clients(filter: Targets) -> Targets {
    let is_named = filter.iter().any(|(target, _)| target.starts_with("kube"));
    let filter = filter.with_target("aws_smithy_http_client", LevelFilter::INFO);
    if is_named { filter } else { filter.with_target("kube_client", LevelFilter::OFF) }
}

async fn serve(settings: Settings, log_filter: LogFilter) -> ExitCode {
    let clock = Clock::system();
    let region = QueueUrl::region_of(&settings.queue_url);
    let cluster = ClusterChoice::default();
    let clients = if settings.sources.call_aws() {
        connect::clients(clock, region, &cluster).await
    } else {
        connect::clients_without_aws(clock, &cluster).await
    };
    let mut clients = match clients {
        Ok(clients) => clients,
        Err(error) => return refuse(1, &error.to_string()),
    };
    if let Some(notify) = &settings.notify {
        match connect::webhook(notify.proxy()) {
            Ok(webhook) => clients.webhook = Some(webhook),
            Err(error) => return refuse(1, &error.to_string()),
        }
    }
    if settings.traces.is_some() {
        match connect::webhook(None) {
            Ok(collector) => clients.collector = Some(collector),
            Err(error) => return refuse(1, &error.to_string()),
        }
    }
    let metrics = Arc::new(Metrics::new());
    let traces = settings.traces.is_some();
    let facts =
        Facts::to(vec![Arc::new(Rows { traces, ..Rows::counted(Arc::clone(&metrics)) }) as Arc<dyn Subscriber>]);
    let shutdown = Shutdown::default();
    let _signals = match signals::listen(shutdown.clone()) {
        Ok(signals) => signals,
        Err(error) => return refuse(1, &format!("can't listen for signals: {error}")),
    };
    let start_checks = settings.check_at_start.then(|| {
        let (settings, clients) = (settings.clone(), clients.clone());
        StartChecks::new(move |gate, facts| doctor::check_at_start(settings, clients, gate, clock, facts))
    });
    let log_filter = Some(log_filter);
    let inputs = Inputs { settings, clients, clock, facts, metrics, log_filter, shutdown, start_checks };
    match Service::start(inputs).await {
        Ok(service) => match service.run().await {
            Exit::Clean => ExitCode::SUCCESS,
            Exit::Aborted => ExitCode::from(3),
            Exit::TaskEnded => ExitCode::from(4),
        },
        Err(error) => refuse(1, &error.to_string()),
    }
}

/// Prints problems to standard error, one a line, and returns the exit code.
fn refuse(code: u8, problems: &str) -> ExitCode {
    print(Answer { problems: problems.to_owned(), code, ..Answer::default() })
}

/// Starts the log. Lines go through a bounded buffer, which drops and counts them if the pipe is full: the log delays no drain.
fn start_log(format: LogFormat, filter: &Targets, lines: usize) -> (WorkerGuard, LogFilter) {
    let (writer, guard) = NonBlockingBuilder::default().buffered_lines_limit(lines).finish(stdout());
    let lines = tracing_subscriber::fmt::layer().with_writer(writer).with_target(false).with_ansi(false);
    let lines = match format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    let (reloadable, handle) = reload::Layer::new(without_clients(filter.clone()));
    tracing_subscriber::registry().with(lines.with_filter(reloadable)).init();
    (guard, LogFilter::new(filter, move |filter| handle.reload(without_clients(filter)).is_ok()))
}
