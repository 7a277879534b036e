//! Collection of leaked Leases: by one replica at a time, and of nothing else.

use crate::harness::{Replica, Stage, instance, node, s};
use ebbtide::fact::TaskKind;
use ebbtide::service::Exit;
use ebbtide_sim::fault::{Fault, Rule};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, OwnerReference};
use kube::Resource;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

const NODE_LEASES: &str = "kube-node-lease";
const HOME: &str = "ebbtide";
const TURN: &str = "ebbtide-collector";

/// Duration of a turn, and interval between two scans.
const LASTS: Duration = s(1200);
const EVERY: Duration = s(600);

impl Stage {
    /// Starts a replica with the collector, in a pod of this name.
    async fn collector(&self, pod: &str, more: &[&str]) -> Replica {
        let flags = ["--collect-leases", "--pod-namespace", HOME, "--pod-name", pod];
        self.start(&[&flags, more].concat()).await
    }

    /// Writes the Lease of a kubelet that renewed it `ago`.
    fn lease(&self, name: &str, ago: Duration) {
        self.lease_with(NODE_LEASES, name, ago, |_| {});
    }

    fn lease_with(&self, namespace: &str, name: &str, ago: Duration, change: impl FnOnce(&mut Lease)) {
        let renewed = self.world.clock.now() - ago;
        self.world.kube.put_lease(namespace, name, |lease| {
            let spec = lease.spec.get_or_insert_default();
            spec.holder_identity = Some(name.to_owned());
            spec.lease_duration_seconds = Some(40);
            spec.renew_time = Some(MicroTime(renewed));
            change(lease);
        });
    }

    fn leases(&self) -> Vec<String> {
        self.world.kube.leases(NODE_LEASES).into_iter().filter_map(|lease| lease.metadata.name).collect()
    }

    /// Returns the holder of the turn, as its Lease says.
    fn holder(&self) -> Option<String> {
        self.turn().holder_identity
    }

    fn turn(&self) -> LeaseSpec {
        let found = self.world.kube.leases(HOME).into_iter().find(|lease| lease.metadata.name.as_deref() == Some(TURN));
        found.and_then(|lease| lease.spec).unwrap_or_default()
    }

    /// Writes the Lease of the turn for another holder, whose clock may be wrong.
    fn held_by_another(&self, renewed: &str, seconds: i32) {
        self.world.kube.put_lease(HOME, TURN, |lease| {
            let spec = lease.spec.get_or_insert_default();
            spec.holder_identity = Some("another".to_owned());
            spec.lease_duration_seconds = Some(seconds);
            spec.renew_time = Some(MicroTime(renewed.parse().unwrap()));
        });
    }
}

fn collected(replica: &Replica) -> f64 {
    replica.metric("ebbtide_leases_collected_total")
}

#[track_caller]
fn same(a: f64, b: f64) {
    assert!((a - b).abs() < f64::EPSILON, "{a}, not {b}");
}

fn owned(lease: &mut Lease) {
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: "gone".to_owned(),
        uid: "u".to_owned(),
        ..OwnerReference::default()
    };
    lease.meta_mut().owner_references = Some(vec![owner]);
}

