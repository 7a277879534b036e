//! The harness: a simulated world, replicas of the service in it, and assertions about their calls.

use aws_credential_types::Credentials;
use aws_credential_types::provider::{ProvideCredentials, future};
use clap::Parser;
use ebbtide::cli::Settings;
use ebbtide::cli::{Cli, Command};
use ebbtide::clients::connect::{Clients, aws_clients, kube_client};
use ebbtide::commands::doctor;
use ebbtide::fact::{Facts, Subscriber, TaskKind};
use ebbtide::runtime::Clock;
use ebbtide::runtime::Tasks;
use ebbtide::runtime::random;
use ebbtide::service::Shutdown;
use ebbtide::service::{Exit, Service};
use ebbtide::service::{Inputs, StartChecks};
use ebbtide::telemetry::History;
use ebbtide::telemetry::Metrics;
use ebbtide::telemetry::Rows;
use ebbtide::telemetry::history::Since;
use ebbtide::telemetry::history::report::Interruption;
use ebbtide_sim::World;
use ebbtide_sim::aws::{ActionState, HookSpec};
use ebbtide_sim::kube::{Evicted, Pod};
use ebbtide_sim::messages::{self, Wrapping};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Returns a duration of `seconds`.
pub const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

thread_local! {
    /// The seed of the random numbers of this thread's test, in the service and in the simulation: `EBBTIDE_SEED`, or any.
    static SEED: u64 = match std::env::var("EBBTIDE_SEED") {
        Ok(seed) => seed.parse().expect("EBBTIDE_SEED must be a number"),
        Err(_) => random::u64(),
    };
}

/// Seeds the service's random numbers, and returns the seed for the simulation's. A test that fails shows it.
pub fn seed() -> u64 {
    let seed = SEED.with(|seed| *seed);
    println!("to run this test again with the same random numbers, set EBBTIDE_SEED={seed}");
    random::seed(seed);
    seed
}

/// Returns the instance id of the n-th node.
pub fn instance(n: usize) -> String {
    format!("i-{n:017x}")
}

/// Returns the name of the n-th node.
pub fn node(n: usize) -> String {
    format!("node-{n}")
}

/// A world that tests fill before and while replicas run.
pub struct Stage {
    pub world: World,
    /// How many seconds the machine's clock is ahead of the world's.
    pub clock_ahead: Arc<AtomicI64>,
    /// The replicas' quiet time before evictions: zero, unless a test is about it.
    pub quiet_time: Duration,
    /// Whether the replicas have the history that tests read, besides that of a status page.
    pub has_history: bool,
}

/// One running service.
pub struct Replica {
    pub tasks: Tasks,
    pub metrics: Arc<Metrics>,
    pub history: Arc<History>,
    shutdown: Shutdown,
    running: JoinHandle<Exit>,
}

/// The role of the replicas: its credentials are those that the simulated AWS gives out.
#[derive(Debug)]
struct Role(World);

impl ProvideCredentials for Role {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::ready(Ok(Credentials::new(self.0.aws.load_key(), "sim", None, None, "sim")))
    }
}

/// Calls that only the start checks make. These checks report a denial themselves.
const FOR_CHECKS: [&str; 6] = [
    "resource=\"version\"",
    "resource=\"selfsubject",
    "resource=\"poddisruptionbudgets\"",
    "resource=\"validatingadmissionpolicies\"",
    "resource=\"validatingadmissionpolicybindings\"",
    "resource=\"nodes\",verb=\"list\"",
];

