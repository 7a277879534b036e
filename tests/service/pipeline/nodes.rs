//! `--source nodes`: what Nodes say is acted on by one replica at a time, without a queue.

use crate::harness::{Replica, Stage, instance, metric, node, s};
use ebbtide::service::Exit;
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::sleep;

pub const SPOT: &str = "ebbtide/says.spot";
pub const REBALANCE: &str = "ebbtide/says.rebalance";
pub const MAINTENANCE: &str = "ebbtide/says.maintenance";
pub const TERMINATION: &str = "ebbtide/says.termination";

impl Stage {
    /// Starts a replica in a pod of this name that has no queue.
    pub async fn without_queue(&self, pod: &str, more: &[&str]) -> Replica {
        let flags = ["--source", "nodes", "--pod-namespace", "ebbtide", "--pod-name", pod];
        self.start(&[&flags, more].concat()).await
    }

    /// Starts a replica in a pod of this name that has a queue, too.
    pub async fn with_both(&self, pod: &str, more: &[&str]) -> Replica {
        let flags = ["--source", "queue,nodes", "--pod-namespace", "ebbtide", "--pod-name", pod];
        self.start(&[&flags, more].concat()).await
    }

    /// Has the n-th node say that its spot instance ends in so many seconds.
    pub fn says_spot(&self, n: usize, ends_in: i64) {
        let at = jiff::Timestamp::from_second(self.world.clock.now().as_second() + ends_in).unwrap();
        self.annotate(n, SPOT, &format!("{{\"what\":\"terminate\",\"at\":\"{at}\"}}"));
    }

    /// Has the n-th node say a recommendation that is given now.
    pub fn says_rebalance(&self, n: usize) {
        let at = self.world.clock.now();
        self.annotate(n, REBALANCE, &format!("{{\"what\":\"rebalance\",\"at\":\"{at}\"}}"));
    }

    pub fn takes_back(&self, n: usize, annotation: &str) {
        self.world.kube.update_node(&node(n), |node| {
            node.metadata.annotations.get_or_insert_default().remove(annotation);
        });
    }

    /// Returns the calls to AWS: those to the API server have a verb and a resource.
    fn aws_calls(&self) -> Vec<String> {
        self.world
            .calls
            .all()
            .into_iter()
            .map(|call| call.operation.clone())
            .filter(|call| !call.contains(' '))
            .collect()
    }

    /// Has the replica in a pod of this name renew the Lease, or take it, whoever holds it.
    pub fn holds_nodes(&self, pod: &str) {
        let now = MicroTime(self.world.clock.now());
        self.world.kube.put_lease("ebbtide", "ebbtide-nodes", |lease| {
            let spec = lease.spec.get_or_insert_default();
            (spec.holder_identity, spec.renew_time) = (Some(pod.to_owned()), Some(now));
        });
    }

    pub fn nodes_holder(&self) -> Option<String> {
        let leases = self.world.kube.leases("ebbtide").into_iter();
        leases
            .filter(|lease| lease.metadata.name.as_deref() == Some("ebbtide-nodes"))
            .find_map(|it| it.spec?.holder_identity)
    }
}

/// Returns the number of notices of this kind that have ended so, as the metrics show it.
pub fn outcomes(replica: &Replica, kind: &str, outcome: &str) -> String {
    let (text, begin) = (
        replica.metrics.render(&replica.tasks),
        format!("ebbtide_notices_total{{kind=\"{kind}\",outcome=\"{outcome}\"}} "),
    );
    text.lines().find_map(|line| line.strip_prefix(&begin)).unwrap_or("0").to_owned()
}

#[tokio::test(start_paused = true)]
async fn a_spot_said_by_a_node_drains_it_in_time_without_a_queue() {
    let stage = Stage::new(3, 2);
    let replica = stage.without_queue("a", &[]).await;
    stage.until("ready", s(5), || metric(&replica.metrics.render(&replica.tasks), "ebbtide_ready") > 0.5).await;
    stage.until("its turn", s(5), || stage.nodes_holder().as_deref() == Some("a")).await;
    stage.says_spot(1, 120);
    stage.until("drained", s(10), || stage.world.kube.pods_on(&node(1)).is_empty()).await;
    stage.until("noted", s(10), || stage.handled(1) == 1).await;
    assert_eq!([0, 1, 2].map(|n| stage.cordoned(n)), [false, true, false]);
    let evictions = stage.calls("create pods/eviction");
    sleep(s(600)).await;
    assert_eq!((evictions, stage.calls("create pods/eviction")), (2, 2), "once");
    replica.ended_once("spot", "drained");
    assert_eq!(stage.aws_calls(), Vec::<String>::new());
    stage.rest(&[&replica]).await;
    let (exit, took, tasks) = replica.stop().await;
    assert!(exit == Exit::Clean && took < s(3), "{took:?}");
    assert_eq!(stage.nodes_holder(), None, "given back");
    tasks.gone(|_| true).await;
}

