//! `ebbtide send`: a test message for a Node that allows it, which the service handles like AWS's own.

use crate::harness::{Stage, instance, node, s};
use clap::Parser;
use ebbtide::cli::{Answer, Cli, Command};
use ebbtide::commands::send::{send, send_with};
use ebbtide::runtime::Clock;
use ebbtide_sim::aws::HookSpec;
use ebbtide_sim::fault::{Fault, Rule};

impl Stage {
    /// Runs `ebbtide send` with these flags.
    async fn send(&self, flags: &[&str]) -> Answer {
        self.send_if(flags, |question| panic!("a test asks: {question}")).await
    }

    /// Does the same; `answer` answers the question.
    async fn send_if(&self, flags: &[&str], answer: impl FnOnce(&str) -> bool) -> Answer {
        let url = self.world.aws.sqs.queue_url();
        let mut all = vec!["ebbtide", "send", "--queue-url", &url];
        all.extend(flags);
        let Command::Send(flags) = Cli::try_parse_from(all).expect("a test's flags must be flags").command else {
            panic!("it must be send")
        };
        let clock = Clock::showing(self.world.clock.now());
        send_with(&self.clients(clock), clock, flags, answer).await
    }

    /// Allows test messages for the n-th node.
    fn allow(&self, n: usize, value: &str) {
        self.world.kube.update_node(&node(n), |node| {
            let annotations = node.metadata.annotations.get_or_insert_default();
            annotations.insert("ebbtide/allow-test".to_owned(), value.to_owned());
        });
    }
}

#[tokio::test(start_paused = true)]
async fn every_kind_reaches_the_service_and_is_acted_on() {
    for (kind, outcome) in [
        ("asg-terminate", "drained"),
        ("asg-launch", "ready"),
        ("spot", "drained"),
        ("rebalance", "cordoned"),
        ("state-change", "drained"),
        ("scheduled-change", "drained"),
        ("capacity-reservation", "drained"),
    ] {
        let stage = Stage::new(1, 2);
        stage.allow(0, "true");
        stage.world.aws.autoscaling.add_hook("group", "going", HookSpec::terminating(s(300)));
        stage.world.aws.autoscaling.add_hook("group", "coming", HookSpec::launching(s(300)));
        stage.world.aws.autoscaling.join("group", &instance(0));
        let replica = stage.start(&["--on", "asg-launch=ready"]).await;
        let answer = stage.send(&["--yes", "--kind", kind, "--node", "node-0"]).await;
        assert_eq!((answer.code, answer.problems.as_str()), (0, ""), "{kind}");
        stage.until_handled(s(60)).await;
        replica.ended_once(kind, outcome);
        let sent = stage.world.aws.sqs.deleted();
        assert!(answer.output.contains(&format!("message ID  {}", sent[0])), "{kind}: {}", answer.output);
        assert!(answer.output.contains("identity    ebbtide-test-"), "{}", answer.output);
        assert!(answer.output.contains("kubectl get node node-0 --watch"), "{}", answer.output);
        let hooks = usize::from(kind.starts_with("asg"));
        assert_eq!(stage.calls("CompleteLifecycleAction"), hooks, "{kind}");
        assert_eq!(answer.output.contains("No active Lifecycle Action found"), hooks == 1, "{kind}");
        let over = "ebbtide_completions_total{result=\"over\"}";
        assert!((replica.metric(over) - f64::from(u8::from(hooks == 1))).abs() < 0.1, "{kind}");
        stage.rest(&[&replica]).await;
    }
}

