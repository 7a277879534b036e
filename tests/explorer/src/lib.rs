//! Random worlds for the real service, and a judge.
//!
//! ```text
//!  seed ─▶ plan ─▶ world: service × simulation ─▶ calls ─▶ oracle ─▶ a broken rule ─▶ shrink ─▶ a short story
//! ```
//!
//! A world is a cluster, a queue and one to three replicas on tokio's paused clock. Its plan says who sends what and when, which calls
//! fail, and at which moment of which call a process is killed. The oracle sees what the simulation recorded, and nothing of the service.
#![allow(clippy::expect_used, clippy::panic, clippy::missing_panics_doc, reason = "a test tool may panic")]
#![allow(clippy::format_collect, reason = "a story need not be fast")]
#![allow(clippy::disallowed_methods, reason = "tasks of a world end with it")]

#[allow(dead_code, missing_docs, clippy::format_collect, reason = "shared with the tests of the service")]
#[path = "../../service/harness.rs"]
mod harness;
pub mod oracle;
pub mod plan;
pub mod shrink;
pub mod world;

#[cfg(test)]
mod tests {
    use crate::plan::{Flags, Plan};
    use crate::{shrink, world};
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Number of worlds of a short run.
    const WORLDS: u64 = 50;

    #[test]
    fn no_world_breaks_a_rule() {
        let next = AtomicU64::new(0);
        let explore = || {
            while let seed @ ..WORLDS = next.fetch_add(1, Ordering::Relaxed) {
                let plan = Plan::random(seed);
                assert!(world::run(&plan).broken.is_none(), "{}", shrink::report(&plan));
            }
        };
        std::thread::scope(|scope| {
            let other = scope.spawn(explore);
            explore();
            other.join().expect("no rule must be broken");
        });
    }

    /// Replicas that have other settings than the judge knows break its rules, in one of a few worlds from this seed on.
    #[test]
    fn the_judge_sees_what_disobeys() {
        type Case = (&'static str, u64, fn(&mut Flags));
        let rules: [Case; 7] = [
            ("no eviction of a pod that must stay", 6, |flags| flags.evict_daemonsets = true),
            ("no eviction of a pod that asks not to be disturbed", 35, |flags| flags.respect = false),
            ("no completion while a pod could be evicted", 1, |flags| flags.drain_timeout = Some(1)),
            ("a hook gets the result that the settings say", 161, |flags| flags.on_failed = None),
            ("no mark on a node that stays", 10, |flags| flags.uncordon_after = None),
            ("no cordon before a notice is due", 1, |flags| flags.before = None),
            ("no message deleted before its drain ended", 1, |flags| flags.others.push("--dry-run")),
        ];
        for (rule, first, disobeys) in rules {
            let mut plans = (first..first + 100).map(|seed| Plan { disobeys, ..Plan::random(seed) });
            assert!(plans.any(|plan| broken(&world::run(&plan)) == Some(rule)), "not seen: {rule}");
        }
    }

    /// So do they in worlds that are rare, among the first hundred of each kind.
    #[test]
    fn the_judge_sees_what_disobeys_in_rare_worlds() {
        type Case = (&'static str, &'static str, fn(&mut Flags));
        let rules: [Case; 5] = [
            ("no tier of pods leaves before its turn", "tiers", |flags| flags.tiers = &[]),
            ("no single replica leaves while there is time for its new pod", "surge", |flags| flags.surge = None),
            ("no pod waits for its new pod for longer than it may", "surge", |flags| flags.surge = Some(48 * 3600)),
            ("no Deployment is restarted where that leaves no fewer gaps", "surge", |flags| flags.surge = Some(300)),
            ("no Node is deleted but that of an instance that has ended", "collected", |flags| {
                flags.others.retain(|flag| *flag != "--collect-nodes");
                flags.others.push("--collect-nodes");
            }),
        ];
        for (rule, with, disobeys) in rules {
            let plans = (0..).map(|seed| Plan { disobeys, ..Plan::random(seed) });
            let mut plans = plans.filter(|plan| plan.rare().contains(&with)).take(100);
            assert!(plans.any(|plan| broken(&world::run(&plan)) == Some(rule)), "not seen: {rule}");
        }
    }

    /// A story that is not small enough is hard to read, and one of another rule misleads.
    #[test]
    fn a_world_that_breaks_a_rule_becomes_smaller() {
        let plan = Plan { disobeys: |flags| flags.evict_daemonsets = true, ..Plan::random(6) };
        let (small, shown) = shrink::shrink(&plan);
        assert_eq!(broken(&shown), Some("no eviction of a pod that must stay"), "{small}");
        let pods = small.nodes.iter().map(|node| node.pods.len()).sum::<usize>();
        assert_eq!((small.nodes.len(), pods, small.notices.len(), small.faults.len()), (1, 1, 1, 0), "{small}");
    }

    fn broken(outcome: &world::Outcome) -> Option<&'static str> {
        outcome.broken.as_ref().map(|broken| broken.rule)
    }

    /// The plan repeats, and nearly always the story. Not the order in which tokio's watch channels wake tasks at one instant: they
    /// draw it from a generator that only an unstable build of tokio can seed.
    #[test]
    fn the_same_seed_gives_the_same_plan() {
        for seed in 0..100 {
            assert_eq!(Plan::random(seed).to_string(), Plan::random(seed).to_string(), "seed {seed}");
        }
    }
}
