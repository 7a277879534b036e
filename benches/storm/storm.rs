//! A storm over the service.

use crate::harness::{Replica, Stage, s};
use crate::meter::{Cost, Meter};
use crate::mix::{self, INEXACT};
use ebbtide_sim::aws::ActionState;
use ebbtide_sim::calls::Call;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Result of a storm.
pub struct Storm {
    pub messages: usize,
    pub cost: Cost,
    pub virtually: Virtually,
    pub calls: BTreeMap<String, usize>,
}

/// Virtual time since the messages were sent.
pub struct Virtually {
    pub last_cordon: Duration,
    pub last_eviction: Duration,
    pub empty: Duration,
}

/// Runs a storm over `nodes` nodes. The service knows all nodes before the first message arrives.
pub async fn run(nodes: usize) -> Storm {
    let stage = mix::stage(nodes);
    let replica = stage.start(&[]).await;
    stage.until("the first receive", s(60), || stage.calls("ReceiveMessage") > 0).await;
    let begun = stage.world.clock.elapsed();
    let sent = mix::send(&stage, nodes);
    let meter = Meter::start();
    stage.until_handled(s(100)).await;
    let cost = meter.stop();
    let empty = stage.world.clock.elapsed() - begun;
    let calls = stage.world.calls.tally();
    let virtually = Virtually {
        last_cordon: last(&stage, "patch nodes").saturating_sub(begun),
        last_eviction: last(&stage, "create pods/eviction").saturating_sub(begun),
        empty,
    };
    check(&stage, &replica, nodes, &calls, sent.keys());
    stage.rest(&[&replica]).await;
    Storm { messages: sent.len(), cost, virtually, calls }
}

/// Returns when the last of these calls was made.
pub fn last(stage: &Stage, operation: &str) -> Duration {
    stage.world.calls.of(operation).iter().map(|call: &Call| call.at).max().unwrap_or_default()
}

fn check<'a>(
    stage: &Stage,
    replica: &Replica,
    nodes: usize,
    calls: &BTreeMap<String, usize>,
    sent: impl ExactSizeIterator<Item = &'a String>,
) {
    let made: Vec<_> = calls.iter().filter(|(call, _)| !INEXACT.contains(&call.as_str())).collect();
    let mut expected = mix::exact(nodes);
    expected.sort_unstable();
    let expected: Vec<_> = expected.iter().map(|(call, count)| ((*call).to_owned(), *count)).collect();
    assert_eq!(made, expected.iter().map(|(call, count)| (call, count)).collect::<Vec<_>>(), "{}", stage.story());

    let sqs = &stage.world.aws.sqs;
    let (deleted, messages) = (sqs.deleted(), sent.len());
    let asked: usize = calls.iter().filter(|(call, _)| call.starts_with("Describe")).map(|(_, count)| count).sum();
    assert!(asked <= 10 + messages / 10, "{asked} questions to AWS about {messages} messages");
    let unique: BTreeSet<_> = deleted.iter().collect();
    assert_eq!((deleted.len(), unique), (messages, sent.collect()), "each message is deleted, once");
    assert_eq!(sqs.receive_log().len(), messages, "and was received once");

    let evictions = stage.world.kube.evictions();
    let pods: BTreeSet<_> = evictions.iter().map(|evicted| &evicted.uid).collect();
    assert_eq!(pods.len(), evictions.len(), "no pod is evicted twice");
    for action in stage.world.aws.autoscaling.actions() {
        let completed = matches!(&action.state, ActionState::Completed { result, .. } if result == "CONTINUE");
        assert!(completed && action.completions.len() == 1, "{action:?}");
    }
    for (kind, outcomes) in mix::outcomes(nodes) {
        replica.all_ended(kind, &outcomes);
    }
}
