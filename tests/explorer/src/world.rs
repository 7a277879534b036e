//! One world from its plan: the service's processes in the simulation, what is sent, what goes wrong, and what the capacity does.

mod live;

use crate::harness::{Replica, Stage, s};
use crate::oracle::{Broken, Oracle};
use crate::plan::{Plan, Source};
use ebbtide::fact::TaskKind;
use ebbtide::pipeline::QUIET_TIME;
use ebbtide::runtime::random;
use ebbtide::service::Exit;
use ebbtide_sim::World;
use ebbtide_sim::calls::Call;
use ebbtide_sim::clock::Clock;
use live::Live;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Wall time at which every world begins, in seconds: the same seed gives the same story.
const BEGIN: i64 = 1_795_000_000;

/// Maximum time from the last fault to the last deletion: the longest patience, an hour, after the last takeover, which takes half of it
/// without a message, and its end.
const BOUND: Duration = Duration::from_mins(100);

/// What a world showed.
#[derive(Debug)]
pub struct Outcome {
    /// The rule that was broken, if any.
    pub broken: Option<Broken>,
    /// Calls and other events, in order.
    pub story: String,
    /// All calls.
    pub calls: Vec<Call>,
    /// Number of processes that were killed, and that were shut down.
    pub ends: [u32; 2],
    /// Virtual time.
    pub lasted: Duration,
}

/// Lets a world happen.
#[must_use]
pub fn run(plan: &Plan) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    let runtime = runtime.expect("a runtime must start");
    random::seed(plan.seed);
    let begin = jiff::Timestamp::from_second(BEGIN).expect("the begin must be a time");
    // Whoever asks for the time outside of the runtime gets the machine's.
    let inside = runtime.enter();
    let world = World::with_clock(Clock::at(begin), plan.seed);
    let stage = Arc::new(Stage { world, clock_ahead: Arc::default(), quiet_time: QUIET_TIME, has_history: true });
    stage.clock_ahead.store(plan.clock_ahead, Ordering::Relaxed);
    let oracle = Oracle::watching(&stage.world, plan);
    drop(inside);
    let ends = catch_unwind(AssertUnwindSafe(|| runtime.block_on(live(plan, &stage, &oracle))));
    let ends = ends.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default();
        oracle.breaks("no panic, and rest at the end", text.lines().next().unwrap_or_default());
        [0; 2]
    });
    let _inside = runtime.enter();
    let lasted = stage.world.clock.elapsed();
    let calls = stage.world.calls.all();
    let seen = oracle.seen();
    Outcome { broken: seen.broken.clone(), story: story(&calls, &seen.notes), calls, ends, lasted }
}

/// Returns what happened, in order.
fn story(calls: &[Call], notes: &[(Duration, String)]) -> String {
    let told = calls.iter().map(|call| {
        let Call { at, operation, subject, status, fault, .. } = call;
        let fault = fault.map(|fault| format!(" ({fault:?})")).unwrap_or_default();
        (*at, format!("{operation} {subject} → {status}{fault}"))
    });
    let mut all: Vec<_> = notes.iter().map(|(at, text)| (*at, format!("--- {text}"))).chain(told).collect();
    all.sort_by_key(|(at, _)| *at);
    all.into_iter().map(|(at, text)| format!("{:>10.3}s {text}\n", at.as_secs_f64())).collect()
}

