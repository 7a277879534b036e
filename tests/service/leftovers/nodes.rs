//! Deletion of the Nodes of terminated instances: by one replica, with three witnesses, and of no others.

use crate::harness::{Replica, Stage, instance, node, s};
use crate::nodes::TAG;
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::Pod;
use ebbtide_sim::messages::Wrapping;
use std::time::Duration;
use tokio::time::{Instant, sleep};

const HOME: &str = "ebbtide";
const TURN: &str = "ebbtide-collector";
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute";

/// From the beginning of a silence: EC2 is asked from five minutes on, and its answer is confirmed after two, each with a scan a minute.
const ASKED: Duration = s(300);
const EARLIEST: Duration = s(300 + 120);
const LATEST: Duration = s(300 + 60 + 180);

/// Time for which a replica that has just taken its turn deletes nothing.
const TAKE_OVER: Duration = s(600);

/// Time after which nothing else will happen: EC2 has forgotten the instance, and everything was confirmed.
const EVER: Duration = s(3 * 3600);

impl Stage {
    /// Starts a replica that collects Nodes, in a pod of this name, and waits until it may delete some.
    async fn collects_nodes(&self, pod: &str, more: &[&str]) -> Replica {
        let replica = self.begins_to_collect(pod, more).await;
        sleep(TAKE_OVER + s(1)).await;
        replica
    }

    async fn begins_to_collect(&self, pod: &str, more: &[&str]) -> Replica {
        let flags = ["--collect-nodes", "--pod-namespace", HOME, "--pod-name", pod];
        self.start(&[&flags, more].concat()).await
    }

    /// The n-th node's kubelet falls silent, and EC2 shows this state of its instance, or does not know it.
    fn falls_silent(&self, n: usize, state: Option<&str>) {
        self.set_ready(n, false);
        match state {
            Some(state) => self.world.aws.ec2.set_state(&instance(n), state),
            None => self.world.aws.ec2.remove(&instance(n)),
        }
    }

    fn terminates(&self, n: usize) {
        self.falls_silent(n, Some("terminated"));
    }

    fn is_there(&self, n: usize) -> bool {
        self.world.kube.node(&node(n)).is_some()
    }

    async fn until_gone(&self, n: usize, within: Duration) {
        self.until("the Node is gone", within, || !self.is_there(n)).await;
    }

    fn turn_of(&self) -> Option<String> {
        let leases = self.world.kube.leases(HOME);
        leases.into_iter().find(|lease| lease.metadata.name.as_deref() == Some(TURN))?.spec?.holder_identity
    }

    /// Returns the statuses of the answers to deletions of Nodes.
    fn deletions(&self) -> Vec<u16> {
        self.world.calls.of("delete nodes").into_iter().map(|call| call.status).collect()
    }
}

fn collected(replica: &Replica) -> String {
    replica.metric("ebbtide_nodes_collected_total").to_string()
}

