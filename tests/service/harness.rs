//! A world, replicas of the service in it, and ways to see what they did.

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
use ebbtide::telemetry::Log;
use ebbtide::telemetry::Metrics;
use ebbtide_sim::World;
use ebbtide_sim::aws::{ActionState, HookSpec};
use ebbtide_sim::kube::{Evicted, Pod};
use ebbtide_sim::messages::{self, Wrapping};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Seconds.
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

/// The instance id of the n-th node.
pub fn instance(n: usize) -> String {
    format!("i-{n:017x}")
}

/// The name of the n-th node.
pub fn node(n: usize) -> String {
    format!("node-{n}")
}

/// A world in which things are put before and while replicas run.
pub struct Stage {
    pub world: World,
}

/// One running service.
pub struct Replica {
    pub tasks: Tasks,
    pub metrics: Arc<Metrics>,
    shutdown: Shutdown,
    running: JoinHandle<Exit>,
}

/// Calls that only the checks at the start make. They warn of a denial by themselves.
const FOR_CHECKS: [&str; 4] = [
    "resource=\"version\"",
    "resource=\"selfsubject",
    "resource=\"poddisruptionbudgets\"",
    "resource=\"nodes\",verb=\"list\"",
];

impl Stage {
    /// A world of `nodes` nodes, each of which is an instance with the managed tag and runs `pods` pods.
    pub fn new(nodes: usize, pods: usize) -> Self {
        // With EBBTIDE_TEST_LOG set, a test that fails tells its story.
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
        Self { world }
    }

