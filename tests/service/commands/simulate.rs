//! `ebbtide simulate`: its prediction is what the service does, and it changes nothing.

use crate::harness::{Stage, instance, node, s};
use clap::Parser;
use ebbtide::cli::{Answer, Cli, Command};
use ebbtide::commands::simulate::simulate_with;
use ebbtide::runtime::Clock;
use ebbtide_sim::aws::{GroupSpec, HookSpec, TargetGroupSpec};
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::{Deployment, Limit, Pod};
use ebbtide_sim::messages::{self, Wrapping};
use jiff::Timestamp;
use serde_json::Value;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::sleep;

/// Calls that change neither the cluster nor AWS.
const READS: [&str; 13] = [
    "get replicasets",
    "get deployments",
    "get nodes",
    "list nodes",
    "list pods",
    "list poddisruptionbudgets",
    "DescribeInstances",
    "DescribeLifecycleHooks",
    "DescribeAutoScalingInstances",
    "DescribeAutoScalingGroups",
    "DescribeTargetGroups",
    "DescribeTags",
    "list targetgroupbindings",
];

impl Stage {
    /// Runs `ebbtide simulate` with these flags.
    pub(super) async fn simulate(&self, flags: &[&str]) -> Answer {
        self.simulate_at(self.world.clock.now(), flags).await
    }

    /// Runs it at this time, and asserts that it only reads.
    async fn simulate_at(&self, now: Timestamp, flags: &[&str]) -> Answer {
        let all = ["ebbtide", "simulate"].iter().chain(flags);
        let Command::Simulate(flags) = Cli::try_parse_from(all).expect("a test's flags must be flags").command else {
            panic!("it must be simulate")
        };
        let clock = Clock::showing(now);
        let before = (self.world.kube.nodes(), self.world.kube.pods(), self.world.calls.tally());
        let answer = simulate_with(&self.clients(clock), clock, *flags).await;
        let mut tally = self.world.calls.tally();
        tally.retain(|operation, times| before.2.get(operation) != Some(times));
        let writes: Vec<_> = tally.keys().filter(|operation| !READS.contains(&operation.as_str())).collect();
        assert!(writes.is_empty(), "it made other calls than reads: {writes:?}");
        assert!(before.0 == self.world.kube.nodes() && before.1 == self.world.kube.pods(), "something was changed");
        answer
    }

    /// Returns the JSON that it prints.
    async fn simulated(&self, flags: &[&str]) -> Value {
        let mut all = vec!["--output", "json"];
        all.extend(flags);
        let answer = self.simulate(&all).await;
        assert_eq!((answer.code, answer.problems.as_str()), (0, ""), "{}", answer.output);
        serde_json::from_str(&answer.output).expect("it must be JSON")
    }

    /// Returns the JSON for the body of a message.
    async fn simulated_body(&self, body: &str, flags: &[&str]) -> Value {
        let file = Body::holding(body.as_bytes());
        let mut all = vec![file.0.as_str()];
        all.extend(flags);
        self.simulated(&all).await["notices"][0].take()
    }
}

/// A temporary file with the body of a message.
struct Body(String);

