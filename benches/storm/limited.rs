//! A storm of spot warnings under the default limit, whatever AWS answers about them.

use crate::LATENCY;
use crate::harness::{Stage, instance, node, s};
use crate::storm::last;
use ebbtide_sim::aws::Ec2;
use ebbtide_sim::fault::{Fault, Rule};
use ebbtide_sim::kube::Pod;
use std::time::Duration;
use tokio::time::sleep;

/// Pods of each node.
const PODS: usize = 3;

/// Time that a pod takes to stop: drains run for as long, and hold room.
const STOPS_IN: Duration = Duration::from_secs(20);

/// What AWS answers about the warnings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It shows the interruptions.
    Confirms,
    /// It shows them half a minute late.
    Late,
    /// EC2's API throttles for a minute.
    Throttles,
    /// The right to ask is missing.
    Refuses,
    /// It shows none: the warnings are forged.
    Denies,
}

impl Answer {
    /// All of them, as the bench runs them.
    pub const ALL: [Self; 5] = [Self::Confirms, Self::Late, Self::Throttles, Self::Refuses, Self::Denies];

    /// Returns it in words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Confirms => "confirms them",
            Self::Late => "shows them 30 s late",
            Self::Throttles => "throttles for a minute",
            Self::Refuses => "refuses the questions",
            Self::Denies => "denies them: forged",
        }
    }
}

/// Result of a storm.
pub struct Limited {
    pub drained: usize,
    /// Virtual times since the warnings.
    pub last_cordon: Duration,
    pub last_eviction: Duration,
    pub last_pod: Duration,
    pub aws_calls: usize,
}

/// Warns of the interruption of all `nodes` nodes at once.
pub async fn run(nodes: usize, answer: Answer) -> Limited {
    let stage = Stage::new(nodes, 0);
    for n in 0..nodes * PODS {
        stage.world.kube.add_pod(Pod::on(&node(n / PODS)).named(&format!("web-{n}")).stops_in(STOPS_IN));
    }
    let slow = || stage.world.faults.add(Rule::on("*", Fault::Slow(LATENCY)));
    let replica = stage.start(&[]).await;
    let fault = match answer {
        Answer::Throttles => Some(Fault::Throttle),
        Answer::Refuses => Some(Fault::Status(403)),
        _ => None,
    };
    if let Some(fault) = fault {
        for operation in ["DescribeSpotInstanceRequests", "DescribeInstances"] {
            stage.world.faults.add(Rule::on(operation, fault));
        }
    }
    slow();
    let (begun, warned) = (stage.world.clock.elapsed(), stage.world.clock.now());
    let show = |code: &str| {
        (0..nodes).for_each(|n| stage.world.aws.ec2.set_spot_request(&instance(n), code, "terminate", warned));
    };
    show(if matches!(answer, Answer::Late | Answer::Denies) { "fulfilled" } else { Ec2::INTERRUPTED });
    for n in 0..nodes {
        stage.spot(n);
    }
    sleep(s(30)).await;
    if answer == Answer::Late {
        show(Ec2::INTERRUPTED);
    }
    sleep(s(30)).await;
    if answer == Answer::Throttles {
        stage.world.faults.clear();
        slow();
    }
    stage.until_handled(s(70)).await;
    let calls = stage.world.calls.tally();
    let aws_calls: usize = calls.iter().filter(|(call, _)| !call.contains(' ')).map(|(_, count)| count).sum();
    // Of these 0.3 are SQS's, and more of messages that are held for longer.
    assert!(answer == Answer::Denies || aws_calls * 20 <= nodes * 9 + 400, "{answer:?}: {aws_calls} calls to AWS");
    let drained = (0..nodes).filter(|n| stage.cordoned(*n)).count();
    let admitted = if answer == Answer::Denies { nodes / 4 } else { nodes };
    assert_eq!(drained, admitted, "{answer:?}");
    let ended = [("drained", admitted), ("not-admitted", nodes - admitted)];
    replica.all_ended("spot", &ended[..if admitted < nodes { 2 } else { 1 }]);
    let since = |call: &str| last(&stage, call).saturating_sub(begun);
    let last_eviction = since("create pods/eviction");
    assert!(last_eviction + STOPS_IN < s(120), "{answer:?}: the last pod is evicted after {last_eviction:?}");
    let last_pod = last_eviction + STOPS_IN;
    stage.rest(&[&replica]).await;
    Limited { drained, last_cordon: since("patch nodes"), last_eviction, last_pod, aws_calls }
}