async fn live(plan: &Plan, stage: &Arc<Stage>, oracle: &Arc<Oracle>) -> [u32; 2] {
    let mut live = Live::new(plan, stage, oracle);
    let stop = CancellationToken::new();
    let calm = s(plan.calm_from());
    let keepers: Vec<_> = (0..plan.replicas.len())
        .map(|slot| {
            let (plan, stage, oracle, stop) = (plan.clone(), Arc::clone(stage), Arc::clone(oracle), stop.clone());
            tokio::spawn(async move { keep(&plan, &stage, &oracle, slot, calm, &stop).await })
        })
        .collect();
    // Who waits for a place in a wave, or for room, has as much time again.
    let is_limited = plan.flags.limit.is_some() || plan.flags.others.contains(&"--wave");
    let bound = if is_limited { 2 * BOUND } else { BOUND };
    live.happen(calm + bound + s(plan.longest_life())).await;
    stop.cancel();
    let (mut replicas, mut ends) = (Vec::new(), [0, 0]);
    for keeper in keepers {
        let (replica, ended) = keeper.await.expect("a keeper must not panic");
        ends = [ends[0] + ended[0], ends[1] + ended[1]];
        replicas.push(replica);
    }
    if oracle.seen().broken.is_some() {
        return ends;
    }
    // No message tells when the work on what a Node says, or on a plan, is over, and a call that hangs ends with its timeout.
    let is_lasting = plan.flags.source != Source::Queue || plan.flags.before.is_some() || plan.flags.looks;
    let bound = if is_lasting { BOUND + s(plan.longest_life()) } else { s(60) };
    let rests = |it: &Replica| TaskKind::ALL.into_iter().all(|kind| !kind.transient() || it.tasks.alive(kind) == 0);
    let all_rest = async {
        // While one is waited for, another may take its work over.
        while !replicas.iter().all(rests) {
            for replica in &replicas {
                replica.tasks.gone(TaskKind::transient).await;
            }
        }
    };
    if timeout(bound, all_rest).await.is_err() {
        oracle.breaks("the world comes to rest", "work goes on");
        return ends;
    }
    stage.rest(&replicas.iter().collect::<Vec<_>>()).await;
    // The last mark was set before all messages were deleted.
    sleep(oracle.expiry().max(oracle.retry()).unwrap_or_default()).await;
    oracle.judge_end();
    for replica in replicas {
        let exit = shut_down(oracle, replica).await;
        if exit != Exit::Clean {
            oracle.breaks("an ordered shutdown ends everything", format!("{exit:?} at rest"));
        }
    }
    ends
}

/// Shuts a replica down in order: docs/settings.md, "Exit codes".
async fn shut_down(oracle: &Oracle, replica: Replica) -> Exit {
    let (exit, took, tasks) = replica.stop().await;
    if exit == Exit::TaskEnded || took > s(12) || TaskKind::ALL.into_iter().any(|kind| tasks.alive(kind) > 0) {
        oracle.breaks("an ordered shutdown ends everything", format!("{exit:?} after {took:?}"));
    }
    oracle.seen().alive -= 1;
    exit
}

/// Runs a replica's processes one after the other; returns the last, and how many were killed and shut down.
async fn keep(
    plan: &Plan,
    stage: &Stage,
    oracle: &Oracle,
    slot: usize,
    calm: Duration,
    stop: &CancellationToken,
) -> (Replica, [u32; 2]) {
    let mut flags = plan.flags.clone();
    (plan.disobeys)(&mut flags);
    let is_elected = flags.source != Source::Queue || flags.collect_nodes();
    let mut flags = flags.args();
    flags.extend(is_elected.then(|| format!("--pod-name=replica-{slot}")));
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let (mut counts, mut ends) = ([0, 0], plan.replicas[slot].iter());
    loop {
        let mut moments = oracle.moments.subscribe();
        let begun = *moments.borrow_and_update();
        {
            let mut seen = oracle.seen();
            (seen.alive, seen.starts) = (seen.alive + 1, seen.starts + 1);
        }
        oracle.note(format!("replica {slot} starts"));
        let replica = stage.start(&flags).await;
        let left = calm.saturating_sub(stage.world.clock.elapsed());
        let Some(end) = ends.next() else {
            stop.cancelled().await;
            return (replica, counts);
        };
        let reached = timeout(left, moments.wait_for(|now| *now >= begun + end.moment)).await.is_ok();
        if !reached {
            stop.cancelled().await;
            return (replica, counts);
        }
        for _ in 0..end.turns {
            tokio::task::yield_now().await;
        }
        oracle.note(format!("replica {slot} is {}", if end.ordered { "shut down" } else { "killed" }));
        if end.ordered {
            shut_down(oracle, replica).await;
        } else {
            let tasks = replica.kill().await;
            if timeout(s(1), tasks.gone(|_| true)).await.is_err() {
                oracle.breaks("no task outlives its process", "after a kill");
            }
            oracle.seen().alive -= 1;
        }
        counts[usize::from(end.ordered)] += 1;
        sleep(s(end.down)).await;
    }
}
