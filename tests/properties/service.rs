//! Properties for every order and every timing: a few dozen worlds each, each on a paused clock of its own.

use crate::harness::{Stage, instance, node, s};
use ebbtide::fact::TaskKind;
use ebbtide_sim::kube::{By, Limit, Pod};
use ebbtide_sim::messages::{self, Wrapping};
use proptest::prelude::*;
use std::cell::Cell;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

/// Grace period of a drain whose deadline has passed or is close: the time for its last call.
const LAST: Duration = Duration::from_secs(2);

/// Tolerance for timers: calls take no time here, but timers have a granularity.
const GRAIN: Duration = Duration::from_millis(500);

/// Runs one world.
fn in_a_world(world: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.expect("a runtime must start").block_on(world);
}

/// A pod of a random world.
#[derive(Clone, Debug)]
struct Any {
    grace: u64,
    /// Time that its containers take to stop, if they can.
    takes: u64,
    held: bool,
    critical: bool,
}

fn any_pod() -> impl Strategy<Value = Any> {
    let parts = (1..400_u64, 0..400_u64, any::<bool>(), any::<bool>());
    parts.prop_map(|(grace, takes, held, critical)| Any { grace, takes, held, critical })
}

/// Adds a pod to the first node. A held pod gets a budget of its own.
fn add(stage: &Stage, name: &str, held: bool, pod: Pod) {
    stage.world.kube.add_pod(pod.named(name).labels([("app", name)]));
    if held {
        stage.world.kube.add_budget("default", name, [("app", name)], Limit::MaxUnavailable(0));
    }
}

/// Notices of four kinds for one node, sent at these seconds. The node is reclaimed two minutes after the spot warning; the drain
/// timeout of the recommendation may end before or after that.
async fn four_notices(at: [u64; 4], patience: u64, pods: Vec<Any>) {
    let stage = Stage::new(1, 0);
    for (number, Any { grace, takes, held, critical }) in pods.iter().enumerate() {
        let pod = Pod::on(&node(0)).grace(s(*grace)).stops_in(s(*takes));
        let pod = if *critical { pod.priority(2_000_000_000) } else { pod };
        add(&stage, &format!("pod-{number}"), *held, pod);
    }
    let timeout = format!("rebalance={patience}s");
    let replica = stage.start(&["--on", "rebalance=drain", "--drain-timeout", &timeout]).await;
    let (begun, sent) = (Instant::now(), Cell::new(false));
    let gone_at = begun + s(at[0]) + s(120) + LAST + GRAIN;
    let send = async {
        let mut token = String::new();
        let mut order = [0, 1, 2, 3];
        order.sort_by_key(|&kind| at[kind]);
        for kind in order {
            sleep_until(begun + s(at[kind])).await;
            let (sqs, now) = (&stage.world.aws.sqs, stage.world.clock.now());
            match kind {
                0 => drop(stage.spot(0)),
                1 => token = stage.terminate(0, s(300), Wrapping::Event),
                2 => drop(sqs.send(messages::rebalance("r", &instance(0), now))),
                _ => drop(sqs.send(messages::state_change("s", &instance(0), "stopping", now))),
            }
        }
        sent.set(true);
        token
    };
    let all_ended = stage.until("all ended", s(400), || {
        assert!(replica.tasks.alive(TaskKind::Drain) <= 1, "one drain at a time");
        let left = stage.world.kube.pods_on(&node(0)).len();
        assert!(Instant::now() < gone_at || left == 0, "{left} pods outlive the node\n{}", stage.story());
        sent.get() && stage.world.aws.sqs.is_empty()
    });
    let (token, ()) = tokio::join!(send, all_ended);
    assert!(Instant::now() < gone_at, "{:?} after it all began", begun.elapsed());
    assert_eq!(stage.world.kube.pods_on(&node(0)).len(), 0, "{}", stage.story());
    assert_eq!(stage.world.aws.sqs.deleted().len(), 4);
    stage.completed_once(&token);
    for ended in stage.world.kube.evictions().into_iter().filter(|ended| ended.by == By::Delete) {
        let tried = stage.tries_of(&ended.name);
        assert!(tried.first().is_some_and(|first| *first <= ended.at), "deleted, and never tried: {ended:?}");
    }
    stage.rest(&[&replica]).await;
}

