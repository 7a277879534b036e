//! Parse, build, run, exit code; nothing else.

use ebbtide::cli::Answer;
use ebbtide::cli::Settings;
use ebbtide::cli::{Cli, Command, LogFormat, Run};
use ebbtide::cli::{Doctor, Output};
use ebbtide::clients::connect;
use ebbtide::commands::{doctor, explain, migrate, send};
use ebbtide::fact::{Facts, Subscriber};
use ebbtide::pipeline::QueueUrl;
use ebbtide::runtime::Clock;
use ebbtide::service::{Exit, Service};
use ebbtide::service::{Inputs, StartChecks};
use ebbtide::service::{Shutdown, signals};
use ebbtide::telemetry::Log;
use ebbtide::telemetry::Metrics;
use std::io::{stderr, stdout};
use std::process::ExitCode;
use std::sync::Arc;
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// A pipe that nobody reads may hold so many lines up, as many as a storm of a thousand notices writes. Room for all of them is taken
/// at the start, 40 bytes each: the library's own limit of 128,000 would be a quarter of what the process needs when idle.
const LINES: usize = 16_384;

fn main() -> ExitCode {
    match Cli::read().command {
        Command::Run(flags) => start(flags),
        Command::Doctor(flags) => examine(flags),
        Command::Explain(flags) => answer(explain::explain(*flags)),
        Command::Send(flags) => answer(send::send(flags)),
        Command::Migrate(arguments) => say(migrate::run(arguments.values.as_deref())),
    }
}

/// A command that ends with an answer.
fn answer(work: impl Future<Output = Answer>) -> ExitCode {
    block_on(async { say(work.await) })
}

fn say(answer: Answer) -> ExitCode {
    ExitCode::from(answer.say(&mut stdout(), &mut stderr()))
}

fn start(flags: Run) -> ExitCode {
    let format = flags.log_format;
    let settings = match Settings::from_flags(flags) {
        Ok(settings) => settings,
        Err(problems) => return refuse(2, &problems.to_string()),
    };
    let _log = start_log(format, quiet(settings.log.clone()));
    block_on(run(settings))
}

fn block_on(work: impl Future<Output = ExitCode>) -> ExitCode {
    match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(work),
        Err(error) => refuse(1, &format!("the system gives no threads: {error}")),
    }
}

fn examine(Doctor { run, output }: Doctor) -> ExitCode {
    let settings = match Settings::from_flags(run) {
        Ok(settings) => settings,
        Err(problems) => return refuse(2, &problems.to_string()),
    };
    answer(async move {
        let clock = Clock::system();
        let ways = connect::available_clients(clock, QueueUrl::region_of(&settings.queue_url)).await;
        let report = doctor::consult(&settings, ways, clock).await;
        let said = match output {
            Output::Text => report.text(),
            Output::Json => report.json(),
        };
        Answer { code: u8::from(report.failed()), ..Answer::well(said) }
    })
}

/// kube's client logs each failed call once more, and the whole of an answer that it can't read, with all that is in it.
fn quiet(filter: Targets) -> Targets {
    let asked = filter.iter().any(|(target, _)| target.starts_with("kube"));
    if asked { filter } else { filter.with_target("kube_client", LevelFilter::OFF) }
}

async fn run(settings: Settings) -> ExitCode {
    let clock = Clock::system();
    let clients = match connect::clients(clock, QueueUrl::region_of(&settings.queue_url)).await {
        Ok(clients) => clients,
        Err(error) => return refuse(1, &error.to_string()),
    };
    let metrics = Arc::new(Metrics::new());
    let facts = Facts::to(vec![Arc::new(Log) as Arc<dyn Subscriber>, Arc::clone(&metrics) as _]);
    let shutdown = Shutdown::default();
    let _signals = match signals::listen(shutdown.clone()) {
        Ok(signals) => signals,
        Err(error) => return refuse(1, &format!("can't listen for signals: {error}")),
    };
    let start_checks = settings.check_at_start.then(|| {
        let (settings, clients) = (settings.clone(), clients.clone());
        StartChecks::new(move |gate, facts| doctor::check_at_start(settings, clients, gate, clock, facts))
    });
    let inputs = Inputs { settings, clients, clock, facts, metrics, shutdown, start_checks };
    match Service::start(inputs).await {
        Ok(service) => match service.run().await {
            Exit::Clean => ExitCode::SUCCESS,
            Exit::Aborted => ExitCode::from(3),
            Exit::Broken => ExitCode::from(4),
        },
        Err(error) => refuse(1, &error.to_string()),
    }
}

/// One line each for a person, on standard error, and an exit code for the system.
fn refuse(code: u8, problems: &str) -> ExitCode {
    say(Answer { problems: problems.to_owned(), code, ..Answer::default() })
}

/// Log lines go through a bounded buffer that drops, with a count, rather than let a full pipe hold a drain up.
fn start_log(format: LogFormat, filter: Targets) -> WorkerGuard {
    let (writer, guard) = NonBlockingBuilder::default().buffered_lines_limit(LINES).finish(stdout());
    let lines = tracing_subscriber::fmt::layer().with_writer(writer).with_target(false).with_ansi(false);
    let lines = match format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry().with(lines.with_filter(filter)).init();
    guard
}
