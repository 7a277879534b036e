//! SQS, or the credentials for it, away in the middle of the work: the lease is lost, and the work goes on.

use crate::harness::{Replica, Stage, node, s};
use aws_sdk_sqs::config::{HttpClient, RuntimeComponents, SharedHttpClient};
use aws_smithy_runtime_api::client::http::{
    HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use aws_smithy_runtime_api::client::result::ConnectorError;
use ebbtide::fact::TaskKind;
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::Pod;
use ebbtide_sim::messages::Wrapping;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::time::sleep;

const SQS: [&str; 3] = ["ReceiveMessage", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"];

/// Three minutes without SQS: hooks with a timeout of a minute live on, a budget that lets go is used, and the message ends after all.
#[tokio::test(start_paused = true)]
async fn drains_and_heartbeats_go_on_without_sqs() {
    for fault in [Fault::Status(500), Fault::Status(403), Fault::Status(400), Fault::Hang, Fault::Disconnect] {
        let stage = Stage::new(1, 1);
        stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(900)).stops_in(s(300)));
        let replica = stage.start(&["--drain-timeout", "20m"]).await;
        stage.block(0);
        let token = stage.terminate(0, s(60), Wrapping::Event);
        sleep(s(30)).await;
        for operation in SQS {
            stage.world.faults.add(Rule::on(operation, fault));
        }
        sleep(s(60)).await;
        stage.unblock(0);
        stage.until("evicted without SQS", s(10), || !stage.has_pod("web-0-0")).await;
        sleep(s(110)).await;
        assert_eq!(stage.calls("CompleteLifecycleAction"), 0, "{fault:?}: a pod runs");
        stage.world.faults.clear();
        stage.until_handled(s(400)).await;
        stage.completed_once(&token);
        let ended =
            |outcome| replica.metric(&format!("ebbtide_notices_total{{kind=\"asg-terminate\",outcome=\"{outcome}\"}}"));
        assert!(ended("drained") > 0.5 && ended("drained") + ended("joined") < 3.5, "{fault:?}");
        assert!(stage.world.aws.sqs.receive_log().len() <= 3, "{fault:?}\n{}", stage.story());
        stage.rest(&[&replica]).await;
    }
}

/// The work has ended before SQS is back.
#[tokio::test(start_paused = true)]
async fn a_hook_is_completed_without_sqs_and_its_message_starts_nothing() {
    let stage = Stage::slow(s(60));
    let (first, second) = (stage.start(&[]).await, stage.start(&[]).await);
    let token = stage.terminate(0, s(600), Wrapping::Event);
    sleep(s(20)).await;
    for operation in SQS {
        stage.world.faults.add(Rule::on(operation, Fault::Status(503)));
    }
    stage.until("completed", s(60), || stage.calls("CompleteLifecycleAction") == 1).await;
    sleep(s(30)).await;
    stage.world.faults.clear();
    stage.until_handled(s(60)).await;
    stage.completed(&token);
    assert_eq!(stage.calls("create pods/eviction"), 1);
    stage.rest(&[&first, &second]).await;
}

#[tokio::test(start_paused = true)]
async fn the_message_may_arrive_at_another_replica_meanwhile() {
    let stage = Stage::slow(s(200));
    let flags = ["--drain-timeout", "10m"];
    let line = Line::default();
    let first = line.start(&stage, &flags).await;
    let token = stage.terminate(0, s(60), Wrapping::Event);
    sleep(s(10)).await;
    let second = stage.start(&flags).await;
    line.cut();
    stage.until("the second has it", s(90), || second.tasks.alive(TaskKind::Interruption) == 1).await;
    assert_eq!(first.tasks.alive(TaskKind::Interruption), 1);
    stage.until_handled(s(250)).await;
    stage.completed(&token);
    assert_eq!(stage.world.kube.evictions().len(), 1, "the pod is not evicted again");
    assert_eq!(stage.calls("delete pods"), 0);
    line.mend();
    stage.rest(&[&first, &second]).await;
}