/// The priorities from which the tiers begin, before the tier of daemons.
const PRIORITIES: [i32; 3] = [0, 10_000, 2_000_000_000];

/// Tiers that have pods, and whether those are held; without tiers of the user never the second.
#[derive(Clone, Debug)]
struct Tiers {
    of_user: bool,
    there: [bool; 4],
    held: [bool; 4],
}

fn any_tiers() -> impl Strategy<Value = Tiers> {
    (any::<bool>(), any::<[bool; 4]>(), any::<[bool; 4]>()).prop_map(|(of_user, mut there, held)| {
        there[1] &= of_user;
        Tiers { of_user, there, held }
    })
}

/// A drain with `time` until a hard or soft deadline.
async fn tiers(time: Duration, hard: bool, Tiers { of_user, there, held }: Tiers) {
    let stage = Stage::new(1, 0);
    for tier in (0..4).filter(|tier| there[*tier]) {
        let pod = Pod::on(&node(0));
        let pod = if let Some(priority) = PRIORITIES.get(tier) { pod.priority(*priority) } else { pod.daemonset() };
        add(&stage, &format!("tier-{tier}"), held[tier], pod.stops_in(None::<Duration>));
    }
    let timeout = format!("rebalance={}s", time.as_secs());
    let mut flags =
        vec!["--on", "rebalance=drain", "--evict-daemonsets", "--max-draining=none", "--drain-timeout", &timeout];
    flags.extend(of_user.then_some("--priority-tier=2000000000,0,10000"));
    let replica = stage.start(&flags).await;
    sleep(s(1)).await;
    let (begun, now) = (stage.world.clock.elapsed(), stage.world.clock.now());
    stage.world.aws.sqs.send(if hard {
        messages::capacity_reservation("c", &instance(0), now, now + time)
    } else {
        messages::rebalance("r", &instance(0), now)
    });
    stage.until_handled(time + LAST).await;
    let end = begun + time;
    let tiers = there.iter().filter(|there| **there).count();
    for (rank, tier) in (0_u32..).zip((0..4).filter(|tier| there[*tier])) {
        let name = format!("tier-{tier}");
        let share = begun + time * rank / u32::try_from(tiers).expect("there are four") + GRAIN;
        let tried = stage.tries_of(&name);
        assert!(
            tried.first().is_some_and(|first| *first < share.min(end)),
            "{name} was tried at {tried:?}, and its share began at {share:?} of {end:?}\n{}",
            stage.story()
        );
        let by: Vec<_> = stage.ends_of(&name).into_iter().map(|end| end.by).collect();
        match (held[tier], hard) {
            (false, _) => assert_eq!(by.first(), Some(&By::Eviction), "{name}"),
            (true, true) => assert_eq!(by, [By::Delete], "{name}"),
            (true, false) => assert_eq!(by, [], "{name}: nothing is deleted at a soft deadline"),
        }
        if hard {
            assert!(!stage.has_pod(&name), "{name} outlives the deadline\n{}", stage.story());
        }
    }
    stage.rest(&[&replica]).await;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn four_notices_in_any_order_end_each_in_its_own_way(
        at in prop::array::uniform4(0..=60_u64),
        patience in 20..=300_u64,
        pods in prop::collection::vec(any_pod(), 0..5),
    ) {
        in_a_world(four_notices(at, patience, pods));
    }

    #[test]
    fn a_blocked_tier_never_keeps_a_later_one_from_its_evictions(
        time in 5..=600_u64,
        hard in any::<bool>(),
        there in any_tiers(),
    ) {
        in_a_world(tiers(s(time), hard, there));
    }
}