impl Stage {
    /// Returns a world of `nodes` nodes, each an instance with the managed tag and `pods` pods.
    pub fn new(nodes: usize, pods: usize) -> Self {
        // With EBBTIDE_TEST_LOG set, a failed test prints its log.
        let _ = tracing_subscriber::fmt()
            .with_test_writer()
            .with_max_level(if std::env::var_os("EBBTIDE_TEST_LOG").is_some() {
                tracing::level_filters::LevelFilter::DEBUG
            } else {
                tracing::level_filters::LevelFilter::OFF
            })
            .try_init();
        let world = World::new(seed());
        for n in 0..nodes {
            world.kube.add_node(&node(n), &instance(n));
            world.aws.ec2.put(&instance(n), &[("aws-node-termination-handler/managed", "true")]);
            for pod in 0..pods {
                world.kube.add_pod(Pod::on(&node(n)).named(&format!("web-{n}-{pod}")).stops_in(s(2)));
            }
        }
        Self { world, clock_ahead: Arc::default(), quiet_time: Duration::ZERO, has_history: true }
    }

    /// Returns a world of one node with one pod, which takes `takes` to stop.
    pub fn slow(takes: Duration) -> Self {
        let stage = Self::new(1, 0);
        stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(takes * 2).stops_in(takes));
        stage
    }

    /// Returns the same world with another queue, so that a test decides which replica receives a message. Must be called before time
    /// passes.
    pub fn with_own_queue(&self) -> Self {
        let mut world = self.world.clone();
        world.aws.sqs = World::new(!seed()).aws.sqs;
        Self { world, clock_ahead: Arc::clone(&self.clock_ahead), ..*self }
    }

    /// Starts a replica with these flags.
    pub async fn start(&self, flags: &[&str]) -> Replica {
        self.start_with(flags, |_| {}).await
    }

    /// Starts a replica with changed clients.
    pub async fn start_with(&self, flags: &[&str], change: impl FnOnce(&mut Clients)) -> Replica {
        let url = self.world.aws.sqs.queue_url();
        let mut all = vec!["ebbtide", "run", "--admin-address", "127.0.0.1:0"];
        if !flags.windows(2).any(|pair| pair[0] == "--source" && !pair[1].contains("queue")) {
            all.extend(["--queue-url", &url]);
        }
        if !flags.contains(&"--status-address") {
            all.extend(["--status-address", "off"]);
        }
        // Tests count calls, and their set-up has only what they need: a test of the start checks sets this flag itself.
        if !flags.contains(&"--check-at-start=true") {
            all.push("--check-at-start=false");
        }
        all.extend(flags);
        let Command::Run(run) = Cli::try_parse_from(all).expect("a test's flags must be flags").command else {
            panic!("it must be run")
        };
        let mut settings = Settings::from_flags(run).expect("a test's settings must be valid");
        settings.policies.for_each_mut(|policy| policy.settle = self.quiet_time);
        let (world, ahead) = (self.world.clock, Arc::clone(&self.clock_ahead));
        let machine = move || {
            let (now, ahead) = (world.now(), ahead.load(Ordering::Relaxed));
            let by = Duration::from_secs(ahead.unsigned_abs());
            if ahead < 0 { now - by } else { now + by }
        };
        let clock = Clock::reading(machine);
        let metrics = Arc::new(Metrics::new());
        let history = Arc::new(History::new(clock, "replica", settings.policy().dry_run));
        let facts = Facts::to(vec![Arc::new(Rows::counted(Arc::clone(&metrics))) as Arc<dyn Subscriber>]);
        let facts = if self.has_history { facts.with(Arc::clone(&history) as _) } else { facts };
        let shutdown = Shutdown::default();
        let mut clients = self.clients(clock);
        change(&mut clients);
        let start_checks = settings.check_at_start.then(|| {
            let (settings, clients) = (settings.clone(), clients.clone());
            StartChecks::new(move |gate, facts| doctor::check_at_start(settings, clients, gate, clock, facts))
        });
        let (shown, stops) = (Arc::clone(&metrics), shutdown.clone());
        let inputs =
            Inputs { settings, clients, clock, facts, metrics: shown, log_filter: None, shutdown: stops, start_checks };
        let service = Service::start(inputs).await.expect("a free port must be there");
        let tasks = service.tasks();
        Replica { tasks, metrics, history, shutdown, running: tokio::spawn(service.run()) }
    }

    /// Returns the clients of a replica.
    pub fn clients(&self, clock: Clock) -> Clients {
        let config = aws_config::SdkConfig::builder()
            .behavior_version(aws_config::BehaviorVersion::latest())
            .region(aws_config::Region::new("eu-west-1"))
            .credentials_provider(aws_credential_types::provider::SharedCredentialsProvider::new(Role(
                self.world.clone(),
            )))
            .http_client(self.world.aws.http_client())
            .endpoint_url("http://aws.sim")
            .time_source(clock)
            .build();
        let kube = || kube_client(self.world.kube.client_builder());
        Clients { aws: aws_clients(&config), kube: kube(), watches: kube(), webhook: None, collector: None }
    }

    /// Sends a spot warning for the n-th node. Returns the id of the message.
    pub fn spot(&self, n: usize) -> String {
        self.spot_of_age(n, Duration::ZERO)
    }

    /// Sends a spot warning for the n-th node that AWS wrote `age` ago.
    pub fn spot_of_age(&self, n: usize, age: Duration) -> String {
        let at = self.world.clock.now() - age;
        // A test about a forged one has set another status.
        self.world.aws.ec2.interrupt(&instance(n), at);
        self.world.aws.sqs.send(messages::spot(&format!("spot-{n}"), &instance(n), at))
    }

    /// Begins to terminate the n-th node's instance under a hook with this timeout, and sends its notice. Returns the token.
    pub fn terminate(&self, n: usize, timeout: Duration, wrapping: Wrapping) -> String {
        self.world.aws.autoscaling.add_hook("group", "hook", HookSpec::terminating(timeout));
        let token = self.world.aws.autoscaling.begin("group", "hook", &instance(n));
        self.send_terminate(n, &token, wrapping);
        token
    }

    /// Sends the notice of a lifecycle action, for the first time or again.
    pub fn send_terminate(&self, n: usize, token: &str, wrapping: Wrapping) -> String {
        let at = self.world.clock.now();
        let body = messages::lifecycle(wrapping, true, ("group", "hook", token), &instance(n), at);
        self.world.aws.sqs.send(body)
    }

    /// Blocks all pods of the n-th node by a budget, for which they get a label.
    pub fn block(&self, n: usize) {
        let label = node(n);
        for pod in self.world.kube.pods_on(&node(n)) {
            let name = pod.metadata.name.expect("a pod must have a name");
            self.world.kube.update_pod("default", &name, |pod| {
                pod.metadata.labels.get_or_insert_default().insert("app".to_owned(), label.clone());
            });
        }
        let limit = ebbtide_sim::kube::Limit::MaxUnavailable(0);
        self.world.kube.add_budget("default", &format!("budget-{n}"), [("app", label.as_str())], limit);
    }

    /// Removes this budget.
    pub fn unblock(&self, n: usize) {
        self.world.kube.remove_budget("default", &format!("budget-{n}"));
    }

    /// Returns whether the n-th node is cordoned.
    pub fn cordoned(&self, n: usize) -> bool {
        self.world.kube.node(&node(n)).and_then(|node| node.spec?.unschedulable).unwrap_or_default()
    }

    /// Returns the accepted evictions and deletions of pods with this name.
    pub fn ends_of(&self, pod: &str) -> Vec<Evicted> {
        self.world.kube.evictions().into_iter().filter(|ended| ended.name == pod).collect()
    }

    /// Returns the times of all requests to evict a pod with this name.
    pub fn tries_of(&self, pod: &str) -> Vec<Duration> {
        let subject = format!("default/{pod}");
        let tries = self.world.calls.of("create pods/eviction").into_iter();
        tries.filter(|call| call.subject == subject).map(|call| call.at).collect()
    }

    /// Returns whether a pod with this name exists.
    pub fn has_pod(&self, pod: &str) -> bool {
        self.world.kube.pod("default", pod).is_some()
    }

    /// Waits until a condition holds, for at most `within`.
    pub async fn until(&self, what: &str, within: Duration, mut holds: impl FnMut() -> bool) {
        let by = Instant::now() + within;
        // Each check costs real time, even if little virtual time passes between two.
        let step = (within / 1000).max(Duration::from_millis(50));
        while !holds() {
            assert!(Instant::now() < by, "not within {within:?}: {what}\n{}", self.story());
            tokio::time::sleep(step).await;
        }
    }

    /// Waits until every message has been deleted.
    pub async fn until_handled(&self, within: Duration) {
        self.until("every message deleted", within, || self.world.aws.sqs.is_empty()).await;
    }

    /// Ends a test: no transient task is alive in any replica, no lifecycle action gets another heartbeat, and no pod ever got
    /// a grace period of 0, which would remove it from the API while its containers run.
    pub async fn rest(&self, replicas: &[&Replica]) {
        for replica in replicas {
            let gone = replica.tasks.gone(TaskKind::transient);
            let rested = tokio::time::timeout(s(5), gone).await;
            let alive = TaskKind::ALL.map(|kind| (kind.as_str(), replica.tasks.alive(kind)));
            assert!(rested.is_ok(), "tasks live on: {alive:?}\n{}", self.story());
            let text = replica.metrics.render(&replica.tasks);
            for kind in TaskKind::ALL.into_iter().filter(|kind| kind.transient()) {
                let line = format!("ebbtide_tasks{{kind=\"{}\"}} 0", kind.as_str());
                assert!(text.contains(&line), "{line} is missing in\n{text}");
            }
            for gauge in ["ebbtide_pods_blocked 0", "ebbtide_drains_at_risk{deadline=\"hard\"} 0"] {
                assert!(text.contains(gauge), "{gauge} is missing in\n{text}");
            }
            let (report, _) = replica.history.report(Since::Ever, 0);
            let runs = |row: &&Interruption| row.ended.is_none() && !row.is_recorded();
            assert_eq!(report.interruptions.iter().find(runs), None, "the history shows what no longer runs");
            let by_checks = |series: &str| FOR_CHECKS.iter().any(|call| series.contains(call));
            let all: BTreeSet<&str> = text.lines().filter_map(|line| Some(line.rsplit_once(' ')?.0)).collect();
            for series in all.iter().filter(|series| series.contains("_calls_total{") && !by_checks(series)) {
                let (before, after) = series.split_once("outcome=\"").expect("calls are counted by outcome");
                let (_, after) = after.split_once('"').expect("a label's value ends");
                let denied = format!("{before}outcome=\"denied\"{after}");
                assert!(all.contains(&*denied), "denials begin at 0, but not {denied}");
            }
            let messages = |outcome| metric(&text, &format!("ebbtide_messages_total{{outcome=\"{outcome}\"}}"));
            let ended: f64 = ["deleted", "released", "lease-ended", "left"].into_iter().map(messages).sum();
            let open = messages("received") - ended;
            assert!(
                open.abs() < 0.5,
                "{open} messages were received and are not accounted for, or were counted twice\n{text}"
            );
        }
        let beats = self.world.calls.count("RecordLifecycleActionHeartbeat");
        // A leaked heartbeat beats within the timeout of its hook.
        tokio::time::sleep(self.world.aws.autoscaling.longest_timeout().max(s(60))).await;
        assert_eq!(self.world.calls.count("RecordLifecycleActionHeartbeat"), beats, "a heartbeat leaked");
        let forced = self.world.kube.evictions().into_iter().find(|ended| ended.grace == Some(0));
        assert_eq!(forced, None, "{}", self.story());
    }

    /// Asserts that an action was completed once, with CONTINUE.
    pub fn completed_once(&self, token: &str) {
        let action = self.world.aws.autoscaling.action(token).expect("the action must be known");
        let results: Vec<_> = action.completions.iter().map(|(_, result)| result.as_str()).collect();
        assert_eq!(results, ["CONTINUE"], "{action:?}\n{}", self.story());
        assert!(matches!(action.state, ActionState::Completed { .. }), "{action:?}");
    }

    /// Asserts that an action was completed with CONTINUE, by one replica or by several that worked on it: AWS takes the first.
    pub fn completed(&self, token: &str) {
        let action = self.world.aws.autoscaling.action(token).expect("the action must be known");
        let all_continue = action.completions.iter().all(|(_, result)| result == "CONTINUE");
        let is_completed = matches!(action.state, ActionState::Completed { .. });
        assert!(is_completed && all_continue, "{action:?}\n{}", self.story());
    }

    /// Asserts that between two heartbeats of an action there is at least `apart`.
    pub fn beats_apart(&self, token: &str, apart: Duration) {
        let beats = self.world.aws.autoscaling.action(token).expect("the action must be known").beats;
        for pair in beats.windows(2) {
            assert!(pair[1].saturating_sub(pair[0]) >= apart, "two beats within {apart:?}: {beats:?}");
        }
    }

    /// Returns the number of calls of an operation.
    pub fn calls(&self, operation: &str) -> usize {
        self.world.calls.count(operation)
    }

    /// Returns the last calls, for the message of a failed assertion.
    pub fn story(&self) -> String {
        let calls = self.world.calls.all();
        let shown = calls.len().saturating_sub(80);
        calls[shown..]
            .iter()
            .map(|call| {
                format!("{:>9.3}s {} {} → {}\n", call.at.as_secs_f64(), call.operation, call.subject, call.status)
            })
            .collect()
    }
}

