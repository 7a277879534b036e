//! `ebbtide agent`, with an instance metadata service in memory: what it says, and when, on its Node.

use crate::harness::{Stage, node, s};
use ebbtide::agent::{Agent, AgentMetrics, Metadata};
use ebbtide::clients::connect::kube_client;
use ebbtide::fact::{Fact, Facts, Subscriber};
use ebbtide_sim::fault::{Fault, Rule};
use http::request::Parts;
use http::{Method, Request, Response};
use http_body_util::Full;
use hyper::body::Bytes;
use kube::client::Body;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tower::service_fn;

const ACTION: &str = "/latest/meta-data/spot/instance-action";
const REBALANCE: &str = "/latest/meta-data/events/recommendations/rebalance";
const SCHEDULED: &str = "/latest/meta-data/events/maintenance/scheduled";
const STATE: &str = "/latest/meta-data/autoscaling/target-lifecycle-state";

/// How the service answers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Mood {
    #[default]
    Well,
    Refuses,
    Hangs,
    Answers(u16),
    Nonsense,
    Floods,
}

/// An instance metadata service.
#[derive(Clone, Default)]
struct Service(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    mood: Mood,
    texts: BTreeMap<&'static str, String>,
    /// The paths that are answered with a status and no text.
    statuses: BTreeMap<&'static str, u16>,
    /// The tokens that were given, and the time of the last.
    tokens: Vec<Instant>,
    gets: usize,
    life: Option<Duration>,
}

impl Service {
    fn set(&self, path: &'static str, text: impl Into<String>) {
        self.0.lock().texts.insert(path, text.into());
    }

    fn clear(&self, path: &'static str) {
        self.0.lock().texts.remove(path);
    }

    fn mood(&self, mood: Mood) {
        self.0.lock().mood = mood;
    }

    fn count(&self) -> (usize, usize) {
        let state = self.0.lock();
        (state.tokens.len(), state.gets)
    }

    fn client(&self) -> kube::Client {
        let service = self.clone();
        let answer = move |request: Request<Body>| {
            let (service, head) = (service.clone(), request.into_parts().0);
            async move { service.answer(&head).await }
        };
        kube::Client::new(service_fn(answer), "default")
    }

    async fn answer(&self, head: &Parts) -> Result<Response<Full<Bytes>>, std::io::Error> {
        let mood = self.0.lock().mood;
        let said = |code: u16, text: String| Ok(Response::builder().status(code).body(Full::from(text)).unwrap());
        match mood {
            Mood::Refuses => return Err(std::io::Error::other("connection refused")),
            Mood::Hangs => std::future::pending().await,
            Mood::Answers(code) => return said(code, String::new()),
            _ => {}
        }
        let header = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let mut state = self.0.lock();
        let (path, now) = (head.uri.path().to_owned(), Instant::now());
        if head.method == Method::PUT {
            assert_eq!(
                (&*path, header("x-aws-ec2-metadata-token-ttl-seconds").as_deref()),
                ("/latest/api/token", Some("21600"))
            );
            state.tokens.push(now);
            return said(200, format!("token-{}", state.tokens.len()));
        }
        state.gets += 1;
        let is_valid = state.tokens.last().is_some_and(|at| state.life.is_none_or(|life| now - *at < life));
        if !is_valid || header("x-aws-ec2-metadata-token") != Some(format!("token-{}", state.tokens.len())) {
            return said(401, String::new());
        }
        if let Some(status) = state.statuses.get(&*path) {
            return said(*status, String::new());
        }
        match (mood, state.texts.get(&*path)) {
            (Mood::Nonsense, _) => said(200, "<html>portal</html>".to_owned()),
            (Mood::Floods, _) => said(200, "x".repeat(100_000)),
            (_, Some(text)) => said(200, text.clone()),
            (_, None) => said(404, String::new()),
        }
    }
}

/// Counts the lines that the log would have.
#[derive(Default)]
struct Lines(Mutex<BTreeMap<String, usize>>);

impl Subscriber for Lines {
    fn note(&self, fact: &Fact<'_>) {
        let line = match fact {
            Fact::MetadataFailed { why, again: false } => why.as_str().to_owned(),
            Fact::MetadataAnswer => "answer".to_owned(),
            Fact::AgentWriteFailed { .. } => "refused".to_owned(),
            _ => return,
        };
        *self.0.lock().entry(line).or_default() += 1;
    }
}

/// A running agent.
struct Running {
    service: Service,
    lines: Arc<Lines>,
    metrics: Arc<AgentMetrics>,
    task: JoinHandle<()>,
}