#[tokio::test(start_paused = true)]
async fn all_that_metadata_tell_is_acted_on_as_its_kind_is() {
    let stage = Stage::new(3, 1);
    let replica = stage.without_queue("a", &["--uncordon-after", "1h"]).await;
    stage.says_rebalance(0);
    stage.annotate(1, TERMINATION, "{\"what\":\"terminate\"}");
    let begin = stage.world.clock.now() + s(7200);
    let change = format!("{{\"what\":\"instance-stop\",\"at\":\"{begin}\",\"id\":\"instance-event-1\"}}");
    stage.annotate(2, MAINTENANCE, &change);
    stage.until("all ended", s(60), || (0..3).all(|n| stage.handled(n) == 1)).await;
    assert_eq!((0..3).map(|n| stage.world.kube.pods_on(&node(n)).len()).collect::<Vec<_>>(), [1, 0, 0]);
    assert!((0..3).all(|n| stage.cordoned(n)));
    replica.ended_once("rebalance", "cordoned");
    replica.ended_once("asg-terminate", "drained");
    replica.ended_once("scheduled-change", "drained");
    assert_eq!(stage.aws_calls(), Vec::<String>::new());
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn the_same_notice_by_queue_and_node_is_one_drain() {
    for queue_first in [true, false] {
        let stage = Stage::slow(s(20));
        let replica = stage.with_both("a", &[]).await;
        stage.until("its turn", s(5), || stage.nodes_holder().is_some()).await;
        if queue_first {
            stage.spot(0);
            stage.until("cordoned", s(10), || stage.cordoned(0)).await;
            stage.says_spot(0, 119);
        } else {
            stage.says_spot(0, 121);
            stage.until("cordoned", s(10), || stage.cordoned(0)).await;
            stage.spot(0);
        }
        stage.until_handled(s(60)).await;
        stage.until("noted", s(40), || stage.handled(0) == 1).await;
        assert_eq!(
            (stage.ends_of("slow").len(), stage.notices(0).len()),
            (1, 1),
            "one eviction, one mark\n{}",
            stage.story()
        );
        sleep(s(300)).await;
        assert_eq!(outcomes(&replica, "spot", "drained"), "1");
        assert_eq!(outcomes(&replica, "spot", "joined"), if queue_first { "0" } else { "1" });
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn another_replica_takes_over_within_ten_seconds_of_a_silent_death() {
    let stage = Stage::new(1, 0);
    for pod in ["a", "b"] {
        stage.world.kube.add_pod(Pod::on(&node(0)).named(pod).grace(s(60)).stops_in(s(40)));
    }
    stage.block(0);
    let first = stage.without_queue("first", &[]).await;
    stage.until("its turn", s(5), || stage.nodes_holder().as_deref() == Some("first")).await;
    let second = stage.without_queue("second", &[]).await;
    sleep(s(10)).await;
    assert_eq!(stage.nodes_holder().as_deref(), Some("first"));
    stage.says_spot(0, 120);
    stage.until("tried", s(10), || !stage.tries_of("a").is_empty()).await;
    assert_eq!(outcomes(&second, "spot", "drained"), "0");
    first.kill().await.gone(|_| true).await;
    let tries = stage.tries_of("a").len();
    stage.until("taken over", s(10), || stage.tries_of("a").len() > tries).await;
    assert_eq!(stage.nodes_holder().as_deref(), Some("second"));
    stage.unblock(0);
    stage.until("drained", s(60), || stage.world.kube.pods().is_empty()).await;
    stage.until("noted", s(10), || stage.handled(0) == 1).await;
    assert_eq!((stage.ends_of("a").len(), stage.ends_of("b").len(), stage.notices(0).len()), (1, 1, 1));
    second.ended_once("spot", "drained");
    stage.rest(&[&second]).await;
}

/// Wherever between two looks of the other it dies.
#[tokio::test(start_paused = true)]
async fn the_turn_of_a_dead_replica_is_taken_when_it_is_over() {
    for _ in 0..20 {
        let stage = Stage::new(0, 0);
        let first = stage.without_queue("first", &[]).await;
        stage.until("its turn", s(5), || stage.nodes_holder().as_deref() == Some("first")).await;
        let second = stage.without_queue("second", &[]).await;
        sleep(s(10)).await;
        let renewals = stage.calls("update leases");
        stage.until("renewed", s(5), || stage.calls("update leases") > renewals).await;
        first.kill().await.gone(|_| true).await;
        stage
            .until("taken over", Duration::from_millis(8500), || stage.nodes_holder().as_deref() == Some("second"))
            .await;
        second.stop().await.2.gone(|_| true).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_ordered_shutdown_hands_the_drain_over_at_once() {
    let stage = Stage::slow(s(60));
    let first = stage.without_queue("first", &[]).await;
    stage.until("its turn", s(5), || stage.nodes_holder().as_deref() == Some("first")).await;
    let second = stage.without_queue("second", &[]).await;
    stage.says_spot(0, 120);
    stage.until("evicted", s(10), || stage.ends_of("slow").len() == 1).await;
    let (exit, _, tasks) = first.stop().await;
    assert_eq!(exit, Exit::Clean);
    tasks.gone(|_| true).await;
    stage.until("taken over", s(4), || stage.nodes_holder().as_deref() == Some("second")).await;
    stage.until("noted", s(90), || stage.handled(0) == 1).await;
    second.ended_once("spot", "drained");
    assert_eq!(stage.ends_of("slow").len(), 1);
    stage.rest(&[&second]).await;
}

/// The first replica lives on. Since it lost its turn, what it had ended was taken back and said again, and the second died at it.
#[tokio::test(start_paused = true)]
async fn a_replica_whose_turn_comes_again_goes_on_with_what_it_had_ended_before() {
    let stage = Stage::new(1, 1);
    let first = stage.without_queue("first", &[]).await;
    stage.until("its turn", s(5), || stage.nodes_holder().as_deref() == Some("first")).await;
    stage.annotate(0, TERMINATION, "{\"what\":\"terminate\"}");
    stage.until("noted", s(60), || stage.handled(0) == 1).await;
    let second = stage.without_queue("second", &[]).await;
    stage.holds_nodes("second");
    sleep(s(5)).await;
    stage.takes_back(0, TERMINATION);
    stage.until("undone", s(10), || !stage.cordoned(0) && stage.handled(0) == 0).await;
    stage.world.kube.add_pod(Pod::on(&node(0)).named("late").grace(s(60)).stops_in(s(2)));
    stage.block(0);
    stage.annotate(0, TERMINATION, "{\"what\":\"terminate\"}");
    stage.until("tried", s(10), || !stage.tries_of("late").is_empty()).await;
    assert_eq!(stage.nodes_holder().as_deref(), Some("second"));
    second.kill().await.gone(|_| true).await;
    let tries = stage.tries_of("late").len();
    stage.until("taken over", s(12), || stage.tries_of("late").len() > tries).await;
    stage.unblock(0);
    stage.until("noted", s(60), || stage.handled(0) == 1).await;
    assert_eq!((stage.nodes_holder().as_deref(), stage.ends_of("late").len()), (Some("first"), 1));
    first.all_ended("asg-terminate", &[("drained", 2)]);
    stage.rest(&[&first]).await;
}

/// Nobody but the API server tells its time.
#[tokio::test(start_paused = true)]
async fn without_a_queue_a_wrong_clock_moves_no_deadline() {
    for (ahead, later) in [(1200, false), (-600, false), (1200, true)] {
        let stage = Stage::new(1, 1);
        stage.block(0);
        if !later {
            stage.clock_ahead.store(ahead, Ordering::Relaxed);
        }
        let replica = stage.without_queue("a", &[]).await;
        stage.until("its turn", s(5), || stage.nodes_holder().as_deref() == Some("a")).await;
        stage.clock_ahead.store(ahead, Ordering::Relaxed);
        sleep(s(5)).await;
        stage.says_spot(0, 120);
        sleep(s(80)).await;
        assert!(stage.cordoned(0) && stage.has_pod("web-0-0"), "{ahead} {later}\n{}", stage.story());
        stage.until("drained", s(45), || stage.world.kube.pods().is_empty()).await;
        stage.until("noted", s(10), || stage.handled(0) == 1).await;
        replica.ended_once("spot", "drained");
        stage.rest(&[&replica]).await;
    }
}

/// It starts while the API server does not answer, or does not tell its time.
#[tokio::test(start_paused = true)]
async fn without_a_queue_a_wrong_clock_is_noticed_once_the_api_server_answers() {
    for unanswered in ["*", "get /version"] {
        let stage = Stage::new(1, 1);
        stage.block(0);
        stage.clock_ahead.store(170, Ordering::Relaxed);
        stage.world.faults.add(Rule::on(unanswered, Fault::Disconnect));
        stage.says_spot(0, 120);
        let replica = stage.without_queue("a", &[]).await;
        sleep(s(5)).await;
        stage.world.faults.clear();
        stage.until("its turn", s(30), || stage.nodes_holder().as_deref() == Some("a")).await;
        sleep(s(50)).await;
        assert!(stage.cordoned(0) && stage.has_pod("web-0-0"), "{unanswered}\n{}", stage.story());
        stage.until("drained", s(70), || stage.world.kube.pods().is_empty()).await;
        stage.until("noted", s(10), || stage.handled(0) == 1).await;
        stage.rest(&[&replica]).await;
    }
}

/// A clock that drifts makes no step.
#[tokio::test(start_paused = true)]
async fn without_a_queue_the_api_server_is_asked_for_its_time_every_few_minutes() {
    let stage = Stage::new(1, 1);
    let replica = stage.without_queue("a", &[]).await;
    sleep(s(60)).await;
    assert_eq!(stage.calls("get /version"), 1, "{}", stage.story());
    sleep(s(1740)).await;
    assert!((5..=7).contains(&stage.calls("get /version")), "{}", stage.story());
    stage.rest(&[&replica]).await;
}

/// An API server that never tells its time is asked no longer than for its turn.
#[tokio::test(start_paused = true)]
async fn what_nodes_say_is_acted_on_though_the_api_server_never_tells_its_time() {
    let stage = Stage::new(1, 1);
    stage.world.faults.add(Rule::on("get /version", Fault::Hang));
    stage.says_spot(0, 120);
    let replica = stage.without_queue("a", &[]).await;
    stage.until("noted", s(60), || stage.handled(0) == 1).await;
    replica.ended_once("spot", "drained");
    stage.rest(&[&replica]).await;
}

/// The Node has said it before, and nobody had to act yet.
#[tokio::test(start_paused = true)]
async fn without_a_queue_a_wrong_clock_carries_out_no_plan_before_the_api_server_tells_the_time() {
    let stage = Stage::new(1, 1);
    let flags = ["--when", "scheduled-change=2h-before"];
    let replica = stage.without_queue("a", &flags).await;
    let begin = stage.world.clock.now() + s(3 * 3600);
    stage.annotate(
        0,
        MAINTENANCE,
        &format!("{{\"what\":\"system-reboot\",\"at\":\"{begin}\",\"id\":\"instance-event-1\"}}"),
    );
    stage.until("planned", s(30), || !stage.plans(0).is_empty()).await;
    replica.kill().await;
    stage.clock_ahead.store(3600, Ordering::Relaxed);
    stage.world.faults.add(Rule::on("*", Fault::Disconnect));
    let replica = stage.without_queue("b", &flags).await;
    sleep(s(200)).await;
    stage.world.faults.clear();
    stage.world.faults.add(Rule::on("get /version", Fault::Slow(s(1))));
    sleep(s(1800)).await;
    assert!(!stage.cordoned(0) && !stage.plans(0).is_empty(), "{}", stage.story());
    stage.until("drained", s(2400), || stage.world.kube.pods().is_empty()).await;
    stage.rest(&[&replica]).await;
}

/// It starts while AWS does not answer.
#[tokio::test(start_paused = true)]
async fn until_aws_tells_the_time_the_api_server_s_counts() {
    let stage = Stage::new(1, 1);
    stage.block(0);
    stage.clock_ahead.store(170, Ordering::Relaxed);
    stage.world.faults.add(Rule::on("ReceiveMessage", Fault::Hang));
    stage.says_spot(0, 120);
    let replica = stage.with_both("a", &[]).await;
    sleep(s(80)).await;
    assert!(stage.cordoned(0) && stage.has_pod("web-0-0"), "{}", stage.story());
    stage.until("drained", s(45), || stage.world.kube.pods().is_empty()).await;
    stage.world.faults.clear();
    stage.until("noted", s(60), || stage.handled(0) == 1).await;
    stage.rest(&[&replica]).await;
}

/// Between two looks of the first replica, another has the turn, undoes what was ended, dies at the same said again, and its turn is over.
#[tokio::test(start_paused = true)]
async fn a_replica_that_did_not_see_another_have_the_turn_goes_on_with_what_it_had_ended_before() {
    let stage = Stage::new(1, 1);
    let replica = stage.without_queue("first", &[]).await;
    stage.until("its turn", s(5), || stage.nodes_holder().as_deref() == Some("first")).await;
    stage.annotate(0, TERMINATION, "{\"what\":\"terminate\"}");
    stage.until("noted", s(60), || stage.handled(0) == 1).await;
    let renewals = stage.calls("update leases");
    stage.until("renewed", s(5), || stage.calls("update leases") > renewals).await;
    stage.holds_nodes("");
    stage.world.kube.update_node(&node(0), |node| {
        let annotations = node.metadata.annotations.get_or_insert_default();
        annotations.retain(|key, _| key == TERMINATION || !key.starts_with("ebbtide/"));
        node.spec.get_or_insert_default().unschedulable = None;
    });
    stage.world.kube.add_pod(Pod::on(&node(0)).named("late"));
    stage.until("drained", s(60), || stage.world.kube.pods().is_empty()).await;
    stage.until("noted", s(60), || stage.handled(0) == 1).await;
    replica.all_ended("asg-terminate", &[("drained", 2)]);
    stage.rest(&[&replica]).await;
}

/// The answer to a renewal of the Lease is under way when the shutdown comes.
#[tokio::test(start_paused = true)]
async fn a_shutdown_during_a_renewal_gives_the_turn_back_too() {
    let stage = Stage::slow(s(60));
    let first = stage.without_queue("first", &[]).await;
    stage.until("its turn", s(5), || stage.nodes_holder().as_deref() == Some("first")).await;
    let second = stage.without_queue("second", &[]).await;
    stage.world.faults.add(Rule::on("update leases", Fault::Slow(s(1))));
    let renewals = stage.calls("update leases");
    stage.until("renewed", s(5), || stage.calls("update leases") > renewals).await;
    let (exit, took, tasks) = first.stop().await;
    stage.world.faults.clear();
    assert!(exit == Exit::Clean && took < s(4), "{took:?}");
    tasks.gone(|_| true).await;
    stage.until("taken over", s(3), || stage.nodes_holder().as_deref() == Some("second")).await;
    stage.rest(&[&second]).await;
}

/// Nobody else can take it while the API server does not answer about the Lease: the drain goes on.
#[tokio::test(start_paused = true)]
async fn a_drain_goes_on_while_the_lease_can_not_be_renewed() {
    let stage = Stage::slow(s(60));
    let replica = stage.without_queue("a", &[]).await;
    stage.until("its turn", s(5), || stage.nodes_holder().is_some()).await;
    stage.says_spot(0, 120);
    stage.until("evicted", s(10), || stage.ends_of("slow").len() == 1).await;
    stage.world.faults.add(Rule::on("update leases", Fault::Status(503)));
    stage.world.faults.add(Rule::on("get leases", Fault::Status(503)));
    stage.until("noted", s(90), || stage.handled(0) == 1).await;
    replica.ended_once("spot", "drained");
    stage.world.faults.clear();
    stage.rest(&[&replica]).await;
}

/// A renewal that was given up reaches the API server between a read and the next renewal, which is refused.
#[tokio::test(start_paused = true)]
async fn a_drain_goes_on_when_a_renewal_meets_one_that_was_late() {
    let stage = Stage::slow(s(60));
    let replica = stage.without_queue("a", &[]).await;
    stage.until("its turn", s(5), || stage.nodes_holder().is_some()).await;
    stage.says_spot(0, 120);
    stage.until("evicted", s(10), || stage.ends_of("slow").len() == 1).await;
    stage.world.faults.add(Rule::on("update leases", Fault::Late(s(1))).times(1));
    let renewals = stage.calls("update leases");
    stage.until("renewed", s(5), || stage.calls("update leases") > renewals).await;
    stage.holds_nodes("a");
    stage.until("refused", s(2), || stage.world.calls.of("update leases").iter().any(|call| call.status == 409)).await;
    stage.until("noted", s(90), || stage.handled(0) == 1).await;
    replica.ended_once("spot", "drained");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_taken_back_is_undone_and_may_be_said_again() {
    let stage = Stage::new(2, 1);
    let replica = stage.without_queue("a", &[]).await;
    let rebalance = format!("{{\"what\":\"rebalance\",\"at\":\"{}\"}}", stage.world.clock.now());
    stage.block(1);
    for _ in 0..2 {
        stage.annotate(0, REBALANCE, &rebalance);
        stage.says_spot(1, 3600);
        stage.until("cordoned", s(60), || stage.cordoned(0) && stage.cordoned(1)).await;
        stage.until("noted", s(60), || stage.handled(0) == 1).await;
        stage.takes_back(0, REBALANCE);
        stage.takes_back(1, SPOT);
        stage.until("uncordoned", s(60), || !stage.cordoned(0) && !stage.cordoned(1)).await;
        stage.until("forgotten", s(60), || (0..2).all(|n| stage.handled(n) == 0 && stage.notices(n).is_empty())).await;
    }
    assert_eq!(stage.world.kube.evictions().len(), 0);
    assert_eq!(outcomes(&replica, "rebalance", "withdrawn"), "2");
    assert_eq!(outcomes(&replica, "spot", "withdrawn"), "2");
    stage.rest(&[&replica]).await;
}

/// Nobody remembers what the Node had said: its mark does.
#[tokio::test(start_paused = true)]
async fn what_is_taken_back_while_no_replica_runs_is_undone_by_the_next() {
    let stage = Stage::new(1, 1);
    let first = stage.without_queue("first", &["--on", "rebalance=drain"]).await;
    stage.says_rebalance(0);
    stage.until("noted", s(60), || stage.handled(0) == 1).await;
    first.kill().await.gone(|_| true).await;
    stage.takes_back(0, REBALANCE);
    let second = stage.without_queue("second", &[]).await;
    stage.until("uncordoned", s(20), || !stage.cordoned(0)).await;
    assert!(stage.notices(0).is_empty());
    stage.rest(&[&second]).await;
}

/// A kubelet that was renamed leaves its former Node. Only the new one says something, and both carry the mark.
#[tokio::test(start_paused = true)]
async fn another_node_of_the_instance_that_says_nothing_takes_nothing_back() {
    let stage = Stage::new(1, 0);
    stage.world.kube.add_unready_node("former", &instance(0));
    stage.world.kube.add_pod(Pod::on(&node(0)).named("slow").grace(s(60)).stops_in(s(40)));
    let replica = stage.without_queue("one", &[]).await;
    stage.says_spot(0, 120);
    stage.until("cordoned", s(10), || stage.cordoned(0)).await;
    // From now on nobody says anything new for the instance, but the drain goes on.
    stage.world.kube.set_ready("former", true);
    sleep(s(20)).await;
    for name in [node(0), "former".to_owned()] {
        let cordoned = stage.world.kube.node(&name).and_then(|node| node.spec?.unschedulable);
        assert_eq!(cordoned, Some(true), "{name}: {}", stage.story());
    }
    sleep(s(30)).await;
    replica.ended_once("spot", "drained");
    assert_eq!(stage.world.kube.evictions().len(), 1, "{}", stage.story());
    stage.rest(&[&replica]).await;
}

/// The agent says it to the new Node after ten minutes, if its instance lives that long: until then nobody has taken it back.
#[tokio::test(start_paused = true)]
async fn a_node_that_registers_again_takes_nothing_back_before_its_agent_speaks() {
    for says_again in [false, true] {
        let stage = Stage::new(1, 1);
        stage.block(0);
        let replica = stage.without_queue("a", &[]).await;
        stage.says_spot(0, 3600);
        let said = stage.annotations(0)[SPOT].clone();
        stage.until("tried", s(10), || !stage.tries_of("web-0-0").is_empty()).await;
        sleep(s(10)).await;
        stage.world.kube.remove_node(&node(0));
        stage.world.kube.add_node(&node(0), &instance(0));
        stage
            .world
            .kube
            .add_pod(Pod::on(&node(0)).named("again").labels([("app", "node-0")]).grace(s(60)).stops_in(s(2)));
        stage.until("tried again", s(10), || !stage.tries_of("again").is_empty()).await;
        sleep(s(595)).await;
        assert!(stage.cordoned(0) && stage.notices(0).len() == 1, "{}", stage.story());
        if says_again {
            stage.annotate(0, SPOT, &said);
            sleep(s(300)).await;
            stage.unblock(0);
            stage.until("noted", s(60), || stage.handled(0) == 1).await;
            assert!(stage.cordoned(0) && stage.ends_of("again").len() == 1);
            assert_eq!(outcomes(&replica, "spot", "drained"), "1");
        } else {
            stage.until("undone", s(180), || !stage.cordoned(0) && stage.notices(0).is_empty()).await;
            assert_eq!(outcomes(&replica, "spot", "withdrawn"), "1");
        }
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn garbage_is_told_once_and_drains_nothing() {
    let stage = Stage::new(4, 1);
    let replica = stage.without_queue("a", &[]).await;
    stage.annotate(0, SPOT, "{\"what\":\"terminate\"");
    stage.annotate(1, "ebbtide/says.everything", "{\"what\":\"terminate\"}");
    stage.says_spot(2, -3600);
    stage.world.kube.update_node(&node(3), |node| node.spec.get_or_insert_default().provider_id = None);
    stage.says_spot(3, 120);
    sleep(s(300)).await;
    assert_eq!((0..4).filter(|n| stage.cordoned(*n)).count(), 0);
    assert_eq!((stage.world.kube.evictions().len(), stage.calls("patch nodes")), (0, 0));
    stage.rest(&[&replica]).await;
}

/// Whoever may patch Nodes may have them say anything: the limit holds.
#[tokio::test(start_paused = true)]
async fn forged_notices_drain_no_more_nodes_than_allowed() {
    let stage = Stage::new(10, 1);
    for n in 0..10 {
        stage.block(n);
    }
    let replica = stage.without_queue("a", &["--max-draining", "2", "--at-deadline", "leave"]).await;
    (0..10).for_each(|n| stage.says_spot(n, 120));
    sleep(s(60)).await;
    assert_eq!((0..10).filter(|n| stage.cordoned(*n)).count(), 2, "{}", stage.story());
    assert_eq!(stage.aws_calls(), Vec::<String>::new());
    sleep(Duration::from_mins(10)).await;
    stage.rest(&[&replica]).await;
}

/// What there was no room for is still said.
#[tokio::test(start_paused = true)]
async fn what_was_not_admitted_is_drained_for_when_there_is_room() {
    let stage = Stage::new(2, 1);
    (0..2).for_each(|n| stage.block(n));
    let replica = stage.without_queue("a", &["--max-draining", "1", "--drain-timeout", "10m"]).await;
    stage.annotate(0, TERMINATION, "{\"what\":\"terminate\"}");
    stage.until("cordoned", s(10), || stage.cordoned(0)).await;
    stage.annotate(1, TERMINATION, "{\"what\":\"terminate\"}");
    stage.until("not admitted", s(620), || outcomes(&replica, "asg-terminate", "not-admitted") == "1").await;
    sleep(s(60)).await;
    assert!(!stage.cordoned(1));
    stage.world.kube.remove_node(&node(0));
    stage.unblock(1);
    stage.until("drained", s(300), || stage.world.kube.pods_on(&node(1)).is_empty()).await;
    stage.until("noted", s(60), || stage.handled(1) == 1).await;
    replica.all_ended("asg-terminate", &[("blocked", 1), ("drained", 1), ("not-admitted", 1)]);
    stage.rest(&[&replica]).await;
}

/// Its plan stays on the Node until there is room.
#[tokio::test(start_paused = true)]
async fn a_planned_change_waits_for_room_until_it_begins() {
    let stage = Stage::new(2, 1);
    (0..2).for_each(|n| stage.block(n));
    let flags = ["--when", "scheduled-change=2h-before", "--max-draining", "1", "--drain-timeout", "10m"];
    let replica = stage.without_queue("a", &flags).await;
    stage.annotate(0, TERMINATION, "{\"what\":\"terminate\"}");
    stage.until("cordoned", s(10), || stage.cordoned(0)).await;
    let begin = stage.world.clock.now() + s(7200 + 60);
    let change = format!("{{\"what\":\"instance-stop\",\"at\":\"{begin}\",\"id\":\"instance-event-1\"}}");
    stage.annotate(1, MAINTENANCE, &change);
    sleep(s(7000)).await;
    assert!(!stage.cordoned(1));
    stage.world.kube.remove_node(&node(0));
    stage.unblock(1);
    stage.until("drained", s(120), || stage.world.kube.pods_on(&node(1)).is_empty()).await;
    stage.until("noted", s(60), || stage.handled(1) == 1).await;
    replica.all_ended("scheduled-change", &[("drained", 1), ("planned", 1)]);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_writes_no_lease_and_cordons_nothing() {
    let stage = Stage::new(1, 1);
    let replica = stage.start(&["--source", "nodes", "--dry-run"]).await;
    stage.says_spot(0, 120);
    stage.until("ended", s(60), || outcomes(&replica, "spot", "drained") == "1").await;
    sleep(s(300)).await;
    assert_eq!((stage.cordoned(0), stage.nodes_holder(), &*outcomes(&replica, "spot", "drained")), (false, None, "1"));
    stage.rest(&[&replica]).await;
}

/// An alert asks whether anybody has it.
#[tokio::test(start_paused = true)]
async fn the_metrics_say_who_has_the_turn() {
    let turn = |replica: &Replica| {
        let text = replica.metrics.render(&replica.tasks);
        text.lines().find_map(|line| line.strip_prefix("ebbtide_nodes_turn ")).map(str::to_owned)
    };
    let stage = Stage::new(1, 1);
    let first = stage.without_queue("first", &[]).await;
    stage.until("its turn", s(5), || turn(&first).as_deref() == Some("1")).await;
    let second = stage.without_queue("second", &[]).await;
    stage.until("not its turn", s(5), || turn(&second).as_deref() == Some("0")).await;
    let nobody = || [&first, &second].iter().all(|replica| turn(replica).as_deref() == Some("0"));
    for call in ["get leases", "update leases"] {
        stage.world.faults.add(Rule::on(call, Fault::Status(403)));
    }
    stage.until("nobody's", s(5), nobody).await;
    stage.world.faults.clear();
    stage.until("somebody's", s(15), || !nobody()).await;
    let queue = stage.with_own_queue().start(&[]).await;
    sleep(s(10)).await;
    assert_eq!(turn(&queue), None, "without what Nodes say there is no turn");
    stage.rest(&[&first, &second, &queue]).await;
}

/// Two installations in one namespace have Nodes of their own.
#[tokio::test(start_paused = true)]
async fn two_installations_in_one_namespace_have_a_turn_each() {
    let stage = Stage::new(2, 1);
    stage.label(0, "pool", "one");
    stage.label(1, "pool", "two");
    let one = stage.without_queue("one", &["--node-selector", "pool=one"]).await;
    let two = stage.without_queue("two", &["--node-selector", "pool=two", "--nodes-lease", "two-nodes"]).await;
    stage.says_spot(0, 120);
    stage.says_spot(1, 120);
    stage.until("drained", s(15), || stage.world.kube.pods().is_empty()).await;
    stage.until("noted", s(10), || stage.handled(0) + stage.handled(1) == 2).await;
    for replica in [&one, &two] {
        replica.ended_once("spot", "drained");
    }
    stage.rest(&[&one, &two]).await;
}

/// The clock is compared with the API server's every five minutes, through the gate that the evictions have filled.
#[tokio::test(start_paused = true)]
async fn evictions_that_hang_do_not_cost_the_turn() {
    let stage = Stage::new(200, 1);
    let first = stage.without_queue("a", &["--on", "rebalance=drain"]).await;
    stage.until("its turn", s(5), || stage.nodes_holder().as_deref() == Some("a")).await;
    let second = stage.without_queue("b", &["--on", "rebalance=drain"]).await;
    sleep(s(200)).await;
    stage.world.faults.add(Rule::on("create pods/eviction", Fault::Hang));
    for n in 0..200 {
        stage.says_rebalance(n);
    }
    for _ in 0..200 {
        sleep(s(1)).await;
        assert_eq!(stage.nodes_holder().as_deref(), Some("a"), "{}", stage.story());
    }
    stage.world.faults.clear();
    stage.until("drained", s(120), || stage.world.kube.pods().is_empty()).await;
    stage.until("noted", s(60), || (0..200).all(|n| stage.handled(n) == 1)).await;
    stage.rest(&[&first, &second]).await;
}

/// Whoever may patch a Node may have it say anything.
#[tokio::test(start_paused = true)]
async fn what_a_node_says_and_aws_denies_drains_nothing() {
    let stage = Stage::new(1, 1);
    stage.world.aws.ec2.set_spot_request(&instance(0), "fulfilled", "terminate", stage.world.clock.now());
    let replica = stage.with_both("a", &["--verify", "always"]).await;
    stage.until("its turn", s(5), || stage.nodes_holder().is_some()).await;
    stage.says_spot(0, 120);
    sleep(s(119)).await;
    assert!(!stage.cordoned(0) && stage.world.kube.evictions().is_empty(), "{}", stage.story());
    stage.until("not admitted", s(30), || outcomes(&replica, "spot", "not-admitted") == "1").await;
    drop(replica);
}