impl Replica {
    /// Shuts down in order. Returns the exit and the time that it took.
    pub async fn stop(self) -> (Exit, Duration, Tasks) {
        let begun = Instant::now();
        self.shutdown.ordered.cancel();
        let exit = self.running.await.expect("the service must not panic");
        (exit, begun.elapsed(), self.tasks)
    }

    /// Waits until the replica ends by itself.
    pub async fn ended(self) -> (Exit, Tasks) {
        (self.running.await.expect("the service must not panic"), self.tasks)
    }

    /// Shuts down in order, and aborts `after` that: two signals.
    pub async fn stop_then_abort(self, after: Duration) -> (Exit, Duration, Tasks) {
        let abort = self.shutdown.abort.clone();
        let second = tokio::spawn(async move {
            tokio::time::sleep(after).await;
            abort.cancel();
        });
        let stopped = self.stop().await;
        second.await.expect("the signal must not panic");
        stopped
    }

    /// Ends the replica at once, like `kill -9`: no message is released.
    pub async fn kill(self) -> Tasks {
        self.running.abort();
        let _ = self.running.await;
        self.tasks
    }

    /// Asserts that exactly one notice of this kind has ended, with this outcome.
    pub fn ended_once(&self, kind: &str, outcome: &str) {
        self.all_ended(kind, &[(outcome, 1)]);
    }

    /// Asserts the numbers of notices of this kind by outcome.
    pub fn all_ended(&self, kind: &str, outcomes: &[(&str, usize)]) {
        let text = self.metrics.render(&self.tasks);
        let of_kind = format!("ebbtide_notices_total{{kind=\"{kind}\"");
        let ended: Vec<_> = text.lines().filter(|line| line.starts_with(&of_kind)).collect();
        let wanted = outcomes.iter().map(|(outcome, times)| format!("{of_kind},outcome=\"{outcome}\"}} {times}"));
        assert_eq!(ended, wanted.collect::<Vec<_>>());
    }
}

/// Returns the value of a line of `/metrics`, or 0 if there is none.
pub fn metric(text: &str, line: &str) -> f64 {
    text.lines().find_map(|shown| shown.strip_prefix(line)?.trim().parse().ok()).unwrap_or_default()
}