/// The user has uncordoned the node while nobody could delete the message.
#[tokio::test(start_paused = true)]
async fn what_a_user_has_ended_stays_ended_at_any_replica() {
    for own in [true, false] {
        let stage = Stage::new(1, 1);
        stage.block(0);
        let line = Line::default();
        let first = line.start(&stage, &[]).await;
        stage.terminate(0, s(600), Wrapping::Event);
        sleep(s(10)).await;
        for operation in SQS {
            stage.world.faults.add(Rule::on(operation, Fault::Status(503)));
        }
        sleep(s(50)).await;
        stage.set_cordon(0, false);
        stage.until("restored", s(5), || stage.cordoned(0)).await;
        stage.set_cordon(0, false);
        stage.until("ended", s(10), || first.tasks.alive(TaskKind::Interruption) == 0).await;
        let second = stage.start(&[]).await;
        if !own {
            line.cut();
        }
        sleep(s(20)).await;
        stage.unblock(0);
        stage.world.faults.clear();
        stage.until_handled(s(60)).await;
        sleep(s(10)).await;
        assert!(!stage.cordoned(0) && stage.has_pod("web-0-0"), "own: {own}\n{}", stage.story());
        line.mend();
        stage.rest(&[&first, &second]).await;
    }
}

/// Each receive is lost again, for as long as a right is missing: that costs receives, and nothing grows.
#[tokio::test(start_paused = true)]
async fn a_message_that_is_lost_again_and_again_is_held_twice_at_most() {
    let stage = Stage::slow(s(600));
    let replica = stage.start(&["--drain-timeout", "20m"]).await;
    stage.world.faults.add(Rule::on("ChangeMessageVisibilityBatch", Fault::Status(403)));
    let token = stage.terminate(0, s(7200), Wrapping::Event);
    sleep(s(500)).await;
    assert!(stage.world.aws.sqs.receive_log().len() > 8);
    assert!(replica.tasks.alive(TaskKind::Message) <= 2, "{}", replica.tasks.alive(TaskKind::Message));
    assert_eq!(stage.calls("create pods/eviction"), 1);
    stage.until_handled(s(200)).await;
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

/// A replica's line to SQS, which a test can cut: then no call arrives, and no answer.
#[derive(Clone, Debug, Default)]
struct Line(Arc<AtomicBool>);

impl Line {
    /// Starts a replica with this line.
    async fn start(&self, stage: &Stage, flags: &[&str]) -> Replica {
        let connection = Connection { line: self.clone(), http: stage.world.aws.http_client() };
        let change = |sqs: &aws_sdk_sqs::Client| {
            aws_sdk_sqs::Client::from_conf(sqs.config().to_builder().http_client(connection).build())
        };
        stage.start_with(flags, |clients| clients.aws.sqs = change(&clients.aws.sqs)).await
    }

    fn cut(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn mend(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    fn is_cut(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
struct Connection {
    line: Line,
    http: SharedHttpClient,
}

impl HttpClient for Connection {
    fn http_connector(&self, settings: &HttpConnectorSettings, parts: &RuntimeComponents) -> SharedHttpConnector {
        let (line, below) = (self.line.clone(), self.http.http_connector(settings, parts));
        SharedHttpConnector::new(Wire { line, below })
    }
}

#[derive(Debug)]
struct Wire {
    line: Line,
    below: SharedHttpConnector,
}

impl HttpConnector for Wire {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let broken = || ConnectorError::io("the line is cut".into());
        if self.line.is_cut() {
            return HttpConnectorFuture::ready(Err(broken()));
        }
        let (line, answer) = (self.line.clone(), self.below.call(request));
        HttpConnectorFuture::new(async move {
            let answer = answer.await;
            if line.is_cut() { Err(broken()) } else { answer }
        })
    }
}
