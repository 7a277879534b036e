//! `ebbtide undo`: after the service is gone, nothing of it stays on Nodes, and nothing of others goes.

use crate::harness::{Stage, node, s};
use clap::Parser;
use ebbtide::cli::{Answer, Cli, Command};
use ebbtide::commands::undo::undo_with;
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::Pod;
use k8s_openapi::api::core::v1::{Node, Taint};

impl Stage {
    /// Runs `ebbtide undo` with these flags; `answer` answers the question.
    async fn undo_if(&self, flags: &[&str], answer: impl FnOnce(&str) -> bool) -> Answer {
        let line = [&["ebbtide", "undo"], flags].concat();
        let Command::Undo(flags) = Cli::try_parse_from(line).expect("a test's flags must be flags").command else {
            panic!("it must be undo")
        };
        undo_with(self.world.kube.client(), flags, answer).await
    }

    async fn undo(&self, flags: &[&str]) -> Answer {
        self.undo_if(flags, |question| panic!("a test asks: {question}")).await
    }
}

/// Returns the names under `ebbtide/`, the keys of the taints, and whether the Node is cordoned.
fn marks(node: &Node) -> (Vec<String>, Vec<String>, bool) {
    let names = |map: &Option<std::collections::BTreeMap<String, String>>| map.clone().unwrap_or_default().into_keys();
    let all = names(&node.metadata.annotations).chain(names(&node.metadata.labels));
    let spec = node.spec.clone().unwrap_or_default();
    let taints = spec.taints.unwrap_or_default().into_iter().map(|taint| taint.key);
    let own = all.filter(|name| name.starts_with("ebbtide/")).collect();
    (own, taints.collect(), spec.unschedulable == Some(true))
}

fn conditions(node: &Node) -> Vec<String> {
    let status = node.status.clone().unwrap_or_default();
    status.conditions.unwrap_or_default().into_iter().map(|condition| condition.type_).collect()
}

/// Three nodes get a spot warning: the drain of one is blocked, and someone else had cordoned another. The service ends, the nodes stay.
#[tokio::test(start_paused = true)]
async fn all_marks_go_and_nothing_of_others_does() {
    let stage = Stage::new(3, 2);
    stage.block(1);
    stage.world.kube.update_node(&node(2), |node| {
        let spec = node.spec.get_or_insert_default();
        spec.unschedulable = Some(true);
        spec.taints = Some(vec![Taint { key: "own".to_owned(), effect: "NoSchedule".to_owned(), ..Taint::default() }]);
    });
    let replica = stage.start(&["--taint", "going=soon:NoSchedule", "--events", "lifecycle", "--delay=spot=20s"]).await;
    stage.annotate(0, "ebbtide/allow-test", "true");
    for n in 0..3 {
        stage.spot(n);
    }
    stage.until_handled(s(130)).await;
    replica.stop().await;
    let before: Vec<Node> = stage.world.kube.nodes();
    assert!(before.iter().all(|node| marks(node).2 && conditions(node).contains(&"EbbtideDraining".to_owned())));

    let shown = stage.undo(&["--dry-run", "--taint-key", "going"]).await;
    assert_eq!((shown.code, &*shown.problems), (0, ""));
    assert!(
        shown.output.contains("the cordon, the taint going=soon:NoSchedule, the label ebbtide/kind"),
        "{}",
        shown.output
    );
    assert!(
        shown.output.contains("notices  not over: spot") && shown.output.ends_with("3 Nodes to undo.\n"),
        "{}",
        shown.output
    );
    assert_eq!(stage.world.kube.nodes(), before, "a dry run changes nothing");
    let refused = stage.undo_if(&["--taint-key", "going"], |question| {
        assert!(question.ends_with("Remove this from 3 Nodes, and uncordon 2 of them?"), "{question}");
        false
    });
    assert_eq!(refused.await.problems, "nothing was removed");
    assert_eq!(stage.world.kube.nodes(), before, "nor does a no");

    let one = stage.undo(&["--yes", "--taint-key", "going", "--node", "node-1"]).await;
    assert!(one.output.ends_with("1 Node undone.\n") && one.code == 0, "{one:?}");
    assert!(marks(&stage.world.kube.nodes()[0]).2, "only the Nodes that are named");
    let answer = stage.undo(&["--yes", "--taint-key", "going"]).await;
    assert_eq!((answer.code, &*answer.problems), (0, ""));
    let nodes = stage.world.kube.nodes();
    assert_eq!(marks(&nodes[0]), (vec!["ebbtide/allow-test".to_owned()], vec![], false), "an order of the user stays");
    assert_eq!(marks(&nodes[1]), (vec![], vec![], false));
    assert_eq!(marks(&nodes[2]), (vec![], vec!["own".to_owned()], true), "an older cordon, and its taint, stay");
    assert!(nodes.iter().all(|node| conditions(node) == ["Ready"]), "{nodes:?}");
    let again = stage.undo(&["--yes"]).await;
    assert_eq!((again.code, &*again.output), (0, "Nothing of Ebbtide is left on any Node.\n"));
}