#[tokio::test(start_paused = true)]
async fn the_node_of_a_terminated_instance_is_deleted() {
    let stage = Stage::new(6, 1);
    let replica = stage.collects_nodes("a", &[]).await;
    sleep(EVER).await;
    assert_eq!(stage.calls("DescribeInstances"), 0, "every kubelet reports");
    stage.terminates(0);
    // A Node's times are in whole seconds.
    sleep(ASKED - s(2)).await;
    assert_eq!(stage.calls("DescribeInstances"), 0, "kubelets restart");
    sleep(EARLIEST - ASKED).await;
    assert!(stage.is_there(0));
    let calls = stage.calls("DescribeInstances");
    assert!((1..=3).contains(&calls), "{calls}: at most one a minute");
    stage.until_gone(0, LATEST - EARLIEST + s(4)).await;
    assert_eq!((stage.deletions(), collected(&replica)), (vec![200], "1".to_owned()));
    assert_eq!(stage.calls("patch nodes"), 0, "it has no volumes");
    stage.until("its pods are gone", s(60), || stage.world.kube.pods_on(&node(0)).is_empty()).await;
    let calls = stage.calls("DescribeInstances");
    sleep(EVER).await;
    assert_eq!((stage.world.kube.nodes().len(), stage.calls("DescribeInstances")), (5, calls));
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn by_default_no_node_is_deleted_and_ec2_is_not_asked() {
    let stage = Stage::new(6, 0);
    let replica = stage.start(&["--pod-namespace", HOME, "--pod-name", "a"]).await;
    stage.terminates(0);
    sleep(EVER).await;
    assert!(stage.is_there(0) && stage.turn_of().is_none());
    assert_eq!((stage.calls("DescribeInstances"), stage.deletions()), (0, vec![]));
    stage.rest(&[&replica]).await;
}

/// What happens to the first node of a stage.
type Event<'a> = &'a dyn Fn(&Stage);

#[tokio::test(start_paused = true)]
async fn other_nodes_stay() {
    let table: [(&str, &[&str], Event<'_>); 9] = [
        ("it runs", &[], &|stage| stage.falls_silent(0, Some("running"))),
        ("it is stopped", &[], &|stage| stage.falls_silent(0, Some("stopped"))),
        ("it is on its way", &[], &|stage| stage.falls_silent(0, Some("shutting-down"))),
        ("the kubelet reports that it is not Ready", &[], &|stage| {
            stage.world.aws.ec2.set_state(&instance(0), "terminated");
            stage.set_condition(0, "Ready", "False", 7200);
        }),
        ("a user ignores it", &[], &|stage| {
            stage.annotate(0, "ebbtide/ignore", "true");
            stage.terminates(0);
        }),
        ("the settings exclude it", &["--node-selector", "pool=blue"], &|stage| stage.terminates(0)),
        ("it is another cluster's", &["--cluster-name", "blue"], &|stage| {
            stage.world.aws.ec2.put(&instance(0), &[(TAG, "true"), ("kubernetes.io/cluster/red", "owned")]);
            stage.terminates(0);
        }),
        ("it lacks the tag", &["--require-tag"], &|stage| {
            stage.world.aws.ec2.put(&instance(0), &[]);
            stage.terminates(0);
        }),
        ("EC2 does not know its tags", &["--require-tag"], &|stage| stage.falls_silent(0, None)),
    ];
    for (what, flags, happens) in table {
        let stage = Stage::new(6, 0);
        (1..6).for_each(|n| stage.label(n, "pool", "blue"));
        let replica = stage.collects_nodes("a", flags).await;
        happens(&stage);
        sleep(EVER).await;
        assert!(stage.is_there(0), "{what}");
        assert_eq!((stage.deletions(), stage.calls("patch nodes")), (vec![], 0), "{what}");
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_ec2_does_not_know_counts_after_an_hour() {
    let stage = Stage::new(6, 0);
    let replica = stage.collects_nodes("a", &[]).await;
    stage.falls_silent(0, None);
    sleep(s(3600 + 115)).await;
    assert!(stage.is_there(0));
    stage.until_gone(0, s(60 + 180 + 2)).await;
    // EC2 does not know yet what was launched just now.
    stage.world.kube.add_unready_node("young", &instance(9));
    sleep(s(3000)).await;
    stage.world.aws.ec2.put(&instance(9), &[]);
    sleep(EVER).await;
    assert!(stage.world.kube.node("young").is_some());
    assert_eq!(collected(&replica), "1");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn without_an_answer_of_ec2_nothing_is_deleted() {
    for fault in [Fault::Status(503), Fault::Throttle, Fault::Status(403), Fault::Hang, Fault::Disconnect] {
        // From the beginning, or after the first answer.
        for after in [0, 1] {
            let stage = Stage::new(6, 0);
            let rule = Rule::on("DescribeInstances", fault).after(after);
            stage.world.faults.add(rule);
            let replica = stage.collects_nodes("a", &[]).await;
            stage.terminates(0);
            sleep(s(3000)).await;
            assert!(stage.is_there(0), "{fault:?}");
            let tries = replica
                .metric("ebbtide_aws_calls_total{operation=\"DescribeInstances\",outcome=\"ok\",service=\"ec2\"}");
            assert_eq!(tries.to_string(), after.to_string(), "{fault:?}");
            stage.world.faults.clear();
            stage.until_gone(0, s(300 + 180 + 62)).await;
            stage.rest(&[&replica]).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_account_without_the_instances_of_ready_nodes_proves_nothing() {
    let stage = Stage::new(12, 0);
    let replica = stage.collects_nodes("a", &[]).await;
    (0..12).for_each(|n| stage.world.aws.ec2.remove(&instance(n)));
    (0..2).for_each(|n| stage.set_ready(n, false));
    sleep(EVER).await;
    assert_eq!((stage.world.kube.nodes().len(), stage.deletions()), (12, vec![]));
    // EC2 knows all but one: another account may know that one, and the silent ones.
    (3..12).for_each(|n| stage.world.aws.ec2.put(&instance(n), &[]));
    sleep(EVER).await;
    assert_eq!(stage.deletions(), Vec::<u16>::new());
    // What EC2 shows as terminated is in this account.
    stage.world.aws.ec2.put(&instance(0), &[]);
    stage.world.aws.ec2.set_state(&instance(0), "terminated");
    stage.until_gone(0, s(60 + 180 + 2)).await;
    sleep(EVER).await;
    assert!(stage.is_there(1));
    stage.world.aws.ec2.put(&instance(2), &[]);
    stage.until_gone(1, s(60 + 180 + 2)).await;
    assert_eq!(collected(&replica), "2");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn without_a_ready_node_nothing_is_deleted() {
    let stage = Stage::new(3, 0);
    let replica = stage.collects_nodes("a", &[]).await;
    (0..3).for_each(|n| stage.terminates(n));
    sleep(EVER).await;
    assert_eq!((stage.world.kube.nodes().len(), stage.deletions()), (3, vec![]));
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_fifth_of_the_nodes_is_deleted_in_ten_minutes() {
    let stage = Stage::new(20, 0);
    let replica = stage.collects_nodes("a", &[]).await;
    (0..12).for_each(|n| stage.terminates(n));
    let begun = Instant::now();
    let mut last = 20;
    let mut falls: Vec<(Duration, usize)> = Vec::new();
    while last > 8 {
        assert!(begun.elapsed() < s(7200), "{falls:?}");
        sleep(s(1)).await;
        let nodes = stage.world.kube.nodes().len();
        if nodes < last {
            falls.push((begun.elapsed(), last - nodes));
            last = nodes;
        }
    }
    for (n, (at, _)) in falls.iter().enumerate() {
        let within = falls[n..].iter().take_while(|(other, _)| *other < *at + s(590));
        let deleted: usize = within.map(|(_, nodes)| nodes).sum();
        assert!(deleted <= 4, "{falls:?}");
    }
    assert!(falls[0].1 == 4, "the first ones together: {falls:?}");
    assert_eq!(collected(&replica), "12");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_starts_does_not_know_what_was_deleted_before() {
    let stage = Stage::new(20, 0);
    let first = stage.collects_nodes("a", &[]).await;
    (0..12).for_each(|n| stage.terminates(n));
    stage.until("a fifth is deleted", LATEST, || stage.deletions().len() == 4).await;
    // Its name is that of the first: the turn is its own at once.
    first.kill().await;
    let second = stage.begins_to_collect("a", &[]).await;
    sleep(TAKE_OVER - s(1)).await;
    assert_eq!(stage.deletions().len(), 4);
    stage.until("the next are deleted", s(120), || stage.deletions().len() > 4).await;
    stage.rest(&[&second]).await;
}

#[tokio::test(start_paused = true)]
async fn a_deletion_whose_answer_is_lost_counts() {
    let stage = Stage::new(5, 0);
    let replica = stage.collects_nodes("a", &[]).await;
    stage.world.faults.add(Rule::on("delete nodes", Fault::LostResponse).times(1));
    (0..2).for_each(|n| stage.terminates(n));
    stage.until("the first is deleted", LATEST, || stage.world.kube.nodes().len() == 4).await;
    let begun = Instant::now();
    stage.until("the second is deleted", s(1800), || stage.world.kube.nodes().len() == 3).await;
    assert!(begun.elapsed() >= s(590), "{:?}", begun.elapsed());
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_becomes_ready_again_stays_and_begins_anew() {
    let stage = Stage::new(6, 0);
    let replica = stage.collects_nodes("a", &[]).await;
    stage.terminates(0);
    stage.until("the first answer", s(370), || stage.calls("DescribeInstances") == 1).await;
    stage.set_ready(0, true);
    sleep(EVER).await;
    assert_eq!((stage.is_there(0), stage.calls("DescribeInstances")), (true, 1));
    stage.set_ready(0, false);
    sleep(EARLIEST - s(2)).await;
    assert!(stage.is_there(0));
    stage.until_gone(0, LATEST - EARLIEST + s(4)).await;
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_changes_before_its_deletion_stays() {
    // The change happens while the deletion is on its way.
    let returns = |stage: &Stage| stage.set_ready(0, true);
    let is_another = |stage: &Stage| {
        stage.world.kube.remove_node(&node(0));
        stage.world.kube.add_node(&node(0), &instance(9));
        stage.world.aws.ec2.put(&instance(9), &[]);
    };
    let is_gone = |stage: &Stage| stage.world.kube.remove_node(&node(0));
    let table: [(&str, Event<'_>, u16, bool); 3] = [
        ("its kubelet returns", &returns, 409, true),
        ("another has its name", &is_another, 409, true),
        ("it is gone", &is_gone, 404, false),
    ];
    for (what, happens, status, stays) in table {
        let stage = Stage::new(6, 0);
        stage.world.faults.add(Rule::on("delete nodes", Fault::Late(s(3))).times(1));
        let replica = stage.collects_nodes("a", &[]).await;
        stage.terminates(0);
        stage.until("the deletion is on its way", LATEST + s(2), || stage.calls("delete nodes") == 1).await;
        happens(&stage);
        stage.until("answered", s(10), || stage.deletions() != [0]).await;
        assert_eq!(stage.deletions(), [status], "{what}");
        sleep(EVER).await;
        assert_eq!((stage.is_there(0), collected(&replica)), (stays, "0".to_owned()), "{what}");
        assert_eq!(replica.metric("ebbtide_retries_total{category=\"conflict\",step=\"collect\"}").to_string(), "0");
        stage.rest(&[&replica]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn one_of_two_replicas_asks_and_deletes_and_the_other_takes_over() {
    let stage = Stage::new(12, 0);
    let first = stage.collects_nodes("a", &[]).await;
    stage.until("the first has the turn", s(10), || stage.turn_of().as_deref() == Some("a")).await;
    let second = stage.collects_nodes("b", &[]).await;
    stage.terminates(0);
    stage.until_gone(0, LATEST + s(2)).await;
    assert_eq!((collected(&first), collected(&second)), ("1".to_owned(), "0".to_owned()));
    let calls = stage.calls("DescribeInstances");
    assert!(calls <= 4, "{calls}: only one asks");
    stage.terminates(1);
    stage.until("the first answer", s(370), || stage.calls("DescribeInstances") > calls).await;
    first.kill().await;
    sleep(s(19 * 60)).await;
    assert!(stage.is_there(1) && stage.deletions().len() == 1);
    // It begins anew: it has seen no answer.
    stage.until_gone(1, s(1000)).await;
    assert_eq!((stage.turn_of().as_deref(), &*collected(&second)), (Some("b"), "1"));
    stage.rest(&[&second]).await;
}

/// Returns a world of nodes. The first has a pod with a volume, which is detached this long after the pod is gone.
fn with_volume(detached_after: Option<Duration>) -> Stage {
    let stage = Stage::new(6, 0);
    stage.world.kube.detach_after(detached_after);
    stage.world.kube.add_pod(Pod::on(&node(0)).statefulset("db").named("db-0").claim("data-db-0"));
    stage
}

#[tokio::test(start_paused = true)]
async fn volumes_are_detached_before_the_node_is_deleted() {
    let stage = with_volume(Some(s(70)));
    let replica = stage.collects_nodes("a", &[]).await;
    stage.terminates(0);
    sleep(EARLIEST - s(2)).await;
    assert_eq!((stage.taints(0), stage.cordoned(0)), (vec![], false), "EC2 has not confirmed it");
    stage.until("tainted", LATEST - EARLIEST + s(4), || stage.taints(0) == [OUT_OF_SERVICE]).await;
    // With the taint Kubernetes removes the pod, and then detaches its volume.
    stage.world.kube.remove_pod("default", "db-0");
    sleep(s(69)).await;
    assert!(stage.is_there(0) && !stage.world.kube.attachments().is_empty());
    stage.until_gone(0, s(62)).await;
    assert!(stage.world.kube.attachments().is_empty());
    assert_eq!((collected(&replica), stage.calls("patch nodes")), ("1".to_owned(), 1));
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_stays_attached_holds_the_node_for_ten_minutes() {
    let stage = with_volume(None);
    let replica = stage.collects_nodes("a", &[]).await;
    stage.terminates(0);
    stage.until("tainted", LATEST + s(2), || !stage.taints(0).is_empty()).await;
    sleep(s(595)).await;
    assert!(stage.is_there(0));
    stage.until_gone(0, s(72)).await;
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_returns_while_its_volumes_are_detached_loses_the_taint() {
    let stage = with_volume(None);
    let replica = stage.collects_nodes("a", &[]).await;
    stage.terminates(0);
    stage.until("tainted", LATEST + s(2), || !stage.taints(0).is_empty()).await;
    sleep(s(30)).await;
    stage.world.aws.ec2.set_state(&instance(0), "running");
    stage.set_ready(0, true);
    stage.until("released", s(5), || stage.taints(0).is_empty()).await;
    sleep(EVER).await;
    assert!(stage.is_there(0) && !stage.cordoned(0));
    stage.no_trace(0);
    assert_eq!(replica.released("rebooted").to_string(), "1");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn without_the_right_to_see_volumes_the_node_is_deleted_all_the_same() {
    let stage = with_volume(None);
    stage.world.kube.deny("list volumeattachments");
    let replica = stage.collects_nodes("a", &[]).await;
    stage.terminates(0);
    stage.until_gone(0, LATEST + s(2)).await;
    assert_eq!(stage.calls("patch nodes"), 0);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_drain_ends_before_its_node_is_deleted() {
    let stage = Stage::new(6, 1);
    stage.block(0);
    let replica = stage.collects_nodes("a", &[]).await;
    let token = stage.terminate(0, s(3600), Wrapping::Event);
    stage.until("cordoned", s(5), || stage.cordoned(0)).await;
    stage.terminates(0);
    stage.until_gone(0, s(900 + 60 + 180)).await;
    replica.ended_once("asg-terminate", "node-dead");
    stage.completed_once(&token);
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn finalizers_are_left_to_their_controllers() {
    let stage = Stage::new(6, 0);
    let replica = stage.collects_nodes("a", &[]).await;
    let finalizer = "karpenter.sh/termination".to_owned();
    stage.world.kube.update_node(&node(0), |node| node.metadata.finalizers = Some(vec![finalizer]));
    stage.terminates(0);
    let deleted = || stage.world.kube.node(&node(0)).is_some_and(|node| node.metadata.deletion_timestamp.is_some());
    stage.until("its deletion is requested", LATEST + s(2), deleted).await;
    sleep(EVER).await;
    assert!(stage.is_there(0));
    assert_eq!((stage.deletions(), collected(&replica)), (vec![200], "1".to_owned()), "once");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_deletes_no_node() {
    let stage = with_volume(None);
    stage.terminates(0);
    let replicas = [stage.collects_nodes("a", &["--dry-run"]).await, stage.collects_nodes("b", &["--dry-run"]).await];
    sleep(EVER).await;
    assert!(stage.is_there(0) && stage.turn_of().is_none() && stage.taints(0).is_empty());
    assert_eq!(stage.deletions(), [200, 200], "the API server checks one of each replica");
    assert_eq!(collected(&replicas[0]), "0");
    stage.rest(&[&replicas[0], &replicas[1]]).await;
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_is_denied_does_not_keep_the_others() {
    let stage = Stage::new(12, 0);
    stage.world.faults.add(Rule::on("delete nodes", Fault::Status(403)).subject(node(0)));
    let replica = stage.collects_nodes("a", &[]).await;
    (0..2).for_each(|n| stage.terminates(n));
    stage.until_gone(1, LATEST + s(2)).await;
    assert!(stage.is_there(0));
    assert!(replica.metric("ebbtide_retries_total{category=\"denied\",step=\"collect\"}") > 0.5);
    stage.world.faults.clear();
    stage.until_gone(0, s(310)).await;
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn leases_and_nodes_are_collected_by_one_replica_at_their_own_intervals() {
    let stage = Stage::new(6, 0);
    let replica = stage.collects_nodes("a", &["--collect-leases"]).await;
    sleep(s(3600)).await;
    let lists = stage.calls("list leases");
    assert!((6..=8).contains(&lists), "{lists} in an hour");
    stage.terminates(0);
    stage.until_gone(0, LATEST + s(2)).await;
    assert_eq!(stage.calls("create leases"), 1, "one turn for both");
    stage.rest(&[&replica]).await;
}