impl Running {
    fn lines(&self, line: &str) -> usize {
        self.lines.0.lock().get(line).copied().unwrap_or_default()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Stage {
    /// Starts the agent of the n-th node, whose instance has this metadata service.
    fn agent(&self, n: usize, service: Service) -> Running {
        let (lines, metrics) = (Arc::new(Lines::default()), Arc::new(AgentMetrics::default()));
        let facts = Facts::to(vec![Arc::clone(&lines) as Arc<dyn Subscriber>, Arc::clone(&metrics) as _]);
        let kube = kube_client(self.world.kube.client_builder());
        let agent = Agent::new(Metadata::new(service.client()), kube, facts, node(n));
        Running { service, lines, metrics, task: tokio::spawn(agent.run()) }
    }

    fn says(&self, n: usize) -> BTreeMap<String, String> {
        self.annotations(n).into_iter().filter(|(name, _)| name.starts_with("ebbtide/says.")).collect()
    }

    fn in_seconds(&self, seconds: u64) -> String {
        jiff::Timestamp::from_second((self.world.clock.now() + s(seconds)).as_second()).unwrap().to_string()
    }
}

fn action(at: &str) -> String {
    format!("{{\"action\": \"terminate\", \"time\": \"{at}\"}}")
}

#[tokio::test(start_paused = true)]
async fn a_spot_warning_in_the_metadata_ends_as_a_drain_in_time() {
    let stage = Stage::new(2, 2);
    let agents = [0, 1].map(|n| stage.agent(n, Service::default()));
    let flags = ["--source", "nodes", "--pod-namespace", "ebbtide", "--pod-name", "a"];
    let replica = stage.start(&flags).await;
    sleep(s(30)).await;
    agents[1].service.set(ACTION, action(&stage.in_seconds(120)));
    stage.until("drained", s(15), || stage.world.kube.pods_on(&node(1)).is_empty()).await;
    assert!(stage.cordoned(1) && !stage.cordoned(0) && stage.says(0).is_empty());
    assert!(agents[1].metrics.text().contains("ebbtide_agent_says{kind=\"spot\"} 1"));
    agents[1].service.clear(ACTION);
    stage.until("taken back", s(30), || !stage.cordoned(1) && stage.says(1).is_empty()).await;
    replica.all_ended("spot", &[("drained", 1), ("withdrawn", 1)]);
    assert!(agents[1].metrics.text().contains("ebbtide_agent_says{kind=\"spot\"} 0"));
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn the_api_server_is_asked_at_the_start_and_when_something_changes() {
    let stage = Stage::new(1, 0);
    // What an agent before has left, and others own.
    stage.annotate(0, "ebbtide/says.rebalance", "{}");
    stage.annotate(0, "ebbtide/ignore", "true");
    let agent = stage.agent(0, Service::default());
    // One silent reading may be a lost answer.
    stage.until("taken back", s(8), || stage.says(0).is_empty()).await;
    sleep(s(240)).await;
    assert_eq!(stage.world.calls.all().len(), 1, "{}", stage.story());
    agent.service.set(REBALANCE, format!("{{\"noticeTime\": \"{}\"}}", stage.in_seconds(0)));
    agent.service.set(STATE, "InService");
    let event = "[{\"NotBefore\": \"21 Jan 2029 09:00:43 GMT\", \"Code\": \"system-reboot\", \"EventId\": \"instance-event-1\", \"State\": \"active\"}]";
    agent.service.set(SCHEDULED, event);
    sleep(s(240)).await;
    let says = stage.says(0);
    assert_eq!(says.keys().collect::<Vec<_>>(), ["ebbtide/says.maintenance", "ebbtide/says.rebalance"]);
    assert_eq!(
        says["ebbtide/says.maintenance"],
        "{\"what\":\"system-reboot\",\"at\":\"2029-01-21T09:00:43Z\",\"id\":\"instance-event-1\"}"
    );
    agent.service.set(STATE, "Terminated");
    agent.service.set(SCHEDULED, "[]");
    sleep(s(240)).await;
    assert_eq!(stage.says(0).into_keys().collect::<Vec<_>>(), ["ebbtide/says.rebalance", "ebbtide/says.termination"]);
    // The removal waits for three readings.
    assert_eq!(stage.calls("patch nodes"), 4, "{}", stage.story());
    assert_eq!(stage.world.calls.all().len(), 4, "nothing but patches");
    assert_eq!(stage.annotations(0)["ebbtide/ignore"], "true");
}

#[tokio::test(start_paused = true)]
async fn a_service_that_fails_is_told_once_and_takes_nothing_back() {
    let is_ready = |agent: &Running| agent.metrics.ready().is_ok();
    for (mood, reason) in [
        (Mood::Refuses, "unreachable"),
        (Mood::Hangs, "timed-out"),
        (Mood::Answers(429), "throttled"),
        (Mood::Answers(500), "throttled"),
        (Mood::Answers(403), "refused"),
        (Mood::Nonsense, "nonsense"),
        (Mood::Floods, "nonsense"),
    ] {
        let stage = Stage::new(1, 0);
        let agent = stage.agent(0, Service::default());
        agent.service.set(ACTION, action(&stage.in_seconds(120)));
        stage.until("said", s(5), || stage.says(0).len() == 1).await;
        agent.service.mood(mood);
        let before = agent.service.count().1;
        sleep(s(3600)).await;
        assert_eq!((agent.lines(reason), stage.says(0).len(), stage.calls("patch nodes")), (1, 1, 1), "{mood:?}");
        let asked = agent.service.count().1 - before;
        assert!(asked < 4 * 300, "{asked} questions in an hour while {mood:?}");
        // Where nothing answers as EC2 does, there is nothing that a rollout could wait for.
        assert_eq!(is_ready(&agent), reason == "unreachable", "{mood:?}: {:?}", agent.metrics.ready());
        let told = agent.metrics.ready().unwrap_or_else(|why| why);
        assert!(told.contains(reason), "{mood:?}: {told}");
        let counted = format!("ebbtide_agent_metadata_failures_total{{reason=\"{reason}\"}} 0");
        assert!(!agent.metrics.text().contains(&counted), "{}", agent.metrics.text());
        agent.service.mood(Mood::Well);
        agent.service.clear(ACTION);
        stage.until("taken back", s(60), || stage.says(0).is_empty()).await;
        assert_eq!((agent.lines("answer"), is_ready(&agent)), (1, true), "{mood:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_no_instance_of_ec2_is_left_alone() {
    for (mood, reason) in [(Mood::Refuses, "unreachable"), (Mood::Hangs, "no-token"), (Mood::Answers(404), "not-ec2")] {
        let stage = Stage::new(1, 0);
        let service = Service::default();
        service.mood(mood);
        let agent = stage.agent(0, service);
        sleep(s(3600)).await;
        assert_eq!((agent.lines(reason), stage.world.calls.all().len()), (1, 0), "{mood:?}");
        // A service that gives no token is there: the hop limit.
        let told = agent.metrics.ready();
        assert_eq!(told.is_ok(), reason != "no-token", "{told:?}");
        assert!(
            told.is_ok() || told.is_err_and(|why| why.contains("set agent.hostNetwork=true in the chart")),
            "{mood:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_takes_nothing_back() {
    let stage = Stage::new(1, 0);
    let agent = stage.agent(0, Service::default());
    let said = action(&stage.in_seconds(120));
    agent.service.set(ACTION, said.clone());
    stage.until("said", s(5), || stage.says(0).len() == 1).await;
    for _ in 0..10 {
        agent.service.clear(ACTION);
        sleep(s(3)).await;
        agent.service.set(ACTION, said.clone());
        sleep(s(5)).await;
    }
    // The kinds that are not announced are written after three readings.
    assert_eq!((stage.says(0).len(), stage.calls("patch nodes")), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn what_somebody_removed_is_said_again() {
    let stage = Stage::new(1, 0);
    let agent = stage.agent(0, Service::default());
    agent.service.set(REBALANCE, r#"{"noticeTime":"2026-11-24T12:00:00Z"}"#);
    sleep(s(5)).await;
    assert_eq!(stage.says(0).len(), 1);
    stage.world.kube.update_node(&node(0), |node| {
        node.metadata.annotations.get_or_insert_default().remove("ebbtide/says.rebalance");
    });
    sleep(s(610)).await;
    assert_eq!(stage.says(0).len(), 1, "{}", stage.story());
}

/// A proxy filters another path for good.
#[tokio::test(start_paused = true)]
async fn what_somebody_removed_is_said_again_though_another_path_has_no_answer() {
    let stage = Stage::new(1, 0);
    let agent = stage.agent(0, Service::default());
    agent.service.0.lock().statuses.insert(ACTION, 403);
    agent.service.set(REBALANCE, r#"{"noticeTime":"2026-11-24T12:00:00Z"}"#);
    stage.until("said", s(5), || stage.says(0).len() == 1).await;
    stage.world.kube.update_node(&node(0), |node| {
        node.metadata.annotations.get_or_insert_default().remove("ebbtide/says.rebalance");
    });
    sleep(s(610)).await;
    assert_eq!(stage.says(0).len(), 1, "{}", stage.story());
}

/// AWS calls the time approximate, and its mock counts it from each question.
#[tokio::test(start_paused = true)]
async fn a_time_that_moves_a_little_is_the_same_notice() {
    let stage = Stage::new(1, 0);
    let agent = stage.agent(0, Service::default());
    for n in 0..200 {
        agent.service.set(ACTION, action(&stage.in_seconds(120)));
        stage.until("said", s(5), || stage.says(0).len() == 1).await;
        sleep(s(2)).await;
        assert!(stage.calls("patch nodes") <= 4, "{n}");
    }
    let patches = stage.calls("patch nodes");
    agent.service.set(ACTION, action(&stage.in_seconds(1200)));
    sleep(s(10)).await;
    assert_eq!(stage.calls("patch nodes"), patches + 1);
}

#[tokio::test(start_paused = true)]
async fn a_token_is_renewed_at_half_of_its_life_and_when_it_is_refused() {
    let stage = Stage::new(1, 0);
    let agent = stage.agent(0, Service::default());
    sleep(Duration::from_hours(3) - s(60)).await;
    assert_eq!(agent.service.count().0, 1);
    sleep(s(120)).await;
    assert_eq!(agent.service.count().0, 2);
    agent.service.0.lock().life = Some(s(1800));
    sleep(Duration::from_hours(2)).await;
    assert!((5..=7).contains(&agent.service.count().0), "{:?}", agent.service.count());
    assert_eq!(agent.lines("refused"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_patch_that_is_refused_is_tried_again_and_told_once() {
    let stage = Stage::new(1, 0);
    let agent = stage.agent(0, Service::default());
    sleep(s(10)).await;
    stage.world.faults.add(Rule::on("patch nodes", Fault::Status(403)));
    agent.service.set(ACTION, action(&stage.in_seconds(120)));
    sleep(s(300)).await;
    assert_eq!((agent.lines("refused"), stage.says(0).len()), (1, 0));
    let tries = stage.calls("patch nodes");
    assert!((10..40).contains(&tries), "{tries} tries");
    stage.world.faults.clear();
    stage.until("said", s(40), || stage.says(0).len() == 1).await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_is_ready_once_it_has_patched_its_node() {
    let stage = Stage::new(1, 0);
    stage.world.faults.add(Rule::on("patch nodes", Fault::Status(403)));
    let agent = stage.agent(0, Service::default());
    sleep(s(1)).await;
    assert_eq!(agent.metrics.ready(), Err("the agent starts\n".to_owned()));
    sleep(s(60)).await;
    let why = agent.metrics.ready().unwrap_err();
    assert_eq!((why.as_str(), agent.lines("refused")), ("the Node can't be patched; see the log\n", 1));
    stage.world.faults.clear();
    stage.until("ready", s(40), || agent.metrics.ready() == Ok("ok\n".to_owned())).await;
}

/// What a patch without an answer has written is taken back as anything else, and a patch that failed leaves no agent unready for ever.
#[tokio::test(start_paused = true)]
async fn a_patch_without_an_answer_may_have_been_made() {
    let stage = Stage::new(1, 0);
    let agent = stage.agent(0, Service::default());
    sleep(s(10)).await;
    stage.world.faults.add(Rule::on("patch nodes", Fault::LostResponse));
    agent.service.set(ACTION, action(&stage.in_seconds(120)));
    stage.until("said", s(5), || stage.says(0).len() == 1).await;
    agent.service.clear(ACTION);
    sleep(s(10)).await;
    assert!(agent.metrics.ready().is_err());
    stage.world.faults.clear();
    stage.until("taken back", s(60), || stage.says(0).is_empty() && agent.metrics.ready().is_ok()).await;
}

/// A proxy filters one path, for instance.
#[tokio::test(start_paused = true)]
async fn a_failure_of_one_path_hides_no_other_and_takes_nothing_back() {
    for (status, reason) in
        [(Some(302), "nonsense"), (Some(403), "refused"), (Some(502), "throttled"), (None, "nonsense")]
    {
        let stage = Stage::new(1, 0);
        let agent = stage.agent(0, Service::default());
        agent.service.set(ACTION, action(&stage.in_seconds(120)));
        stage.until("said", s(5), || stage.says(0).len() == 1).await;
        match status {
            Some(status) => drop(agent.service.0.lock().statuses.insert(ACTION, status)),
            None => agent.service.set(ACTION, "x".repeat(64 * 1024 + 1)),
        }
        sleep(s(60)).await;
        agent.service.set(STATE, "Terminated");
        stage.until("said, too", s(5), || stage.says(0).len() == 2).await;
        sleep(s(600)).await;
        assert_eq!((agent.lines(reason), stage.says(0).len()), (1, 2), "{status:?}");
        agent.service.0.lock().statuses.clear();
        agent.service.clear(ACTION);
        stage.until("taken back", s(20), || stage.says(0).len() == 1).await;
        assert_eq!((agent.lines("answer"), agent.metrics.ready().is_ok()), (1, true), "{status:?}");
    }
}

/// A scale-in sends the instance back to its group's warm pool. An instance that is launched into the pool has the same state, and an agent
/// that starts anew must not take back what the one before has written.
#[tokio::test(start_paused = true)]
async fn an_instance_that_goes_back_to_the_warm_pool_says_so() {
    let stage = Stage::new(1, 0);
    let agent = stage.agent(0, Service::default());
    agent.service.set(STATE, "Warmed:Running");
    sleep(s(60)).await;
    assert_eq!(stage.says(0).len(), 0, "launched into the pool");
    agent.service.set(STATE, "InService");
    sleep(s(60)).await;
    agent.service.set(STATE, "Warmed:Stopped");
    stage.until("said", s(5), || stage.says(0).contains_key("ebbtide/says.termination")).await;
    let again = stage.agent(0, Service::default());
    again.service.set(STATE, "Warmed:Stopped");
    sleep(s(60)).await;
    assert_eq!(stage.says(0).len(), 1, "{}", stage.story());
    agent.service.set(STATE, "InService");
    stage.until("taken back", s(20), || stage.says(0).is_empty()).await;
}

/// A filter answers as a service that is overloaded, for the first path alone.
#[tokio::test(start_paused = true)]
async fn a_path_that_is_kept_from_the_agent_hides_no_other() {
    let stage = Stage::new(1, 0);
    let agent = stage.agent(0, Service::default());
    agent.service.0.lock().statuses.insert(ACTION, 503);
    agent.service.set(STATE, "Terminated");
    stage.until("said", s(5), || stage.says(0).len() == 1).await;
    assert_eq!(agent.lines("throttled"), 1);
}

/// An instance has several scheduled events, and the one that was announced last begins first.
#[tokio::test(start_paused = true)]
async fn all_scheduled_events_are_said_and_each_is_a_notice() {
    let stage = Stage::new(1, 2);
    let agent = stage.agent(0, Service::default());
    let flags = ["--source", "nodes", "--pod-namespace", "ebbtide", "--pod-name", "a"];
    let replica = stage.start(&[&flags[..], &["--when", "scheduled-change=2h-before"]].concat()).await;
    let event = |id: u8, code: &str, hours: u64| {
        let at: jiff::Timestamp = stage.in_seconds(hours * 3600).parse().unwrap();
        let at = at.strftime("%d %b %Y %H:%M:%S GMT");
        format!(
            "{{\"NotBefore\": \"{at}\", \"Code\": \"{code}\", \"EventId\": \"instance-event-{id}\", \"State\": \"active\"}}"
        )
    };
    let reboot = event(1, "system-reboot", 240);
    agent.service.set(SCHEDULED, format!("[{reboot}]"));
    let plans = || stage.plans(0).len();
    stage.until("planned", s(60), || plans() == 1).await;
    agent.service.set(SCHEDULED, format!("[{reboot}, {}]", event(2, "instance-stop", 3)));
    stage.until("both are planned", s(60), || plans() == 2).await;
    stage.until("drained before the stop", s(3600 + 120), || stage.world.kube.pods().is_empty()).await;
    stage.until("only the reboot is planned", s(120), || plans() == 1).await;
    assert!(stage.says(0)["ebbtide/says.maintenance"].starts_with('['), "{:?}", stage.says(0));
    // The stop is over: nothing of the reboot is taken back.
    agent.service.set(SCHEDULED, format!("[{reboot}]"));
    stage.until("taken back", s(60), || !stage.cordoned(0)).await;
    assert_eq!(plans(), 1, "{}", stage.story());
    stage.rest(&[&replica]).await;
}