/// AWS does not know the action of a test: its answer to a heartbeat does not end the drain.
#[tokio::test(start_paused = true)]
async fn a_test_of_a_long_drain_takes_its_time() {
    let stage = Stage::slow(s(200));
    stage.allow(0, "true");
    stage.world.aws.autoscaling.add_hook("group", "going", HookSpec::terminating(s(60)));
    stage.world.aws.autoscaling.join("group", &instance(0));
    let replica = stage.start(&[]).await;
    let answer = stage.send(&["--yes", "--kind", "asg-terminate", "--node", "node-0"]).await;
    assert_eq!(answer.code, 0, "{}", answer.problems);
    stage.until_handled(s(210)).await;
    assert_eq!(stage.ends_of("slow").len(), 1, "its grace period is not shortened");
    replica.ended_once("asg-terminate", "drained");
    stage.rest(&[&replica]).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_does_not_allow_it_is_left_alone() {
    let stage = Stage::new(2, 1);
    stage.allow(1, "yes");
    for n in 0..2 {
        let answer = stage.send(&["--yes", "--kind", "spot", "--node", &node(n)]).await;
        assert_eq!((answer.code, answer.output.as_str()), (1, ""));
        let told = format!("kubectl annotate node node-{n} ebbtide/allow-test=true");
        assert!(answer.problems.ends_with(&told) && answer.problems.lines().count() == 1, "{}", answer.problems);
    }
    assert_eq!(stage.calls("SendMessage"), 0);
}

#[tokio::test(start_paused = true)]
async fn an_error_says_what_to_do() {
    let stage = Stage::new(1, 1);
    stage.allow(0, "true");
    let says = |answer: Answer, code: u8, what: &str| {
        assert_eq!((answer.code, answer.output.as_str(), answer.problems.lines().count()), (code, "", 1), "{answer:?}");
        assert!(answer.problems.contains(what), "{what}: {}", answer.problems);
    };
    says(stage.send(&["--yes", "--kind", "spot", "--node", "node-9"]).await, 1, "there is no Node \"node-9\"");
    says(
        stage.send(&["--yes", "--kind", "asg-terminate", "--node", "node-0"]).await,
        1,
        "give --group NAME and --hook NAME",
    );
    stage.world.kube.update_node("node-0", |node| node.spec.get_or_insert_default().provider_id = None);
    says(stage.send(&["--yes", "--kind", "spot", "--node", "node-0"]).await, 1, "spec.providerID must be");
    let stage = Stage::new(1, 1);
    stage.allow(0, "true");
    stage.world.faults.add(Rule::on("SendMessage", Fault::Status(403)));
    says(
        stage.send(&["--yes", "--kind", "spot", "--node", "node-0"]).await,
        1,
        "SenderArns of the stack, sender_arns of the module; the service's own role can't send",
    );
    stage.world.faults.add(Rule::on("get nodes", Fault::Status(403)));
    says(stage.send(&["--yes", "--kind", "spot", "--node", "node-0"]).await, 1, "get nodes");
    assert!(stage.world.aws.sqs.is_empty());
}

/// Whether standard input is a terminal or not.
#[tokio::test(start_paused = true)]
async fn wrong_flags_are_told_before_the_question() {
    let line = ["ebbtide", "send", "--queue-url", "foo", "--kind", "spot", "--node", "node-0"];
    let Command::Send(flags) = Cli::try_parse_from(line).expect("a test's flags must be flags").command else {
        panic!("it must be send")
    };
    let answer = send(flags).await;
    assert!(answer.code == 2 && answer.problems.starts_with("--queue-url: \"foo\""), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn only_a_lifecycle_action_takes_a_group_and_a_hook() {
    let stage = Stage::new(1, 1);
    stage.allow(0, "true");
    for (flags, told) in [
        (&["--kind", "spot", "--group", "g", "--hook", "h"][..], "--group: is only for asg-terminate and asg-launch"),
        (&["--kind", "asg-launch", "--hook", "h"], "--group: is missing, but --hook is set"),
    ] {
        let answer = stage.send(&[&["--yes", "--node", "node-0"], flags].concat()).await;
        assert!(answer.code == 2 && answer.problems.starts_with(told), "{answer:?}");
        let answer = stage.simulate(&[&["--node", "node-0"], flags].concat()).await;
        assert!(answer.code == 2 && answer.problems.starts_with(told), "{answer:?}");
    }
    assert_eq!(stage.calls("SendMessage"), 0);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_unless_somebody_says_yes() {
    let stage = Stage::new(1, 1);
    stage.allow(0, "true");
    let flags = ["--kind", "spot", "--node", "node-0"];
    let no = stage
        .send_if(&flags, |question| {
            let names = ["spot", "node-0", &instance(0), "cordons and drains"];
            assert!(names.iter().all(|name| question.contains(name)), "{question}");
            false
        })
        .await;
    assert_eq!((no.code, no.output.as_str(), no.problems.as_str()), (1, "", "nothing was sent"));
    assert_eq!(stage.calls("SendMessage"), 0);
    assert_eq!(stage.send_if(&flags, |_| true).await.code, 0);
    assert_eq!(stage.calls("SendMessage"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_program_reads_what_was_sent() {
    let stage = Stage::new(1, 1);
    stage.allow(0, "true");
    let replica = stage.start(&[]).await;
    let flags = ["--yes", "--kind", "spot", "--node", "node-0", "--output"];
    let answer = stage.send(&[&flags[..], &["json"]].concat()).await;
    let report: serde_json::Value = serde_json::from_str(&answer.output).unwrap();
    stage.until_handled(s(60)).await;
    let (sent, queue) = (stage.world.aws.sqs.deleted(), stage.world.aws.sqs.queue_url());
    assert!(report["identity"].as_str().unwrap().starts_with("ebbtide-test-"), "{report}");
    let expected = serde_json::json!({
        "kind": "spot", "node": "node-0", "instance": instance(0), "message_id": sent[0], "identity": report["identity"],
        "queue": queue,
    });
    assert_eq!((answer.code, report), (0, expected));
    let answer = stage.send(&[&flags[..], &["yaml"]].concat()).await;
    assert!(
        answer.output.contains("\nkind: spot\n") && answer.output.contains("\nnode: node-0\n"),
        "{}",
        answer.output
    );
    // A failure is told on standard error alone, as that of `ebbtide status`.
    let answer = stage.send(&["--yes", "--kind", "spot", "--node", "node-9", "-o", "json"]).await;
    assert_eq!((answer.code, answer.output.as_str()), (1, ""), "{answer:?}");
    stage.until_handled(s(60)).await;
    stage.rest(&[&replica]).await;
}