impl Body {
    fn holding(body: &[u8]) -> Self {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let name = format!("ebbtide-simulate-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, body).expect("a temporary file must be writable");
        Self(path.to_str().expect("its path must be text").to_owned())
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn names(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(|each| each["name"].as_str()).collect()
}

/// Returns a world of one node with a pod of each sort, one of them blocked by a budget.
fn all_sorts() -> Stage {
    let stage = Stage { quiet_time: s(1), ..Stage::new(1, 0) };
    let on = || Pod::on("node-0").stops_in(s(2));
    stage.world.kube.add_pod(on().named("web-1"));
    stage.world.kube.add_pod(on().named("web-2").grace(s(60)));
    stage.world.kube.add_pod(on().named("db-0").labels([("app", "db")]));
    stage.world.kube.add_pod(on().named("dns-1").namespace("kube-system").priority(2_000_000_000));
    stage.world.kube.add_pod(on().named("agent-1").daemonset());
    stage.world.kube.add_pod(on().named("job-1").phase("Succeeded"));
    stage.world.kube.add_pod(on().named("proxy").namespace("kube-system").mirror());
    stage.world.kube.add_budget("default", "db", [("app", "db")], Limit::MaxUnavailable(0));
    stage
}

#[tokio::test(start_paused = true)]
async fn every_kind_of_test_message_is_simulated_without_changes() {
    let stage = all_sorts();
    stage.world.aws.autoscaling.add_hook("group", "going", HookSpec::terminating(s(300)));
    stage.world.aws.autoscaling.add_hook("group", "coming", HookSpec::launching(s(300)));
    stage.world.aws.autoscaling.join("group", &instance(0));
    for (kind, action, deadline, pods) in [
        ("asg-terminate", "drain", Some((960, true)), 5),
        ("asg-launch", "ready", Some((270, true)), 0),
        ("spot", "drain", Some((120, true)), 5),
        ("rebalance", "cordon", Some((3600, false)), 0),
        ("state-change", "drain", Some((120, false)), 5),
        ("scheduled-change", "drain", Some((3600, false)), 5),
        ("capacity-reservation", "drain", Some((120, true)), 5),
    ] {
        let told = stage.simulated(&["--kind", kind, "--node", "node-0", "--on", "asg-launch=ready"]).await;
        assert_eq!(told["message"]["made"]["region"], "eu-west-1", "{kind}");
        let notice = &told["notices"][0];
        assert_eq!((&notice["kind"], &notice["action"]), (&kind.into(), &action.into()));
        assert_eq!((&notice["instance"], &notice["test"]), (&instance(0).into(), &true.into()), "{kind}");
        let found = notice["deadline"]["in_seconds"].as_i64().zip(notice["deadline"]["hard"].as_bool());
        let near = found.zip(deadline).is_some_and(|(a, b)| a.1 == b.1 && (b.0 - 1..=b.0).contains(&a.0));
        assert!(near, "{kind}: {found:?}, not {deadline:?}");
        assert_eq!(notice["pods"].as_array().map(Vec::len), Some(pods), "{kind}");
        let hook = kind.starts_with("asg").then_some(if kind == "asg-launch" { "coming" } else { "going" });
        assert_eq!(notice["hook"]["name"].as_str(), hook, "{kind}");
        let text = stage.simulate(&["--kind", kind, "--node", "node-0"]).await;
        let wide = text.output.lines().find(|line| line.chars().count() > 100);
        assert_eq!((text.code, wide), (0, None), "{kind}: {}", text.output);
    }
}

#[tokio::test(start_paused = true)]
async fn the_prediction_for_a_blocked_spot_drain_comes_true() {
    let stage = all_sorts();
    let body = messages::spot("s-1", &instance(0), stage.world.clock.now());
    let notice = stage.simulated_body(&body, &[]).await;
    assert_eq!(names(&notice["pods"]), ["db-0", "web-1", "web-2", "dns-1", "job-1"]);
    assert_eq!(names(&notice["stay"]), ["agent-1", "proxy"]);
    assert_eq!(names(&notice["budgets"]), ["db"]);
    assert_eq!(notice["pods"][0]["held_back_by"], serde_json::json!(["budget db"]));
    let foretold = |pod: usize, field: &str| notice["pods"][pod][field]["in_seconds"].as_u64().map(s);

    let replica = stage.start(&[]).await;
    let begun = stage.world.clock.elapsed();
    stage.world.aws.sqs.send(body);
    stage.until_handled(s(130)).await;
    let at = |pod: &str| stage.ends_of(pod).first().map(|ended| ended.at.saturating_sub(begun));
    let near = |at: Option<Duration>, foretold: Option<Duration>| {
        at.zip(foretold).is_some_and(|(at, foretold)| at.abs_diff(foretold) < s(2))
    };
    assert!(near(at("db-0"), foretold(0, "deleted_at")), "{:?} {:?}", at("db-0"), foretold(0, "deleted_at"));
    assert!(near(at("web-1"), foretold(1, "evicted_by")), "{:?}", at("web-1"));
    assert!(near(at("dns-1"), foretold(3, "evicted_by")), "{:?} {:?}", at("dns-1"), foretold(3, "evicted_by"));
    assert!(stage.ends_of("agent-1").is_empty());
    let marks = stage.world.kube.node("node-0").unwrap().metadata.annotations.unwrap();
    let keys: Vec<_> = notice["marks"]["annotations"].as_object().unwrap().keys().collect();
    assert_eq!(keys, marks.keys().filter(|key| key.starts_with("ebbtide/")).collect::<Vec<_>>());
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn the_tiers_of_the_user_are_foretold_with_their_shares() {
    let stage = Stage { quiet_time: s(1), ..Stage::new(1, 0) };
    for (name, priority) in [("db-0", 1_000_000), ("queue-0", 10_000), ("web-0", 0)] {
        stage
            .world
            .kube
            .add_pod(Pod::on("node-0").named(name).priority(priority).labels([("app", name)]).stops_in(s(2)));
    }
    stage.world.kube.add_budget("default", "web", [("app", "web-0")], Limit::MaxUnavailable(0));
    let flags = ["--priority-tier", "0,10000,1000000"];
    let body = messages::spot("s-1", &instance(0), stage.world.clock.now());
    let notice = stage.simulated_body(&body, &flags).await;
    assert_eq!(names(&notice["pods"]), ["web-0", "queue-0", "db-0"]);
    let tiers: Vec<_> = (0..3).map(|pod| notice["pods"][pod]["tier"].as_str().unwrap()).collect();
    assert_eq!(tiers, ["ordinary", "10000", "1000000"]);
    let notes = notice["notes"].to_string();
    assert!(notes.contains("3 tiers of pods (--priority-tier) share the time to the deadline, 39s each: "), "{notes}");
    let by_default = stage.simulated_body(&body, &[]).await;
    assert!(!by_default["notes"].to_string().contains("tiers"), "{by_default:#}");

    let replica = stage.start(&flags).await;
    let begun = stage.world.clock.elapsed();
    stage.world.aws.sqs.send(body);
    stage.until_handled(s(130)).await;
    for (pod, name) in [(1, "queue-0"), (2, "db-0")] {
        let foretold = s(notice["pods"][pod]["evicted_by"]["in_seconds"].as_u64().unwrap());
        let at = stage.tries_of(name)[0].saturating_sub(begun);
        assert!(at.abs_diff(foretold) < s(2), "{name} at {at:?}, not {foretold:?}");
    }
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_notice_that_aws_has_to_confirm_names_the_evidence() {
    let stage = Stage::new(1, 1);
    let spot = ["--kind", "spot", "--node", "node-0"];
    for (flags, says) in [
        (&["--verify", "always"][..], "before AWS confirms that its spot request is marked for interruption"),
        (&["--max-draining", "1"], "beyond --max-draining nothing is done before AWS confirms that its spot request"),
        (&["--max-draining", "1", "--verify", "never"], "reported as unusual, and drained"),
    ] {
        let told = stage.simulated(&[&spot[..], flags].concat()).await;
        assert!(told["notices"][0]["notes"][0].as_str().is_some_and(|note| note.contains(says)), "{flags:?}: {told:#}");
    }
    assert_eq!(stage.simulated(&spot).await["notices"][0]["notes"], serde_json::json!([]));
}

#[tokio::test(start_paused = true)]
async fn the_prediction_for_a_hook_comes_true() {
    let stage = Stage::slow(s(200));
    let token = {
        stage.world.aws.autoscaling.add_hook("group", "hook", HookSpec::terminating(s(60)));
        stage.world.aws.autoscaling.begin("group", "hook", &instance(0))
    };
    let body =
        messages::lifecycle(Wrapping::Event, true, ("group", "hook", &token), &instance(0), stage.world.clock.now());
    let flags = ["--drain-timeout", "5m", "--events", "none"];
    let notice = stage.simulated_body(&body, &flags).await;
    assert_eq!(notice["hook"]["heartbeat_timeout_seconds"], 60);
    assert_eq!(notice["hook"]["first_heartbeats"][0]["in_seconds"], 30);
    assert_eq!(notice["hook"]["heartbeats"], 8, "one each half-time, the last of which lasts until 300 s");
    let replica = stage.start(&flags).await;
    stage.world.aws.sqs.send(body);
    stage.until_handled(s(310)).await;
    // The pod stops after 200 s of the 300, and each heartbeat may go out a tenth earlier.
    assert!((5..=7).contains(&stage.calls("RecordLifecycleActionHeartbeat")), "{}", stage.story());
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_message_that_needs_no_action_says_why_without_any_call() {
    let stage = Stage::new(1, 1);
    let at = stage.world.clock.now();
    let running = messages::state_change("s", &instance(0), "running", at);
    let unknown = messages::event("aws.s3", "Object Created", "e", at, &serde_json::json!({}));
    for (body, reason) in [(running, "harmless-state"), (unknown, "unknown-type")] {
        let file = Body::holding(body.as_bytes());
        let told = stage.simulated(&[&file.0]).await;
        assert_eq!((&told["message"]["is"], &told["message"]["reason"]), (&"ignored".into(), &reason.into()));
        let text = stage.simulate(&[&file.0]).await;
        assert!(text.output.contains(reason) && text.code == 0, "{text:?}");
    }
    assert_eq!(stage.world.calls.all(), []);
}

#[tokio::test(start_paused = true)]
async fn a_capacity_blocks_instances_are_asked_for() {
    let stage = Stage::new(2, 1);
    stage.world.aws.ec2.reserve(&instance(1), "cr-1");
    let at = stage.world.clock.now();
    let block = |reservation| Body::holding(messages::capacity_block("e", reservation, at, at + s(2400)).as_bytes());
    let (reserved, empty) = (block("cr-1"), block("cr-2"));
    let told = stage.simulated(&[&reserved.0]).await;
    let notices = told["notices"].as_array().unwrap();
    assert_eq!((notices.len(), &notices[0]["instance"]), (1, &instance(1).into()));
    assert_eq!(notices[0]["deadline"]["in_seconds"], 600);
    assert_eq!(stage.simulated(&[&empty.0]).await["message"]["reason"], "empty-reservation");
}

#[tokio::test(start_paused = true)]
async fn a_change_that_waits_and_a_fault_name_their_settings() {
    let stage = Stage::new(1, 1);
    let (at, code) = (stage.world.clock.now(), "AWS_EC2_INSTANCE_STOP_SCHEDULED");
    let change = messages::scheduled_change("c", code, &[&instance(0)], at, at + s(86_400));
    let told = stage.simulated_body(&change, &["--when", "scheduled-change=2h-before"]).await;
    assert_eq!(told["ends"]["outcome"], "planned");
    assert!(told["notes"][0].as_str().unwrap().contains("is drained from"), "{told}");
    let closed = change.replace("\"upcoming\"", "\"closed\"");
    assert_eq!(stage.simulated_body(&closed, &[]).await["ends"]["outcome"], "withdrawn");
    let fault = Body::holding(change.replace("\"scheduledChange\"", "\"issue\"").as_bytes());
    let text = stage.simulate(&[&fault.0, "--health-issue", &format!("{code}=cordon")]).await.output;
    assert!(text.contains(&format!("cordon (--health-issue {code}=cordon)")), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_malformed_message_is_reported_with_its_position() {
    let stage = Stage::new(1, 1);
    let spot = messages::spot("s", &instance(0), stage.world.clock.now());
    let no_instance = spot.replace("instance-id", "instance");
    let huge = vec![b' '; 1024 * 1024 + 1];
    for (body, says) in [
        (&b""[..], "is empty"),
        (b"  \n", "is empty"),
        (&spot.as_bytes()[..spot.len() / 2], "body: EOF while parsing"),
        (b"\x00\xff\xfe", "byte 1 is not UTF-8"),
        (b"[1]", "body: a list where an object is expected"),
        (b"{}", "body: neither an event"),
        (no_instance.as_bytes(), "detail.instance-id: missing"),
        (&huge, "more than the 1 MiB"),
        (br#"{"Messages":[{"Body":"{}"}]}"#, "--query 'Messages[0].Body'"),
    ] {
        let file = Body::holding(body);
        let answer = stage.simulate(&[&file.0]).await;
        assert_eq!((answer.code, answer.output.as_str()), (2, ""), "{says}");
        assert!(answer.problems.contains(says) && answer.problems.lines().count() == 1, "{says}: {}", answer.problems);
    }
    let file = Body::holding(no_instance.as_bytes());
    let answer = stage.simulate(&[&file.0, "--output", "json"]).await;
    let told: Value = serde_json::from_str(&answer.output).expect("it must be JSON");
    assert_eq!((answer.code, &told["message"]["at"]), (2, &"detail.instance-id".into()));
    assert_eq!((&told["message"]["is"], &told["message"]["reason"]), (&"malformed".into(), &"missing-field".into()));
    assert_eq!(told["error"], answer.problems.as_str());
    for (flags, says) in [
        (&["--kind", "spot", "--node", "node-0", "--on", "spot=explode"][..], "--on: "),
        (&["no/such/file"], "can't be opened"),
    ] {
        let answer = stage.simulate(flags).await;
        assert!(answer.code == 2 && answer.problems.contains(says), "{answer:?}");
    }
    assert_eq!(stage.world.calls.all(), []);
}

/// A script that reads the JSON finds every kind of error in it.
#[tokio::test(start_paused = true)]
async fn errors_are_printed_as_json_too() {
    let stage = Stage::new(1, 1);
    let spot = Body::holding(messages::spot("s", &instance(0), stage.world.clock.now()).as_bytes());
    assert_eq!(stage.simulated(&[&spot.0]).await["error"], Value::Null);
    stage.world.faults.add(Rule::on("list pods", Fault::Status(403)));
    let made = ["--kind", "spot", "--node", "nowhere"];
    for (flags, says) in [(&[spot.0.as_str()][..], "list pods"), (&made, "there is no Node \"nowhere\"")] {
        let text = stage.simulate(flags).await;
        assert_eq!((text.code, text.output.as_str()), (1, ""));
        assert!(text.problems.contains(says), "{text:?}");
        let answer = stage.simulate(&[flags, &["--output", "json"]].concat()).await;
        assert_eq!((answer.code, &answer.problems), (1, &text.problems));
        let told: Value = serde_json::from_str(&answer.output).expect("it must be JSON");
        assert_eq!((&told["message"]["is"], &told["notices"]), (&"unanswered".into(), &serde_json::json!([])));
        assert_eq!(told["error"], answer.problems.as_str());
    }
}

#[tokio::test(start_paused = true)]
async fn an_instance_without_a_node_is_waited_for_or_belongs_to_another_cluster() {
    let stage = Stage::new(1, 0);
    let tag = ("aws-node-termination-handler/managed", "true");
    stage.world.aws.ec2.put(&instance(0), &[("kubernetes.io/cluster/mine", "owned")]);
    stage.world.aws.ec2.put(&instance(7), &[tag, ("kubernetes.io/cluster/mine", "owned")]);
    stage.world.aws.ec2.put(&instance(8), &[("Name", "theirs")]);
    stage.world.aws.ec2.put(&instance(6), &[tag, ("kubernetes.io/cluster/other", "owned")]);
    stage.world.aws.ec2.put(&instance(5), &[tag]);
    stage.world.aws.ec2.age(&instance(5), s(3600));
    let at = stage.world.clock.now();
    let ours = stage.simulated_body(&messages::spot("s", &instance(7), at), &[]).await;
    assert_eq!((&ours["owner"]["ours"], &ours["node"]), (&true.into(), &Value::Null));
    let wait = (&ours["waits"]["what"], &ours["waits"]["until"]["in_seconds"], &ours["waits"]["then"]);
    assert_eq!(wait, (&"the instance registers as a Node".into(), &120.into(), &"nothing-to-drain".into()));

    let hook = messages::lifecycle(Wrapping::Bare, true, ("group", "hook", "t"), &instance(7), at);
    stage.world.aws.autoscaling.add_hook("group", "hook", HookSpec::terminating(s(300)));
    let held = stage.simulated_body(&hook, &["--registration-grace", "45s"]).await;
    assert_eq!(held["waits"]["until"]["in_seconds"], 45);
    assert_eq!(held["waits"]["then"], "nothing-to-drain: the hook is completed with CONTINUE");
    assert_eq!(held["owner"]["why"], "it carries the tag aws-node-termination-handler/managed");

    let unproven = messages::lifecycle(Wrapping::Event, true, ("group", "hook", "t"), &instance(5), at);
    let left = stage.simulated_body(&unproven, &[]).await;
    assert_eq!((&left["owner"]["ours"], &left["ends"]["outcome"]), (&Value::Null, &"not-ours".into()), "{left}");

    for (n, why) in [
        (8, "it has no Node here, and it does not carry the tag"),
        (6, "it has no Node here, and its tags name another cluster"),
        (9, "EC2 does not know it"),
    ] {
        let theirs = stage.simulated_body(&messages::spot("s", &instance(n), at), &[]).await;
        assert_eq!((&theirs["owner"]["ours"], &theirs["ends"]["outcome"]), (&false.into(), &"not-ours".into()));
        assert!(theirs["owner"]["why"].as_str().is_some_and(|said| said.contains(why)), "{theirs}");
    }
    stage.world.faults.add(Rule::on("DescribeInstances", Fault::Status(403)));
    let unknown = stage.simulated_body(&messages::spot("s", &instance(7), at), &[]).await;
    assert_eq!(unknown["owner"]["ours"], Value::Null);
    assert!(unknown["owner"]["why"].as_str().is_some_and(|said| said.starts_with("EC2 could not be asked: ")));
    assert!(!unknown["waits"].is_null(), "it goes on with what is known");
}

#[tokio::test(start_paused = true)]
async fn an_ignored_notice_names_the_rule() {
    let stage = Stage::new(2, 1);
    stage.world.kube.update_node(&node(1), |node| {
        node.metadata.annotations.get_or_insert_default().insert("ebbtide/ignore".to_owned(), "true".to_owned());
    });
    let at = stage.world.clock.now();
    let eks = messages::lifecycle(Wrapping::Event, true, ("g", "Terminate-LC-Hook", "t"), &instance(0), at);
    let spot = |n| messages::spot("s", &instance(n), at);
    let old = messages::spot("s", &instance(0), at - s(600));
    for (body, flags, outcome, why) in [
        (eks, &[][..], "not-ours", "Terminate-LC-Hook (--ignore-hook)"),
        (spot(0), &["--on", "spot=ignore"], "ignored", "--on spot=ignore"),
        (spot(0), &["--on", "spot=report"], "reported", "--on spot=report"),
        (spot(0), &["--on", "spot=cordon"], "cordoned", "--on spot=cordon"),
        (spot(1), &[], "excluded", "ebbtide/ignore"),
        (spot(0), &["--node-selector", "pool=spot"], "excluded", "--node-selector"),
        (spot(0), &["--require-tag", "--managed-tag", "team=blue"], "not-ours", "not this cluster's"),
        (old, &[], "stale", "Ready again"),
        (messages::state_change("s", &instance(0), "terminated", at), &[], "nothing-to-drain", "no longer runs"),
    ] {
        let told = stage.simulated_body(&body, flags).await;
        assert_eq!(told["ends"]["outcome"], outcome, "{flags:?}");
        assert!(told["ends"]["why"].as_str().is_some_and(|said| said.contains(why)), "{flags:?}: {}", told["ends"]);
        assert_eq!(told["pods"].as_array().map(Vec::len), Some(0), "{flags:?}");
        let replica = stage.start(flags).await;
        stage.world.aws.sqs.send(body);
        stage.until_handled(s(30)).await;
        let kind = told["kind"].as_str().expect("a kind must have a name");
        replica.ended_once(kind, outcome);
        replica.stop().await;
        // The marks are removed for the next round.
        stage.world.kube.update_node(&node(0), |node| {
            node.spec.get_or_insert_default().unschedulable = None;
            node.metadata.annotations = None;
        });
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_read_is_reported_and_the_rest_is_shown() {
    let stage = all_sorts();
    let at = stage.world.clock.now();
    stage.world.faults.add(Rule::on("DescribeLifecycleHooks", Fault::Status(403)));
    let hook = messages::lifecycle(Wrapping::Event, true, ("group", "hook", "t"), &instance(0), at);
    let told = stage.simulated_body(&hook, &[]).await;
    assert_eq!(told["hook"]["heartbeat_timeout_seconds"], 30);
    let assumed = told["hook"]["assumed_because"].as_str().expect("it must say why");
    assert!(assumed.starts_with("autoscaling:DescribeLifecycleHooks: AccessDenied"), "{assumed}");
    assert_eq!(told["deadline"]["in_seconds"], 50 * 60 - 3);

    stage.world.faults.add(Rule::on("list poddisruptionbudgets", Fault::Status(403)));
    let told = stage.simulated_body(&messages::spot("s", &instance(0), at), &[]).await;
    assert_eq!(told["pods"].as_array().map(Vec::len), Some(5));
    assert!(told["notes"][0].as_str().is_some_and(|note| note.starts_with("the budgets could not be read: ")));

    for operation in ["list nodes", "list pods"] {
        stage.world.faults.clear();
        stage.world.faults.add(Rule::on(operation, Fault::Status(403)));
        let file = Body::holding(messages::spot("s", &instance(0), at).as_bytes());
        let answer = stage.simulate(&[&file.0]).await;
        assert_eq!((answer.code, answer.output.as_str()), (1, ""), "{answer:?}");
        assert!(answer.problems.starts_with(operation), "{answer:?}");
    }
    stage.world.faults.clear();
    let answer = stage.simulate(&["--kind", "spot", "--node", "node-9"]).await;
    assert!(answer.code == 1 && answer.problems.contains("there is no Node \"node-9\""), "{answer:?}");
    let told = stage.simulated(&["--kind", "asg-terminate", "--node", "node-0"]).await;
    let notes = told["notices"][0]["notes"].to_string();
    assert!(notes.contains("in no Auto Scaling group") && notes.contains("--group"), "{notes}");
}

#[tokio::test(start_paused = true)]
async fn the_page_shows_the_real_answer() {
    let stage = all_sorts();
    let at: Timestamp = "2026-11-21T12:00:00Z".parse().expect("a test's time must be one");
    let body = messages::spot("4a6f9e2d-1c83-4b57-8f0e-d2b5c7a91e36", &instance(0), at);
    let file = Body::holding(body.as_bytes());
    let answer = stage.simulate_at(at + s(8), &[&file.0]).await;
    assert!(
        include_str!("../../../docs/simulate.md").contains(&answer.output),
        "docs/simulate.md should show:\n{}",
        answer.output
    );
}

#[tokio::test(start_paused = true)]
async fn a_replacement_first_is_foretold_or_the_reason_against_it() {
    let stage = Stage::new(1, 1);
    let tags = [("aws-node-termination-handler/managed", "true"), ("aws:autoscaling:groupName", "group")];
    stage.world.aws.ec2.put(&instance(0), &tags);
    let instances = vec![instance(0)];
    let spec = GroupSpec { instances, desired: 1, max: 2, maintenance: Some((100, 110)), ..GroupSpec::default() };
    stage.world.aws.autoscaling.put_group("group", spec);
    stage.world.aws.autoscaling.add_hook("group", "hook", HookSpec::terminating(s(300)));
    let body = messages::rebalance("r", &instance(0), stage.world.clock.now());
    let wanted = ["--on", "rebalance=replace"];
    let notice = stage.simulated_body(&body, &wanted).await;
    assert_eq!(notice["planned_waits"][0]["until"], "another Node of the Auto Scaling group is Ready", "{notice:#}");
    assert_eq!(notice["notes"].as_array().unwrap().len(), 0, "said once: {notice:#}");
    let begin = &notice["evictions_begin"];
    assert_eq!(begin["in_seconds"], 1800, "{notice:#}");
    let why_not = |notice: &Value| notice["planned_waits"][0]["not_because"].as_str().unwrap_or_default().to_owned();
    let now = stage.world.clock.now();
    let code = "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED";
    let soon = messages::scheduled_change("h", code, &[&instance(0)], now, now + s(289));
    for (reason, body, flags) in [
        ("too near", &soon, &["--on", "scheduled-change=replace"][..]),
        ("dry-run", &body, &["--on", "rebalance=replace", "--dry-run"]),
    ] {
        let notice = stage.simulated_body(body, flags).await;
        assert!(why_not(&notice).contains(reason), "{notice:#}");
        assert_eq!(notice["evictions_begin"]["in_seconds"], 1, "{notice:#}");
    }
    stage.world.aws.autoscaling.change_group("group", |spec| spec.max = 1);
    let notice = stage.simulated_body(&body, &wanted).await;
    assert!(why_not(&notice).contains("maximum size"), "{notice:#}");
    assert_eq!(notice["evictions_begin"]["in_seconds"], 1, "{notice:#}");
}

#[tokio::test(start_paused = true)]
async fn target_groups_are_named_with_what_led_to_them() {
    let stage = Stage::new(1, 1);
    let aws = &stage.world.aws;
    let (web, api) = (aws.elb.add_group("web", s(30)), aws.elb.add_group("api", s(30)));
    let other = aws.elb.add_group("other", s(30));
    aws.autoscaling.add_hook("group", "hook", HookSpec::terminating(s(300)));
    aws.autoscaling.put_group("group", GroupSpec { target_groups: vec![web], ..GroupSpec::default() });
    stage.world.kube.bind_target_group("default", "api", &api, "ip");
    stage.world.kube.bind_target_group("elsewhere", "other", &other, "ip");
    aws.ec2.put(&instance(0), &[("kubernetes.io/cluster/blue", "owned")]);
    for cluster in ["blue", "green"] {
        aws.elb.add(TargetGroupSpec::of_service(cluster, "shop/cart", s(30)));
    }
    let of = ["--kind", "asg-terminate", "--node", &node(0), "--group", "group", "--hook", "hook"];
    let with = |mode| [&of[..], &["--wait-for-load-balancers", mode]].concat();
    let named = |said: &Value| {
        let groups = said["notices"][0]["target_groups"].as_array().expect("it must be a list").iter();
        let text = |group: &Value| {
            format!("{} {} {} {}", group["name"], group["from"], group["deregistered"], group["awaited"])
        };
        groups.map(text).collect::<Vec<_>>().join("; ").replace('"', "")
    };
    assert_eq!(named(&stage.simulated(&with("off")).await), "");
    let said = named(&stage.simulated(&with("deregister")).await);
    let rows = [
        "api TargetGroupBinding default/api false true",
        "k8s-shop-cart-blue Service shop/cart true true",
        "web Auto Scaling group group true true",
    ];
    assert_eq!(said, rows.join("; "));
    assert_eq!(named(&stage.simulated(&[&with("wait")[..], &["--dry-run"]].concat()).await), "");
    let text = stage.simulate(&with("wait")).await.output;
    let row = |name: &str| text.lines().find(|line| line.trim_start().starts_with(name)).map(str::split_whitespace);
    let words = |name: &str| row(name).expect("it must be listed").collect::<Vec<_>>().join(" ");
    assert_eq!(words("web"), "web awaited Auto Scaling group group");
    assert_eq!(words("k8s-shop-cart-blue"), "k8s-shop-cart-blue awaited Service shop/cart");
    let classic = "classic load balancers are not waited for: set --complete-after";
    assert!(text.contains(classic), "{text}");
    let later = stage.simulate(&[&with("wait")[..], &["--complete-after", "30s"]].concat()).await.output;
    assert!(!later.contains(classic), "{later}");
    stage.world.faults.add(Rule::on("DescribeAutoScalingGroups", Fault::Status(403)));
    let text = stage.simulate(&with("wait")).await.output;
    assert!(text.contains("target groups could not be found: autoscaling:DescribeAutoScalingGroups"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn waits_are_listed_with_their_ends_and_what_is_not_made_with_its_reason() {
    let stage = Stage::new(1, 1);
    stage.world.aws.autoscaling.add_hook("group", "hook", HookSpec::terminating(s(900)));
    let hook = ["--kind", "asg-terminate", "--node", &node(0), "--group", "group", "--hook", "hook"];
    let listed = |said: &Value| {
        let waits = said["notices"][0]["planned_waits"].as_array().expect("it must be a list").iter();
        let row = |wait: &Value| {
            let (place, name) = (wait["place"].as_str().unwrap(), wait["wait"].as_str().unwrap());
            match wait["not_because"].as_str() {
                Some(why) => format!("{place} not {name}: {why}"),
                None => format!("{place} {name} {}", wait["at_most_seconds"]),
            }
        };
        waits.map(row).collect::<Vec<_>>()
    };
    let no_volume = "before-completion not volumes: no volume is attached to the Node";
    assert_eq!(listed(&stage.simulated(&hook).await), [no_volume]);
    stage.world.kube.add_pod(Pod::on(&node(0)).named("db").claim("data"));
    let settings = ["--hold", "both", "--delay", "asg-terminate=10s", "--complete-after", "20s"];
    let all = [&hook[..], &settings].concat();
    let found = listed(&stage.simulated(&all).await);
    let (names, ends): (Vec<_>, Vec<_>) = found.iter().filter_map(|row| row.rsplit_once(' ')).unzip();
    let before = ["before-evictions delay", "before-evictions hold-before-drain"];
    let after = ["complete-after", "volumes", "hold-before-completion"].map(|name| format!("before-completion {name}"));
    assert_eq!(names, [&before.map(str::to_owned)[..], &after].concat());
    assert_eq!((ends[0], ends[2], ends[3]), ("10", "20", "60"));
    let text = stage.simulate(&all).await.output;
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("is set to before-drain, 7m 15s at most (--hold)"), "{text}");
    assert!(text.contains("\nEvictions begin in 7m 15s"), "{text}");
    assert!(text.contains("at the latest, after the waits"), "{text}");
    let spot = ["--kind", "spot", "--node", &node(0)];
    let no_hook = "before-completion not volumes: without a lifecycle hook to complete, nothing would be put off";
    assert_eq!(listed(&stage.simulated(&spot).await), [no_hook]);
    stage.label(0, "zone", "a");
    let in_wave = [&hook[..], &["--wave", "zone=1"]].concat();
    // Of a life of 100 timeouts the drain keeps its 870 s, and the margin.
    let found = listed(&stage.simulated(&in_wave).await);
    assert_eq!(found[0].rsplit_once(' '), Some(("before-evictions wave", "89100")), "{found:?}");
    let notes = stage.simulated(&in_wave).await["notices"][0]["notes"].to_string();
    assert!(notes.contains("begins with the node's place"), "{notes}");
    let spot_in_wave = listed(&stage.simulated(&[&spot[..], &["--wave", "zone=1"]].concat()).await);
    assert_eq!(spot_in_wave, [no_hook], "it has no time");
    let dry = listed(&stage.simulated(&[&all[..], &["--dry-run"]].concat()).await);
    assert!(dry.contains(&"before-completion not volumes: --dry-run waits for nothing".to_owned()), "{dry:?}");
}

#[tokio::test(start_paused = true)]
async fn a_zonal_shift_is_told_as_what_it_does() {
    let stage = Stage::new(1, 1);
    let body = messages::zonal_shift("Autoshift In Progress", "arn:a", "euw1-az0", stage.world.clock.now());
    let file = std::env::temp_dir().join(format!("ebbtide-shift-{}.json", std::process::id()));
    std::fs::write(&file, body).unwrap();
    let path = file.to_str().unwrap();
    let counts = stage.simulate(&["--zonal-shift", "arn:a", path]).await.output;
    assert!(
        counts.contains("while traffic is shifted away from euw1-az0") && counts.contains("three Nodes"),
        "{counts}"
    );
    let other = stage.simulate(&["--zonal-shift", "arn:b", path]).await.output;
    assert!(other.contains("ignored (other-shift)"), "{other}");
    std::fs::remove_file(&file).unwrap();
}

/// A world of a Node in each of two zones, in which a replica has noted that traffic is shifted away from the first.
async fn shifted_away() -> Stage {
    let stage = Stage::new(2, 1);
    for n in 0..2 {
        stage.label(n, "topology.k8s.aws/zone-id", &format!("euw1-az{n}"));
    }
    let replica = stage.start(&SHIFT[..2]).await;
    let at = stage.world.clock.now();
    stage.world.aws.sqs.send(messages::zonal_shift("Manual Shift Started", SHIFT[1], "euw1-az0", at));
    stage.until_handled(s(10)).await;
    replica.stop().await;
    stage
}

const SHIFT: [&str; 4] = ["--zonal-shift", "arn:a", "--events", "none"];

/// Returns the longest wait for the end of a shift, in seconds.
fn for_shift(notice: &Value) -> Option<u64> {
    let waits = notice["planned_waits"].as_array().into_iter().flatten();
    waits.filter(|wait| wait["wait"] == "zonal-shift").find_map(|wait| wait["at_most_seconds"].as_u64())
}

#[tokio::test(start_paused = true)]
async fn a_running_shift_is_read_from_the_nodes_and_the_prediction_comes_true() {
    let stage = shifted_away().await;
    stage.world.aws.autoscaling.add_hook("group", "hook", HookSpec::terminating(s(3600)));
    let token = stage.world.aws.autoscaling.begin("group", "hook", &instance(1));
    let now = stage.world.clock.now();
    let body = messages::lifecycle(Wrapping::Event, true, ("group", "hook", &token), &instance(1), now);
    let notice = stage.simulated_body(&body, &SHIFT).await;
    let wait = &notice["planned_waits"][0];
    assert_eq!(wait["until"], "traffic is no longer shifted away from euw1-az0", "{notice:#}");
    let at_most = for_shift(&notice).expect("it must wait");
    assert!((6 * 3600 - 60..=6 * 3600).contains(&at_most), "a shift counts for six hours: {at_most}");
    assert_eq!(notice["evictions_begin"]["in_seconds"], at_most);
    let deadline = notice["deadline"]["in_seconds"].as_u64().expect("it must have a deadline");
    assert!((at_most + 3600..=at_most + 3660).contains(&deadline), "the hook's time begins then: {deadline}");
    let noted = stage.annotations(0).into_iter().find(|(name, _)| name.starts_with("ebbtide/shift."));
    let noted: Value = serde_json::from_str(&noted.expect("the shift must be noted").1).unwrap();
    let until = noted["until"].as_str().expect("it must end");
    let text = stage.simulate(&[&Body::holding(body.as_bytes()).0, SHIFT[0], SHIFT[1]]).await.output;
    for said in ["shifted away from euw1-az0, 5h 59m at most", "traffic of arn:a is shifted away from euw1-az0;", until]
    {
        assert!(text.split_whitespace().collect::<Vec<_>>().join(" ").contains(said), "{said}: {text}");
    }

    let replica = stage.start(&SHIFT).await;
    stage.world.aws.sqs.send(body);
    sleep(s(at_most - 10)).await;
    assert_eq!((stage.cordoned(1), stage.first_eviction(1)), (true, None), "{}", stage.story());
    stage.until("the shift counts no longer", s(20), || stage.first_eviction(1).is_some()).await;
    stage.until_handled(s(60)).await;
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn only_drains_with_time_in_other_zones_are_said_to_wait_for_a_shift() {
    let stage = shifted_away().await;
    let made = |kind, n| ["--kind".to_owned(), kind, "--node".to_owned(), node(n)];
    for (kind, n, flags, waits) in [
        ("scheduled-change", 1, &SHIFT[..2], true),
        ("scheduled-change", 1, &["--zonal-shift", "any"], true),
        ("scheduled-change", 0, &SHIFT[..2], false),
        ("scheduled-change", 1, &["--zonal-shift", "arn:b"], false),
        ("scheduled-change", 1, &[], false),
        ("scheduled-change", 1, &["--zonal-shift", "any", "--dry-run"], false),
        ("spot", 1, &SHIFT[..2], false),
    ] {
        let made = made(kind.to_owned(), n);
        let flags: Vec<&str> = made.iter().map(String::as_str).chain(flags.iter().copied()).collect();
        let told = stage.simulated(&flags).await;
        let notice = &told["notices"][0];
        // Half of the time to the deadline.
        assert_eq!(for_shift(notice), waits.then_some(1800), "{flags:?}: {notice:#}");
        assert_eq!(notice["notes"].to_string().contains("is shifted away"), waits, "{flags:?}: {notice:#}");
    }
    // In a wave, too, both are told.
    stage.label(1, "zone", "b");
    let both = ["--kind", "scheduled-change", "--node", "node-1", "--wave", "zone=1", "--zonal-shift", "any"];
    let told = stage.simulated(&both).await;
    let waits = told["notices"][0]["planned_waits"].as_array().unwrap().iter();
    let mut waits: Vec<_> = waits.filter_map(|wait| wait["wait"].as_str()).collect();
    waits.sort_unstable();
    assert_eq!(waits, ["wave", "zonal-shift"]);
    let later = stage.simulate_at(stage.world.clock.now() + s(6 * 3600), &both).await.output;
    assert!(later.contains("fewer nodes") && !later.contains("is shifted away"), "{later}");
}

#[tokio::test(start_paused = true)]
async fn without_a_queue_no_hook_is_known() {
    let stage = Stage::new(1, 1);
    for (kind, flags) in [
        ("asg-terminate", &[][..]),
        ("asg-terminate", &["--node-hook", "drain"]),
        ("spot", &[]),
        ("node-condition", &["--on-condition", "KernelReady=False:30m=drain"]),
    ] {
        let flags = [&["--kind", kind, "--node", "node-0", "--source", "nodes"], flags].concat();
        let told = stage.simulated(&flags).await;
        let notice = &told["notices"][0];
        assert!(!notice["pods"][0]["evicted_by"].is_null() && notice["hook"].is_null(), "{flags:?}: {notice:#}");
        let names_hook = notice["notes"].to_string().contains("lifecycle hook drain, that is kept alive");
        assert_eq!(names_hook, flags.contains(&"--node-hook"), "{notice:#}");
    }
    assert_eq!(stage.calls("DescribeAutoScalingInstances"), 0);
    let none = ["--kind", "node-condition", "--node", "node-0", "--source", "nodes"];
    let said = stage.simulate(&none).await.output;
    assert!(said.contains("none: there is no --on-condition") && !said.contains("deleted"), "{said}");
}

#[tokio::test(start_paused = true)]
async fn deployments_that_would_be_restarted_first_are_named() {
    let stage = Stage::new(3, 0);
    let add = |name: &str, nodes: &[usize], change: fn(Deployment) -> Deployment| {
        let nodes: Vec<String> = nodes.iter().map(|n| node(*n)).collect();
        let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
        stage.world.kube.add_deployment(change(Deployment::of(name, Pod::on(""))), &nodes);
    };
    add("single", &[0], |it| it);
    add("recreated", &[0], |it| it.strategy(serde_json::json!({ "type": "Recreate" })));
    add("spread", &[0, 1], |it| it);
    let notes = async |flags: &[&str]| {
        let mut all = vec!["--kind", "spot", "--node", "node-0"];
        all.extend(flags);
        let view = stage.simulated(&all).await;
        let notes = view["notices"][0]["notes"].as_array().cloned().unwrap_or_default();
        notes
            .iter()
            .filter_map(Value::as_str)
            .filter(|note| note.contains("--surge"))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(notes(&[]).await, Vec::<String>::new());
    let found = notes(&["--surge", "5m"]).await;
    let [recreated, single] = found.as_slice() else { panic!("{found:?}") };
    assert!(recreated.contains("the only ready pod of the Deployment recreated, which would not be restarted first"));
    assert!(recreated.ends_with("its strategy is Recreate"), "{recreated}");
    assert!(single.starts_with("the Deployment single would be restarted first, and default/single-1-"), "{single}");
    assert!(single.contains("wait for its new pod for up to 1m 1"), "{single}");
    assert!(!found.iter().any(|note| note.contains("spread")), "one of its pods is elsewhere");
}