#[tokio::test(start_paused = true)]
async fn only_leaked_leases_are_deleted() {
    let stage = Stage::new(2, 0);
    stage.lease("leaked", s(3601));
    stage.lease("leaked-long-ago", s(30 * 86_400));
    stage.lease("young", s(3500));
    stage.lease(&node(0), s(7200));
    stage.lease_with(NODE_LEASES, &node(1), s(5), owned);
    stage.lease_with(NODE_LEASES, "owned", s(7200), owned);
    stage.lease_with(NODE_LEASES, "never", s(7200), |lease| lease.spec.get_or_insert_default().renew_time = None);
    stage.lease_with(NODE_LEASES, "foreign", s(7200), |lease| {
        lease.spec.get_or_insert_default().holder_identity = Some("somebody".to_owned());
    });
    stage.lease_with("default", "elsewhere", s(7200), |_| {});
    let stay = ["foreign", "never", &node(0), &node(1), "owned", "young"];

    let idle = stage.start(&["--pod-namespace", HOME, "--pod-name", "ebbtide-0"]).await;
    sleep(EVERY * 2).await;
    assert_eq!(stage.leases().len(), 8, "off by default");
    assert_eq!(stage.calls("list leases"), 0);
    stage.rest(&[&idle]).await;

    // Renewed again, while no collector ran.
    stage.lease("young", s(3500));
    let replica = stage.collector("ebbtide-1", &[]).await;
    stage.until("the leaked are gone", s(10), || stage.leases().len() == 6).await;
    assert_eq!(stage.leases(), stay);
    assert_eq!(stage.world.kube.leases("default").len(), 1);
    same(collected(&replica), 2.0);
    assert_eq!(stage.calls("delete leases"), 2, "who is there is not asked to go");
    assert_eq!(stage.calls("get nodes"), 3, "only of suspects a Node is looked for");
    // After the next scan the Lease is old enough.
    sleep(EVERY).await;
    assert_eq!(stage.leases().len(), 5);
    same(collected(&replica), 3.0);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn many_leases_are_listed_in_pages_and_read_seldom() {
    let stage = Stage::new(0, 0);
    for n in 0..1200 {
        stage.lease(&format!("gone-{n}"), s(if n < 700 { 7200 } else { 0 }));
    }
    let replica = stage.collector("ebbtide-0", &[]).await;
    stage.until("the leaked are gone", s(60), || stage.leases().len() == 500).await;
    assert_eq!(stage.calls("list leases"), 3);
    same(collected(&replica), 700.0);
    // The fifth scan is within 50 minutes of the first, the sixth is not within 54.
    sleep(s(52 * 60)).await;
    assert_eq!(stage.calls("list leases") - 3, 5, "a look in nine to ten minutes, and a page each");
    assert_eq!((stage.calls("get leases"), stage.calls("update leases")), (1, 5), "our own Lease is not read again");
    stage.rest(&[&replica]).await;
}

/// A change between the scan and the deletion, and the number of Leases that are left.
type Happens<'a> = (&'a str, &'a dyn Fn(&Stage), usize);

#[tokio::test(start_paused = true)]
async fn a_lease_renewed_before_its_deletion_stays() {
    // The change happens while the answer "no such Node" is on its way.
    let renew = |stage: &Stage| stage.lease("back", s(0));
    let replace = |stage: &Stage| {
        stage.world.kube.remove_lease(NODE_LEASES, "back");
        stage.lease("back", s(7200));
    };
    let remove = |stage: &Stage| stage.world.kube.remove_lease(NODE_LEASES, "back");
    let table: [Happens<'_>; 3] = [("renewed", &renew, 1), ("replaced", &replace, 1), ("removed", &remove, 0)];
    for (what, happens, left) in table {
        let stage = Stage::new(0, 0);
        stage.lease("back", s(7200));
        stage.lease("gone", s(7200));
        stage.world.faults.add(Rule::on("get nodes", Fault::Slow(s(5))).subject("back").times(1));
        let replica = stage.collector("ebbtide-0", &[]).await;
        stage.until("the Node is looked for", s(10), || stage.calls("get nodes") == 1).await;
        stage.world.kube.add_node("back", &instance(9));
        happens(&stage);
        stage.until("the other is gone", s(20), || !stage.leases().contains(&"gone".to_owned())).await;
        assert_eq!(stage.calls("delete leases"), 2, "{what}: it was tried");
        assert_eq!(stage.leases().len(), left, "{what}");
        same(collected(&replica), 1.0);
        same(replica.metric("ebbtide_retries_total{step=\"collect\",category=\"conflict\"}"), 0.0);
        sleep(EVERY).await;
        assert_eq!(stage.leases().len(), left, "{what}: now its Node is there");
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn only_one_of_two_replicas_deletes() {
    let stage = Stage::new(0, 0);
    // Both replicas find no Lease before either creates one.
    stage.world.faults.add(Rule::on("get leases", Fault::Slow(s(8))).times(2));
    let (a, b) = (stage.collector("a", &[]).await, stage.collector("b", &[]).await);
    sleep(s(30)).await;
    assert_eq!((stage.calls("create leases"), stage.calls("list leases")), (2, 1), "both wanted it, and one got it");
    for hour in 0..6 {
        stage.lease(&format!("leaked-{hour}"), s(7200));
        sleep(s(3600)).await;
        assert_eq!(stage.leases(), Vec::<String>::new());
    }
    let first = stage.holder().unwrap();
    let (acts, waits) = if first == "a" { (&a, &b) } else { (&b, &a) };
    same(collected(acts), 6.0);
    same(collected(waits), 0.0);
    assert_eq!(stage.turn().lease_transitions, Some(0));
    assert!(stage.calls("list leases") < 6 * 7 + 2, "{}", stage.calls("list leases"));
    assert_eq!(stage.world.calls.of("update leases").iter().filter(|call| call.status != 200).count(), 0);
    stage.rest(&[&a, &b]).await;
}

#[tokio::test(start_paused = true)]
async fn another_replica_takes_over_when_a_dead_holders_turn_expires() {
    let stage = Stage::new(0, 0);
    let first = stage.collector("a", &[]).await;
    stage.until("the first has it", s(10), || stage.holder().as_deref() == Some("a")).await;
    let second = stage.collector("b", &[]).await;
    sleep(s(10)).await;
    first.kill().await;
    let died = Instant::now();
    stage.lease("leaked", s(7200));
    sleep_until(died + LASTS - s(15)).await;
    assert_eq!((stage.holder().as_deref(), stage.leases().len()), (Some("a"), 1));
    sleep_until(died + LASTS + s(15)).await;
    assert_eq!((stage.holder().as_deref(), stage.leases().len()), (Some("b"), 0));
    assert_eq!(stage.turn().lease_transitions, Some(1));
    same(collected(&second), 1.0);
    stage.rest(&[&second]).await;
}

#[tokio::test(start_paused = true)]
async fn the_holders_clock_does_not_matter() {
    // The holder's clock is slow, and it renews: its turn is respected.
    let stage = Stage::new(0, 0);
    stage.lease("leaked", s(7200));
    stage.held_by_another("2001-01-01T00:00:00Z", 900);
    let replica = stage.collector("b", &[]).await;
    for n in 1..10 {
        sleep(s(600)).await;
        assert_eq!((stage.holder().as_deref(), stage.leases().len()), (Some("another"), 1), "after {n} looks");
        stage.held_by_another(&format!("2001-01-01T0{n}:00:00Z"), 900);
    }
    // The holder's clock is fast, and it is dead.
    stage.held_by_another("2101-01-01T00:00:00Z", 900);
    sleep(s(890)).await;
    assert_eq!(stage.holder().as_deref(), Some("another"));
    sleep(s(900)).await;
    assert_eq!((stage.holder().as_deref(), stage.leases().len()), (Some("b"), 0));
    same(collected(&replica), 1.0);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn an_ordered_shutdown_gives_the_turn_back() {
    let stage = Stage::new(0, 0);
    let first = stage.collector("a", &[]).await;
    stage.until("the first has it", s(10), || stage.holder().as_deref() == Some("a")).await;
    let (exit, took, _) = first.stop().await;
    assert_eq!((exit, stage.holder()), (Exit::Clean, None));
    assert!(took < s(3), "{took:?}");
    stage.lease("leaked", s(7200));
    let second = stage.collector("b", &[]).await;
    stage.until("the second collects at once", s(10), || stage.leases().is_empty()).await;
    assert_eq!((stage.holder().as_deref(), stage.turn().lease_transitions), (Some("b"), Some(1)));
    stage.rest(&[&second]).await;
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_has_lost_the_turn_does_not_release_it() {
    let stage = Stage::new(0, 0);
    let replica = stage.collector("b", &[]).await;
    stage.until("it has the turn", s(10), || stage.holder().as_deref() == Some("b")).await;
    stage.held_by_another("2026-11-21T00:00:00Z", 3600);
    stage.lease("leaked", s(7200));
    sleep(EVERY * 2).await;
    assert_eq!(stage.leases().len(), 1);
    stage.held_by_another("2026-11-21T00:10:00Z", 3600);
    let before = stage.calls("update leases");
    let (exit, ..) = replica.stop().await;
    assert_eq!((exit, stage.holder().as_deref()), (Exit::Clean, Some("another")));
    assert_eq!(stage.calls("update leases"), before, "it does not even try");
}

#[tokio::test(start_paused = true)]
async fn a_hanging_api_server_does_not_delay_the_shutdown() {
    for place in ["list leases", "delete leases", "get leases", "create leases", "update leases"] {
        let stage = Stage::new(0, 0);
        stage.lease("leaked", s(7200));
        stage.world.faults.add(Rule::on(place, Fault::Hang));
        let replica = stage.collector("a", &[]).await;
        sleep(s(8)).await;
        let (exit, took, tasks) = replica.stop().await;
        assert_eq!(exit, Exit::Clean, "{place}");
        assert!(took < s(4), "{place}: {took:?}");
        assert_eq!(tasks.alive(TaskKind::Collector), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_reports_deletions_without_making_them() {
    let stage = Stage::new(0, 0);
    stage.lease("leaked", s(7200));
    let replicas = [stage.collector("a", &["--dry-run"]).await, stage.collector("b", &["--dry-run"]).await];
    sleep(EVERY * 3).await;
    assert_eq!((stage.leases().len(), stage.world.kube.leases(HOME).len()), (1, 0));
    // The server validates the dry run, at each scan.
    let deletions = stage.world.calls.of("delete leases");
    assert!(deletions.len() >= 6 && deletions.iter().all(|call| call.status == 200), "{deletions:?}");
    same(collected(&replicas[0]), 0.0);
    stage.rest(&[&replicas[0], &replicas[1]]).await;
}

#[tokio::test(start_paused = true)]
async fn failures_are_reported_and_retried() {
    let table = [
        ("list leases", 503, "unavailable"),
        ("get nodes", 403, "denied"),
        ("delete leases", 500, "unavailable"),
        ("get leases", 403, "denied"),
        ("create leases", 403, "denied"),
        ("update leases", 500, "unavailable"),
    ];
    for (place, status, category) in table {
        let stage = Stage::new(0, 0);
        if place == "update leases" {
            stage.world.kube.put_lease(HOME, TURN, |_| {});
        }
        stage.lease("leaked", s(7200));
        stage.world.faults.add(Rule::on(place, Fault::Status(status)));
        let replica = stage.collector("a", &[]).await;
        sleep(s(1800)).await;
        assert_eq!(stage.leases().len(), 1, "{place}: what is not known to be leaked stays");
        let told = replica.metric(&format!("ebbtide_retries_total{{category=\"{category}\",step=\"collect\"}}"));
        assert!((8.0..18.0).contains(&told), "{place}: {told} tries in half an hour");
        stage.world.faults.clear();
        stage.until("it is gone after all", s(310), || stage.leases().is_empty()).await;
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_can_not_be_deleted_does_not_keep_the_others() {
    let stage = Stage::new(0, 0);
    for name in ["a", "b", "c"] {
        stage.lease(name, s(7200));
    }
    let rule = Rule::on("delete leases", Fault::Status(403)).subject(format!("{NODE_LEASES}/a"));
    stage.world.faults.add(rule);
    let replica = stage.collector("a", &[]).await;
    stage.until("the others are gone", s(10), || stage.leases() == ["a"]).await;
    same(replica.metric("ebbtide_retries_total{category=\"denied\",step=\"collect\"}"), 1.0);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_collector_ends_no_drain() {
    let stage = Stage::new(1, 1);
    stage.world.faults.add(Rule::on("list leases", Fault::Panic));
    let replica = stage.collector("a", &[]).await;
    stage.until("it panics", s(10), || replica.metric("ebbtide_panics_total") > 0.0).await;
    stage.spot(0);
    stage.until_handled(s(20)).await;
    replica.ended_once("spot", "drained");
    stage.rest(&[&replica]).await;
    let (exit, ..) = replica.stop().await;
    assert_eq!(exit, Exit::Clean);
}