    /// A world of one node, with one pod that takes this long to go.
    pub fn slow(takes: Duration) -> Self {
        let stage = Self::new(1, 0);
        stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(takes * 2).stops_in(takes));
        stage
    }

    /// Starts a replica; `flags` as a user would write them.
    pub async fn start(&self, flags: &[&str]) -> Replica {
        self.start_with(flags, |_| {}).await
    }

    /// Starts a replica whose clients are changed first.
    pub async fn start_with(&self, flags: &[&str], change: impl FnOnce(&mut Clients)) -> Replica {
        let url = self.world.aws.sqs.queue_url();
        let mut all = vec!["ebbtide", "run", "--queue-url", &url, "--admin-address", "127.0.0.1:0"];
        // Tests count calls, and have no set-up beside what they are about: one that is about the checks asks for them.
        if !flags.contains(&"--check-at-start") {
            all.extend(["--check-at-start", "false"]);
        }
        all.extend(flags);
        let Command::Run(run) = Cli::try_parse_from(all).expect("a test's flags must be flags").command else {
            panic!("it must be run")
        };
        let settings = Settings::from_flags(run).expect("a test's settings must be valid");
        let clock = Clock::showing(self.world.clock.now());
        let metrics = Arc::new(Metrics::new());
        let facts = Facts::to(vec![Arc::new(Log) as Arc<dyn Subscriber>, Arc::clone(&metrics) as _]);
        let shutdown = Shutdown::default();
        let mut clients = self.clients(clock);
        change(&mut clients);
        let start_checks = settings.check_at_start.then(|| {
            let (settings, clients) = (settings.clone(), clients.clone());
            StartChecks::new(move |gate, facts| doctor::check_at_start(settings, clients, gate, clock, facts))
        });
        let (shown, stops) = (Arc::clone(&metrics), shutdown.clone());
        let inputs = Inputs { settings, clients, clock, facts, metrics: shown, shutdown: stops, start_checks };
        let service = Service::start(inputs).await.expect("a free port must be there");
        let tasks = service.tasks();
        Replica { tasks, metrics, shutdown, running: tokio::spawn(service.run()) }
    }

    /// The clients of a replica.
    pub fn clients(&self, clock: Clock) -> Clients {
        let credentials = aws_credential_types::Credentials::new("sim", "sim", None, None, "sim");
        let config = aws_config::SdkConfig::builder()
            .behavior_version(aws_config::BehaviorVersion::latest())
            .region(aws_config::Region::new("eu-west-1"))
            .credentials_provider(aws_credential_types::provider::SharedCredentialsProvider::new(credentials))
            .http_client(self.world.aws.http_client())
            .endpoint_url("http://aws.sim")
            .time_source(clock)
            .build();
        let kube = || kube_client(self.world.kube.client_builder());
        Clients { aws: aws_clients(&config), kube: kube(), watches: kube() }
    }

    /// Sends a spot warning for the n-th node, and gives the message's id.
    pub fn spot(&self, n: usize) -> String {
        let id = format!("spot-{n}");
        self.world.aws.sqs.send(messages::spot(&id, &instance(n), self.world.clock.now()))
    }

    /// Sends a spot warning for the n-th node that AWS wrote so long ago.
    pub fn spot_of_age(&self, n: usize, age: Duration) -> String {
        let at = self.world.clock.now() - age;
        self.world.aws.sqs.send(messages::spot(&format!("spot-{n}"), &instance(n), at))
    }

    /// Begins to terminate the n-th node's instance under a hook of this timeout, and sends its notice. Gives the token.
    pub fn terminate(&self, n: usize, timeout: Duration, wrapping: Wrapping) -> String {
        self.world.aws.autoscaling.add_hook("group", "hook", HookSpec::terminating(timeout));
        let token = self.world.aws.autoscaling.begin("group", "hook", &instance(n));
        self.send_terminate(n, &token, wrapping);
        token
    }

    /// Sends (again) the notice of a lifecycle action that has just begun.
    pub fn send_terminate(&self, n: usize, token: &str, wrapping: Wrapping) -> String {
        let at = self.world.clock.now();
        let body = messages::lifecycle(wrapping, true, ("group", "hook", token), &instance(n), at);
        self.world.aws.sqs.send(body)
    }

    /// A budget that lets no pod of the n-th node go: its pods get a label for it.
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

    /// Lets the n-th node's pods go again.
    pub fn unblock(&self, n: usize) {
        self.world.kube.remove_budget("default", &format!("budget-{n}"));
    }

    /// Whether the n-th node is cordoned.
    pub fn cordoned(&self, n: usize) -> bool {
        self.world.kube.node(&node(n)).and_then(|node| node.spec?.unschedulable).unwrap_or_default()
    }

    /// The evictions and deletions of a pod of this name that the API server accepted.
    pub fn ends_of(&self, pod: &str) -> Vec<Evicted> {
        self.world.kube.evictions().into_iter().filter(|ended| ended.name == pod).collect()
    }

    /// When the API server was asked to evict a pod of this name, whatever it answered.
    pub fn tries_of(&self, pod: &str) -> Vec<Duration> {
        let subject = format!("default/{pod}");
        let tries = self.world.calls.of("create pods/eviction").into_iter();
        tries.filter(|call| call.subject == subject).map(|call| call.at).collect()
    }

    /// Whether a pod of this name is there.
    pub fn has_pod(&self, pod: &str) -> bool {
        self.world.kube.pod("default", pod).is_some()
    }

    /// Waits, at most so long, until something holds.
    pub async fn until(&self, what: &str, within: Duration, mut holds: impl FnMut() -> bool) {
        let by = Instant::now() + within;
        // Looking costs real time, however little virtual time passes in between.
        let step = (within / 1000).max(Duration::from_millis(50));
        while !holds() {
            assert!(Instant::now() < by, "not within {within:?}: {what}\n{}", self.story());
            tokio::time::sleep(step).await;
        }
    }

    /// Waits until the queue is empty: every message was deleted.
    pub async fn until_handled(&self, within: Duration) {
        self.until("every message deleted", within, || self.world.aws.sqs.is_empty()).await;
    }

    /// The end of every test: no transient task lives in any replica, no lifecycle action hears another heartbeat, and no pod was ever
    /// given a grace period of 0, which would take it from the API while its containers run.
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
            assert!(text.contains("ebbtide_pods_blocked 0"), "{text}");
            let by_checks = |line: &str| FOR_CHECKS.iter().any(|call| line.contains(call));
            for line in text.lines().filter(|line| line.contains("_calls_total{") && !by_checks(line)) {
                let (before, after) = line.split_once("outcome=\"").expect("calls are counted by outcome");
                let (_, after) = after.split_once('"').expect("a label's value ends");
                let (labels, _) = after.rsplit_once(' ').expect("a sample has a value");
                let denied = format!("{before}outcome=\"denied\"{labels}");
                assert!(text.contains(&denied), "denials begin at 0, but not {denied}");
            }
            let messages = |outcome| replica.metric(&format!("ebbtide_messages_total{{outcome=\"{outcome}\"}}"));
            let ended: f64 = ["deleted", "released", "lease-ended", "left"].into_iter().map(messages).sum();
            assert!(messages("received") <= ended, "a message was received, and is not accounted for\n{text}");
        }
        let beats = self.world.calls.count("RecordLifecycleActionHeartbeat");
        tokio::time::sleep(s(1800)).await;
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

    /// Asserts that no two of an action's heartbeats came within less than `apart`.
    pub fn beats_apart(&self, token: &str, apart: Duration) {
        let beats = self.world.aws.autoscaling.action(token).expect("the action must be known").beats;
        for pair in beats.windows(2) {
            assert!(pair[1].saturating_sub(pair[0]) >= apart, "two beats within {apart:?}: {beats:?}");
        }
    }

    /// How many calls of an operation have arrived.
    pub fn calls(&self, operation: &str) -> usize {
        self.world.calls.count(operation)
    }

    /// All calls, for a test that fails.
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
    /// Shuts down in order, and says how it ended and how long it took.
    pub async fn stop(self) -> (Exit, Duration, Tasks) {
        let begun = Instant::now();
        self.shutdown.ordered.cancel();
        let exit = self.running.await.expect("the service must not panic");
        (exit, begun.elapsed(), self.tasks)
    }

    /// Waits until it ends by itself.
    pub async fn ended(self) -> (Exit, Tasks) {
        (self.running.await.expect("the service must not panic"), self.tasks)
    }

    /// Shuts down in order, and at once when this much time has passed: two signals.
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

    /// Ends at once, as `kill -9` would: nothing is released.
    pub async fn kill(self) -> Tasks {
        self.running.abort();
        let _ = self.running.await;
        self.tasks
    }

    /// Asserts that one notice of this kind has ended, and how.
    pub fn ended_once(&self, kind: &str, outcome: &str) {
        self.all_ended(kind, &[(outcome, 1)]);
    }

    /// Asserts how many notices of this kind have ended how.
    pub fn all_ended(&self, kind: &str, outcomes: &[(&str, usize)]) {
        let text = self.metrics.render(&self.tasks);
        let of_kind = format!("ebbtide_notices_total{{kind=\"{kind}\"");
        let ended: Vec<_> = text.lines().filter(|line| line.starts_with(&of_kind)).collect();
        let wanted = outcomes.iter().map(|(outcome, times)| format!("{of_kind},outcome=\"{outcome}\"}} {times}"));
        assert_eq!(ended, wanted.collect::<Vec<_>>());
    }

    /// The value of a metric's line, as `/metrics` shows it; 0 where there is none.
    pub fn metric(&self, line: &str) -> f64 {
        let text = self.metrics.render(&self.tasks);
        let found = text.lines().find_map(|shown| shown.strip_prefix(line)?.trim().parse().ok());
        found.unwrap_or_default()
    }
}
