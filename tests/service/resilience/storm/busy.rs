//! The world of a storm, and what its tests count.
//!
//! The API server does a bounded number of calls at a time, so that a storm takes virtual time and can be disturbed in its middle.
//! Each storm is a fraction of the size that is promised, so that its test takes a second or two.

use crate::harness::Stage;
use ebbtide::runtime::random;
use std::collections::BTreeMap;
use std::time::Duration;

pub const PATCH: &str = "patch nodes";
pub const LIST: &str = "list pods";
pub const EVICT: &str = "create pods/eviction";
pub const RECEIVE: &str = "ReceiveMessage";
pub const DELETE: &str = "DeleteMessageBatch";
pub const EXTEND: &str = "ChangeMessageVisibilityBatch";

pub const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// Returns a world whose API server does 500 calls a second, 10 at a time: a hundred nodes are drained in about a second.
pub fn busy(nodes: usize, pods: usize) -> Stage {
    let stage = Stage::new(nodes, pods);
    // The measurements depend on jittered waits.
    random::seed(1);
    stage.world.kube.busy(10, ms(20));
    stage
}

/// Returns the number of calls to a service, without watches, which stay open.
pub fn calls_to(stage: &Stage, service: &str) -> usize {
    let calls = stage.world.calls.all();
    calls.iter().filter(|call| call.service == service && !call.operation.starts_with("watch ")).count()
}

/// Asserts that every pod of the first `nodes` nodes was evicted by one accepted call, and is gone.
pub fn all_evicted_once(stage: &Stage, nodes: usize, pods: usize) {
    let mut ends: BTreeMap<String, usize> = BTreeMap::new();
    for ended in stage.world.kube.evictions() {
        *ends.entry(ended.name).or_default() += 1;
    }
    let expected = (0..nodes).flat_map(|n| (0..pods).map(move |pod| (format!("web-{n}-{pod}"), 1)));
    assert_eq!(ends, expected.collect(), "{}", stage.story());
    assert_eq!(stage.world.kube.pods().len(), 0);
}

/// Asserts that the calls to SQS since `begun` are as few as batches of ten make them: a quarter of a call for each message, and
/// a tenth of a call for each 20 s that the message was held.
pub fn batched(stage: &Stage, messages: usize, begun: Duration) {
    let took = stage.world.clock.elapsed().saturating_sub(begun);
    let spans = usize::try_from(took.as_secs() / 20).expect("it must end");
    let calls = [RECEIVE, DELETE, EXTEND].map(|operation| stage.calls(operation));
    // An empty queue is polled every 20 s.
    let polls = spans;
    assert!(calls.iter().sum::<usize>() <= polls + share(messages, 25 + 10 * spans), "{calls:?} in {took:?}");
}

/// Returns a number of hundredths of `of`, rounded up.
pub fn share(of: usize, hundredths: usize) -> usize {
    (of * hundredths).div_ceil(100)
}
