//! A storm without a queue: each Node says that its spot instance ends.

use crate::LATENCY;
use crate::harness::{Stage, node, s};
use crate::meter::{Cost, Meter};
use crate::mix::PODS;
use crate::storm::last;
use ebbtide_sim::fault::{Fault, Rule};
use std::collections::BTreeMap;
use std::time::Duration;

/// Result of a storm.
pub struct Said {
    pub cost: Cost,
    /// Virtual time from the announcement to the last eviction.
    pub last_eviction: Duration,
    /// Virtual time until each Node carries the note that it needs nothing more.
    pub noted: Duration,
    pub calls: BTreeMap<String, usize>,
}

/// Runs a storm over `nodes` nodes, all of which say the same at once, as when a zone's spot capacity ends.
pub async fn run(nodes: usize) -> Said {
    let stage = Stage::new(nodes, PODS);
    stage.world.faults.add(Rule::on("*", Fault::Slow(LATENCY)));
    let replica = stage.start(&["--source", "nodes", "--pod-namespace", "ebbtide", "--pod-name", "a"]).await;
    let is_held = || {
        stage.world.kube.leases("ebbtide").iter().any(|lease| lease.metadata.name.as_deref() == Some("ebbtide-nodes"))
    };
    stage.until("its turn", s(60), is_held).await;
    let begun = stage.world.clock.elapsed();
    let at = stage.world.clock.now() + s(120);
    let says = format!(r#"{{"what":"terminate","at":"{at}"}}"#);
    for n in 0..nodes {
        stage.world.kube.update_node(&node(n), |node| {
            node.metadata.annotations.get_or_insert_default().insert("ebbtide/says.spot".to_owned(), says.clone());
        });
    }
    let meter = Meter::start();
    // The mark, and the note that the node needs nothing more.
    stage.until("all noted", s(100), || stage.calls("patch nodes") == 2 * nodes).await;
    let cost = meter.stop();
    let calls = stage.world.calls.tally();
    let noted = stage.world.clock.elapsed() - begun;
    let last_eviction = last(&stage, "create pods/eviction").saturating_sub(begun);
    replica.all_ended("spot", &[("drained", nodes)]);
    for (call, count) in [("list pods", 2 * nodes), ("create pods/eviction", PODS * nodes), ("patch nodes", 2 * nodes)]
    {
        assert_eq!(calls.get(call), Some(&count), "{call}: {}", stage.story());
    }
    let aws: Vec<_> = calls.keys().filter(|call| !call.contains(' ')).collect();
    assert!(aws.is_empty(), "{aws:?}");
    stage.rest(&[&replica]).await;
    Said { cost, last_eviction, noted, calls }
}