/// While the service or an agent runs, it would write the marks again.
#[tokio::test(start_paused = true)]
async fn nothing_is_undone_while_a_program_runs() {
    for (label, program) in [("ebbtide/service", "the service"), ("ebbtide/agent", "an agent")] {
        let stage = Stage::new(1, 0);
        stage.annotate(0, "ebbtide/undo", r#"{"cordon":true}"#);
        let pod = stage.world.kube.add_pod(Pod::on("node-0").labels([(label, "true")]));
        for flags in [&["--yes"][..], &["--dry-run"]] {
            let answer = stage.undo(flags).await;
            let told = format!("{program} still runs, in pod default/{pod}, and would mark Nodes again");
            assert!(answer.code == 1 && answer.problems.starts_with(&told), "{answer:?}");
        }
        assert_eq!(marks(&stage.world.kube.nodes()[0]).0, ["ebbtide/undo"]);
        stage.world.kube.remove_pod("default", &pod);
        assert_eq!(stage.undo(&["--yes"]).await.code, 0);
        assert_eq!(marks(&stage.world.kube.nodes()[0]).0, [""; 0]);
    }
}

/// A taint that the service does not add by default stays, and the output names it: anyone who may annotate a Node can list taints that
/// are not Ebbtide's. A Node whose owner excludes it stays as it is.
#[tokio::test(start_paused = true)]
async fn what_may_be_of_others_stays_and_is_named() {
    let stage = Stage::new(2, 0);
    let undo = r#"{"cordon":true,"taints":["other=x:NoSchedule","ebbtide/going:NoSchedule"]}"#;
    for n in 0..2 {
        stage.annotate(n, "ebbtide/undo", undo);
        stage.world.kube.update_node(&node(n), |node| {
            let taint = |key: &str, value: Option<&str>| Taint {
                key: key.to_owned(),
                value: value.map(str::to_owned),
                effect: "NoSchedule".to_owned(),
                ..Taint::default()
            };
            let spec = node.spec.get_or_insert_default();
            spec.unschedulable = Some(true);
            spec.taints = Some(vec![taint("other", Some("x")), taint("ebbtide/going", None)]);
        });
    }
    stage.annotate(1, "ebbtide/ignore", "true");
    let answer = stage.undo(&["--yes"]).await;
    assert_eq!(answer.code, 0, "{answer:?}");
    assert!(
        answer.output.contains("stays    other=x:NoSchedule: give --taint-key if the service added it"),
        "{}",
        answer.output
    );
    assert!(answer.output.contains("skipped  it has the annotation ebbtide/ignore"), "{}", answer.output);
    let nodes = stage.world.kube.nodes();
    assert_eq!(marks(&nodes[0]), (vec![], vec!["other".to_owned()], false));
    let (names, taints, cordoned) = marks(&nodes[1]);
    assert_eq!((names.len(), taints.len(), cordoned), (2, 2, true));
}

/// A conflict is tried again, more annotations than are read at once all go, and one Node that fails stops no other.
#[tokio::test(start_paused = true)]
async fn failures_are_named_and_stop_nothing_else() {
    let stage = Stage::new(3, 0);
    for n in 0..3 {
        stage.annotate(n, "ebbtide/undo", r#"{"cordon":true}"#);
    }
    for n in 0..150 {
        stage.annotate(0, &format!("ebbtide/notice.{n:016x}"), "{}");
    }
    stage.world.faults.add(Rule::on("patch nodes", Fault::Status(409)).subject("node-1").times(2));
    stage.world.faults.add(Rule::on("patch nodes", Fault::Status(403)).subject("node-2"));
    let answer = stage.undo(&["--yes", "--output", "json"]).await;
    assert_eq!(answer.code, 1, "{answer:?}");
    assert!(answer.problems.contains("node-2") && answer.problems.lines().count() == 1, "{}", answer.problems);
    let left: Vec<_> = stage.world.kube.nodes().iter().map(|node| marks(node).0.len()).collect();
    assert_eq!(left, [0, 0, 1]);
    let report: serde_json::Value = serde_json::from_str(&answer.output).unwrap();
    assert!(report["nodes"][2]["error"].is_string() && report["nodes"][1]["error"].is_null(), "{report}");
    let missing = stage.undo(&["--dry-run", "--node", "node-9"]).await;
    assert_eq!(missing.problems, "there is no Node \"node-9\"; kubectl get nodes lists all Nodes");
}
